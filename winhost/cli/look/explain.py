"""winhost explain: explain a reason by its code, or an error that the user pastes."""

import os
import re
import select
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import BinaryIO

import click

from winhost.cli.envelope import show_list, show_results
from winhost.cli.named_files import STDIN, is_readable, path_exists, prompt_for_paste
from winhost.cli.named_files import facts_file as named_facts
from winhost.cli.options import Output
from winhost.cli.output import say, show_finding
from winhost.cli.watch import show_progress
from winhost.core.dataclass import dataclass
from winhost.findings.show import FindingView, finding_view, format_remedy
from winhost.knowledge import catalogue
from winhost.knowledge.catalogue import explain as explain_reason
from winhost.knowledge.lint_codes import explain_lint, lint_codes
from winhost.model.capabilities import CAPABILITIES
from winhost.model.errors import Exit, UsageError, visible
from winhost.model.masking import masked
from winhost.model.path import EVERY_PATH
from winhost.model.reason import Explanation, Severity
from winhost.resources.factsfile import read_facts
from winhost.resources.host import HostFacts
from winhost.serving.profile import explain_row, explained
from winhost.symptoms.codes import UnknownCode, normalize_single_code
from winhost.symptoms.diagnosis import (
    CauseFinding,
    Diagnosed,
    SymptomFinding,
    diagnose,
    explain_error_code,
    explain_symptom,
)
from winhost.symptoms.scan import pieces
from winhost.symptoms.table import printed_texts, symptoms

_INPUT_WAIT_S = 3
_PATH = re.compile(r"[\\/]|\.(?:log|txt|json|out|err|evtx|xml|gz)$", re.IGNORECASE)
TEXT = "text"


@dataclass(frozen=True)
class Code:
    """A reason or a symptom that `explain` knows."""

    code: str
    sentence: str


def explain(words: tuple[str, ...], list_codes: bool, facts_file: Path | None, output: Output) -> int:
    try:
        if (
            not words
            and not list_codes
            and sys.stdin is not None
            and not sys.stdin.isatty()
            and _has_input(sys.stdin.buffer)
        ):
            words = (STDIN,)
    except (OSError, ValueError):
        pass  # standard input is closed or unreadable
    facts_path = named_facts(None, facts_file, "--facts")
    facts = HostFacts(read_facts(facts_path)) if facts_path else None
    if list_codes or not words:
        show_list("codes", output.shape, _find_codes(words[0] if words else ""), ("code", "sentence"))
        return Exit.SUCCESS
    word = words[0] if len(words) == 1 else ""
    if explanation := _find_explanation(word):
        show_results("explanation", output.shape, [(explanation.code, explanation)], show_explanation)
        return Exit.SUCCESS
    diagnosed = None
    if word in symptoms():
        diagnosed = explain_symptom(word, facts)
    elif word and not path_exists(word, is_readable):
        diagnosed = explain_error_code(word.removeprefix("winhost."))
    diagnoses = [diagnosed] if diagnosed else list(_diagnoses(words, facts))
    return show_results(
        "diagnosis",
        output.shape,
        [(each.source, each) for each in diagnoses],
        show_diagnosis,
        document=lambda each: each.answer,
        code=lambda each: int(Exit.SUCCESS if each.found else Exit.FAILURE),
    )


def _find_explanation(code: str) -> Explanation | None:
    """Return the explanation of a reason, of a finding of lint, or of a line of a profile; None for another code."""
    if code in catalogue.entries() or code in catalogue.gaps():
        return replace(explain_reason(code), says=printed_texts(code))
    if code in lint_codes():
        return explain_lint(code)
    return explain_row(code) if code in explained() else None


def _has_input(stream: BinaryIO) -> bool:
    """Return whether standard input has data within `_INPUT_WAIT_S`. A program that starts winhost may leave its own
    input open and never write to it.
    """
    if not isinstance(stream, BufferedReader):
        return True
    # On Windows, select takes sockets only.
    if os.name != "nt" and not select.select([stream], [], [], _INPUT_WAIT_S)[0]:
        return False
    return bool(stream.peek(1)) or not stat.S_ISCHR(os.fstat(stream.fileno()).st_mode)  # /dev/null has no data


