"""Sizes in bytes, and how they are written for people."""

from typing import TypeAlias

Bytes: TypeAlias = int

KiB: Bytes = 1 << 10
MiB: Bytes = 1 << 20
GiB: Bytes = 1 << 30


def mib(n: Bytes) -> str:
    """`n` in MiB, the unit in which Hyper-V's windows are discussed: `33,312 MiB`."""
    return f"{_number(n / MiB)} MiB"


def size(n: Bytes) -> str:
    """`n` in the largest unit that shows it exactly with at most one decimal: `63.5 GiB`, `33,312 MiB`, `8 KiB`."""
    for unit, name in ((GiB, "GiB"), (MiB, "MiB"), (KiB, "KiB")):
        if n >= unit and n * 2 % unit == 0:
            return f"{_number(n / unit)} {name}"
    return f"{n:,} bytes"


def _number(value: float) -> str:
    text = f"{value:,.2f}"
    return text.rstrip("0").rstrip(".")
