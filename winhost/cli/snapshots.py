"""Read facts of the hosts and files that words on the command line name, one after the other."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from winhost.cli.errors import as_winhost_error
from winhost.cli.named_files import STDIN, check_hosts, files_of, hosts_and_files, is_there
from winhost.cli.options import HostsAndFacts
from winhost.cli.watch import Watch, watching
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
    """A host's facts, or the error instead of them. file: the file that they were read from."""

    host: str
    facts: Facts | None = None
    error: WinhostError | None = None
    file: Path | None = None

    @property
    def known(self) -> Facts:
        """The facts. Raises the error if there are none."""
        if self.error is not None:
            raise self.error
        assert self.facts is not None
        return self.facts

    @property
    def failure(self) -> WinhostError:
        """The error instead of facts."""
        assert self.error is not None
        return self.error


def read_hosts(
    words: Sequence[str], fleet_file: Path | None, at_once: int, watch: Watch, named: "Named" = ()
) -> Iterator[Snapshot]:
    """Read live hosts, several at a time, in the order of the words. Raises what `hosts_named` does."""
    from winhost.cli.live_hosts import read_live  # loads all that speaks over networks, which facts files must not

    return ask_hosts(words, fleet_file, at_once, watch, partial(read_live, watch=watch, named=named))


def ask_hosts(
    words: Sequence[str], fleet_file: Path | None, at_once: int, watch: Watch, ask: "Callable[[AnyHost], Facts]"
) -> Iterator[Snapshot]:
    """Ask hosts for facts, several at a time, in the order of the words. Raises what `hosts_named` does."""
    from winhost.engine.many import run_streaming  # only hosts need it

    hosts = _named(words, fleet_file)
    watch.hosts += len(hosts)
    results = run_streaming(hosts, ask, at_once=at_once, abandon_running=True, to_user_error=as_winhost_error)
    return (Snapshot(result.item.name, result.value, result.error) for result in results)


def _named(words: Sequence[str], fleet_file: Path | None) -> "list[AnyHost]":
    from winhost.cli.named_hosts import hosts_named  # loads the models of fleet.yaml, which facts files must not

    return hosts_named(words, fleet_file)


def watched(results: Callable[[Watch], Iterable[T]]) -> Iterator[T]:
    """Yield results one by one, and show on the screen what is being done."""
    with watching(reads=True) as watch:
        yield from watch.results(results(watch))


def read_each(asked: HostsAndFacts, watch: Watch, named: "Named" = ()) -> Iterator[Snapshot]:
    """Read files, then hosts, one by one, and keep nothing of earlier ones.

    named: resources that a live host is asked for even if it does not list them.

    Words are hosts, facts files and folders of them. A file that cannot be used is the error of its reading. Raises,
    before anything is read, UsageError (NothingNamed) if there are neither, and what `hosts_named` and `files_of`
    raise.
    """
    hosts, files = _sorted(asked)
    watch.hosts += len(files)
    with _or_no_facts(hosts):
        live = read_hosts(hosts, asked.fleet_file, asked.at_once, watch, named) if hosts else ()
    return chain((_read_file(file, watch) for file in files), live)


def several(asked: HostsAndFacts) -> bool:
    """Tell whether more than one host is meant. Raises what `read_each` does."""
    hosts, files = _sorted(asked)
    with _or_no_facts(hosts):
        return len(files) + (len(_named(hosts, asked.fleet_file)) if hosts else 0) > 1


@contextmanager
def _or_no_facts(words: Sequence[str]) -> Iterator[None]:
    """Say of a word that names no host, but an existing folder, that the folder has no facts."""
    try:
        yield
    except UsageError as error:
        if error.code not in ("NoFleet", "UnknownHost"):
            raise
        files_of((Path(word) for word in words if is_there(word, Path.is_dir)), Facts)
        raise


def check_each_once(asked: HostsAndFacts) -> None:
    """Check that no host is named twice. Raises UsageError: SameHost, else as `read_each`."""
    hosts, files = _sorted(asked)
    check_hosts(files, (host.name for host in _named(hosts, asked.fleet_file)) if hosts else ())


def any_host(asked: HostsAndFacts) -> bool:
    """Tell whether a host is to be asked. Raises what `read_each` does."""
    return bool(_sorted(asked)[0])


def _sorted(asked: HostsAndFacts) -> tuple[list[str], list[Path]]:
    """Return hosts, and the facts files that are meant."""
    if not asked.words and not asked.facts_files:
        from winhost.cli.named_hosts import nothing_named  # loads the models of fleet.yaml

        raise nothing_named(offline=True)
    if STDIN in (*asked.words, *map(str, asked.facts_files)):
        raise UsageError(
            "NoStandardInput",
            what="facts are not read from standard input",
            hint="Save them to a file and name that: PROGRAM > facts.json",
        )
    hosts, files = hosts_and_files(asked.words, Facts)
    return hosts, [*files_of(asked.facts_files, Facts), *files]


def _read_file(path: Path, watch: Watch) -> Snapshot:
    try:
        with watch.reading(str(path)):
            facts = read_facts(path)
    except WinhostError as error:
        return Snapshot(str(path), error=error)
    return Snapshot(facts.host, facts, file=path)


def worst(errors: Iterable[WinhostError | None], otherwise: int = 0) -> int:
    """Return the exit code over several hosts, which is the highest."""
    return max([otherwise, *(int(error.exit_code) for error in errors if error)])
