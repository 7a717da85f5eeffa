"""winhost assess: verdicts for every path."""

from collections.abc import Iterator
from pathlib import Path

from winhost.cli.envelope import show_results
from winhost.cli.evaluations import evaluate_each, requirements
from winhost.cli.next_command import after_assess
from winhost.cli.output import show_next
from winhost.cli.outputs import Output
from winhost.cli.show_verdicts import possible, show_assessment, show_rows
from winhost.cli.snapshots import read_each, several, watched, worst
from winhost.compat.evaluation import Evaluation, Requirements
from winhost.model.errors import Exit, WinhostError
from winhost.model.path import check_path


def assess(
    words: tuple[str, ...],
    facts_files: tuple[Path, ...],
    path: str | None,
    needed: tuple[str, ...],
    workload_file: Path | None,
    remedies: tuple[str, ...],
    assumed: tuple[str, ...],
    everything: bool,
    details: bool,
    in_full: bool,
    fleet_file: Path | None,
    at_once: int,
    output: Output,
) -> int:
    """Show which options work on a host, which do not, and why."""
    check_path(path)
    asked = requirements(needed, path, workload_file, remedies, assumed)
    many = several(words, facts_files, fleet_file)
    codes, seen = [0], list[tuple[str, Evaluation]]()

    def results() -> Iterator[tuple[str, Evaluation | WinhostError]]:
        for read, found in watched(
            lambda watch: evaluate_each(read_each(words, facts_files, fleet_file, at_once, watch), asked, watch)
        ):
            refused = found is not None and not possible(found.fits, path)
            codes.append(worst([read.error], int(Exit.REFUSED) if refused else 0))
            if found is not None and not (many and seen):
                seen.append((read.host, found))
            yield read.host, found or read.failure

    if output.form:
        from winhost.compat.assess_answer import brief, full  # with the published shapes, which people do not see

        document_of = full if in_full else brief
        documents = (
            (host, document_of(found, asked) if isinstance(found, Evaluation) else found) for host, found in results()
        )
        show_results("assessment-full" if in_full else "assessment", output.form, documents, lambda _: None)
    elif output.shape == "name" or details or everything or not many:
        whole = everything or output.wide
        show_results("assessment", output.shape, results(), lambda found: show_assessment(found, asked, whole))
    else:
        show_rows(results(), asked, output.wide)
    if seen and output.shape in ("table", "wide"):
        _show_next(*seen[0], asked, words, facts_files, workload_file, fleet_file, many, details or everything)
    return max(codes)


def _show_next(
    host: str,
    found: Evaluation,
    asked: Requirements,
    words: tuple[str, ...],
    facts_files: tuple[Path, ...],
    workload_file: Path | None,
    fleet_file: Path | None,
    many: bool,
    in_full: bool,
) -> None:
    """Show the next command for the first of the hosts, if that can be read by its name alone."""
    files = [word for file in facts_files for word in ("--facts", str(file))]
    by_name = not files and not any(Path(word).exists() for word in words)
    named = [host] if many and by_name else [*words, *files]
    if many and not in_full:
        show_next(
            ("assess", *named, *_asked_words(asked, workload_file), *([] if by_name else ["--details"])), fleet_file
        )
    elif (by_name or not many) and (command := after_assess(found, asked, named, by_name)):
        served = ("--workload", str(workload_file)) if command[0] == "plan" and workload_file else ()
        show_next((*command, *served), None if command[0] == "explain" else fleet_file)


def _asked_words(asked: Requirements, workload_file: Path | None) -> tuple[str, ...]:
    """The options that made these requirements."""
    options = {
        "--path": [asked.path] if asked.path else [],
        "--need": asked.asked,
        "--workload": [str(workload_file)] if workload_file else [],
        "--what-if": [remedy.id for remedy in asked.remedies],
        "--assume": [each.word for each in asked.assumed],
    }
    return tuple(word for option, values in options.items() for value in values for word in (option, value))
