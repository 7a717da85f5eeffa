"""What targets can do, by subject. Importing this declares all rules."""

from winhost.compat.capabilities import gpu, links, memory, nccl, parallel, video

__all__ = ["gpu", "links", "memory", "nccl", "parallel", "video"]
