"""MMIO windows of a VM with assigned GPUs, sized by the rule by which a Linux guest allocates them.

For each device, hv_pci adds up all 64-bit BARs and requests one piece of the high window, aligned to the largest power
of two that is not above the sum, first fit; likewise for all 32-bit BARs in the low window (linux pci-hyperv.c,
vmbus_drv.c). The order in which it probes the devices is not established, so the order that needs most is used.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from winhost.core.dataclass import dataclass
from winhost.hardware import allocation
from winhost.hardware.allocation import Claim, Extremes, WindowPiece, align, claim, count_orders, extremes, layout
from winhost.hardware.bars import FOUR_GIB, GpuBars, MmioRefused, gpu_bars
from winhost.hardware.processors import address_width
from winhost.model.units import Bytes, GiB, KiB, MiB, mib, size
from winhost.resources.host import HostFacts, Selection
from winhost.resources.windows.vms import assigned_vm

STEP = 2 * MiB  # Set-VM takes windows in steps of this size
HIGH_BASE = 64 * GiB - 512 * MiB  # the start of the high window, unless HighMmioGapBase is set
HIGH_CAP = 262_656 * MiB  # 256.5 GiB, as one tool (ExHyperV) reports: a warning, not a limit
DEFAULT_HIGH = 512 * MiB  # ends at 64 GiB, within the addresses of any processor that runs Hyper-V
HIGH_SLACK = GiB  # for other allocations of the guest
PROVEN_HIGH = 64 * GiB  # used for the common BAR1 of 16 to 32 GiB; proven in the field with an A30

MIN_LOW = 128 * MiB
MAX_LOW = 3584 * MiB
RECOMMENDED_LOW = GiB
LOW_USABLE_END = 0xFED4_0000  # the 18.75 MiB from here to 4 GiB are reserved
MAX_FRAME_BUFFER = 128 * MiB
CONFIG_WINDOW = 8 * KiB  # one per device at the start of the low window, in newer guests of the high one


@dataclass(frozen=True)
class HighWindow:
    """The window above 4 GiB. floor: the smallest size that works; size: the one to set; both multiples of 2 MiB.

    pieces: the layout in the order that needs most; least: the size that the best of the `orders` would need.
    """

    gpus: tuple[GpuBars, ...]
    base: Bytes
    floor: Bytes
    size: Bytes
    least: Bytes
    orders: int
    pieces: tuple[WindowPiece, ...]
    address_width: int | None
    cap: Bytes | None
    why: str
    doubts: tuple[str, ...]

    @property
    def end(self) -> Bytes:
        """The first address after the window at its `size`, to which the host's physical addresses must reach."""
        return self.base + self.size

    @property
    def cap_warning(self) -> str | None:
        """A warning if even the floor is above the cap."""
        return cap_warning(self.floor, self.cap)


@dataclass(frozen=True)
class LowWindow:
    """The window below 4 GiB. floor: the smallest size that works; size: the one to set; both multiples of 2 MiB.

    pieces: the layout at `size`, in the order that needs most.
    """

    gpus: tuple[GpuBars, ...]
    floor: Bytes
    size: Bytes
    pieces: tuple[WindowPiece, ...]
    why: str


# --- The high window -----------------------------------------------------------------------------------------------


def high_window(
    gpus: Sequence[GpuBars], *, base: Bytes = HIGH_BASE, address_width: int | None = None, cap: Bytes | None = HIGH_CAP
) -> HighWindow:
    """Size the window above 4 GiB for these GPUs in one VM.

    address_width: in bits, None if unknown; cap: None to ignore the unverified cap. If these leave no space for the
    BARs that resizable BAR allows, the surveyed BARs are used, with a doubt. The slack is reduced before that. Raises
    MmioRefused (`mmio.address-width`) if the floor is beyond the width.
    """
    surveyed = any(gpu.surveyed for gpu in gpus)
    try:
        window = _high_window(gpus, base, address_width, cap)
    except MmioRefused:
        if not surveyed:
            raise
        return _high_window([_surveyed_only(gpu) for gpu in gpus], base, address_width, cap)
    if window.cap_warning and surveyed:
        smaller = _high_window([_surveyed_only(gpu) for gpu in gpus], base, address_width, cap)
        return window if smaller.cap_warning else smaller
    return window


