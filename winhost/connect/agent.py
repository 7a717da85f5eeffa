"""The client of the agent's protocol: batches of get and set as JSON over any wire."""

import base64
import json
import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from winhost.connect.checked_answers import (
    ChangeAnswer,
    DriftAnswer,
    FailedAnswer,
    GetAnswer,
    InvalidAnswer,
    ListAnswer,
    Refusal,
    RestartAnswer,
    TransferAnswer,
    UnavailableAnswer,
    check_answer,
    find_invalid_text,
    parse_answers,
)
from winhost.connect.logged import describe_call, describe_calls, logged, refusal_codes
from winhost.connect.patience import Patience
from winhost.connect.tunnel import SshRoute, Tunnels
from winhost.connect.wire_errors import (
    BAD_ANSWER,
    Drifted,
    NotAvailable,
    ReconnectRequired,
    RemoteError,
    bad_answer_error,
    not_found_error,
)
from winhost.core.answers import Id, Json, Key, Record, RemoteFault, Unavailable, Unknown
from winhost.core.dataclass import dataclass
from winhost.core.steps import SetAnswer
from winhost.model.facts import Answer, Facts

log = logging.getLogger(__name__)

A = TypeVar("A")
Fits = Callable[[str, Sequence[Record]], str | None]
"""Returns why records cannot be those of a resource, or None."""
State = Mapping[str, Json] | RemoteFault | None
"""The state of one instance that was read by name; None: it does not exist."""

MARKS = "RunMarks"
NOT_FOUND = "Winhost.NotFound"
NOT_FETCHED = "Winhost.NotFetched"
NO_RANGE = "Winhost.NoRange"
COME_BACK = "Winhost.ComeBack"  # the change may have cut the connection: a new session has to confirm it
BOOT = {"windows": "Boot", "linux": "LinuxBoot"}  # by system, the resource that restarts it
NOT_TEXT = "Winhost.NotText"  # made here and not by a host: see `checked_answers.find_invalid_text`


def accept_any(resource: str, records: Sequence[Record]) -> None:
    """Accept any record, for callers that know no resources."""


class Wire(Protocol):
    """A connection that carries one JSON request to the agent, and one answer back. Raises the errors of
    `winhost.connect.wire_errors`.
    """

    host: str

    def invoke(self, request: str, within: float) -> str: ...

    def close(self) -> None: ...


class Connector(Protocol):
    """Opens sessions with one host: the first, and others after a restart or a lost connection."""

    @property
    def host(self) -> str: ...

    def open(self) -> "Agent": ...


@dataclass(frozen=True)
class Received:
    """The progress of a file transfer. size: the number of bytes on the host; sha256: of these, if the host was only
    asked; whole: the size of a file that the host downloads itself, once that is known.
    """

    size: int
    sha256: str | None
    whole: int | None = None


