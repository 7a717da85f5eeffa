"""Rules of WSL 2: Windows, the machine, the WSL package and the GPUs. wsl2_network has its network modes."""

from collections import Counter

from packaging.version import Version

from winhost.compat import common
from winhost.compat.builds import SERVER_2022, WINDOWS_10_21H2
from winhost.compat.common import (
    CLIENTS,
    SERVERS,
    ask,
    gpus,
)
from winhost.compat.rule import BLOCKS, NOTES, Finding, degraded, note, rule, unsupported, unverified
from winhost.compat.target import driver_branch
from winhost.hardware.cards import card_label, runs_cuda, shows
from winhost.hardware.gpus import NvLink, known
from winhost.knowledge.versions import known_range, revision
from winhost.model.facts import Instance
from winhost.model.units import about, size
from winhost.resources.host import Card, HostFacts
from winhost.resources.windows.account_right import AccountRight
from winhost.resources.windows.assignable_device import DISMOUNTED
from winhost.resources.windows.hyperv_role import INSTALLED
from winhost.resources.windows.virtual_machine_platform import VirtualMachinePlatform
from winhost.resources.windows.wsl import Wsl
from winhost.resources.windows.wsl_config import WslConfig
from winhost.resources.windows.wsl_policy import WslPolicy
from winhost.resources.windows.wsl_vm import WslVm

DRIVER_OF_CUDA, DRIVER_OF_IPC = Version("495"), Version("510")  # NVIDIA, CUDA on WSL User Guide
VIRTUAL_MACHINES = "S-1-5-83-0"  # NT VIRTUAL MACHINE\\Virtual Machines, in every language
MCDM_SEEN = "VEN_10DE&DEV_1B38"  # Tesla P40
LEAK_MENDED, WSL_ON_SERVER = revision("LEAK_MENDED"), revision("WSL_2_ON_SERVER")
FIRST_KNOWN, NEWEST_KNOWN = known_range("WSL")
FIRST_PRERELEASE, NEXT_STABLE = Version("2.8"), Version("2.10")  # microsoft/winget-pkgs: 2.8 and 2.9 are pre-releases


# --- Windows -------------------------------------------------------------------------------------------------------


@rule("wsl2", unknown=BLOCKS)
def shares_the_gpu(facts: HostFacts) -> Finding | None:
    """Linux reaches the GPU through the Windows driver. This holds on every host."""
    return degraded("wsl2.shared-gpu", observed=facts.os.named)


@rule("wsl2", unknown=BLOCKS)
def on_server(facts: HostFacts) -> Finding | None:
    """From Windows Server 2022 on, Microsoft supports WSL 2 on servers in part: NAT, not mirrored networking."""
    if facts.os.family in SERVERS and facts.os.build >= SERVER_2022:
        return degraded("wsl2.server", observed=facts.os.named)
    return None


@rule("wsl2", unknown=BLOCKS)
def gpu_on_server(facts: HostFacts) -> Finding | None:
    """GPU compute in WSL 2 is documented for client Windows only."""
    if facts.os.family in SERVERS and facts.os.build >= SERVER_2022:
        return unverified("wsl2.gpu-on-server", observed=facts.os.named)
    return None


@rule("wsl2", unknown=BLOCKS)
def on_old_server(facts: HostFacts) -> Finding | None:
    """WSL 2 needs Windows Server 2022 or newer."""
    if facts.os.family in SERVERS and facts.os.build < SERVER_2022:
        return unsupported("wsl2.server-too-old", observed=facts.os.named)
    return None


@rule("wsl2", unknown=BLOCKS)
def server_without_update(facts: HostFacts) -> Finding | None:
    """Windows Server 2022 has WSL 2 from an update of 2022 on."""
    if facts.os.family in SERVERS and WSL_ON_SERVER.lacks(facts.os.build, facts.os.revision):
        return unsupported("wsl2.server-without-update", observed=_revision(facts))
    return None


ask("wsl2.windows-unlisted", common.windows_unlisted, unverified, unknown=BLOCKS)


