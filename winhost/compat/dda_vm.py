"""Discrete Device Assignment: what each VM says."""

from winhost.compat.builds import SERVER_2025
from winhost.compat.rule import BLOCKS, NOTES, VM, Finding, degraded, note, rule, unsupported, unverified
from winhost.model.facts import Instance, MissingFact, RemoteFault, Unknown
from winhost.model.units import GiB, about, size
from winhost.resources.host import HostFacts
from winhost.resources.windows import PciDevice, Vm, VmMemory
from winhost.resources.windows.vm import OFF, RUNNING

HOST_RESERVE = 2 * GiB  # what Windows Server with Desktop Experience needs at least
WINDOWS_TEMPLATE = "MicrosoftWindows"
SAVED = "saved"


@rule("dda", unknown=BLOCKS, each=VM)
def generation_1(facts: HostFacts, vm: Instance[Vm]) -> Finding | None:
    """It works; our layout of the low window was worked out for generation 2."""
    if vm.state.generation == 1:
        return degraded("dda.generation-1", observed="generation 1")
    return None


@rule("dda", unknown=BLOCKS, each=VM)
def vm_running(facts: HostFacts, vm: Instance[Vm]) -> Finding | None:
    """Windows and devices change only while the VM is off."""
    if vm.state.state == RUNNING:
        return note("dda.vm-running", observed="the VM runs")
    return None


@rule("dda", unknown=BLOCKS, each=VM)
def vm_saved(facts: HostFacts, vm: Instance[Vm]) -> Finding | None:
    """A saved state holds the guest's memory, which is not ours to discard."""
    if vm.state.state == SAVED:
        return unsupported("dda.vm-saved", observed="the VM is saved")
    return None


@rule("dda", unknown=BLOCKS, each=VM)
def vm_unsettled(facts: HostFacts, vm: Instance[Vm]) -> Finding | None:
    """Paused, starting, stopping, critical: what comes next is not known."""
    if vm.state.state not in (OFF, RUNNING, SAVED):
        return unverified("dda.vm-unsettled", observed=f"the VM is {vm.state.state}")
    return None


@rule("dda", unknown=BLOCKS, each=VM)
def dynamic_memory(facts: HostFacts, vm: Instance[Vm]) -> Finding | None:
    """A device writes to addresses that must not move."""
    if _memory(facts, vm).dynamic:
        return note("dda.dynamic-memory", observed="dynamic memory is on")
    return None


@rule("dda", unknown=BLOCKS, each=VM)
def memory_too_large(facts: HostFacts, vm: Instance[Vm]) -> Finding | None:
    """All of it is pinned at start, beside what the host itself needs."""
    startup, total = _memory(facts, vm).startup, facts.memory.total
    if startup > total - HOST_RESERVE:
        return unsupported("dda.memory-too-large", observed=f"{size(startup)} for the VM of {about(total)} in the host")
    return None


@rule("dda", unknown=BLOCKS, each=VM)
def checkpoints(facts: HostFacts, vm: Instance[Vm]) -> Finding | None:
    """Checkpoints are data, so deleting or merging them is their owner's."""
    if vm.state.checkpoints:
        return unsupported("dda.checkpoints", observed=f"{vm.state.checkpoints} checkpoint(s)")
    return None


@rule("dda", unknown=BLOCKS, each=VM)
def nested(facts: HostFacts, vm: Instance[Vm]) -> Finding | None:
    """Reports tell of blue screens and boot loops."""
    if vm.state.nested:
        return unsupported("dda.nested", observed="virtualization extensions are exposed to the VM")
    return None


@rule("dda", unknown=BLOCKS, each=VM)
def has_partition(facts: HostFacts, vm: Instance[Vm]) -> Finding | None:
    """Parts of one GPU and another one whole do not go together in one VM."""
    if vm.state.partitions:
        return unsupported("dda.has-partition", observed=f"{vm.state.partitions} GPU partition(s)")
    return None


@rule("dda", unknown=BLOCKS, each=VM)
def clustered_before_2025(facts: HostFacts, vm: Instance[Vm]) -> Finding | None:
    """Highly available VMs cannot have devices before Server 2025."""
    if vm.state.clustered and facts.os.build < SERVER_2025:
        return unsupported("dda.clustered-before-2025", observed=f"a cluster resource on build {facts.os.build}")
    return None


@rule("dda", unknown=BLOCKS, each=VM)
def clustered(facts: HostFacts, vm: Instance[Vm]) -> Finding | None:
    """The cluster assigns devices from pools that are the same on every node."""
    if vm.state.clustered and facts.os.build >= SERVER_2025:
        return unverified("dda.clustered", observed=f"a cluster resource on build {facts.os.build}")
    return None


@rule("dda", unknown=NOTES, each=VM)
def boots_windows_only(facts: HostFacts, vm: Instance[Vm]) -> Finding | None:
    """With this template a Linux boot loader is refused; with Secure Boot off the template says nothing."""
    if vm.state.secure_boot and vm.state.secure_boot_template == WINDOWS_TEMPLATE:
        return unverified("dda.boots-windows-only", observed=f"Secure Boot with the template {WINDOWS_TEMPLATE}")
    return None


@rule("dda", unknown=NOTES, each=VM)
def signed_driver(facts: HostFacts, vm: Instance[Vm]) -> Finding | None:
    """Under Secure Boot the guest's kernel loads signed modules only."""
    if vm.state.secure_boot and vm.state.secure_boot_template != WINDOWS_TEMPLATE:
        return note("dda.signed-driver", observed=f"Secure Boot with the template {vm.state.secure_boot_template}")
    return None


@rule("dda", unknown=BLOCKS, each=VM)
def assignment_stale(facts: HostFacts, vm: Instance[Vm]) -> Finding | None:
    """A VM that claims a card which is gone from its slot does not start."""
    slots = {function.key["location"] for function in facts.all(PciDevice)}
    gone = [location for location in vm.state.devices if location not in slots]
    if gone:
        return unsupported("dda.assignment-stale", observed=f"assigned, and nothing is there: {', '.join(gone)}")
    return None


def _memory(facts: HostFacts, vm: Instance[Vm]) -> VmMemory:
    memory = facts.of(VmMemory, vm.key)
    if memory is None:
        gone = RemoteFault("ObjectNotFound", message=f"VM {vm.key['vm']} went away while it was read")
        raise MissingFact("VmMemory", Unknown(gone))
    return memory
