"""The BARs of a GPU: as surveyed on the host, from the catalogue by device id, or estimated from its memory."""

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Protocol

from winhost.core.answers import if_known
from winhost.core.dataclass import dataclass
from winhost.hardware.gpus import find_model
from winhost.hardware.host_gpus import gpu_name
from winhost.model.reason import Refusal
from winhost.model.units import Bytes, GiB, MiB, size
from winhost.resources.host import Gpu

FOUR_GIB = 4 * GiB
APERTURE = 256 * MiB  # a frame buffer BAR has at least this size; it is a 64-bit BAR even if its address is below 4 GiB
LEGACY_END = MiB  # VGA's legacy range below 1 MiB is listed among a GPU's ranges but is not a BAR
SMALL_BAR = 32 * MiB  # the second 64-bit BAR of every NVIDIA GPU whose BARs are known
MAX_REGISTERS = 64 * MiB  # the largest known register BAR


class BarSource(StrEnum):
    """The sources of BAR sizes, best first."""

    SURVEYED = "surveyed"
    TABLE = "table"
    VRAM = "vram"


class Range(Protocol):
    """A memory range that the host assigned to a GPU: start and length in bytes."""

    @property
    def start(self) -> Bytes: ...
    @property
    def length(self) -> Bytes: ...


@dataclass(frozen=True)
class GpuBars:
    """The BARs of a GPU by width, in bytes, with the source of their sizes and any doubts about them."""

    name: str
    bars64: tuple[Bytes, ...]
    bars32: tuple[Bytes, ...]
    source: BarSource
    why: str = ""
    doubts: tuple[str, ...] = ()
    surveyed: "GpuBars | None" = None  # the BARs on the host now, if they are smaller

    @property
    def aperture(self) -> Bytes:
        """The size of the largest 64-bit BAR (BAR1 on NVIDIA GPUs); 0 if there is none."""
        return max(self.bars64, default=0)


class MmioRefused(Refusal):
    """MMIO windows that cannot work: `need` and `given` in bytes, where known."""

    def __init__(
        self, code: str, sentence: str, remedy: str, *, need: Bytes | None = None, given: Bytes | None = None
    ) -> None:
        super().__init__(code, sentence, remedy)
        self.need = need
        self.given = given


def find_bars(
    name: str, *, ranges: Sequence[Range] = (), device: str | None = None, vram: Bytes | None = None
) -> GpuBars:
    """Return the BARs of one device from the best available source.

    ranges: as surveyed; empty for a GPU that is disabled or dismounted. device: as in `VEN_10DE&DEV_26B9`. vram: in
    bytes. If BAR1 is larger in the catalogue than in the survey, the larger size is used, because resizable BAR can
    enlarge it. Raises MmioRefused (`mmio.unknown-bars`) if no source has them.
    """
    candidates = [bars for bars in (_surveyed_bars(name, ranges), _catalogue_bars(name, device)) if bars]
    if not candidates:
        model = find_model(device or "")
        return _bars_from_vram(name, vram or (model.memory if model else None))
    first = candidates[0]
    largest = max(candidates, key=lambda bars: bars.aperture)
    if largest is not first:
        why = (
            f"{largest.why} The survey saw {size(first.aperture)}, which resizable BAR can enlarge: the larger counts."
        )
        return replace(largest, bars32=first.bars32, why=why, surveyed=first)
    if len(candidates) == 1 and first.source is BarSource.SURVEYED and first.aperture == APERTURE:
        return replace(
            first, why=f"{first.why} If resizable BAR is turned on, its {size(APERTURE)} grow: then plan again."
        )
    return first


def gpu_bars(gpu: Gpu) -> GpuBars:
    """Return the BARs of a host's GPU from the best available source. If its ranges were not read, add a doubt.

    Raises MmioRefused if no source has the BARs, MissingFact if the GPU's name was not read.
    """
    state = gpu.pci.state
    name, device = gpu_name(gpu), gpu.pci.key["device"]
    ranges, vram = if_known(lambda: state.ranges), if_known(lambda: state.vram)
    bars = find_bars(name, ranges=ranges or (), device=device, vram=vram)
    if ranges is None and not bars.doubts:
        doubt = f"PciDevice.ranges of {name} could not be read; a survey of this host shows its BARs."
        return replace(bars, doubts=(doubt,))
    return bars


def _surveyed_bars(name: str, ranges: Sequence[Range]) -> GpuBars | None:
    bars = [each for each in ranges if each.start >= LEGACY_END]
    if not bars:
        return None
    # Firmware without above-4G decoding places 64-bit BARs below 4 GiB, too. An aperture below 4 GiB shows that. The
    # prefetchable BARs of a GPU are adjacent, so the small BARs may then have either width and are counted as both.
    unsure = any(bar.length >= APERTURE and bar.start < FOUR_GIB for bar in bars)
    above = tuple(bar.length for bar in bars if bar.start >= FOUR_GIB or bar.length >= APERTURE or unsure)
    below = tuple(bar.length for bar in bars if bar.start < FOUR_GIB and bar.length < APERTURE)
    doubts = (f"{name} has its BARs below 4 GiB, so the small ones are counted in both windows.",) if unsure else ()
    return GpuBars(name, above, below, BarSource.SURVEYED, f"{name}: BARs as surveyed on the host.", doubts)


def _catalogue_bars(name: str, device: str | None) -> GpuBars | None:
    model = find_model(device or "")
    if model is None or model.bars is None:
        return None
    source = model.bars.source
    inferred = (
        f"The BARs of {name} are inferred from {source.text}. nvidia-smi -q -d MEMORY shows its BAR1; a survey of the "
        "GPU shows all of them."
    )
    return GpuBars(
        name,
        bars64=model.bars.wide,
        bars32=model.bars.narrow,
        source=BarSource.TABLE,
        why=f"{name}: BARs of a {model.name} by table ({source.text}).",
        doubts=(inferred,) if source.kind == "inferred" else (),
    )


def _bars_from_vram(name: str, vram: Bytes | None) -> GpuBars:
    """Estimate the BARs from the memory size, rounded up to a power of two.

    No GPU of the catalogue has a larger BAR1 than that; many have a smaller one.
    """
    if not vram:
        raise MmioRefused(
            "mmio.unknown-bars",
            f"The BAR sizes of {name} are not known: no survey, not in the table, no VRAM size.",
            "Enable the GPU on the host, with its driver, and read the host again.",
        )
    aperture = max(APERTURE, 1 << (vram - 1).bit_length())
    doubt = (
        f"The BARs of {name} are derived from its {size(vram)} of VRAM: its BAR1 is {size(aperture)} at most, as "
        "nvidia-smi -q -d MEMORY shows; a survey of the GPU shows it."
    )
    why = f"{name}: {size(vram)} of VRAM rounded up to the next power of two, as a last resort."
    return GpuBars(name, (aperture, SMALL_BAR), (MAX_REGISTERS,), BarSource.VRAM, why, (doubt,))
