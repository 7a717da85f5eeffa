"""The BARs of a GPU: from a survey, a table by device id, or a guess from its memory."""

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Protocol

from winhost.core.answers import if_known
from winhost.core.dataclass import dataclass
from winhost.hardware.gpus import find_model as catalogued
from winhost.hardware.host_gpus import gpu_name
from winhost.model.reason import Refusal
from winhost.model.units import Bytes, GiB, MiB, size
from winhost.resources.host import Gpu

FOUR_GIB = 4 * GiB
APERTURE = 256 * MiB  # a frame buffer BAR has at least this size, and is a 64-bit BAR wherever firmware puts it
LEGACY_END = MiB  # VGA's legacy range below 1 MiB shows up among a GPU's ranges but is no BAR
SMALL_BAR = 32 * MiB  # the second 64-bit BAR of every NVIDIA GPU whose BARs are known
REGISTERS_MOST = 64 * MiB  # the largest register BAR known


class BarSource(StrEnum):
    """The sources of the sizes of a GPU's BARs, best first."""

    SURVEYED = "surveyed"
    TABLE = "table"
    VRAM = "vram"


class Range(Protocol):
    """A memory range that the host gave to a GPU: start and length in bytes."""

    @property
    def start(self) -> Bytes: ...
    @property
    def length(self) -> Bytes: ...


@dataclass(frozen=True)
class GpuBars:
    """The BARs of a GPU by width, in bytes, with the source of their sizes and what is uncertain about them."""

    name: str
    bars64: tuple[Bytes, ...]
    bars32: tuple[Bytes, ...]
    source: BarSource
    why: str = ""
    doubts: tuple[str, ...] = ()
    surveyed: "GpuBars | None" = None  # as the host has it now, where that is smaller

    @property
    def aperture(self) -> Bytes:
        """The largest 64-bit BAR, BAR1 on NVIDIA GPUs; 0 without any."""
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
    """The BARs of one device, from the best source there is.

    `ranges` as surveyed, empty for a GPU that is disabled or dismounted; `device` as in `VEN_10DE&DEV_26B9`; `vram` in
    bytes. A BAR1 larger in the table than in the survey counts, because resizable BAR can bring it. Raises MmioRefused
    (`mmio.unknown-bars`) where no source has them.
    """
    known = [found for found in (_surveyed_bars(name, ranges), _catalogue_bars(name, device)) if found]
    if not known:
        model = catalogued(device or "")
        return _bars_from_vram(name, vram or (model.memory if model else None))
    first = known[0]
    largest = max(known, key=lambda found: found.aperture)
    if largest is not first:
        why = (
            f"{largest.why} The survey saw {size(first.aperture)}, which resizable BAR can enlarge: the larger counts."
        )
        return replace(largest, bars32=first.bars32, why=why, surveyed=first)
    if len(known) == 1 and first.source is BarSource.SURVEYED and first.aperture == APERTURE:
        return replace(
            first, why=f"{first.why} Should resizable BAR be turned on, its {size(APERTURE)} grow: plan again."
        )
    return first


def gpu_bars(gpu: Gpu) -> GpuBars:
    """The BARs of a GPU from the best source. Those that were not read come from the catalogue, with a doubt.

    Raises MmioRefused where no source has them, MissingFact where the GPU's name was not read.
    """
    state = gpu.pci.state
    name, device = gpu_name(gpu), gpu.pci.key["device"]
    ranges, vram = if_known(lambda: state.ranges), if_known(lambda: state.vram)
    found = find_bars(name, ranges=ranges or (), device=device, vram=vram)
    if ranges is None and not found.doubts:
        unread = f"PciDevice.ranges of {name} could not be read; a survey of this host settles its BARs."
        return replace(found, doubts=(unread,))
    return found


def _surveyed_bars(name: str, ranges: Sequence[Range]) -> GpuBars | None:
    bars = [found for found in ranges if found.start >= LEGACY_END]
    if not bars:
        return None
    # Firmware without above-4G decoding puts 64-bit BARs low, too. The aperture gives that away; the prefetchable BARs
    # of a GPU lie together, so then the small ones may be of either width, and are counted as both.
    unsure = any(bar.length >= APERTURE and bar.start < FOUR_GIB for bar in bars)
    above = tuple(bar.length for bar in bars if bar.start >= FOUR_GIB or bar.length >= APERTURE or unsure)
    below = tuple(bar.length for bar in bars if bar.start < FOUR_GIB and bar.length < APERTURE)
    doubts = (f"{name} has its BARs below 4 GiB, so the small ones are counted in both windows.",) if unsure else ()
    return GpuBars(name, above, below, BarSource.SURVEYED, f"{name}: BARs as surveyed on the host.", doubts)


def _catalogue_bars(name: str, device: str | None) -> GpuBars | None:
    found = catalogued(device or "")
    if found is None or found.bars is None:
        return None
    source = found.bars.source
    inferred = (
        f"The BARs of {name} are inferred from {source.text}. nvidia-smi -q -d MEMORY shows its BAR1; a survey of the "
        "GPU settles all of them."
    )
    return GpuBars(
        name,
        bars64=found.bars.wide,
        bars32=found.bars.narrow,
        source=BarSource.TABLE,
        why=f"{name}: BARs of a {found.name} by table ({source.text}).",
        doubts=(inferred,) if source.kind == "inferred" else (),
    )


def _bars_from_vram(name: str, vram: Bytes | None) -> GpuBars:
    """The BARs by memory: no GPU of the table has a larger BAR1 than the power of two that holds it; many have less."""
    if not vram:
        raise MmioRefused(
            "mmio.unknown-bars",
            f"The BAR sizes of {name} are not known: no survey, not in the table, no VRAM size.",
            "Enable the GPU on the host, with its driver, and read the host again.",
        )
    aperture = max(APERTURE, 1 << (vram - 1).bit_length())
    doubt = (
        f"The BARs of {name} are derived from its {size(vram)} of VRAM: its BAR1 is {size(aperture)} at most, as "
        "nvidia-smi -q -d MEMORY shows; a survey of the GPU settles it."
    )
    why = f"{name}: {size(vram)} of VRAM rounded up to the next power of two, as a last resort."
    return GpuBars(name, (aperture, SMALL_BAR), (REGISTERS_MOST,), BarSource.VRAM, why, (doubt,))
