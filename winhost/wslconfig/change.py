"""Change single keys of a file and leave every other byte as it is."""

import re
from collections.abc import Mapping

from winhost.model.errors import UsageError, visible
from winhost.wslconfig.format import HARMLESS, WSLCONFIG, ConfigFile, ConfigLine, Dialect, LineKind, parse
from winhost.wslconfig.keys import Key, key_of


def _refused(key: str, why: str, hint: str) -> UsageError:
    """A change that the file cannot hold."""
    return UsageError("WslConfigRefused", what=f"{visible(key)} cannot be written: {visible(why)}", hint=hint)


def changed(text: str, desired: Mapping[tuple[str, str], str | None], dialect: Dialect = WSLCONFIG) -> str:
    """The file with other values for these keys; None takes a key out. Every other byte stays.

    A value goes to the line that counts, else to the end of its section, else to a new section at the end of the file.
    Raises UsageError (WslConfigRefused) for a key that WSL does not know, a value that the format cannot hold, and
    where a line that WSL cannot read would swallow what is added.
    """
    file = parse(text, dialect)
    for (section, name), value in desired.items():
        key = key_of(dialect, (section.lower(), name.lower()))
        if key is None:
            raise _refused(f"{section}.{name}", "WSL knows no such key", "Name one that it knows.")
        file = parse(_without(file, key) if value is None else _with(file, key, value), dialect)
    return file.text


def _without(file: ConfigFile, key: Key) -> str:
    """Remove all lines of the key; otherwise a second one would take effect."""
    return "".join(line.text for line in file.lines if not (line.kind is LineKind.KEY and _sets(file, line, key)))


def _with(file: ConfigFile, key: Key, value: str) -> str:
    raw = _written(key, value)
    line = next((line for line in file.keys if _sets(file, line, key)), None)
    if line is None:
        return _added(file, key, raw)
    if line.value == value:
        return file.text
    there = line.text[: line.raw.start] + raw + line.text[line.raw.stop :]
    return "".join(there if each is line else each.text for each in file.lines)


def _sets(file: ConfigFile, line: ConfigLine, key: Key) -> bool:
    return key_of(file.dialect, line.id) is key


def _added(file: ConfigFile, key: Key, raw: str) -> str:
    end = "\r\n" if "\r\n" in file.text or (file.dialect.windows and not file.text) else "\n"
    index = max((index for index, line in enumerate(file.lines, 1) if _is_of(line, key.section)), default=0)
    heading = "" if index else f"[{key.section}]{end}"
    index = index or len(file.lines)
    _check_read(file, index, key)
    before, after = ("".join(line.text for line in part) for part in (file.lines[:index], file.lines[index:]))
    ended = before in ("", "\ufeff") or _ended(file.lines[index - 1])
    return f"{before}{'' if ended else end}{heading}{key.name}={raw}{end}{after}"


def _ended(line: ConfigLine) -> bool:
    """Tell whether the line ends; a newline that a backslash joins to the value does not end it."""
    return line.text[line.raw.stop :].endswith("\n")


def _is_of(line: ConfigLine, section: str) -> bool:
    return line.kind in (LineKind.SECTION, LineKind.KEY) and line.section.lower() == section.lower()


def _check_read(file: ConfigFile, index: int, key: Key) -> None:
    """Raises WslConfigRefused where WSL would not read a line put here: after one at which it stops, or joined to one
    by a backslash."""
    for line in file.lines[:index]:
        joins = line is file.lines[-1] and (line.text[line.at :] == "\\" or line.text.endswith("\\\r"))
        if joins or not (file.dialect.windows or line.kind in HARMLESS):
            why = f"WSL would not read it behind line {line.position[0]}"
            remedy = f"Mend line {line.position[0]} first: winhost lint {file.dialect.name} FILE"
            raise _refused(str(key), why, remedy)


_PLAIN = re.compile(r"[\t\b -~]*")
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\t": "\\t", "\b": "\\b"})


def _written(key: Key, value: str) -> str:
    """The value with its escapes, quoted where blanks at its ends or a `#` would be lost."""
    if not _PLAIN.fullmatch(value):
        why = "WSL keeps one byte of each character, and values end with their line"
        raise _refused(str(key), f"{why} ({value!r})", "Use ASCII for names of switches and files.")
    raw = value.translate(_ESCAPES)
    return f'"{raw}"' if "#" in raw or raw != raw.strip(" ") else raw
