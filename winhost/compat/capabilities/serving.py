"""Capabilities that need a CUDA GPU, whatever else they need: sleep, checkpoints, loaders, KV mirrors."""

from dataclasses import replace

from winhost.compat.capabilities.gpu import no_cuda, no_gpu
from winhost.compat.capability import RULES

# CRIU has no need of it; for several GPUs there are reasons of their own.
ON_CUDA = (
    "sleep-l1",
    "sleep-l2",
    "cuda-checkpoint",
    "vllm-snapshot",
    "sharded-state",
    "tensorizer",
    "streaming-loaders",
    "kv-write-through",
    "kv-lmcache",
    "kv-nixl",
    "compressed-checkpoints",
    "async-checkpoints",
)

_OF_GPUS = [rule for rule in RULES if rule.judge in (no_gpu, no_cuda)]
RULES.extend(replace(rule, capability=name) for name in ON_CUDA for rule in _OF_GPUS)
