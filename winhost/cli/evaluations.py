"""Evaluations of snapshots, for the requirements that options state."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from winhost.cli.errors import as_winhost_error
from winhost.cli.snapshots import Snapshot
from winhost.cli.watch import Watch
from winhost.compat.evaluation import Evaluation, Requirements, evaluate
from winhost.compat.needs import check, wanted
from winhost.compat.remedy import named
from winhost.compat.stated import Statement, parse


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


def requirements(
    needed: tuple[str, ...],
    path: str | None,
    workload_file: Path | None,
    remedies: tuple[str, ...],
    assumed: tuple[str, ...],
) -> Requirements:
    """The requirements that hosts are evaluated for. Raises as reading the workload does, and for unknown words."""
    check(needed)
    workload = None
    if workload_file:
        from winhost.model.workloadfile import load_workload  # with the models of that file

        workload = load_workload(workload_file)
    needs = wanted(needed, workload)
    return Requirements(needs, path, workload, tuple(map(named, remedies)), statements(assumed), needed)


def statements(texts: Iterable[str]) -> tuple[Statement, ...]:
    """Parse the statements of `--assume`. Raises BadParameter."""
    try:
        return tuple(statement for text in texts for statement in parse(text))
    except ValueError as wrong:
        raise click.BadParameter(str(wrong), param_hint="'--assume'") from None
