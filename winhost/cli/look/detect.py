"""winhost detect and probe: read hosts, test the GPUs in their Linux, and show and save their facts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from winhost.cli.envelope import show_results
from winhost.cli.errors import os_errors
from winhost.cli.live_hosts import probe_live
from winhost.cli.named_hosts import resolve_hosts
from winhost.cli.options import Output
from winhost.cli.output import file_for_several_hosts, say, show_next, write_file
from winhost.cli.snapshots import Snapshot, ask_hosts, read_hosts, with_progress
from winhost.cli.tables import table
from winhost.cli.watch import Watch
from winhost.core.answers import MissingFact, RemoteFault, Unknown
from winhost.core.dataclass import dataclass
from winhost.engine.detect import unavailable_resources, unread_facts
from winhost.engine.store import Store
from winhost.engine.two_systems import RememberedWindows, runs_linux
from winhost.model.documents import write_document
from winhost.model.errors import WinhostError
from winhost.model.facts import Facts, Instance
from winhost.model.measured import (
    AllReduce,
    CopyRates,
    ManagedMemory,
    Measurement,
    PeerLink,
    ProbeAnswer,
    SuspendedProcess,
    VideoCodec,
)
from winhost.model.units import about, mib, size
from winhost.render import linux_text, windows_text
from winhost.render.fact_text import format_fact, format_gap
from winhost.resources.host import HostFacts
from winhost.resources.registry import WINDOWS, title_of
from winhost.resources.windows.distros import WslAccess, WslDistro, WslVm
from winhost.resources.windows.read_only import Vm
from winhost.resources.windows.vms import VmMmio


@dataclass(frozen=True)
class Detected:
    """The facts of a host, read by `detect` or imported from files by `facts import`."""

    host: str
    facts: Facts


def detect(hosts: tuple[str, ...], force: bool, fleet_file: Path | None, at_once: int, output: Output) -> int:
    _check_path(output.path, hosts, fleet_file)
    readable = list[str]()

    def results() -> Iterator[tuple[str, Detected | WinhostError]]:
        for snapshot in _write_each(lambda watch: read_hosts(hosts, fleet_file, at_once, watch), output.path, force):
            if not snapshot.error:
                readable.append(snapshot.host)
            yield snapshot.host, snapshot.error or Detected(snapshot.host, snapshot.required_facts)

    def show(detected: Detected) -> None:
        show_facts(detected.facts, output.path, output.wide)
        if runs_linux(detected.facts):
            last_read = RememberedWindows(Store(), detected.host).read_at or "time unknown"
            say(f"  Its Linux runs now. The facts of its Windows are from its last reading: {last_read}")

    code = show_results("detection", output.shape, results(), show)
    if readable and output.shape in ("table", "wide") and output.path is None:
        show_next(("assess", *(readable if code else hosts)), fleet_file)
    return code


def _check_path(path: Path | None, hosts: tuple[str, ...], fleet_file: Path | None) -> None:
    """Raise UsageError (OneFile) for several hosts and an existing file."""
    if path and path.is_file() and len(resolve_hosts(hosts, fleet_file)) > 1:
        raise file_for_several_hosts(path)


def _write_each(read: Callable[[Watch], Iterator[Snapshot]], path: Path | None, force: bool) -> Iterator[Snapshot]:
    """Write the facts of each snapshot into a folder, or over an existing facts file, and yield it. A snapshot whose
    facts could not be written gets the error.
    """
    for snapshot in with_progress(read):
        error = snapshot.error
        if path is not None and error is None:
            try:
                with os_errors():
                    if not path.is_file():
                        path.mkdir(parents=True, exist_ok=True)
                    write_file(facts_path(path, snapshot.host), write_document(snapshot.facts), "facts", force)
            except WinhostError as failure:
                error = failure
        yield replace(snapshot, error=error)


@dataclass(frozen=True)
class Probed:
    """The measurements on a host, and the facts that contain them."""

    host: str
    measured: Measurement
    facts: Facts


def probe(
    hosts: tuple[str, ...],
    also: tuple[str, ...],
    image: str | None,
    force: bool,
    fleet_file: Path | None,
    at_once: int,
    output: Output,
) -> int:
    if ("container" in also) != bool(image):
        raise click.UsageError("--also container and --image go together: name the image to start")
    _check_path(output.path, hosts, fleet_file)

    def read_snapshots(watch: Watch) -> Iterator[Snapshot]:
        each = partial(probe_live, parts=also, image=image, watch=watch)
        return ask_hosts(hosts, fleet_file, at_once, watch, each)

    def results() -> Iterator[tuple[str, Probed | WinhostError]]:
        for snapshot in _write_each(read_snapshots, output.path, force):
            yield (
                snapshot.host,
                snapshot.error or Probed(snapshot.host, snapshot.required_facts.measured[-1], snapshot.required_facts),
            )

    return show_results(
        "probe", output.shape, results(), lambda probed: show_measured(probed.host, probed.measured, output.path)
    )


def show_measured(host: str, measured: Measurement, folder: Path | None) -> None:
    """Show a heading, a table of the tests, and the path of the facts file."""
    answer = measured.found
    where = host if measured.target == host else f"{host}/{measured.target}"
    say(f"{where}: driver {answer.driver or 'unknown'}, kernel {answer.kernel}", bold=True)
    table(("part", "outcome", "seconds", "found"), _outcome_rows(answer))
    container_answer = answer.container.answer if answer.container else None
    if container_answer is not None:
        say("  In the container:")
        table(("part", "outcome", "seconds", "found"), _outcome_rows(container_answer))
    if folder is None:
        say("  Not saved: name a folder with -o.")
    else:
        path = facts_path(folder, host)
        say(f"  Written to {path}")
        show_next(("assess", str(path)))


def _outcome_rows(answer: ProbeAnswer) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for each in answer.outcomes:
        text = each.why or ""
        if not text and each.part in _RESULTS:
            field, show = _RESULTS[each.part]
            value = getattr(answer, field) if field else answer
            text = "" if value is None else show(value)
        rows.append((each.part, each.outcome, f"{each.seconds:.1f}", text))
    return rows


def _format_driver(answer: ProbeAnswer) -> str:
    gpus = ", ".join(f"{gpu.name} ({size(gpu.total)})" for gpu in answer.gpus)
    return f"CUDA {answer.cuda or 'unknown'}; {gpus}"


def _format_copies(copies: Sequence[CopyRates]) -> str:
    return "; ".join(
        f"GPU {each.gpu}: {_format_rate(each.pinned_up)} up and {_format_rate(each.pinned_down)} down pinned, "
        f"{_format_rate(each.pageable_up)} and {_format_rate(each.pageable_down)} pageable"
        for each in copies
    )


def _format_peers(peers: Sequence[PeerLink]) -> str:
    links = []
    for each in peers:
        link = f"{each.source} to {each.target}: "
        if not each.access:
            link += "no access"
        else:
            suffix = {True: "", False: ", and what arrives is wrong", None: ", not checked"}[each.intact]
            link += f"{_format_rate(each.rate)}{suffix}"
        links.append(link)
    return "; ".join(links)


def _format_rate(rate: float | None) -> str:
    return "?" if rate is None else f"{rate:.1f} GB/s"


def _format_works(works: bool | None) -> str:
    return {True: "works", False: "what was shared is wrong", None: ""}[works]


def _format_managed(managed: ManagedMemory) -> str:
    uses = {True: "used by GPU and processor at once", False: "wrong when used at once", None: "not tried at once"}
    at_once = uses[managed.concurrent] if managed.offered else "the driver offers no use by GPU and processor at once"
    return f"{_format_works(managed.works)}; {at_once}"


def _format_video(video: VideoCodec) -> str:
    decodes = {True: "H.264 is decoded", False: "H.264 is not decoded as it was encoded", None: "nothing was decoded"}
    encodes = {True: ", and encoded", False: ", and not encoded", None: ""}[video.encodes]
    return f"{decodes[video.decodes]}{encodes}" + (f"; {video.why}" if video.why else "")


def _format_checkpoint(done: SuspendedProcess) -> str:
    data = "intact" if done.intact else "not intact"
    return f"{size(done.bytes)} suspended in {done.suspended} s, resumed in {done.resumed} s, {data}"


def _format_nccl(nccl: AllReduce) -> str:
    rates = ", ".join(f"{size(each.bytes)} in {each.microseconds:.0f} µs" for each in nccl.rates)
    return f"{', '.join(nccl.transports) or 'no transport named'}: {rates}"


# For each test: the field of the answer with its result (empty: several fields), and the function that formats it.
_RESULTS: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "driver": ("", _format_driver),
    "shm": ("shm", lambda shm: f"{size(shm.free)} of {size(shm.total)} free"),
    "copies": ("copies", _format_copies),
    "peers": ("peers", _format_peers),
    "ipc-legacy": ("ipc_legacy", _format_works),
    "ipc-fd": ("ipc_fd", _format_works),
    "managed": ("managed", _format_managed),
    "video": ("video", _format_video),
    "pin-limit": ("pinned", lambda it: f"{size(it.bytes)} pinned" + (f", then {it.ended}" if it.ended else "")),
    "checkpoint": ("checkpoint", _format_checkpoint),
    "nccl": ("nccl", _format_nccl),
    "container": ("container", lambda inside: f"{inside.image} by {inside.runtime}"),
}


UNEXPOSED_CODE = "Winhost.NotExposed"  # no interface of Windows exposes this fact
UNREAD_CODE = "Winhost.NotRead"  # the agent does not read this fact when it reads a whole host


def show_facts(facts: Facts, written_to: Path | None = None, wide: bool = False) -> None:
    """Show a paragraph and tables. wide: also BARs and locations of GPUs, what prevents moving a VM, and disks."""
    host = HostFacts(facts)
    say(f"{facts.host}{'  (simulated)' if facts.origin == 'synthetic' else ''}", bold=True)
    if host.is_linux:
        _show_lines(
            host,
            System=linux_text.system_line,
            Machine=linux_text.machine_line,
            Driver=linux_text.driver_line,
            Containers=linux_text.engines_line,
        )
        _show_gpus(linux_text, host, wide)
        _show_table("Disks", linux_text.DISK_COLUMNS, lambda: linux_text.disk_rows(host))
        _show_table("Listening", linux_text.PORT_COLUMNS, lambda: linux_text.port_rows(host))
    else:
        _show_windows(host, wide)
    _show_missing(facts, host, wide)
    if written_to is not None:
        say(f"  Written to {facts_path(written_to, facts.host)}")


def facts_path(path: Path, host: str) -> Path:
    """Return the file that a host's facts are written to. path: a folder, or a file that exists."""
    return path if path.is_file() else path / f"{host}.json"


