"""Running it day after day: Kubernetes, restarts, moves, what stays of Windows and its screen, updates."""

import re

from packaging.version import Version

from winhost.compat.builds import WINDOWS_11
from winhost.compat.capabilities.gpu_cards import gpus, named, several
from winhost.compat.capability import EVERYWHERE, IN_A_VM, NATIVE, SHARED, WHOLE_CARD, capability
from winhost.compat.common import CLIENTS
from winhost.compat.rule import BLOCKS, NOTES, Finding, degraded, note, unsupported, unverified
from winhost.compat.target import Target
from winhost.hardware.cards import shows
from winhost.resources.host import Card
from winhost.resources.windows import Processor, VmActions, Wsl

WSL_WITHOUT_LOGON = Version("2.0.0")  # microsoft/WSL #9231: the MSI's wsl.exe runs in session 0 since
WITHOUT_MONITOR = ("TCC", "MCDM")

# Generations before Xeon Scalable 4 and EPYC 7002, by the digit that tells it. Microsoft, "GPU partitioning"
OLD_PROCESSORS = re.compile(r"Xeon(\(R\))? (E[357]-|(Platinum|Gold|Silver|Bronze) \d[123]\d\d)|EPYC 7\d\d1\b", re.I)

# --- Kubernetes ----------------------------------------------------------------------------------------------------


@capability("kubernetes-per-gpu", on=EVERYWHERE, unknown=BLOCKS)
def nothing_to_schedule(target: Target) -> Finding | None:
    """NVIDIA's device plugin finds NVIDIA's GPUs."""
    if not gpus(target):
        return unsupported("kubernetes-per-gpu.no-gpu", observed=named(target.cards) or "no GPU")
    return None


@capability("kubernetes-per-gpu", on=("wsl2",), unknown=BLOCKS)
def all_gpus_are_one(target: Target) -> Finding | None:
    """There is one device file for all."""
    if several(target):
        return unsupported("kubernetes-per-gpu.one-device", observed=named(gpus(target)))
    return None


@capability("kubernetes-per-gpu", on=("wsl2",), unknown=BLOCKS)
def one_gpu_is_one(target: Target) -> Finding | None:
    """The one device is the one GPU."""
    if len(gpus(target)) == 1:
        return degraded("kubernetes-per-gpu.unwatched", observed=named(gpus(target)))
    return None


@capability("kubernetes-per-gpu", on=("wsl2/nat",), unknown=BLOCKS)
def node_behind_nat(target: Target) -> Finding | None:
    """Other nodes cannot reach its pods."""
    return degraded("kubernetes-per-gpu.behind-nat", observed=f"on {target.way}")


@capability("kubernetes-per-gpu", on=("wsl2/mirrored",), unknown=BLOCKS)
def node_is_windows(target: Target) -> Finding | None:
    """By its address and ports."""
    return degraded("kubernetes-per-gpu.mirrored", observed=f"on {target.way}")


@capability("kubernetes-per-gpu", on=("wslc",), unknown=BLOCKS)
def containers_only(target: Target) -> Finding | None:
    """A node needs more of a container than it can give."""
    return unsupported("kubernetes-per-gpu.containers-only", observed="wslc run has no --privileged")


# --- Start on boot -------------------------------------------------------------------------------------------------


@capability("start-on-boot", on=IN_A_VM, unknown=NOTES)
def no_vm_starts(target: Target) -> Finding | None:
    """Each VM says for itself what it does when the host starts."""
    actions = [action.state.start for action in target.facts.all(VmActions)]
    if actions and set(actions) == {"nothing"}:
        return degraded("start-on-boot.vm-stays-off", observed=f"{len(actions)} VM(s), each with start action nothing")
    return None


@capability("start-on-boot", on=("dda",), unknown=NOTES)
def assignment_goes_stale(target: Target) -> Finding | None:
    """Told of four cards in one VM."""
    return note("start-on-boot.stale-assignment", observed=named(target.cards))


