"""The schemas of the agent's answers. Answers are checked once, where they come in."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Annotated, Any, TypeVar, Union

from pydantic import Discriminator, Field, Strict, Tag, TypeAdapter, ValidationError

from winhost.connect.wire_errors import RemoteError, bad_answer, one_line
from winhost.core.answers import Json, RemoteFault
from winhost.core.dataclass import dataclass
from winhost.model.documents import plain
from winhost.model.errors import visible
from winhost.model.once import once
from winhost.model.units import MiB, size

MOST = 4 * MiB  # characters of an answer; the largest hosts that we know answer everything with less than a tenth
MOST_VALUES = 100_000
_DEEPEST = 24  # the agent writes down to 10
_LARGEST = 1 << 64
_FAULTS = 3  # of an answer that are told

_HALF = re.compile("[\ud800-\udfff]")

_NO_TAG = ("winhost_ok", "it does not say whether it went well")

A = TypeVar("A")


class NotTheAgents(Exception):
    """The output is not an answer of the agent. The text says why, on one line."""


@dataclass(frozen=True)
class InstanceAnswer:
    """One of those that a resource has."""

    state: dict[str, Any]
    key: dict[str, str]


@dataclass(frozen=True)
class ListAnswer:
    """All instances of a resource."""

    instances: tuple[InstanceAnswer, ...]


@dataclass(frozen=True)
class Got:
    """The state of one instance; None where there is none."""

    state: dict[str, Any] | None


@dataclass(frozen=True)
class Changed:
    """A set that went through. restart: what has to restart, where anything has."""

    before: dict[str, Any]
    after: dict[str, Any] | None
    restart: tuple[Any, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Sent:
    """The bytes of a file that are there; and the whole size, where a host downloads it and its server told."""

    received: Annotated[int, Strict(), Field(ge=0)]
    sha256: str | None
    whole: Annotated[int, Strict(), Field(ge=0)] | None = None


@dataclass(frozen=True)
class RestartAnswer:
    """The host goes down."""


@dataclass(frozen=True)
class UnavailableAnswer:
    """The resource that has to exist first."""

    unavailable: str


@dataclass(frozen=True)
class DriftedProperty:
    """A property that is not as expected."""

    expected: Any
    found: Any


@dataclass(frozen=True)
class Differs:
    """Nothing was changed, because this is not as expected."""

    drift: dict[str, DriftedProperty]


@dataclass(frozen=True)
class FailedAnswer:
    """An error, and of a change what is so now where the host could tell."""

    error: RemoteFault
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    warnings: tuple[str, ...] = field(default=())


Refusal = UnavailableAnswer | Differs | FailedAnswer


def parsed(text: str, count: int) -> list[Any]:
    """So many answers, each still to be `checked`. Raises NotTheAgents."""
    if len(text) > MOST or sum(map(text.count, "[{,")) > MOST_VALUES:
        raise NotTheAgents(f"an answer of {size(len(text))} is larger than any of the agent's")
    try:
        document = json.loads(text, parse_constant=_no_number, parse_int=_whole, parse_float=_finite)
    except RecursionError:
        raise NotTheAgents("an answer nested deeper than any of the agent's") from None
    except ValueError:
        raise NotTheAgents(f"what came back is no JSON: {_begin(text)}") from None
    if _too_deep(document):
        raise NotTheAgents("an answer nested deeper than any of the agent's")
    answers = document.get("answers") if isinstance(document, dict) else None
    if not isinstance(answers, list):
        raise NotTheAgents(f"what came back holds no answers: {_begin(text)}")
    if len(answers) != count:
        raise NotTheAgents(f"{len(answers)} answers to {count} calls: {_begin(text)}")
    return answers


def checked(answer: object, kind: type[A]) -> A | Refusal:
    """An answer as a kind has it, or why there is none. Raises NotTheAgents."""
    if isinstance(answer, dict) and answer.get("ok") is False and not _is_unicode(answer):
        answer = _mended(answer)  # without half characters in the words of an error, the rest of it can be read
    try:
        found: A | Refusal = _adapter(kind).validate_python(answer)
    except ValidationError as error:
        faults = []
        for each in error.errors(include_url=False, include_input=False):
            position = ".".join(map(str, each["loc"][1:]))  # without the tag, which is ours
            faults.append(f"{position}: {each['msg']}" if position else each["msg"])
        more = f"; and {len(faults) - _FAULTS} more" if len(faults) > _FAULTS else ""
        raise NotTheAgents(one_line("; ".join(faults[:_FAULTS]) + more)[:500]) from None
    return found


def one_answer(host: str, text: str, kind: type[A], doing: str) -> A:
    """Parse the one answer of a program that is no agent, such as that of `winhost probe`. Raises RemoteError."""
    try:
        (answer,) = parsed(text, 1)
        found = checked(answer, kind)
    except NotTheAgents as why:
        raise bad_answer(host, str(why), doing) from None
    if isinstance(found, FailedAnswer):
        raise RemoteError(host, found.error, doing)
    if not isinstance(found, kind):
        raise bad_answer(host, "it says that it did not try", doing)
    if unlike := not_text(plain(found)):
        raise bad_answer(host, unlike, doing)
    return found


def not_text(value: Json) -> str | None:
    """Name a text that is not valid Unicode, or None: .NET allows lone surrogates, files and terminals do not."""
    if _is_unicode(value):
        return None
    name, text = next((name, text) for name, text in _texts(value) if _HALF.search(text))
    return f"{name} is '{visible(text)}', which is not Unicode text"


@once
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    kinds: Any = Union[  # noqa: UP007 - one of its members is a variable
        Annotated[kind, Tag("done")],
        Annotated[UnavailableAnswer, Tag("unavailable")],
        Annotated[Differs, Tag("drift")],
        Annotated[FailedAnswer, Tag("failed")],
    ]
    return TypeAdapter(Annotated[kinds, Discriminator(_tag, *_NO_TAG)])


def _tag(answer: object) -> str | None:
    """The kind of an answer, by its own content."""
    if not isinstance(answer, dict) or not isinstance(answer.get("ok"), bool):
        return None
    if answer["ok"]:
        return "done"
    return next((name for name in ("unavailable", "drift") if name in answer), "failed")


def _mended(value: Json) -> Json:
    if isinstance(value, str):
        return _HALF.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, dict):
        return {_mended(name): _mended(each) for name, each in value.items()}
    return [_mended(each) for each in value] if isinstance(value, list) else value


def _is_unicode(value: Json) -> bool:
    """Tell whether all text is Unicode. Quick for an answer of any size; the position is only searched where it
    is not.
    """
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _texts(value: Json, name: str = "") -> Iterator[tuple[str, str]]:
    """Every text in it, with the name of what it is."""
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, Mapping):
        for inner, each in value.items():
            yield "a name", inner
            yield from _texts(each, inner)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each, name)


def _too_deep(document: Json) -> bool:
    level = [document] if isinstance(document, dict | list) else []
    for _ in range(_DEEPEST):
        inside = (value.values() if isinstance(value, dict) else value for value in level)
        level = [inner for values in inside for inner in values if isinstance(inner, dict | list)]
        if not level:
            return False
    return True


def _begin(text: str) -> str:
    return one_line(repr(text[:80]))


def _no_number(word: str) -> None:
    raise ValueError(word)


def _whole(digits: str) -> int:
    value = int(digits)
    if abs(value) >= _LARGEST:
        raise ValueError(digits)
    return value


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(digits)
    return value
