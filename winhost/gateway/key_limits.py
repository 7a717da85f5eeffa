"""Limits of each API key: requests at a time, requests and tokens per minute."""

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .key_lines import KEY_LIMITS, KEY_NAME, MOST_OF_A_LIMIT
from .settings_values import WrongSettings, number, table

_NAME = re.compile(KEY_NAME)


@dataclass(frozen=True)
class KeyLimit:
    """The limits of one key. None: no limit."""

    concurrent: "int | None" = None
    requests_per_minute: "int | None" = None
    tokens_per_minute: "int | None" = None


_NO_LIMIT = KeyLimit()


@dataclass(frozen=True)
class PerKey:
    """each: the limits of every key; keys: of those keys that have others, by name."""

    each: KeyLimit = KeyLimit()
    keys: Mapping[str, KeyLimit] = field(default_factory=dict)


def parse_per_key(value: Any) -> PerKey:
    """Parse the limits of keys. Raises WrongSettings."""
    given = table(value, "per_key", (), [*KEY_LIMITS, "keys"])
    each = _changed(KeyLimit(), {name: given[name] for name in given if name != "keys"}, "per_key")
    keys = given.get("keys", {})
    if not isinstance(keys, dict) or not all(_NAME.fullmatch(name) for name in keys):
        raise WrongSettings("per_key.keys: an object with names of API keys is expected")
    own = {name: table(limits, f"per_key.keys.{name}", (), [*KEY_LIMITS]) for name, limits in keys.items()}
    return PerKey(each, {name: _changed(each, limits, f"per_key.keys.{name}") for name, limits in own.items()})


def _changed(limit: KeyLimit, given: "dict[str, Any]", where: str) -> KeyLimit:
    return replace(limit, **{name: number(given, where, name, MOST_OF_A_LIMIT) for name in given})


class OverLimit(Exception):
    """A key has used all that it may. what: its limit in words; after: seconds until it may use more."""

    def __init__(self, what: str, after: float) -> None:
        super().__init__(what)
        self.what, self.after = what, max(1, int(after + 0.999))


class _Allowance:
    """An allowance per minute, refilled continuously. It can be overdrawn, because a request's tokens are known only at
    its end.
    """

    def __init__(self, what: str, per_minute: int, now: float) -> None:
        self.what, self.per_minute = what, per_minute
        self._left, self._at = float(per_minute), now

    def until_one(self, now: float) -> float:
        """Seconds until at least one is left; 0 if one is."""
        grown = self._left + (now - self._at) * self.per_minute / 60
        self._left, self._at = min(float(self.per_minute), grown), now
        return max(0.0, 1 - self._left) * 60 / self.per_minute

    def take(self, count: int) -> None:
        self._left -= count

    def change(self, per_minute: int, now: float) -> None:
        """Change the limit. The difference to a higher one is available at once; an overdraft stays."""
        self.until_one(now)
        self._left = min(float(per_minute), self._left + max(0, per_minute - self.per_minute))
        self.per_minute = per_minute


# Inside a text of the answer, the quotes would have backslashes.
_REPORTED = re.compile(rb'"(prompt|input|completion|output|total)_tokens":\s*(\d{1,12})')
_LONGEST = 48  # bytes of a match of _REPORTED
_NO_CHOICES = re.compile(rb'"choices":\s*\[\]')
USAGE, END_OF_EVENT = b'"usage"', b"\n\n\r\n"  # of the last event in a chunk
_AFTER_AN_EVENT = re.compile(rb"(?<=\n\n)|(?<=\n\r\n)")
_LARGEST_EVENT = 1_048_576