def _surveyed_only(gpu: GpuBars) -> GpuBars:
    if gpu.surveyed is None:
        return gpu
    doubt = (
        f"There is no room for the {size(gpu.aperture)} BAR that {gpu.name} has with resizable BAR: this window is "
        f"enough only while that BAR keeps the {size(gpu.surveyed.aperture)} of the survey."
    )
    return replace(gpu.surveyed, doubts=(*gpu.surveyed.doubts, doubt))


def _high_window(gpus: Sequence[GpuBars], base: Bytes, address_width: int | None, cap: Bytes | None) -> HighWindow:
    requesting = [gpu for gpu in gpus if gpu.bars64]
    claims = [claim(gpu.bars64) for gpu in requesting]
    bounds = extremes(claims, base)
    floor, least = (align(end - base, STEP) for end in (bounds.most, bounds.least))
    if (problem := _width_problem(floor, base, address_width)) is not None:
        sentence, limit = problem
        remedy = _width_remedy(requesting, base, limit)
        raise MmioRefused("mmio.address-width", sentence, remedy, need=floor, given=limit)
    pieces = layout(requesting, claims, bounds.order, base)
    orders = count_orders(claims)
    newer = extremes(claims, base + len(gpus) * CONFIG_WINDOW).most - base
    ends = [] if cap is None or floor > cap else [cap]
    if address_width is not None:
        ends.append((1 << address_width) - base)
    chosen, because = _high_size(gpus, max(floor, newer), min(ends, default=None))
    sources = dict.fromkeys(gpu.why for gpu in gpus if gpu.why)
    doubts = [*dict.fromkeys(doubt for gpu in gpus for doubt in gpu.doubts)]
    if newer > chosen:
        doubts.append(
            f"Newer Linux guests, which put config windows before the BARs, would need {mib(newer)} of high window."
        )
    return HighWindow(
        gpus=tuple(gpus),
        base=base,
        floor=floor,
        size=chosen,
        least=least,
        orders=orders,
        pieces=tuple(pieces),
        address_width=address_width,
        cap=cap,
        why="\n".join([*sources, *_why_high(pieces, floor, least, orders, base), because]),
        doubts=tuple(doubts),
    )


def check_high(requested: Bytes, window: HighWindow, *, allow_unverified: bool = False) -> Bytes:
    """Return the requested size if it works.

    Raises MmioRefused: `mmio.high-too-small`, `mmio.step`, `mmio.address-width`; `mmio.over-cap` unless the window must
    be above the cap, or `allow_unverified`.
    """
    if requested < window.floor:
        raise MmioRefused(
            "mmio.high-too-small",
            f"A high window of {mib(requested)} is {mib(window.floor - requested)} too small.\n{window.why}",
            f"Set {mib(window.floor)} or more; {size(window.size)} is recommended.",
            need=window.floor,
            given=requested,
        )
    _check_step(requested)
    if (problem := _width_problem(requested, window.base, window.address_width)) is not None:
        sentence, limit = problem
        raise MmioRefused("mmio.address-width", sentence, f"Set {size(window.size)}.", need=requested, given=limit)
    warning = None if window.cap_warning or allow_unverified else cap_warning(requested, window.cap)
    if warning:
        remedy = f"Set {size(window.size)}. To try the larger window all the same: --allow-unverified."
        raise MmioRefused("mmio.over-cap", warning, remedy, need=requested, given=window.cap)
    return requested


def _high_size(gpus: Sequence[GpuBars], need: Bytes, reach: Bytes | None) -> tuple[Bytes, str]:
    if need <= DEFAULT_HIGH and (reach is None or reach >= DEFAULT_HIGH):
        return DEFAULT_HIGH, f"Set is {size(DEFAULT_HIGH)}: Hyper-V's default, which holds them."
    chosen = align(need, GiB) + HIGH_SLACK
    because = f"what older and newer guests need, in whole GiB, and {size(HIGH_SLACK)} of slack"
    if chosen < PROVEN_HIGH and any(16 * GiB <= gpu.aperture <= 32 * GiB for gpu in gpus):
        chosen, because = PROVEN_HIGH, "the size proven in the field for a BAR1 of 16 to 32 GiB"
    if reach is not None and chosen > reach:
        chosen, because = reach // STEP * STEP, f"all that is within reach; {size(chosen)} would leave slack"
    return chosen, f"Set is {size(chosen)}: {because}."


