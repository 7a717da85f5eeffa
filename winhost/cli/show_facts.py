"""Show facts of a host: the system, its GPUs, its VMs, and what could not be read."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

from winhost.cli.output import say
from winhost.cli.tables import table
from winhost.core.answers import MissingFact, RemoteFault, Unknown
from winhost.engine.detect import missing, not_yet
from winhost.model.facts import Facts, Instance
from winhost.model.units import about, mib
from winhost.render import linux_text, windows_text
from winhost.render.fact_text import format_fact, format_gap
from winhost.resources.host import HostFacts
from winhost.resources.registry import WINDOWS, titled
from winhost.resources.windows.distros import WslAccess, WslDistro, WslVm
from winhost.resources.windows.read_only import Vm
from winhost.resources.windows.vms import VmMmio

_VM_WIDE = ("id", "version", "checkpoints", "assigned")
NOT_EXPOSED = "Winhost.NotExposed"  # as the agent says of what no interface of Windows hands out
NOT_READ = "Winhost.NotRead"  # and of what it leaves out of a whole host: nobody misses it


def show_facts(facts: Facts, written_to: Path | None = None, wide: bool = False) -> None:
    """Show a paragraph and tables. wide: also BARs and locations of GPUs, what speaks against moving VMs, and disks."""
    host = HostFacts(facts)
    simulated = "  (simulated)" if facts.origin == "synthetic" else ""
    say(f"{facts.host}{simulated}", bold=True)
    if host.is_linux:
        _show_linux(host, wide)
    else:
        _show_windows(host, wide)
    _show_missing(facts, wide)
    if written_to is not None:
        say(f"  Written to {facts_path(written_to, facts.host)}")


def facts_path(path: Path, host: str) -> Path:
    """Return the file that a host's facts are written to. path: a folder, or a file that exists."""
    return path if path.is_file() else path / f"{host}.json"


def _show_linux(host: HostFacts, wide: bool) -> None:
    _show_lines(
        host,
        System=linux_text.system_line,
        Machine=linux_text.machine_line,
        Driver=linux_text.driver_line,
        Containers=linux_text.engines_line,
    )
    _show_gpus(linux_text, host, wide)
    _show_listed("Disks", linux_text.DISK_COLUMNS, lambda: linux_text.disk_rows(host))
    _show_listed("Listening", linux_text.PORT_COLUMNS, lambda: linux_text.port_rows(host))


def _show_windows(host: HostFacts, wide: bool) -> None:
    _show_lines(host, Windows=_system, Machine=_virtualization, Version=_details)
    _show_gpus(windows_text, host, wide)
    vms = ("VM", "state", "generation", "MMIO low / high", *(_VM_WIDE if wide else ()))
    _show_listed("VMs", vms, lambda: _vms(host, wide))
    _show_listed(
        "Distros",
        ("distro", "account", "state", "network", "SSH access"),
        lambda: [_distro(host, each) for each in host.all(WslDistro)],
    )
    if wide:
        _show_listed("Disks", windows_text.DISK_COLUMNS, lambda: windows_text.disk_rows(host))


def _show_lines(host: HostFacts, **lines: Callable[[HostFacts], str]) -> None:
    """Show each line, and name one that is not known: `unknown` alone would not tell which."""
    for name, line in lines.items():
        try:
            say(f"  {line(host)}")
        except MissingFact as gap:
            say(f"  {name}: {format_gap(gap)}")


def _show_gpus(text: ModuleType, host: HostFacts, wide: bool) -> None:
    columns = (*text.GPU_COLUMNS, *(text.GPU_COLUMNS_WIDE if wide else ()))
    _show_listed("GPUs", columns, lambda: [row[: len(columns)] for row in text.gpu_rows(host)])


def _system(host: HostFacts) -> str:
    return f"{host.os.named}: {host.os.family}"


def _virtualization(host: HostFacts) -> str:
    running = "hypervisor running" if host.firmware.hypervisor_present else "no hypervisor running"
    return f"{host.firmware.manufacturer} {host.firmware.model}, {about(host.memory.total)} memory, {running}"


def _details(host: HostFacts) -> str:
    version = f"{host.os.hostname}: {host.os.display_version or 'Windows'}, revision {host.os.revision}"
    return f"{version}, language {host.os.language}, firmware {host.firmware.bios_version}"


def _show_listed(what: str, columns: Sequence[str], rows: Callable[[], list[tuple[str, ...]]]) -> None:
    """Show a table, or why there is none. Shows nothing if there can be none yet."""
    try:
        if found := rows():
            table(columns, found)
    except MissingFact as gap:
        if isinstance(gap.missing, Unknown):
            say(f"  {what}: {gap}")


def _vms(host: HostFacts, wide: bool) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for vm in host.vms:
        mmio = host.of(VmMmio, vm.key)
        windows = "" if mmio is None else f"{mib(mmio.low)} / {mib(mmio.high)}"
        row = (vm.state.name, vm.state.state, str(vm.state.generation), windows)
        rows.append((*row, vm.key["vm"], *_vm_wide(vm.state)) if wide else row)
    return rows


def _vm_wide(vm: Vm) -> tuple[str, ...]:
    assigned = format_fact(lambda: ", ".join(vm.devices) or "none")
    return (format_fact(lambda: vm.version), format_fact(lambda: vm.checkpoints), assigned)


def _distro(host: HostFacts, distro: Instance[WslDistro]) -> tuple[str, ...]:
    vm, access = host.of(WslVm, {"account": distro.key["account"]}), host.of(WslAccess, distro.key)
    network = format_fact(lambda: (distro.state.running and vm and vm.mode) or "")
    ssh_access = format_fact(lambda: f"ssh, port {access.port}" if access and access.active else "")
    state = format_fact(lambda: "running" if distro.state.running else "stopped")
    return (distro.key["distro"], distro.key["account"], state, network, ssh_access)


def _for_lack_of_rights(facts: Facts) -> str:
    host = HostFacts(facts)
    if host.is_linux:
        return ""
    try:
        session = host.session
        return "" if session.administrator else f", because {session.user} is not an administrator there"
    except MissingFact:
        return ""


def _show_missing(facts: Facts, wide: bool) -> None:
    if absent := [titled(needed) for needed in not_yet(facts) if needed in WINDOWS]:
        them = ("them", "they are") if len(absent) > 1 else ("it", "it is")
        say(f"  Not set up yet: {', '.join(absent)}. What depends on {them[0]} can be read once {them[1]}.", hang=2)
    gaps = [gap for gap in dict.fromkeys(missing(facts)) if gap[1].code != NOT_READ]
    untold = [gap for gap in gaps if gap[1].code == NOT_EXPOSED]
    _show_gaps("Could not be read" + _for_lack_of_rights(facts), [gap for gap in gaps if gap not in untold])
    if wide:
        _show_gaps("Not exposed by Windows to any account", untold)


def _show_gaps(head: str, gaps: Sequence[tuple[str, RemoteFault]]) -> None:
    """Show each reason once, after all that it kept from being read."""
    if gaps:
        say(f"  {head}:")
    for why in dict.fromkeys(str(why) for _, why in gaps):
        say(f"    {', '.join(name for name, each in gaps if str(each) == why)}: {why}", hang=2)
