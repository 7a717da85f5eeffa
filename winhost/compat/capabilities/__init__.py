"""Rules of capabilities, and how much of each there is. Importing this package declares them all."""

from winhost.compat.capabilities import amounts, nccl, rules, settled
from winhost.compat.rule import declare_rows
from winhost.model.capabilities import CAPABILITIES

__all__ = ["amounts", "nccl", "rules", "settled"]

declare_rows(*CAPABILITIES)
