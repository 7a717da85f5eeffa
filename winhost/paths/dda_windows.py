"""Choose the GPUs that go to a VM, and the MMIO windows that it needs for them."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache

from winhost.core.answers import MissingFact
from winhost.core.dataclass import dataclass
from winhost.hardware import allocation, bars, mmio
from winhost.hardware.bars import bars_of
from winhost.hardware.processors import narrowest
from winhost.model.errors import NotOnHost, UsageError, listed
from winhost.model.facts import Instance, with_state
from winhost.model.reason import Caution, Severity
from winhost.model.units import Bytes, mib
from winhost.resources.host import Gpu, HostFacts
from winhost.resources.windows.assignable_device import owner
from winhost.resources.windows.read_only import Processor, Vm

# ---- which GPUs go to which VM


@dataclass(frozen=True)
class Selection:
    """The GPUs that go, and the VM that gets them; None where no VM was chosen."""

    gpus: tuple[Gpu, ...]
    vm: Instance[Vm] | None = None


class VmNotNamed(UsageError):
    """The path needs a VM and the user named none. verdicts: on each VM, where they were judged."""

    def __init__(self, host: str, known: Mapping[str, str], verdicts: Mapping[str, str] | None = None) -> None:
        judged = {vm: f" ({verdict})" for vm, verdict in (verdicts or {}).items()}
        vms = listed({vm: name + judged.get(vm, "") for vm, name in known.items()})
        super().__init__(
            "WhichVm",
            what=f"{host} has {len(known)} VMs: choose the one that gets the GPUs",
            hint=f"Add --vm with a name or id:\n{vms}"
            if known
            else "Have one made with --new-vm NAME, or create it on the host (generation 2), then plan again.",
            host=host,
        )
        self.known = known


def choose_vm(facts: HostFacts, asked: str | None) -> Instance[Vm]:
    """Choose the VM by GUID or exact name, or the only one if none is named. Raises NotOnHost, VmNotNamed,
    MissingFact.
    """
    known = {vm.key["vm"]: vm.state.name for vm in facts.vms}
    if asked is None:
        if len(known) != 1:
            raise VmNotNamed(facts.host, known)
        return facts.vms[0]
    found = [vm for vm in facts.vms if vm.key["vm"] == asked.strip("{}").lower()]
    found = found or [vm for vm in facts.vms if vm.state.name == asked]
    if len(found) != 1:
        raise NotOnHost(facts.host, "VM", asked, known, several=bool(found))
    return found[0]


def choose_gpus(facts: HostFacts, asked: tuple[str, ...]) -> tuple[Gpu, ...]:
    """Choose GPUs by location path or exact name. Raises NotOnHost."""
    known = {gpu.location: gpu.pci.state.name for gpu in facts.gpus}
    chosen: dict[str, Gpu] = {}
    for word in asked:
        found = [c for c in facts.gpus if word in (c.location, c.pci.key["location"])]
        found = found or [c for c in facts.gpus if c.pci.state.name.casefold() == word.casefold()]
        if len(found) != 1:
            raise NotOnHost(facts.host, "GPU", word, known, several=bool(found))
        chosen[found[0].location] = found[0]
    return tuple(chosen[location] for location in sorted(chosen))


# ---- the MMIO windows


@dataclass(frozen=True)
class MmioWindows:
    """The MMIO windows that a selection needs."""

    high: mmio.HighWindow
    low: mmio.LowWindow


@dataclass(frozen=True)
class AskedInVain:
    """The MMIO space of each window that a guest asked for a GPU, as its kernel logs it; 0 where it logs nothing."""

    high: Bytes
    low: Bytes


def windows(facts: HostFacts, selection: Selection, lacking: Mapping[str, AskedInVain] | None = None) -> MmioWindows:
    """The windows for the GPUs of a selection and those that its VM has already. lacking: by location, where that is
    more than is known of the GPU. Raises MmioRefused, MissingFact.
    """
    gpus = {gpu.location: gpu for gpu in selection.gpus}
    if selection.vm is not None:
        vm = selection.vm.key["vm"]
        gpus |= {gpu.location: gpu for gpu in facts.gpus if owner(facts.place(gpu.pci)) == vm}
    seen = (_at_least(bars_of(gpus[each]), (lacking or {}).get(each)) for each in sorted(gpus))
    return _windows(tuple(seen), address_width(facts))


def _at_least(gpu: bars.GpuBars, asked: AskedInVain | None) -> bars.GpuBars:
    if asked and asked.high > sum(gpu.bars64):
        gpu = replace(gpu, bars64=(asked.high,), doubts=(*gpu.doubts, _said(asked.high, "high", gpu)))
    if asked and asked.low > sum(gpu.bars32):
        gpu = replace(gpu, bars32=(asked.low,), doubts=(*gpu.doubts, _said(asked.low, "low", gpu)))
    return gpu


def _said(need: Bytes, window: str, gpu: bars.GpuBars) -> str:
    return f"The guest asked for {mib(need)} of the {window} window for {gpu.name}, more than the host shows."


@lru_cache(maxsize=64)
def _windows(seen: tuple[bars.GpuBars, ...], width: int | None) -> MmioWindows:
    """Cached: two rules and the plan ask for the same windows."""
    return MmioWindows(mmio.high_window(seen, address_width=width), mmio.low_window(seen))


def cautions_of_high(asked: Bytes | None) -> Iterator[Caution]:
    """The cautions about a high window that the user sets, apart from whether it holds the GPUs."""
    if asked is not None and (above := mmio.over_cap(asked)):
        yield Caution("mmio.over-cap", Severity.UNVERIFIED, above)


def forget() -> None:
    """Empty the caches, so that a benchmark measures a first computation."""
    _windows.cache_clear()
    allocation.forget()


def address_width(facts: HostFacts) -> int | None:
    """Physical address bits: as the host or somebody says, else by the model of its processors; None where neither is
    known, which a rule points out.
    """
    try:
        return facts.firmware.address_width
    except MissingFact:
        return width_by_model(facts)


def width_by_model(facts: HostFacts) -> int | None:
    """The address width that all of the host's processors have by the catalogue."""
    with suppress(MissingFact):
        return narrowest(processor.state.name for processor in facts.all(Processor))
    return None


def with_width(facts: HostFacts, bits: int | None) -> HostFacts:
    """The host with the physical address bits that somebody was told, by Start-VM for one."""
    if bits is None:
        return facts
    return HostFacts(facts.document.edited("Firmware", lambda each: with_state(each, {"address_width": bits})))
