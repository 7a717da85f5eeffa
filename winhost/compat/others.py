"""The other paths: only whether they are possible at all. Their own rules come with their engines."""

from winhost.compat.builds import SERVER_2022, SERVER_2025, WINDOWS_10_21H2, WINDOWS_11
from winhost.compat.cards import partitions, serves
from winhost.compat.rule import BLOCKS, CARD, NOTES, Finding, degraded, note, rule, unsupported, unverified
from winhost.model.facts import Instance
from winhost.model.units import size
from winhost.paths.dda import card_label
from winhost.paths.gpus import known
from winhost.resources.host import Card, HostFacts
from winhost.resources.windows import BitLocker, Disk, Wsl
from winhost.resources.windows.operating_system import OsFamily

SERVERS = (OsFamily.SERVER, OsFamily.AZURE_LOCAL)
CLIENTS = (OsFamily.CLIENT, OsFamily.MULTI_SESSION, OsFamily.ALTERED)
PLAIN_BUSES = ("nvme", "sata", "ata", "sas", "scsi")


# --- WSL 2 ---------------------------------------------------------------------------------------------------------


@rule("wsl2", unknown=BLOCKS)
def wsl_shares_the_gpu(facts: HostFacts) -> Finding | None:
    """True on every host: the distro gets the GPU through the Windows driver."""
    return degraded("wsl2.shared-gpu", observed=facts.os.named)


@rule("wsl2", unknown=BLOCKS)
def wsl_on_server(facts: HostFacts) -> Finding | None:
    """WSL 2 runs there; GPU compute in it is described for clients only."""
    if facts.os.family in SERVERS and facts.os.build >= SERVER_2022:
        return unverified("wsl2.server", observed=facts.os.named)
    return None


@rule("wsl2", unknown=BLOCKS)
def wsl_on_old_server(facts: HostFacts) -> Finding | None:
    """WSL 2 came to servers with an update of Server 2022."""
    if facts.os.family in SERVERS and facts.os.build < SERVER_2022:
        return unsupported("wsl2.server-too-old", observed=facts.os.named)
    return None


@rule("wsl2", unknown=BLOCKS)
def wsl_on_old_client(facts: HostFacts) -> Finding | None:
    """The GPU came to WSL 2 with Windows 10 21H2 and Windows 11."""
    if facts.os.family in CLIENTS and facts.os.build < WINDOWS_10_21H2:
        return unsupported("wsl2.client-too-old", observed=facts.os.named)
    return None


@rule("wsl2", unknown=BLOCKS)
def wsl_cannot_bridge(facts: HostFacts) -> Finding | None:
    """Windows 10 has WSL 2 without an address of its own on the network."""
    if facts.os.family in CLIENTS and WINDOWS_10_21H2 <= facts.os.build < WINDOWS_11:
        return degraded("wsl2.no-bridge", observed=facts.os.named)
    return None


@rule("wsl2", unknown=NOTES)
def wsl_missing(facts: HostFacts) -> Finding | None:
    """It can be installed."""
    if not facts.the(Wsl).present:
        return note("wsl2.missing", observed="WSL is not installed")
    return None


@rule("wsl2", unknown=BLOCKS)
def wsl_virtualization_off(facts: HostFacts) -> Finding | None:
    """WSL 2 is a VM."""
    firmware = facts.firmware
    if not firmware.hypervisor_present and not firmware.virtualization_enabled:
        return unsupported("wsl2.virtualization-off", observed=f"{firmware.manufacturer} {firmware.model}")
    return None


@rule("wsl2", unknown=BLOCKS)
def wsl_tcc_invisible(facts: HostFacts) -> Finding | None:
    """One card in TCC mode is enough to hide all of them."""
    hidden = [card_label(card) for card in facts.cards if card.gpu.state.driver_model == "TCC"]
    if hidden:
        return unsupported("wsl2.tcc-invisible", observed=f"in TCC mode: {', '.join(hidden)}")
    return None


@rule("wsl2", unknown=NOTES)
def wsl_vram_above_memory(facts: HostFacts) -> Finding | None:
    """Reported once, with a 96 GB card in a machine of 64 GB."""
    vram = sum(card.gpu.state.vram or 0 for card in facts.cards)
    if vram > facts.memory.total:
        observed = f"{size(vram)} of VRAM, {size(facts.memory.total)} of memory"
        return unverified("wsl2.vram-above-memory", observed=observed)
    return None


@rule("wsl2", unknown=BLOCKS)
def wsl_without_card(facts: HostFacts) -> Finding | None:
    """There is nothing to serve with."""
    if not any(map(serves, facts.cards)):
        return unsupported("wsl2.no-card", observed=f"{len(facts.cards)} display device(s), none of them a GPU")
    return None


@rule("wsl2", unknown=BLOCKS)
def wsl_without_driver(facts: HostFacts) -> Finding | None:
    """The Windows driver must run the card."""
    cards = list(filter(serves, facts.cards))
    if cards and not any(card.gpu.state.driver_model for card in cards):
        return unsupported("wsl2.no-gpu", observed="no card is run by a Windows GPU driver")
    return None


# --- GPU partitions ------------------------------------------------------------------------------------------------


@rule("gpu-p", unknown=BLOCKS)
def partitions_on_client(facts: HostFacts) -> Finding | None:
    """It exists there for Windows' own use."""
    if facts.os.family in CLIENTS:
        return unsupported("gpu-p.client", observed=facts.os.named)
    return None


@rule("gpu-p", unknown=BLOCKS)
def partitions_before_2025(facts: HostFacts) -> Finding | None:
    """GPU-P came with Server 2025 and Azure Local."""
    if facts.os.family is OsFamily.SERVER and facts.os.build < SERVER_2025:
        return unsupported("gpu-p.before-2025", observed=facts.os.named)
    return None


