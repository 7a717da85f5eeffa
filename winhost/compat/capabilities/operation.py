"""Rules of operation: Kubernetes, start on boot, live migration, the Windows desktop, displays, updates."""

import re

from packaging.version import Version

from winhost.compat.capability import EVERYWHERE, IN_A_VM, NATIVE, SHARED, WHOLE_CARD, capability
from winhost.compat.common import CLIENTS, WINDOWS_11
from winhost.compat.gpu_cards import gpus, named, several
from winhost.compat.target import Target
from winhost.hardware.cards import shows
from winhost.resources.host import Card
from winhost.resources.windows.processor import Processor
from winhost.resources.windows.vm_actions import VmActions
from winhost.resources.windows.wsl import Wsl

WSL_WITHOUT_LOGON = Version("2.0.0")  # microsoft/WSL #9231: the MSI's wsl.exe runs in session 0 since
WITHOUT_MONITOR = ("TCC", "MCDM")

# Generations before Xeon Scalable 4 and EPYC 7002, by the digit that tells it. Microsoft, "GPU partitioning"
OLD_PROCESSORS = re.compile(r"Xeon(\(R\))? (E[357]-|(Platinum|Gold|Silver|Bronze) \d[123]\d\d)|EPYC 7\d\d1\b", re.I)

# --- Kubernetes ----------------------------------------------------------------------------------------------------


@capability("kubernetes-per-gpu.no-gpu", on=EVERYWHERE)
def nothing_to_schedule(target: Target) -> str | None:
    """NVIDIA's device plugin needs an NVIDIA GPU."""
    if not gpus(target):
        return named(target.cards) or "no GPU"
    return None


@capability("kubernetes-per-gpu.one-device", on=("wsl2",))
def all_gpus_are_one(target: Target) -> str | None:
    """In WSL all GPUs are one device file, so Kubernetes sees one device."""
    if several(target):
        return named(gpus(target))
    return None


@capability("kubernetes-per-gpu.unwatched", on=("wsl2",))
def one_gpu_is_one(target: Target) -> str | None:
    """In WSL the device plugin reports neither health nor memory of the GPU."""
    if len(gpus(target)) == 1:
        return named(gpus(target))
    return None


@capability("kubernetes-per-gpu.behind-nat", on=("wsl2/nat",))
def node_behind_nat(target: Target) -> str | None:
    """Nodes on other hosts cannot reach pods behind NAT."""
    return f"on {target.variant}"


@capability("kubernetes-per-gpu.mirrored", on=("wsl2/mirrored",))
def node_is_windows(target: Target) -> str | None:
    """A mirrored node has the addresses and ports of Windows."""
    return f"on {target.variant}"


@capability("kubernetes-per-gpu.containers-only", on=("wslc",))
def containers_only(target: Target) -> str | None:
    """A Kubernetes node in a container needs privileges that wslc does not grant."""
    return "wslc run has no --privileged"


# --- Start on boot -------------------------------------------------------------------------------------------------


@capability("start-on-boot.vm-stays-off", on=IN_A_VM)
def no_vm_starts(target: Target) -> str | None:
    """The automatic start action of every VM is Nothing."""
    actions = [action.state.start for action in target.facts.all(VmActions)]
    if actions and set(actions) == {"nothing"}:
        return f"{len(actions)} VM(s), each with automatic start action Nothing"
    return None


@capability("start-on-boot.stale-assignment", on=("dda",))
def assignment_goes_stale(target: Target) -> str | None:
    """One report: after a host restart a VM with four assigned GPUs did not start."""
    return named(target.cards)


@capability("start-on-boot.by-task", on=("wsl2",))
def started_by_a_task(target: Target) -> str | None:
    """No Windows service starts a WSL distro; a scheduled task has to."""
    return f"on {target.path}"


@capability("start-on-boot.old-wsl", on=("wsl2",))
def wsl_needs_a_logon(target: Target) -> str | None:
    """WSL before 2.0 runs only with a user logged on."""
    wsl = target.facts.the(Wsl)
    if (wsl.present or wsl.version) and target.wsl < WSL_WITHOUT_LOGON:
        return f"WSL {target.wsl}"
    return None


@capability("start-on-boot.stops-when-idle", on=("wsl2",))
def stops_when_idle(target: Target) -> str | None:
    """WSL stops an idle distro; services under systemd do not count as activity."""
    return f"on {target.path}"


@capability("start-on-boot.no-restart-policy", on=("wslc",))
def nothing_restarts_a_container(target: Target) -> str | None:
    """wslc has no restart policy, and whether it runs without a logon is not known."""
    return "wslc run has no --restart"


@capability("start-on-boot.two-systems", on=("dual-boot",))
def firmware_chooses(target: Target) -> str | None:
    """The firmware's boot order decides which system starts; Windows stays first until Linux serves."""
    return f"on {target.path}"


# --- Live migration ------------------------------------------------------------------------------------------------


@capability("live-migration.assigned", on=("dda",))
def assigned_cards_stay(target: Target) -> str | None:
    """A VM with an assigned GPU cannot be live-migrated; a cluster restarts it from Windows Server 2025 on."""
    return named(target.cards) or "no GPU"


