"""Simulate how a Linux guest allocates an MMIO window: one aligned piece per device, first fit, in an unknown order."""

from bisect import insort
from collections import Counter
from collections.abc import Sequence
from functools import cache, lru_cache
from math import factorial, prod

from winhost.core.dataclass import dataclass
from winhost.hardware.bars import GpuBars
from winhost.model.units import Bytes, KiB

PAGE = 4 * KiB

Claim = tuple[Bytes, Bytes]  # length and alignment of the piece that one GPU requests
Span = tuple[Bytes, Bytes]  # start, end


@dataclass(frozen=True)
class WindowPiece:
    """The piece of a window that a GPU is expected to receive: start address and length in bytes."""

    gpu: GpuBars
    start: Bytes
    length: Bytes

    @property
    def end(self) -> Bytes:
        """The first address after it."""
        return self.start + self.length


@dataclass(frozen=True)
class Extremes:
    """The lowest and the highest end of the layouts for all orders of claims, and the order with the highest end."""

    least: Bytes
    most: Bytes
    order: tuple[Claim, ...]


def claim(bars: Sequence[Bytes]) -> Claim:
    length = sum(align(bar, PAGE) for bar in bars)
    return length, 1 << (length.bit_length() - 1)


def align(n: Bytes, boundary: Bytes) -> Bytes:
    return -(-n // boundary) * boundary


def _first_fit(claim: Claim, taken: Sequence[Span], base: Bytes) -> Span:
    """Return the lowest free span that holds the claim. taken: sorted."""
    length, alignment = claim
    start = align(base, alignment)
    for begin, end in taken:
        if start + length <= begin:
            break
        if start < end:
            start = align(end, alignment)
    return start, start + length


def _occupied(claim: Claim, taken: Sequence[Span], base: Bytes, smallest: Bytes) -> tuple[Span, ...]:
    """Return `taken` with the claim added. Holes smaller than `smallest` count as taken, so that more orders lead to
    equal layouts.
    """
    first, *others = sorted([*taken, _first_fit(claim, taken, base)])
    spans = [first]
    for begin, end in others:
        if begin - spans[-1][1] < smallest:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((begin, end))
    return tuple(spans)


def extremes(claims: Sequence[Claim], base: Bytes) -> Extremes:
    """Compute the extremes over all distinct orders of claims."""
    # No piece starts before the first boundary. Rounding the base up to it makes cache hits more likely.
    return _extremes(tuple(claims), align(base, min((alignment for _, alignment in claims), default=1)))


@lru_cache(maxsize=1024)
def _extremes(claims: tuple[Claim, ...], base: Bytes) -> Extremes:
    """Search the orders of claims depth-first. Equal intermediate layouts are searched once."""
    counts = Counter(claims)
    kinds = sorted(counts)
    smallest = min((length for length, _ in kinds), default=0)

    @cache
    def search(remaining: tuple[int, ...], taken: tuple[Span, ...]) -> Extremes:
        if not any(remaining):
            end = taken[-1][1] if taken else base
            return Extremes(end, end, ())
        layouts = [
            (
                kind,
                search((*remaining[:i], remaining[i] - 1, *remaining[i + 1 :]), _occupied(kind, taken, base, smallest)),
            )
            for i, kind in enumerate(kinds)
            if remaining[i]
        ]
        kind, worst = max(layouts, key=lambda layout: layout[1].most)
        return Extremes(min(layout.least for _, layout in layouts), worst.most, (kind, *worst.order))

    return search(tuple(counts[kind] for kind in kinds), ())


def clear_cache() -> None:
    """Clear the cache of layouts, so that a benchmark measures an uncached computation."""
    _extremes.cache_clear()


def count_orders(claims: Sequence[Claim]) -> int:
    return factorial(len(claims)) // prod(factorial(n) for n in Counter(claims).values())


def layout(gpus: Sequence[GpuBars], claims: Sequence[Claim], order: Sequence[Claim], base: Bytes) -> list[WindowPiece]:
    waiting = list(zip(claims, gpus, strict=True))
    pieces: list[WindowPiece] = []
    taken: list[Span] = []
    for claim in order:
        start, end = _first_fit(claim, taken, base)
        insort(taken, (start, end))
        index = next(i for i, (requested, _) in enumerate(waiting) if requested == claim)
        pieces.append(WindowPiece(waiting.pop(index)[1], start, end - start))
    return pieces
