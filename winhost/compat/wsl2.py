"""Rules of WSL 2: Windows, the machine, the WSL package and the GPUs. wsl2_network has its network modes."""

from collections import Counter

from packaging.version import Version

from winhost.compat import common
from winhost.compat.common import (
    SERVERS,
    gpus,
)
from winhost.compat.rule import Finding, note, rule, unverified
from winhost.compat.target import driver_branch
from winhost.hardware.cards import card_label, runs_cuda, shows
from winhost.hardware.gpus import NvLink, known
from winhost.knowledge.versions import checked, known_range, revision
from winhost.model.facts import Instance
from winhost.model.units import about, size
from winhost.resources.host import Card, HostFacts
from winhost.resources.windows.account_right import AccountRight
from winhost.resources.windows.assignable_device import DISMOUNTED
from winhost.resources.windows.hyperv_role import INSTALLED
from winhost.resources.windows.virtual_machine_platform import VirtualMachinePlatform
from winhost.resources.windows.wsl import Wsl
from winhost.resources.windows.wsl_config import WslConfig
from winhost.resources.windows.wsl_vm import WslVm

DRIVER_OF_CUDA, DRIVER_OF_IPC = Version("495"), Version("510")  # NVIDIA, CUDA on WSL User Guide
VIRTUAL_MACHINES = "S-1-5-83-0"  # NT VIRTUAL MACHINE\\Virtual Machines, in every language
MCDM_SEEN = "VEN_10DE&DEV_1B38"  # Tesla P40
LEAK_MENDED, WSL_ON_SERVER = revision("LEAK_MENDED"), revision("WSL_2_ON_SERVER")
FIRST_KNOWN, NEWEST_KNOWN = known_range("WSL")
NEWEST_DRIVER = known_range("NVIDIA drivers")[1]
FIRST_PRERELEASE, NEXT_STABLE = Version("2.8"), Version("2.10")  # microsoft/winget-pkgs: 2.8 and 2.9 are pre-releases


# --- Windows -------------------------------------------------------------------------------------------------------


@rule("wsl2.server-without-update")
def server_without_update(facts: HostFacts) -> str | None:
    """Windows Server 2022 has WSL 2 from an update of 2022 on."""
    if facts.os.family in SERVERS and WSL_ON_SERVER.lacks(facts.os.build, facts.os.revision):
        return _revision(facts)
    return None


@rule("wsl2.commit-leak")
def commit_leaks(facts: HostFacts) -> str | None:
    """Windows build 26100 before revision 4946 leaks committed memory while a VM uses a GPU."""
    if LEAK_MENDED.lacks(facts.os.build, facts.os.revision):
        return _revision(facts)
    return None


# --- The machine ---------------------------------------------------------------------------------------------------


# --- The package ---------------------------------------------------------------------------------------------------


@rule("wsl2.missing")
def missing(facts: HostFacts) -> str | None:
    """WSL is not installed; it can be, with one restart."""
    if not facts.the(Wsl).present:
        return "WSL is not installed"
    return None


@rule("wsl2.prerelease")
def prerelease(facts: HostFacts) -> str | None:
    """WSL 2.8 and 2.9 are pre-releases."""
    found = version(facts)
    if found and FIRST_PRERELEASE <= found < NEXT_STABLE:
        return f"WSL {found}"
    return None


@rule("wsl2.older-than-known")
def older_than_known(facts: HostFacts) -> str | None:
    """WSL before 2.0.0: what it does and ignores was not looked into."""
    found = version(facts)
    if found and found < FIRST_KNOWN:
        return f"WSL {found}"
    return None


@rule("wsl2.newer-than-known")
def newer_than_known(facts: HostFacts) -> str | None:
    """A newer build of a line of WSL that was looked into."""
    found = version(facts)
    if found and found.release[:3] > NEWEST_KNOWN.release and found.major == NEWEST_KNOWN.major:
        return f"WSL {found}, {checked(NEWEST_KNOWN)}"
    return None


@rule("wsl2.newer-line")
def line_newer_than_known(facts: HostFacts) -> str | None:
    """A line of WSL that nobody has looked into."""
    found = version(facts)
    return f"WSL {found}, {checked(NEWEST_KNOWN)}" if found and found.major > NEWEST_KNOWN.major else None


@rule("wsl2.vm-account-right")
def vms_may_not_log_on(facts: HostFacts) -> str | None:
    """The account of virtual machines lacks "Log on as a service", so that no VM of WSL starts."""
    if facts.the(VirtualMachinePlatform).feature != INSTALLED:
        return None
    held = [each.key["account"] for each in facts.all(AccountRight) if _is_service_right(each)]
    if VIRTUAL_MACHINES in held:
        return None
    return f"SeServiceLogonRight: {', '.join(held) or 'nobody'}"


def _is_service_right(right: Instance[AccountRight]) -> bool:
    return right.key["right"] == "SeServiceLogonRight" and right.state.granted


@rule("wsl2.fell-back")
def fell_back(facts: HostFacts) -> str | None:
    """WSL runs in another network mode than its .wslconfig names; WSL itself says so only once, at its start."""
    found = [
        f"{vm.key['account']}: {vm.state.mode}, where .wslconfig says {asked}"
        for vm in facts.all(WslVm)
        if vm.state.running and vm.state.mode and (asked := _asked(facts, vm)) not in (None, vm.state.mode.lower())
    ]
    return "; ".join(found) if found else None


