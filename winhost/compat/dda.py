"""Judges of Discrete Device Assignment (DDA): the host, each GPU, each VM, and the chosen ones together."""

from collections.abc import Iterator
from contextlib import suppress

from winhost.compat.common import configuration, memory_of_vm
from winhost.compat.rule import ASSIGNMENT, GIVEN, finding, key_of
from winhost.core.answers import MissingFact, if_known
from winhost.hardware.bars import BarSource, MmioRefused, gpu_bars
from winhost.hardware.host_gpus import may_drive_display, paravirtual_gpu, sriov_gpu
from winhost.hardware.mmio import MmioWindows, mmio_windows
from winhost.hardware.processors import address_width, find_generation, width_from_catalogue
from winhost.knowledge.versions import windows_build
from winhost.model.facts import Instance
from winhost.model.reason import Finding, Severity
from winhost.model.units import Bytes, GiB, about, size
from winhost.resources.host import Gpu, HostFacts, Selection
from winhost.resources.linux.read_only import LinuxGpu
from winhost.resources.windows.pci_device import PciDevice, pci_id
from winhost.resources.windows.read_only import Processor, Vm
from winhost.resources.windows.vms import AssignableDevice, assigned_vm

FIRST_HIGH_ADDRESS = 64 * GiB  # the high window begins just below it, so a GPU's BARs come to lie above


def narrow_addresses(facts: HostFacts) -> str | None:
    """The physical address space ends at or below 64 GiB, where windows begin that are larger than the default one."""
    width = address_width(facts) or facts.firmware.address_width  # which says what is missing
    if 1 << width <= FIRST_HIGH_ADDRESS:
        return f"{width} address bits, {size(1 << width)}"
    return None


def width_of_the_model(facts: HostFacts) -> str | None:
    """Windows does not report the width of physical addresses; that of the processors' model is taken."""
    with suppress(MissingFact):
        _ = facts.firmware.address_width
        return None
    width, known = width_from_catalogue(facts), ", ".join(_generations(facts))
    if width is None:
        return None
    return f"Firmware.address_width is not told; {width} bits by {known}"


def _generations(facts: HostFacts) -> list[str]:
    found = [find_generation(each.state.name) for each in facts.all(Processor)]
    return list(dict.fromkeys(f"{each.generation} ({each.kind})" for each in found if each))


# DEVPKEY_PciDevice_DeviceType and _BaseClass, and Configuration Manager problem codes.
EXPRESS_ENDPOINT, LEGACY_ENDPOINT, ROOT_COMPLEX_ENDPOINT, TREATED_AS_PCI = 2, 3, 4, 5
DISPLAY = 3
NO_PROBLEM = 0


REFUSALS = {
    "mmio.address-width": "dda.window-address-width",
    "mmio.low-full": "dda.window-low-full",
    "mmio.unknown-bars": "dda.bars-unknown",
}


def firmware_controls_pcie(facts: HostFacts, gpu: Gpu) -> str | None:
    """Firmware controls PCI Express on the GPU's root bus, so Windows cannot dismount the GPU."""
    state = gpu.pci.state
    if not state.pcie_control or state.device_type == TREATED_AS_PCI:
        kept = f"native PCI Express control {'granted' if state.pcie_control else 'kept by firmware'}"
        return f"{kept}, device type {state.device_type}"
    return None


def conventional_pci(facts: HostFacts, gpu: Gpu) -> str | None:
    """The device is conventional PCI, or a legacy endpoint that is not a display device."""
    state = gpu.pci.state
    express = state.device_type in (EXPRESS_ENDPOINT, ROOT_COMPLEX_ENDPOINT, TREATED_AS_PCI)
    if not express and (state.device_type, state.base_class) != (LEGACY_ENDPOINT, DISPLAY):
        return f"device type {state.device_type}, base class {state.base_class}"
    return None


def shows_the_host(facts: HostFacts, gpu: Gpu) -> str | None:
    """Firmware boots on this GPU, or displays are connected to it."""
    if may_drive_display(gpu):
        return _shown(gpu)
    return None


def only_display(facts: HostFacts, selection: Selection) -> str | None:
    """The selection takes every display that the host has in use."""
    shown = [gpu for gpu in selection.gpus if may_drive_display(gpu)]
    chosen = {gpu.location for gpu in selection.gpus}
    if shown and not any(_stays(gpu) for gpu in facts.gpus if gpu.location not in chosen):
        return "; ".join(map(_shown, shown))
    return None


def partitions_in_use(facts: HostFacts, gpu: Gpu) -> str | None:
    """VMs use partitions of the GPU, so it cannot be assigned as a whole."""
    for parts in filter(None, (sriov_gpu(facts, gpu), paravirtual_gpu(facts, gpu))):
        if parts.used:
            return f"{parts.used} of {parts.partitions} partitions in use"
    return None


def guest_sees_other_bars(facts: HostFacts, gpu: Gpu) -> str | None:
    """The guest that has the GPU sees another BAR1 than the host knows of it."""
    if assigned_vm(facts.assignment(gpu.pci)) is None:
        return None
    try:
        listed = gpu_bars(gpu)
    except MmioRefused:
        return None  # nothing to hold it against
    expected = {each.aperture for each in (listed, listed.surveyed) if each}
    for seen in _seen_in_guest(facts, gpu):
        if seen not in expected:
            return f"BAR1 is {size(seen)} in the guest, {size(listed.aperture)} by the host"
    return None


