"""Judges of GPU partitioning (GPU-P): the host, and each GPU."""

from winhost.compat.common import SERVERS, gpus
from winhost.core.answers import NOT_READ, MissingFact
from winhost.hardware.host_gpus import catalogue_entry, gpu_label, sriov_gpu
from winhost.resources.host import Gpu, HostFacts
from winhost.resources.windows.read_only import OsFamily, PartitionableGpu


def unlike_gpus(facts: HostFacts) -> str | None:
    """The GPUs that can be partitioned are of different models; Microsoft supports only identical ones."""
    split = [gpu for gpu in gpus(facts) if sriov_gpu(facts, gpu)]
    models = {gpu.pci.key["device"].partition("&SUBSYS_")[0].upper(): gpu.pci.state.name for gpu in split}
    names = sorted(models.values())
    if len(names) > 1:
        return ", ".join(names)
    return None


def not_on_partition_list(facts: HostFacts, gpu: Gpu) -> str | None:
    """The GPU is not on Microsoft's list of GPUs for partitioning, which is short and differs by Windows release."""
    found = catalogue_entry(gpu)
    if found is None and not gpu.pci.key["device"]:
        raise MissingFact(f"the ids of {gpu_label(gpu)}", NOT_READ)
    theirs = "azure-local" if facts.os.family is OsFamily.AZURE_LOCAL else "server-2025"
    if found is None or theirs not in (found.partition_lists or ()):
        return gpu.pci.state.name
    return None


def stale_partitions(facts: HostFacts) -> str | None:
    """VMs have more partitions than the present GPUs provide: those of a GPU that was removed or moved."""
    claimed = {vm.state.name: vm.state.partitions for vm in facts.vms if vm.state.partitions}
    given = sum(gpu.state.used for gpu in facts.all(PartitionableGpu))
    if sum(claimed.values()) > given:
        counts = ", ".join(f"{name}: {count}" for name, count in sorted(claimed.items()))
        return f"{counts}; of GPUs that are there: {given}"
    return None


def assignment_policies(facts: HostFacts) -> str | None:
    """Hyper-V on servers refuses GPUs that their vendor does not call secure and supported, unless policies allow."""
    policy = facts.policy
    if facts.os.family in SERVERS and (policy.require_secure, policy.require_supported) != (0, 0):
        secure, supported = _set(policy.require_secure), _set(policy.require_supported)
        return f"RequireSecureDeviceAssignment {secure}, RequireSupportedDeviceAssignment {supported}"
    return None


def _set(value: int | None) -> str:
    return "is not set" if value is None else f"is {value}"
