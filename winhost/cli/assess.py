"""winhost assess: verdicts for every path."""

from collections.abc import Iterator
from pathlib import Path

from winhost.cli.envelope import show_results
from winhost.cli.evaluations import evaluate_each, requirements
from winhost.cli.outputs import Output
from winhost.cli.show_verdicts import possible, show_assessment, show_rows
from winhost.cli.snapshots import read_each, several, watched, worst
from winhost.compat.evaluation import Evaluation
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
    codes = [0]

    def results() -> Iterator[tuple[str, Evaluation | WinhostError]]:
        for read, found in watched(
            lambda watch: evaluate_each(read_each(words, facts_files, fleet_file, at_once, watch), asked, watch)
        ):
            refused = found is not None and not possible(found.fits, path)
            codes.append(worst([read.error], int(Exit.REFUSED) if refused else 0))
            yield read.host, found or read.failure

    if output.form:
        from winhost.compat.assess_answer import brief, full  # with the published shapes, which people do not see

        document_of = full if in_full else brief
        documents = (
            (host, document_of(found, asked) if isinstance(found, Evaluation) else found) for host, found in results()
        )
        show_results("assessment-full" if in_full else "assessment", output.form, documents, lambda _: None)
    elif output.shape == "name" or details or everything or not several(words, facts_files, fleet_file):
        whole = everything or output.wide
        show_results("assessment", output.shape, results(), lambda found: show_assessment(found, asked, whole))
    else:
        show_rows(results(), asked, output.wide)
    return max(codes)