@rule("wsl2", unknown=NOTES)
def on_server_core(facts: HostFacts) -> Finding | None:
    """Server Core has no Microsoft Store, so WSL comes from its MSI."""
    if facts.os.family in SERVERS and facts.os.installation_type == "Server Core":
        return note("wsl2.server-core", observed=facts.os.installation_type)
    return None


@rule("wsl2", unknown=BLOCKS)
def on_old_client(facts: HostFacts) -> Finding | None:
    """The GPU in WSL 2 needs Windows 10 21H2 or Windows 11."""
    if facts.os.family in CLIENTS and facts.os.build < WINDOWS_10_21H2:
        return unsupported("wsl2.client-too-old", observed=facts.os.named)
    return None


@rule("wsl2", unknown=NOTES)
def commit_leaks(facts: HostFacts) -> Finding | None:
    """Windows build 26100 before revision 4946 leaks committed memory while a VM uses a GPU."""
    if LEAK_MENDED.lacks(facts.os.build, facts.os.revision):
        return note("wsl2.commit-leak", observed=_revision(facts))
    return None


ask("wsl2.domain-controller", common.domain_controller, unsupported, unknown=BLOCKS)
ask("wsl2.not-administrator", common.not_administrator, note, unknown=NOTES)
ask("wsl2.language-mode", common.language_mode, unsupported, unknown=NOTES)
ask("wsl2.powershell-32bit", common.powershell_32bit, unsupported, unknown=NOTES)
ask("wsl2.unsigned-scripts", common.unsigned_scripts, unsupported, unknown=NOTES)
ask("wsl2.reboot-pending", common.reboot_pending, note, unknown=NOTES)
ask("wsl2.host-sleeps", common.host_sleeps, note, unknown=NOTES)
ask("wsl2.modern-standby", common.modern_standby, note, unknown=NOTES)


# --- The machine ---------------------------------------------------------------------------------------------------


ask("wsl2.not-x64", common.not_x64, unverified, unknown=BLOCKS)
ask("wsl2.virtualization-off", common.virtualization_off, unsupported, unknown=BLOCKS)
ask("wsl2.virtual-machine", common.virtual_machine, unverified, unknown=BLOCKS)


# --- The package ---------------------------------------------------------------------------------------------------


@rule("wsl2", unknown=NOTES)
def missing(facts: HostFacts) -> Finding | None:
    """WSL is not installed; it can be, with one restart."""
    if not facts.the(Wsl).present:
        return note("wsl2.missing", observed="WSL is not installed")
    return None


@rule("wsl2", unknown=BLOCKS)
def version_not_told(facts: HostFacts) -> Finding | None:
    """WSL is the one built into Windows or a Store package, which do not record a version in the registry."""
    wsl = facts.the(Wsl)
    if wsl.present and wsl.version is None:
        return unverified("wsl2.version-not-told", observed="WSL is installed, but its package is not registered")
    return None


@rule("wsl2", unknown=NOTES)
def prerelease(facts: HostFacts) -> Finding | None:
    """WSL 2.8 and 2.9 are pre-releases."""
    found = version(facts)
    if found and FIRST_PRERELEASE <= found < NEXT_STABLE:
        return note("wsl2.prerelease", observed=f"WSL {found}")
    return None


@rule("wsl2", unknown=BLOCKS)
def older_than_known(facts: HostFacts) -> Finding | None:
    """WSL before 2.0.0: what it does and ignores was not looked into."""
    found = version(facts)
    if found and found < FIRST_KNOWN:
        return unverified("wsl2.older-than-known", observed=f"WSL {found}")
    return None


@rule("wsl2", unknown=NOTES)
def newer_than_known(facts: HostFacts) -> Finding | None:
    """WSL is newer than the newest that was looked into."""
    found = version(facts)
    if found and found.release[:3] > NEWEST_KNOWN.release:
        return note("wsl2.newer-than-known", observed=f"WSL {found}, known up to {NEWEST_KNOWN}")
    return None


@rule("wsl2", unknown=NOTES)
def inbox_forbidden(facts: HostFacts) -> Finding | None:
    """The policy AllowInboxWSL is 0, and WSL is the one that is part of Windows."""
    wsl = facts.the(Wsl)
    if wsl.present and wsl.version is None and facts.the(WslPolicy).allow_inbox is False:
        return unsupported("wsl2.policy-no-inbox", observed="AllowInboxWSL is 0")
    return None


