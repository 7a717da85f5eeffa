"""Judges the capabilities of a target, and describes their amounts."""

from winhost.compat.capabilities import amounts, measured, nccl
from winhost.compat.capability import offers

__all__ = ["amounts", "measured", "nccl", "offers"]  # importing the others registers their functions