@capability("start-on-boot", on=("wsl2",), unknown=BLOCKS)
def started_by_a_task(target: Target) -> Finding | None:
    """WSL has no service that starts a distro."""
    return degraded("start-on-boot.by-task", observed=f"on {target.path}")


@capability("start-on-boot", on=("wsl2",), unknown=BLOCKS)
def wsl_needs_a_logon(target: Target) -> Finding | None:
    """What will be installed is newer."""
    wsl = target.facts.the(Wsl)
    if (wsl.present or wsl.version) and target.wsl < WSL_WITHOUT_LOGON:
        return unsupported("start-on-boot.old-wsl", observed=f"WSL {target.wsl}")
    return None


@capability("start-on-boot", on=("wsl2",), unknown=NOTES)
def stops_when_idle(target: Target) -> Finding | None:
    """What runs under systemd does not count."""
    return note("start-on-boot.stops-when-idle", observed=f"on {target.path}")


@capability("start-on-boot", on=("wslc",), unknown=BLOCKS)
def nothing_restarts_a_container(target: Target) -> Finding | None:
    """Nor is it known whether its session lives without a logon."""
    return unverified("start-on-boot.no-restart-policy", observed="wslc run has no --restart")


@capability("start-on-boot", on=("dual-boot",), unknown=BLOCKS)
def firmware_chooses(target: Target) -> Finding | None:
    """Windows stays first until Linux has proven itself."""
    return degraded("start-on-boot.two-systems", observed=f"on {target.path}")


# --- Live migration ------------------------------------------------------------------------------------------------


@capability("live-migration", on=("dda",), unknown=BLOCKS)
def assigned_cards_stay(target: Target) -> Finding | None:
    """In a cluster the VM starts anew on another node, from Server 2025 on."""
    return unsupported("live-migration.assigned", observed=named(target.cards) or "no GPU")


@capability("live-migration", on=SHARED, unknown=BLOCKS)
def wsl_stays(target: Target) -> Finding | None:
    """Its VM is not Hyper-V's to move."""
    return unsupported("live-migration.wsl", observed=f"on {target.path}")


@capability("live-migration", on=NATIVE, unknown=BLOCKS)
def metal_stays(target: Target) -> Finding | None:
    """There is nothing below it that could move it."""
    return unsupported("live-migration.no-vm", observed=f"on {target.path}")


@capability("live-migration", on=("gpu-p",), unknown=BLOCKS)
def vgpu_version_is_untold(target: Target) -> Finding | None:
    """On both hosts."""
    return unverified("live-migration.vgpu-version", observed="version 18 or newer of NVIDIA's vGPU software")


@capability("live-migration", on=("gpu-p",), unknown=NOTES)
def processor_cannot_track(target: Target) -> Finding | None:
    """Which memory a device wrote to has to be known while it is copied."""
    old = sorted({p.state.name for p in target.facts.all(Processor) if OLD_PROCESSORS.search(p.state.name)})
    return unsupported("live-migration.old-processor", observed=", ".join(old)) if old else None


# --- Windows and its screen ----------------------------------------------------------------------------------------


@capability("windows-desktop", on=("dda",), unknown=BLOCKS)
def windows_loses_its_card(target: Target) -> Finding | None:
    """The one that draws its desktop."""
    shown = _showing(target)
    return degraded("windows-desktop.loses-card", observed=named(shown)) if shown else None


@capability("windows-desktop", on=SHARED, unknown=BLOCKS)
def windows_shares_its_card(target: Target) -> Finding | None:
    """The one that draws its desktop."""
    shown = _showing(target)
    return degraded("windows-desktop.shares-card", observed=named(shown)) if shown else None


@capability("windows-desktop", on=SHARED, unknown=NOTES)
def windows_can_be_stopped(target: Target) -> Finding | None:
    """By what runs inside."""
    return note("windows-desktop.can-be-stopped", observed=f"on {target.path}")


