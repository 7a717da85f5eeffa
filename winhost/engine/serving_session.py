"""Requests to the program that manages what a host's Linux serves: one constant program over SSH."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from winhost.connect.agent import Wire
from winhost.connect.checked_answers import parse_one_answer
from winhost.connect.wire_errors import SessionDropped, TimedOut
from winhost.core.answers import Json
from winhost.model.served import Acknowledged, DeployedText, LogPage, ServedKeys, ServingState, TimedAnswer, YieldState

A = TypeVar("A")

TIMEOUT_S = 150  # more than all deadlines of the program together


class ServingSession:
    """A session that is opened when needed. A request whose answer is lost is repeated once, because all are
    idempotent.
    """

    def __init__(self, open_wire: Callable[[], Wire]) -> None:
        self._open = open_wire
        self._wire: Wire | None = None

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def deployed(self) -> str | None:
        """Read the file that describes what is served."""
        return self._request("read what is served", DeployedText, do="deployed").text

    def state(
        self,
        units: Sequence[str],
        sockets: Sequence[str] = (),
        gateway: Mapping[str, Json] | None = None,
        key: str | None = None,
        *,
        ready: bool = False,
        gpus: bool = False,
    ) -> ServingState:
        """Read the state of units, sockets and the gateway. gateway: {unit, address, port, tls}; key: for its requests;
        ready: also request a completion of each model; gpus: also read the GPUs.
        """
        about = {"sockets": list(sockets), "gateway": gateway, "key": key, "ready": ready, "gpus": gpus}
        return self._request("read what is served", ServingState, do="state", units=list(units), **about)

    def log(
        self, units: Sequence[str], *, lines: int = 1, cursor: str | None = None, invocation: str | None = None
    ) -> LogPage:
        """Read a page of the journal of units. See journal() of the program."""
        request = {"units": list(units), "lines": lines, "cursor": cursor, "invocation": invocation}
        return self._request("read the log", LogPage, do="log", **request)

    def start_log(self, unit: str, invocation: str, lines: int) -> list[str]:
        """Read the log of one start of a unit. lines: of each page."""
        texts: list[str] = []
        page = self.log([unit], lines=lines, invocation=invocation or None)
        while True:
            texts += [each.text for each in page.lines]
            if not page.more:
                return texts
            page = self.log([unit], cursor=page.cursor, invocation=invocation or None)

    def start(self, unit: str) -> None:
        """Start a unit without waiting for it."""
        self._request(f"start {unit}", Acknowledged, do="start", unit=unit)

    def stop(self, unit: str) -> None:
        """Stop a unit without waiting for it."""
        self._request(f"stop {unit}", Acknowledged, do="stop", unit=unit)

    def keys(self, change: Mapping[str, Json] | None = None) -> ServedKeys:
        """Read or change the API keys. change: see keys() of the program; repeating one changes nothing."""
        doing = f"{change['verb']} the key {change['name']}" if change else "read its API keys"
        return self._request(doing, ServedKeys, do="keys", change=change)

    def yield_state(self, gateway: Mapping[str, Json], mode: str | None = None) -> YieldState:
        """Read whether the gateway yields the GPUs. mode: the new mode; None: leave it."""
        return self._request("ask the gateway to yield", YieldState, do="yield", gateway=gateway, mode=mode)

    def test(
        self,
        gateway: Mapping[str, Json],
        path: str,
        body: Json,
        key: str | None,
        engine: Mapping[str, Json] | None = None,
        within: float = 120,
    ) -> TimedAnswer:
        """Send one request to the gateway. engine: {unit, turns}; if the engine fails for good, the wait ends."""
        request = {"gateway": gateway, "path": path, "body": body, "key": key, "engine": engine, "within": within}
        return self._request("ask the gateway", TimedAnswer, do="test", **request)

    def _request(self, doing: str, kind: type[A], **request: Any) -> A:
        text = json.dumps(request)
        try:
            answer = self._invoke(text)
        except (SessionDropped, TimedOut):
            self.close()
            answer = self._invoke(text)
        assert self._wire is not None
        return parse_one_answer(self._wire.host, answer, kind, doing)

    def _invoke(self, text: str) -> str:
        if self._wire is None:
            self._wire = self._open()
        return self._wire.invoke(text, TIMEOUT_S)
