"""Rules of GPU partitioning (GPU-P): the host, and each GPU."""

from winhost.compat import common
from winhost.compat.builds import SERVER_2025
from winhost.compat.common import CLIENTS, SERVERS, ask, configuration, gpus
from winhost.compat.rule import BLOCKS, CARD, NOTES, VM, Finding, degraded, note, rule, unsupported, unverified
from winhost.hardware.cards import paravirtual, partitions
from winhost.hardware.gpus import known
from winhost.hardware.mmio import HIGH_DEFAULT
from winhost.knowledge.versions import feature, revision
from winhost.model.facts import Instance
from winhost.model.units import size
from winhost.resources.host import Card, HostFacts
from winhost.resources.windows.assignable_device import DISMOUNTED, owner
from winhost.resources.windows.cluster_service import ClusterService
from winhost.resources.windows.operating_system import OsFamily
from winhost.resources.windows.partitionable_gpu import PartitionableGpu
from winhost.resources.windows.vm import Vm
from winhost.resources.windows.vm_mmio import VmMmio

OF_PARTITIONS, LEAK_MENDED = feature("GPU partitions"), revision("LEAK_MENDED")
NO_PROBLEM = 0

# --- The host ------------------------------------------------------------------------------------------------------


@rule("gpu-p", unknown=BLOCKS)
def on_client(facts: HostFacts) -> Finding | None:
    """On client Windows, GPU partitions are for Windows guests only; Microsoft supports none for Linux."""
    if facts.os.family in CLIENTS:
        return unsupported("gpu-p.client", observed=facts.os.named)
    return None


@rule("gpu-p", unknown=BLOCKS)
def before_2025(facts: HostFacts) -> Finding | None:
    """GPU-P needs Windows Server 2025 or Azure Local."""
    if facts.os.family is OsFamily.SERVER and facts.os.build < SERVER_2025:
        return unsupported("gpu-p.before-2025", observed=facts.os.named)
    return None


ask("gpu-p.windows-unlisted", common.windows_unlisted, unverified, unknown=BLOCKS)
ask("gpu-p.virtualization-off", common.virtualization_off, unsupported, unknown=BLOCKS)
ask("gpu-p.virtual-machine", common.virtual_machine, unverified, unknown=BLOCKS)
ask("gpu-p.no-card", common.no_card, unsupported, unknown=BLOCKS)
ask("gpu-p.no-cuda", common.no_cuda, unsupported, unknown=BLOCKS)


@rule("gpu-p", unknown=BLOCKS)
def needs_a_licence(facts: HostFacts) -> Finding | None:
    """NVIDIA's vGPU software needs a licence, and no fact on the host shows one, so this holds on every host."""
    return unverified("gpu-p.licence", observed=facts.os.named)


@rule("gpu-p", unknown=BLOCKS)
def is_a_slice(facts: HostFacts) -> Finding | None:
    """A VM gets a fixed part of one GPU's memory. This holds on every host."""
    return degraded("gpu-p.slice", observed=facts.os.named)


@rule("gpu-p", unknown=BLOCKS)
def lists_old_guests(facts: HostFacts) -> Finding | None:
    """Microsoft lists Ubuntu 18.04 to 22.04 as guests; winhost sets up 24.04 or newer. This holds on every host."""
    return degraded("gpu-p.old-guests", observed="Ubuntu 18.04, 20.04 and 22.04 are listed")


ask("gpu-p.role-missing", common.role_missing, note, unknown=NOTES)
ask("gpu-p.sriov-refused", common.sriov_refused, unverified, unknown=NOTES)


@rule("gpu-p", unknown=BLOCKS)
def unlike_cards(facts: HostFacts) -> Finding | None:
    """The GPUs that can be partitioned are of different models; Microsoft supports only identical ones."""
    names = sorted({_model(card): card.gpu.state.name for card in gpus(facts) if partitions(facts, card)}.values())
    if len(names) > 1:
        return degraded("gpu-p.unlike", observed=", ".join(names))
    return None