class Agent:
    """A client of the agent on one host. call_timeout: seconds of a call, including the time that it waits for another.

    fits: checks records of a resource. Each answer is checked by that and by `checked_answers`, here and nowhere else.
    system: windows or linux, whose resources the agent knows; on_wait: is called with what the host waits for;
    patience: for a Linux behind the host that may be starting, None not to wait; on_facts_read: is called with all
    facts.
    """

    def __init__(self, wire: Wire, call_timeout: float, fits: Fits = accept_any, system: str = "windows") -> None:
        self.wire = wire
        self.call_timeout = call_timeout
        self.fits = fits
        self.system = system
        self.on_wait: Callable[[str], None] = lambda text: None
        self.patience: Patience | None = None
        self.on_facts_read: Callable[[Facts], None] = lambda facts: None

    @property
    def host(self) -> str:
        return self.wire.host

    def close(self) -> None:
        self.wire.close()

    def read(self, resources: Sequence[str], *, settled: bool = False) -> dict[str, Answer]:
        """Read all instances of each resource. settled: after a call that may still be running on the host has ended.

        A resource with invalid records is Unknown. Raises RemoteError for an output that is no answer.
        """
        return self.read_with(resources, (), settled=settled)[0]

    def read_with(
        self, resources: Sequence[str], ids: Sequence[Id], *, settled: bool = False
    ) -> tuple[dict[str, Answer], dict[Id, State]]:
        """Read resources as `read` does and instances as `get_each` does, in one call."""
        lists: list[Mapping[str, Json]] = [{"resource": resource, "verb": "get"} for resource in resources]
        kinds: list[type[Any]] = [*(ListAnswer for _ in resources), *(GetAnswer for _ in ids)]
        answers: list[Any] = self._call([*lists, *map(_get, ids)], kinds, settled=settled)
        listed, by_name = answers[: len(resources)], answers[len(resources) :]
        return (
            {resource: self._answer(resource, answer) for resource, answer in zip(resources, listed, strict=True)},
            {id_: self._state(id_, answer) for id_, answer in zip(ids, by_name, strict=True)},
        )

    def get(self, resource: str, key: Key, *, settled: bool = False) -> Mapping[str, Json] | None:
        """Read the state of one instance; None if it does not exist. Raises RemoteError, NotAvailable."""
        answer = self._call_one({"resource": resource, "verb": "get", "key": key}, GetAnswer, settled=settled)
        self._check_states(resource, key, answer.state)
        return answer.state

    def get_each(self, ids: Sequence[Id]) -> list[State]:
        """Read the states of instances in one call; None for one that does not exist. Raises RemoteError for an output
        that is no answer.
        """
        answers: list[GetAnswer | Refusal] = self._call([*map(_get, ids)], [GetAnswer for _ in ids])
        return [self._state(id_, answer) for id_, answer in zip(ids, answers, strict=True)]

    def _state(self, id_: Id, answer: "GetAnswer | Refusal") -> State:
        if isinstance(answer, FailedAnswer):
            return answer.error
        if not isinstance(answer, GetAnswer) or answer.state is None:
            return None
        resource, key = id_
        invalid = self._invalid_records(resource, (Record(answer.state, dict(key)),))
        return invalid.unknown if invalid else answer.state

    def set(
        self, resource: str, key: Key, desired: Mapping[str, Json], expect: Mapping[str, Json], how: Mapping[str, Json]
    ) -> SetAnswer:
        """Change one instance. Raises Drifted (nothing changed), NotFound, RemoteError, NotAvailable."""
        call = {"resource": resource, "verb": "set", "key": key, "desired": desired, "expect": expect, "how": how}
        changed = self._call_one(call, ChangeAnswer, extra=float(how.get("within", 0)))
        self._check_states(resource, key, changed.before, changed.after)
        return SetAnswer(changed.before, changed.after or {}, bool(changed.restart), changed.warnings)

    def marks(self, system: str) -> tuple[str, ...]:
        """Read the marks of runs on the host, in the form of `core.marks`. Raises RemoteError, NotAvailable."""
        if system != self.system:
            return ()
        answer = self._call_one({"resource": MARKS, "verb": "get", "key": {}}, GetAnswer)
        lines = (answer.state or {}).get("marks")
        if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
            raise bad_answer_error(self.host, "they are no lines of text", f"get {MARKS}")
        return tuple(lines)

    def keep_marks(self, system: str, lines: Sequence[str], expect: Sequence[str]) -> None:
        """Replace the marks of runs on the host. expect: the marks as they were read. Raises Drifted if there are
        others by now, RemoteError, NotAvailable.
        """
        desired, known = {"marks": list(lines)}, {"marks": list(expect)}
        self._call_one({"resource": MARKS, "verb": "set", "key": {}, "desired": desired, "expect": known}, ChangeAnswer)

    def received(self, resource: str, key: Key, expect: Mapping[str, Json]) -> Received:
        """Read how much of the file for a `set` was received so far. Raises Drifted, RemoteError."""
        return self._send({"resource": resource, "verb": "send", "key": key, "expect": expect})

    def send(self, resource: str, key: Key, offset: int, piece: bytes) -> Received:
        """Send a piece of a file. offset: where the last piece ended, or 0 to start over. Raises RemoteError."""
        content = {"at": offset, "bytes": base64.b64encode(piece).decode()}
        received = self._send({"resource": resource, "verb": "send", "key": key, "piece": content})
        if received.size != offset + len(piece):  # something on the host removes bytes, so retrying would never end
            raise bad_answer_error(
                self.host, f"{received.size} bytes are there, and not {offset + len(piece)}", f"send {resource}"
            )
        return received

    def pull(self, resource: str, key: Key, offset: int, address: str, seconds: int) -> Received:
        """Let the host download a file from this offset, for up to `seconds`. Raises RemoteError (NOT_FETCHED,
        NO_RANGE).
        """
        piece = {"at": offset, "from": address, "seconds": seconds}
        return self._send({"resource": resource, "verb": "send", "key": key, "piece": piece}, extra=2 * seconds)

    def tunnel(self, address: str, port: int) -> socket.socket:
        """Open a connection from the machine to this address. Raises NotAvailable if the wire cannot do that, and
        Unreachable.
        """
        if not isinstance(self.wire, Tunnels):
            raise NotAvailable(self.host, f"connect to {address}:{port}", "LinuxSystem")
        return self.wire.tunnel(address, port)

    def route(self) -> SshRoute | None:
        """Return the SSH route into the Linux, if the wire uses SSH."""
        return self.wire.route if isinstance(self.wire, Tunnels) else None

    def _send(self, call: Mapping[str, Json], extra: float = 0) -> Received:
        sent = self._call_one(call, TransferAnswer, extra=extra)
        return Received(sent.received, sent.sha256, sent.whole)

    def boot(self) -> Mapping[str, Json]:
        """Read the present boot of the host: boot_id, and whether it is ready. Raises as `get` does."""
        return self.get(BOOT[self.system], {}) or {}

    def restart(self) -> None:
        """Request a restart. The host answers before it shuts down, or is down before it answers."""
        self._call_one({"resource": BOOT[self.system], "verb": "restart"}, RestartAnswer)

    def _call_one(self, call: Mapping[str, Json], kind: type[A], *, settled: bool = False, extra: float = 0) -> A:
        answer: A | Refusal
        (answer,) = self._call([call], [kind], settled=settled, extra=extra)
        if isinstance(answer, UnavailableAnswer | DriftAnswer | FailedAnswer):
            raise self._error(answer, describe_call(call))
        return answer

    def _call(
        self,
        calls: Sequence[Mapping[str, Json]],
        kinds: Sequence[type[Any]],
        *,
        settled: bool = False,
        extra: float = 0,
    ) -> list[Any]:
        request = json.dumps({"exclusive": settled, "calls": calls}, separators=(",", ":"))
        timeout = self.call_timeout + extra
        doing = describe_calls(calls)
        log.debug("%s: %s: asked, for up to %.0f s%s", self.host, doing, timeout, ", after others" if settled else "")
        with logged(log, self.host, doing, logging.DEBUG if "piece" in calls[0] else logging.INFO) as details:
            text = self.wire.invoke(request, timeout)
            details.append(f"{len(request):,} bytes sent, {len(text.encode('utf-8', 'surrogatepass')):,} received")
            answers = self._answers(text, calls, kinds)
            details += refusal_codes(calls, answers)
        return answers

    def _answers(self, text: str, calls: Sequence[Mapping[str, Json]], kinds: Sequence[type[Any]]) -> list[Any]:
        doing = "read its answer"
        try:
            answers = parse_answers(text, len(calls))
            checked = []
            for call, kind, answer in zip(calls, kinds, answers, strict=True):
                doing = f"read its answer to {describe_call(call)}"
                checked.append(check_answer(answer, kind))
        except InvalidAnswer as invalid:
            raise bad_answer_error(self.host, str(invalid), doing) from None
        return checked

    def _answer(self, resource: str, answer: "ListAnswer | Refusal") -> Answer:
        match answer:
            case ListAnswer(instances):
                records = tuple(Record(each.state, each.key) for each in instances)
                return self._invalid_records(resource, records) or records
            case UnavailableAnswer(needs):
                return Unavailable(needs)
            case FailedAnswer(error):
                return Unknown(error)
            case _:
                return Unknown(
                    RemoteFault("InvalidResult", BAD_ANSWER, message="a difference, where nothing was expected")
                )

    def _check_states(self, resource: str, key: Key, *states: Mapping[str, Json] | None) -> None:
        for state in states:
            if state is not None and (invalid := self._invalid_records(resource, (Record(state, key),))):
                raise RemoteError(self.host, invalid.unknown, f"read its answer about {resource}")

    def _invalid_records(self, resource: str, records: Sequence[Record]) -> Unknown | None:
        """Return the reason why records cannot be those of the resource, or None."""
        if reason := find_invalid_text([[record.key, record.state] for record in records]):
            return Unknown(RemoteFault("InvalidData", NOT_TEXT, message=reason))
        if reason := self.fits(resource, records):
            return Unknown(RemoteFault("InvalidData", BAD_ANSWER, message=reason))
        return None

    def _error(self, answer: "Refusal", doing: str) -> Exception:
        if isinstance(answer, UnavailableAnswer):
            return NotAvailable(self.host, doing, answer.unavailable)
        if isinstance(answer, DriftAnswer):
            differences = {name: (each.expected, each.found) for name, each in answer.drift.items()}
            return Drifted(self.host, doing, differences)
        if answer.error.code == COME_BACK:
            return ReconnectRequired(self.host, "the host wants to be reached again")
        make = not_found_error if answer.error.code == NOT_FOUND else RemoteError
        return make(self.host, answer.error, doing, answer.before, answer.after, answer.warnings)


def _get(id_: Id) -> Mapping[str, Json]:
    resource, key = id_
    return {"resource": resource, "verb": "get", "key": dict(key)}
