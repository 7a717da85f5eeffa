"""The keys of the two files: their values as WSL reads them, which of them take effect, and how one is changed without
touching another byte.
"""

import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, TypeAlias

from winhost.core.dataclass import dataclass
from winhost.findings.condition import Condition, When
from winhost.model.catalogue_file import load_package_file
from winhost.model.errors import UsageError, visible
from winhost.model.once import once
from winhost.model.units import Bytes
from winhost.wslconfig.format import HARMLESS, WSLCONF, WSLCONFIG, ConfigFile, ConfigLine, Dialect, LineKind, parse

Id = tuple[str, str]
"""Section and key in lower case."""


@dataclass(frozen=True)
class Key:
    """A key of the table; see known_keys.yaml for what each field means."""

    section: str
    name: str
    type: str
    default: str = ""
    values: tuple[str, ...] = ()
    since: str | None = None
    since_doubt: str = ""
    told_from: str = "2.5.8"
    values_since: Mapping[str, str] = field(default_factory=dict)
    alias: str | None = None
    policy: str | None = None
    allowed: object = field(default_factory=lambda: ["", 0, False])
    when: When = field(default_factory=Condition)
    beware: Mapping[object, str] = field(default_factory=dict)
    note: str = ""

    @property
    def id(self) -> Id:
        """The key in lower case, as WSL compares it."""
        return self.section.lower(), self.name.lower()

    def __str__(self) -> str:
        return f"{self.section}.{self.name}"


def key_of(dialect: Dialect, line: Id) -> Key | None:
    """Return the key that a line sets, also by its older name; None if WSL does not know it."""
    return _table(dialect.name).get(line)


def keys_of(dialect: Dialect) -> list[Key]:
    """Return all keys of a file, each once."""
    return list({str(key): key for key in _table(dialect.name).values()}.values())


def sections_of(dialect: Dialect) -> list[str]:
    """Return the names of the sections of a file."""
    return list(_known_keys()[dialect.name])


def replacement_of(name: str) -> str:
    """Return the setting to use instead of a key that web pages name and no WSL has; empty for other keys."""
    return next((instead for key, instead in _known_keys()["never"].items() if key.lower() == name.lower()), "")


def other_dialect(dialect: Dialect) -> Dialect:
    """Return the other of the two files, to which a misplaced key may belong."""
    return WSLCONF if dialect.windows else WSLCONFIG


@once
def _table(file: str) -> Mapping[Id, Key]:
    keys: dict[Id, Key] = {}
    for section, rows in _known_keys()[file].items():
        for name, row in rows.items():
            values = {"values": tuple(row.get("values", ())), "when": Condition(row.get("when", {}))}
            key = Key(section, name, **{**row, **values})
            keys[key.id] = key
    newer = {str(key).lower(): key for key in keys.values()}
    return {id_: newer[key.alias.lower()] if key.alias else key for id_, key in keys.items()}


@once
def _known_keys() -> Mapping[str, Any]:
    return load_package_file(__package__, "known_keys.yaml")


Value: TypeAlias = bool | int | str | tuple[int, ...]

_BLANK = r"[ \t\n\v\f\r]*"
_WHOLE_NUMBER = re.compile(rf"{_BLANK}([-+]?)(?:0[xX]([0-9a-fA-F]+)|(0[0-7]*)|([1-9][0-9]*))")  # strtol, base 0
_SIZE = re.compile(rf"{_BLANK}([-+]?)([0-9]+)(?:([BKMGT])|([KMGT])B)?")
_NOTHING = re.compile(r"0(?:B|[KMGT]B?)?")
_MAC = re.compile(r"[0-9A-Fa-f]{2}([-:])(?:[0-9A-Fa-f]{2}\1){4}[0-9A-Fa-f]{2}")
_UNITS = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_INT = 1 << 31
_MAX_UINT64 = (1 << 64) - 1


def parse_value(key: Key, value: str) -> Value:
    """Parse a value as WSL does. Raises ValueError, which says what to write instead."""
    if not key.values:
        return _PARSERS[key.type](value)
    for allowed in key.values:
        if allowed.lower() == value.lower():
            return allowed
    raise ValueError(f"write one of {', '.join(key.values)}")


def _parse_bool(value: str) -> bool:
    if value.lower() in ("true", "1"):
        return True
    if value.lower() in ("false", "0"):
        return False
    raise ValueError("write true or false")


def _parse_int(value: str) -> int:
    found = _WHOLE_NUMBER.fullmatch(value)
    if found is None:
        raise ValueError("write a whole number, without a unit")
    sign, sixteen, eight, ten = found.groups()
    number = int(sixteen, 16) if sixteen else int(eight, 8) if eight else _parse_decimal(ten)
    number = -number if sign == "-" else number
    return max(-_INT, min(number, _INT - 1))  # where strtol stops on Windows, whose long has 32 bits


def _parse_decimal(digits: str) -> int:
    """Parse a decimal number by its first 30 digits, because Python refuses to parse thousands."""
    return int(digits[:30])


def _parse_size(value: str) -> Bytes:
    found = _SIZE.fullmatch(value)
    if found is None or (not found[2].strip("0") and not _NOTHING.fullmatch(value)):
        raise ValueError("write a whole number and B, KB, MB, GB or TB in capitals, without a blank: 8GB")
    number = _parse_decimal(
        found[2].lstrip("0") or "0"
    )  # strtoull: 64 bits, which a minus turns round and too much fills
    number = _MAX_UINT64 if number > _MAX_UINT64 else -number if found[1] == "-" else number
    return number * _UNITS[found[3] or found[4] or ""] & _MAX_UINT64


def _parse_mac(value: str) -> str:
    if not _MAC.fullmatch(value):
        raise ValueError("write six pairs of hexadecimal digits: 02:15:5d:01:02:03")
    return value.lower().replace("-", ":")


