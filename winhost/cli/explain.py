"""winhost explain: a reason by its code, or whatever somebody pastes when something failed."""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from winhost.cli.envelope import show_list, show_results
from winhost.cli.named_files import facts_file as named_facts
from winhost.cli.output import say
from winhost.cli.outputs import Output
from winhost.cli.show_diagnosis import show_diagnosis
from winhost.cli.show_explanation import show_explanation
from winhost.cli.watch import watching
from winhost.core.dataclass import dataclass
from winhost.knowledge import catalogue
from winhost.knowledge.catalogue import explain as story_of
from winhost.model.capabilities import CAPABILITIES
from winhost.model.errors import Exit, UsageError, visible
from winhost.model.masking import masked
from winhost.model.path import EVERY_PATH
from winhost.resources.factsfile import read_facts
from winhost.resources.host import HostFacts
from winhost.symptoms.codes import alone
from winhost.symptoms.diagnosis import Diagnosis, diagnosis, of_code, of_symptom
from winhost.symptoms.scan import pieces
from winhost.symptoms.table import said_of, symptoms

STDIN = "-"
_PATH = re.compile(r"[\\/]|\.(?:log|txt|json|out|err|evtx|xml|gz)$", re.IGNORECASE)
TEXT = "text"


@dataclass(frozen=True)
class Code:
    """A reason or a symptom that `explain` knows."""

    code: str
    sentence: str


def explain(words: tuple[str, ...], listed: bool, facts_file: Path | None, output: Output) -> int:
    """Explain a reason by its CODE, or what is known of a text."""
    if listed or not words:
        _list(words, output)
        return Exit.SUCCESS
    if len(words) == 1 and (words[0] in catalogue.entries() or words[0] in catalogue.gaps()):
        explanation = replace(story_of(words[0]), says=said_of(words[0]))
        show_results("explanation", output.shape, [(explanation.code, explanation)], show_explanation)
        return Exit.SUCCESS
    named = named_facts(None, facts_file, "--facts")
    facts = HostFacts(read_facts(named)) if named else None
    asked = len(words) == 1 and words[0] in symptoms()
    own = of_code(words[0].removeprefix("winhost.")) if len(words) == 1 and not _is_file(words[0]) else None
    known = of_symptom(words[0], facts) if asked else own
    answers = [known] if known else list(_diagnoses(words, facts))
    show_results("diagnosis", output.shape, [(each.source, each) for each in answers], show_diagnosis)
    return Exit.SUCCESS if all(each.found for each in answers) else Exit.FAILURE


def _diagnoses(words: Sequence[str], facts: HostFacts | None) -> Iterator[Diagnosis]:
    """The diagnosis of each file, or of the words together: a shell makes many of one line that was not quoted. Raises
    UsageError: UnknownCode, NoSuchFile.
    """
    if all(word == STDIN or _is_file(word) for word in words):
        with watching(reads=True) as watch:
            watch.hosts = len(words)
            for word in words:
                with watch.reading(word), _opened(word) as stream:
                    answer = diagnosis(pieces(stream), word, facts)
                yield answer
        return
    text = alone(" ".join(words))
    answer = diagnosis(pieces(_stream(text)), TEXT, facts)
    if not answer.found and not answer.unknown_codes and len(words) == 1:
        _refuse_misspelt(words[0])
    yield answer


def _opened(word: str) -> AbstractContextManager[BinaryIO]:
    if word != STDIN:
        return Path(word).open("rb")
    if sys.stdin.isatty():
        say("Paste the text, then end it with Ctrl-D (on Windows Ctrl-Z and Enter).", err=True)
    return nullcontext(sys.stdin.buffer)


def _stream(text: str) -> BinaryIO:
    return BytesIO(text.encode("utf-8", errors="surrogateescape"))


def _is_file(word: str) -> bool:
    return _is(word, Path.is_file)


def _is_folder(word: str) -> bool:
    return _is(word, Path.is_dir)


def _is(word: str, kind: Callable[[Path], bool]) -> bool:
    try:
        return kind(Path(word))
    except (OSError, ValueError):  # longer than a name can be
        return False


def _refuse_misspelt(word: str) -> None:
    """A single word of which nothing is known was meant for a code, or for a file."""
    if any(letter.isspace() for letter in word):
        return
    shown = masked(word)
    if _PATH.search(word):
        raise UsageError(
            "NoSuchFile",
            what=f"cannot read {visible(shown)}: {'it is a folder' if _is_folder(word) else 'no such file'}",
            meaning="Taken as a message, nothing is known of it either.",
            hint="Name an existing file, quote the message, or pipe it: … | winhost explain -",
        )
    raise catalogue.unknown_code(shown)


def _list(words: Sequence[str], output: Output) -> None:
    rows = _listed(words[0] if words else "")
    show_list("codes", output.shape, [Code(code, sentence) for code, sentence in rows], ("code", "sentence"))


def _listed(prefix: str) -> list[tuple[str, str]]:
    """Reasons: of paths, then of capabilities, in the order in which winhost always names them. Then symptoms.

    Raises UsageError: UnknownCode.
    """
    order = (*EVERY_PATH, "mmio", "vm", "wsl", "disk", *CAPABILITIES, catalogue.ANY)
    reasons = {**catalogue.own_entries(), **catalogue.gaps()}
    ordered = sorted(reasons, key=lambda code: order.index(code.split(".")[0]))
    every = {code: reasons[code].sentence for code in ordered}
    every |= {name: symptom.says for name, symptom in symptoms().items()}
    found = [(code, sentence) for code, sentence in every.items() if code.startswith(prefix)]
    if not found:
        raise catalogue.unknown_code(masked(prefix))
    return found
