"""Decides which GPUs a Linux guest can use in its MMIO windows: the guest's rule, written a second time on purpose.

The planner sizes windows by its own reading of the same rule (linux pci-hyperv.c, vmbus_drv.c). This one shares no code
with it, so that a mistake in either shows as a GPU that a simulated guest does not see.
"""

from collections.abc import Iterator, Sequence

from winhost.core.dataclass import dataclass

_PAGE = 0x1000
_HIGH_BASE = 0xF_E000_0000  # 64 GiB - 512 MiB, where Hyper-V puts the high window
_LOW_END = 0x1_0000_0000
_LOW_RESERVED = 0xFED4_0000  # from here to 4 GiB nothing is given out
_FRAME_BUFFER = 0x800_0000  # the most that the synthetic video of a generation 2 VM takes
_CONFIG = 0x2000  # per device, in the low window


@dataclass(frozen=True)
class GuestBars:
    """The BARs of one function as its registers say, in bytes."""

    wide: tuple[int, ...]
    narrow: tuple[int, ...]


class _Window:
    """An address window that is given out in aligned pieces, lowest first."""

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end
        self.taken: list[tuple[int, int]] = []

    def take(self, length: int, alignment: int) -> bool:
        """Take a piece, and tell whether one was left."""
        for address in self._candidates(alignment):
            if address + length <= self.end and all(address + length <= a or b <= address for a, b in self.taken):
                self.taken.append((address, address + length))
                return True
        return False

    def _candidates(self, alignment: int) -> Iterator[int]:
        for edge in sorted([self.start, *(end for _, end in self.taken)]):
            yield (edge + alignment - 1) // alignment * alignment


def fitting(functions: Sequence[GuestBars], low: int, high: int) -> list[bool]:
    """Tell for each function, in the order in which the guest meets them, whether it gets both its pieces."""
    above = _Window(_HIGH_BASE, _HIGH_BASE + high)
    below = _Window(_LOW_END - low + min(low // 2, _FRAME_BUFFER), _LOW_RESERVED)
    return [below.take(_CONFIG, _PAGE) and _fits(above, bars.wide) and _fits(below, bars.narrow) for bars in functions]


def window_end(high: int) -> int:
    """The first address behind a high window of this size."""
    return _HIGH_BASE + high


def _fits(window: _Window, bars: Sequence[int]) -> bool:
    total = sum(-(-bar // _PAGE) * _PAGE for bar in bars)
    if total == 0:
        return True
    alignment = _PAGE
    while alignment * 2 <= total:
        alignment *= 2
    return window.take(total, alignment)
