"""winhost known: list the versions that winhost knows about, and the statements behind them."""

import re
from collections.abc import Iterator

from winhost.cli.envelope import show_results
from winhost.cli.options import Output
from winhost.cli.output import say, show_next
from winhost.cli.tables import table
from winhost.core.dataclass import dataclass
from winhost.knowledge import catalogue
from winhost.knowledge.versions import Subject, spans, subjects
from winhost.knowledge.versions import table as table_of_versions
from winhost.model.errors import Exit, UsageError, did_you_mean, visible
from winhost.model.reason import Kind

# Patterns for subjects that evidence names differently from the table.
_PATTERNS = {
    "driver": r"drivers?\b|R[0-9]{3}\b",
    "wslconfig": r"WSL\b",
    "toolkit": r"toolkit\b",
    "windows": r"Windows\b(?! (Server|PowerShell))",
    "server": r"Windows Server\b|Azure Local\b",
}


@dataclass(frozen=True)
class KnownStatement:
    """A statement. newest: the newest version for which it was checked, None if `holds` names none; seen: the day on
    which its source was read.
    """

    id: str
    claim: str
    kind: Kind
    source: str
    holds: str
    newest: str | None
    seen: str


@dataclass(frozen=True)
class KnownSubject:
    """A product whose versions winhost knows. first, newest: the oldest and newest known version; checked: the day on
    which these were last compared with the vendor's publications; below: what is known of older versions.
    """

    name: str
    what: str
    first: str
    newest: str
    checked: str
    below: str
    statements: tuple[KnownStatement, ...]


def known(subject: str | None, output: Output) -> int:
    """List the known versions of one subject or all. Raises UsageError: UnknownSubject."""
    if subject is not None and subject.casefold() not in subjects():
        near = did_you_mean(subject.casefold(), subjects())
        names = ", ".join(subjects())
        raise UsageError(
            "UnknownSubject", what=f"there is no subject '{visible(subject)}'{near}", hint=f"There are: {names}."
        )
    selected = [subjects()[subject.casefold()]] if subject else list(subjects().values())
    checked = str(table_of_versions()["checked"])
    results = [
        KnownSubject(
            each.name,
            f"{each.what}, by build" if each.name in ("windows", "server") else each.what,
            each.first,
            each.newest,
            checked,
            each.below,
            tuple(_statements(each)),
        )
        for each in selected
    ]
    if output.shape not in ("table", "wide"):
        show_results("known", output.shape, [(each.name, each) for each in results], lambda _: None)
    elif subject:
        (result,) = results
        say(f"{result.what}: known from {result.first} to {result.newest}, checked on {result.checked}.")
        say(f"Below that: {result.below}.")
        columns = ("checked to", "seen", "holds for", "statement", *(("claims", "source") if output.wide else ()))
        rows = ((s.newest or "no range", s.seen, s.holds, s.id, s.claim, s.source) for s in result.statements)
        table(columns, (row[: len(columns)] for row in rows))
        if not output.wide:
            say("What each claims, and its source:")
            show_next(("known", result.name, "-o", "wide"))
    else:
        wide = ("below that",) if output.wide else ()
        shown = ((s.name, s.what, s.first, s.newest, s.checked, len(s.statements), s.below) for s in results)
        columns = ("subject", "what", "known from", "known to", "checked", "statements", *wide)
        table(columns, (row[: len(columns)] for row in shown))
        say("A newer build of a known line stays as judged; a newer line is unverified.")
        show_next(("known", "wsl"))
    return Exit.SUCCESS


def _statements(subject: Subject) -> Iterator[KnownStatement]:
    """Yield the statements of the catalogue about a subject, by their ids."""
    pattern = re.compile(_PATTERNS.get(subject.name, re.escape(subject.what) + r"\b"))
    catalogue.entries()  # loads the evidence that rows contain
    for key, piece in sorted(catalogue.evidence().items()):
        if pattern.search(piece.holds):
            ends = [span.newest for span in spans(piece.holds) if span.what == subject.what]
            newest = str(max(ends)) if ends else None
            yield KnownStatement(key, piece.claim, piece.kind, piece.source, piece.holds, newest, piece.seen)
