"""Show the diagnosis of a pasted text: each symptom with its causes, the likeliest first."""

import click

from winhost.cli.output import say
from winhost.model.reason import Evidence, Severity
from winhost.symptoms.diagnosis import Diagnosis, FoundSymptom, LikelyCause

_ADDS = {
    Severity.UNVERIFIED: " It says only that something failed; look for what was logged before it.",
    Severity.NOTE: " This is harmless by itself.",
}


def show_diagnosis(answer: Diagnosis) -> None:
    """Show the diagnosis of one file, of stdin, or of a text."""
    whole = answer.lines > 0 and (answer.source != "text" or len(answer.found) > 1)
    lines = f"{answer.lines:,} {'line' if answer.lines == 1 else 'lines'}"
    if not answer.found:
        say(
            "Nothing is known of this text."
            if answer.source == "text"
            else f"{answer.source}: nothing known in {lines}."
        )
    elif whole:
        problems = "problem" if len(answer.found) == 1 else "problems"
        say(f"{answer.source}: {len(answer.found)} known {problems} in {lines}")
    for found in answer.found:
        if whole:
            click.echo()
        _show_found(found, answer)
    for code in answer.unknown_codes:
        say(f"{code.code}: nothing is known of it here. {code.says}.", hang=2)


def _show_found(found: FoundSymptom, answer: Diagnosis) -> None:
    times = f", {found.count:,} times" if found.count > 1 else ""
    line = f" line {found.line:,}{times}" if answer.lines > 1 else ""
    say(f"{found.symptom} ({found.program}){line}", bold=True)
    if found.text:
        say(f"  {found.text}", hang=2)
    say(f"  {found.says}{_ADDS.get(found.severity, '')}")
    if not found.line:
        say(f"  In logs: {'; '.join(found.signs)}", hang=2)
    open_causes = [cause for cause in found.causes if cause.standing != "ruled-out"]
    for number, cause in enumerate(open_causes, start=1):
        _show_cause(number, cause, answer.host)
    for cause in found.causes:
        if cause.standing == "ruled-out":
            say(f"  Ruled out {_place(cause, answer.host)}: {cause.cause} There, {cause.because}.", hang=4)
    if found.causes and not open_causes:
        against = f"The facts of {answer.host}" if answer.host else "The rest of the text"
        say(f"  {against} contradict every cause that is known. Read the host again, or report this.")


def _show_cause(number: int, cause: LikelyCause, host: str | None) -> None:
    say(f"  {number}. {cause.cause}", hang=3)
    if cause.standing == "shown":
        say(f"     Found {_place(cause, host)}: {cause.because}", hang=2)
    elif cause.because:
        say(f"     Possible {_place(cause, host)}: {cause.because}", hang=2)
    say(f"     To tell: {cause.tell}", hang=2)
    by = "" if cause.who == "admin" else f" ({cause.who})"
    say(f"     Remedy{by}: {cause.remedy}", hang=2)
    if cause.reason:
        say(f"     More: winhost explain {cause.reason}", hang=2)
    if cause.evidence:
        say(f"     Evidence: {'; '.join(map(_cited, cause.evidence))}", hang=2)


def _place(cause: LikelyCause, host: str | None) -> str:
    return "in this text" if cause.by == "text" else f"on {host}"


def _cited(evidence: Evidence) -> str:
    return f"{evidence.source} ({evidence.kind}, confidence {evidence.confidence})"
