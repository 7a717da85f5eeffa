"""The MMIO windows that the GPUs of a host need, drawn to scale: which address ranges each GPU takes."""

from collections.abc import Iterator, Mapping, Sequence

from winhost.core.answers import MissingFact
from winhost.core.dataclass import dataclass
from winhost.hardware import mmio
from winhost.hardware.bars import FOUR_GIB, MmioRefused
from winhost.hardware.host_gpus import is_compute_gpu
from winhost.hardware.mmio import MmioWindows, mmio_windows
from winhost.model.reason import PathVerdict, Verdict
from winhost.model.units import Bytes, mib, size
from winhost.render.fact_text import percent
from winhost.resources.host import Gpu, HostFacts, Selection

_WIDE_ENOUGH = 4.0  # percent of a strip that a number needs


@dataclass(frozen=True)
class Piece:
    """A part of a strip. kind: GPU or reserved; left, width: in percent; number: of a GPU in the legend."""

    kind: str
    left: float
    width: float
    number: int | None
    what: str
    at: str

    @property
    def mark(self) -> str:
        """The label of the piece; empty where it is too narrow."""
        return str(self.number) if self.number and self.width >= _WIDE_ENOUGH else ""


@dataclass(frozen=True)
class Strip:
    """A window from `begin` to `end`. floor: in percent, where nothing smaller would do."""

    title: str
    begin: str
    end: str
    pieces: tuple[Piece, ...]
    floor: float | None
    least: str
    why: tuple[str, ...]


@dataclass(frozen=True)
class Layout:
    """The windows of one VM with `gpus` GPUs. refused, remedy: why no VM can have all GPUs that were asked for."""

    gpus: int
    strips: tuple[Strip, ...]
    doubts: tuple[str, ...]
    refused: str | None = None
    remedy: str | None = None


def layout(facts: HostFacts, dda: PathVerdict, numbers: Mapping[str, int]) -> Layout | None:
    """The windows of one VM with all GPUs that DDA does not rule out, or as many as fit; None where facts are missing.

    numbers: the GPUs' numbers in the report, by location.
    """
    able = {gpu.key for gpu in dda.gpus if gpu.verdict is not Verdict.UNSUPPORTED}
    try:
        gpus = [gpu for gpu in facts.gpus if is_compute_gpu(gpu)]
        # Where DDA rules out all, all of them, since that may change.
        gpus = [gpu for gpu in gpus if gpu.location in able] or gpus
        return _most(facts, gpus, numbers) if gpus else None
    except MissingFact:
        return None


def _most(facts: HostFacts, gpus: Sequence[Gpu], numbers: Mapping[str, int]) -> Layout:
    refusal: MmioRefused | None = None
    for count in range(len(gpus), 0, -1):
        try:
            needed = mmio_windows(facts, Selection(tuple(gpus[:count])))
        except MmioRefused as refused:
            refusal = refusal or refused
        else:
            return _drawn(needed, [numbers[gpu.location] for gpu in gpus[:count]], refusal)
    return _drawn(None, [], refusal)


def _drawn(needed: MmioWindows | None, numbers: Sequence[int], refusal: MmioRefused | None) -> Layout:
    strips = (_high(needed.high, numbers), _low(needed.low, numbers)) if needed else ()
    doubts = (*needed.high.doubts, *filter(None, [needed.high.cap_warning])) if needed else ()
    if refusal is None:
        return Layout(len(numbers), strips, doubts)
    return Layout(len(numbers), strips, doubts, refusal.sentence, refusal.remedy)


def _high(window: mmio.HighWindow, numbers: Sequence[int]) -> Strip:
    return Strip(
        title=f"High window, {size(window.size)}",
        begin=size(window.base),
        end=size(window.end),
        pieces=tuple(_pieces(window, numbers, window.base)),
        floor=percent(window.floor, window.size),
        least=f"nothing below {mib(window.floor)} works",
        why=tuple(window.why.split("\n")),
    )


def _low(window: mmio.LowWindow, numbers: Sequence[int]) -> Strip:
    base = FOUR_GIB - window.size
    reserved = FOUR_GIB - mmio.LOW_USABLE_END
    screen = min(window.size // 2, mmio.FRAME_BUFFER_MOST)
    ends = [_piece(base, screen, base, window.size, "the guest's frame buffer")]
    ends.append(_piece(mmio.LOW_USABLE_END, reserved, base, window.size, "reserved"))
    return Strip(
        title=f"Low window, {size(window.size)}",
        begin=size(base),
        end=size(FOUR_GIB),
        pieces=(ends[0], *_pieces(window, numbers, base), ends[1]),
        floor=None,
        least=f"nothing below {mib(window.floor)} works",
        why=tuple(window.why.split("\n")),
    )


def _pieces(window: mmio.HighWindow | mmio.LowWindow, numbers: Sequence[int], base: Bytes) -> Iterator[Piece]:
    """A window's GPUs are in the order of their numbers. GPUs of one model are equal, so they are compared by `is`."""
    for it in sorted(window.pieces, key=lambda it: it.start):
        number = next(number for gpu, number in zip(window.gpus, numbers, strict=True) if gpu is it.gpu)
        yield _piece(it.start, it.length, base, window.size, it.gpu.name, number)


def _piece(start: Bytes, length: Bytes, base: Bytes, whole: Bytes, what: str, number: int | None = None) -> Piece:
    return Piece(
        kind="gpu" if number else "reserved",
        left=percent(start - base, whole),
        width=percent(length, whole),
        number=number,
        what=what,
        at=f"{mib(length)} at {mib(start)}",
    )