def _show_windows(host: HostFacts, wide: bool) -> None:
    def machine(host: HostFacts) -> str:
        running = "hypervisor running" if host.firmware.hypervisor_present else "no hypervisor running"
        return f"{host.firmware.manufacturer} {host.firmware.model}, {about(host.memory.total)} memory, {running}"

    def version(host: HostFacts) -> str:
        build = f"{host.os.hostname}: {host.os.display_version or 'Windows'}, revision {host.os.revision}"
        return f"{build}, language {host.os.language}, firmware {host.firmware.bios_version}"

    _show_lines(host, Windows=lambda host: f"{host.os.named}: {host.os.family}", Machine=machine, Version=version)
    _show_gpus(windows_text, host, wide)
    vm_columns = ("VM", "state", "generation", "MMIO low / high", "id", "version", "checkpoints", "assigned")
    shown_columns = vm_columns if wide else vm_columns[:4]
    _show_table("VMs", shown_columns, lambda: [_vm_row(host, each)[: len(shown_columns)] for each in host.vms])
    _show_table(
        "Distros",
        ("distro", "account", "state", "network", "SSH access"),
        lambda: [_distro_row(host, each) for each in host.all(WslDistro)],
    )
    if wide:
        _show_table("Disks", windows_text.DISK_COLUMNS, lambda: windows_text.disk_rows(host))


