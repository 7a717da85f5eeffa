"""Read the facts of the hosts and files that a command names, one after the other."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from winhost.cli.errors import as_winhost_error
from winhost.cli.named_files import STDIN, expand_files, path_exists, refuse_repeated_hosts, split_hosts_and_files
from winhost.cli.options import HostsAndFacts
from winhost.cli.watch import Watch, show_progress
from winhost.core.dataclass import dataclass
from winhost.model.errors import UsageError, WinhostError
from winhost.model.facts import Facts
from winhost.resources.factsfile import read_facts

if TYPE_CHECKING:
    from winhost.engine.detect import Named
    from winhost.model.fleet import AnyHost

T = TypeVar("T")


@dataclass(frozen=True)
class Snapshot:
    """The facts of a host, or the error of reading them. file: the file that they were read from, if any."""

    host: str
    facts: Facts | None = None
    error: WinhostError | None = None
    file: Path | None = None

    @property
    def required_facts(self) -> Facts:
        """The facts. Raises the error if they could not be read."""
        if self.error is not None:
            raise self.error
        assert self.facts is not None
        return self.facts

    @property
    def failure(self) -> WinhostError:
        """The error, for a snapshot without facts."""
        assert self.error is not None
        return self.error


def read_hosts(
    names: Sequence[str], fleet_file: Path | None, at_once: int, watch: Watch, named: "Named" = ()
) -> Iterator[Snapshot]:
    """Read live hosts, several at a time, and return their snapshots in the order of the names. Raises as
    `resolve_hosts` does.
    """
    from winhost.cli.live_hosts import read_live  # loads all that speaks over networks, which facts files must not

    return ask_hosts(names, fleet_file, at_once, watch, partial(read_live, watch=watch, named=named))


def ask_hosts(
    names: Sequence[str], fleet_file: Path | None, at_once: int, watch: Watch, ask: "Callable[[AnyHost], Facts]"
) -> Iterator[Snapshot]:
    """Ask hosts for facts, several at a time, and return their snapshots in the order of the names. Raises as
    `resolve_hosts` does.
    """
    from winhost.engine.many import run_streaming  # needed only for live hosts

    hosts = _resolve(names, fleet_file)
    watch.hosts += len(hosts)
    results = run_streaming(hosts, ask, at_once=at_once, abandon_running=True, to_user_error=as_winhost_error)
    return (Snapshot(result.item.name, result.value, result.error) for result in results)


def _resolve(names: Sequence[str], fleet_file: Path | None) -> "list[AnyHost]":
    from winhost.cli.named_hosts import resolve_hosts  # loads the models of fleet.yaml, which facts files must not

    return resolve_hosts(names, fleet_file)


def with_progress(results: Callable[[Watch], Iterable[T]]) -> Iterator[T]:
    """Yield results one by one, and show progress in the meantime. results: takes the watch that shows it."""
    with show_progress(read_only=True) as watch:
        yield from watch.results(results(watch))


def read_snapshots(named_hosts: HostsAndFacts, watch: Watch, named: "Named" = ()) -> Iterator[Snapshot]:
    """Read facts files, then live hosts, one by one, without keeping earlier ones in memory. A file that cannot be read
    becomes a snapshot with the error.

    named: resources that a live host lists only if they are named. Raises, before anything is read, UsageError
    (NothingNamed), and as `resolve_hosts` and `expand_files` do.
    """
    hosts, files = _split_sources(named_hosts)
    watch.hosts += len(files)
    with _explain_missing_facts(hosts):
        live = read_hosts(hosts, named_hosts.fleet_file, named_hosts.at_once, watch, named) if hosts else ()
    return chain((_read_file(file, watch) for file in files), live)


def names_several_hosts(named_hosts: HostsAndFacts) -> bool:
    """Tell whether the command names more than one host. Raises as `read_snapshots` does."""
    hosts, files = _split_sources(named_hosts)
    with _explain_missing_facts(hosts):
        return len(files) + (len(_resolve(hosts, named_hosts.fleet_file)) if hosts else 0) > 1


@contextmanager
def _explain_missing_facts(names: Sequence[str]) -> Iterator[None]:
    """Replace the error about an unknown host by one about a folder without facts, if such a folder exists."""
    try:
        yield
    except UsageError as error:
        if error.code not in ("NoFleet", "UnknownHost"):
            raise
        expand_files((Path(name) for name in names if path_exists(name, Path.is_dir)), Facts)
        raise


def refuse_repeated_sources(named_hosts: HostsAndFacts) -> None:
    """Raise UsageError (SameHost) if a host is named twice; raise as `read_snapshots` does otherwise."""
    hosts, files = _split_sources(named_hosts)
    refuse_repeated_hosts(files, (host.name for host in _resolve(hosts, named_hosts.fleet_file)) if hosts else ())


def names_live_host(named_hosts: HostsAndFacts) -> bool:
    """Tell whether the command names a live host. Raises as `read_snapshots` does."""
    return bool(_split_sources(named_hosts)[0])


def _split_sources(named_hosts: HostsAndFacts) -> tuple[list[str], list[Path]]:
    """Return the names of live hosts, and the facts files."""
    if not named_hosts.sources and not named_hosts.facts_files:
        from winhost.cli.named_hosts import no_host_named_error  # loads the models of fleet.yaml

        raise no_host_named_error(accepts_facts=True)
    if STDIN in (*named_hosts.sources, *map(str, named_hosts.facts_files)):
        raise UsageError(
            "NoStandardInput",
            what="facts are not read from standard input",
            hint="Save them to a file and name that: PROGRAM > facts.json",
        )
    hosts, files = split_hosts_and_files(named_hosts.sources, Facts)
    return hosts, [*expand_files(named_hosts.facts_files, Facts), *files]


def _read_file(path: Path, watch: Watch) -> Snapshot:
    try:
        with watch.reading(str(path)):
            facts = read_facts(path)
    except WinhostError as error:
        return Snapshot(str(path), error=error)
    return Snapshot(facts.host, facts, file=path)


def highest_exit_code(errors: Iterable[WinhostError | None], otherwise: int = 0) -> int:
    """Return the highest exit code of several hosts. otherwise: the exit code of hosts without an error."""
    return max([otherwise, *(int(error.exit_code) for error in errors if error)])
