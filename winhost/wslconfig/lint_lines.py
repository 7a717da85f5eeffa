"""Rules on single lines: what WSL cannot read, does not know, or has read already."""

from collections.abc import Iterator

from winhost.model.errors import did_you_mean
from winhost.wslconfig.findings import LintFinding
from winhost.wslconfig.format import HARMLESS, ConfigFile, ConfigLine, Dialect, LineKind
from winhost.wslconfig.known_keys import key_of, keys_of, other, sections_of
from winhost.wslconfig.lint_context import Reader


def unreadable(reader: Reader) -> Iterator[LintFinding]:
    """Lines that WSL cannot read."""
    for line in reader.file.lines:
        char = line.text[line.at : line.at + (2 if line.kind is LineKind.BAD_ESCAPE else 1)]
        if line.kind is LineKind.BAD_NAME and char in _FIRST:
            yield reader.found(line, _FIRST[char])
        elif line.kind not in HARMLESS:
            yield reader.found(line, line.kind, char=f"`{char}`" if char.strip() else "the end of the line")


_FIRST = {";": "semicolon", "\ufeff": "byte-order-mark"}


def sections(reader: Reader) -> Iterator[LintFinding]:
    """Sections of which WSL knows no key; each is told once, not by its keys."""
    dialect = reader.file.dialect
    for line in _unknown_sections(reader.file):
        elsewhere = line.section.lower() in map(str.lower, sections_of(other(dialect)))
        near = _belongs(dialect) if elsewhere else _meant(line.section, sections_of(dialect))
        yield reader.found(line, "unknown-section", section=line.section, near=near)


def _unknown_sections(file: ConfigFile) -> list[ConfigLine]:
    known = {name.lower() for name in sections_of(file.dialect)}
    return [line for line in file.lines if line.kind is LineKind.SECTION and line.section.lower() not in known]


def keys(reader: Reader) -> Iterator[LintFinding]:
    """Keys that WSL does not know where they stand."""
    dialect = reader.file.dialect
    told = {line.section.lower() for line in _unknown_sections(reader.file)}
    for line in reader.file.keys:
        section = line.section.split("\0")[0]
        if key_of(dialect, line.id) is not None:
            continue
        if not section:
            yield reader.found(line, "no-section", key=line.key, near=_nearest(dialect, section, line.key))
        elif line.section.lower() not in told:
            near = _nearest(dialect, section, line.key)
            yield reader.found(line, "unknown-key", section=section, key=line.key, near=near)


def _nearest(dialect: Dialect, section: str, name: str) -> str:
    """Where a key of that name belongs, else the name that is meant."""
    homes = [key for key in keys_of(dialect) if key.name.lower() == name.lower()]
    if homes:
        return f": it belongs in [{homes[0].section}]."
    if key_of(other(dialect), (section.lower(), name.lower())):
        return _belongs(dialect)
    return _meant(name, [key.name for key in keys_of(dialect)])


def _meant(word: str, known: list[str]) -> str:
    return did_you_mean(word, known) or "."


def _belongs(dialect: Dialect) -> str:
    return ": it belongs in /etc/wsl.conf of a distro." if dialect.windows else ": it belongs in .wslconfig of Windows."


def duplicates(reader: Reader) -> Iterator[LintFinding]:
    """Keys that were read already."""
    first = {str(key): line for key, line in reader.keys}
    for line in reader.file.keys:
        key = key_of(reader.file.dialect, line.id)
        if key is not None and first[str(key)] is not line:
            yield reader.found(line, "duplicate", key=key, first=first[str(key)].place[0])
