"""winhost report: what assess says, as a file to read, print and share."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from winhost.cli.envelope import print_document
from winhost.cli.look.assess import evaluate_each, requirements
from winhost.cli.look.commands import Wanted
from winhost.cli.options import HostsAndFacts, Output
from winhost.cli.output import describe_error, error_result, refuse_other_kind, say, show_error_text, write_file
from winhost.cli.plan.options import default_request
from winhost.cli.snapshots import highest_exit_code, read_snapshots, with_progress
from winhost.compat.evaluation import Evaluation
from winhost.core.dataclass import dataclass
from winhost.engine.planning import make_plan
from winhost.model.errors import ErrorResult, WinhostError
from winhost.model.facts import Facts
from winhost.model.path import PATHS_OF_LINUX
from winhost.render.report import INDEX, ReadHost, UnreadHost, reports
from winhost.render.report import report as render
from winhost.resources.host import HostFacts
from winhost.resources.registry import is_linux


@dataclass(frozen=True)
class Reported:
    """A host in a report. file: the file that has it."""

    host: str
    file: str


def report(hosts: HostsAndFacts, force: bool, wanted: Wanted, brief: bool, output: Output) -> int:
    file = output.required_path
    refuse_other_kind(file, "report", force)
    asked = requirements(wanted)
    results: list[Reported | ErrorResult] = []
    errors: list[WinhostError] = []

    def verdicts() -> Iterator[ReadHost | UnreadHost]:
        for read, evaluation in with_progress(lambda watch: evaluate_each(read_snapshots(hosts, watch), asked, watch)):
            if error := read.error:
                errors.append(error)
                results.append(error_result(error, read.host))
                if not output.form:
                    show_error_text(error, read.host)
                yield UnreadHost(read.host, error)
            elif read.facts and evaluation:
                results.append(Reported(read.host, str(file)))
                yield _with_plan(read.facts, evaluation)

    told = _from_first_read(verdicts())
    if told is not None:  # else no page is written: it would have no hosts, and may replace one that has some
        if output.folder or file.is_dir():
            _write_all(file, reports(told, asked.needs, asked.supposed, brief=brief), results, force)
        else:
            write_file(file, render(told, asked.needs, asked.supposed, brief=brief), "report", force)
    _show(output, file, results, len(results) - len(errors))
    return highest_exit_code(errors)


def _show(output: Output, file: Path, results: list[Reported | ErrorResult], found: int) -> None:
    if output.form:
        print_document("report", results, output.form)
    elif found:
        say(f"Written to {file}: {found} host{'' if found == 1 else 's'}")


def _from_first_read(hosts: Iterator[ReadHost | UnreadHost]) -> Iterator[ReadHost | UnreadHost] | None:
    """The same hosts, once one of them could be read; None if none could be."""
    unread = []
    for each in hosts:
        unread.append(each)
        if isinstance(each, ReadHost):
            return chain(unread, hosts)
    return None


def _with_plan(facts: Facts, evaluation: Evaluation) -> ReadHost:
    """Add the default plan for a Linux of its own, which has only one path."""
    if not is_linux(facts):
        return ReadHost(facts, evaluation)
    try:
        return ReadHost(facts, evaluation, make_plan(HostFacts(facts), default_request(PATHS_OF_LINUX[0])))
    except WinhostError as error:
        return ReadHost(facts, evaluation, refused=describe_error(error))


def _write_all(
    folder: Path, pages: Iterator[tuple[str, Iterator[str]]], results: list[Reported | ErrorResult], force: bool
) -> None:
    """Write a page as soon as its host is the last one in the results, and the index at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, pieces in pages:
        if name != INDEX:
            results[-1] = Reported(str(results[-1].host), str(folder / name))
        write_file(folder / name, pieces, "report", force)
