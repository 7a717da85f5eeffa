"""GPU partitions: what the host says of them, and each card."""

from winhost.compat import common
from winhost.compat.builds import SERVER_2025
from winhost.compat.common import CLIENTS, ask, gpus
from winhost.compat.rule import BLOCKS, CARD, NOTES, Finding, degraded, note, rule, unsupported, unverified
from winhost.hardware.cards import partitions
from winhost.hardware.gpus import known
from winhost.resources.host import Card, HostFacts
from winhost.resources.windows import ClusterService
from winhost.resources.windows.assignable_device import DISMOUNTED, owner
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


ask("gpu-p.virtualization-off", common.virtualization_off, unsupported, unknown=BLOCKS)
ask("gpu-p.virtual-machine", common.virtual_machine, unverified, unknown=BLOCKS)
ask("gpu-p.no-card", common.no_card, unsupported, unknown=BLOCKS)
ask("gpu-p.no-cuda", common.no_cuda, unsupported, unknown=BLOCKS)


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


ask("gpu-p.role-missing", common.role_missing, note, unknown=NOTES)
ask("gpu-p.sriov-refused", common.sriov_refused, unverified, unknown=NOTES)


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


ask("gpu-p.reboot-pending", common.reboot_pending, note, unknown=NOTES)


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
