"""Draw the MMIO windows that the GPUs of a host need, to scale, with the address ranges of each GPU."""

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

_MIN_LABEL_WIDTH = 4.0  # percent of a strip


@dataclass(frozen=True)
class Piece:
    """A part of a strip. kind: gpu or reserved; left, width: in percent; number: that of the GPU in the legend."""

    kind: str
    left: float
    width: float
    number: int | None
    what: str
    at: str

    @property
    def mark(self) -> str:
        """The label of the piece; empty if the piece is too narrow."""
        return str(self.number) if self.number and self.width >= _MIN_LABEL_WIDTH else ""


@dataclass(frozen=True)
class Strip:
    """A window from `begin` to `end`. floor: the smallest size that works, in percent of the window."""

    title: str
    begin: str
    end: str
    pieces: tuple[Piece, ...]
    floor: float | None
    least: str
    why: tuple[str, ...]


@dataclass(frozen=True)
class Layout:
    """The windows of one VM with `gpus` GPUs. refused, remedy: why no VM can have all GPUs of the host."""

    gpus: int
    strips: tuple[Strip, ...]
    doubts: tuple[str, ...]
    refused: str | None = None
    remedy: str | None = None


def make_layout(facts: HostFacts, dda: PathVerdict, numbers: Mapping[str, int]) -> Layout | None:
    """Draw the windows of one VM with all GPUs that DDA supports, or as many as fit; None if facts are missing.

    numbers: the number of each GPU in the report, by location.
    """
    supported = {gpu.key for gpu in dda.gpus if gpu.verdict is not Verdict.UNSUPPORTED}
    try:
        gpus = [gpu for gpu in facts.gpus if is_compute_gpu(gpu)]
        # If DDA rules out all GPUs, draw all of them, because that may change.
        gpus = [gpu for gpu in gpus if gpu.location in supported] or gpus
        return _fit_most_gpus(facts, gpus, numbers) if gpus else None
    except MissingFact:
        return None


def _fit_most_gpus(facts: HostFacts, gpus: Sequence[Gpu], numbers: Mapping[str, int]) -> Layout:
    refusal: MmioRefused | None = None
    for count in range(len(gpus), 0, -1):
        try:
            needed = mmio_windows(facts, Selection(tuple(gpus[:count])))
        except MmioRefused as refused:
            refusal = refusal or refused
        else:
            return _draw_layout(needed, [numbers[gpu.location] for gpu in gpus[:count]], refusal)
    return _draw_layout(None, [], refusal)


def _draw_layout(needed: MmioWindows | None, numbers: Sequence[int], refusal: MmioRefused | None) -> Layout:
    strips = (_draw_high_window(needed.high, numbers), _draw_low_window(needed.low, numbers)) if needed else ()
    doubts = (*needed.high.doubts, *filter(None, [needed.high.cap_warning])) if needed else ()
    if refusal is None:
        return Layout(len(numbers), strips, doubts)
    return Layout(len(numbers), strips, doubts, refusal.sentence, refusal.remedy)


def _draw_high_window(window: mmio.HighWindow, numbers: Sequence[int]) -> Strip:
    return Strip(
        title=f"High window, {size(window.size)}",
        begin=size(window.base),
        end=size(window.end),
        pieces=tuple(_draw_pieces(window, numbers, window.base)),
        floor=percent(window.floor, window.size),
        least=f"nothing below {mib(window.floor)} works",
        why=tuple(window.why.split("\n")),
    )


def _draw_low_window(window: mmio.LowWindow, numbers: Sequence[int]) -> Strip:
    base = FOUR_GIB - window.size
    reserved = FOUR_GIB - mmio.LOW_USABLE_END
    screen = min(window.size // 2, mmio.MAX_FRAME_BUFFER)
    ends = [_draw_piece(base, screen, base, window.size, "the guest's frame buffer")]
    ends.append(_draw_piece(mmio.LOW_USABLE_END, reserved, base, window.size, "reserved"))
    return Strip(
        title=f"Low window, {size(window.size)}",
        begin=size(base),
        end=size(FOUR_GIB),
        pieces=(ends[0], *_draw_pieces(window, numbers, base), ends[1]),
        floor=None,
        least=f"nothing below {mib(window.floor)} works",
        why=tuple(window.why.split("\n")),
    )


def _draw_pieces(window: mmio.HighWindow | mmio.LowWindow, numbers: Sequence[int], base: Bytes) -> Iterator[Piece]:
    """Yield the pieces of a window's GPUs. numbers: in the order of the GPUs; GPUs of one model are equal, so they are
    compared by `is`.
    """
    for piece in sorted(window.pieces, key=lambda each: each.start):
        number = next(number for gpu, number in zip(window.gpus, numbers, strict=True) if gpu is piece.gpu)
        yield _draw_piece(piece.start, piece.length, base, window.size, piece.gpu.name, number)


def _draw_piece(
    start: Bytes, length: Bytes, base: Bytes, window_size: Bytes, what: str, number: int | None = None
) -> Piece:
    return Piece(
        kind="gpu" if number else "reserved",
        left=percent(start - base, window_size),
        width=percent(length, window_size),
        number=number,
        what=what,
        at=f"{mib(length)} at {mib(start)}",
    )