@rule("wsl2", unknown=NOTES)
def vms_may_not_log_on(facts: HostFacts) -> Finding | None:
    """The account of virtual machines lacks "Log on as a service", so that no VM of WSL starts."""
    if facts.the(VirtualMachinePlatform).feature != INSTALLED:
        return None
    held = [each.key["account"] for each in facts.all(AccountRight) if _is_service_right(each)]
    if VIRTUAL_MACHINES in held:
        return None
    return unverified("wsl2.vm-account-right", observed=f"SeServiceLogonRight: {', '.join(held) or 'nobody'}")


def _is_service_right(right: Instance[AccountRight]) -> bool:
    return right.key["right"] == "SeServiceLogonRight" and right.state.granted


@rule("wsl2", unknown=NOTES)
def fell_back(facts: HostFacts) -> Finding | None:
    """WSL runs in another network mode than its .wslconfig names; WSL itself says so only once, at its start."""
    found = [
        f"{vm.key['account']}: {vm.state.mode}, where .wslconfig says {asked}"
        for vm in facts.all(WslVm)
        if vm.state.running and vm.state.mode and (asked := _asked(facts, vm)) not in (None, vm.state.mode.lower())
    ]
    return degraded("wsl2.fell-back", observed="; ".join(found)) if found else None


def _asked(facts: HostFacts, vm: Instance[WslVm]) -> str | None:
    """The networkingMode in the .wslconfig of the VM's account, in lower case; None where there is none."""
    from winhost.wslconfig import effective  # only where WSL runs

    config = facts.of(WslConfig, vm.key)
    mode = effective((config and config.text) or "").get(("wsl2", "networkingMode"))
    return str(mode).lower() if mode else None


# --- Cards ---------------------------------------------------------------------------------------------------------


ask("wsl2.tcc-invisible", common.tcc_invisible, unsupported, unknown=BLOCKS)


@rule("wsl2", unknown=BLOCKS)
def mcdm_unseen(facts: HostFacts) -> Finding | None:
    """A GPU is in MCDM mode, which is reported to work in WSL 2 for the Tesla P40 only."""
    cards = [card for card in facts.cards if card.gpu.state.driver_model == "MCDM" and not _seen_in_mcdm(card)]
    if cards:
        return unverified("wsl2.mcdm", observed=f"in MCDM mode: {', '.join(map(card_label, cards))}")
    return None


@rule("wsl2", unknown=BLOCKS)
def device_problem(facts: HostFacts) -> Finding | None:
    """Device Manager reports a problem code of a GPU: WSL uses the host's own driver."""
    ill = [card for card in gpus(facts) if not card.gpu.state.dismounted and card.gpu.state.problem]
    if not ill:
        return None
    say = note if any(card not in ill for card in _driven(facts)) else unverified
    codes = ", ".join(f"{card_label(card)}: problem code {card.gpu.state.problem}" for card in ill)
    return say("wsl2.device-problem", observed=codes)


@rule("wsl2", unknown=NOTES)
def dismounted(facts: HostFacts) -> Finding | None:
    """A GPU was dismounted for a VM and belongs to none: Windows, and so WSL, cannot use it until it is back."""
    cards = [card for card in gpus(facts) if facts.place(card.gpu) == DISMOUNTED]
    if not cards:
        return None
    say = note if _driven(facts) else unverified
    return say("wsl2.dismounted", observed=f"dismounted, in no VM: {', '.join(map(card_label, cards))}")


@rule("wsl2", unknown=NOTES)
def may_be_joined_by_sli(facts: HostFacts) -> Finding | None:
    """With SLI on, WSL sees one of two GPUs; no interface of Windows tells whether it is."""
    pairs = Counter(card.gpu.key["device"] for card in _driven(facts) if _takes_sli(card))
    if any(count > 1 for count in pairs.values()):
        names = sorted({card.gpu.state.name for card in _driven(facts) if pairs[card.gpu.key["device"]] > 1})
        return note("wsl2.sli-untold", observed=", ".join(names))
    return None


