"""Formats and parses sizes in bytes."""

import re
from fractions import Fraction
from typing import TypeAlias

Bytes: TypeAlias = int

KiB: Bytes = 1 << 10
MiB: Bytes = 1 << 20
GiB: Bytes = 1 << 30

# Memory is counted in powers of two, files on model hubs in powers of ten.
_UNITS = {"KiB": KiB, "MiB": MiB, "GiB": GiB, "TiB": GiB << 10, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
SIZE_PATTERN = rf"([0-9]{{1,12}}(?:\.[0-9]{{1,6}})?) ?({'|'.join(_UNITS)})"


def mib(n: Bytes) -> str:
    """Format `n` in MiB, as is usual for MMIO windows of Hyper-V: `33,312 MiB`. Always exact, if necessary in another
    unit.
    """
    return f"{_number(n / MiB)} MiB" if n * 4 % MiB == 0 else size(n)


def size(n: Bytes) -> str:
    """Format `n` in the largest unit that is exact with one decimal at most: `63.5 GiB`, `33,312 MiB`, `8 KiB`."""
    for unit, name in ((GiB, "GiB"), (MiB, "MiB"), (KiB, "KiB")):
        if n >= unit and n * 2 % unit == 0:
            return f"{_number(n / unit)} {name}"
    return f"{n:,} bytes"


def gib(n: Bytes) -> str:
    """Format `n` in GiB, rounded to two decimals: `14.96 GiB`; in MiB or bytes if that would be zero."""
    if 0 < n < GiB // 200:
        return f"{n / MiB:,.2f} MiB" if n >= MiB // 100 else f"{n:,} bytes"
    return f"{n / GiB:,.2f} GiB"


def gib_range(least: Bytes, most: Bytes) -> str:
    """Format a range, such as `0.25 to 1.17 GiB`; one size if both ends are formatted alike."""
    low, high = gib(least), gib(most)
    if low == high:
        return high
    return f"{low.removesuffix(' GiB')} to {high}" if least and high.endswith(" GiB") else f"{low} to {high}"


def about(n: Bytes) -> str:
    """Format `n` in GiB, rounded to at most two decimals: `64 GiB`, `63.79 GiB`."""
    return f"{_number(n / GiB)} GiB"


def parse_size(value: object) -> Bytes:
    """Parse a size such as `24 GiB` or `39.8 GB`, or a whole number of bytes. Rounds up. Raises ValueError."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    found = re.fullmatch(SIZE_PATTERN, value) if isinstance(value, str) else None
    if found is None or not Fraction(found[1]):
        raise ValueError("should be a size such as 24 GiB, 39.8 GB, 512 MiB, or a whole number of bytes")
    return -int(-Fraction(found[1]) * _UNITS[found[2]] // 1)


def _number(value: float) -> str:
    text = f"{value:,.2f}"
    return text.rstrip("0").rstrip(".")
