# Part of the agent: the lines of requests and answers.
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

BEAT = 5.0  # seconds between heartbeats while a call runs


class LineWire:
    """Lines of JSON on stdin and stdout. Other output of this program goes to stderr."""

    def __init__(self) -> None:
        self.out = os.dup(1)
        os.dup2(2, 1)
        self.turn = threading.Lock()

    def receive(self) -> bytes:
        """Return the next request; empty when the controller is gone."""
        return sys.stdin.buffer.readline()

    def send(self, line: bytes) -> None:
        """Send a line. It is lost if the controller is gone; changes that were made stay."""
        with self.turn, suppress(OSError):
            while line:
                line = line[os.write(self.out, line) :]

    def is_closed(self, within: float) -> bool:
        """Tell whether the controller is gone. It sends one request at a time, so only the end of the input can
        come.
        """
        return bool(select.select([0], [], [], within)[0])

    @contextmanager
    def heartbeat(self) -> Iterator[None]:
        """Send a line every few seconds, so that a slow call can be distinguished from a dead machine. The line is
        empty, or says what the call waits for.
        """
        done = threading.Event()

        def beat() -> None:
            while not done.wait(BEAT):
                texts = [json.dumps({"waiting": text}) for text in WAITS[-1:]]
                self.send("".join(texts).encode("ascii") + b"\n")

        beating = threading.Thread(target=beat, daemon=True)
        beating.start()
        try:
            yield
        finally:
            done.set()
            beating.join()