@capability("live-migration.wsl", on=SHARED)
def wsl_stays(target: Target) -> str | None:
    """WSL's VM cannot be live-migrated."""
    return f"on {target.path}"


@capability("live-migration.no-vm", on=NATIVE)
def metal_stays(target: Target) -> str | None:
    """Linux without a hypervisor cannot be live-migrated."""
    return f"on {target.path}"


@capability("live-migration.vgpu-version", on=("gpu-p",))
def vgpu_version_is_untold(target: Target) -> str | None:
    """Migration with a partition needs vGPU software 18 on both hosts, which the host does not report."""
    return "version 18 or newer of NVIDIA's vGPU software"


@capability("live-migration.old-processor", on=("gpu-p",))
def processor_cannot_track(target: Target) -> str | None:
    """The processor's IOMMU cannot track device writes, which migration needs."""
    old = sorted({p.state.name for p in target.facts.all(Processor) if OLD_PROCESSORS.search(p.state.name)})
    return ", ".join(old) if old else None


# --- Windows and its screen ----------------------------------------------------------------------------------------


@capability("windows-desktop.loses-card", on=("dda",))
def windows_loses_its_card(target: Target) -> str | None:
    """The GPU that would be assigned drives the Windows desktop."""
    shown = _showing(target)
    return named(shown) if shown else None


@capability("windows-desktop.shares-card", on=SHARED)
def windows_shares_its_card(target: Target) -> str | None:
    """The GPU that would serve drives the Windows desktop."""
    shown = _showing(target)
    return named(shown) if shown else None


@capability("windows-desktop.can-be-stopped", on=SHARED)
def windows_can_be_stopped(target: Target) -> str | None:
    """GPU memory that runs out inside WSL can crash Windows."""
    return f"on {target.path}"


@capability("windows-desktop.away", on=("dual-boot",))
def windows_is_away(target: Target) -> str | None:
    """Windows does not run while Linux does."""
    return f"on {target.path}"


@capability("windows-desktop.gone", on=("bare-metal", "linux"))
def windows_is_gone(target: Target) -> str | None:
    """The installation replaces Windows, or did so."""
    return f"on {target.path}"


@capability("display.only-one", on=("dda",))
def the_only_display_leaves(target: Target) -> str | None:
    """Every display device of the host would be assigned."""
    shown = _showing(target)
    if shown and len(shown) == len(target.facts.cards):
        return named(shown)
    return None


@capability("display.leaves", on=("dda",))
def a_display_leaves(target: Target) -> str | None:
    """A GPU that drives a display would be assigned; another display device remains."""
    shown = _showing(target)
    if shown and len(shown) < len(target.facts.cards):
        return named(shown)
    return None


@capability("display.compute-mode", on=SHARED)
def compute_mode_shows_nothing(target: Target) -> str | None:
    """GPUs in TCC or MCDM mode drive no display; in WSL, TCC has to be changed to MCDM."""
    cards = [card for card in gpus(target) if card.gpu.state.driver_model in WITHOUT_MONITOR]
    return named(cards) if cards else None


@capability("display.text-only", on=NATIVE)
def text_only(target: Target) -> str | None:
    """The server packages of NVIDIA's driver bring no desktop."""
    return f"on {target.path}"


# --- Updates -------------------------------------------------------------------------------------------------------


@capability("update-stability.host-restarts", on=("dda",))
def host_updates_lose_cards(target: Target) -> str | None:
    """Windows updates restart the host, and assignments were reported lost afterwards."""
    return f"on {target.path}"


@capability("update-stability.driver-mismatch", on=WHOLE_CARD)
def linux_updates_its_driver(target: Target) -> str | None:
    """Ubuntu updates NVIDIA's driver by itself while the old one is loaded."""
    return "libraries and kernel module of different versions"


@capability("update-stability.vgpu-pair", on=("gpu-p",))
def drivers_are_a_pair(target: Target) -> str | None:
    """The vGPU drivers of host and guest have to match."""
    return f"on {target.path}"


@capability("update-stability.wsl-updates", on=("wsl2",))
def wsl_is_updated_under_it(target: Target) -> str | None:
    """Microsoft Store and Windows Update update WSL, which ends every distro."""
    return f"on {target.path}"


@capability("update-stability.driver-store", on=SHARED)
def windows_driver_moves(target: Target) -> str | None:
    """Each Windows driver version has a new folder, and container specifications name its files."""
    return f"on {target.path}"


@capability("update-stability.preview", on=("wslc",))
def preview_may_change(target: Target) -> str | None:
    """wslc is a preview that each update may change."""
    return f"on {target.path}"


@capability("update-stability.windows-10", on=SHARED)
def windows_10_gets_none(target: Target) -> str | None:
    """Support for Windows 10 ended in October 2025."""
    os = target.facts.os
    if os.family in CLIENTS and os.build < WINDOWS_11:
        return os.named
    return None


@capability("update-stability.boot-order", on=("dual-boot",))
def boot_order_is_rewritten(target: Target) -> str | None:
    """Updates of Windows and of firmware change the boot order."""
    return f"on {target.path}"


def _showing(target: Target) -> list[Card]:
    """GPUs that would serve and that drive a display."""
    return [card for card in gpus(target) if shows(card)]
