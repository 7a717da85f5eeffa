"""Rules of operation: Kubernetes, start on boot, live migration, the Windows desktop, displays, updates."""

import re

from packaging.version import Version

from winhost.compat.capability import EVERYWHERE, IN_A_VM, NATIVE, SHARED, WHOLE_CARD, capability
from winhost.compat.common import CLIENTS, WINDOWS_11
from winhost.compat.gpu_cards import gpus, named, several
from winhost.compat.rule import BLOCKS, NOTES, Finding, degraded, note, unsupported, unverified
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


@capability("kubernetes-per-gpu", on=EVERYWHERE, unknown=BLOCKS)
def nothing_to_schedule(target: Target) -> Finding | None:
    """NVIDIA's device plugin needs an NVIDIA GPU."""
    if not gpus(target):
        return unsupported("kubernetes-per-gpu.no-gpu", observed=named(target.cards) or "no GPU")
    return None


@capability("kubernetes-per-gpu", on=("wsl2",), unknown=BLOCKS)
def all_gpus_are_one(target: Target) -> Finding | None:
    """In WSL all GPUs are one device file, so Kubernetes sees one device."""
    if several(target):
        return unsupported("kubernetes-per-gpu.one-device", observed=named(gpus(target)))
    return None


@capability("kubernetes-per-gpu", on=("wsl2",), unknown=BLOCKS)
def one_gpu_is_one(target: Target) -> Finding | None:
    """In WSL the device plugin reports neither health nor memory of the GPU."""
    if len(gpus(target)) == 1:
        return degraded("kubernetes-per-gpu.unwatched", observed=named(gpus(target)))
    return None


@capability("kubernetes-per-gpu", on=("wsl2/nat",), unknown=BLOCKS)
def node_behind_nat(target: Target) -> Finding | None:
    """Nodes on other hosts cannot reach pods behind NAT."""
    return degraded("kubernetes-per-gpu.behind-nat", observed=f"on {target.variant}")


@capability("kubernetes-per-gpu", on=("wsl2/mirrored",), unknown=BLOCKS)
def node_is_windows(target: Target) -> Finding | None:
    """A mirrored node has the addresses and ports of Windows."""
    return degraded("kubernetes-per-gpu.mirrored", observed=f"on {target.variant}")


@capability("kubernetes-per-gpu", on=("wslc",), unknown=BLOCKS)
def containers_only(target: Target) -> Finding | None:
    """A Kubernetes node in a container needs privileges that wslc does not grant."""
    return unsupported("kubernetes-per-gpu.containers-only", observed="wslc run has no --privileged")


# --- Start on boot -------------------------------------------------------------------------------------------------


@capability("start-on-boot", on=IN_A_VM, unknown=NOTES)
def no_vm_starts(target: Target) -> Finding | None:
    """The automatic start action of every VM is Nothing."""
    actions = [action.state.start for action in target.facts.all(VmActions)]
    if actions and set(actions) == {"nothing"}:
        return degraded(
            "start-on-boot.vm-stays-off", observed=f"{len(actions)} VM(s), each with automatic start action Nothing"
        )
    return None


@capability("start-on-boot", on=("dda",), unknown=NOTES)
def assignment_goes_stale(target: Target) -> Finding | None:
    """One report: after a host restart a VM with four assigned GPUs did not start."""
    return note("start-on-boot.stale-assignment", observed=named(target.cards))


@capability("start-on-boot", on=("wsl2",), unknown=BLOCKS)
def started_by_a_task(target: Target) -> Finding | None:
    """No Windows service starts a WSL distro; a scheduled task has to."""
    return degraded("start-on-boot.by-task", observed=f"on {target.path}")


@capability("start-on-boot", on=("wsl2",), unknown=BLOCKS)
def wsl_needs_a_logon(target: Target) -> Finding | None:
    """WSL before 2.0 runs only with a user logged on."""
    wsl = target.facts.the(Wsl)
    if (wsl.present or wsl.version) and target.wsl < WSL_WITHOUT_LOGON:
        return unsupported("start-on-boot.old-wsl", observed=f"WSL {target.wsl}")
    return None


