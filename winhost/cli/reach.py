"""From words on the command line to hosts and their facts."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from winhost.model.errors import UsageError, WinhostError, visible

if TYPE_CHECKING:
    from winhost.cli.watch import Watch
    from winhost.compat.answer import Judged, Requirements
    from winhost.connect.windows_with_linux import WindowsWithLinux
    from winhost.model.facts import Facts
    from winhost.model.fleet import Host
    from winhost.model.plan import Plan

T = TypeVar("T")


@dataclass(frozen=True)
class Read:
    """A host's facts, or why there are none."""

    host: str
    facts: "Facts | None" = None
    error: WinhostError | None = None

    @property
    def known(self) -> "Facts":
        """Raises the error where there are none."""
        if self.error is not None:
            raise self.error
        assert self.facts is not None
        return self.facts

    @property
    def failure(self) -> WinhostError:
        """Why there are none."""
        assert self.error is not None
        return self.error


def hosts_named(words: Sequence[str], fleet_file: Path | None) -> "list[Host]":
    """Those that are to be reached; warns of each whose certificate is not checked.

    Raises UsageError for no words, no fleet file, faults in it, or an unknown host.
    """
    from winhost.model.fleet import find_fleet
    from winhost.model.fleetfile import load_fleet

    if not words:
        raise _nothing_named(offline=False)
    hosts = load_fleet(find_fleet(fleet_file)).select(words)
    _warn_of_unverified(hosts)
    return hosts


def _nothing_named(*, offline: bool) -> UsageError:
    """offline: whether facts files would do as well."""
    hosts = "Name hosts of fleet.yaml, a pattern ('gpu-*') or a group ('@lab')"
    return UsageError(
        "NothingNamed",
        what="no host named, and no --facts file" if offline else "no host named",
        hint=f"{hosts}, or a facts file." if offline else f"{hosts}.",
    )


def _warn_of_unverified(hosts: "Iterable[Host]") -> None:
    """On every command, once for each host."""
    import click

    from winhost.cli.output import say
    from winhost.model.fleetfile import UNVERIFIED

    context = click.get_current_context(silent=True)
    warned: set[str] = context.meta.setdefault("winhost.unverified", set()) if context else set()
    for host in hosts:
        transport = host.transport
        if transport.tls and transport.verify is False and host.name not in warned:
            warned.add(host.name)
            where = f"{transport.verify_at} is {UNVERIFIED}"
            say(f"warning: the certificate of {host.name} is not checked: {where}", err=True)
            say("  Anyone on the network path can read and change what is sent, the logon included.", err=True)
            say("  Name its CA there instead: the path of a PEM file.", err=True)


def connector_for(host: "Host") -> "WindowsWithLinux":
    """How to reach it and its Linux, with the agents that go there."""
    from winhost.connect.ssh import SshConnector
    from winhost.connect.windows import WindowsConnector
    from winhost.connect.windows_with_linux import WindowsWithLinux
    from winhost.resources.linux import scripts as linux_scripts
    from winhost.resources.registry import LINUX
    from winhost.resources.shape import misfit
    from winhost.resources.windows import scripts

    windows_way = WindowsConnector(host, scripts.session_text(), misfit)
    return WindowsWithLinux(
        windows_way,
        host,
        tuple(LINUX),
        linux_scripts.session_text(),
        lambda target, program: SshConnector(target, program, misfit).open(),
    )


def check_reach(host: "Host", plan: "Plan") -> None:
    """Raises NoLinuxKey for a plan that goes on to the host's Linux, which is known to end before that."""
    from winhost.connect.windows_with_linux import NoLinuxKey
    from winhost.resources.registry import LINUX

    nouns = {*(step.noun for step in plan.steps), *(deferred.noun for deferred in plan.deferred)}
    if host.ssh is None and nouns & set(LINUX):
        raise NoLinuxKey(host.name)


def read_hosts(words: Sequence[str], fleet_file: Path | None, at_once: int, watch: "Watch") -> Iterator[Read]:
    """Facts of live hosts, several at a time, in the order of the words, one by one. Raises what `hosts_named` does."""
    hosts = hosts_named(words, fleet_file)
    watch.hosts += len(hosts)
    return _each_host(hosts, at_once, watch)


def _each_host(hosts: "Sequence[Host]", at_once: int, watch: "Watch") -> Iterator[Read]:
    from winhost.cli.foreign_errors import as_winhost_error
    from winhost.engine.many import stream

    for result in stream(hosts, lambda host: _read(host, watch), at_once=at_once, leave=True, ours=as_winhost_error):
        yield Read(result.work.name, result.value, result.error)