@capability("windows-desktop", on=("dual-boot",), unknown=BLOCKS)
def windows_is_away(target: Target) -> Finding | None:
    """One at a time."""
    return unsupported("windows-desktop.away", observed=f"on {target.path}")


@capability("windows-desktop", on=("bare-metal",), unknown=BLOCKS)
def windows_is_gone(target: Target) -> Finding | None:
    """For good."""
    return unsupported("windows-desktop.gone", observed=f"on {target.path}")


@capability("display", on=("dda",), unknown=BLOCKS)
def the_only_display_leaves(target: Target) -> Finding | None:
    """Nothing else could show anything."""
    shown = _showing(target)
    if shown and len(shown) == len(target.facts.cards):
        return unsupported("display.only-one", observed=named(shown))
    return None


@capability("display", on=("dda",), unknown=BLOCKS)
def a_display_leaves(target: Target) -> Finding | None:
    """Another display device stays, whether or not somebody looks at it."""
    shown = _showing(target)
    if shown and len(shown) < len(target.facts.cards):
        return degraded("display.leaves", observed=named(shown))
    return None


@capability("display", on=SHARED, unknown=NOTES)
def compute_mode_shows_nothing(target: Target) -> Finding | None:
    """TCC has to become MCDM before the card serves there, and shows no more then."""
    cards = [card for card in gpus(target) if card.gpu.state.driver_model in WITHOUT_MONITOR]
    return note("display.compute-mode", observed=named(cards)) if cards else None


@capability("display", on=NATIVE, unknown=NOTES)
def text_only(target: Target) -> Finding | None:
    """The server packages of the driver draw nothing."""
    return note("display.text-only", observed=f"on {target.path}")


# --- Updates -------------------------------------------------------------------------------------------------------


@capability("update-stability", on=("dda",), unknown=BLOCKS)
def host_updates_lose_cards(target: Target) -> Finding | None:
    """They restart the host."""
    return degraded("update-stability.host-restarts", observed=f"on {target.path}")


@capability("update-stability", on=WHOLE_CARD, unknown=BLOCKS)
def linux_updates_its_driver(target: Target) -> Finding | None:
    """Ubuntu does so by itself, while the old one is loaded."""
    return degraded("update-stability.driver-mismatch", observed="libraries and kernel module of two versions")


@capability("update-stability", on=("gpu-p",), unknown=BLOCKS)
def drivers_are_a_pair(target: Target) -> Finding | None:
    """The host's and the guest's."""
    return degraded("update-stability.vgpu-pair", observed=f"on {target.path}")


@capability("update-stability", on=("wsl2",), unknown=BLOCKS)
def wsl_is_updated_under_it(target: Target) -> Finding | None:
    """By the Store, and by Windows Update."""
    return degraded("update-stability.wsl-updates", observed=f"on {target.path}")


@capability("update-stability", on=SHARED, unknown=BLOCKS)
def windows_driver_moves(target: Target) -> Finding | None:
    """Each version has a folder of its own, which containers are told of once."""
    return degraded("update-stability.driver-store", observed=f"on {target.path}")


@capability("update-stability", on=("wslc",), unknown=BLOCKS)
def preview_may_change(target: Target) -> Finding | None:
    """Or go."""
    return unverified("update-stability.preview", observed=f"on {target.path}")


@capability("update-stability", on=SHARED, unknown=BLOCKS)
def windows_10_gets_none(target: Target) -> Finding | None:
    """Since October 2025."""
    os = target.facts.os
    if os.family in CLIENTS and os.build < WINDOWS_11:
        return degraded("update-stability.windows-10", observed=os.named)
    return None


@capability("update-stability", on=("dual-boot",), unknown=BLOCKS)
def boot_order_is_rewritten(target: Target) -> Finding | None:
    """By updates of Windows and of firmware."""
    return degraded("update-stability.boot-order", observed=f"on {target.path}")


def _showing(target: Target) -> list[Card]:
    """Cards that would serve, and that somebody may be looking at."""
    return [card for card in gpus(target) if shows(card)]
