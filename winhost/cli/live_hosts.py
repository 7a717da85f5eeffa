"""Connect to hosts, and read their facts."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

from winhost.cli.plan.options import given_keys
from winhost.cli.watch import Watch
from winhost.connect.agent import Agent, Connector
from winhost.connect.own_key import check_public_keys
from winhost.connect.patience import Patience
from winhost.connect.ssh import SshConnector, SshWire
from winhost.connect.ways_in import (
    ADDRESS_RESOURCES,
    dual_boot_target,
    linux_targets,
    no_linux_key_error,
    open_first,
    running_guests,
)
from winhost.connect.windows import WindowsConnector
from winhost.connect.windows_with_linux import WindowsWithLinux
from winhost.connect.wire_errors import Unreachable
from winhost.engine.detect import Named
from winhost.engine.host_session import HostSession
from winhost.engine.keys import with_ssh_key
from winhost.engine.probe import probe
from winhost.engine.store import Store
from winhost.engine.two_systems import RememberedWindows, TwoSystems, runs_linux
from winhost.engine.verified import WINDOWS
from winhost.model.facts import Answer, Facts
from winhost.model.fleet import AnyHost, Host, LinuxHost
from winhost.model.plan import Plan
from winhost.model.served import Version
from winhost.paths.playbook import parse_request
from winhost.resources.linux import linux_scripts
from winhost.resources.registry import LINUX
from winhost.resources.shape import check_records
from winhost.resources.windows.parts import WindowsScripts

_SYSTEM = "OperatingSystem"


def connector_for(host: AnyHost) -> Connector:
    """Return the connector to a host and its Linux, with the agents that it sends there."""
    if isinstance(host, LinuxHost):
        return SshConnector(host, linux_scripts.session_text(), check_records)
    windows = WindowsConnector(host, WindowsScripts(), check_records)
    agent = linux_scripts.session_text()
    return TwoSystems(
        WindowsWithLinux(windows, with_ssh_key(host), tuple(LINUX), agent, _open_linux),
        with_ssh_key(host),
        RememberedWindows(Store(), host.name),
        agent,
        linux_scripts.boot_text(),
        _open_linux,
    )


def _open_linux(target: LinuxHost, program: str) -> Agent:
    return SshConnector(target, program, check_records).open()


def dual_boot_linux(host: Host) -> LinuxHost | None:
    """Return the Linux that is installed beside Windows, as Windows reported it last. Raises UsageError."""
    return dual_boot_target(with_ssh_key(host), RememberedWindows(Store(), host.name).answers())


def probe_live(host: AnyHost, parts: Sequence[str], image: str | None, watch: Watch) -> Facts:
    """Read a host, and measure what its Linux can do. parts: optional parts of the measurement. Raises as
    `linux_targets` and `probe` do.
    """
    facts = read_live(host, watch)
    program = linux_scripts.probe_text()
    with watch.activity(host.name, "probing"):
        if isinstance(host, LinuxHost):
            path, wire = "linux", SshWire(host, program)
        else:
            linux = dual_boot_linux(host) if runs_linux(facts) else None
            if linux is not None:
                path, targets = "dual-boot", [linux]
            else:
                path = "dda" if running_guests(facts.resources) else "wsl2"
                targets = [*linux_targets(with_ssh_key(host), facts.resources, "probe")]
            wire = open_first(host.name, targets, lambda target: SshWire(target, program))
        with closing(wire):
            return replace(facts, measured=(probe(wire, program, path, parts, image),))


def serving_wire(host: AnyHost, windows: "list[Version] | None" = None) -> SshWire:
    """Connect to the Linux of a host, with the program that manages what it serves. windows: a list that gets the
    version of Windows, which the Linux does not know. Raises as `linux_targets` does.
    """
    program = linux_scripts.serving_text()
    if isinstance(host, LinuxHost):
        return SshWire(host, program)
    try:
        agent = WindowsConnector(host, WindowsScripts(), check_records).open()
    except Unreachable:
        linux = dual_boot_linux(host)
        if linux is None:
            raise
        return SshWire(linux, program)
    with closing(agent):
        answers = agent.read(ADDRESS_RESOURCES if windows is None else (*ADDRESS_RESOURCES, _SYSTEM))
        if windows is not None:
            windows[:] = _windows_version(answers.get(_SYSTEM))
        targets = linux_targets(with_ssh_key(host), answers, "serve")
        return open_first(host.name, targets, lambda target: SshWire(target, program))


def _windows_version(answer: "Answer | None") -> list[Version]:
    """Return the build and revision of Windows as one version; an empty list if they could not be read."""
    (system,) = answer if isinstance(answer, tuple) and len(answer) == 1 else (None,)
    numbers = [system.state.get(each) for each in ("build", "revision")] if system else []
    is_known = numbers and all(isinstance(each, int) for each in numbers)
    return [Version(WINDOWS, ".".join(map(str, numbers)))] if is_known else []


def check_linux_key(host: AnyHost, plan: Plan) -> None:
    """Raise UsageError (NoLinuxKey, OtherKey) if a plan changes the host's Linux and this computer does not have the
    key for it, which winhost may have made on another computer.
    """
    resources = {*(step.resource for step in plan.steps), *(deferred.resource for deferred in plan.deferred)}
    if isinstance(host, Host) and resources & set(LINUX):
        ssh = with_ssh_key(host).ssh
        if ssh is None or ssh.key is None:
            raise no_linux_key_error(host.name)
        if host.ssh is None or host.ssh.key is None:
            public_keys = given_keys(parse_request(plan.request))
            if public_keys:
                check_public_keys(host.name, ssh, public_keys)


def read_live(host: AnyHost, watch: Watch, named: Named = ()) -> Facts:
    """Read a host and its Linux. named: resources that are listed only if they are named."""
    with watch.reading(host.name), closing(HostSession(connector_for(host), Patience(), report=watch)) as session:
        return session.facts(named)
