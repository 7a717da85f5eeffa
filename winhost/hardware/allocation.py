"""Simulate how a Linux guest fills an MMIO window: one aligned piece per device, first fit, in no guaranteed order."""

from bisect import insort
from collections import Counter
from collections.abc import Sequence
from functools import cache, lru_cache
from math import factorial, prod

from winhost.core.dataclass import dataclass
from winhost.hardware.bars import GpuBars
from winhost.model.units import Bytes, KiB

PAGE = 4 * KiB

Claim = tuple[Bytes, Bytes]  # length, alignment: what one GPU asks for
Span = tuple[Bytes, Bytes]  # start, end


@dataclass(frozen=True)
class WindowPiece:
    """The piece of a window that a GPU is expected to get: start address and length in bytes."""

    gpu: GpuBars
    start: Bytes
    length: Bytes

    @property
    def end(self) -> Bytes:
        """The first address after it."""
        return self.start + self.length


@dataclass(frozen=True)
class Extremes:
    """The lowest and highest end of the layout over all orders, and the order with the highest."""

    least: Bytes
    most: Bytes
    order: tuple[Claim, ...]


def claim(bars: Sequence[Bytes]) -> Claim:
    length = sum(align(bar, PAGE) for bar in bars)
    return length, 1 << (length.bit_length() - 1)


def align(n: Bytes, boundary: Bytes) -> Bytes:
    return -(-n // boundary) * boundary


def _first_fit(claim: Claim, taken: Sequence[Span], base: Bytes) -> Span:
    """The lowest free span that holds the claim; `taken` is sorted."""
    length, alignment = claim
    start = align(base, alignment)
    for begin, end in taken:
        if start + length <= begin:
            break
        if start < end:
            start = align(end, alignment)
    return start, start + length


def _occupied(claim: Claim, taken: Sequence[Span], base: Bytes, smallest: Bytes) -> tuple[Span, ...]:
    """`taken` with the claim. Holes below `smallest` count as taken: many orders then lead to the same layout."""
    first, *others = sorted([*taken, _first_fit(claim, taken, base)])
    spans = [first]
    for begin, end in others:
        if begin - spans[-1][1] < smallest:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((begin, end))
    return tuple(spans)


def extremes(claims: Sequence[Claim], base: Bytes) -> Extremes:
    """Over all distinct orders. No piece begins before the first boundary, so bases with the same one are the same."""
    return _extremes(tuple(claims), align(base, min((alignment for _, alignment in claims), default=1)))


@lru_cache(maxsize=1024)
def _extremes(claims: tuple[Claim, ...], base: Bytes) -> Extremes:
    """Orders that lead to the same layout are followed once."""
    counts = Counter(claims)
    kinds = sorted(counts)
    smallest = min((length for length, _ in kinds), default=0)

    @cache
    def follow(left: tuple[int, ...], taken: tuple[Span, ...]) -> Extremes:
        if not any(left):
            end = taken[-1][1] if taken else base
            return Extremes(end, end, ())
        layouts = [
            (kind, follow((*left[:i], left[i] - 1, *left[i + 1 :]), _occupied(kind, taken, base, smallest)))
            for i, kind in enumerate(kinds)
            if left[i]
        ]
        kind, worst = max(layouts, key=lambda layout: layout[1].most)
        return Extremes(min(layout.least for _, layout in layouts), worst.most, (kind, *worst.order))

    return follow(tuple(counts[kind] for kind in kinds), ())


def clear_cache() -> None:
    """Empty the cache of layouts, so that a benchmark measures a first computation."""
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
        at = next(i for i, (asked, _) in enumerate(waiting) if asked == claim)
        pieces.append(WindowPiece(waiting.pop(at)[1], start, end - start))
    return pieces
