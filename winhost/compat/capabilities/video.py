"""Rules of video encoding and decoding on the GPU."""

from packaging.version import Version

from winhost.compat.capability import SHARED, WHOLE_CARD, capability
from winhost.compat.gpu_cards import gpus, listed, named
from winhost.compat.target import Target
from winhost.resources.host import Card

WHOLE_GPU = (*WHOLE_CARD, *SHARED)  # what a partition has of the engines, its profile decides

# NVIDIA/nvidia-container-toolkit: #1864 for what lacks in 1.19, commit f2426fc7 for what 1.20.0 brings.
TOOLKIT_REGRESSION = Version("1.19.0")
TOOLKIT_REPAIRED = Version("1.20.0")


@capability("video-codec.no-encoder", on=WHOLE_GPU)
def decodes_only(target: Target) -> str | None:
    """Data center GPUs such as A100 and H100 have NVDEC and no NVENC."""
    cards = [card for card in gpus(target) if _encodes(card) is False]
    if cards:
        return named(cards)
    return None


@capability("video-codec.card-untold", on=WHOLE_GPU)
def codec_is_untold(target: Target) -> str | None:
    """The GPU catalogue does not say whether the GPU has NVENC."""
    cards = [card for card in gpus(target) if _encodes(card) is None]
    if cards:
        return named(cards)
    return None


def _encodes(card: Card) -> bool | None:
    gpu = listed(card)
    return gpu.nvenc if gpu else None


@capability("video-codec.sessions", on=WHOLE_GPU)
def sessions_are_counted(target: Target) -> str | None:
    """On GeForce GPUs the driver limits the number of encoding sessions."""
    cards = [card for card in gpus(target) if _is_geforce(card)]
    if cards:
        return named(cards)
    return None


def _is_geforce(card: Card) -> bool:
    gpu = listed(card)
    return bool(gpu and "GeForce" in gpu.name)


@capability("video-codec.toolkit-regression", on=("wsl2",))
def toolkit_leaves_it_out(target: Target) -> str | None:
    """nvidia-container-toolkit 1.19 leaves the video libraries out of containers in WSL."""
    if TOOLKIT_REGRESSION <= target.toolkit < TOOLKIT_REPAIRED:
        return f"nvidia-container-toolkit {target.toolkit}"
    return None


@capability("video-codec.toolkit-older", on=("wsl2",))
def toolkit_before_that(target: Target) -> str | None:
    """For toolkits before 1.19, the source and a user report disagree about video in WSL."""
    if target.toolkit < TOOLKIT_REGRESSION:
        return f"nvidia-container-toolkit {target.toolkit}"
    return None
