"""Yield the GPUs to something else, such as the desktop of a Windows that runs this Linux in WSL.

A key of the kind `yield` asks for some seconds and asks again before they are over, so that a program that died does
not keep the models off their GPUs. A file that the administrator of this Linux writes overrides that.
"""

import asyncio
import json
import logging
import math
from collections.abc import Callable, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .request_rules import ErrorAnswer
from .settings_values import SOCKET, names_of, number, table, word

_LOG = logging.getLogger("gateway")
ROUTE = "/winhost/yield"
MOST_BYTES = 1024  # of a request to it
MODE_FILE = "/run/winhost-gateway/yield"  # in the unit's folder, which is removed when it stops
NOW, AUTO, NEVER = MODES = ("now", "auto", "never")
_LONGEST_S = 3600
_LOOK_S = 1.0
_LATER_S = 60


def loop_time() -> float:
    """The time of the event loop."""
    return asyncio.get_running_loop().time()


@dataclass(frozen=True)
class YieldSettings:
    """Times in seconds. drain: for requests that run when GPUs are asked for; longest: the most that one request may
    ask for; mode: a file with one of MODES, which may be missing.
    """

    drain: int = 20
    longest: int = 300
    mode: str | None = None


def parse_yields(value: Any) -> YieldSettings:
    """Parse how models yield their GPUs. Raises WrongSettings."""
    given = table(value, "yields", (), names_of(YieldSettings))
    times = {name: number(given, "yields", name, _LONGEST_S) for name in given if name != "mode"}
    return YieldSettings(mode=word(given, "yields", "mode", SOCKET) if "mode" in given else None, **times)


class Yielding:
    """The requests of others for the GPUs. settings: None if no key may ask; changed: called when somebody may have
    begun or ceased to want the GPUs, with True if somebody begins.
    """

    def __init__(self, settings: "YieldSettings | None") -> None:
        self.settings = settings or YieldSettings()
        self.may_be_asked = settings is not None
        self.mode = AUTO
        self.changed: Callable[[bool], None] = lambda begins: None
        self._until: dict[str, float] = {}  # by the hash of a key, because another key may get its name
        self._since = float("-inf")

    @property
    def asked(self) -> bool:
        return self.left > 0

    @property
    def left(self) -> float:
        """Seconds until the GPUs are no longer wanted, as far as is known."""
        if self.mode != AUTO:
            return math.inf if self.mode == NOW else 0.0
        if not self._until:
            return 0.0
        return max([0.0, *(until - loop_time() for until in self._until.values())])

    @property
    def cut_at(self) -> float:
        """The time of the event loop at which requests that still run are broken off."""
        return self._since + self.settings.drain if self.asked else math.inf

    @property
    def after(self) -> int:
        """Seconds after which a client may ask again."""
        return max(1, math.ceil(min(_LATER_S, self.left)))

    def ask(self, key: str, seconds: float) -> None:
        """Ask for the GPUs for this many seconds from now. Keys do so independently of each other."""
        self._change(lambda: self._until.update({key: loop_time() + min(seconds, self.settings.longest)}))

    def resume(self, key: str) -> None:
        self._change(lambda: self._until.pop(key, None))

    def only(self, keys: Set[str]) -> None:
        """End the requests of all other keys."""
        for key in self._until.keys() - keys:
            self.resume(key)

    def set_mode(self, mode: str) -> None:
        if mode != self.mode:
            _LOG.info("yield: %s", mode)
            self._change(lambda: setattr(self, "mode", mode))

    def _change(self, change: Callable[[], object]) -> None:
        before = self.asked
        change()
        begins = self.asked and not before
        if begins:
            self._since = loop_time()
        self.changed(begins)

    async def follow_file(self) -> None:
        """Apply the mode in the administrator's file, and each change of it, for as long as the gateway runs."""
        told = ""
        while self.settings.mode is not None:
            try:
                found = Path(self.settings.mode).read_text("ascii").strip()
            except FileNotFoundError:
                found = AUTO
            except (OSError, ValueError) as error:
                found = type(error).__name__
            if found in MODES:
                self.set_mode(found)
            elif found != told:
                _LOG.error("%s has none of %s: yield stays %s", self.settings.mode, ", ".join(MODES), self.mode)
            told = found
            await asyncio.sleep(_LOOK_S)

    def take(self, key: str, body: bytes) -> None:
        """Do what a request of this key says. Raises ErrorAnswer."""
        try:
            given = json.loads(body)
        except (ValueError, RecursionError):
            raise ErrorAnswer(400, "body", "The body is not JSON.") from None
        given = given if isinstance(given, dict) else {}
        state, seconds = given.get("state"), given.get("seconds", self.settings.longest)
        if state not in ("yield", "resume") or not given.keys() <= {"state", "seconds"}:
            message = 'The body has to be {"state": "yield", "seconds": 60} or {"state": "resume"}.'
            raise ErrorAnswer(400, "body", message)
        if type(seconds) is not int or seconds < 1:
            raise ErrorAnswer(400, "body", "`seconds` has to be a whole number from 1 on.")
        if state == "yield":
            self.ask(key, seconds)
        else:
            self.resume(key)
