"""winhost explain: explain a reason by its code, or an error that is pasted."""

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
from winhost.findings.show import Shown, remedy_words, shown
from winhost.knowledge import catalogue
from winhost.knowledge.catalogue import explain as story_of
from winhost.knowledge.lint_codes import explain_lint, lint_codes
from winhost.model.capabilities import CAPABILITIES
from winhost.model.errors import Exit, UsageError, visible
from winhost.model.masking import masked
from winhost.model.path import EVERY_PATH
from winhost.model.reason import Explanation, Severity
from winhost.resources.factsfile import read_facts
from winhost.resources.host import HostFacts
from winhost.serving.profile import explain_row, explained
from winhost.symptoms.codes import UnknownCode, alone
from winhost.symptoms.diagnosis import CauseFinding, Diagnosed, SymptomFinding, diagnosis, of_code, of_symptom
from winhost.symptoms.scan import pieces
from winhost.symptoms.table import said_of, symptoms

_PATIENCE_S = 3
_PATH = re.compile(r"[\\/]|\.(?:log|txt|json|out|err|evtx|xml|gz)$", re.IGNORECASE)
TEXT = "text"


@dataclass(frozen=True)
class Code:
    """A reason or a symptom that `explain` knows."""

    code: str
    sentence: str


def explain(words: tuple[str, ...], listed: bool, facts_file: Path | None, output: Output) -> int:
    try:
        if not words and not listed and sys.stdin is not None and not sys.stdin.isatty() and _begins(sys.stdin.buffer):
            words = (STDIN,)
    except (OSError, ValueError):
        pass  # standard input is closed or unreadable
    if listed or not words:
        show_list("codes", output.shape, _listed(words[0] if words else ""), ("code", "sentence"))
        return Exit.SUCCESS
    word = words[0] if len(words) == 1 else ""
    if explanation := _explanation(word):
        show_results("explanation", output.shape, [(explanation.code, explanation)], show_explanation)
        return Exit.SUCCESS
    named = named_facts(None, facts_file, "--facts")
    facts = HostFacts(read_facts(named)) if named else None
    known = None
    if word in symptoms():
        known = of_symptom(word, facts)
    elif word and not path_exists(word, is_readable):
        known = of_code(word.removeprefix("winhost."))
    answers = [known] if known else list(_diagnoses(words, facts))
    return show_results(
        "diagnosis",
        output.shape,
        [(each.source, each) for each in answers],
        show_diagnosis,
        document=lambda told: told.answer,
        code=lambda each: int(Exit.SUCCESS if each.found else Exit.FAILURE),
    )


def _explanation(code: str) -> Explanation | None:
    """The explanation of a reason, of a finding of lint, or of a line of a profile."""
    if code in catalogue.entries() or code in catalogue.gaps():
        return replace(story_of(code), says=said_of(code))
    if code in lint_codes():
        return explain_lint(code)
    return explain_row(code) if code in explained() else None


def _begins(stream: BinaryIO) -> bool:
    """Tell whether a program or a file begins to write within `_PATIENCE_S`. A program that starts us may leave its own
    input open and never write to it.
    """
    if not isinstance(stream, BufferedReader):
        return True
    if os.name != "nt" and not select.select([stream], [], [], _PATIENCE_S)[0]:  # Windows can ask sockets alone
        return False
    return bool(stream.peek(1)) or not stat.S_ISCHR(os.fstat(stream.fileno()).st_mode)  # /dev/null is no text


def _diagnoses(words: Sequence[str], facts: HostFacts | None) -> Iterator[Diagnosed]:
    """The diagnosis of each file, or of all words together, because a shell splits a line that was not quoted. Raises
    UsageError: UnknownCode, NoSuchFile, EmptyText.
    """
    if all(word == STDIN or path_exists(word, is_readable) for word in words):
        with show_progress(read_only=True) as watch:
            watch.hosts = len(words)
            for word in words:
                blank = True

                def noted(text: Iterable[str]) -> Iterator[str]:
                    nonlocal blank
                    for piece in text:
                        blank = blank and piece.isspace()
                        yield piece

                with _opened(word) as stream, watch.reading(word):
                    answer = diagnosis(noted(pieces(stream)), word, facts)
                if len(words) == 1 and blank:
                    named = "standard input" if word == STDIN else visible(word)
                    raise UsageError(
                        "EmptyText",
                        what=f"there is nothing to explain: {named} is empty",
                        hint="Pass on errors as well: PROGRAM 2>&1 | winhost explain -\n"
                        "All codes that can be explained: winhost explain --list",
                    )
                yield answer
        return
    text = alone(" ".join(words))
    answer = diagnosis(pieces(BytesIO(text.encode("utf-8", errors="surrogateescape"))), TEXT, facts)
    if not answer.found and not answer.unknown_codes and len(words) == 1:
        _refuse_misspelt(words[0])
    yield answer


def _opened(word: str) -> AbstractContextManager[BinaryIO]:
    if word != STDIN:
        return Path(word).open("rb")
    prompt_for_paste()
    # Typed text is read to its end at once: each further read would need another Ctrl-D.
    return BytesIO(sys.stdin.buffer.read()) if sys.stdin.isatty() else nullcontext(sys.stdin.buffer)