def _seen_in_guest(facts: HostFacts, gpu: Gpu) -> Iterator[Bytes]:
    """The largest BAR of each GPU of this model: which is which cannot be told. Nothing of a guest that is not read."""
    with suppress(MissingFact):
        for inside in facts.all(LinuxGpu):
            if inside.state.bars and inside.state.device == pci_id(gpu.pci.key["device"]):
                yield max(bar.size for bar in inside.state.bars)


def assigned_elsewhere(facts: HostFacts, selection: Selection) -> str | None:
    """A selected GPU belongs to another VM than the selected one."""
    if selection.vm is None:
        return None
    owners = [(gpu.location, assigned_vm(facts.assignment(gpu.pci))) for gpu in selection.gpus]
    theirs = [f"{location}: VM {vm}" for location, vm in owners if vm not in (None, selection.vm.key["vm"])]
    if theirs:
        return "; ".join(theirs)
    return None


def window_refused(facts: HostFacts, selection: Selection) -> Finding | None:
    """The MMIO windows that the selection needs are refused by the arithmetic in mmio, before any change."""
    sized = _windows(facts, selection)
    return finding(REFUSALS[sized.code], sized.sentence) if isinstance(sized, MmioRefused) else None


def window_over_cap(facts: HostFacts, selection: Selection) -> str | None:
    """The high MMIO window that the selection needs is larger than Hyper-V has been seen to accept."""
    sized = _windows(facts, selection)
    return None if isinstance(sized, MmioRefused) else sized.high.cap_warning or None


def window_doubtful(facts: HostFacts, selection: Selection) -> Finding | None:
    """The MMIO windows are sized from a table or from VRAM instead of the GPU's own BARs. That is unverified where the
    host could not be asked for them, or nobody has listed those of such a GPU.
    """
    sized = _windows(facts, selection)
    if isinstance(sized, MmioRefused) or not sized.high.doubts:
        return None
    unseen = any(
        if_known(lambda: gpu.pci.state.ranges) is None or gpu_bars(gpu).source is BarSource.VRAM  # noqa: B023
        for gpu in selection.gpus
    )
    severity = Severity.UNVERIFIED if unseen else Severity.NOTE
    return finding("dda.window-doubtful", " ".join(sized.high.doubts), severity)


def _windows(facts: HostFacts, selection: Selection) -> MmioWindows | MmioRefused:
    return facts.cached(("windows", key_of(selection)), _sized, facts, selection)


def _sized(facts: HostFacts, selection: Selection) -> MmioWindows | MmioRefused:
    facts.add_inputs(*GIVEN[ASSIGNMENT])
    try:
        return mmio_windows(facts, selection)
    except MmioRefused as refused:
        return refused.with_traceback(None)


def _shown(gpu: Gpu) -> str:
    state = gpu.pci.state
    booted = "firmware boots on it, " if state.post_path else ""
    return f"{gpu.location}: {booted}{state.displays} display(s) connected"


def _stays(gpu: Gpu) -> bool:
    return not gpu.pci.state.dismounted and gpu.pci.state.problem == NO_PROBLEM


HOST_RESERVE = 2 * GiB  # what Windows Server with Desktop Experience needs at least


def version_not_started(facts: HostFacts, vm: Instance[Vm]) -> str | None:
    """The VM's configuration version is not one that this Hyper-V starts."""
    known = windows_build(facts.os.build)
    if known is None or known.vm is None:
        return None
    first, newest = known.vm
    if not first <= configuration(vm.state) <= newest:
        return f"version {vm.state.version}; {first} to {newest} start here"
    return None


def memory_too_large(facts: HostFacts, vm: Instance[Vm]) -> str | None:
    """The VM's startup memory, all of it pinned, leaves the host less than 2 GiB."""
    startup, total = memory_of_vm(facts, vm).startup, facts.memory.total
    if startup > total - HOST_RESERVE:
        return f"{size(startup)} for the VM, {about(total)} in the host"
    return None


def assignment_stale(facts: HostFacts, vm: Instance[Vm]) -> str | None:
    """The VM has a device assigned whose slot is empty; such a VM does not start."""
    gone = [location for location in _not_gpus(facts, vm) if not _device(facts, location)]
    if gone:
        return f"assigned, but the slot is empty: {', '.join(gone)}"
    return None


def other_device(facts: HostFacts, vm: Instance[Vm]) -> str | None:
    """The VM has a device assigned that is no GPU, as an NVMe disk; its BARs are not known."""
    found = [f"{device} at {place}" for place in _not_gpus(facts, vm) if (device := _device(facts, place))]
    return ", ".join(found) if found else None


def _not_gpus(facts: HostFacts, vm: Instance[Vm]) -> list[str]:
    """Locations that the VM claims and where no function of a GPU is."""
    slots = {function.key["location"] for function in facts.all(PciDevice)}
    return [location for location in vm.state.devices if location not in slots]


def _device(facts: HostFacts, location: str) -> str | None:
    """The ids of another device there; None where there is none."""
    known = (each for each in facts.all(AssignableDevice) if each.key["location"] == location)
    return next((each.key["device"] or "a device" for each in known if each.state.present), None)
