"""Where a new VM and its GPUs are among the NUMA nodes of a host: Hyper-V decides, and winhost says so."""

from collections.abc import Iterable, Iterator
from contextlib import suppress

from winhost.core.answers import MissingFact
from winhost.hardware.cards import card_label
from winhost.model.reason import Severity
from winhost.model.refusal import Caution
from winhost.model.units import Bytes, about, size
from winhost.resources.host import Card, HostFacts
from winhost.resources.windows.processor.resource import Processor


def numa_cautions(facts: HostFacts, cards: Iterable[Card], memory: Bytes) -> Iterator[Caution]:
    """Of a new VM with these GPUs and this memory on a host with several sockets; what is not known is no caution.

    No cmdlet of Hyper-V places a VM: Set-VMProcessor and Set-VMMemory only bound what it has of a node.
    """
    with suppress(MissingFact):
        sockets = len(facts.all(Processor))
        if sockets > 1:
            told = (f"The host has {sockets} sockets.", *_places(cards), *_spans(facts, sockets, memory))
            yield Caution(
                "vm.numa",
                Severity.UNVERIFIED,
                " ".join(told) + " On which of them the VM runs, and whether its guest sees the NUMA node of its GPUs, "
                "Hyper-V decides; nobody has verified it.",
            )


def _places(cards: Iterable[Card]) -> Iterator[str]:
    nodes = {card_label(card): node for card in cards if (node := _node(card)) is not None}
    for node in sorted({*nodes.values()}):
        yield f"On NUMA node {node}: {', '.join(label for label, at in nodes.items() if at == node)}."


def _node(card: Card) -> int | None:
    try:
        return card.gpu.state.numa
    except MissingFact:
        return None


def _spans(facts: HostFacts, sockets: int, memory: Bytes) -> Iterator[str]:
    """Each socket is taken to have as much memory as the others."""
    with suppress(MissingFact):
        share = facts.memory.total // sockets
        if memory > share:
            yield f"The {size(memory)} of the VM are more than the {about(share)} of one, so they span several."
