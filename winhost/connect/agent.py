"""The agent's protocol: batches of get and set as JSON over any wire."""

import base64
import json
import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from winhost.connect.checked_answers import (
    Changed,
    Differs,
    FailedAnswer,
    Got,
    ListAnswer,
    NotTheAgents,
    Refusal,
    RestartAnswer,
    Sent,
    UnavailableAnswer,
    checked,
    not_text,
    parsed,
)
from winhost.connect.logged import doing_of, logged, named, refusals
from winhost.connect.patience import Patience
from winhost.connect.tunnel import SshWay, Tunnels
from winhost.connect.wire_errors import BAD_ANSWER, Drifted, NotAvailable, ReachAnew, RemoteError, bad_answer, not_found
from winhost.core.answers import Id, Json, Key, Record, RemoteFault, Unavailable, Unknown
from winhost.core.dataclass import dataclass
from winhost.core.steps import SetAnswer
from winhost.model.facts import Answer, Facts

log = logging.getLogger(__name__)

A = TypeVar("A")
Fits = Callable[[str, Sequence[Record]], str | None]
"""Returns why records cannot be those of a resource, or None."""
State = Mapping[str, Json] | RemoteFault | None
"""The state of one instance that was asked for by name; None: it does not exist."""

MARKS = "RunMarks"
NOT_FOUND = "Winhost.NotFound"
NOT_FETCHED = "Winhost.NotFetched"
NO_RANGE = "Winhost.NoRange"
COME_BACK = "Winhost.ComeBack"  # a change that may have cut the wire: only a new session shows that it did not
BOOT = {"windows": "Boot", "linux": "LinuxBoot"}  # by system, the resource that is asked to restart
NOT_TEXT = "Winhost.NotText"  # ours, no host says it: see `checked_answers.not_text`


def anything(resource: str, records: Sequence[Record]) -> None:
    """Accept any record: for callers that know no resources."""


class Wire(Protocol):
    """Carries one JSON text to the agent and one back. Raises the errors of `winhost.connect.wire_errors`."""

    host: str

    def invoke(self, request: str, within: float) -> str: ...

    def close(self) -> None: ...


class Connector(Protocol):
    """Opens a session with one host, again and again: after a restart, after a lost connection."""

    @property
    def host(self) -> str: ...

    def open(self) -> "Agent": ...


@dataclass(frozen=True)
class Received:
    """The progress of a file that is sent. size: the bytes that the host holds; sha256: of these, where it was only
    asked; whole: the size of a file that the host downloads itself, once that is known.
    """

    size: int
    sha256: str | None
    whole: int | None = None


