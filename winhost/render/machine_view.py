"""Collect the content of a machine's diagram: processors, memory, GPUs in their slots, and VMs with their GPUs."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from winhost.core.answers import MissingFact, if_known
from winhost.core.dataclass import dataclass
from winhost.hardware.gpus import find_model
from winhost.hardware.host_gpus import gpu_memory, gpu_name, is_compute_gpu, runs_cuda
from winhost.model.facts import Instance
from winhost.model.units import Bytes, about, mib, size
from winhost.render import linux_text
from winhost.render.fact_text import format_fact
from winhost.resources.host import Gpu, HostFacts
from winhost.resources.linux.read_only import LinuxGpu, LinuxSystem
from winhost.resources.windows.read_only import Processor, Vm
from winhost.resources.windows.vms import ASSIGNED, VmMemory, VmMmio, assigned_vm

T = TypeVar("T")

_ROOT = re.compile(r"PCIROOT\(([0-9A-F]+)\)", re.IGNORECASE)


@dataclass(frozen=True)
class GpuView:
    """A GPU. number: counts from 1 in the order of locations; memory: bytes, None if unknown."""

    number: int
    name: str
    location: str
    root: str
    memory: Bytes | None
    bars: str
    driver: str
    displays: str
    assignment: str
    vm: str | None
    serves: bool
    cuda: bool

    @property
    def memory_text(self) -> str:
        """The GPU's memory as text."""
        return "unknown" if self.memory is None else size(self.memory)


@dataclass(frozen=True)
class VmView:
    """A virtual machine and the numbers of the GPUs assigned to it."""

    id: str
    name: str
    state: str
    memory: str
    mmio: str
    gpus: tuple[int, ...]


@dataclass(frozen=True)
class MachineView:
    """The content of a diagram. gaps: sentences about what could not be read, each with the reason; details: for a
    Linux host, names and texts of further lines.
    """

    host: str
    system: str
    model: str
    memory: str
    sockets: tuple[tuple[str, str], ...]
    gpus: tuple[GpuView, ...]
    vms: tuple[VmView, ...]
    gaps: tuple[str, ...]
    details: tuple[tuple[str, str], ...] = ()
    is_linux: bool = False

    @property
    def gpu_counts(self) -> tuple[str, ...]:
        """The number of the machine's GPUs of each kind: `8x NVIDIA L40S`."""
        kinds = Counter(gpu.name for gpu in self.gpus if gpu.serves)
        return tuple(f"{count}x {name}" if count > 1 else name for name, count in kinds.items())


def make_machine_view(facts: HostFacts) -> MachineView:
    """Make the view of a Windows host. A missing fact is listed in the gaps, and raises nothing."""
    gaps: list[str] = []
    sockets = _read_or_note_gap("Processors", lambda: facts.all(Processor), gaps)
    gpus = tuple(
        _make_gpu_view(facts, gpu, number)
        for number, gpu in enumerate(_read_or_note_gap("GPUs", lambda: facts.gpus, gaps), 1)
    )
    vms = _read_or_note_gap("Virtual machines", lambda: facts.vms, gaps)
    return MachineView(
        host=facts.host,
        system=format_fact(lambda: facts.os.caption),
        model=format_fact(lambda: f"{facts.firmware.manufacturer} {facts.firmware.model}"),
        memory=format_fact(lambda: about(facts.memory.total)),
        sockets=tuple((each.key["socket"], format_fact(partial(_format_processor, each.state))) for each in sockets),
        gpus=gpus,
        vms=tuple(_make_vm_view(facts, vm, gpus) for vm in vms),
        gaps=tuple(gaps),
    )


def _read_or_note_gap(title: str, read: Callable[[], tuple[T, ...]], gaps: list[str]) -> tuple[T, ...]:
    try:
        return read()
    except MissingFact as gap:
        gaps.append(f"{title} {gap.missing}")
        return ()


def _format_processor(processor: Processor) -> str:
    return f"{processor.name}, {processor.cores} cores, {processor.threads} threads"