def _show_lines(host: HostFacts, **lines: Callable[[HostFacts], str]) -> None:
    """Show each line. A line that is unknown is shown with its name."""
    for name, line in lines.items():
        try:
            say(f"  {line(host)}")
        except MissingFact as gap:
            say(f"  {name}: {format_gap(gap)}")


def _show_gpus(text: ModuleType, host: HostFacts, wide: bool) -> None:
    columns = (*text.GPU_COLUMNS, *(text.GPU_COLUMNS_WIDE if wide else ()))
    _show_table("GPUs", columns, lambda: [row[: len(columns)] for row in text.gpu_rows(host)])


def _show_table(title: str, columns: Sequence[str], rows: Callable[[], list[tuple[str, ...]]]) -> None:
    """Show a table, or why its rows are unknown. Show nothing if they cannot exist yet."""
    try:
        if found := rows():
            table(columns, found)
    except MissingFact as gap:
        if isinstance(gap.missing, Unknown):
            say(f"  {title}: {gap}")


def _vm_row(host: HostFacts, vm: Instance[Vm]) -> tuple[str, ...]:
    mmio = host.find(VmMmio, vm.key)
    windows_sizes = "" if mmio is None else f"{mib(mmio.low)} / {mib(mmio.high)}"
    version, checkpoints = format_fact(lambda: vm.state.version), format_fact(lambda: vm.state.checkpoints)
    assigned = format_fact(lambda: ", ".join(vm.state.devices) or "none")
    state = (vm.state.name, vm.state.state, str(vm.state.generation), windows_sizes)
    return (*state, vm.key["vm"], version, checkpoints, assigned)