def _width_problem(need: Bytes, base: Bytes, address_width: int | None) -> tuple[str, Bytes] | None:
    """Return a message if the window ends beyond the host's addresses, and the largest possible size; else None."""
    if address_width is None or base + need <= 1 << address_width:
        return None
    sentence = (
        f"A high window of {mib(need)} from {size(base)} up ends at {size(base + need)}, but the host's "
        f"{address_width} physical address bits end at {size(1 << address_width)}."
    )
    return sentence, max(0, (1 << address_width) - base)


def cap_warning(need: Bytes, cap: Bytes | None = HIGH_CAP) -> str | None:
    """Return a warning if a high window is larger than Hyper-V has been reported to accept, or None."""
    if cap is None or need <= cap:
        return None
    return (
        f"A high window of {mib(need)} is above the {mib(cap)} that one tool reports as the most that Hyper-V accepts "
        "(unverified)."
    )


def _width_remedy(gpus: Sequence[GpuBars], base: Bytes, limit: Bytes) -> str:
    too_large = [gpu.name for gpu in gpus if extremes([claim(gpu.bars64)], base).most - base > limit]
    if not too_large:
        return "Split the GPUs over several VMs: each has a window of its own."
    return (
        f"{too_large[0]} does not fit even alone. If it uses resizable BAR, turn that off in the host's firmware and "
        "read the host again; otherwise choose another GPU or path."
    )


def _check_step(requested: Bytes) -> None:
    if requested % STEP:
        raise MmioRefused(
            "mmio.step",
            f"{requested:,} bytes is not a multiple of {size(STEP)}, in which Hyper-V sizes its windows.",
            f"Take {mib(align(requested, STEP))}.",
            need=align(requested, STEP),
            given=requested,
        )


def _why_high(pieces: Sequence[WindowPiece], floor: Bytes, least: Bytes, orders: int, base: Bytes) -> Iterator[str]:
    for piece in pieces:
        gpu = piece.gpu
        bars = " + ".join(size(bar) for bar in gpu.bars64)
        yield (
            f"{gpu.name}: its 64-bit BARs ({bars}) are one piece of {mib(piece.length)} that must start on a "
            f"{size(claim(gpu.bars64)[1])} boundary; the first free one from {size(base)} up is {size(piece.start)}."
        )
    yield f"So the window reaches from {size(base)} to {size(base + floor)}: {mib(floor)}, and nothing smaller works."
    if orders > 1 and least < floor:
        yield (
            f"The order in which the guest meets the GPUs is not established: of {orders:,} orders the best needs "
            f"{mib(least)}, the worst {mib(floor)}, and that counts."
        )


# --- The low window ------------------------------------------------------------------------------------------------


def low_window(gpus: Sequence[GpuBars]) -> LowWindow:
    """Size the window below 4 GiB for these GPUs in one VM. Raises MmioRefused (`mmio.low-full`) above 3.5 GiB."""
    beyond = _low_layout(gpus, MAX_LOW).most - LOW_USABLE_END
    if beyond > 0:
        raise MmioRefused(
            "mmio.low-full",
            f"The 32-bit BARs of {len(gpus)} GPUs need a low window of {mib(MAX_LOW + beyond)}; "
            f"Hyper-V takes {mib(MAX_LOW)} at most.",
            "Split the GPUs over several VMs: each has a window of its own.",
            need=MAX_LOW + beyond,
            given=MAX_LOW,
        )
    floor, chosen = _smallest_low(gpus, MIN_LOW), _smallest_low(gpus, RECOMMENDED_LOW)
    requesting = [gpu for gpu in gpus if gpu.bars32]
    order = _low_layout(gpus, chosen).order
    pieces = layout(requesting, _low_claims(requesting), order, _low_base(chosen, len(gpus)))
    return LowWindow(tuple(gpus), floor, chosen, tuple(pieces), _why_low(gpus, floor, chosen))


def check_low(requested: Bytes, window: LowWindow) -> Bytes:
    """Return the requested size if it works.

    Raises MmioRefused: `mmio.low-too-small`, `mmio.low-too-large`, `mmio.step`.
    """
    if requested > MAX_LOW:
        raise MmioRefused(
            "mmio.low-too-large",
            f"A low window of {mib(requested)} is above the {mib(MAX_LOW)} that Hyper-V takes.",
            f"Set {size(window.size)}.",
            need=requested,
            given=MAX_LOW,
        )
    if requested < MIN_LOW or _low_layout(window.gpus, requested).most > LOW_USABLE_END:
        raise MmioRefused(
            "mmio.low-too-small",
            f"A low window of {mib(requested)} is too small.\n{window.why}",
            f"Set {size(window.size)}.",
            need=window.floor,
            given=requested,
        )
    _check_step(requested)
    return requested


