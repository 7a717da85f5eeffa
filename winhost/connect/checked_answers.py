"""The schemas of the agent's answers. Each answer is checked once, when it arrives."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Annotated, Any, TypeVar, Union

from pydantic import Discriminator, Field, Strict, Tag, TypeAdapter, ValidationError

from winhost.connect.wire_errors import RemoteError, bad_answer_error, one_line
from winhost.core.answers import Json, RemoteFault
from winhost.core.dataclass import dataclass
from winhost.model.documents import plain
from winhost.model.errors import visible
from winhost.model.once import once
from winhost.model.units import MiB, size

MAX_CHARACTERS = 4 * MiB  # of an answer; a read of the largest known hosts has less than a tenth
MAX_VALUES = 100_000
_MAX_DEPTH = 24  # the agent writes at most 10 levels
_MAX_NUMBER = 1 << 64
_MAX_FAULTS = 3  # of one answer in an error message

_SURROGATE = re.compile("[\ud800-\udfff]")

_NO_TAG = ("winhost_ok", "it does not say whether it went well")

A = TypeVar("A")


class InvalidAnswer(Exception):
    """The output is not an answer of the agent. The text is the reason, on one line."""


@dataclass(frozen=True)
class InstanceAnswer:
    """One instance of a resource."""

    state: dict[str, Any]
    key: dict[str, str]


@dataclass(frozen=True)
class ListAnswer:
    """All instances of a resource."""

    instances: tuple[InstanceAnswer, ...]


@dataclass(frozen=True)
class GetAnswer:
    """The state of one instance; None if it does not exist."""

    state: dict[str, Any] | None


@dataclass(frozen=True)
class ChangeAnswer:
    """The answer to a successful set. restart: what has to restart, perhaps nothing."""

    before: dict[str, Any]
    after: dict[str, Any] | None
    restart: tuple[Any, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class TransferAnswer:
    """The answer to a file transfer. received: bytes on the host; whole: the size of a file that the host downloads, if
    the server says it.
    """

    received: Annotated[int, Strict(), Field(ge=0)]
    sha256: str | None
    whole: Annotated[int, Strict(), Field(ge=0)] | None = None


@dataclass(frozen=True)
class RestartAnswer:
    """The answer to a restart: the host shuts down."""


@dataclass(frozen=True)
class UnavailableAnswer:
    """The answer for a resource that cannot be read yet. unavailable: the resource that has to exist first."""

    unavailable: str


@dataclass(frozen=True)
class DriftedProperty:
    """A property that is not as expected."""

    expected: Any
    found: Any


@dataclass(frozen=True)
class DriftAnswer:
    """The answer to a set that changed nothing, because these properties are not as expected."""

    drift: dict[str, DriftedProperty]


@dataclass(frozen=True)
class FailedAnswer:
    """The answer to a failed call. before, after: of a set, the states around it, if the host could read them."""

    error: RemoteFault
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    warnings: tuple[str, ...] = field(default=())


Refusal = UnavailableAnswer | DriftAnswer | FailedAnswer


def parse_answers(text: str, count: int) -> list[Any]:
    """Parse the answers to `count` calls, for `check_answer`. Raises InvalidAnswer."""
    if len(text) > MAX_CHARACTERS or sum(map(text.count, "[{,")) > MAX_VALUES:
        raise InvalidAnswer(f"an answer of {size(len(text))} is larger than any of the agent's")
    try:
        document = json.loads(text, parse_constant=_refuse_constant, parse_int=_parse_int, parse_float=_parse_float)
    except RecursionError:
        raise InvalidAnswer("an answer nested deeper than any of the agent's") from None
    except ValueError:
        raise InvalidAnswer(f"what came back is no JSON: {_excerpt(text)}") from None
    if _is_too_deep(document):
        raise InvalidAnswer("an answer nested deeper than any of the agent's")
    answers = document.get("answers") if isinstance(document, dict) else None
    if not isinstance(answers, list):
        raise InvalidAnswer(f"what came back holds no answers: {_excerpt(text)}")
    if len(answers) != count:
        raise InvalidAnswer(f"{len(answers)} answers to {count} calls: {_excerpt(text)}")
    return answers


def check_answer(answer: object, kind: type[A]) -> A | Refusal:
    """Check an answer. Returns it as an instance of `kind`, or the Refusal. Raises InvalidAnswer."""
    if isinstance(answer, dict) and answer.get("ok") is False and not _is_unicode(answer):
        answer = _replace_surrogates(answer)  # so that the error can be read in spite of lone surrogates
    try:
        checked: A | Refusal = _adapter(kind).validate_python(answer)
    except ValidationError as error:
        faults = []
        for each in error.errors(include_url=False, include_input=False):
            position = ".".join(map(str, each["loc"][1:]))  # without the tag of the union
            faults.append(f"{position}: {each['msg']}" if position else each["msg"])
        more = f"; and {len(faults) - _MAX_FAULTS} more" if len(faults) > _MAX_FAULTS else ""
        raise InvalidAnswer(one_line("; ".join(faults[:_MAX_FAULTS]) + more)[:500]) from None
    return checked


def parse_one_answer(host: str, text: str, kind: type[A], doing: str) -> A:
    """Parse the answer of another program than the agent, such as that of `winhost probe`. Raises RemoteError."""
    try:
        (answer,) = parse_answers(text, 1)
        checked = check_answer(answer, kind)
    except InvalidAnswer as invalid:
        raise bad_answer_error(host, str(invalid), doing) from None
    if isinstance(checked, FailedAnswer):
        raise RemoteError(host, checked.error, doing)
    if not isinstance(checked, kind):
        raise bad_answer_error(host, "it says that it did not try", doing)
    if invalid_text := find_invalid_text(plain(checked)):
        raise bad_answer_error(host, invalid_text, doing)
    return checked


def find_invalid_text(value: Json) -> str | None:
    """Describe a text that is not valid Unicode; None if all are. .NET allows lone surrogates, files and terminals do
    not.
    """
    if _is_unicode(value):
        return None
    name, text = next((name, text) for name, text in _texts(value) if _SURROGATE.search(text))
    return f"{name} is '{visible(text)}', which is not Unicode text"


@once
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    kinds: Any = Union[  # noqa: UP007 - one of its members is a variable
        Annotated[kind, Tag("done")],
        Annotated[UnavailableAnswer, Tag("unavailable")],
        Annotated[DriftAnswer, Tag("drift")],
        Annotated[FailedAnswer, Tag("failed")],
    ]
    return TypeAdapter(Annotated[kinds, Discriminator(_tag, *_NO_TAG)])


def _tag(answer: object) -> str | None:
    """Return the tag of an answer by its content."""
    if not isinstance(answer, dict) or not isinstance(answer.get("ok"), bool):
        return None
    if answer["ok"]:
        return "done"
    return next((name for name in ("unavailable", "drift") if name in answer), "failed")


def _replace_surrogates(value: Json) -> Json:
    if isinstance(value, str):
        return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, dict):
        return {_replace_surrogates(name): _replace_surrogates(each) for name, each in value.items()}
    return [_replace_surrogates(each) for each in value] if isinstance(value, list) else value


def _is_unicode(value: Json) -> bool:
    """Tell whether all text is valid Unicode. Quick for answers of any size."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _texts(value: Json, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield each text in a value, with the name of its property."""
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, Mapping):
        for inner, each in value.items():
            yield "a name", inner
            yield from _texts(each, inner)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each, name)


def _is_too_deep(document: Json) -> bool:
    level = [document] if isinstance(document, dict | list) else []
    for _ in range(_MAX_DEPTH):
        contents = (value.values() if isinstance(value, dict) else value for value in level)
        level = [inner for values in contents for inner in values if isinstance(inner, dict | list)]
        if not level:
            return False
    return True


def _excerpt(text: str) -> str:
    return one_line(repr(text[:80]))


def _refuse_constant(word: str) -> None:
    raise ValueError(word)


def _parse_int(digits: str) -> int:
    value = int(digits)
    if abs(value) >= _MAX_NUMBER:
        raise ValueError(digits)
    return value


def _parse_float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(digits)
    return value