@rule("gpu-p", unknown=NOTES)
def cluster_needs_datacenter(facts: HostFacts) -> Finding | None:
    """A highly available VM with a partition needs the Datacenter edition; VMs outside a cluster do not."""
    clustered = facts.the(ClusterService).state == "running"
    if clustered and facts.os.family is OsFamily.SERVER and "datacenter" not in facts.os.edition_id.casefold():
        return degraded("gpu-p.cluster-edition", observed=facts.os.named)
    return None


ask("gpu-p.language-mode", common.language_mode, unsupported, unknown=NOTES)
ask("gpu-p.powershell-32bit", common.powershell_32bit, unsupported, unknown=NOTES)
ask("gpu-p.unsigned-scripts", common.unsigned_scripts, note, unknown=NOTES)
ask("gpu-p.reboot-pending", common.reboot_pending, note, unknown=NOTES)


# --- Cards ---------------------------------------------------------------------------------------------------------


@rule("gpu-p", unknown=BLOCKS, each=CARD)
def not_listed(facts: HostFacts, card: Card) -> Finding | None:
    """The GPU is not on Microsoft's list of GPUs for partitioning, which is short and per Windows release."""
    found = known(card.gpu.key["device"])
    theirs = "azure-local" if facts.os.family is OsFamily.AZURE_LOCAL else "server-2025"
    if found is None or theirs not in (found.partition_lists or ()):
        return unverified("gpu-p.not-listed", observed=card.gpu.state.name)
    return None


@rule("gpu-p", unknown=BLOCKS, each=CARD)
def not_offered(facts: HostFacts, card: Card) -> Finding | None:
    """Get-VMHostPartitionableGpu does not list the GPU; with NVIDIA's vGPU driver and SR-IOV it would."""
    if partitions(facts, card) is None and paravirtual(facts, card) is None:
        return unsupported("gpu-p.not-offered", observed="not among the GPUs that the host can partition")
    return None


@rule("gpu-p", unknown=BLOCKS, each=CARD)
def only_paravirtual(facts: HostFacts, card: Card) -> Finding | None:
    """Windows' own driver shares the GPU with Windows guests; for a Linux guest Microsoft offers no driver of it."""
    shared = paravirtual(facts, card)
    if shared and partitions(facts, card) is None:
        return unsupported("gpu-p.paravirtual", observed=f"listed as GPUPARAV, {shared.used} in use")
    return None


@rule("gpu-p", unknown=NOTES, each=CARD)
def counts(facts: HostFacts, card: Card) -> Finding | None:
    """Into how many partitions the vendor's driver splits the GPU, all of one size."""
    found = partitions(facts, card)
    if found and found.valid_counts:
        listed = ", ".join(map(str, found.valid_counts))
        return note("gpu-p.counts", observed=f"{found.partitions} now, of {listed}")
    return None


@rule("gpu-p", unknown=NOTES, each=CARD)
def leaks_while_shared(facts: HostFacts, card: Card) -> Finding | None:
    """Windows build 26100 before revision 4946 leaks committed memory while a VM uses a paravirtualized GPU."""
    shared = paravirtual(facts, card)
    if shared and shared.used and LEAK_MENDED.lacks(facts.os.build, facts.os.revision):
        return note("gpu-p.commit-leak", observed=f"build {facts.os.build}.{facts.os.revision}")
    return None


@rule("gpu-p", unknown=BLOCKS, each=CARD)
def device_problem(facts: HostFacts, card: Card) -> Finding | None:
    """Device Manager reports a problem code: a partition needs the host's own driver to run."""
    gpu = card.gpu.state
    if not gpu.dismounted and gpu.problem != NO_PROBLEM:
        return unverified("gpu-p.device-problem", observed=f"problem code {gpu.problem}")
    return None


