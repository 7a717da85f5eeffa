"""winhost report: write the verdicts of assess to an HTML file, to read, print and share."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from winhost.cli.envelope import print_document
from winhost.cli.look.assess import evaluate_each, make_requirements
from winhost.cli.look.commands import AssessmentOptions
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
from winhost.render.report import INDEX, ReadHost, UnreadHost, render_report, render_reports
from winhost.resources.host import HostFacts
from winhost.resources.registry import is_linux


@dataclass(frozen=True)
class Reported:
    """A host in a report. file: the file that contains it."""

    host: str
    file: str


def report(hosts: HostsAndFacts, force: bool, options: AssessmentOptions, brief: bool, output: Output) -> int:
    file = output.required_path
    refuse_other_kind(file, "report", force)
    requirements = make_requirements(options)
    results: list[Reported | ErrorResult] = []
    errors: list[WinhostError] = []

    def verdicts() -> Iterator[ReadHost | UnreadHost]:
        reads = with_progress(lambda watch: evaluate_each(read_snapshots(hosts, watch), requirements, watch))
        for snapshot, evaluation in reads:
            if error := snapshot.error:
                errors.append(error)
                results.append(error_result(error, snapshot.host))
                if not output.form:
                    show_error_text(error, snapshot.host)
                yield UnreadHost(snapshot.host, error)
            elif snapshot.facts and evaluation:
                results.append(Reported(snapshot.host, str(file)))
                yield _add_default_plan(snapshot.facts, evaluation)

    read_and_unread = _skip_if_all_unread(verdicts())
    if read_and_unread is not None:  # else an empty page could replace one with hosts
        if output.folder or file.is_dir():
            _write_all(
                file,
                render_reports(read_and_unread, requirements.needs, requirements.supposed, brief=brief),
                results,
                force,
            )
        else:
            write_file(
                file,
                render_report(read_and_unread, requirements.needs, requirements.supposed, brief=brief),
                "report",
                force,
            )
    _show(output, file, results, len(results) - len(errors))
    return highest_exit_code(errors)


def _show(output: Output, file: Path, results: list[Reported | ErrorResult], found: int) -> None:
    if output.form:
        print_document("report", results, output.form)
    elif found:
        say(f"Written to {file}: {found} host{'' if found == 1 else 's'}")


def _skip_if_all_unread(hosts: Iterator[ReadHost | UnreadHost]) -> Iterator[ReadHost | UnreadHost] | None:
    """Return the same hosts, or None if none of them could be read. Reads hosts only up to the first readable one."""
    unread = []
    for each in hosts:
        unread.append(each)
        if isinstance(each, ReadHost):
            return chain(unread, hosts)
    return None


def _add_default_plan(facts: Facts, evaluation: Evaluation) -> ReadHost:
    """Add the default plan to a Linux host, which has only one path."""
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
