"""A machine for its diagram: processors, memory, GPUs in their slots, and VMs with the GPUs assigned to them."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

from winhost.core.answers import MissingFact
from winhost.core.dataclass import dataclass
from winhost.hardware.host_gpus import gpu_name, memory_of, runs_cuda, serves
from winhost.model.facts import Instance
from winhost.model.units import Bytes, about, mib, size
from winhost.render.fact_text import format_fact
from winhost.resources.host import Gpu, HostFacts
from winhost.resources.windows.assignable_device import ASSIGNED, owner
from winhost.resources.windows.read_only import Processor, Vm
from winhost.resources.windows.vm_settings import VmMemory, VmMmio

T = TypeVar("T")

_ROOT = re.compile(r"PCIROOT\(([0-9A-F]+)\)", re.IGNORECASE)


@dataclass(frozen=True)
class ShownGpu:
    """A GPU. number: counts from 1 in the order of locations; memory in bytes, None where it is unknown."""

    number: int
    name: str
    location: str
    root: str
    memory: Bytes | None
    bars: str
    driver: str
    displays: str
    place: str
    vm: str | None
    serves: bool
    cuda: bool

    @property
    def holds(self) -> str:
        """Its memory, for people."""
        return "unknown" if self.memory is None else size(self.memory)


@dataclass(frozen=True)
class ShownVm:
    """A virtual machine and the numbers of the GPUs assigned to it."""

    id: str
    name: str
    state: str
    memory: str
    mmio: str
    gpus: tuple[int, ...]


@dataclass(frozen=True)
class MachinePicture:
    """The content of a diagram. gaps: what could not be read, each with the reason; said: what else there is, of a
    Linux of its own.
    """

    host: str
    system: str
    model: str
    memory: str
    sockets: tuple[tuple[str, str], ...]
    gpus: tuple[ShownGpu, ...]
    vms: tuple[ShownVm, ...]
    gaps: tuple[str, ...]
    said: tuple[tuple[str, str], ...] = ()
    is_linux: bool = False

    @property
    def counted(self) -> tuple[str, ...]:
        """Its GPUs by kind: `8x NVIDIA L40S`."""
        kinds = Counter(gpu.name for gpu in self.gpus if gpu.serves)
        return tuple(f"{count}x {name}" if count > 1 else name for name, count in kinds.items())


def machine(facts: HostFacts) -> MachinePicture:
    """The view of a host. What could not be read is listed in the gaps and raises nothing."""
    gaps: list[str] = []
    sockets = _listed("Processors", lambda: facts.all(Processor), gaps)
    gpus = tuple(_gpu(facts, gpu, number) for number, gpu in enumerate(_gpus(facts, gaps), 1))
    vms = _listed("Virtual machines", lambda: facts.vms, gaps)
    return MachinePicture(
        host=facts.host,
        system=format_fact(lambda: facts.os.caption),
        model=format_fact(lambda: f"{facts.firmware.manufacturer} {facts.firmware.model}"),
        memory=format_fact(lambda: about(facts.memory.total)),
        sockets=tuple((socket.key["socket"], _socket(socket)) for socket in sockets),
        gpus=gpus,
        vms=tuple(_vm(facts, vm, gpus) for vm in vms),
        gaps=tuple(gaps),
    )


def _listed(what: str, read: Callable[[], tuple[T, ...]], gaps: list[str]) -> tuple[T, ...]:
    try:
        return read()
    except MissingFact as gap:
        gaps.append(f"{what} {gap.missing}")
        return ()


def _gpus(facts: HostFacts, gaps: list[str]) -> tuple[Gpu, ...]:
    return _listed("GPUs", lambda: facts.gpus, gaps)


def _socket(socket: Instance[Processor]) -> str:
    return format_fact(lambda: f"{socket.state.name}, {socket.state.cores} cores, {socket.state.threads} threads")


def _gpu(facts: HostFacts, gpu: Gpu, number: int) -> ShownGpu:
    state = gpu.pci.state
    place = format_fact(lambda: facts.place(gpu.pci))
    root = _ROOT.search(gpu.location)
    return ShownGpu(
        number=number,
        name=format_fact(lambda: gpu_name(gpu)),
        location=gpu.location,
        root=f"PCI root {root[1]}" if root else "PCI root unknown",
        memory=_memory(gpu),
        bars=format_fact(lambda: " + ".join(size(found.length) for found in state.ranges) or "not readable now"),
        driver=format_fact(lambda: state.driver_model or "no GPU driver"),
        displays=format_fact(lambda: state.displays),
        place="assigned" if place.startswith(ASSIGNED) else place,
        vm=owner(place),
        serves=serves(gpu),
        cuda=serves(gpu) and runs_cuda(gpu),
    )


def _memory(gpu: Gpu) -> Bytes | None:
    try:
        return memory_of(gpu)
    except MissingFact:
        return None


def _vm(facts: HostFacts, vm: Instance[Vm], gpus: Sequence[ShownGpu]) -> ShownVm:
    return ShownVm(
        id=vm.key["vm"],
        name=format_fact(lambda: vm.state.name),
        state=format_fact(lambda: f"{vm.state.state}, generation {vm.state.generation}"),
        memory=format_fact(lambda: _startup(facts, vm)),
        mmio=format_fact(lambda: _windows(facts, vm)),
        gpus=tuple(gpu.number for gpu in gpus if gpu.vm == vm.key["vm"]),
    )


def _startup(facts: HostFacts, vm: Instance[Vm]) -> str:
    memory = facts.of(VmMemory, vm.key)
    return size(memory.startup) if memory else "unknown"


def _windows(facts: HostFacts, vm: Instance[Vm]) -> str:
    mmio = facts.of(VmMmio, vm.key)
    return f"{mib(mmio.low)} low, {mib(mmio.high)} high" if mmio else "unknown"
