"""A disk image that is read piece by piece, in whatever format: what its readers and writers have in common."""

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from winhost.model.errors import UsageError, visible
from winhost.model.units import Bytes, GiB, KiB

SECTOR: Bytes = 512
LARGEST_DISK: Bytes = 64 * KiB * GiB
"""64 TiB, the most that a VHDX can hold."""

Progress = Callable[[Bytes, Bytes], None]
"""Told how far a job is, of how much."""


class Extent(NamedTuple):
    """What the disk holds from an offset on."""

    at: Bytes
    data: bytes


class DiskImage(Protocol):
    """An image that is open for reading."""

    @property
    def size(self) -> Bytes:
        """Of the disk, a whole number of sectors."""

    def pieces(self) -> Iterator[Extent]:
        """What the disk holds, in order and 2 MiB at most at a time; what is left out reads as zeros.

        Raises UsageError (ImageUnusable).
        """


def unusable(name: str, why: str, hint: str | None = None) -> UsageError:
    """The error for an image that winhost cannot use, or not rightly. name: of its file."""
    return UsageError(
        "ImageUnusable",
        what=f"{visible(name)} cannot be used as a disk image: it {visible(why)}",
        hint=None if hint is None else visible(hint),
    )


def check_size(name: str, size: Bytes) -> None:
    """Raises UsageError (ImageUnusable) for a disk of a size that no VHDX can have."""
    if not 0 < size <= LARGEST_DISK:
        raise unusable(name, f"says that its disk has {size:,} bytes, and a disk has more than none and 64 TiB at most")
    if size % SECTOR:
        raise unusable(name, f"has {size:,} bytes, which is no whole number of sectors ({SECTOR} bytes): it is cut off")