@capability("start-on-boot", on=("wsl2",), unknown=NOTES)
def stops_when_idle(target: Target) -> Finding | None:
    """WSL stops an idle distro; services under systemd do not count as activity."""
    return note("start-on-boot.stops-when-idle", observed=f"on {target.path}")


@capability("start-on-boot", on=("wslc",), unknown=BLOCKS)
def nothing_restarts_a_container(target: Target) -> Finding | None:
    """wslc has no restart policy, and whether it runs without a logon is not known."""
    return unverified("start-on-boot.no-restart-policy", observed="wslc run has no --restart")


@capability("start-on-boot", on=("dual-boot",), unknown=BLOCKS)
def firmware_chooses(target: Target) -> Finding | None:
    """The firmware's boot order decides which system starts; Windows stays first until Linux serves."""
    return degraded("start-on-boot.two-systems", observed=f"on {target.path}")


# --- Live migration ------------------------------------------------------------------------------------------------


@capability("live-migration", on=("dda",), unknown=BLOCKS)
def assigned_cards_stay(target: Target) -> Finding | None:
    """A VM with an assigned GPU cannot be live-migrated; a cluster restarts it from Windows Server 2025 on."""
    return unsupported("live-migration.assigned", observed=named(target.cards) or "no GPU")


@capability("live-migration", on=SHARED, unknown=BLOCKS)
def wsl_stays(target: Target) -> Finding | None:
    """WSL's VM cannot be live-migrated."""
    return unsupported("live-migration.wsl", observed=f"on {target.path}")


@capability("live-migration", on=NATIVE, unknown=BLOCKS)
def metal_stays(target: Target) -> Finding | None:
    """Linux without a hypervisor cannot be live-migrated."""
    return unsupported("live-migration.no-vm", observed=f"on {target.path}")


@capability("live-migration", on=("gpu-p",), unknown=BLOCKS)
def vgpu_version_is_untold(target: Target) -> Finding | None:
    """Migration with a partition needs vGPU software 18 on both hosts, which the host does not report."""
    return unverified("live-migration.vgpu-version", observed="version 18 or newer of NVIDIA's vGPU software")


@capability("live-migration", on=("gpu-p",), unknown=NOTES)
def processor_cannot_track(target: Target) -> Finding | None:
    """The processor's IOMMU cannot track device writes, which migration needs."""
    old = sorted({p.state.name for p in target.facts.all(Processor) if OLD_PROCESSORS.search(p.state.name)})
    return unsupported("live-migration.old-processor", observed=", ".join(old)) if old else None


# --- Windows and its screen ----------------------------------------------------------------------------------------


@capability("windows-desktop", on=("dda",), unknown=BLOCKS)
def windows_loses_its_card(target: Target) -> Finding | None:
    """The GPU that would be assigned drives the Windows desktop."""
    shown = _showing(target)
    return degraded("windows-desktop.loses-card", observed=named(shown)) if shown else None


@capability("windows-desktop", on=SHARED, unknown=BLOCKS)
def windows_shares_its_card(target: Target) -> Finding | None:
    """The GPU that would serve drives the Windows desktop."""
    shown = _showing(target)
    return degraded("windows-desktop.shares-card", observed=named(shown)) if shown else None


@capability("windows-desktop", on=SHARED, unknown=NOTES)
def windows_can_be_stopped(target: Target) -> Finding | None:
    """GPU memory that runs out inside WSL can crash Windows."""
    return note("windows-desktop.can-be-stopped", observed=f"on {target.path}")


@capability("windows-desktop", on=("dual-boot",), unknown=BLOCKS)
def windows_is_away(target: Target) -> Finding | None:
    """Windows does not run while Linux does."""
    return unsupported("windows-desktop.away", observed=f"on {target.path}")


