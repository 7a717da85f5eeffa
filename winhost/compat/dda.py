"""Judges of Discrete Device Assignment (DDA): the host, each GPU, each VM, and a selection of GPUs with a VM."""

from collections.abc import Iterator
from contextlib import suppress

from winhost.compat.common import configuration, memory_of_vm
from winhost.compat.rule import ASSIGNMENT, SUBJECT_FACTS, cache_key, finding
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


def small_address_space(facts: HostFacts) -> str | None:
    """The physical address space ends at or below 64 GiB, where windows begin that are larger than the default one."""
    width = address_width(facts) or facts.firmware.address_width  # raises MissingFact
    if 1 << width <= FIRST_HIGH_ADDRESS:
        return f"{width} address bits, {size(1 << width)}"
    return None


def address_width_of_model(facts: HostFacts) -> str | None:
    """Windows does not report the width of physical addresses, so that of the processor model is used."""
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
PROBLEM_NONE = 0


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


def drives_host_display(facts: HostFacts, gpu: Gpu) -> str | None:
    """Firmware boots on this GPU, or displays are connected to it."""
    if may_drive_display(gpu):
        return _describe_displays(gpu)
    return None


def takes_all_displays(facts: HostFacts, selection: Selection) -> str | None:
    """The selection takes every display that the host uses."""
    shown = [gpu for gpu in selection.gpus if may_drive_display(gpu)]
    chosen = {gpu.location for gpu in selection.gpus}
    if shown and not any(_stays_with_host(gpu) for gpu in facts.gpus if gpu.location not in chosen):
        return "; ".join(map(_describe_displays, shown))
    return None


def partitions_in_use(facts: HostFacts, gpu: Gpu) -> str | None:
    """VMs use partitions of the GPU, so it cannot be assigned as a whole."""
    for parts in filter(None, (sriov_gpu(facts, gpu), paravirtual_gpu(facts, gpu))):
        if parts.used:
            return f"{parts.used} of {parts.partitions} partitions in use"
    return None


def guest_sees_other_bars(facts: HostFacts, gpu: Gpu) -> str | None:
    """The guest that has the GPU sees a BAR1 of another size than the host."""
    if assigned_vm(facts.assignment(gpu.pci)) is None:
        return None
    try:
        listed = gpu_bars(gpu)
    except MmioRefused:
        return None  # nothing to compare with
    expected = {each.aperture for each in (listed, listed.surveyed) if each}
    for seen in _bars_in_guest(facts, gpu):
        if seen not in expected:
            return f"BAR1 is {size(seen)} in the guest, {size(listed.aperture)} by the host"
    return None


def _bars_in_guest(facts: HostFacts, gpu: Gpu) -> Iterator[Bytes]:
    """Yield the largest BAR of each GPU of this model in the guest, because equal GPUs cannot be told apart there;
    nothing if the guest was not read.
    """
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
    """The MMIO windows that the selection needs are impossible, as winhost.hardware.mmio calculates before any
    change.
    """
    sized = _windows(facts, selection)
    return finding(REFUSALS[sized.code], sized.sentence) if isinstance(sized, MmioRefused) else None


def window_over_cap(facts: HostFacts, selection: Selection) -> str | None:
    """The high MMIO window that the selection needs is larger than Hyper-V has been seen to accept."""
    sized = _windows(facts, selection)
    return None if isinstance(sized, MmioRefused) else sized.high.cap_warning or None


def estimated_windows(facts: HostFacts, selection: Selection) -> Finding | None:
    """The MMIO windows are sized from a table or from VRAM instead of the GPU's own BARs. That is unverified where the
    host's BARs could not be read, or the table does not have the GPU.
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
    return facts.cached(("windows", cache_key(selection)), _size_windows, facts, selection)


def _size_windows(facts: HostFacts, selection: Selection) -> MmioWindows | MmioRefused:
    facts.add_inputs(*SUBJECT_FACTS[ASSIGNMENT])
    try:
        return mmio_windows(facts, selection)
    except MmioRefused as refused:
        return refused.with_traceback(None)


def _describe_displays(gpu: Gpu) -> str:
    state = gpu.pci.state
    booted = "firmware boots on it, " if state.post_path else ""
    return f"{gpu.location}: {booted}{state.displays} display(s) connected"


def _stays_with_host(gpu: Gpu) -> bool:
    return not gpu.pci.state.dismounted and gpu.pci.state.problem == PROBLEM_NONE


HOST_RESERVE = 2 * GiB  # what Windows Server with Desktop Experience needs at least


def unsupported_vm_version(facts: HostFacts, vm: Instance[Vm]) -> str | None:
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
    """The VM has a device assigned whose slot is empty, so that it does not start."""
    gone = [location for location in _assigned_other_devices(facts, vm) if not _device(facts, location)]
    if gone:
        return f"assigned, but the slot is empty: {', '.join(gone)}"
    return None


def assigned_non_gpu(facts: HostFacts, vm: Instance[Vm]) -> str | None:
    """The VM has a device assigned that is no GPU, such as an NVMe disk; its BARs are not known."""
    found = [
        f"{device} at {place}" for place in _assigned_other_devices(facts, vm) if (device := _device(facts, place))
    ]
    return ", ".join(found) if found else None


def _assigned_other_devices(facts: HostFacts, vm: Instance[Vm]) -> list[str]:
    """Return the locations of devices that are assigned to the VM and are no function of a GPU."""
    slots = {function.key["location"] for function in facts.all(PciDevice)}
    return [location for location in vm.state.devices if location not in slots]


def _device(facts: HostFacts, location: str) -> str | None:
    """Return the ids of the device at a location; None where there is none."""
    known = (each for each in facts.all(AssignableDevice) if each.key["location"] == location)
    return next((each.key["device"] or "a device" for each in known if each.state.present), None)