@rule("gpu-p", unknown=NOTES, each=CARD)
def given_away_whole(facts: HostFacts, card: Card) -> Finding | None:
    """The GPU is dismounted or assigned to a VM by DDA; one GPU cannot be used both ways."""
    place = facts.place(card.gpu)
    if place == DISMOUNTED or owner(place):
        return unsupported("gpu-p.given-away", observed=place)
    return None


@rule("gpu-p", unknown=NOTES, each=CARD)
def partitions_used(facts: HostFacts, card: Card) -> Finding | None:
    """VMs use some of the GPU's partitions, which other VMs cannot get."""
    found = partitions(facts, card)
    if found and found.used:
        return note("gpu-p.in-use", observed=f"{found.used} of {found.partitions} partitions in use")
    return None


# --- VMs -----------------------------------------------------------------------------------------------------------


@rule("gpu-p", unknown=BLOCKS, each=VM)
def vm_version(facts: HostFacts, vm: Instance[Vm]) -> Finding | None:
    """GPU partitions need configuration version 12.0."""
    if configuration(vm.state) < OF_PARTITIONS:
        return unsupported("gpu-p.vm-version", observed=f"configuration version {vm.state.version}")
    return None


@rule("gpu-p", unknown=BLOCKS, each=VM)
def generation_1(facts: HostFacts, vm: Instance[Vm]) -> Finding | None:
    """Microsoft supports partitions in VMs of generation 2."""
    if vm.state.generation == 1:
        return unsupported("gpu-p.generation-1", observed="generation 1")
    return None


@rule("gpu-p", unknown=BLOCKS, each=VM)
def has_a_whole_gpu(facts: HostFacts, vm: Instance[Vm]) -> Finding | None:
    """The VM has an assigned device, which does not work together with a partition."""
    if vm.state.devices:
        return unsupported("gpu-p.vm-has-device", observed=f"{len(vm.state.devices)} assigned device(s)")
    return None


@rule("gpu-p", unknown=NOTES, each=VM)
def default_windows(facts: HostFacts, vm: Instance[Vm]) -> Finding | None:
    """The VM has Hyper-V's default MMIO windows, which people enlarge for partitions of GPUs."""
    windows = facts.of(VmMmio, vm.key)
    if windows and windows.high <= HIGH_DEFAULT:
        return note("gpu-p.vm-windows", observed=f"high window {size(windows.high)}, low {size(windows.low)}")
    return None


@rule("gpu-p", unknown=NOTES)
def stale_partitions(facts: HostFacts) -> Finding | None:
    """VMs have more partitions than the GPUs that are there give: those of a GPU that was removed or moved."""
    claimed = {vm.state.name: vm.state.partitions for vm in facts.vms if vm.state.partitions}
    given = sum(gpu.state.used for gpu in facts.all(PartitionableGpu))
    if sum(claimed.values()) > given:
        listed = ", ".join(f"{name}: {count}" for name, count in sorted(claimed.items()))
        return unverified("gpu-p.stale-partition", observed=f"{listed}; of GPUs that are there: {given}")
    return None


@rule("gpu-p", unknown=NOTES)
def policies(facts: HostFacts) -> Finding | None:
    """On servers Hyper-V refuses GPUs that their vendor does not call secure and supported, unless policies allow."""
    policy = facts.policy
    if facts.os.family in SERVERS and (policy.require_secure, policy.require_supported) != (0, 0):
        secure, supported = _set(policy.require_secure), _set(policy.require_supported)
        observed = f"RequireSecureDeviceAssignment {secure}, RequireSupportedDeviceAssignment {supported}"
        return note("gpu-p.policy", observed=observed)
    return None


def _set(value: int | None) -> str:
    return "is not set" if value is None else f"is {value}"


def _model(card: Card) -> str:
    return card.gpu.key["device"].partition("&SUBSYS_")[0].upper()