def _diagnoses(words: Sequence[str], facts: HostFacts | None) -> Iterator[Diagnosed]:
    """Diagnose each file, or all words together as one text, because a shell splits a line that is not quoted. Raises
    UsageError: UnknownCode, NoSuchFile, EmptyText.
    """
    if all(word == STDIN or path_exists(word, is_readable) for word in words):
        with show_progress(read_only=True) as watch:
            watch.hosts = len(words)
            for word in words:
                blank = True

                def track_blank(text: Iterable[str]) -> Iterator[str]:
                    nonlocal blank
                    for piece in text:
                        blank = blank and piece.isspace()
                        yield piece

                with _open(word) as stream, watch.reading(word):
                    diagnosed = diagnose(track_blank(pieces(stream)), word, facts)
                if len(words) == 1 and blank:
                    source = "standard input" if word == STDIN else visible(word)
                    raise UsageError(
                        "EmptyText",
                        what=f"there is nothing to explain: {source} is empty",
                        hint="Pass on errors as well: PROGRAM 2>&1 | winhost explain -\n"
                        "All codes that can be explained: winhost explain --list",
                    )
                yield diagnosed
        return
    text = normalize_single_code(" ".join(words))
    diagnosed = diagnose(pieces(BytesIO(text.encode("utf-8", errors="surrogateescape"))), TEXT, facts)
    if not diagnosed.found and not diagnosed.unknown_codes and len(words) == 1:
        _refuse_unknown_word(words[0])
    yield diagnosed


def _open(word: str) -> AbstractContextManager[BinaryIO]:
    if word != STDIN:
        return Path(word).open("rb")
    prompt_for_paste()
    # Typed text is read to its end at once: each further read would need another Ctrl-D.
    return BytesIO(sys.stdin.buffer.read()) if sys.stdin.isatty() else nullcontext(sys.stdin.buffer)


def _refuse_unknown_word(word: str) -> None:
    """Refuse a single unknown word, which is probably a misspelt code or file. Raises UsageError."""
    if any(letter.isspace() for letter in word):
        return
    masked_word = masked(word)
    if _PATH.search(word):
        why = "it is a folder" if path_exists(word, Path.is_dir) else "no such file"
        raise UsageError(
            "NoSuchFile",
            what=f"cannot read {visible(masked_word)}: {why}",
            meaning="As a message, it matches no known error either.",
            hint="Name an existing file, quote the message, or pipe it: … | winhost explain -",
        )
    raise catalogue.unknown_code_error(masked_word, (*lint_codes(), *explained()))


def _find_codes(prefix: str) -> list[Code]:
    """Return the codes that begin with a prefix: reasons in the order of their paths and capabilities, then symptoms,
    findings of lint and lines of profiles. Raises UsageError: UnknownCode.
    """
    order = (*EVERY_PATH, "mmio", "vm", "wsl", "disk", *CAPABILITIES, catalogue.ANY_TOPIC)
    reasons = {**catalogue.reason_entries(), **catalogue.gaps()}
    ordered = sorted(reasons, key=lambda code: order.index(code.split(".")[0]))
    sentences = {code: reasons[code].sentence for code in ordered}
    sentences |= {name: symptom.says for name, symptom in symptoms().items()}
    sentences |= {code: explain_lint(code).sentence for code in lint_codes()}
    sentences |= {code: row.why for code, row in explained().items()}
    codes = [Code(code, sentence) for code, sentence in sentences.items() if code.startswith(prefix)]
    if not codes:
        raise catalogue.unknown_code_error(masked(prefix), (*lint_codes(), *explained()))
    return codes


def show_explanation(explanation: Explanation) -> None:
    """Show the meaning, remedy, evidence and related codes of a reason."""
    finding = FindingView(
        explanation.sentence,
        code=explanation.code,
        details=(
            explanation.means,
            *(f"In logs: {message}" for message in explanation.says),
            *([f"Needs approval: {', '.join(explanation.risks)}"] if explanation.risks else []),
        ),
        remedy=format_remedy(explanation.remedy),
        evidence=explanation.evidence,
        in_full=True,
    )
    show_finding(finding, bold=True)
    if explanation.related:
        click.echo()
        say("  Related:")
    for code in explanation.related:
        other = explain_lint(code) if code in lint_codes() else catalogue.entry(code)
        say(f"    {code}: {other.sentence}", hang=2)