@rule("gpu-p", unknown=BLOCKS)
def partitions_without_virtualization(facts: HostFacts) -> Finding | None:
    """Without a hypervisor there is no VM to have one."""
    firmware = facts.firmware
    if not firmware.hypervisor_present and not firmware.virtualization_enabled:
        return unsupported("gpu-p.virtualization-off", observed=f"{firmware.manufacturer} {firmware.model}")
    return None


@rule("gpu-p", unknown=BLOCKS)
def partitions_without_card(facts: HostFacts) -> Finding | None:
    """There is nothing to cut up."""
    if not any(map(serves, facts.cards)):
        return unsupported("gpu-p.no-card", observed=f"{len(facts.cards)} display device(s), none of them a GPU")
    return None


@rule("gpu-p", unknown=BLOCKS)
def partitions_need_a_licence(facts: HostFacts) -> Finding | None:
    """True on every host: nothing on it tells whether there is one."""
    return unverified("gpu-p.licence", observed=facts.os.named)


@rule("gpu-p", unknown=BLOCKS)
def partition_is_a_slice(facts: HostFacts) -> Finding | None:
    """True on every host that can do it."""
    return degraded("gpu-p.slice", observed=facts.os.named)


@rule("gpu-p", unknown=BLOCKS, each=CARD)
def not_listed_for_partitions(facts: HostFacts, card: Card) -> Finding | None:
    """The lists are short, and neighbours of listed cards are not on them."""
    found = known(card.gpu.key["device"])
    theirs = "azure-local" if facts.os.family is OsFamily.AZURE_LOCAL else "server-2025"
    if found is None or theirs not in (found.partition_lists or ()):
        return unverified("gpu-p.not-listed", observed=card.gpu.state.name)
    return None


@rule("gpu-p", unknown=BLOCKS, each=CARD)
def not_offered_for_partitions(facts: HostFacts, card: Card) -> Finding | None:
    """Windows offers a card for it only with the vendor's vGPU driver."""
    if partitions(facts, card) is None:
        return unsupported("gpu-p.not-offered", observed="not among the GPUs that the host can cut up")
    return None


# --- Ubuntu beside Windows, and instead of it ----------------------------------------------------------------------


@rule("dual-boot", unknown=BLOCKS)
def dual_boot_untried(facts: HostFacts) -> Finding | None:
    """True on every host: the parts were tried on images, the whole not on a machine."""
    return unverified("dual-boot.untried", observed=facts.os.named)


@rule("dual-boot", unknown=BLOCKS)
def dual_boot_not_x64(facts: HostFacts) -> Finding | None:
    """What is installed is Ubuntu for x64."""
    if not _is_x64(facts.os.architecture):
        return unsupported("dual-boot.not-x64", observed=facts.os.architecture)
    return None


@rule("dual-boot", unknown=BLOCKS)
def system_disk_not_gpt(facts: HostFacts) -> Finding | None:
    """MBR means BIOS boot, and a conversion is not ours to make."""
    styles = {disk.state.style for disk in _system_disks(facts)}
    if styles - {"GPT"}:
        return unsupported("dual-boot.not-gpt", observed=f"the system disk is {', '.join(sorted(styles))}")
    return None


@rule("dual-boot", unknown=BLOCKS)
def system_disk_behind_a_layer(facts: HostFacts) -> Finding | None:
    """RAID, Storage Spaces, iSCSI, USB: Linux may see other disks than Windows does."""
    buses = sorted({disk.state.bus for disk in _system_disks(facts) if disk.state.bus.casefold() not in PLAIN_BUSES})
    if buses:
        return unverified("dual-boot.disk-bus", observed=f"the system disk is on {', '.join(buses)}")
    return None


@rule("dual-boot", unknown=NOTES)
def bitlocker_on(facts: HostFacts) -> Finding | None:
    """Changes at boot make BitLocker ask for its recovery key."""
    volumes = [volume.key["volume"] for volume in facts.all(BitLocker) if volume.state.protection == "on"]
    if volumes:
        return note("dual-boot.bitlocker", observed=f"protected: {', '.join(volumes)}")
    return None


@rule("dual-boot", unknown=BLOCKS)
def dual_boot_without_card(facts: HostFacts) -> Finding | None:
    """There is nothing to serve with."""
    if not any(map(serves, facts.cards)):
        return unsupported("dual-boot.no-card", observed=f"{len(facts.cards)} display device(s), none of them a GPU")
    return None


@rule("bare-metal", unknown=BLOCKS)
def bare_metal_untried(facts: HostFacts) -> Finding | None:
    """True on every host: Windows goes, and we have not done it on a machine."""
    return unverified("bare-metal.untried", observed=facts.os.named)


@rule("bare-metal", unknown=BLOCKS)
def bare_metal_not_x64(facts: HostFacts) -> Finding | None:
    """What is installed is Ubuntu for x64."""
    if not _is_x64(facts.os.architecture):
        return unsupported("bare-metal.not-x64", observed=facts.os.architecture)
    return None


@rule("bare-metal", unknown=BLOCKS)
def bare_metal_without_card(facts: HostFacts) -> Finding | None:
    """There is nothing to serve with."""
    if not any(map(serves, facts.cards)):
        return unsupported("bare-metal.no-card", observed=f"{len(facts.cards)} display device(s), none of them a GPU")
    return None


def _is_x64(architecture: str) -> bool:
    """Windows says `64-bit` in its own language for x64, and puts `ARM` before it for the other."""
    return "64" in architecture and "arm" not in architecture.casefold()


def _system_disks(facts: HostFacts) -> list[Instance[Disk]]:
    return [disk for disk in facts.all(Disk) if disk.state.system or disk.state.boot]
