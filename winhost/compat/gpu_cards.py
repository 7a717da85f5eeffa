"""What the GPU catalogue knows of a target's GPUs."""

from collections.abc import Iterable

from winhost.compat.target import Target
from winhost.hardware.gpus import Gpu, NvLink, P2p, known
from winhost.resources.host import Card

HUNG = "NVIDIA RTX PRO 6000"  # the driver offers them peers, and transfers hung


def gpus(target: Target) -> tuple[Card, ...]:
    """The GPUs that CUDA runs on."""
    return target.gpus


def several(target: Target) -> tuple[Card, ...]:
    """The GPUs that CUDA runs on where there are at least two, else none: with one, links do not matter."""
    found = gpus(target)
    return found if len(found) > 1 else ()


def listed(card: Card) -> Gpu | None:
    """The GPU's entry in the catalogue, if any."""
    return known(card.gpu.key["device"])


def without_peers(cards: Iterable[Card]) -> list[Card]:
    """Those to which NVIDIA's driver refuses peer-to-peer."""
    return [card for card, gpu in _listed(cards) if gpu and gpu.p2p is P2p.NONE]


def hung(cards: Iterable[Card]) -> list[Card]:
    """Those whose driver offers peer-to-peer that was reported to hang."""
    return [card for card, gpu in _listed(cards) if gpu and gpu.name.startswith(HUNG)]


def by_bridge(cards: Iterable[Card]) -> list[Card]:
    """Those that have peer-to-peer only over an NVLink bridge, which Windows does not report."""
    return [card for card, gpu in _listed(cards) if gpu and gpu.p2p is P2p.NVLINK]


def untold(cards: Iterable[Card]) -> list[Card]:
    """Those for which nobody has shown whether they have peer-to-peer."""
    return [card for card, gpu in _listed(cards) if not gpu or gpu.p2p is None or _concluded(gpu)]


def _concluded(gpu: Gpu) -> bool:
    return gpu.p2p is P2p.ANY and gpu.sources["p2p"].kind == "inferred"


def linked(cards: Iterable[Card], by: NvLink | None) -> list[Card]:
    """Those with this kind of NVLink; None: those of which the catalogue does not know."""
    return [card for card, gpu in _listed(cards) if (gpu.nvlink if gpu else None) is by]


def _listed(cards: Iterable[Card]) -> list[tuple[Card, Gpu | None]]:
    return [(card, listed(card)) for card in cards]
