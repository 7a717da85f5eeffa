# Part of the agent: batches of calls.
from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from winhost.agent.linux_agent import ONCE, AgentFault, State, describe_error
from winhost.agent.linux_calls import answer
from winhost.agent.linux_files import try_lock
from winhost.agent.linux_revocable import LOCK
from winhost.agent.linux_wire import LineWire

if TYPE_CHECKING:
    from collections.abc import Iterator


def answer_batch(calls: list[State]) -> Iterator[State]:
    failed = False
    for call in calls:
        changes_ = call.get("verb") != "get"
        if changes_ and failed:
            skipped = AgentFault("Winhost.Skipped", "OperationStopped", "A call before it failed.")
            yield {"ok": False, "error": describe_error(skipped), "warnings": []}
            continue
        given = answer(call)
        failed = failed or (changes_ and not given["ok"])
        yield given


@contextmanager
def exclusive(wire: LineWire) -> Iterator[None]:
    """Hold the lock of this machine. A call whose controller is gone may still hold it, and is waited for."""
    lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        while not try_lock(lock):
            if wire.is_closed(0.2):
                sys.exit()  # the controller is gone
        yield
    finally:
        os.close(lock)


def answer_calls(request: State, wire: LineWire) -> list[State]:
    calls = request["calls"]
    if not request.get("exclusive") and all(call.get("verb") == "get" for call in calls):
        return list(answer_batch(calls))
    try:
        with exclusive(wire):
            return list(answer_batch(calls))
    except OSError as error:
        return [{"ok": False, "error": describe_error(error), "warnings": []} for _ in calls]


def serve() -> None:
    """Answer requests until the controller is gone. A call that runs then is finished."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.umask(0o022)
    wire = LineWire()
    for line in iter(wire.receive, b""):
        with wire.heartbeat():
            ONCE.clear()
            given = {"answers": answer_calls(json.loads(line), wire)}
        wire.send(json.dumps(given).encode("ascii") + b"\n")