def _distro_row(host: HostFacts, distro: Instance[WslDistro]) -> tuple[str, ...]:
    vm, access = host.find(WslVm, {"account": distro.key["account"]}), host.find(WslAccess, distro.key)
    network = format_fact(lambda: (distro.state.running and vm and vm.mode) or "")
    ssh_access = format_fact(lambda: f"ssh, port {access.port}" if access and access.active else "")
    state = format_fact(lambda: "running" if distro.state.running else "stopped")
    return (distro.key["distro"], distro.key["account"], state, network, ssh_access)


def _show_missing(facts: Facts, host: HostFacts, wide: bool) -> None:
    if not_set_up := [title_of(needed) for needed in unavailable_resources(facts) if needed in WINDOWS]:
        pronoun, condition = ("them", "they are") if len(not_set_up) > 1 else ("it", "it is")
        say(
            f"  Not set up yet: {', '.join(not_set_up)}. Facts that depend on {pronoun} can be read once {condition}.",
            hang=2,
        )
    gaps = [gap for gap in dict.fromkeys(unread_facts(facts)) if gap[1].code != UNREAD_CODE]
    unexposed = [gap for gap in gaps if gap[1].code == UNEXPOSED_CODE]
    why = ""
    if not host.is_linux:
        with suppress(MissingFact):
            if not host.session.administrator:
                why = f", because {host.session.user} is not an administrator there"
    _show_gaps(f"Could not be read{why}", [gap for gap in gaps if gap not in unexposed])
    if wide:
        _show_gaps("Not exposed by Windows to any account", unexposed)


def _show_gaps(heading: str, gaps: Sequence[tuple[str, RemoteFault]]) -> None:
    """Show each reason once, after the names of all facts that could not be read because of it."""
    if gaps:
        say(f"  {heading}:")
    for why in dict.fromkeys(str(why) for _, why in gaps):
        say(f"    {', '.join(name for name, each in gaps if str(each) == why)}: {why}", hang=2)
