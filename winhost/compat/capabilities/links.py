"""Rules of the links between GPUs, and of GPU memory shared between processes."""

from packaging.version import Version

from winhost.compat.capability import EVERYWHERE, NATIVE, SHARED, WHOLE_CARD, capability
from winhost.compat.gpu_cards import (
    by_bridge,
    gpus,
    hung,
    in_a_guest,
    linked,
    named,
    several,
    untold,
    without_peers,
)
from winhost.compat.rule import Finding, unsupported, unverified
from winhost.compat.target import Target
from winhost.hardware.gpus import NvLink

DRIVER_OF_LEGACY_IPC = Version("510")  # NVIDIA, CUDA on WSL User Guide

# --- Peer-to-peer --------------------------------------------------------------------------------------------------


@capability("gpu-p2p.one-card", on=EVERYWHERE)
def no_other_gpu(target: Target) -> str | None:
    """Peer-to-peer needs two GPUs that run CUDA."""
    if not several(target):
        return f"{len(gpus(target))} GPU(s) with CUDA"
    return None


@capability("gpu-p2p.behind-windows", on=SHARED)
def peers_are_hidden(target: Target) -> str | None:
    """The Windows driver exposes no peer-to-peer to Linux."""
    if several(target):
        return named(gpus(target))
    return None


@capability("gpu-p2p.refused", on=WHOLE_CARD)
def peers_are_refused(target: Target) -> str | None:
    """NVIDIA's driver refuses peer-to-peer to these GeForce GPUs."""
    refused = without_peers(several(target))
    if refused:
        return named(refused)
    return None


@capability("gpu-p2p.card-untold", on=NATIVE)
def peers_are_untold(target: Target) -> str | None:
    """No report shows whether these GPUs have peer-to-peer on Linux."""
    cards = untold(several(target))
    if cards:
        return named(cards)
    return None


@capability("gpu-p2p.bridge", on=NATIVE)
def peers_by_bridge(target: Target) -> str | None:
    """These GPUs have peer-to-peer over an NVLink bridge only, which Windows does not report."""
    cards = by_bridge(several(target))
    if cards:
        return named(cards)
    return None


@capability("gpu-p2p.hung", on=NATIVE)
def peers_hung(target: Target) -> str | None:
    """The driver offers these GPUs peer-to-peer, and transfers hung on one board."""
    cards = hung(several(target))
    if cards:
        return named(cards)
    return None


@capability("gpu-p2p.iommu", on=NATIVE)
def firmware_redirects(target: Target) -> str | None:
    """IOMMU and ACS redirect peer traffic over PCI Express; NVLink is not affected."""
    cards = several(target)
    if cards and not without_peers(cards) and not linked(cards, NvLink.BOARD):
        return named(cards)
    return None


@capability("gpu-p2p.assigned", on=("dda", "linux"))
def peers_in_a_guest(target: Target) -> str | None:
    """In a Hyper-V guest each GPU is on a virtual bus of its own; nobody has shown peer-to-peer there."""
    if several(target) and in_a_guest(target):
        return named(gpus(target))
    return None


@capability("gpu-p2p.partition", on=("gpu-p",))
def peers_of_partitions(target: Target) -> Finding | None:
    """vGPUs have peer-to-peer over NVLink only, so GPUs without NVLink have none."""
    cards = several(target)
    if not cards:
        return None
    say = unsupported if len(linked(cards, NvLink.NONE)) == len(cards) else unverified
    return say("gpu-p2p.partition", observed=named(cards))


# --- NVLink --------------------------------------------------------------------------------------------------------


@capability("nvlink.one-card", on=EVERYWHERE)
def nothing_to_link(target: Target) -> str | None:
    """NVLink needs two GPUs that run CUDA."""
    if not several(target):
        return f"{len(gpus(target))} GPU(s) with CUDA"
    return None


@capability("nvlink.behind-windows", on=SHARED)
def nvlink_is_hidden(target: Target) -> str | None:
    """The Windows driver exposes no NVLink to Linux."""
    if several(target):
        return f"on {target.path}"
    return None


@capability("nvlink.none", on=(*WHOLE_CARD, "gpu-p"))
def no_nvlink(target: Target) -> str | None:
    """The GPU's chip or board has no NVLink."""
    cards = linked(several(target), NvLink.NONE)
    if cards:
        return named(cards)
    return None


@capability("nvlink.bridge", on=NATIVE)
def bridge_is_not_seen(target: Target) -> str | None:
    """NVLink needs a bridge, which is bought separately and which Windows does not report."""
    cards = linked(several(target), NvLink.BRIDGE)
    if cards:
        return named(cards)
    return None


@capability("nvlink.card-untold", on=NATIVE)
def nvlink_is_untold(target: Target) -> str | None:
    """The GPU catalogue does not say whether the GPU has NVLink."""
    cards = linked(several(target), None)
    if cards:
        return named(cards)
    return None


@capability("nvlink.fabric-manager", on=WHOLE_CARD)
def switches_need_a_manager(target: Target) -> str | None:
    """HGX boards connect their GPUs by NVSwitches, which need NVIDIA's Fabric Manager."""
    cards = linked(several(target), NvLink.BOARD)
    if cards:
        return named(cards)
    return None


@capability("nvlink.assigned", on=("dda", "linux"))
def nvlink_in_a_guest(target: Target) -> str | None:
    """DDA assigns GPUs one by one, and NVSwitches not at all; nobody has shown NVLink there."""
    cards = several(target)
    if cards and not linked(cards, NvLink.NONE) and in_a_guest(target):
        return named(cards)
    return None


@capability("nvlink.partition", on=("gpu-p",))
def nvlink_of_partitions(target: Target) -> str | None:
    """vGPUs have NVLink only on hypervisors that NVIDIA lists, and Hyper-V is not shown."""
    cards = several(target)
    if cards and not linked(cards, NvLink.NONE):
        return named(cards)
    return None


# --- CUDA IPC ------------------------------------------------------------------------------------------------------


@capability("cuda-ipc.legacy-only", on=SHARED)
def legacy_ipc_only(target: Target) -> str | None:
    """Behind the Windows driver only the legacy CUDA IPC calls work."""
    return f"on {target.path}"


@capability("cuda-ipc.old-driver", on=SHARED)
def driver_without_ipc(target: Target) -> str | None:
    """CUDA IPC in WSL needs driver R510 or newer."""
    if target.driver < DRIVER_OF_LEGACY_IPC:
        return f"driver {target.driver}"
    return None


@capability("cuda-ipc.container-alone", on=("wslc",))
def containers_stay_apart(target: Target) -> str | None:
    """wslc cannot give two containers a common IPC namespace, which CUDA IPC needs."""
    return "wslc run has no --ipc"
