"""Yield the GPUs to something else, such as the desktop of a Windows that runs this Linux in WSL.

A client with a key of the kind `yield` requests the GPUs for some seconds, and repeats the request before they are
over, so that a client that died does not keep the models off their GPUs. A file that the administrator of this Linux
writes overrides these requests.
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
from .settings_values import SOCKET, field_names, matching_text, number, table

_LOG = logging.getLogger("gateway")
ROUTE = "/winhost/yield"
MAX_BODY_BYTES = 1024  # of a request to it
MODE_FILE = "/run/winhost-gateway/yield"  # in the unit's folder, which is removed when it stops
NOW, AUTO, NEVER = MODES = ("now", "auto", "never")
_MAX_S = 3600
_READ_FILE_S = 1.0
_RETRY_AFTER_S = 60


def loop_time() -> float:
    """Return the time of the running event loop."""
    return asyncio.get_running_loop().time()


@dataclass(frozen=True)
class YieldSettings:
    """Times in seconds. drain: for running requests once the GPUs are requested; longest: the most that one request
    gets; mode: a file with one of MODES, which may be missing.
    """

    drain: int = 20
    longest: int = 300
    mode: str | None = None


def parse_yields(value: Any) -> YieldSettings:
    """Parse how models yield their GPUs. Raises WrongSettings."""
    settings = table(value, "yields", (), field_names(YieldSettings))
    times = {name: number(settings, "yields", name, _MAX_S) for name in settings if name != "mode"}
    return YieldSettings(
        mode=matching_text(settings, "yields", "mode", SOCKET) if "mode" in settings else None, **times
    )


class Yielding:
    """The requests for the GPUs. settings: None if there are no keys for them; on_change: called when the GPUs may be
    requested or free again, with True if they are requested from now on.
    """

    def __init__(self, settings: "YieldSettings | None") -> None:
        self.settings = settings or YieldSettings()
        self.is_enabled = settings is not None
        self.mode = AUTO
        self.on_change: Callable[[bool], None] = lambda is_new: None
        self._deadlines: dict[str, float] = {}  # by the hash of a key, because another key may get its name
        self._since = float("-inf")

    @property
    def is_requested(self) -> bool:
        return self.remaining_s > 0

    @property
    def remaining_s(self) -> float:
        """The seconds for which the GPUs are requested; infinite in the mode NOW."""
        if self.mode != AUTO:
            return math.inf if self.mode == NOW else 0.0
        if not self._deadlines:
            return 0.0
        return max([0.0, *(deadline - loop_time() for deadline in self._deadlines.values())])

    @property
    def cut_at(self) -> float:
        """The time of the event loop at which running requests are broken off."""
        return self._since + self.settings.drain if self.is_requested else math.inf

    @property
    def retry_after(self) -> int:
        """Seconds after which a client should repeat a request to a model."""
        return max(1, math.ceil(min(_RETRY_AFTER_S, self.remaining_s)))

    def request_gpus(self, key: str, seconds: float) -> None:
        """Request the GPUs for this many seconds from now. Requests of several keys are independent."""
        self._apply_change(lambda: self._deadlines.update({key: loop_time() + min(seconds, self.settings.longest)}))

    def resume(self, key: str) -> None:
        self._apply_change(lambda: self._deadlines.pop(key, None))

    def drop_other_keys(self, keys: Set[str]) -> None:
        """End the requests of all keys but these."""
        for key in self._deadlines.keys() - keys:
            self.resume(key)

    def set_mode(self, mode: str) -> None:
        if mode != self.mode:
            _LOG.info("yield: %s", mode)
            self._apply_change(lambda: setattr(self, "mode", mode))

    def _apply_change(self, change: Callable[[], object]) -> None:
        before = self.is_requested
        change()
        is_new = self.is_requested and not before
        if is_new:
            self._since = loop_time()
        self.on_change(is_new)

    async def follow_file(self) -> None:
        """Apply the mode in the administrator's file, and each change of it, until the gateway stops."""
        reported = ""
        while self.settings.mode is not None:
            try:
                mode = Path(self.settings.mode).read_text("ascii").strip()
            except FileNotFoundError:
                mode = AUTO
            except (OSError, ValueError) as error:
                mode = type(error).__name__
            if mode in MODES:
                self.set_mode(mode)
            elif mode != reported:
                _LOG.error("%s has none of %s: yield stays %s", self.settings.mode, ", ".join(MODES), self.mode)
            reported = mode
            await asyncio.sleep(_READ_FILE_S)

    def apply_request(self, key: str, body: bytes) -> None:
        """Apply the body of a request of this key. Raises ErrorAnswer."""
        try:
            request = json.loads(body)
        except (ValueError, RecursionError):
            raise ErrorAnswer(400, "body", "The body is not JSON.") from None
        request = request if isinstance(request, dict) else {}
        state, seconds = request.get("state"), request.get("seconds", self.settings.longest)
        if state not in ("yield", "resume") or not request.keys() <= {"state", "seconds"}:
            message = 'The body has to be {"state": "yield", "seconds": 60} or {"state": "resume"}.'
            raise ErrorAnswer(400, "body", message)
        if type(seconds) is not int or seconds < 1:
            raise ErrorAnswer(400, "body", "`seconds` has to be a whole number from 1 on.")
        if state == "yield":
            self.request_gpus(key, seconds)
        else:
            self.resume(key)
