"""The diagram of a machine: positions of boxes and lines, in SVG units. Text is cut to its box."""

from collections.abc import Iterable, Sequence

from winhost.core.dataclass import dataclass
from winhost.render.fact_text import NOT_YET, fitted
from winhost.render.machine_view import MachinePicture, ShownGpu

MARGIN = 14
GAP = 14
RAIL = 16  # left of the rows, for the line that joins processors and GPUs
LINE = 17
LETTER = 6.4  # width of a letter in the widest usual font; what is wider still, its box cuts off
HEADING = 7.7
BAR = 8


@dataclass(frozen=True)
class Text:
    """A line of text; x, y is where its baseline begins. style: heading or line."""

    x: int
    y: int
    text: str
    style: str


@dataclass(frozen=True)
class Bar:
    """A GPU's memory, to scale with the largest one in the machine: `filled` of `width`."""

    x: int
    y: int
    width: int
    filled: int


@dataclass(frozen=True)
class Box:
    """A box of the diagram. kind: host, processor, memory, gpu, screen (no GPU), given (to a VM) or vm."""

    kind: str
    x: int
    y: int
    width: int
    height: int
    texts: tuple[Text, ...]
    bar: Bar | None = None


@dataclass(frozen=True)
class Picture:
    """lines: SVG paths; words: a description for screen readers."""

    width: int
    height: int
    boxes: tuple[Box, ...]
    lines: tuple[str, ...]
    words: str


@dataclass(frozen=True)
class _Content:
    """The content of a box: a heading, lines below it, and how full its bar is."""

    kind: str
    heading: str
    lines: tuple[str, ...]
    share: float | None = None

    @property
    def height(self) -> int:
        return MARGIN + LINE * (1 + len(self.lines)) + (BAR + 6 if self.share is not None else 0)


def picture(view: MachinePicture, *, width: int, columns: int) -> Picture:
    """Draw rows of at most `columns` boxes: processors and memory, then the GPUs in their slots, then the VMs."""
    within = width - 2 * MARGIN
    host = Text(MARGIN, MARGIN + 10, fitted(view.host, int(within / HEADING)), "heading")
    system = fitted(f"{view.system}, {view.model}", int(within / LETTER))
    head = (host, Text(MARGIN, MARGIN + 10 + LINE, system, "line"))
    sockets = [_Content("processor", at, tuple(text.rsplit(", ", 2))) for at, text in view.sockets]
    largest = max((gpu.memory or 0 for gpu in view.gpus), default=0)
    slots = [_gpu(view, gpu, largest) for gpu in view.gpus]
    each = (within - RAIL - GAP * (columns - 1)) // columns  # width of a box
    boxes: list[Box] = []
    gpus: list[list[Box]] = []
    below = head[-1].y + GAP
    for contents in ([*sockets, _Content("memory", "Memory", (view.memory,))], slots, _vms(view)):
        for row in (contents[first : first + columns] for first in range(0, len(contents), columns)):
            height = max(content.height for content in row)  # of all in a row
            lefts = (MARGIN + RAIL + position * (each + GAP) for position in range(len(row)))
            made = [_box(content, left, below, each, height) for content, left in zip(row, lefts, strict=True)]
            boxes += made
            below = made[0].y + made[0].height + GAP
            if row[0].kind in ("gpu", "screen", "given"):
                gpus.append(made)
        below += GAP // 2 if contents else 0
    whole = below - GAP // 2
    frame = Box("host", 0, 0, width, whole, head)
    return Picture(width, whole, (frame, *boxes), tuple(_bus(boxes[0], gpus)), words(view))


def words(view: MachinePicture) -> str:
    """The diagram in one sentence."""
    gpus = ", ".join(
        f"{gpu.number} {gpu.name}" + (f" assigned to {_vm_name(view, gpu)}" * bool(gpu.vm)) for gpu in view.gpus
    )
    vms = ", ".join(vm.name for vm in view.vms)
    sockets = ", ".join(text for _, text in view.sockets)
    if view.is_linux:
        return f"Memory: {view.memory}. GPUs: {gpus or 'none'}."
    return f"Processors: {sockets or 'unknown'}. Memory: {view.memory}. GPUs: {gpus or 'none'}. VMs: {vms or 'none'}."


# ---- what is in the boxes


def _gpu(view: MachinePicture, gpu: ShownGpu, largest: int) -> _Content:
    heading = f"{gpu.number} {gpu.name}"
    if not gpu.serves:
        return _Content("screen", heading, (gpu.root, "just a screen, no GPU"))
    assigned = f"; → {_vm_name(view, gpu)}" if gpu.vm else f"; {gpu.assignment}" * (gpu.assignment != NOT_YET)
    displays = f"{gpu.displays} display{'' if gpu.displays == '1' else 's'}"
    lines = (
        f"{gpu.root}, {gpu.driver}",
        f"{displays}{assigned}" if gpu.displays else gpu.location,
        f"memory {gpu.holds}",
    )
    share = gpu.memory / largest if gpu.memory else 0.0
    return _Content("given" if gpu.vm else "gpu", heading, lines, share)


def _vm_name(view: MachinePicture, gpu: ShownGpu) -> str:
    return next((vm.name for vm in view.vms if vm.id == gpu.vm), f"VM {gpu.vm}")


def _vms(view: MachinePicture) -> list[_Content]:
    by_number = {gpu.number: gpu for gpu in view.gpus}
    contents = []
    for vm in view.vms:
        given = [f"■ {number} {by_number[number].name}" for number in vm.gpus] or ["no GPU"]
        contents.append(_Content("vm", f"VM {vm.name}", (vm.state, f"memory {vm.memory}", *given)))
    return contents


# ---- where they stand


def _box(content: _Content, x: int, y: int, width: int, height: int) -> Box:
    inner = width - 20
    heading = Text(x + 10, y + 20, fitted(content.heading, int(inner / HEADING)), "heading")
    lines = [
        Text(x + 10, y + 20 + LINE * number, fitted(line, int(inner / LETTER)), "line")
        for number, line in enumerate(content.lines, 1)
    ]
    bar = None
    if content.share is not None:
        bar = Bar(x + 10, lines[-1].y + 7, inner, round(inner * content.share))
    return Box(content.kind, x, y, width, height, (heading, *lines), bar)


def _bus(first: Box, rows: Sequence[Sequence[Box]]) -> Iterable[str]:
    """Lines from the first processor down the left side to each GPU."""
    if not rows:
        return
    rail = MARGIN + RAIL // 2 - 4
    last = rows[-1][0].y - GAP // 2
    yield f"M{first.x} {first.y + first.height // 2}H{rail}V{last}"
    for row in rows:
        above = row[0].y - GAP // 2
        yield f"M{rail} {above}H{row[-1].x + 24}"
        for box in row:
            yield f"M{box.x + 24} {above}V{box.y}"