def _asked(facts: HostFacts, vm: Instance[WslVm]) -> str | None:
    """The networkingMode in the .wslconfig of the VM's account, in lower case; None where there is none."""
    from winhost.wslconfig import effective  # only where WSL runs

    config = facts.of(WslConfig, vm.key)
    mode = effective((config and config.text) or "").get(("wsl2", "networkingMode"))
    return str(mode).lower() if mode else None


# --- Cards ---------------------------------------------------------------------------------------------------------


@rule("wsl2.mcdm")
def mcdm_unseen(facts: HostFacts) -> str | None:
    """A GPU is in MCDM mode, which is reported to work in WSL 2 for the Tesla P40 only."""
    cards = [card for card in facts.cards if card.gpu.state.driver_model == "MCDM" and not _seen_in_mcdm(card)]
    if cards:
        return f"in MCDM mode: {', '.join(map(card_label, cards))}"
    return None


@rule("wsl2.device-problem")
def device_problem(facts: HostFacts) -> Finding | None:
    """Device Manager reports a problem code of a GPU: WSL uses the host's own driver."""
    ill = [card for card in gpus(facts) if not card.gpu.state.dismounted and card.gpu.state.problem]
    if not ill:
        return None
    say = note if any(card not in ill for card in _driven(facts)) else unverified
    codes = ", ".join(f"{card_label(card)}: problem code {card.gpu.state.problem}" for card in ill)
    return say("wsl2.device-problem", observed=codes)


@rule("wsl2.dismounted")
def dismounted(facts: HostFacts) -> Finding | None:
    """A GPU was dismounted for a VM and belongs to none: Windows, and so WSL, cannot use it until it is back."""
    cards = [card for card in gpus(facts) if facts.place(card.gpu) == DISMOUNTED]
    if not cards:
        return None
    say = note if _driven(facts) else unverified
    return say("wsl2.dismounted", observed=f"dismounted, in no VM: {', '.join(map(card_label, cards))}")


@rule("wsl2.sli-untold")
def may_be_joined_by_sli(facts: HostFacts) -> str | None:
    """With SLI on, WSL sees one of two GPUs; no interface of Windows tells whether it is."""
    pairs = Counter(card.gpu.key["device"] for card in _driven(facts) if _takes_sli(card))
    if any(count > 1 for count in pairs.values()):
        names = sorted({card.gpu.state.name for card in _driven(facts) if pairs[card.gpu.key["device"]] > 1})
        return ", ".join(names)
    return None


def _takes_sli(card: Card) -> bool:
    found = known(card.gpu.key["device"])
    return bool(found and found.nvlink is NvLink.BRIDGE) and card.gpu.state.driver_model == "WDDM"


@rule("wsl2.vram-above-memory")
def vram_above_memory(facts: HostFacts) -> str | None:
    """The GPUs have more memory than the host. One report, of a 96 GB GPU in a 64 GB machine, failed."""
    vram = sum(card.gpu.state.vram or 0 for card in facts.cards)
    if vram > facts.memory.total:
        return f"{size(vram)} of VRAM, {about(facts.memory.total)} of memory"
    return None


@rule("wsl2.no-gpu")
def without_driver(facts: HostFacts) -> str | None:
    """NVIDIA's Windows driver runs none of the GPUs. GPUs of other vendors are wsl2.no-cuda."""
    left = [card for card in gpus(facts) if not card.gpu.state.dismounted]  # of others says wsl2.dismounted
    if not common.no_cuda(facts) and left and not _driven(facts):
        return "no GPU is run by NVIDIA's Windows driver"
    return None


@rule("wsl2.driver-too-old")
def driver_before_cuda(facts: HostFacts) -> str | None:
    """CUDA in WSL 2 needs NVIDIA's Windows driver R495 or newer."""
    driver = _driver(facts)
    if driver and driver < DRIVER_OF_CUDA:
        return f"driver {driver}"
    return None


@rule("wsl2.driver-newer-than-known")
def driver_newer_than_known(facts: HostFacts) -> str | None:
    """A branch of NVIDIA's driver that nobody has looked into."""
    driver = _driver(facts)
    return f"driver {driver}, {checked(f'R{NEWEST_DRIVER}')}" if driver and driver.major > NEWEST_DRIVER.major else None


@rule("wsl2.driver-before-ipc")
def driver_before_ipc(facts: HostFacts) -> str | None:
    """NCCL joins several GPUs by CUDA IPC, which in WSL 2 needs driver R510 or newer."""
    driver, cards = _driver(facts), _driven(facts)
    if driver and DRIVER_OF_CUDA <= driver < DRIVER_OF_IPC and len(cards) > 1:
        return f"driver {driver}, {len(cards)} GPUs"
    return None


@rule("wsl2.shows-windows")
def shows_windows(facts: HostFacts) -> str | None:
    """A GPU that would serve drives a Windows display, which takes some of its memory and time."""
    cards = [card_label(card) for card in gpus(facts) if runs_cuda(card) and shows(card)]
    if cards:
        return ", ".join(cards)
    return None


@rule("wsl2.other-gpus")
def other_gpus(facts: HostFacts) -> str | None:
    """GPUs of other vendors, integrated graphics for one, also appear in WSL 2."""
    others = [card.gpu.state.name for card in gpus(facts) if not runs_cuda(card)]
    if others and not common.no_cuda(facts):
        return ", ".join(others)
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