class Agent:
    """Calls the agent on one host. `within`: seconds that a call may take, waiting for another one included.

    fits: checks records of a resource. Every answer is checked by that and by `checked_answers`, here and nowhere else.
    system: windows or linux, whose resources it knows; hear: is told what the host waits for; patience: with a machine
    behind it that may be starting, None for none; keep: is told all facts of a whole read.
    """

    def __init__(self, wire: Wire, call_timeout: float, fits: Fits = anything, system: str = "windows") -> None:
        self.wire = wire
        self.call_timeout = call_timeout
        self.fits = fits
        self.system = system
        self.hear: Callable[[str], None] = lambda text: None
        self.patience: Patience | None = None
        self.keep: Callable[[Facts], None] = lambda facts: None

    @property
    def host(self) -> str:
        return self.wire.host

    def close(self) -> None:
        self.wire.close()

    def read(self, resources: Sequence[str], *, settled: bool = False) -> dict[str, Answer]:
        """All instances of each resource. With `settled`, after a call that may still be running there has ended.

        A resource whose records are not what they should be is unknown. Raises RemoteError for what is no answer at
        all.
        """
        return self.read_with(resources, (), settled=settled)[0]

    def read_with(
        self, resources: Sequence[str], ids: Sequence[Id], *, settled: bool = False
    ) -> tuple[dict[str, Answer], dict[Id, State]]:
        """Read resources as `read` does and the states of instances as `each` does, all in one call."""
        lists: list[Mapping[str, Json]] = [{"resource": resource, "verb": "get"} for resource in resources]
        kinds: list[type[Any]] = [*(ListAnswer for _ in resources), *(Got for _ in ids)]
        answers: list[Any] = self._call([*lists, *map(_get, ids)], kinds, settled=settled)
        listed, named = answers[: len(resources)], answers[len(resources) :]
        return (
            {resource: self._answer(resource, answer) for resource, answer in zip(resources, listed, strict=True)},
            {id_: self._state(id_, answer) for id_, answer in zip(ids, named, strict=True)},
        )

    def get(self, resource: str, key: Key, *, settled: bool = False) -> Mapping[str, Json] | None:
        """The state of one instance, or None where there is none. Raises RemoteError, NotAvailable."""
        got = self._one({"resource": resource, "verb": "get", "key": key}, Got, settled=settled)
        self._check(resource, key, got.state)
        return got.state

    def each(self, ids: Sequence[Id]) -> list[State]:
        """The states of instances in one call; None for what is not there. Raises RemoteError for what is no answer."""
        answers: list[Got | Refusal] = self._call([*map(_get, ids)], [Got for _ in ids])
        return [self._state(id_, answer) for id_, answer in zip(ids, answers, strict=True)]

    def _state(self, id_: Id, answer: "Got | Refusal") -> State:
        if isinstance(answer, FailedAnswer):
            return answer.error
        if not isinstance(answer, Got) or answer.state is None:
            return None
        resource, key = id_
        unlike = self._unlike(resource, (Record(answer.state, dict(key)),))
        return unlike.unknown if unlike else answer.state

    def set(
        self, resource: str, key: Key, desired: Mapping[str, Json], expect: Mapping[str, Json], how: Mapping[str, Json]
    ) -> SetAnswer:
        """Change one instance. Raises Drifted (nothing changed), NotFound, RemoteError, NotAvailable."""
        call = {"resource": resource, "verb": "set", "key": key, "desired": desired, "expect": expect, "how": how}
        changed = self._one(call, Changed, extra=float(how.get("within", 0)))
        self._check(resource, key, changed.before, changed.after)
        return SetAnswer(changed.before, changed.after or {}, bool(changed.restart), changed.warnings)

    def marks(self, system: str) -> tuple[str, ...]:
        """The marks of runs on the host, in the form of `core.marks`. Raises RemoteError, NotAvailable."""
        if system != self.system:
            return ()
        got = self._one({"resource": MARKS, "verb": "get", "key": {}}, Got)
        lines = (got.state or {}).get("marks")
        if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
            raise bad_answer(self.host, "they are no lines of text", f"get {MARKS}")
        return tuple(lines)

    def keep_marks(self, system: str, lines: Sequence[str], expect: Sequence[str]) -> None:
        """Keep these alone. Raises Drifted where others came meanwhile, RemoteError, NotAvailable."""
        desired, known = {"marks": list(lines)}, {"marks": list(expect)}
        self._one({"resource": MARKS, "verb": "set", "key": {}, "desired": desired, "expect": known}, Changed)

    def received(self, resource: str, key: Key, expect: Mapping[str, Json]) -> Received:
        """The part that was sent so far of what `set` needs from here. Raises Drifted, RemoteError."""
        return self._send({"resource": resource, "verb": "send", "key": key, "expect": expect})

    def send(self, resource: str, key: Key, at: int, piece: bytes) -> Received:
        """A piece that begins at byte `at`: where the last one ended, or 0 to start over. Raises RemoteError."""
        content = {"at": at, "bytes": base64.b64encode(piece).decode()}
        received = self._send({"resource": resource, "verb": "send", "key": key, "piece": content})
        if received.size != at + len(piece):  # something there takes it away again: no patience would ever end that
            raise bad_answer(
                self.host, f"{received.size} bytes are there, and not {at + len(piece)}", f"send {resource}"
            )
        return received

    def pull(self, resource: str, key: Key, at: int, address: str, seconds: int) -> Received:
        """Have the host fetch from byte `at` on, for up to `seconds`. Raises RemoteError (NOT_FETCHED, NO_RANGE)."""
        piece = {"at": at, "from": address, "seconds": seconds}
        return self._send({"resource": resource, "verb": "send", "key": key, "piece": piece}, extra=2 * seconds)

    def tunnel(self, address: str, port: int) -> socket.socket:
        """A connection from the machine to this address. Raises NotAvailable for a machine that has no such way, and
        Unreachable.
        """
        if not isinstance(self.wire, Tunnels):
            raise NotAvailable(self.host, f"connect to {address}:{port}", "LinuxSystem")
        return self.wire.tunnel(address, port)

    def way(self) -> SshWay | None:
        """The SSH route into the Linux, if it is entered by SSH."""
        return self.wire.way if isinstance(self.wire, Tunnels) else None

    def _send(self, call: Mapping[str, Json], extra: float = 0) -> Received:
        sent = self._one(call, Sent, extra=extra)
        return Received(sent.received, sent.sha256, sent.whole)

    def boot(self) -> Mapping[str, Json]:
        """The present boot of the host: boot_id, and whether it is ready. Raises as `get`."""
        return self.get(BOOT[self.system], {}) or {}

    def restart(self) -> None:
        """Ask the host to restart; it answers before it goes, or is gone before it answers."""
        self._one({"resource": BOOT[self.system], "verb": "restart"}, RestartAnswer)

    def _one(self, call: Mapping[str, Json], kind: type[A], *, settled: bool = False, extra: float = 0) -> A:
        answer: A | Refusal
        (answer,) = self._call([call], [kind], settled=settled, extra=extra)
        if isinstance(answer, UnavailableAnswer | Differs | FailedAnswer):
            raise self._error(answer, doing_of(call))
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
        within = self.call_timeout + extra
        doing = named(calls)
        log.debug("%s: %s: asked, for up to %.0f s%s", self.host, doing, within, ", after others" if settled else "")
        with logged(log, self.host, doing, logging.DEBUG if "piece" in calls[0] else logging.INFO) as more:
            text = self.wire.invoke(request, within)
            more.append(f"{len(request):,} bytes sent, {len(text.encode('utf-8', 'surrogatepass')):,} received")
            answers = self._answers(text, calls, kinds)
            more += refusals(calls, answers)
        return answers

    def _answers(self, text: str, calls: Sequence[Mapping[str, Json]], kinds: Sequence[type[Any]]) -> list[Any]:
        doing = "read its answer"
        try:
            answers = parsed(text, len(calls))
            found = []
            for call, kind, answer in zip(calls, kinds, answers, strict=True):
                doing = f"read its answer to {doing_of(call)}"
                found.append(checked(answer, kind))
        except NotTheAgents as why:
            raise bad_answer(self.host, str(why), doing) from None
        return found

    def _answer(self, resource: str, answer: "ListAnswer | Refusal") -> Answer:
        match answer:
            case ListAnswer(instances):
                records = tuple(Record(each.state, each.key) for each in instances)
                return self._unlike(resource, records) or records
            case UnavailableAnswer(needs):
                return Unavailable(needs)
            case FailedAnswer(error):
                return Unknown(error)
            case _:
                return Unknown(
                    RemoteFault("InvalidResult", BAD_ANSWER, message="a difference, where nothing was expected")
                )

    def _check(self, resource: str, key: Key, *states: Mapping[str, Json] | None) -> None:
        for state in states:
            if state is not None and (unlike := self._unlike(resource, (Record(state, key),))):
                raise RemoteError(self.host, unlike.unknown, f"read its answer about {resource}")

    def _unlike(self, resource: str, records: Sequence[Record]) -> Unknown | None:
        """Say why records cannot be those of the resource."""
        if why := not_text([[record.key, record.state] for record in records]):
            return Unknown(RemoteFault("InvalidData", NOT_TEXT, message=why))
        if why := self.fits(resource, records):
            return Unknown(RemoteFault("InvalidData", BAD_ANSWER, message=why))
        return None

    def _error(self, answer: "Refusal", doing: str) -> Exception:
        if isinstance(answer, UnavailableAnswer):
            return NotAvailable(self.host, doing, answer.unavailable)
        if isinstance(answer, Differs):
            differences = {name: (each.expected, each.found) for name, each in answer.drift.items()}
            return Drifted(self.host, doing, differences)
        if answer.error.code == COME_BACK:
            return ReachAnew(self.host, "the host wants to be reached again")
        made = not_found if answer.error.code == NOT_FOUND else RemoteError
        return made(self.host, answer.error, doing, answer.before, answer.after, answer.warnings)


def _get(id_: Id) -> Mapping[str, Json]:
    resource, key = id_
    return {"resource": resource, "verb": "get", "key": dict(key)}
