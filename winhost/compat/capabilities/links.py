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
from winhost.compat.rule import BLOCKS, NOTES, Finding, degraded, note, unsupported, unverified
from winhost.compat.target import Target
from winhost.hardware.gpus import NvLink

DRIVER_OF_LEGACY_IPC = Version("510")  # NVIDIA, CUDA on WSL User Guide

# --- Peer-to-peer --------------------------------------------------------------------------------------------------


@capability("gpu-p2p", on=EVERYWHERE, unknown=BLOCKS)
def no_other_gpu(target: Target) -> Finding | None:
    """Peer-to-peer needs two GPUs that run CUDA."""
    if not several(target):
        return unsupported("gpu-p2p.one-card", observed=f"{len(gpus(target))} GPU(s) with CUDA")
    return None


@capability("gpu-p2p", on=SHARED, unknown=BLOCKS)
def peers_are_hidden(target: Target) -> Finding | None:
    """The Windows driver exposes no peer-to-peer to Linux."""
    if several(target):
        return unsupported("gpu-p2p.behind-windows", observed=named(gpus(target)))
    return None


@capability("gpu-p2p", on=WHOLE_CARD, unknown=BLOCKS)
def peers_are_refused(target: Target) -> Finding | None:
    """NVIDIA's driver refuses peer-to-peer to these GeForce GPUs."""
    refused = without_peers(several(target))
    if refused:
        return unsupported("gpu-p2p.refused", observed=named(refused))
    return None


@capability("gpu-p2p", on=NATIVE, unknown=BLOCKS)
def peers_are_untold(target: Target) -> Finding | None:
    """No report shows whether these GPUs have peer-to-peer on Linux."""
    cards = untold(several(target))
    if cards:
        return unverified("gpu-p2p.card-untold", observed=named(cards))
    return None


@capability("gpu-p2p", on=NATIVE, unknown=BLOCKS)
def peers_by_bridge(target: Target) -> Finding | None:
    """These GPUs have peer-to-peer over an NVLink bridge only, which Windows does not report."""
    cards = by_bridge(several(target))
    if cards:
        return unverified("gpu-p2p.bridge", observed=named(cards))
    return None


@capability("gpu-p2p", on=NATIVE, unknown=BLOCKS)
def peers_hung(target: Target) -> Finding | None:
    """The driver offers these GPUs peer-to-peer, and transfers hung on one board."""
    cards = hung(several(target))
    if cards:
        return unverified("gpu-p2p.hung", observed=named(cards))
    return None


@capability("gpu-p2p", on=NATIVE, unknown=NOTES)
def firmware_redirects(target: Target) -> Finding | None:
    """IOMMU and ACS redirect peer traffic over PCI Express; NVLink is not affected."""
    cards = several(target)
    if cards and not without_peers(cards) and not linked(cards, NvLink.BOARD):
        return note("gpu-p2p.iommu", observed=named(cards))
    return None


@capability("gpu-p2p", on=("dda", "linux"), unknown=BLOCKS)
def peers_in_a_guest(target: Target) -> Finding | None:
    """In a Hyper-V guest each GPU is on a virtual bus of its own; nobody has shown peer-to-peer there."""
    if several(target) and in_a_guest(target):
        return unverified("gpu-p2p.assigned", observed=named(gpus(target)))
    return None


@capability("gpu-p2p", on=("gpu-p",), unknown=BLOCKS)
def peers_of_partitions(target: Target) -> Finding | None:
    """vGPUs have peer-to-peer over NVLink only, so GPUs without NVLink have none."""
    cards = several(target)
    if not cards:
        return None
    say = unsupported if len(linked(cards, NvLink.NONE)) == len(cards) else unverified
    return say("gpu-p2p.partition", observed=named(cards))


# --- NVLink --------------------------------------------------------------------------------------------------------