def _parse_address(value: str) -> str:
    try:
        return str(ipaddress.IPv4Address(value))
    except ValueError:
        raise ValueError("write an IPv4 address") from None


def _parse_ports(value: str) -> tuple[int, ...]:
    parts = [part for part in value.split(",") if part]
    if not all(re.fullmatch(r" *[0-9]{1,5} *", part) and 0 < int(part) < 1 << 16 for part in parts):
        raise ValueError("write ports from 1 to 65535 with commas between")
    return tuple(int(part) for part in parts)


_PARSERS: Mapping[str, Callable[[str], Value]] = {
    "bool": _parse_bool,
    "int": _parse_int,
    "size": _parse_size,
    "mac": _parse_mac,
    "address": _parse_address,
    "ports": _parse_ports,
    "text": str,
    "path": str,
}


def read_values(text: str, dialect: Dialect = WSLCONFIG) -> Mapping[tuple[str, str], Value]:
    """Return the values that the file sets, by section and key as the table spells them; sizes in bytes, times in
    milliseconds. Absent, unknown and invalid keys are left out: WSL uses its default for them.
    """
    values = {}
    for key, line in effective_lines(parse(text, dialect)):
        value = valid_value(key, line)
        if value is not None:
            values[key.section, key.name] = value
    return values


def effective_lines(file: ConfigFile) -> list[tuple[Key, ConfigLine]]:
    """Return each key with the line that takes effect: the first, valid or not (ConfigKey::Parse keeps the result)."""
    first: dict[str, tuple[Key, ConfigLine]] = {}
    for line in file.keys:
        key = key_of(file.dialect, line.id)
        if key is not None:
            first.setdefault(str(key), (key, line))
    return list(first.values())


def valid_value(key: Key, line: ConfigLine) -> Value | None:
    """Return the value that WSL reads; None for an invalid one, for which WSL keeps its default."""
    try:
        return parse_value(key, line.value)
    except ValueError:
        return None


# ---- changes


def _refused_error(key: str, why: str, hint: str) -> UsageError:
    return UsageError("WslConfigRefused", what=f"{visible(key)} cannot be written: {visible(why)}", hint=hint)


def change_keys(text: str, desired: Mapping[tuple[str, str], str | None], dialect: Dialect = WSLCONFIG) -> str:
    """Return the file with new values for these keys; None removes a key. Every other byte stays.

    A value goes to the line that takes effect, else to the end of its section, else to a new section at the end of the
    file. Raises UsageError (WslConfigRefused) for a key that WSL does not know, for a value that the format cannot
    hold, and if WSL would not read the added line because of an unreadable one before it.
    """
    file = parse(text, dialect)
    for (section, name), value in desired.items():
        key = key_of(dialect, (section.lower(), name.lower()))
        if key is None:
            raise _refused_error(f"{section}.{name}", "WSL knows no such key", "Name one that it knows.")
        key_lines = [line for line in file.keys if key_of(dialect, line.id) is key]
        if value is None:  # all lines are removed: otherwise a second one would take effect
            text = "".join(line.text for line in file.lines if not any(line is each for each in key_lines))
        elif not key_lines:
            text = _add_key(file, key, _format_value(key, value))
        else:
            line, raw = key_lines[0], _format_value(key, value)
            before, after = line.text[: line.raw.start], line.text[line.raw.stop :]
            changed_line = line.text if line.value == value else before + raw + after
            text = "".join(changed_line if each is line else each.text for each in file.lines)
        file = parse(text, dialect)
    return file.text


def _add_key(file: ConfigFile, key: Key, raw: str) -> str:
    end = "\r\n" if "\r\n" in file.text or (file.dialect.windows and not file.text) else "\n"
    section_lines = [
        number
        for number, line in enumerate(file.lines, 1)
        if line.kind in (LineKind.SECTION, LineKind.KEY) and line.section.lower() == key.section.lower()
    ]
    heading = "" if section_lines else f"[{key.section}]{end}"
    index = section_lines[-1] if section_lines else len(file.lines)
    _check_position(file, index, key)
    before, after = ("".join(line.text for line in part) for part in (file.lines[:index], file.lines[index:]))
    # A newline that a backslash joins to the value does not end the line.
    last = file.lines[index - 1] if before not in ("", "\ufeff") else None
    ended = last is None or last.text[last.raw.stop :].endswith("\n")
    return f"{before}{'' if ended else end}{heading}{key.name}={raw}{end}{after}"


def _check_position(file: ConfigFile, index: int, key: Key) -> None:
    """Raise WslConfigRefused if WSL would not read a line added here: after a line at which it stops reading, or after
    a backslash that joins the two lines.
    """
    for line in file.lines[:index]:
        joins = line is file.lines[-1] and (line.text[line.at :] == "\\" or line.text.endswith("\\\r"))
        if joins or not (file.dialect.windows or line.kind in HARMLESS):
            why = f"WSL would not read it after line {line.position[0]}"
            remedy = f"Mend line {line.position[0]} first: winhost lint {file.dialect.name} FILE"
            raise _refused_error(str(key), why, remedy)


_PLAIN = re.compile(r"[\t\b -~]*")
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\t": "\\t", "\b": "\\b"})


def _format_value(key: Key, value: str) -> str:
    """Write a value with its escapes, in quotes if blanks at its ends or a `#` would be lost."""
    if not _PLAIN.fullmatch(value):
        why = "WSL keeps one byte of each character, and values end with their line"
        raise _refused_error(str(key), f"{why} ({value!r})", "Use ASCII for names of switches and files.")
    raw = value.translate(_ESCAPES)
    return f'"{raw}"' if "#" in raw or raw != raw.strip(" ") else raw