def _takes_sli(card: Card) -> bool:
    found = known(card.gpu.key["device"])
    return bool(found and found.nvlink is NvLink.BRIDGE) and card.gpu.state.driver_model == "WDDM"


@rule("wsl2", unknown=NOTES)
def vram_above_memory(facts: HostFacts) -> Finding | None:
    """The GPUs have more memory than the host. One report, of a 96 GB GPU in a 64 GB machine, failed."""
    vram = sum(card.gpu.state.vram or 0 for card in facts.cards)
    if vram > facts.memory.total:
        observed = f"{size(vram)} of VRAM, {about(facts.memory.total)} of memory"
        return unverified("wsl2.vram-above-memory", observed=observed)
    return None


ask("wsl2.no-card", common.no_card, unsupported, unknown=BLOCKS)
ask("wsl2.no-cuda", common.no_cuda, unsupported, unknown=BLOCKS)


@rule("wsl2", unknown=BLOCKS)
def without_driver(facts: HostFacts) -> Finding | None:
    """NVIDIA's Windows driver runs none of the GPUs. GPUs of other vendors are wsl2.no-cuda."""
    left = [card for card in gpus(facts) if not card.gpu.state.dismounted]  # of others says wsl2.dismounted
    if not common.no_cuda(facts) and left and not _driven(facts):
        return unsupported("wsl2.no-gpu", observed="no GPU is run by NVIDIA's Windows driver")
    return None


@rule("wsl2", unknown=BLOCKS)
def driver_before_cuda(facts: HostFacts) -> Finding | None:
    """CUDA in WSL 2 needs NVIDIA's Windows driver R495 or newer."""
    driver = _driver(facts)
    if driver and driver < DRIVER_OF_CUDA:
        return unsupported("wsl2.driver-too-old", observed=f"driver {driver}")
    return None


@rule("wsl2", unknown=BLOCKS)
def driver_before_ipc(facts: HostFacts) -> Finding | None:
    """NCCL joins several GPUs by CUDA IPC, which in WSL 2 needs driver R510 or newer."""
    driver, cards = _driver(facts), _driven(facts)
    if driver and DRIVER_OF_CUDA <= driver < DRIVER_OF_IPC and len(cards) > 1:
        return degraded("wsl2.driver-before-ipc", observed=f"driver {driver}, {len(cards)} GPUs")
    return None


@rule("wsl2", unknown=NOTES)
def shows_windows(facts: HostFacts) -> Finding | None:
    """A GPU that would serve drives a Windows display, which takes some of its memory and time."""
    cards = [card_label(card) for card in gpus(facts) if runs_cuda(card) and shows(card)]
    if cards:
        return note("wsl2.shows-windows", observed=", ".join(cards))
    return None


@rule("wsl2", unknown=NOTES)
def other_gpus(facts: HostFacts) -> Finding | None:
    """GPUs of other vendors, integrated graphics for one, also appear in WSL 2."""
    others = [card.gpu.state.name for card in gpus(facts) if not runs_cuda(card)]
    if others and not common.no_cuda(facts):
        return note("wsl2.other-gpus", observed=", ".join(others))
    return None


def _revision(facts: HostFacts) -> str:
    return f"build {facts.os.build}.{facts.os.revision}"


def version(facts: HostFacts) -> Version | None:
    """None where WSL records no version. A version stated in the workload counts as installed."""
    wsl = facts.the(Wsl)
    return Version(wsl.version) if wsl.version else None


def _seen_in_mcdm(card: Card) -> bool:
    return card.gpu.key["device"].upper().startswith(MCDM_SEEN)


def _driven(facts: HostFacts) -> list[Card]:
    """NVIDIA's GPUs that its Windows driver runs."""
    return [card for card in gpus(facts) if runs_cuda(card) and card.gpu.state.driver_model]


def _driver(facts: HostFacts) -> Version | None:
    """NVIDIA's number of the oldest driver of these GPUs; None where none reports it."""
    versions = (driver_branch(card.gpu.state.driver_version) for card in _driven(facts))
    return min(filter(None, versions), default=None)
