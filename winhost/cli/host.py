"""winhost host: the hosts of fleet.yaml, without an editor."""

from collections.abc import Iterator
from pathlib import Path

import click

from winhost.cli.envelope import show_list, show_results
from winhost.cli.host_add import NewHost, add_host
from winhost.cli.host_check import CheckedHost, HostCheck, check_host, show_check
from winhost.cli.named_hosts import hosts_named
from winhost.cli.output import say, show_next
from winhost.cli.outputs import Output
from winhost.cli.running import begin
from winhost.cli.watch import watching
from winhost.core.dataclass import dataclass
from winhost.engine.many import stream
from winhost.model.errors import Exit, WinhostError, visible
from winhost.model.fleet import AnyHost, LinuxHost, find_fleet
from winhost.model.fleet_edit import write_removed
from winhost.model.fleetfile import load_fleet


@dataclass(frozen=True)
class ListedHost:
    """password: the reference to it, or to the key of a Linux."""

    host: str
    kind: str
    address: str
    user: str
    groups: tuple[str, ...]
    over: str = ""
    secret: str = ""


def add(
    account: str,
    name: str | None,
    groups: tuple[str, ...],
    linux: bool,
    port: int | None,
    password: str | None,
    ca: Path | None,
    key: Path | None,
    host_key: str | None,
    fleet_file: Path | None,
) -> int:
    if not linux and (key or host_key):
        raise click.UsageError("--key and --host-key are for a Linux: add --linux")
    if linux and ca:
        raise click.UsageError("--ca is for Windows: a Linux is known by its host key")
    added = add_host(NewHost(account, name, groups, linux, port, password, key, host_key, ca), fleet_file)
    show_next(("up", "--on", added.host.name), fleet_file)
    return 0


def list_(fleet_file: Path | None, output: Output) -> int:
    rows = [_listed(each) for each in load_fleet(find_fleet(fleet_file)).hosts]
    columns = ("host", "kind", "address", "user", "groups")
    none = "No hosts yet. winhost host add adds one."
    show_list("hosts", output.shape, rows, columns, ("over", "secret"), none)
    return 0


def _listed(host: AnyHost) -> ListedHost:
    if isinstance(host, LinuxHost):
        login = host.login
        over = f"SSH, port {login.port}" + (f", through {host.jump.address}" if host.jump else "")
        secret = str(login.key or login.password or ("ssh-agent" if login.agent else ""))
        return ListedHost(host.name, "linux", login.address, login.user, host.groups, over, secret)
    how = host.transport
    over = str(how.kind) if how.kind == "local" else f"{how.kind}, {'TLS' if how.tls else 'no TLS'}, port {how.port}"
    return ListedHost(
        host.name, "windows", host.address, how.user or "", host.groups, over, str(how.password) if how.password else ""
    )


def remove(name: str, yes: bool, fleet_file: Path | None) -> int:
    file = find_fleet(fleet_file)
    chosen = load_fleet(file).select([name])
    if len(chosen) > 1 or name.startswith("@"):
        raise click.BadParameter(f"{name!r} is more than one host: name each", param_hint="NAME")
    name = chosen[0].name
    begin(f"Take {name} out of {visible(str(file))}?", yes)
    write_removed(file, name)
    say(f"{name} is no more in {visible(str(file))}. Nothing was changed on it, and no key or password was deleted.")
    return 0


def test(hosts: tuple[str, ...], at_once: int, fleet_file: Path | None, output: Output) -> int:
    chosen = hosts_named(hosts or ("*",), fleet_file)
    codes = [0]

    def results() -> Iterator[tuple[str, CheckedHost | WinhostError]]:
        with watching(reads=True) as watch:
            watch.hosts = len(chosen)

            def one(host: AnyHost) -> HostCheck:
                with watch.reading(host.name):
                    return check_host(host)

            for done in watch.results(stream(chosen, one, at_once=at_once, leave=True)):
                found = done.error or done.given
                if isinstance(found, WinhostError):
                    codes.append(int(found.exit_code))
                    yield done.item.name, found
                    continue
                error = found.error
                codes.append(int(error.exit_code) if error else 0 if found.told.ready else int(Exit.FAILURE))
                yield done.item.name, found.told

    show_results("host-test", output.shape, results(), show_check)
    return max(codes)
