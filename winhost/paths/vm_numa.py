"""Where a new VM and its GPUs are among the NUMA nodes of a host: Hyper-V decides, and winhost says so."""

from collections.abc import Iterator
from contextlib import suppress

from winhost.core.answers import MissingFact
from winhost.model.reason import Severity
from winhost.model.refusal import Caution
from winhost.resources.host import HostFacts
from winhost.resources.windows.processor.resource import Processor


def numa_cautions(facts: HostFacts) -> Iterator[Caution]:
    """Of a host with several sockets; what is not known of it is no caution."""
    with suppress(MissingFact):
        sockets = len(facts.all(Processor))
        if sockets > 1:
            yield Caution(
                "vm.numa",
                Severity.UNVERIFIED,
                f"The host has {sockets} sockets. On which of them the VM runs, and whether its guest sees the NUMA "
                "node of its GPUs, Hyper-V decides; nobody has verified it.",
            )