def _low_base(low: Bytes, gpus: int) -> Bytes:
    """Return the lowest address for BARs. The frame buffer of a generation 2 VM and the config windows lie below it."""
    return FOUR_GIB - low + _frame_buffer(low) + gpus * CONFIG_WINDOW


def _frame_buffer(low: Bytes) -> Bytes:
    return min(low // 2, MAX_FRAME_BUFFER)


def _low_claims(gpus: Sequence[GpuBars]) -> list[Claim]:
    return [claim(gpu.bars32) for gpu in gpus if gpu.bars32]


def _low_layout(gpus: Sequence[GpuBars], low: Bytes) -> Extremes:
    return extremes(_low_claims(gpus), _low_base(low, len(gpus)))


def _smallest_low(gpus: Sequence[GpuBars], at_least: Bytes) -> Bytes:
    claims = _low_claims(gpus)
    needed = sum(length for length, _ in claims) + FOUR_GIB - LOW_USABLE_END
    first = max(at_least, align(needed + min(needed, MAX_FRAME_BUFFER), STEP))
    sizes = range(first, MAX_LOW + STEP, STEP)
    return next(low for low in sizes if extremes(claims, _low_base(low, len(gpus))).most <= LOW_USABLE_END)


def _why_low(gpus: Sequence[GpuBars], floor: Bytes, chosen: Bytes) -> str:
    bars = sum(sum(gpu.bars32) for gpu in gpus)
    because = (
        "the recommended size"
        if chosen == RECOMMENDED_LOW
        else f"{size(RECOMMENDED_LOW)}, the recommended size, is not enough"
    )
    return (
        f"Below 4 GiB the guest's frame buffer may take the first {mib(_frame_buffer(chosen))}, the last "
        f"{mib(FOUR_GIB - LOW_USABLE_END)} are reserved, and the GPUs' 32-bit BARs ({mib(bars)}) must fit between, "
        f"each on its own boundary.\nThat takes {mib(floor)} at least. Set is {size(chosen)}: {because}."
    )


# --- Both, for the GPUs of a VM --------------------------------------------------------------------------------


@dataclass(frozen=True)
class MmioWindows:
    """The MMIO windows that a selection needs."""

    high: HighWindow
    low: LowWindow


@dataclass(frozen=True)
class FailedMmioRequest:
    """The bytes of each window that a guest requested for a GPU in vain, as its kernel logs them; 0 if not logged."""

    high: Bytes
    low: Bytes


def mmio_windows(
    facts: HostFacts, selection: Selection, failed: Mapping[str, FailedMmioRequest] | None = None
) -> MmioWindows:
    """Size the windows for the selected GPUs and those that the VM already has.

    failed: by location, requests of the guest that exceed the known BARs. Raises MmioRefused, MissingFact.
    """
    gpus = {gpu.location: gpu for gpu in selection.gpus}
    if selection.vm is not None:
        vm = selection.vm.key["vm"]
        gpus |= {gpu.location: gpu for gpu in facts.gpus if assigned_vm(facts.assignment(gpu.pci)) == vm}
    bars = (_raise_to_request(gpu_bars(gpus[each]), (failed or {}).get(each)) for each in sorted(gpus))
    return _windows(tuple(bars), address_width(facts))


def _raise_to_request(gpu: GpuBars, request: FailedMmioRequest | None) -> GpuBars:
    if request and request.high > sum(gpu.bars64):
        gpu = replace(gpu, bars64=(request.high,), doubts=(*gpu.doubts, _request_doubt(request.high, "high", gpu)))
    if request and request.low > sum(gpu.bars32):
        gpu = replace(gpu, bars32=(request.low,), doubts=(*gpu.doubts, _request_doubt(request.low, "low", gpu)))
    return gpu


def _request_doubt(need: Bytes, window: str, gpu: GpuBars) -> str:
    return f"The guest asked for {mib(need)} of the {window} window for {gpu.name}, more than the host shows."


@lru_cache(maxsize=64)
def _windows(seen: tuple[GpuBars, ...], width: int | None) -> MmioWindows:
    return MmioWindows(high_window(seen, address_width=width), low_window(seen))


def clear_caches() -> None:
    """Clear the caches, so that a benchmark measures an uncached computation."""
    _windows.cache_clear()
    allocation.clear_cache()