class TokenCount:
    """Count the tokens of one answer by the usage that its engine reports, or else by the events of its stream.

    hides_usage: the client did not ask for the usage, so the event with it is left out; answered: the engine has begun
    to answer; events: the number of events that have ended; between: no part of the next event has come. Between
    events, chunks that end with END_OF_EVENT and contain no USAGE may go to the client as they are, once their events
    are counted.
    """

    __slots__ = ("_reported", "_rest", "answered", "between", "events", "hides_usage")

    def __init__(self) -> None:
        self.hides_usage = self.answered = False
        self.between = True
        self.events = 0
        self._reported: dict[bytes, int] = {}
        self._rest = b""

    @property
    def tokens(self) -> int:
        return self.taken_in + self.taken_out

    @property
    def taken_in(self) -> int:
        """Tokens of the prompt; all tokens if the engine reports only a total, as it does when texts are compared."""
        found = self._reported
        known = found.get(b"prompt", found.get(b"input"))
        if known is None:
            known = max(0, found.get(b"total", 0) - found.get(b"completion", found.get(b"output", 0)))
        return known

    @property
    def taken_out(self) -> int:
        """Tokens of the answer."""
        found = self._reported
        known = found.get(b"completion", found.get(b"output"))
        if known is None:
            known = max(0, found.get(b"total", 0) - self.taken_in)
        return max(known, 0 if found else self.events)

    def feed(self, part: bytes) -> bytes:
        """Count a part of the answer. Returns the bytes that the client gets now."""
        whole = self._rest + part
        self.events += part.count(b"\n\n") + part.count(b"\n\r\n")
        if b'_tokens"' in whole:
            for found in _REPORTED.finditer(whole):
                self._reported[found[1]] = int(found[2])
        if not self.hides_usage:
            self._rest = whole[-_LONGEST:]
            self.between = not whole or whole.endswith(b"\n\n")
            return part
        end = max(whole.rfind(b"\n\n") + 2, whole.rfind(b"\n\r\n") + 3)
        end = end if end > 2 else 0 if len(whole) < _LARGEST_EVENT else len(whole)
        events, self._rest = whole[:end], whole[end:]
        self.between = not self._rest
        if USAGE in events:
            each = _AFTER_AN_EVENT.split(events)
            return b"".join(event for event in each if not (USAGE in event and _NO_CHOICES.search(event)))
        return events

    def report(self, taken_in: int, taken_out: int) -> None:
        """Take over a count that was made elsewhere."""
        self._reported.update({b"prompt": taken_in, b"completion": taken_out})

    def end(self) -> bytes:
        """Return the remaining bytes for the client at the end of the answer."""
        return self._rest if self.hides_usage else b""


class KeyLimits:
    """Count the open requests and the allowances of all keys. now: seconds of a clock that never goes back."""

    def __init__(self, per_key: PerKey, now: Callable[[], float] = time.monotonic) -> None:
        self._per_key, self._now = per_key, now
        self._own: Mapping[str, Mapping[str, int | None]] = {}
        self._open: Counter[str] = Counter()
        self._allowances: dict[tuple[str, str], _Allowance] = {}

    def change(self, own: "Mapping[str, Mapping[str, int | None]]") -> None:
        """Replace the limits of single keys, which override those of the settings."""
        self._own = own

    def of(self, key: str) -> KeyLimit:
        limit, own = self._per_key.keys.get(key, self._per_key.each), self._own.get(key)
        return replace(limit, **own) if own else limit

    def begin(self, key: str) -> TokenCount:
        """Admit one request to an engine. Raises OverLimit."""
        limit = self.of(key)
        if limit == _NO_LIMIT and not self._allowances:
            self._open[key] += 1
            return TokenCount()
        if limit.concurrent is not None and self._open[key] >= limit.concurrent:
            raise OverLimit(f"{limit.concurrent} requests at a time", 1)
        requests = self._allowance(key, "requests", limit.requests_per_minute)
        tokens = self._allowance(key, "tokens", limit.tokens_per_minute)
        for allowance in (requests, tokens):
            if allowance and (after := allowance.until_one(self._now())):
                raise OverLimit(f"{allowance.per_minute} {allowance.what} per minute", after)
        if requests:
            requests.take(1)
        self._open[key] += 1
        return TokenCount()

    def end(self, key: str, count: TokenCount) -> None:
        self._open[key] -= 1
        if tokens := self._allowances.get((key, "tokens")):
            tokens.take(count.tokens)

    def _allowance(self, key: str, what: str, per_minute: "int | None") -> "_Allowance | None":
        """Return the key's allowance; None if it has none. One that was lifted begins full when it is set again."""
        if per_minute is None:
            self._allowances.pop((key, what), None)
            return None
        found = self._allowances.get((key, what))
        if found is None:
            found = self._allowances[key, what] = _Allowance(what, per_minute, self._now())
        elif found.per_minute != per_minute:
            found.change(per_minute, self._now())
        return found


class Counted:
    """A request of this key, from its admission to its end. Entering raises OverLimit."""

    def __init__(self, limits: KeyLimits, key: str) -> None:
        self._limits, self._key = limits, key
        self._count: TokenCount

    def __enter__(self) -> TokenCount:
        self._count = self._limits.begin(self._key)
        return self._count

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._limits.end(self._key, self._count)
