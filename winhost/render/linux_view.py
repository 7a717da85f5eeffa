"""A Linux of its own for its diagram: memory, and its GPUs on the PCI bus."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from winhost.core.answers import MissingFact
from winhost.hardware.gpus import known
from winhost.model.facts import Instance
from winhost.model.units import Bytes, about, size
from winhost.render import linux_text
from winhost.render.fact_text import format_fact
from winhost.render.machine_view import MachinePicture, ShownGpu
from winhost.resources.host import HostFacts
from winhost.resources.linux.read_only import LinuxGpu, LinuxSystem

T = TypeVar("T")

_SAID = (
    ("System", linux_text.system_line),
    ("Machine", linux_text.machine_line),
    ("Driver", linux_text.driver_line),
    ("Containers", lambda host: linux_text.engines_line(host).removeprefix("Containers: ")),
    ("Disks", lambda host: _listed(linux_text.disk_rows(host), "{} {}")),
    ("Listening", lambda host: _listed(linux_text.port_rows(host), "{} port {}")),
)


def linux_machine(host: HostFacts) -> MachinePicture:
    """The view of a host. What could not be read is listed in the gaps and raises nothing."""
    gaps: list[str] = []
    try:
        gpus = tuple(_gpu(gpu, number) for number, gpu in enumerate(host.all(LinuxGpu), 1))
    except MissingFact as gap:
        gpus = ()
        gaps.append(f"GPUs {gap.missing}")
    return MachinePicture(
        host=host.host,
        system=format_fact(lambda: _distribution(host)),
        model=format_fact(lambda: "metal" if host.the(LinuxSystem).virtualization == "none" else _virtual(host)),
        memory=format_fact(lambda: about(host.the(LinuxSystem).memory)),
        sockets=(),
        gpus=gpus,
        vms=(),
        gaps=tuple(gaps),
        said=tuple((what, format_fact(partial(tell, host))) for what, tell in _SAID),
        is_linux=True,
    )


def _distribution(host: HostFacts) -> str:
    system = host.the(LinuxSystem)
    return f"{system.id.capitalize()} {system.version or ''}".strip()


def _virtual(host: HostFacts) -> str:
    return f"a VM ({host.the(LinuxSystem).virtualization})"


def _listed(rows: list[tuple[str, ...]], form: str) -> str:
    return ", ".join(form.format(*row) for row in rows) or "none"


def _gpu(gpu: Instance[LinuxGpu], number: int) -> ShownGpu:
    state = gpu.state
    return ShownGpu(
        number=number,
        name=format_fact(lambda: state.name or _named(state.device)),
        location=gpu.key["address"],
        root=format_fact(lambda: "PCI" if state.numa is None else f"NUMA node {state.numa}"),
        memory=_or_none(lambda: state.vram) or _catalogued(state),
        bars=format_fact(lambda: " + ".join(size(bar.size) for bar in state.bars) or "none"),
        driver=format_fact(lambda: state.driver or "no driver"),
        displays="",
        place="",
        vm=None,
        serves=True,
        cuda=True,
    )


def _named(device: str | None) -> str:
    """The catalogue's value, as long as no driver tells."""
    gpu = known(device or "")
    return gpu.name if gpu else f"GPU {device}"


def _catalogued(gpu: LinuxGpu) -> Bytes | None:
    model = known(_or_none(lambda: gpu.device) or "")
    return model.memory if model else None


def _or_none(read: Callable[[], T | None]) -> T | None:
    try:
        return read()
    except MissingFact:
        return None
