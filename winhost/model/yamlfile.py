"""Reads the files that people write (YAML) and those that are exchanged (JSON) into pydantic models.

All faults of a file are reported at once, each with its position. Values that YAML 1.1 would change stay as they are
written: `no`, `on`, `12:30`, `0755` and dates are text, and only `true` and `false` are booleans.
Tags and aliases are refused, so that no document is larger than its file. Validation is pydantic's strict JSON mode:
`"5986"` is no number and `yes` no boolean.

Memory is bounded whatever the file: by its size, the number and nesting of its values, and the number of faults that
are listed.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import islice
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Generic, TypeAlias, TypeVar, Union, cast, get_args, get_origin

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from winhost.core.dataclass import dataclass
from winhost.model.errors import MAX_LISTED_FAULTS, Fault, UsageError, did_you_mean, file_faults, visible
from winhost.model.files import TooLarge, check_writers, read_within, suggest_sibling
from winhost.model.once import once
from winhost.model.secrets import SecretRef
from winhost.model.units import MiB
from winhost.model.versions import SUPPORTED_SCHEMAS, refuse_other_kind, refuse_other_version
from winhost.model.written import NOT_WRITTEN, Written, WrittenAs

Loc: TypeAlias = tuple[str | int, ...]
"""A location in a document: keys and list indexes from its root."""

Mistake: TypeAlias = tuple[Loc, str]
"""A location in the data, and what is wrong there."""

Model = TypeVar("Model")
Kind = TypeVar("Kind")

_PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
MAX_FILE_SIZE = 8 * MiB
MAX_VALUES = 100_000
"""The most values of a file. A fleet of 5,000 hosts has 40,000, the facts of a host with 100 VMs 10,000."""
_MAX_DEPTH = 64
_MAX_SHOWN = 60


@dataclass(frozen=True)
class Position:
    """Line and column, counted from 1."""

    line: int
    column: int


@dataclass(frozen=True)
class Loaded(Generic[Model]):
    """A valid file with the positions of its values."""

    path: Path
    value: Model
    positions: Mapping[Loc, Position]

    def describe_position(self, loc: Loc) -> str:
        """Format a location with its line: `hosts.gpu-01.transport.password (fleet.yaml:14)`."""
        return visible(f"{dotted(loc)} ({self.path.name}:{_nearest_position(self.positions, loc).line})")


def load(path: Path, model: type[Model]) -> Model:
    """Read a YAML file. Raises UsageError (FileFaults, OtherVersion)."""
    return load_with_positions(path, model, lambda _: ()).value


def load_with_positions(
    path: Path, model: type[Model], check: Callable[[Model], Iterable[Mistake]], how_to_create: str = ""
) -> Loaded[Model]:
    """Read a YAML file, and check keys that depend on each other.

    check: finds mistakes that the model cannot find; if the file has other faults, it checks the file without the
    faulty entries. how_to_create: a hint for a user without such a file. Raises UsageError (FileFaults, WrongDocument,
    OtherVersion).
    """
    document = _Document(str(path))
    data = document.read(_read_text(path, how_to_create))
    check_writers(path, data)
    if isinstance(data, dict) and str(data.get("schema")).startswith("winhost."):
        position = f"{path}:{_nearest_position(document.positions, ('schema',)).line}"
        for kind in model.__annotations__.values():
            schema = next(iter(get_args(kind)), None)  # of `schema: Literal["winhost.fleet/1"]`
            if isinstance(schema, str) and schema in SUPPORTED_SCHEMAS:
                refuse_other_kind(position, data, schema, SUPPORTED_SCHEMAS[schema])
        refuse_other_version(position, data)
    value, mistakes, more = _validate(json.dumps(data), data, model)
    checked = value if value is not None or more else _validate_without(mistakes, data, model)
    if checked is not None:
        known = {loc for loc, _ in mistakes}
        listed, unlisted = _limit_mistakes(mistake for mistake in check(checked) if mistake[0] not in known)
        mistakes += listed
        more += unlisted
    mistakes = [mistake for mistake in mistakes if mistake[0] not in document.unread]
    faults = [*document.faults, *(_fault(str(path), document.positions, *each) for each in mistakes)]
    if value is None or faults:
        raise _faults_error(faults, more + document.more)
    return Loaded(path, value, document.positions)


def load_json(
    path: Path, kind: type[Kind], first: Callable[[Any], None] = lambda data: None, how_to_create: str = ""
) -> Kind:
    """Read a JSON file into a model, a dataclass or plain data. Only syntax errors have line and column.

    `first` sees the data before it is checked. how_to_create: as of `load_with_positions`. Raises
    UsageError
    (FileFaults), and what `first` raises.
    """
    text = _read_text(path, how_to_create)
    mistakes: list[Mistake] = []
    data = _parse_json(path, text, mistakes, how_to_create)
    check_writers(path, data)
    first(data)
    value, invalid, more = _validate(text, data, kind)
    mistakes += invalid
    if value is None or mistakes:
        raise _faults_error([Fault(str(path), None, None, dotted(loc), message) for loc, message in mistakes], more)
    return value


def refuse_mistakes(path: Path, mistakes: Iterable[Mistake], positions: Mapping[Loc, Position] | None = None) -> None:
    """Raise UsageError (FileFaults) for mistakes in a file. positions: of a YAML file; None for JSON."""
    listed, more = _limit_mistakes(mistakes)
    if listed:
        raise _faults_error([_fault(str(path), positions, *each) for each in listed], more)


def _fault(file: str, positions: Mapping[Loc, Position] | None, loc: Loc, message: str) -> Fault:
    """Make a fault at the nearest position that the file has."""
    position = None if positions is None else _nearest_position(positions, loc)
    line, column = (None, None) if position is None else (position.line, position.column)
    return Fault(file, line, column, dotted(loc), message)


def _limit_mistakes(mistakes: Iterable[Mistake]) -> tuple[list[Mistake], int]:
    """Return the mistakes that are listed, and how many more there are."""
    remaining = iter(mistakes)
    return list(islice(remaining, MAX_LISTED_FAULTS)), sum(1 for _ in remaining)


def _faults_error(faults: Sequence[Fault], more: int) -> UsageError:
    ordered = sorted(dict.fromkeys(faults), key=lambda fault: (fault.line or 0, fault.column or 0))
    return file_faults(ordered[:MAX_LISTED_FAULTS], more + len(ordered[MAX_LISTED_FAULTS:]))


def dotted(loc: Loc) -> str:
    """Format a location as `hosts.gpu-01.groups[1]`; keys with other characters are quoted."""
    return "".join(map(_segment, loc)).removeprefix(".")


def _segment(part: str | int) -> str:
    if isinstance(part, int):
        return f"[{part}]"
    part = part if len(part) <= _MAX_SHOWN else f"{part[:_MAX_SHOWN]}…"
    return f".{part}" if re.fullmatch(r"[\w-]+", part) else f".{json.dumps(part, ensure_ascii=False)}"


def _nearest_position(positions: Mapping[Loc, Position], loc: Loc) -> Position:
    """Return the position of a location, or of its nearest ancestor that the file has."""
    return next((positions[loc[:end]] for end in range(len(loc), 0, -1) if loc[:end] in positions), Position(1, 1))


# ---- text


def _read_text(path: Path, how_to_create: str = "") -> str:
    try:
        data = read_within(path, MAX_FILE_SIZE)
    except TooLarge as large:
        raise _single_fault_error(path, str(large)) from None
    except OSError as error:
        fault = _single_fault_error(path, f"cannot be read ({error.strerror or error}){suggest_sibling(path)}")
        fault.hint = "Check the path and its permissions" + (f", or {how_to_create}" if how_to_create else "")
        raise fault from None
    # Windows PowerShell 5.1 writes UTF-16 by default, Notepad a byte order mark.
    coding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = data.decode(coding)
    except UnicodeDecodeError as error:
        start = error.start
    else:
        if not text.strip():
            raise _add_hint(_single_fault_error(path, "is empty"), how_to_create)
        return text
    raise _single_fault_error(path, f"is not {coding.removesuffix('-sig').upper()} text (byte {start + 1})")


def _add_hint(fault: UsageError, how_to_create: str) -> UsageError:
    fault.hint = fault.hint or (f"Mend it, or {how_to_create}" if how_to_create else None)
    return fault


def _single_fault_error(path: Path, message: str, line: int | None = None, column: int | None = None) -> UsageError:
    return file_faults([Fault(str(path), line, column, "", message)])


# ---- JSON

_TOO_MANY = f"holds more than {MAX_VALUES:,} values, which no file of this kind needs"


_HOST_FILE = re.compile(r"(#.*\n|\s)*schema: winhost\.host/")


def _parse_json(path: Path, text: str, mistakes: list[Mistake], how_to_create: str) -> object:
    if sum(map(text.count, "[{,")) > MAX_VALUES:
        raise _single_fault_error(path, _TOO_MANY)

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        entries = dict(pairs)
        if len(entries) < len(pairs):
            counts = Counter(key for key, _ in pairs)
            twice = [key for key, count in counts.items() if count > 1]
            mistakes.extend(((), f"key '{_shorten(key)}' is there twice") for key in twice[:MAX_LISTED_FAULTS])
        return entries

    try:
        return json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        simulated = "; it is a host of the simulator, for `winhost lab up`" if _HOST_FILE.match(text) else ""
        fault = _single_fault_error(path, f"is not JSON: {error.msg}{simulated}", error.lineno, error.colno)
    except RecursionError:
        fault = _single_fault_error(path, "is nested too deeply")
    except ValueError:  # the only other error: Python reads no whole number of more than 4,300 digits
        fault = _single_fault_error(path, "holds a number that is too long to be one")
    raise _add_hint(fault, how_to_create)  # outside of `except`, because the decoder's error contains the whole text


# ---- YAML

_NULL = re.compile(r"~|null|Null|NULL|")
_BOOLEAN = re.compile(r"(true|True|TRUE)|false|False|FALSE")
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,18})")
_DECIMAL = re.compile(r"(?=.*[.eE])[-+]?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]{1,3})?")

_SYNTAX_HINTS = {
    "found unknown escape character": "in double quotes write \\\\ for a backslash, or leave the quotes out",
    "found character": "indent with spaces, not with tabs, and quote text that starts with a special character",
    "mapping values are not allowed": "quote text that holds a colon and a space",
}

# The pure Python parser quotes its input, which may be a password that starts with "!" or "*".
_QUOTED_INPUT = re.compile(r"""(?:, but found)? ['"](?![<>:])""")


class _Document:
    """Builds plain data from parser events, and stores the position of every key and list item."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.positions: dict[Loc, Position] = {}
        self.faults: list[Fault] = []
        self.more = 0
        """The number of faults that are not listed."""
        self.unread: set[Loc] = set()
        """Locations of values that were refused without being read, so that other mistakes there are not reported."""
        self._events: Iterator[Any] = iter(())

    def read(self, text: str) -> object:
        """Return the data of the only document in the text. Raises UsageError (FileFaults) if the text cannot be
        parsed.
        """
        try:
            if found := yaml.reader.Reader.NON_PRINTABLE.search(text):
                *before, last = text[: found.start()].split("\n")
                mark = yaml.Mark(self.file, found.start(), len(before), len(last), "", 0)
                raise yaml.MarkedYAMLError(problem=f"found control character {visible(found[0])}", problem_mark=mark)
            self._events = iter(yaml.parse(text, Loader=_PARSER))
            return self._read_document()
        except yaml.YAMLError as error:
            fault = _syntax_fault(self.file, error)
        raise file_faults([fault])

    def _read_document(self) -> object:
        next(self._events)  # start of stream
        if isinstance(next(self._events), yaml.StreamEndEvent):
            return {}
        data = self._value(next(self._events), ())
        next(self._events)  # end of document
        after = next(self._events)
        if not isinstance(after, yaml.StreamEndEvent):
            self._add_fault(after, (), "starts a second document; one file holds one")
        return data

    def _value(self, event: Any, loc: Loc) -> object:
        self.positions.setdefault(loc, _position(event))
        if len(self.positions) > MAX_VALUES:
            raise _single_fault_error(Path(self.file), _TOO_MANY)
        if isinstance(event, yaml.AliasEvent):
            self._add_fault(event, loc, "is an alias (*…); aliases are not read, write the value out")
            self.unread.add(loc)
            return None
        if event.tag is not None:
            self._add_fault(event, loc, "has a tag (!…); tags are not read, write the plain value, or quote it")
        if len(loc) > _MAX_DEPTH:
            raise yaml.MarkedYAMLError(problem=f"nested deeper than {_MAX_DEPTH} levels", problem_mark=event.start_mark)
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(loc)
        if isinstance(event, yaml.SequenceStartEvent):
            items = enumerate(self._events_until(yaml.SequenceEndEvent))
            return [self._value(item, (*loc, position)) for position, item in items]
        return _parse_scalar(event.value) if event.implicit[0] else event.value

    def _mapping(self, loc: Loc) -> dict[str, object]:
        entries: dict[str, object] = {}
        for key in self._events_until(yaml.MappingEndEvent):
            if not isinstance(key, yaml.ScalarEvent):
                raise yaml.MarkedYAMLError(problem="found a key that is not text", problem_mark=key.start_mark)
            inner = (*loc, key.value)
            if key.value in entries:
                self._add_fault(key, inner, f"is there twice; the first is on line {self.positions[inner].line}")
            # The position of an entry is that of its key; of a duplicate key, that of the first one.
            self.positions.setdefault(inner, _position(key))
            value = self._value(next(self._events), inner)
            entries.setdefault(key.value, value)
        return entries

    def _events_until(self, end: type[Any]) -> Iterator[Any]:
        while not isinstance(event := next(self._events), end):
            yield event

    def _add_fault(self, event: Any, loc: Loc, message: str) -> None:
        if len(self.faults) == MAX_LISTED_FAULTS:
            self.more += 1
            return
        position = _position(event)
        self.faults.append(Fault(self.file, position.line, position.column, dotted(loc), message))


def _position(event: Any) -> Position:
    return Position(event.start_mark.line + 1, event.start_mark.column + 1)


def _parse_scalar(text: str) -> bool | int | float | str | None:
    """Parse an unquoted scalar: one of JSON's types, else text."""
    if _NULL.fullmatch(text):
        return None
    if boolean := _BOOLEAN.fullmatch(text):
        return boolean[1] is not None
    if _INTEGER.fullmatch(text):
        return int(text)
    if _DECIMAL.fullmatch(text) and math.isfinite(number := float(text)):
        return number
    return text


def _syntax_fault(file: str, error: yaml.YAMLError) -> Fault:
    mark = getattr(error, "problem_mark", None)
    problem = _QUOTED_INPUT.split(str(getattr(error, "problem", None) or "found a character that is not allowed"))[0]
    mend = next((f"; {mend}" for start, mend in _SYNTAX_HINTS.items() if problem.startswith(start)), "")
    line, column = (mark.line + 1, mark.column + 1) if mark else (None, None)
    return Fault(file, line, column, "", f"is not YAML: {problem}{mend}")


# ---- validation

MISSING = "is missing"
_EXPECTATIONS = {
    "bool_type": "should be true or false",
    "dataclass_type": "should be a mapping",
    "dict_type": "should be a mapping",
    "mapping_type": "should be a mapping",
    "int_parsing": "should be a whole number",
    "int_type": "should be a whole number",
    "list_type": "should be a list",
    "missing": MISSING,
    "model_type": "should be a mapping",
    "string_type": "should be text in quotes",
    "tuple_type": "should be a list",
}
_TYPE_ERRORS = frozenset({"literal_error", "bool_type", "int_type", "float_type", "string_type"})
_ERRORS_WITHOUT_INPUT = frozenset({"missing", "union_tag_invalid", "union_tag_not_found"})


@once
def adapter(kind: Any) -> TypeAdapter[Any]:
    """Return a cached adapter with its validator, because building that takes as long as reading about ten files."""
    adapter = TypeAdapter(kind)
    adapter.rebuild()
    return adapter


def _validate(text: str, data: object, kind: type[Kind]) -> tuple[Kind | None, list[Mistake], int]:
    """Return the value; else None, the mistakes that are listed, and how many more there are."""
    try:
        return adapter(kind).validate_json(text, strict=True), [], 0
    except ValidationError as error:
        mistakes = mistakes_of(error, data, kind)
        return None, mistakes[:MAX_LISTED_FAULTS], len(mistakes[MAX_LISTED_FAULTS:])


def mistakes_of(error: ValidationError, data: object, model: type[Any]) -> list[Mistake]:
    """Turn pydantic's errors about the data of a model into mistakes. For a value that may be of several types pydantic
    reports an error for each type, which become one mistake.
    """
    details: dict[Loc, list[ErrorDetails]] = {}
    for detail in error.errors(include_url=False):
        loc = _location_in_data(detail["loc"], data)
        is_single = detail["type"] not in _TYPE_ERRORS
        details.setdefault((*loc, len(details)) if is_single else loc, []).append(detail)
    return [_mistake(each, data, model) for each in details.values()]


def _mistake(several: Sequence[ErrorDetails], data: object, model: type[Any]) -> Mistake:
    detail = several[0]
    loc = _location_in_data(detail["loc"], data)
    if detail["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        known = [name for kind in kinds_at(model, loc[:-1]) for name, _ in _fields(kind)]
        nearest = did_you_mean(str(loc[-1]), known)
        if nearest or not known:
            return loc, f"unknown key{nearest or '; nothing is known here'}"
        return loc, f"unknown key; known here: {', '.join(known)}"
    if detail["type"] == "missing":
        loc = (*loc, detail["loc"][-1])
    elif detail["input"] is None and any(map(_is_written, kinds_at(model, loc[:-1]))):
        return loc, "is empty: give it a value, or leave the key out"
    if detail["type"] == "value_error":
        return loc, str(detail["ctx"]["error"])
    shoulds = [_EXPECTATIONS.get(each["type"]) or re.sub(r"^\w+ should", "should", each["msg"]) for each in several]
    message = " or ".join([shoulds[0], *(each.removeprefix("should be ") for each in dict.fromkeys(shoulds[1:]))])
    if len(several) > 1:
        message = message.replace(" or ", ", ", message.count(" or ") - 1)
    if detail["type"] in _ERRORS_WITHOUT_INPUT or any(map(_is_secret, kinds_at(model, loc))):
        return loc, message
    return loc, message + _describe_input(detail["input"]) + _suggest_choice(several)


def _suggest_choice(several: Sequence[ErrorDetails]) -> str:
    """Suggest a similar choice if there are several choices."""
    choices = [
        word for each in several for word in re.findall(r"'([^']+)'", str(each.get("ctx", {}).get("expected", "")))
    ]
    value = several[0]["input"]
    return did_you_mean(value, choices) if isinstance(value, str) and len(choices) + len(several) > 2 else ""


def _location_in_data(loc: Loc, data: Any) -> Loc:
    """Return the parts of a pydantic location that are in the data. It also has names of union members and `[key]`."""
    parts: list[str | int] = []
    for part in loc:
        if part in data if isinstance(data, dict) else isinstance(data, list) and isinstance(part, int):
            data = data[part]
            parts.append(part)
    return tuple(parts)


def _describe_input(value: object) -> str:
    if isinstance(value, dict | list):
        return ""
    return f", not '{_shorten(value)}'" if isinstance(value, str) else f", not {_shorten(json.dumps(value))}"


def _shorten(text: str) -> str:
    shown = visible(text[: _MAX_SHOWN + 1])
    return shown if len(shown) <= _MAX_SHOWN else f"{shown[:_MAX_SHOWN]}…"


def _validate_without(mistakes: Iterable[Mistake], data: object, model: type[Model]) -> Model | None:
    """Return the file without the faulty entries; None if that is not valid."""
    faulty = {_enclosing_entry(loc) for loc, _ in mistakes}

    def copy(value: object, loc: Loc) -> object:
        if not isinstance(value, dict):
            return value
        return {key: copy(inner, (*loc, key)) for key, inner in value.items() if (*loc, key) not in faulty}

    return _validate(json.dumps(copy(data, ())), data, model)[0]


def _enclosing_entry(loc: Loc) -> Loc:
    """Return the location of the mapping entry around a location. A list is always a whole entry, because its items are
    identified by their indexes.
    """
    end = next((index for index, part in enumerate(loc) if isinstance(part, int)), len(loc))
    return loc[:end]


# ---- the types of a model at a location


def parse_value(text: str) -> Any:
    """Parse a value of the command line as in a YAML file; return the text itself if it is no YAML."""
    document = _Document("")
    try:
        value = document.read(text)
    except UsageError:
        return text
    return value if document.positions and not document.faults else text


def kinds_at(model: type[Any], loc: Loc) -> list[object]:
    """Return the types that a location may have, with the members of unions; empty if it may not exist."""
    kinds: list[object] = [model]
    for part in loc:
        kinds = [inner for kind in kinds for inner in _kinds_of_part(kind, part)]
    return kinds


def _kinds_of_part(kind: object, part: str | int) -> Iterator[object]:
    if get_origin(kind) in (dict, Mapping):
        yield from _union_members(get_args(kind)[1])
    elif get_origin(kind) in (list, tuple):
        yield from _union_members(get_args(kind)[0])
    for name, annotation in _fields(kind):
        if name == part:
            yield from _union_members(annotation)


def _union_members(annotation: object) -> Iterator[object]:
    """Yield the members of a union without annotations, as types that a file has."""
    if get_origin(annotation) is Annotated:
        as_written = next((each.kind for each in get_args(annotation) if isinstance(each, WrittenAs)), None)
        yield from _union_members(as_written or get_args(annotation)[0])
    elif get_origin(annotation) in (Union, UnionType):
        for member in get_args(annotation):
            yield from _union_members(member)
    else:
        yield annotation


def _is_secret(kind: object) -> bool:
    return kind is SecretRef or any(map(_is_secret, get_args(kind)))


def _is_written(kind: object) -> bool:
    return isinstance(kind, type) and get_origin(kind) is None and issubclass(kind, Written)


def _fields(kind: object) -> Iterator[tuple[str, Any]]:
    """Yield the keys that a file may have in a mapping of this type, each with its annotation."""
    if isinstance(kind, type) and get_origin(kind) is None and issubclass(kind, BaseModel):
        known = kind.model_fields.items()
        yield from ((info.alias or name, info.annotation) for name, info in known if NOT_WRITTEN not in info.metadata)
    elif _is_written(kind):
        for each in fields(cast(Any, kind)):
            if NOT_WRITTEN not in getattr(each.type, "__metadata__", ()):
                yield each.name, each.type
