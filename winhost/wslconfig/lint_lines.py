"""Rules on single lines: what WSL cannot read, does not know, or has read already."""

from collections.abc import Iterator

from winhost.findings.finding import Finding
from winhost.model.errors import did_you_mean
from winhost.wslconfig.format import HARMLESS, ConfigFile, ConfigLine, Dialect, LineKind
from winhost.wslconfig.known_keys import key_of, keys_of, other, sections_of
from winhost.wslconfig.lint_context import LintContext


def unreadable(context: LintContext) -> Iterator[Finding]:
    """Lines that WSL cannot read."""
    for line in context.file.lines:
        char = line.text[line.at : line.at + (2 if line.kind is LineKind.BAD_ESCAPE else 1)]
        if line.kind is LineKind.BAD_NAME and char in _FIRST:
            yield context.found(line, _FIRST[char])
        elif line.kind not in HARMLESS:
            yield context.found(line, line.kind, char=f"`{char}`" if char.strip() else "the end of the line")


_FIRST = {";": "semicolon", "\ufeff": "byte-order-mark"}


def sections(context: LintContext) -> Iterator[Finding]:
    """Sections that WSL does not know, each reported once instead of once per key."""
    dialect = context.file.dialect
    for line in _unknown_sections(context.file):
        elsewhere = line.section.lower() in map(str.lower, sections_of(other(dialect)))
        near = _belongs(dialect) if elsewhere else _meant(line.section, sections_of(dialect))
        yield context.found(line, "unknown-section", section=line.section, near=near)


def _unknown_sections(file: ConfigFile) -> list[ConfigLine]:
    known = {name.lower() for name in sections_of(file.dialect)}
    return [line for line in file.lines if line.kind is LineKind.SECTION and line.section.lower() not in known]


def keys(context: LintContext) -> Iterator[Finding]:
    """Keys that WSL does not know in their section."""
    dialect = context.file.dialect
    reported = {line.section.lower() for line in _unknown_sections(context.file)}
    for line in context.file.keys:
        section = line.section.split("\0")[0]
        if key_of(dialect, line.id) is not None:
            continue
        if not section:
            yield context.found(line, "no-section", key=line.key, near=_nearest(dialect, section, line.key))
        elif line.section.lower() not in reported:
            near = _nearest(dialect, section, line.key)
            yield context.found(line, "unknown-key", section=section, key=line.key, near=near)


def _nearest(dialect: Dialect, section: str, name: str) -> str:
    """The section or file that has a key of that name, else the most similar name."""
    homes = [key for key in keys_of(dialect) if key.name.lower() == name.lower()]
    if homes:
        return f": it belongs in [{homes[0].section}]."
    theirs = [key for key in keys_of(other(dialect)) if key.name.lower() == name.lower()]
    if here := next((key for key in theirs if key.section.lower() == section.lower()), next(iter(theirs), None)):
        return _belongs(dialect, f"[{here.section}] of ")
    return _meant(name, [key.name for key in keys_of(dialect)])


def _meant(word: str, known: list[str]) -> str:
    return did_you_mean(word, known) or "."


def _belongs(dialect: Dialect, section: str = "") -> str:
    return f": it belongs in {section}{'/etc/wsl.conf of a distro' if dialect.windows else '.wslconfig of Windows'}."


def duplicates(context: LintContext) -> Iterator[Finding]:
    """Keys that are set twice: WSL takes the first."""
    first = {str(key): line for key, line in context.keys}
    for line in context.file.keys:
        key = key_of(context.file.dialect, line.id)
        if key is not None and first[str(key)] is not line:
            yield context.found(line, "duplicate", key=key, first=first[str(key)].position[0])