def watched(results: "Callable[[Watch], Iterable[T]]") -> Iterator[T]:
    """Results that are read and judged one by one, while whoever waits for them sees what is being done."""
    from winhost.cli.watch import watching

    with watching(reads=True) as watch:
        yield from watch.results(results(watch))


def read_each(
    words: Sequence[str], facts_files: Sequence[Path], fleet_file: Path | None, at_once: int, watch: "Watch"
) -> Iterator[Read]:
    """Facts from files first, then from hosts, one by one: nothing is kept of those before.

    Words are hosts, facts files and folders of them. A file that cannot be used is that reading's error. Raises, before
    anything is read, UsageError (NothingNamed) when there are neither, and what `hosts_named` and `files_of` raise.
    """
    hosts, files = _sorted(words, facts_files)
    watch.hosts += len(files)
    live = read_hosts(hosts, fleet_file, at_once, watch) if hosts else ()
    return chain((_read_file(file, watch) for file in files), live)


def several(words: Sequence[str], facts_files: Sequence[Path], fleet_file: Path | None) -> bool:
    """Whether more than one host is meant. Raises what `read_each` does."""
    hosts, files = _sorted(words, facts_files)
    return len(files) + (len(hosts_named(hosts, fleet_file)) if hosts else 0) > 1


def check_each_once(words: Sequence[str], facts_files: Sequence[Path], fleet_file: Path | None) -> None:
    """That no two of them are one host, where each gets a file of its name.

    Raises UsageError: SameHost, else as `read_each`.
    """
    from winhost.cli.named_files import check_hosts

    hosts, files = _sorted(words, facts_files)
    check_hosts(files, (host.name for host in hosts_named(hosts, fleet_file)) if hosts else ())


def any_host(words: Sequence[str], facts_files: Sequence[Path]) -> bool:
    """Whether a host is to be asked. Raises what `read_each` does."""
    return bool(_sorted(words, facts_files)[0])


def _sorted(words: Sequence[str], facts_files: Sequence[Path]) -> tuple[list[str], list[Path]]:
    """Hosts, and the facts files that are meant."""
    from winhost.cli.named_files import files_of, hosts_and_files
    from winhost.model.facts import Facts

    if not words and not facts_files:
        raise _nothing_named(offline=True)
    hosts, files = hosts_and_files(words, Facts)
    return hosts, [*files_of(facts_files, Facts), *files]


def _read_file(path: Path, watch: "Watch") -> Read:
    from winhost.resources.factsfile import read_facts

    try:
        with watch.reading(str(path)):
            facts = read_facts(path)
    except WinhostError as error:
        return Read(str(path), error=error)
    return Read(facts.host, facts)


def judge_each(reads: Iterable[Read], wish: "Requirements", watch: "Watch") -> "Iterator[tuple[Read, Judged | None]]":
    """Each reading with what is said of it, one by one; facts that cannot be judged are that reading's error."""
    from winhost.cli.foreign_errors import as_winhost_error
    from winhost.compat.answer import judge

    for read in reads:
        if read.facts is None:
            yield read, None
            continue
        try:
            with watch.at(read.host, "judging"):
                judged = judge(read.facts, wish)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this host's
            yield Read(read.host, error=as_winhost_error(error)), None
        else:
            yield read, judged


def read_one(word: str | None, facts_file: Path | None, fleet_file: Path | None) -> "Facts":
    """Facts of exactly one host. Raises UsageError (NothingNamed, SeveralNamed), and whatever reading it raises."""
    words = (word,) if word else ()
    if words and not facts_file and len(several := hosts_named(words, fleet_file)) > 1:
        raise _several_named(str(word), [host.name for host in several])
    if facts_file and word:
        raise _several_named(f"{word} and --facts {facts_file}", [word, str(facts_file)])
    (read,) = watched(lambda watch: read_each(words, (facts_file,) if facts_file else (), fleet_file, 1, watch))
    return read.known


def _several_named(words: str, found: Sequence[str]) -> UsageError:
    return UsageError(
        "SeveralNamed",
        what=f"this command takes one host, and {visible(words)} names {len(found)}",
        hint=f"Name one of: {', '.join(map(visible, found))}",
    )


def _read(host: "Host", watch: "Watch") -> "Facts":
    from contextlib import closing

    from winhost.connect.reboot import Patience
    from winhost.engine.host_session import HostSession

    with watch.reading(host.name), closing(HostSession(connector_for(host), Patience(), tell=watch)) as hands:
        return hands.facts()


def worst(errors: Iterable[WinhostError | None], otherwise: int = 0) -> int:
    """The exit code over several hosts: the highest."""
    return max([otherwise, *(int(error.exit_code) for error in errors if error)])
