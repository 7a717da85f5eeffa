"""winhost assess: verdicts for every path, and a next command that works as printed."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from winhost.cli.envelope import show_results
from winhost.cli.errors import as_winhost_error, usage_errors
from winhost.cli.look.commands import AssessmentOptions
from winhost.cli.look.verdicts import has_possible_option, show_assessment, show_rows
from winhost.cli.named_files import STDIN
from winhost.cli.options import HostsAndFacts, Output
from winhost.cli.output import show_next
from winhost.cli.shells import command_line
from winhost.cli.snapshots import Snapshot, names_several_hosts, read_snapshots, with_progress
from winhost.cli.watch import Watch
from winhost.compat.evaluation import Evaluation, Requirements, evaluate
from winhost.compat.needs import Fit, check_capabilities, merge_needs
from winhost.compat.remedy import find_remedy
from winhost.compat.stated import Statement, parse_statements
from winhost.model.errors import Exit, WinhostError
from winhost.model.path import check_path, path_of
from winhost.model.reason import PLAN, PathVerdict, Verdict
from winhost.paths.vocabulary import VOCABULARIES


def evaluate_each(
    snapshots: Iterable[Snapshot], requirements: Requirements, watch: Watch
) -> Iterator[tuple[Snapshot, Evaluation | None]]:
    """Evaluate each snapshot. If its facts cannot be evaluated, yield a snapshot with the error."""
    for snapshot in snapshots:
        if snapshot.facts is None:
            yield snapshot, None
            continue
        try:
            with watch.activity(snapshot.host, "evaluating"):
                file = command_line((str(snapshot.file),)) if snapshot.file and str(snapshot.file) != STDIN else None
                evaluation = evaluate(snapshot.facts, requirements, file)
        except Exception as error:  # noqa: BLE001 - any failure belongs to this host alone
            yield Snapshot(snapshot.host, error=as_winhost_error(error)), None
        else:
            yield snapshot, evaluation


def make_requirements(options: AssessmentOptions) -> Requirements:
    """Make the requirements that hosts are evaluated against. Raises UsageError for unknown names, and as
    `load_workload` does.
    """
    check_capabilities(options.needed)
    workload = None
    if options.workload_file:
        from winhost.model.workloadfile import load_workload  # with the models of that file

        workload = load_workload(options.workload_file)
    needs, remedies = merge_needs(options.needed, workload), tuple(map(find_remedy, options.remedies))
    return Requirements(needs, options.path, workload, remedies, parse_assumptions(options.assumed), options.needed)


def parse_assumptions(texts: Iterable[str]) -> tuple[Statement, ...]:
    """Parse the statements of `--assume`. Raises BadParameter."""
    with usage_errors("'--assume'"):
        return tuple(statement for text in texts for statement in parse_statements(text))


def assess(
    hosts: HostsAndFacts, options: AssessmentOptions, everything: bool, details: bool, in_full: bool, output: Output
) -> int:
    check_path(options.path)
    requirements, path = make_requirements(options), options.path
    many = names_several_hosts(hosts)
    evaluated = list[tuple[str, Evaluation]]()

    def results() -> Iterator[tuple[str, Evaluation | WinhostError]]:
        reads = with_progress(lambda watch: evaluate_each(read_snapshots(hosts, watch), requirements, watch))
        for snapshot, evaluation in reads:
            if evaluation is not None and not (many and evaluated):
                evaluated.append((snapshot.host, evaluation))
            yield snapshot.host, evaluation or snapshot.failure

    def exit_code(evaluation: Evaluation) -> int:
        return int(Exit.SUCCESS if has_possible_option(evaluation.fits, path) else Exit.REFUSED)

    kind, shape = "assessment-full" if in_full else "assessment", output.shape
    if output.form:
        from winhost.compat.assess_answer import brief, full  # with the published shapes, which people do not see

        document = full if in_full else brief
        return show_results(
            kind,
            shape,
            results(),
            lambda _: None,
            document=lambda evaluation: document(evaluation, requirements),
            code=exit_code,
        )
    if shape == "name" or details or everything or not many:
        whole = everything or output.wide
        show = partial(show_assessment, requirements=requirements, everything=whole)
        exit_code_of_all = show_results(kind, shape, results(), show, code=exit_code, single=not many)
    else:
        exit_code_of_all = show_rows(results(), requirements, output.wide, exit_code)
    if evaluated and shape != "name":
        _show_next(*evaluated[0], requirements, hosts, options.workload_file, many, details or everything)
    return exit_code_of_all


def _show_next(
    host: str,
    evaluation: Evaluation,
    requirements: Requirements,
    hosts: HostsAndFacts,
    workload_file: Path | None,
    many: bool,
    in_full: bool,
) -> None:
    """Show the next command for the first host. hosts: as they were typed; many: several hosts were evaluated."""
    by_name = not hosts.facts_files and not any(Path(word).exists() for word in hosts.sources)
    host_arguments = [host] if many and by_name else hosts.arguments
    if many and not in_full:
        details = () if by_name else ("--details",)
        show_next(
            ("assess", *host_arguments, *_requirement_options(requirements, workload_file), *details), hosts.fleet_file
        )
    elif (by_name or not many) and (command := next_command(evaluation, requirements, host_arguments, by_name)):
        # A VM that winhost did not make gets the GPUs and serves nothing.
        serves = command[0] == "plan" and ("dda" not in command or "--new-vm" in command)
        served = ("--workload", str(workload_file)) if serves and workload_file else ()
        show_next((*command, *served), None if command[0] == "explain" else hosts.fleet_file)


def _requirement_options(requirements: Requirements, workload_file: Path | None) -> tuple[str, ...]:
    """Return the command-line options for these requirements."""
    options = {
        "--path": [requirements.path] if requirements.path else [],
        "--need": requirements.named_needs,
        "--workload": [str(workload_file)] if workload_file else [],
        "--what-if": [remedy.id for remedy in requirements.remedies],
        "--assume": [each.text for each in requirements.assumed],
    }
    return tuple(word for option, values in options.items() for value in values for word in (option, value))


NEEDS_SETTINGS = ("dual-boot.bitlocker",)
"""Reasons for which a plan asks for settings that only the user knows."""


def next_command(
    evaluation: Evaluation, requirements: Requirements, host_arguments: Sequence[str], live: bool
) -> Sequence[str] | None:
    """Return the next command for a host: plan its best option, or explain why none works. host_arguments: the
    arguments that name the host or its facts; live: the host itself was read. None if the evaluation assumes something
    that `winhost plan` would not, because it reads a live host again.
    """
    if requirements.remedies or (requirements.assumed and live):
        return None
    best = next(
        (fit for fit in evaluation.fits if requirements.path in (None, fit.variant, path_of(fit.variant))), None
    )
    if best is None:
        return None
    variant = next(each for each in evaluation.assessment.every_variant if each.path == best.variant)
    unknown = evaluation.assessment.recommended is None
    if best.verdict is Verdict.UNSUPPORTED or unknown or path_of(best.variant) not in VOCABULARIES:
        return _next_without_plan(evaluation, best, variant, host_arguments)
    for each in variant.every_reason:
        if each.code in NEEDS_SETTINGS or (each.subject == PLAN and not each.code.endswith(".later")):
            return ("explain", each.code)
    return ("plan", *host_arguments, *_plan_options(requirements, best, variant))


def _next_without_plan(
    evaluation: Evaluation, best: Fit, variant: PathVerdict, host_arguments: Sequence[str]
) -> Sequence[str] | None:
    if evaluation.changes and evaluation.changes.remedies:
        return (
            "assess",
            *host_arguments,
            *(word for each in evaluation.changes.remedies for word in ("--what-if", each.id)),
        )
    missing = [reason for offered in best.lacking for reason in offered.reasons]
    codes = (*variant.because, *(reason.code for reason in (*best.denied, *missing)))
    return ("explain", codes[0]) if codes else None


def _plan_options(requirements: Requirements, best: Fit, variant: PathVerdict) -> Sequence[str]:
    return (
        "--path",
        *variant.path_and_options,
        *(word for each in requirements.assumed for word in ("--assume", each.text)),
        *(("--allow-unverified",) if best.verdict is Verdict.UNVERIFIED else ()),
    )