_SEVERITY_NOTES = {
    Severity.UNVERIFIED: "It says only that something failed; look at the lines that were logged before it.",
    Severity.NOTE: "This is harmless by itself.",
}


def show_diagnosis(diagnosed: Diagnosed) -> None:
    """Show the diagnosis of one file, standard input, or a text."""
    has_heading = diagnosed.lines > 0 and (diagnosed.source != "text" or len(diagnosed.found) > 1)
    lines = f"{diagnosed.lines:,} {'line' if diagnosed.lines == 1 else 'lines'}"
    if not diagnosed.found:
        except_codes = " beyond the names of codes" if diagnosed.unknown_codes else ""
        say(
            f"Nothing is known{except_codes} of this text."
            if diagnosed.source == "text"
            else f"{diagnosed.source}: nothing known{except_codes} in {lines}."
        )
    elif has_heading:
        problems = "problem" if len(diagnosed.found) == 1 else "problems"
        say(f"{diagnosed.source}: {len(diagnosed.found)} known {problems} in {lines}")
    for symptom in diagnosed.found:
        if has_heading:
            click.echo()
        _show_symptom(symptom, diagnosed)
    for code in diagnosed.unknown_codes:
        _show_code(code, suffix="; the problems above say more" if diagnosed.found else "; no cause is known here")


def _show_code(code: UnknownCode, suffix: str) -> None:
    """Show the name, family and meaning of an error code. suffix: the end of its first sentence."""
    click.echo()
    sentence = f"{code.name}: this is the code's name{suffix}." if code.name else "no name is known here."
    say(f"{code.code}{' ' if code.name else ': '}{sentence}", hang=2)
    other_forms = f"; also written {' or '.join(code.also)}" if code.also else ""
    say(f"  Family: {code.family}{other_forms}. {code.says}", hang=2)
    if code.next:
        say(f"  To find the cause: {code.next}", hang=2)


def _show_symptom(symptom: SymptomFinding, diagnosed: Diagnosed) -> None:
    times = f", {symptom.count:,} times" if symptom.count > 1 else ""
    finding = finding_view(
        symptom,
        severity="",
        position=f"line {symptom.line:,}{times}" if diagnosed.lines > 1 else "",
        subject=symptom.subject,
        details=(
            *([_SEVERITY_NOTES[symptom.severity]] if symptom.severity in _SEVERITY_NOTES else []),
            *([] if symptom.line else [f"In logs: {'; '.join(symptom.signs)}"]),
        ),
    )
    show_finding(finding, bold=True)
    open_causes = [cause for cause in symptom.causes if cause.standing != "ruled-out"]
    for number, cause in enumerate(open_causes, start=1):
        show_finding(_format_cause(cause, diagnosed.host), lead=f"  {number}. ")
    for cause in symptom.causes:
        if cause.standing == "ruled-out":
            say(
                f"  Ruled out {_format_source(cause, diagnosed.host)}: {cause.sentence} There, {cause.observed}.",
                hang=4,
            )
    if symptom.causes and not open_causes:
        contradicting = f"The facts of {diagnosed.host}" if diagnosed.host else "The rest of the text"
        say(f"  {contradicting} contradict every cause that is known. Read the host again, or report this.")


def _format_cause(cause: CauseFinding, host: str | None) -> FindingView:
    label = "Found" if cause.standing == "shown" else "Possible"
    return finding_view(
        cause,
        code="",
        severity="",
        observed="",
        details=(
            *([f"{label} {_format_source(cause, host)}: {cause.observed}"] if cause.observed else []),
            f"To tell: {cause.tell}",
            *([f"More: winhost explain {cause.reason}"] if cause.reason else []),
        ),
        evidence=catalogue.evidence_of(cause.evidence),
    )


def _format_source(cause: CauseFinding, host: str | None) -> str:
    return "in this text" if cause.by == "text" else f"on {host}"
