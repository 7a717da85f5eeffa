"""Judges the capabilities of a target, and measures how much of each there is."""

from winhost.compat.capabilities import amounts, nccl, settled
from winhost.compat.capability import offers

__all__ = ["amounts", "nccl", "offers", "settled"]  # importing the others declares measures, and what a probe settles