@capability("nvlink", on=EVERYWHERE, unknown=BLOCKS)
def nothing_to_link(target: Target) -> Finding | None:
    """NVLink needs two GPUs that run CUDA."""
    if not several(target):
        return unsupported("nvlink.one-card", observed=f"{len(gpus(target))} GPU(s) with CUDA")
    return None


@capability("nvlink", on=SHARED, unknown=BLOCKS)
def nvlink_is_hidden(target: Target) -> Finding | None:
    """The Windows driver exposes no NVLink to Linux."""
    if several(target):
        return unsupported("nvlink.behind-windows", observed=f"on {target.path}")
    return None


@capability("nvlink", on=(*WHOLE_CARD, "gpu-p"), unknown=BLOCKS)
def no_nvlink(target: Target) -> Finding | None:
    """The GPU's chip or board has no NVLink."""
    cards = linked(several(target), NvLink.NONE)
    if cards:
        return unsupported("nvlink.none", observed=named(cards))
    return None


@capability("nvlink", on=NATIVE, unknown=BLOCKS)
def bridge_is_not_seen(target: Target) -> Finding | None:
    """NVLink needs a bridge, which is bought separately and which Windows does not report."""
    cards = linked(several(target), NvLink.BRIDGE)
    if cards:
        return unverified("nvlink.bridge", observed=named(cards))
    return None


@capability("nvlink", on=NATIVE, unknown=BLOCKS)
def nvlink_is_untold(target: Target) -> Finding | None:
    """The GPU catalogue does not say whether the GPU has NVLink."""
    cards = linked(several(target), None)
    if cards:
        return unverified("nvlink.card-untold", observed=named(cards))
    return None


@capability("nvlink", on=WHOLE_CARD, unknown=NOTES)
def switches_need_a_manager(target: Target) -> Finding | None:
    """HGX boards connect their GPUs by NVSwitches, which need NVIDIA's Fabric Manager."""
    cards = linked(several(target), NvLink.BOARD)
    if cards:
        return note("nvlink.fabric-manager", observed=named(cards))
    return None


@capability("nvlink", on=("dda", "linux"), unknown=BLOCKS)
def nvlink_in_a_guest(target: Target) -> Finding | None:
    """DDA assigns GPUs one by one, and NVSwitches not at all; nobody has shown NVLink there."""
    cards = several(target)
    if cards and not linked(cards, NvLink.NONE) and in_a_guest(target):
        return unverified("nvlink.assigned", observed=named(cards))
    return None


@capability("nvlink", on=("gpu-p",), unknown=BLOCKS)
def nvlink_of_partitions(target: Target) -> Finding | None:
    """vGPUs have NVLink only on hypervisors that NVIDIA lists, and Hyper-V is not shown."""
    cards = several(target)
    if cards and not linked(cards, NvLink.NONE):
        return unverified("nvlink.partition", observed=named(cards))
    return None


# --- CUDA IPC ------------------------------------------------------------------------------------------------------


@capability("cuda-ipc", on=SHARED, unknown=BLOCKS)
def legacy_ipc_only(target: Target) -> Finding | None:
    """Behind the Windows driver only the legacy CUDA IPC calls work."""
    return degraded("cuda-ipc.legacy-only", observed=f"on {target.path}")


@capability("cuda-ipc", on=SHARED, unknown=BLOCKS)
def driver_without_ipc(target: Target) -> Finding | None:
    """CUDA IPC in WSL needs driver R510 or newer."""
    if target.driver < DRIVER_OF_LEGACY_IPC:
        return unsupported("cuda-ipc.old-driver", observed=f"driver {target.driver}")
    return None


@capability("cuda-ipc", on=("wslc",), unknown=BLOCKS)
def containers_stay_apart(target: Target) -> Finding | None:
    """wslc cannot give two containers a common IPC namespace, which CUDA IPC needs."""
    return degraded("cuda-ipc.container-alone", observed="wslc run has no --ipc")
