"""winhost host: edit and test the hosts of fleet.yaml."""

from pathlib import Path

import click

from winhost.cli.change.running import confirm_start
from winhost.cli.envelope import show_list, show_results
from winhost.cli.host.add import add_host
from winhost.cli.host.check import check_host, show_check
from winhost.cli.host.commands import NewHost
from winhost.cli.named_hosts import resolve_hosts
from winhost.cli.options import Output
from winhost.cli.output import say, show_next
from winhost.cli.watch import ask_each
from winhost.core.dataclass import dataclass
from winhost.model.errors import visible
from winhost.model.fleet import AnyHost, LinuxHost, load_fleet
from winhost.model.fleet_edit import write_without_host
from winhost.model.fleet_path import find_fleet


@dataclass(frozen=True)
class ListedHost:
    """A host of fleet.yaml. over: how it is reached; secret: the reference to its password, or to the key of a
    Linux.
    """

    host: str
    kind: str
    address: str
    user: str
    groups: tuple[str, ...]
    over: str = ""
    secret: str = ""


def add(new: NewHost, fleet_file: Path | None) -> int:
    if not new.linux and (new.key or new.host_key):
        raise click.UsageError("--key and --host-key are for a Linux: add --linux")
    if new.linux and new.ca:
        raise click.UsageError("--ca is for Windows: a Linux is known by its host key")
    show_next(("up", "--on", add_host(new, fleet_file).host.name), fleet_file)
    return 0


def list_(fleet_file: Path | None, output: Output) -> int:
    rows = [_listed_host(each) for each in load_fleet(find_fleet(fleet_file)).hosts]
    columns = ("host", "kind", "address", "user", "groups")
    none = "No hosts yet. winhost host add adds one."
    show_list("hosts", output.shape, rows, columns, ("over", "secret"), none)
    return 0


def _listed_host(host: AnyHost) -> ListedHost:
    if isinstance(host, LinuxHost):
        over = f"SSH, port {host.port}" + (f", through {host.jump.address}" if host.jump else "")
        secret = str(host.key or host.password or ("ssh-agent" if host.agent else ""))
        return ListedHost(host.name, "linux", host.address, host.user, host.groups, over, secret)
    transport = host.transport
    over = (
        str(transport.kind)
        if transport.kind == "local"
        else f"{transport.kind}, {'TLS' if transport.tls else 'no TLS'}, port {transport.port}"
    )
    return ListedHost(
        host.name,
        "windows",
        host.address,
        transport.user or "",
        host.groups,
        over,
        str(transport.password) if transport.password else "",
    )


def remove(name: str, yes: bool, fleet_file: Path | None) -> int:
    file = find_fleet(fleet_file)
    hosts = load_fleet(file).select([name])
    if len(hosts) > 1 or name.startswith("@"):
        raise click.BadParameter(f"{name!r} is more than one host: name each", param_hint="NAME")
    name = hosts[0].name
    confirm_start(f"Remove {name} from {visible(str(file))}?", yes)
    write_without_host(file, name)
    say(
        f"{name} was removed from {visible(str(file))}. Nothing was changed on the host, and no key or password was "
        "deleted."
    )
    return 0


def test(hosts: tuple[str, ...], at_once: int, fleet_file: Path | None, output: Output) -> int:
    selected = resolve_hosts(hosts or ("*",), fleet_file)
    checks = ((host.name, check) for host, check in ask_each(selected, check_host, lambda host: host.name, at_once))
    return show_results(
        "host-test",
        output.shape,
        checks,
        lambda check: show_check(check.checked),
        document=lambda check: check.checked,
        code=lambda check: int(check.error.exit_code if check.error else not check.checked.ready),
    )
