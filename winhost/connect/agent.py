"""The agent's protocol: batches of get and set as JSON over any wire."""

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from winhost.connect.errors import Drifted, NotAvailable, NotFound, RemoteError, SessionDropped
from winhost.model.errors import visible
from winhost.model.facts import Answer, Json, Key, Record, RemoteFault, Unavailable, Unknown

NOT_FOUND = "Winhost.NotFound"
COME_BACK = "Winhost.ComeBack"  # a change that may have cut the wire: only a new session shows that it did not
BAD_ANSWER = "Winhost.BadAnswer"  # what came back is not the agent's; ours, no host says it
NOT_TEXT = "Winhost.NotText"  # ours, too: .NET lets halves of characters stand alone, files and terminals do not

_HALF = re.compile("[\ud800-\udfff]")


class Wire(Protocol):
    """Carries one JSON text to the agent and one back. Raises the errors of `winhost.connect.errors`."""

    host: str

    def invoke(self, request: str, within: float) -> str: ...

    def close(self) -> None: ...


class Way(Protocol):
    """How to reach one host, again and again: after a restart, after a lost wire."""

    @property
    def host(self) -> str: ...

    def open(self) -> "Agent": ...


@dataclass(frozen=True)
class SetAnswer:
    """What the host itself saw before and after a set; nothing after, where what was there is gone.

    restart: the change takes effect with a restart.
    """

    before: Mapping[str, Json]
    after: Mapping[str, Json]
    restart: bool = False
    warnings: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class Held:
    """How many bytes a host holds of what is being sent to it; their SHA-256, where it was only asked."""

    size: int
    sha256: str | None


class Agent:
    """Calls the agent on one host. `within`: seconds that a call may take, waiting for another one included."""

    def __init__(self, wire: Wire, call_timeout: float) -> None:
        self.wire = wire
        self.call_timeout = call_timeout

    @property
    def host(self) -> str:
        return self.wire.host

    def close(self) -> None:
        self.wire.close()

    def read(self, nouns: Sequence[str], *, settled: bool = False) -> dict[str, Answer]:
        """All instances of each noun. With `settled`, after a call that may still be running there has ended."""
        answers = self._call([{"noun": noun, "verb": "get"} for noun in nouns], settled=settled)
        return {noun: _answer(answer) for noun, answer in zip(nouns, answers, strict=True)}

    def get(self, noun: str, key: Key, *, settled: bool = False) -> Mapping[str, Json] | None:
        """The state of one instance, or None where there is none. Raises RemoteError, NotAvailable."""
        (answer,) = self._call([{"noun": noun, "verb": "get", "key": key}], settled=settled)
        if not answer["ok"]:
            raise self._error(answer, f"get {noun}")
        state: Mapping[str, Json] | None = answer["state"]
        return state

    def set(
        self, noun: str, key: Key, want: Mapping[str, Json], expect: Mapping[str, Json], how: Mapping[str, Json]
    ) -> SetAnswer:
        """Change one instance. Raises Drifted (nothing changed), NotFound, RemoteError, NotAvailable."""
        call = {"noun": noun, "verb": "set", "key": key, "want": want, "expect": expect, "how": how}
        (answer,) = self._call([call], extra=float(how.get("within", 0)))
        if not answer["ok"]:
            raise self._error(answer, f"set {noun}")
        return SetAnswer(answer["before"], answer["after"] or {}, bool(answer["restart"]), tuple(answer["warnings"]))

    def held(self, noun: str, key: Key, expect: Mapping[str, Json]) -> Held:
        """What was sent so far of what `set` needs of here. Raises Drifted, RemoteError."""
        return self._send({"noun": noun, "verb": "send", "key": key, "expect": expect})

    def send(self, noun: str, key: Key, at: int, piece: bytes) -> Held:
        """A piece that begins at byte `at`: where the last one ended, or 0, and all begins anew. Raises RemoteError."""
        content = {"at": at, "bytes": base64.b64encode(piece).decode()}
        held = self._send({"noun": noun, "verb": "send", "key": key, "piece": content})
        if held.size != at + len(piece):  # something there takes it away again: no patience would ever end that
            message = f"{held.size} bytes are there, and not {at + len(piece)}"
            raise RemoteError(self.host, RemoteFault("InvalidResult", BAD_ANSWER, message=message), f"send {noun}")
        return held

    def _send(self, call: Mapping[str, Json]) -> Held:
        (answer,) = self._call([call])
        if not answer["ok"]:
            raise self._error(answer, f"send {call['noun']}")
        return Held(answer["held"], answer["sha256"])

    def restart(self) -> None:
        """Ask the host to restart; it answers before it goes."""
        (answer,) = self._call([{"noun": "Boot", "verb": "restart"}])
        if not answer["ok"]:
            raise self._error(answer, "restart")

    def _call(
        self, calls: Sequence[Mapping[str, Json]], *, settled: bool = False, extra: float = 0
    ) -> list[dict[str, Any]]:
        request = json.dumps({"exclusive": settled, "calls": calls})
        text = self.wire.invoke(request, self.call_timeout + extra)
        answers = _answers(text)
        if len(answers) != len(calls):
            message = f"{len(answers)} answers to {len(calls)} calls: {text[:80]!r}"
            raise RemoteError(self.host, RemoteFault("InvalidResult", BAD_ANSWER, message=message), "read its answer")
        return answers

    def _error(self, answer: Mapping[str, Any], doing: str) -> Exception:
        if "unavailable" in answer:
            return NotAvailable(self.host, doing, answer["unavailable"])
        if "drift" in answer:
            differences = {name: (d["expected"], d["found"]) for name, d in answer["drift"].items()}
            return Drifted(self.host, doing, differences)
        error = fault(answer["error"])
        if error.code == COME_BACK:
            return SessionDropped(self.host, "the host wants to be reached anew")
        kind = NotFound if error.code == NOT_FOUND else RemoteError
        warnings = tuple(answer.get("warnings", ()))
        return kind(self.host, error, doing, answer.get("before"), answer.get("after"), warnings)


def _answers(text: str) -> list[dict[str, Any]]:
    """Those that are in the text; none where it is not what the agent writes."""
    try:
        document = json.loads(text)
    except ValueError:
        return []
    answers = document.get("answers") if isinstance(document, dict) else None
    return [a for a in answers if isinstance(a, dict) and "ok" in a] if isinstance(answers, list) else []


def _answer(answer: Mapping[str, Any]) -> Answer:
    if answer["ok"]:
        for place, text in () if _is_unicode(answer["instances"]) else _texts(answer["instances"]):
            if _HALF.search(text):
                message = f"{place} is '{visible(text)}', which is not Unicode text"
                return Unknown(RemoteFault("InvalidData", NOT_TEXT, message=message))
        return tuple(Record(state=i["state"], key=i["key"]) for i in answer["instances"])
    if "unavailable" in answer:
        return Unavailable(answer["unavailable"])
    return Unknown(fault(answer["error"]))


def _is_unicode(value: Json) -> bool:
    """Whether all text in it is. Said at once of an answer of any size, to look for the place only where it is not."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _texts(value: Json, place: str = "") -> Iterator[tuple[str, str]]:
    """Every text in it, with the name of what it is."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield from _texts(each, name)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each, place)


def fault(error: Mapping[str, Any]) -> RemoteFault:
    """An error as the agent writes it."""
    return RemoteFault(
        category=error["category"],
        code=error.get("code", ""),
        hresults=tuple(error.get("hresults", ())),
        cmdlet=error.get("cmdlet", ""),
        message=error.get("message", ""),
    )
