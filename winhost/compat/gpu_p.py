"""GPU partitions: what the host says of them, and each card."""

from winhost.compat.builds import SERVER_2025
from winhost.compat.machine import CLIENTS, cannot_run_vms, gpus, is_virtual, made_by, no_cuda, no_gpu
from winhost.compat.rule import BLOCKS, CARD, NOTES, Finding, degraded, note, rule, unsupported, unverified
from winhost.paths.cards import partitions
from winhost.paths.gpus import known
from winhost.resources.host import Card, HostFacts
from winhost.resources.windows import ClusterService, PendingReboot
from winhost.resources.windows.assignable_device import DISMOUNTED, owner
from winhost.resources.windows.hyperv import INSTALLED
from winhost.resources.windows.operating_system import OsFamily

# --- The host ------------------------------------------------------------------------------------------------------


@rule("gpu-p", unknown=BLOCKS)
def on_client(facts: HostFacts) -> Finding | None:
    """It exists there for Windows' own use."""
    if facts.os.family in CLIENTS:
        return unsupported("gpu-p.client", observed=facts.os.named)
    return None


@rule("gpu-p", unknown=BLOCKS)
def before_2025(facts: HostFacts) -> Finding | None:
    """GPU-P came with Server 2025 and Azure Local."""
    if facts.os.family is OsFamily.SERVER and facts.os.build < SERVER_2025:
        return unsupported("gpu-p.before-2025", observed=facts.os.named)
    return None


@rule("gpu-p", unknown=BLOCKS)
def virtualization_off(facts: HostFacts) -> Finding | None:
    """Without a hypervisor there is no VM to have one."""
    if cannot_run_vms(facts.firmware):
        return unsupported("gpu-p.virtualization-off", observed=made_by(facts.firmware))
    return None


@rule("gpu-p", unknown=BLOCKS)
def in_a_vm(facts: HostFacts) -> Finding | None:
    """What is cut up is a card of the machine."""
    if is_virtual(facts.firmware):
        return unverified("gpu-p.virtual-machine", observed=made_by(facts.firmware))
    return None


@rule("gpu-p", unknown=BLOCKS)
def without_card(facts: HostFacts) -> Finding | None:
    """There is nothing to cut up."""
    seen = no_gpu(facts)
    return unsupported("gpu-p.no-card", observed=seen) if seen else None


@rule("gpu-p", unknown=BLOCKS)
def without_cuda(facts: HostFacts) -> Finding | None:
    """What we serve with is CUDA."""
    seen = no_cuda(facts)
    return unsupported("gpu-p.no-cuda", observed=seen) if seen else None


@rule("gpu-p", unknown=BLOCKS)
def needs_a_licence(facts: HostFacts) -> Finding | None:
    """True on every host: nothing on it tells whether there is one."""
    return unverified("gpu-p.licence", observed=facts.os.named)


@rule("gpu-p", unknown=BLOCKS)
def is_a_slice(facts: HostFacts) -> Finding | None:
    """True on every host that can do it."""
    return degraded("gpu-p.slice", observed=facts.os.named)


@rule("gpu-p", unknown=BLOCKS)
def lists_old_guests(facts: HostFacts) -> Finding | None:
    """True on every host that can do it."""
    return degraded("gpu-p.old-guests", observed="Ubuntu 18.04, 20.04 and 22.04 are listed")


@rule("gpu-p", unknown=NOTES)
def role_missing(facts: HostFacts) -> Finding | None:
    """What can be cut up is told once it is there."""
    if facts.role.role != INSTALLED:
        return note("gpu-p.role-missing", observed=f"the Hyper-V role is {facts.role.role}")
    return None


@rule("gpu-p", unknown=NOTES)
def sriov_refused(facts: HostFacts) -> Finding | None:
    """Partitions are SR-IOV's virtual functions; the host's word is about network cards first."""
    if not facts.hyperv.iov_support:
        observed = "; ".join(facts.hyperv.iov_reasons) or "no reason given"
        return unverified("gpu-p.sriov-refused", observed=observed)
    return None


@rule("gpu-p", unknown=BLOCKS)
def unlike_cards(facts: HostFacts) -> Finding | None:
    """Of those that can be cut up."""
    names = sorted({_model(card): card.gpu.state.name for card in gpus(facts) if partitions(facts, card)}.values())
    if len(names) > 1:
        return degraded("gpu-p.unlike", observed=", ".join(names))
    return None


@rule("gpu-p", unknown=NOTES)
def cluster_needs_datacenter(facts: HostFacts) -> Finding | None:
    """For a VM that is highly available; one that stays where it is needs no cluster."""
    clustered = facts.the(ClusterService).state == "running"
    if clustered and facts.os.family is OsFamily.SERVER and "datacenter" not in facts.os.edition_id.casefold():
        return degraded("gpu-p.cluster-edition", observed=facts.os.named)
    return None


@rule("gpu-p", unknown=NOTES)
def reboot_pending(facts: HostFacts) -> Finding | None:
    """A driver that waits for a restart may bring other partitions."""
    why = facts.the(PendingReboot).reasons
    if why:
        return note("gpu-p.reboot-pending", observed=", ".join(why))
    return None


# --- Cards ---------------------------------------------------------------------------------------------------------


@rule("gpu-p", unknown=BLOCKS, each=CARD)
def not_listed(facts: HostFacts, card: Card) -> Finding | None:
    """The lists are short, and neighbours of listed cards are not on them."""
    found = known(card.gpu.key["device"])
    theirs = "azure-local" if facts.os.family is OsFamily.AZURE_LOCAL else "server-2025"
    if found is None or theirs not in (found.partition_lists or ()):
        return unverified("gpu-p.not-listed", observed=card.gpu.state.name)
    return None


@rule("gpu-p", unknown=BLOCKS, each=CARD)
def not_offered(facts: HostFacts, card: Card) -> Finding | None:
    """Windows offers a card for it only with the vendor's vGPU driver."""
    if partitions(facts, card) is None:
        return unsupported("gpu-p.not-offered", observed="not among the GPUs that the host can cut up")
    return None


@rule("gpu-p", unknown=NOTES, each=CARD)
def given_away_whole(facts: HostFacts, card: Card) -> Finding | None:
    """To a VM, or on its way there."""
    place = facts.place(card.gpu)
    if place == DISMOUNTED or owner(place):
        return unsupported("gpu-p.given-away", observed=place)
    return None


@rule("gpu-p", unknown=NOTES, each=CARD)
def partitions_used(facts: HostFacts, card: Card) -> Finding | None:
    """What is taken is not there for another VM."""
    found = partitions(facts, card)
    if found and found.used:
        return note("gpu-p.in-use", observed=f"{found.used} of {found.partitions} partitions in use")
    return None


def _model(card: Card) -> str:
    return card.gpu.key["device"].partition("&SUBSYS_")[0].upper()