def _make_gpu_view(facts: HostFacts, gpu: Gpu, number: int) -> GpuView:
    state = gpu.pci.state
    assignment = format_fact(lambda: facts.assignment(gpu.pci))
    root = _ROOT.search(gpu.location)
    return GpuView(
        number=number,
        name=format_fact(lambda: gpu_name(gpu)),
        location=gpu.location,
        root=f"PCI root {root[1]}" if root else "PCI root unknown",
        memory=if_known(lambda: gpu_memory(gpu)),
        bars=format_fact(lambda: " + ".join(size(found.length) for found in state.ranges) or "not readable now"),
        driver=format_fact(lambda: state.driver_model or "no GPU driver"),
        displays=format_fact(lambda: state.displays),
        assignment="assigned" if assignment.startswith(ASSIGNED) else assignment,
        vm=assigned_vm(assignment),
        serves=is_compute_gpu(gpu),
        cuda=is_compute_gpu(gpu) and runs_cuda(gpu),
    )


def _make_vm_view(facts: HostFacts, vm: Instance[Vm], gpus: Sequence[GpuView]) -> VmView:
    def startup() -> str:
        memory = facts.find(VmMemory, vm.key)
        return size(memory.startup) if memory else "unknown"

    def windows() -> str:
        mmio = facts.find(VmMmio, vm.key)
        return f"{mib(mmio.low)} low, {mib(mmio.high)} high" if mmio else "unknown"

    return VmView(
        id=vm.key["vm"],
        name=format_fact(lambda: vm.state.name),
        state=format_fact(lambda: f"{vm.state.state}, generation {vm.state.generation}"),
        memory=format_fact(startup),
        mmio=format_fact(windows),
        gpus=tuple(gpu.number for gpu in gpus if gpu.vm == vm.key["vm"]),
    )


# --- Linux hosts ----------------------------------------------------------------------------------------------


def make_linux_view(host: HostFacts) -> MachineView:
    """Make the view of a Linux host. A missing fact is listed in the gaps, and raises nothing."""
    gaps: list[str] = []
    gpus = _read_or_note_gap("GPUs", lambda: host.all(LinuxGpu), gaps)

    def system() -> str:
        linux_system = host.the(LinuxSystem)
        return f"{linux_system.id.capitalize()} {linux_system.version or ''}".strip()

    def model() -> str:
        virtualization = host.the(LinuxSystem).virtualization
        return "metal" if virtualization == "none" else f"a VM ({virtualization})"

    return MachineView(
        host=host.host,
        system=format_fact(system),
        model=format_fact(model),
        memory=format_fact(lambda: about(host.the(LinuxSystem).memory)),
        sockets=(),
        gpus=tuple(_make_linux_gpu_view(gpu, number) for number, gpu in enumerate(gpus, 1)),
        vms=(),
        gaps=tuple(gaps),
        details=tuple((title, format_fact(partial(format_line, host))) for title, format_line in _LINUX_DETAILS),
        is_linux=True,
    )


_LINUX_DETAILS: Sequence[tuple[str, Callable[[HostFacts], str]]] = (
    ("System", linux_text.system_line),
    ("Machine", linux_text.machine_line),
    ("Driver", linux_text.driver_line),
    ("Containers", lambda host: linux_text.engines_line(host).removeprefix("Containers: ")),
    ("Disks", lambda host: _join_rows(linux_text.disk_rows(host), "{} {}")),
    ("Listening", lambda host: _join_rows(linux_text.port_rows(host), "{} port {}")),
)


def _join_rows(rows: list[tuple[str, ...]], form: str) -> str:
    return ", ".join(form.format(*row) for row in rows) or "none"


def _make_linux_gpu_view(gpu: Instance[LinuxGpu], number: int) -> GpuView:
    """Make the view of a Linux host's GPU. Until a driver reports its name and memory, they are from the catalogue."""
    state = gpu.state
    catalogued = find_model(if_known(lambda: state.device) or "")
    return GpuView(
        number=number,
        name=format_fact(lambda: state.name or (catalogued.name if catalogued else f"GPU {state.device}")),
        location=gpu.key["address"],
        root=format_fact(lambda: "PCI" if state.numa is None else f"NUMA node {state.numa}"),
        memory=if_known(lambda: state.vram) or (catalogued.memory if catalogued else None),
        bars=format_fact(lambda: " + ".join(size(bar.size) for bar in state.bars) or "none"),
        driver=format_fact(lambda: state.driver or "no driver"),
        displays="",
        assignment="",
        vm=None,
        serves=True,
        cuda=True,
    )
