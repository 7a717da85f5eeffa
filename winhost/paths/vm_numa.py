"""The NUMA nodes of a new VM and its GPUs: Hyper-V decides, and winhost says so."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from winhost.core.answers import MissingFact, if_known
from winhost.hardware.host_gpus import gpu_label
from winhost.model.facts import Instance
from winhost.model.reason import Caution, Severity
from winhost.model.units import Bytes, about, size
from winhost.resources.host import Gpu, HostFacts
from winhost.resources.windows.read_only import Processor


def numa_cautions(facts: HostFacts, gpus: Iterable[Gpu], memory: Bytes, cpus: int) -> Iterator[Caution]:
    """The cautions for a new VM with these GPUs and this size on a host with several sockets; unknown facts give none.

    No cmdlet of Hyper-V chooses a node for a VM: Set-VMProcessor and Set-VMMemory only bound what it takes of a node,
    and by default a node of the VM is as large as one of the host.
    """
    with suppress(MissingFact):
        sockets = facts.all(Processor)
        if len(sockets) > 1:
            told = [f"The host has {len(sockets)} sockets.", *_places(gpus)]
            told += [*_spans_memory(facts, len(sockets), memory), *_spans_processors(sockets, cpus)]
            yield Caution(
                "vm.numa",
                Severity.UNVERIFIED,
                " ".join(told) + " On which of them the VM runs, and whether its guest sees the NUMA node of its GPUs, "
                "Hyper-V decides; nobody has verified it.",
            )


def _places(gpus: Iterable[Gpu]) -> Iterator[str]:
    nodes = {gpu_label(gpu): node for gpu in gpus if (node := _node(gpu)) is not None}
    for node in sorted({*nodes.values()}):
        yield f"On NUMA node {node}: {', '.join(label for label, at in nodes.items() if at == node)}."


def _node(gpu: Gpu) -> int | None:
    return if_known(lambda: gpu.pci.state.numa)


def _spans_memory(facts: HostFacts, sockets: int, memory: Bytes) -> Iterator[str]:
    """Each socket is taken to have as much memory as the others."""
    with suppress(MissingFact):
        share = facts.memory.total // sockets
        if memory > share:
            yield f"The {size(memory)} of the VM are more than the {about(share)} of one, so they span several."


def _spans_processors(sockets: Sequence[Instance[Processor]], cpus: int) -> Iterator[str]:
    with suppress(MissingFact):
        most = max(socket.state.threads for socket in sockets)
        if cpus > most:
            yield f"Its {cpus} processors are more than the {most} of one, so they span several."
