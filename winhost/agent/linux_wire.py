# Part of the agent, the lines that requests and answers come and go by.
from __future__ import annotations

import json
import os
import select
import sys
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from winhost.agent.linux_agent import WAITS

if TYPE_CHECKING:
    from collections.abc import Iterator

BEAT = 5.0  # seconds between signs of life while a call runs


class LineWire:
    """Lines of JSON on what were stdin and stdout. What anything else prints goes to stderr."""

    def __init__(self) -> None:
        self.out = os.dup(1)
        os.dup2(2, 1)
        self.turn = threading.Lock()

    def receive(self) -> bytes:
        """The next request; nothing when the controller is gone."""
        return sys.stdin.buffer.readline()

    def send(self, line: bytes) -> None:
        """Send an answer. If nobody listens any more, it is lost; what was done stays done."""
        with self.turn, suppress(OSError):
            while line:
                line = line[os.write(self.out, line) :]

    def gone(self, within: float) -> bool:
        """One request at a time: what there is to read meanwhile can only be the end."""
        return bool(select.select([0], [], [], within)[0])

    @contextmanager
    def alive(self) -> Iterator[None]:
        """Meanwhile a line now and then: a slow call and a dead machine must not look the same. It is empty, or says
        what is waited for.
        """
        done = threading.Event()

        def beat() -> None:
            while not done.wait(BEAT):
                said = [json.dumps({"waiting": text}) for text in WAITS[-1:]]
                self.send("".join(said).encode("ascii") + b"\n")

        beating = threading.Thread(target=beat, daemon=True)
        beating.start()
        try:
            yield
        finally:
            done.set()
            beating.join()
