"""Rules of capabilities, by subject. Importing this package declares them all."""

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
    settled,
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
    "settled",
    "sleep",
    "video",
]
