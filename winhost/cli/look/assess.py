"""winhost assess: verdicts for every path, and a next command that works as printed."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from winhost.cli.envelope import show_results
from winhost.cli.errors import as_winhost_error, usage_errors
from winhost.cli.look.commands import Wanted
from winhost.cli.look.verdicts import possible, show_assessment, show_rows
from winhost.cli.named_files import STDIN
from winhost.cli.options import HostsAndFacts, Output
from winhost.cli.output import show_next
from winhost.cli.shells import command_line
from winhost.cli.snapshots import Snapshot, names_several_hosts, read_snapshots, with_progress
from winhost.cli.watch import Watch
from winhost.compat.evaluation import Evaluation, Requirements, evaluate
from winhost.compat.needs import Fit, check
from winhost.compat.needs import wanted as needs_of
from winhost.compat.remedy import named
from winhost.compat.stated import Statement, parse
from winhost.model.errors import Exit, WinhostError
from winhost.model.path import check_path, path_of
from winhost.model.reason import PLAN, PathVerdict, Verdict
from winhost.paths.vocabulary import VOCABULARIES


def evaluate_each(
    reads: Iterable[Snapshot], request: Requirements, watch: Watch
) -> Iterator[tuple[Snapshot, Evaluation | None]]:
    """Evaluate each reading. Facts that cannot be evaluated become the error of that reading."""
    for read in reads:
        if read.facts is None:
            yield read, None
            continue
        try:
            with watch.activity(read.host, "evaluating"):
                file = command_line((str(read.file),)) if read.file and str(read.file) != STDIN else None
                evaluation = evaluate(read.facts, request, file)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this host's
            yield Snapshot(read.host, error=as_winhost_error(error)), None
        else:
            yield read, evaluation


def requirements(wanted: Wanted) -> Requirements:
    """The requirements that hosts are evaluated for. Raises as reading the workload does, and for unknown words."""
    check(wanted.needed)
    workload = None
    if wanted.workload_file:
        from winhost.model.workloadfile import load_workload  # with the models of that file

        workload = load_workload(wanted.workload_file)
    needs, remedies = needs_of(wanted.needed, workload), tuple(map(named, wanted.remedies))
    return Requirements(needs, wanted.path, workload, remedies, statements(wanted.assumed), wanted.needed)


def statements(texts: Iterable[str]) -> tuple[Statement, ...]:
    """Parse the statements of `--assume`. Raises BadParameter."""
    with usage_errors("'--assume'"):
        return tuple(statement for text in texts for statement in parse(text))


def assess(hosts: HostsAndFacts, wanted: Wanted, everything: bool, details: bool, in_full: bool, output: Output) -> int:
    check_path(wanted.path)
    asked, path = requirements(wanted), wanted.path
    many = names_several_hosts(hosts)
    seen = list[tuple[str, Evaluation]]()

    def results() -> Iterator[tuple[str, Evaluation | WinhostError]]:
        for read, found in with_progress(lambda watch: evaluate_each(read_snapshots(hosts, watch), asked, watch)):
            if found is not None and not (many and seen):
                seen.append((read.host, found))
            yield read.host, found or read.failure

    def code(found: Evaluation) -> int:
        return int(Exit.SUCCESS if possible(found.fits, path) else Exit.REFUSED)

    kind, shape = "assessment-full" if in_full else "assessment", output.shape
    if output.form:
        from winhost.compat.assess_answer import brief, full  # with the published shapes, which people do not see

        document = full if in_full else brief
        return show_results(
            kind, shape, results(), lambda _: None, document=lambda found: document(found, asked), code=code
        )
    if shape == "name" or details or everything or not many:
        whole = everything or output.wide
        show = partial(show_assessment, asked=asked, everything=whole)
        ended = show_results(kind, shape, results(), show, code=code, single=not many)
    else:
        ended = show_rows(results(), asked, output.wide, code)
    if seen and shape != "name":
        _show_next(*seen[0], asked, hosts, wanted.workload_file, many, details or everything)
    return ended


def _show_next(
    host: str,
    found: Evaluation,
    asked: Requirements,
    hosts: HostsAndFacts,
    workload_file: Path | None,
    many: bool,
    in_full: bool,
) -> None:
    """Show the next command for the first of the hosts, if that can be read by its name alone."""
    by_name = not hosts.facts_files and not any(Path(word).exists() for word in hosts.sources)
    named = [host] if many and by_name else hosts.arguments
    if many and not in_full:
        details = () if by_name else ("--details",)
        show_next(("assess", *named, *_asked_words(asked, workload_file), *details), hosts.fleet_file)
    elif (by_name or not many) and (command := after_assess(found, asked, named, by_name)):
        # A VM that winhost did not make gets the GPUs and serves nothing.
        serves = command[0] == "plan" and ("dda" not in command or "--new-vm" in command)
        served = ("--workload", str(workload_file)) if serves and workload_file else ()
        show_next((*command, *served), None if command[0] == "explain" else hosts.fleet_file)


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


NEEDS_SETTINGS = ("dual-boot.bitlocker",)
"""Reasons for which a plan asks for settings that only the user knows."""


def after_assess(answer: Evaluation, asked: Requirements, named: Sequence[str], live: bool) -> Sequence[str] | None:
    """The command that leads on from a host: the plan of its best option, or why there is none. named: the words that
    name the host or its facts. None after an assumption that the plan would not share, because a live host is asked and
    not told.
    """
    if asked.remedies or (asked.assumed and live):
        return None
    best = next((fit for fit in answer.fits if asked.path in (None, fit.variant, path_of(fit.variant))), None)
    if best is None:
        return None
    variant = next(each for each in answer.assessment.every_variant if each.path == best.variant)
    unknown = answer.assessment.recommended is None
    if best.verdict is Verdict.UNSUPPORTED or unknown or path_of(best.variant) not in VOCABULARIES:
        return _remedies_of(answer, best, variant, named)
    for each in variant.every_reason:
        if each.code in NEEDS_SETTINGS or (each.subject == PLAN and not each.code.endswith(".later")):
            return ("explain", each.code)
    return ("plan", *named, *_plan_options(asked, best, variant))


def _remedies_of(answer: Evaluation, best: Fit, variant: PathVerdict, named: Sequence[str]) -> Sequence[str] | None:
    if answer.changes and answer.changes.remedies:
        return ("assess", *named, *(word for each in answer.changes.remedies for word in ("--what-if", each.id)))
    lacking = [reason for offered in best.lacking for reason in offered.reasons]
    codes = (*variant.because, *(reason.code for reason in (*best.denied, *lacking)))
    return ("explain", codes[0]) if codes else None


def _plan_options(asked: Requirements, best: Fit, variant: PathVerdict) -> Sequence[str]:
    return (
        "--path",
        *variant.path_and_options,
        *(word for each in asked.assumed for word in ("--assume", each.word)),
        *(("--allow-unverified",) if best.verdict is Verdict.UNVERIFIED else ()),
    )
