# Part of the agent, batches of calls, and the lines that they come and go by.
from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from winhost.agent.linux_agent import ONCE, AgentFault, State, describe_error
from winhost.agent.linux_calls import answer
from winhost.agent.linux_files import lock_taken
from winhost.agent.linux_unkept import LOCK
from winhost.agent.linux_wire import LineWire

if TYPE_CHECKING:
    from collections.abc import Iterator


def batch(calls: list[State]) -> Iterator[State]:
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
def alone(wire: LineWire) -> Iterator[None]:
    """Machine-wide: a call that outlived its controller still holds it, and is waited for instead of raced."""
    lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        while not lock_taken(lock):
            if wire.gone(0.2):
                sys.exit()  # nobody waits for it any more
        yield
    finally:
        os.close(lock)


def answers(request: State, wire: LineWire) -> list[State]:
    calls = request["calls"]
    if not request.get("exclusive") and all(call.get("verb") == "get" for call in calls):
        return list(batch(calls))
    try:
        with alone(wire):
            return list(batch(calls))
    except OSError as error:
        return [{"ok": False, "error": describe_error(error), "warnings": []} for _ in calls]


def serve() -> None:
    """Answer until the controller is gone. A call that runs then is brought to its end."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.umask(0o022)
    wire = LineWire()
    for line in iter(wire.receive, b""):
        with wire.alive():
            ONCE.clear()
            given = {"answers": answers(json.loads(line), wire)}
        wire.send(json.dumps(given).encode("ascii") + b"\n")
