"""The GPUs of a target as the catalogue knows them: what rules about GPUs ask of cards."""

from collections import Counter
from collections.abc import Iterable

from winhost.compat.target import Target
from winhost.hardware.cards import card_name
from winhost.hardware.gpus import Gpu, NvLink, P2p, known
from winhost.resources.host import Card

HUNG = "NVIDIA RTX PRO 6000"  # the driver offers them peers, and transfers hung


def gpus(target: Target) -> tuple[Card, ...]:
    """The cards that CUDA runs on."""
    return target.gpus


def several(target: Target) -> tuple[Card, ...]:
    """The cards that CUDA runs on where there is more than one, else none: nothing is to be said of links then."""
    found = gpus(target)
    return found if len(found) > 1 else ()


def listed(card: Card) -> Gpu | None:
    """What the catalogue knows of it."""
    return known(card.gpu.key["device"])


def named(cards: Iterable[Card]) -> str:
    """`2x NVIDIA L20, NVIDIA L4`."""
    counted = Counter(map(card_name, cards))
    return ", ".join(f"{count}x {name}" if count > 1 else name for name, count in sorted(counted.items()))


def without_peers(cards: Iterable[Card]) -> list[Card]:
    """Those that NVIDIA's driver refuses peers."""
    return [card for card, gpu in _listed(cards) if gpu and gpu.p2p is P2p.NONE]


def hung(cards: Iterable[Card]) -> list[Card]:
    """Those whose driver offers peers that hung."""
    return [card for card, gpu in _listed(cards) if gpu and gpu.name.startswith(HUNG)]


def by_bridge(cards: Iterable[Card]) -> list[Card]:
    """Those that have peers only where a bridge joins them, which the host does not tell."""
    return [card for card, gpu in _listed(cards) if gpu and gpu.p2p is P2p.NVLINK]


def untold(cards: Iterable[Card]) -> list[Card]:
    """Those that nobody has shown to have peers or to be refused them."""
    return [card for card, gpu in _listed(cards) if not gpu or gpu.p2p is None or _concluded(gpu)]


def _concluded(gpu: Gpu) -> bool:
    return gpu.p2p is P2p.ANY and gpu.sources["p2p"].kind == "inferred"


def linked(cards: Iterable[Card], by: NvLink | None) -> list[Card]:
    """Those that come by NVLink in this way; None: nobody knows how."""
    return [card for card, gpu in _listed(cards) if (gpu.nvlink if gpu else None) is by]


def _listed(cards: Iterable[Card]) -> list[tuple[Card, Gpu | None]]:
    return [(card, listed(card)) for card in cards]
