"""Rules of Discrete Device Assignment (DDA): each VM."""

from winhost.compat.common import SERVER_2019, SERVER_2025, configuration
from winhost.compat.rule import VM, rule
from winhost.core.answers import MissingFact, RemoteFault, Unknown
from winhost.knowledge.versions import windows_build
from winhost.model.facts import Instance
from winhost.model.units import GiB, about, size
from winhost.resources.host import HostFacts
from winhost.resources.windows.assignable_device import AssignableDevice
from winhost.resources.windows.pci_device import PciDevice
from winhost.resources.windows.vm import Vm
from winhost.resources.windows.vm_memory import VmMemory

HOST_RESERVE = 2 * GiB  # what Windows Server with Desktop Experience needs at least
WINDOWS_TEMPLATE = "MicrosoftWindows"
SAVED = "saved"


@rule("dda.vm-version", each=VM)
def version_not_started(facts: HostFacts, vm: Instance[Vm]) -> str | None:
    """The VM's configuration version is not one that this Hyper-V starts."""
    known = windows_build(facts.os.build)
    if known is None or known.vm is None:
        return None
    first, newest = known.vm
    if not first <= configuration(vm.state) <= newest:
        return f"version {vm.state.version}; {first} to {newest} start here"
    return None


@rule("dda.dynamic-memory", each=VM)
def dynamic_memory(facts: HostFacts, vm: Instance[Vm]) -> str | None:
    """Dynamic memory is on; a VM with an assigned device needs fixed memory for DMA."""
    memory = _memory(facts, vm)
    if memory.dynamic:
        return f"{size(memory.minimum)} to {size(memory.maximum)}"
    return None


@rule("dda.memory-too-large", each=VM)
def memory_too_large(facts: HostFacts, vm: Instance[Vm]) -> str | None:
    """The VM's startup memory, all of it pinned, leaves the host less than 2 GiB."""
    startup, total = _memory(facts, vm).startup, facts.memory.total
    if startup > total - HOST_RESERVE:
        return f"{size(startup)} for the VM, {about(total)} in the host"
    return None


@rule("dda.checkpoints", each=VM)
def checkpoints(facts: HostFacts, vm: Instance[Vm]) -> str | None:
    """The VM has checkpoints; they are data, so only their owner may delete or merge them."""
    if vm.state.checkpoints:
        return f"{vm.state.checkpoints} checkpoint(s)"
    return None


@rule("dda.nested", each=VM)
def nested(facts: HostFacts, vm: Instance[Vm]) -> str | None:
    """Nested virtualization is on; together with DDA it is reported to end in blue screens and boot loops."""
    if vm.state.nested:
        return "virtualization extensions are exposed to the VM"
    return None


@rule("dda.has-partition", each=VM)
def has_partition(facts: HostFacts, vm: Instance[Vm]) -> str | None:
    """The VM has a GPU partition, which does not work together with an assigned device. Windows Server 2016 has
    none, and no cmdlet that says so.
    """
    if facts.os.build >= SERVER_2019 and vm.state.partitions:
        return f"{vm.state.partitions} GPU partition(s)"
    return None


@rule("dda.clustered", each=VM)
def clustered(facts: HostFacts, vm: Instance[Vm]) -> str | None:
    """The VM is a cluster resource, whose device has to come from a pool that every node has."""
    if vm.state.clustered and facts.os.build >= SERVER_2025:
        return f"a cluster resource on build {facts.os.build}"
    return None


@rule("dda.boots-windows-only", each=VM)
def boots_windows_only(facts: HostFacts, vm: Instance[Vm]) -> str | None:
    """Secure Boot is on with the template MicrosoftWindows, which refuses Linux boot loaders."""
    if vm.state.secure_boot and vm.state.secure_boot_template == WINDOWS_TEMPLATE:
        return f"Secure Boot with the template {WINDOWS_TEMPLATE}"
    return None


@rule("dda.assignment-stale", each=VM)
def assignment_stale(facts: HostFacts, vm: Instance[Vm]) -> str | None:
    """The VM has a device assigned whose slot is empty; such a VM does not start."""
    gone = [location for location in _not_cards(facts, vm) if not _device(facts, location)]
    if gone:
        return f"assigned, but the slot is empty: {', '.join(gone)}"
    return None


@rule("dda.other-device", each=VM)
def other_device(facts: HostFacts, vm: Instance[Vm]) -> str | None:
    """The VM has a device assigned that is no graphics card, as an NVMe disk; its BARs are not known."""
    found = [f"{device} at {place}" for place in _not_cards(facts, vm) if (device := _device(facts, place))]
    return ", ".join(found) if found else None


def _not_cards(facts: HostFacts, vm: Instance[Vm]) -> list[str]:
    """Locations that the VM claims and where no function of a graphics card is."""
    slots = {function.key["location"] for function in facts.all(PciDevice)}
    return [location for location in vm.state.devices if location not in slots]


def _device(facts: HostFacts, location: str) -> str | None:
    """The ids of another device there; None where there is none."""
    known = (each for each in facts.all(AssignableDevice) if each.key["location"] == location)
    return next((each.key["device"] or "a device" for each in known if each.state.present), None)


def _memory(facts: HostFacts, vm: Instance[Vm]) -> VmMemory:
    memory = facts.of(VmMemory, vm.key)
    if memory is None:
        gone = RemoteFault("ObjectNotFound", message=f"VM {vm.key['vm']} went away while it was read")
        raise MissingFact("VmMemory", Unknown(gone))
    return memory
