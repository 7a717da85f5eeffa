"""The diagram of a machine: positions of boxes and lines, in SVG units. Text is cut to its box."""

from collections.abc import Iterable, Sequence

from winhost.core.dataclass import dataclass
from winhost.render.fact_text import PENDING, truncate
from winhost.render.machine_view import GpuView, MachineView

MARGIN = 14
GAP = 14
RAIL = 16  # left of the rows, for the line that joins processors and GPUs
LINE = 17
LETTER = 6.4  # the width of a letter in the widest common font; the box cuts off wider text
HEADING = 7.7
BAR = 8


@dataclass(frozen=True)
class Text:
    """A line of text. x, y: the start of its baseline; style: heading or line."""

    x: int
    y: int
    text: str
    style: str


@dataclass(frozen=True)
class Bar:
    """The bar of a GPU's memory, relative to the largest in the machine: `filled` of `width`."""

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
    """The diagram. lines: SVG paths; description: for screen readers."""

    width: int
    height: int
    boxes: tuple[Box, ...]
    lines: tuple[str, ...]
    description: str


@dataclass(frozen=True)
class _BoxContent:
    """The content of a box. share: how much of its bar is filled, from 0 to 1."""

    kind: str
    heading: str
    lines: tuple[str, ...]
    share: float | None = None

    @property
    def height(self) -> int:
        return MARGIN + LINE * (1 + len(self.lines)) + (BAR + 6 if self.share is not None else 0)


def draw_machine(view: MachineView, *, width: int, columns: int) -> Picture:
    """Draw rows of at most `columns` boxes: processors and memory, then the GPUs in their slots, then the VMs."""
    inner_width = width - 2 * MARGIN
    host = Text(MARGIN, MARGIN + 10, truncate(view.host, int(inner_width / HEADING)), "heading")
    system = truncate(f"{view.system}, {view.model}", int(inner_width / LETTER))
    head = (host, Text(MARGIN, MARGIN + 10 + LINE, system, "line"))
    sockets = [_BoxContent("processor", socket, tuple(text.rsplit(", ", 2))) for socket, text in view.sockets]
    largest = max((gpu.memory or 0 for gpu in view.gpus), default=0)
    slots = [_gpu_content(view, gpu, largest) for gpu in view.gpus]
    box_width = (inner_width - RAIL - GAP * (columns - 1)) // columns  # width of a box
    boxes: list[Box] = []
    gpus: list[list[Box]] = []
    below = head[-1].y + GAP
    for contents in ([*sockets, _BoxContent("memory", "Memory", (view.memory,))], slots, _vm_contents(view)):
        for row in (contents[first : first + columns] for first in range(0, len(contents), columns)):
            height = max(content.height for content in row)  # of all in a row
            lefts = (MARGIN + RAIL + position * (box_width + GAP) for position in range(len(row)))
            row_boxes = [
                _draw_box(content, left, below, box_width, height) for content, left in zip(row, lefts, strict=True)
            ]
            boxes += row_boxes
            below = row_boxes[0].y + row_boxes[0].height + GAP
            if row[0].kind in ("gpu", "screen", "given"):
                gpus.append(row_boxes)
        below += GAP // 2 if contents else 0
    total_height = below - GAP // 2
    frame = Box("host", 0, 0, width, total_height, head)
    return Picture(width, total_height, (frame, *boxes), tuple(_draw_bus(boxes[0], gpus)), describe_machine(view))


def describe_machine(view: MachineView) -> str:
    """Describe the diagram in a few words, for screen readers."""
    gpus = ", ".join(
        f"{gpu.number} {gpu.name}" + (f" assigned to {_vm_name(view, gpu)}" * bool(gpu.vm)) for gpu in view.gpus
    )
    vms = ", ".join(vm.name for vm in view.vms)
    sockets = ", ".join(text for _, text in view.sockets)
    if view.is_linux:
        return f"Memory: {view.memory}. GPUs: {gpus or 'none'}."
    return f"Processors: {sockets or 'unknown'}. Memory: {view.memory}. GPUs: {gpus or 'none'}. VMs: {vms or 'none'}."


# ---- the content of boxes


def _gpu_content(view: MachineView, gpu: GpuView, largest: int) -> _BoxContent:
    heading = f"{gpu.number} {gpu.name}"
    if not gpu.serves:
        return _BoxContent("screen", heading, (gpu.root, "just a screen, no GPU"))
    assigned = f"; → {_vm_name(view, gpu)}" if gpu.vm else f"; {gpu.assignment}" * (gpu.assignment != PENDING)
    displays = f"{gpu.displays} display{'' if gpu.displays == '1' else 's'}"
    lines = (
        f"{gpu.root}, {gpu.driver}",
        f"{displays}{assigned}" if gpu.displays else gpu.location,
        f"memory {gpu.memory_text}",
    )
    share = gpu.memory / largest if gpu.memory else 0.0
    return _BoxContent("given" if gpu.vm else "gpu", heading, lines, share)


def _vm_name(view: MachineView, gpu: GpuView) -> str:
    return next((vm.name for vm in view.vms if vm.id == gpu.vm), f"VM {gpu.vm}")


def _vm_contents(view: MachineView) -> list[_BoxContent]:
    by_number = {gpu.number: gpu for gpu in view.gpus}
    contents = []
    for vm in view.vms:
        gpu_lines = [f"■ {number} {by_number[number].name}" for number in vm.gpus] or ["no GPU"]
        contents.append(_BoxContent("vm", f"VM {vm.name}", (vm.state, f"memory {vm.memory}", *gpu_lines)))
    return contents


# ---- positions


def _draw_box(content: _BoxContent, x: int, y: int, width: int, height: int) -> Box:
    inner = width - 20
    heading = Text(x + 10, y + 20, truncate(content.heading, int(inner / HEADING)), "heading")
    lines = [
        Text(x + 10, y + 20 + LINE * number, truncate(line, int(inner / LETTER)), "line")
        for number, line in enumerate(content.lines, 1)
    ]
    bar = None
    if content.share is not None:
        bar = Bar(x + 10, lines[-1].y + 7, inner, round(inner * content.share))
    return Box(content.kind, x, y, width, height, (heading, *lines), bar)


def _draw_bus(first: Box, rows: Sequence[Sequence[Box]]) -> Iterable[str]:
    """Yield lines from the first processor down the left side to each GPU."""
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
