"""What targets can do, by subject. Importing this declares all rules."""

from winhost.compat.capabilities import (
    checkpoint,
    gpu,
    kv,
    links,
    loading,
    memory,
    nccl,
    operation,
    parallel,
    serving,
    sleep,
    video,
)

__all__ = [
    "checkpoint",
    "gpu",
    "kv",
    "links",
    "loading",
    "memory",
    "nccl",
    "operation",
    "parallel",
    "serving",
    "sleep",
    "video",
]
