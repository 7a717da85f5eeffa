"""Rules of GPU partitioning (GPU-P): the host, and each GPU."""

from winhost.compat import common
from winhost.compat.builds import SERVER_2025
from winhost.compat.common import CLIENTS, ask, gpus
from winhost.compat.rule import BLOCKS, CARD, NOTES, Finding, degraded, note, rule, unsupported, unverified
from winhost.hardware.cards import partitions
from winhost.hardware.gpus import known
from winhost.resources.host import Card, HostFacts
from winhost.resources.windows.assignable_device.resource import DISMOUNTED, owner
from winhost.resources.windows.cluster_service.resource import ClusterService
from winhost.resources.windows.operating_system.resource import OsFamily

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
    if partitions(facts, card) is None:
        return unsupported("gpu-p.not-offered", observed="not among the GPUs that the host can partition")
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


def _model(card: Card) -> str:
    return card.gpu.key["device"].partition("&SUBSYS_")[0].upper()
