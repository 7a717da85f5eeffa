"""Facts of the hosts and files that words on the command line name, one snapshot after the other."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TypeVar

import click

from winhost.cli.foreign_errors import as_winhost_error
from winhost.cli.named_files import check_hosts, files_of, hosts_and_files
from winhost.cli.named_hosts import hosts_named, nothing_named
from winhost.cli.watch import Watch, watching
from winhost.compat.evaluation import Evaluation, Requirements, evaluate
from winhost.compat.needs import check, wanted
from winhost.compat.remedy import named
from winhost.compat.stated import Statement, parse
from winhost.core.dataclass import dataclass
from winhost.engine.detect import Named
from winhost.engine.many import stream
from winhost.model.errors import WinhostError
from winhost.model.facts import Facts
from winhost.model.fleet import AnyHost
from winhost.model.workloadfile import load_workload
from winhost.resources.factsfile import read_facts

T = TypeVar("T")


@dataclass(frozen=True)
class Snapshot:
    """A host's facts, or why there are none."""

    host: str
    facts: Facts | None = None
    error: WinhostError | None = None

    @property
    def known(self) -> Facts:
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


def read_hosts(
    words: Sequence[str], fleet_file: Path | None, at_once: int, watch: Watch, named: Named = ()
) -> Iterator[Snapshot]:
    """Facts of live hosts, several at a time, in the order of the words, one by one. Raises what `hosts_named` does."""
    hosts = hosts_named(words, fleet_file)
    watch.hosts += len(hosts)
    return _each_host(hosts, at_once, watch, named)


def _each_host(hosts: Sequence[AnyHost], at_once: int, watch: Watch, named: Named) -> Iterator[Snapshot]:
    from winhost.cli.live_hosts import read_live  # with all that speaks over networks, which facts files do without

    read = partial(read_live, watch=watch, named=named)
    for result in stream(hosts, read, at_once=at_once, leave=True, ours=as_winhost_error):
        yield Snapshot(result.item.name, result.value, result.error)


def watched(results: Callable[[Watch], Iterable[T]]) -> Iterator[T]:
    """Results that are read and evaluated one by one, while whoever waits for them sees what is being done."""
    with watching(reads=True) as watch:
        yield from watch.results(results(watch))


def read_each(
    words: Sequence[str],
    facts_files: Sequence[Path],
    fleet_file: Path | None,
    at_once: int,
    watch: Watch,
    named: Named = (),
) -> Iterator[Snapshot]:
    """Facts from files first, then from hosts, one by one: nothing is kept of those before.

    named: what a live host is asked for even where it does not list it.

    Words are hosts, facts files and folders of them. A file that cannot be used is that reading's error. Raises, before
    anything is read, UsageError (NothingNamed) when there are neither, and what `hosts_named` and `files_of` raise.
    """
    hosts, files = _sorted(words, facts_files)
    watch.hosts += len(files)
    live = read_hosts(hosts, fleet_file, at_once, watch, named) if hosts else ()
    return chain((_read_file(file, watch) for file in files), live)


def several(words: Sequence[str], facts_files: Sequence[Path], fleet_file: Path | None) -> bool:
    """Whether more than one host is meant. Raises what `read_each` does."""
    hosts, files = _sorted(words, facts_files)
    return len(files) + (len(hosts_named(hosts, fleet_file)) if hosts else 0) > 1


def check_each_once(words: Sequence[str], facts_files: Sequence[Path], fleet_file: Path | None) -> None:
    """That no two of them are one host, where each gets a file of its name.

    Raises UsageError: SameHost, else as `read_each`.
    """
    hosts, files = _sorted(words, facts_files)
    check_hosts(files, (host.name for host in hosts_named(hosts, fleet_file)) if hosts else ())


def any_host(words: Sequence[str], facts_files: Sequence[Path]) -> bool:
    """Whether a host is to be asked. Raises what `read_each` does."""
    return bool(_sorted(words, facts_files)[0])


def _sorted(words: Sequence[str], facts_files: Sequence[Path]) -> tuple[list[str], list[Path]]:
    """Hosts, and the facts files that are meant."""
    if not words and not facts_files:
        raise nothing_named(offline=True)
    hosts, files = hosts_and_files(words, Facts)
    return hosts, [*files_of(facts_files, Facts), *files]


def _read_file(path: Path, watch: Watch) -> Snapshot:
    try:
        with watch.reading(str(path)):
            facts = read_facts(path)
    except WinhostError as error:
        return Snapshot(str(path), error=error)
    return Snapshot(facts.host, facts)


def evaluate_each(
    reads: Iterable[Snapshot], request: Requirements, watch: Watch
) -> Iterator[tuple[Snapshot, Evaluation | None]]:
    """Each reading with what is said of it, one by one; facts that cannot be evaluated are that reading's error."""
    for read in reads:
        if read.facts is None:
            yield read, None
            continue
        try:
            with watch.at(read.host, "evaluating"):
                evaluation = evaluate(read.facts, request)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this host's
            yield Snapshot(read.host, error=as_winhost_error(error)), None
        else:
            yield read, evaluation


def worst(errors: Iterable[WinhostError | None], otherwise: int = 0) -> int:
    """The exit code over several hosts: the highest."""
    return max([otherwise, *(int(error.exit_code) for error in errors if error)])


def requirements(
    needed: tuple[str, ...],
    path: str | None,
    workload_file: Path | None,
    remedies: tuple[str, ...],
    assumed: tuple[str, ...],
) -> Requirements:
    """What hosts are evaluated for. Raises as reading the workload does, and for unknown words."""
    check(needed)
    workload = load_workload(workload_file) if workload_file else None
    needs = wanted(needed, workload)
    return Requirements(needs, path, workload, tuple(map(named, remedies)), statements(assumed), needed)


def statements(texts: Iterable[str]) -> tuple[Statement, ...]:
    """What `--assume` states. Raises BadParameter."""
    try:
        return tuple(statement for text in texts for statement in parse(text))
    except ValueError as wrong:
        raise click.BadParameter(str(wrong), param_hint="'--assume'") from None
