"""Judges the capabilities of a target, and measures how much of each there is."""

from winhost.compat.capabilities import amounts, measured, nccl
from winhost.compat.capability import offers

__all__ = ["amounts", "measured", "nccl", "offers"]  # importing the others declares measures, and what a probe settles