@capability("windows-desktop", on=("bare-metal", "linux"), unknown=BLOCKS)
def windows_is_gone(target: Target) -> Finding | None:
    """The installation replaces Windows, or did so."""
    return unsupported("windows-desktop.gone", observed=f"on {target.path}")


@capability("display", on=("dda",), unknown=BLOCKS)
def the_only_display_leaves(target: Target) -> Finding | None:
    """Every display device of the host would be assigned."""
    shown = _showing(target)
    if shown and len(shown) == len(target.facts.cards):
        return unsupported("display.only-one", observed=named(shown))
    return None


@capability("display", on=("dda",), unknown=BLOCKS)
def a_display_leaves(target: Target) -> Finding | None:
    """A GPU that drives a display would be assigned; another display device remains."""
    shown = _showing(target)
    if shown and len(shown) < len(target.facts.cards):
        return degraded("display.leaves", observed=named(shown))
    return None


@capability("display", on=SHARED, unknown=NOTES)
def compute_mode_shows_nothing(target: Target) -> Finding | None:
    """GPUs in TCC or MCDM mode drive no display; in WSL, TCC has to be changed to MCDM."""
    cards = [card for card in gpus(target) if card.gpu.state.driver_model in WITHOUT_MONITOR]
    return note("display.compute-mode", observed=named(cards)) if cards else None


@capability("display", on=NATIVE, unknown=NOTES)
def text_only(target: Target) -> Finding | None:
    """The server packages of NVIDIA's driver bring no desktop."""
    return note("display.text-only", observed=f"on {target.path}")


# --- Updates -------------------------------------------------------------------------------------------------------


@capability("update-stability", on=("dda",), unknown=BLOCKS)
def host_updates_lose_cards(target: Target) -> Finding | None:
    """Windows updates restart the host, and assignments were reported lost afterwards."""
    return degraded("update-stability.host-restarts", observed=f"on {target.path}")


@capability("update-stability", on=WHOLE_CARD, unknown=BLOCKS)
def linux_updates_its_driver(target: Target) -> Finding | None:
    """Ubuntu updates NVIDIA's driver by itself while the old one is loaded."""
    return degraded("update-stability.driver-mismatch", observed="libraries and kernel module of different versions")


@capability("update-stability", on=("gpu-p",), unknown=BLOCKS)
def drivers_are_a_pair(target: Target) -> Finding | None:
    """The vGPU drivers of host and guest have to match."""
    return degraded("update-stability.vgpu-pair", observed=f"on {target.path}")


@capability("update-stability", on=("wsl2",), unknown=BLOCKS)
def wsl_is_updated_under_it(target: Target) -> Finding | None:
    """Microsoft Store and Windows Update update WSL, which ends every distro."""
    return degraded("update-stability.wsl-updates", observed=f"on {target.path}")


@capability("update-stability", on=SHARED, unknown=BLOCKS)
def windows_driver_moves(target: Target) -> Finding | None:
    """Each Windows driver version has a new folder, and container specifications name its files."""
    return degraded("update-stability.driver-store", observed=f"on {target.path}")


@capability("update-stability", on=("wslc",), unknown=BLOCKS)
def preview_may_change(target: Target) -> Finding | None:
    """wslc is a preview that each update may change."""
    return unverified("update-stability.preview", observed=f"on {target.path}")


@capability("update-stability", on=SHARED, unknown=BLOCKS)
def windows_10_gets_none(target: Target) -> Finding | None:
    """Support for Windows 10 ended in October 2025."""
    os = target.facts.os
    if os.family in CLIENTS and os.build < WINDOWS_11:
        return degraded("update-stability.windows-10", observed=os.named)
    return None


@capability("update-stability", on=("dual-boot",), unknown=BLOCKS)
def boot_order_is_rewritten(target: Target) -> Finding | None:
    """Updates of Windows and of firmware change the boot order."""
    return degraded("update-stability.boot-order", observed=f"on {target.path}")


def _showing(target: Target) -> list[Card]:
    """GPUs that would serve and that drive a display."""
    return [card for card in gpus(target) if shows(card)]