def _refuse_misspelt(word: str) -> None:
    """Refuse a single unknown word: it was meant for a code, or for a file."""
    if any(letter.isspace() for letter in word):
        return
    shown = masked(word)
    if _PATH.search(word):
        problem = "it is a folder" if path_exists(word, Path.is_dir) else "no such file"
        raise UsageError(
            "NoSuchFile",
            what=f"cannot read {visible(shown)}: {problem}",
            meaning="Taken as a message, nothing is known of it either.",
            hint="Name an existing file, quote the message, or pipe it: … | winhost explain -",
        )
    raise catalogue.unknown_code(shown, (*lint_codes(), *explained()))


def _listed(prefix: str) -> list[Code]:
    """List reasons in the order in which winhost always names them, then symptoms, findings of lint and lines of
    profiles. Raises UsageError: UnknownCode.
    """
    order = (*EVERY_PATH, "mmio", "vm", "wsl", "disk", *CAPABILITIES, catalogue.ANY)
    reasons = {**catalogue.own_entries(), **catalogue.gaps()}
    ordered = sorted(reasons, key=lambda code: order.index(code.split(".")[0]))
    every = {code: reasons[code].sentence for code in ordered}
    every |= {name: symptom.says for name, symptom in symptoms().items()}
    every |= {code: explain_lint(code).sentence for code in lint_codes()}
    every |= {code: row.why for code, row in explained().items()}
    found = [Code(code, sentence) for code, sentence in every.items() if code.startswith(prefix)]
    if not found:
        raise catalogue.unknown_code(masked(prefix), (*lint_codes(), *explained()))
    return found


def show_explanation(explanation: Explanation) -> None:
    """Show all that is known of a reason."""
    told = Shown(
        explanation.sentence,
        code=explanation.code,
        details=(
            explanation.means,
            *(f"In logs: {words}" for words in explanation.says),
            *([f"Needs approval: {', '.join(explanation.risks)}"] if explanation.risks else []),
        ),
        remedy=remedy_words(explanation.remedy),
        evidence=explanation.evidence,
        in_full=True,
    )
    show_finding(told, bold=True)
    if explanation.related:
        click.echo()
        say("  Related:")
    for code in explanation.related:
        other = explain_lint(code) if code in lint_codes() else catalogue.entry(code)
        say(f"    {code}: {other.sentence}", hang=2)


_ADDS = {
    Severity.UNVERIFIED: "It says only that something failed; look for what was logged before it.",
    Severity.NOTE: "This is harmless by itself.",
}


def show_diagnosis(answer: Diagnosed) -> None:
    """Show the diagnosis of one file, of stdin, or of a text."""
    whole = answer.lines > 0 and (answer.source != "text" or len(answer.found) > 1)
    lines = f"{answer.lines:,} {'line' if answer.lines == 1 else 'lines'}"
    if not answer.found:
        beyond = " beyond the names of codes" if answer.unknown_codes else ""
        say(
            f"Nothing is known{beyond} of this text."
            if answer.source == "text"
            else f"{answer.source}: nothing known{beyond} in {lines}."
        )
    elif whole:
        problems = "problem" if len(answer.found) == 1 else "problems"
        say(f"{answer.source}: {len(answer.found)} known {problems} in {lines}")
    for found in answer.found:
        if whole:
            click.echo()
        _show_found(found, answer)
    for code in answer.unknown_codes:
        _show_code(code, beside="; the problems above say more" if answer.found else "; no cause is known here")


def _show_code(code: UnknownCode, beside: str) -> None:
    """Explain a number or a name on its own. beside: what else is known of the text."""
    click.echo()
    said = f"{code.name}: this is the code's name{beside}." if code.name else "no name is known here."
    say(f"{code.code}{' ' if code.name else ': '}{said}", hang=2)
    also = f"; also written {' or '.join(code.also)}" if code.also else ""
    say(f"  Family: {code.family}{also}. {code.says}", hang=2)
    if code.next:
        say(f"  To find the cause: {code.next}", hang=2)


def _show_found(found: SymptomFinding, answer: Diagnosed) -> None:
    times = f", {found.count:,} times" if found.count > 1 else ""
    told = shown(
        found,
        severity="",
        position=f"line {found.line:,}{times}" if answer.lines > 1 else "",
        subject=found.subject,
        details=(
            *([_ADDS[found.severity]] if found.severity in _ADDS else []),
            *([] if found.line else [f"In logs: {'; '.join(found.signs)}"]),
        ),
    )
    show_finding(told, bold=True)
    open_causes = [cause for cause in found.causes if cause.standing != "ruled-out"]
    for number, cause in enumerate(open_causes, start=1):
        show_finding(_cause(cause, answer.host), lead=f"  {number}. ")
    for cause in found.causes:
        if cause.standing == "ruled-out":
            say(f"  Ruled out {_place(cause, answer.host)}: {cause.sentence} There, {cause.observed}.", hang=4)
    if found.causes and not open_causes:
        against = f"The facts of {answer.host}" if answer.host else "The rest of the text"
        say(f"  {against} contradict every cause that is known. Read the host again, or report this.")


def _cause(cause: CauseFinding, host: str | None) -> Shown:
    seen = "Found" if cause.standing == "shown" else "Possible"
    return shown(
        cause,
        code="",
        severity="",
        observed="",
        details=(
            *([f"{seen} {_place(cause, host)}: {cause.observed}"] if cause.observed else []),
            f"To tell: {cause.tell}",
            *([f"More: winhost explain {cause.reason}"] if cause.reason else []),
        ),
        evidence=catalogue.evidence_of(cause.evidence),
    )


def _place(cause: CauseFinding, host: str | None) -> str:
    return "in this text" if cause.by == "text" else f"on {host}"
