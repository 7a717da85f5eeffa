"""Rules of Discrete Device Assignment (DDA): each VM."""

from winhost.compat.builds import SERVER_2025
from winhost.compat.rule import BLOCKS, NOTES, VM, Finding, degraded, note, rule, unsupported, unverified
from winhost.core.answers import MissingFact, RemoteFault, Unknown
from winhost.model.facts import Instance
from winhost.model.units import GiB, about, size
from winhost.resources.host import HostFacts
from winhost.resources.windows.pci_device.resource import PciDevice
from winhost.resources.windows.vm.resource import Vm
from winhost.resources.windows.vm_memory.resource import VmMemory
from winhost.resources.windows.vm_power.resource import OFF, RUNNING

HOST_RESERVE = 2 * GiB  # what Windows Server with Desktop Experience needs at least
WINDOWS_TEMPLATE = "MicrosoftWindows"
SAVED = "saved"


@rule("dda", unknown=BLOCKS, each=VM)
def generation_1(facts: HostFacts, vm: Instance[Vm]) -> Finding | None:
    """The VM is generation 1: DDA works, but winhost's layout of the low window is for generation 2."""
    if vm.state.generation == 1:
        return degraded("dda.generation-1", observed="generation 1")
    return None


@rule("dda", unknown=BLOCKS, each=VM)
def vm_running(facts: HostFacts, vm: Instance[Vm]) -> Finding | None:
    """The VM runs; MMIO windows and devices can change only while it is off."""
    if vm.state.state == RUNNING:
        return note("dda.vm-running", observed="the VM runs")
    return None


@rule("dda", unknown=BLOCKS, each=VM)
def vm_saved(facts: HostFacts, vm: Instance[Vm]) -> Finding | None:
    """The VM is saved. The saved state holds the guest's memory, and winhost does not discard it."""
    if vm.state.state == SAVED:
        return unsupported("dda.vm-saved", observed="the VM is saved")
    return None


@rule("dda", unknown=BLOCKS, each=VM)
def vm_unsettled(facts: HostFacts, vm: Instance[Vm]) -> Finding | None:
    """The VM is neither off, running nor saved, so whether it can be shut down is not known."""
    if vm.state.state not in (OFF, RUNNING, SAVED):
        return unverified("dda.vm-unsettled", observed=f"the VM is {vm.state.state}")
    return None


@rule("dda", unknown=BLOCKS, each=VM)
def dynamic_memory(facts: HostFacts, vm: Instance[Vm]) -> Finding | None:
    """Dynamic memory is on; a VM with an assigned device needs fixed memory for DMA."""
    if _memory(facts, vm).dynamic:
        return note("dda.dynamic-memory", observed="dynamic memory is on")
    return None


@rule("dda", unknown=BLOCKS, each=VM)
def memory_too_large(facts: HostFacts, vm: Instance[Vm]) -> Finding | None:
    """The VM's startup memory, all of it pinned, leaves the host less than 2 GiB."""
    startup, total = _memory(facts, vm).startup, facts.memory.total
    if startup > total - HOST_RESERVE:
        return unsupported("dda.memory-too-large", observed=f"{size(startup)} for the VM, {about(total)} in the host")
    return None


@rule("dda", unknown=BLOCKS, each=VM)
def checkpoints(facts: HostFacts, vm: Instance[Vm]) -> Finding | None:
    """The VM has checkpoints; they are data, so only their owner may delete or merge them."""
    if vm.state.checkpoints:
        return unsupported("dda.checkpoints", observed=f"{vm.state.checkpoints} checkpoint(s)")
    return None


@rule("dda", unknown=BLOCKS, each=VM)
def nested(facts: HostFacts, vm: Instance[Vm]) -> Finding | None:
    """Nested virtualization is on; together with DDA it is reported to end in blue screens and boot loops."""
    if vm.state.nested:
        return unsupported("dda.nested", observed="virtualization extensions are exposed to the VM")
    return None


@rule("dda", unknown=BLOCKS, each=VM)
def has_partition(facts: HostFacts, vm: Instance[Vm]) -> Finding | None:
    """The VM has a GPU partition, which does not work together with an assigned device."""
    if vm.state.partitions:
        return unsupported("dda.has-partition", observed=f"{vm.state.partitions} GPU partition(s)")
    return None


@rule("dda", unknown=BLOCKS, each=VM)
def clustered_before_2025(facts: HostFacts, vm: Instance[Vm]) -> Finding | None:
    """The VM is a cluster resource, which cannot have a device before Windows Server 2025."""
    if vm.state.clustered and facts.os.build < SERVER_2025:
        return unsupported("dda.clustered-before-2025", observed=f"a cluster resource on build {facts.os.build}")
    return None


@rule("dda", unknown=BLOCKS, each=VM)
def clustered(facts: HostFacts, vm: Instance[Vm]) -> Finding | None:
    """The VM is a cluster resource, whose device has to come from a pool that every node has."""
    if vm.state.clustered and facts.os.build >= SERVER_2025:
        return unverified("dda.clustered", observed=f"a cluster resource on build {facts.os.build}")
    return None


@rule("dda", unknown=NOTES, each=VM)
def boots_windows_only(facts: HostFacts, vm: Instance[Vm]) -> Finding | None:
    """Secure Boot is on with the template MicrosoftWindows, which refuses Linux boot loaders."""
    if vm.state.secure_boot and vm.state.secure_boot_template == WINDOWS_TEMPLATE:
        return unverified("dda.boots-windows-only", observed=f"Secure Boot with the template {WINDOWS_TEMPLATE}")
    return None


@rule("dda", unknown=NOTES, each=VM)
def signed_driver(facts: HostFacts, vm: Instance[Vm]) -> Finding | None:
    """Secure Boot is on, so the guest's kernel loads signed modules only."""
    if vm.state.secure_boot and vm.state.secure_boot_template != WINDOWS_TEMPLATE:
        return note("dda.signed-driver", observed=f"Secure Boot with the template {vm.state.secure_boot_template}")
    return None


@rule("dda", unknown=BLOCKS, each=VM)
def assignment_stale(facts: HostFacts, vm: Instance[Vm]) -> Finding | None:
    """The VM has a device assigned whose slot is empty; such a VM does not start."""
    slots = {function.key["location"] for function in facts.all(PciDevice)}
    gone = [location for location in vm.state.devices if location not in slots]
    if gone:
        return unsupported("dda.assignment-stale", observed=f"assigned, but the slot is empty: {', '.join(gone)}")
    return None


def _memory(facts: HostFacts, vm: Instance[Vm]) -> VmMemory:
    memory = facts.of(VmMemory, vm.key)
    if memory is None:
        gone = RemoteFault("ObjectNotFound", message=f"VM {vm.key['vm']} went away while it was read")
        raise MissingFact("VmMemory", Unknown(gone))
    return memory
