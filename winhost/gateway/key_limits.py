"""What each API key may use: requests at a time, requests and tokens per minute."""

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from .settings_values import WrongSettings, number, table

_MOST = 1_000_000_000
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True)
class KeyLimit:
    """Of one key. None: no limit."""

    concurrent: "int | None" = None
    requests_per_minute: "int | None" = None
    tokens_per_minute: "int | None" = None


LIMITS = tuple(each.name for each in fields(KeyLimit))


@dataclass(frozen=True)
class PerKey:
    """each: of every key; keys: of those that have other limits, by their names."""

    each: KeyLimit = KeyLimit()
    keys: Mapping[str, KeyLimit] = field(default_factory=dict)

    def of(self, key: str) -> KeyLimit:
        return self.keys.get(key, self.each)


def parse_per_key(value: Any) -> PerKey:
    """Raises WrongSettings."""
    given = table(value, "per_key", (), [*LIMITS, "keys"])
    each = _changed(KeyLimit(), {name: given[name] for name in given if name != "keys"}, "per_key")
    keys = given.get("keys", {})
    if not isinstance(keys, dict) or not all(_NAME.fullmatch(name) for name in keys):
        raise WrongSettings("per_key.keys: an object with names of API keys is expected")
    own = {name: table(limits, f"per_key.keys.{name}", (), [*LIMITS]) for name, limits in keys.items()}
    return PerKey(each, {name: _changed(each, limits, f"per_key.keys.{name}") for name, limits in own.items()})


def _changed(limit: KeyLimit, given: "dict[str, Any]", where: str) -> KeyLimit:
    return replace(limit, **{name: number(given, where, name, _MOST) for name in given})


class OverLimit(Exception):
    """A key has used what it may. what: in words; after: seconds until it may use more."""

    def __init__(self, what: str, after: float) -> None:
        super().__init__(what)
        self.what, self.after = what, max(1, int(after + 0.999))


class _Allowance:
    """Refilled all the time. It can be overdrawn, because what a request takes is known at its end."""

    def __init__(self, what: str, per_minute: int, now: float) -> None:
        self.what, self.per_minute = what, per_minute
        self._left, self._at = float(per_minute), now

    def until_one(self, now: float) -> float:
        """Seconds until one is left; 0 where it is now."""
        grown = self._left + (now - self._at) * self.per_minute / 60
        self._left, self._at = min(float(self.per_minute), grown), now
        return max(0.0, 1 - self._left) * 60 / self.per_minute

    def take(self, count: int) -> None:
        self._left -= count


_TOTAL = re.compile(rb'"total_tokens":\s*(\d{1,12})')  # in a text of the answer its quotes would have backslashes
_LONGEST = 40  # bytes of such a match
_NO_CHOICES = re.compile(rb'"choices":\s*\[\]')
_AFTER_AN_EVENT = re.compile(rb"(?<=\n\n)|(?<=\n\r\n)")
_LARGEST_EVENT = 1_048_576


class TokenCount:
    """Of one answer: by the usage that its engine reports; an event of a stream is a token where it reports none.

    hides_usage: a stream has an event with it for which its client did not ask.
    """

    def __init__(self) -> None:
        self.hides_usage = False
        self._reported, self._events = 0, 0
        self._rest = b""

    @property
    def tokens(self) -> int:
        return max(self._reported, self._events)

    def feed(self, part: bytes) -> bytes:
        """What is for its client of this part of the answer, and of what came before."""
        whole = self._rest + part
        self._events += part.count(b"\n\n") + part.count(b"\n\r\n")
        if b'"total_tokens"' in whole:
            for found in _TOTAL.finditer(whole):
                self._reported = int(found[1])
        if not self.hides_usage:
            self._rest = whole[-_LONGEST:]
            return part
        end = max(whole.rfind(b"\n\n") + 2, whole.rfind(b"\n\r\n") + 3)
        end = end if end > 2 else 0 if len(whole) < _LARGEST_EVENT else len(whole)
        self._rest = whole[end:]
        return _without_usage(whole[:end])

    def end(self) -> bytes:
        """What is left for its client at the end of the answer."""
        return self._rest if self.hides_usage else b""


def _without_usage(events: bytes) -> bytes:
    if b'"total_tokens"' not in events:
        return events
    each = _AFTER_AN_EVENT.split(events)
    return b"".join(event for event in each if not (b'"total_tokens"' in event and _NO_CHOICES.search(event)))


class KeyLimits:
    """now: seconds of a clock that never goes back."""

    def __init__(self, per_key: PerKey, now: Callable[[], float] = time.monotonic) -> None:
        self._per_key, self._now = per_key, now
        self._open: Counter[str] = Counter()
        self._allowances: dict[tuple[str, str], _Allowance] = {}

    def request(self, key: str) -> "_Counted":
        """For one that goes to an engine; the count where the key has a limit of tokens. Raises OverLimit."""
        return _Counted(self, key)

    def begin(self, key: str) -> "TokenCount | None":
        """Raises OverLimit."""
        limit = self._per_key.of(key)
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
        return TokenCount() if tokens else None

    def end(self, key: str, count: "TokenCount | None") -> None:
        self._open[key] -= 1
        if count:
            self._allowances[key, "tokens"].take(count.tokens)

    def _allowance(self, key: str, what: str, per_minute: "int | None") -> "_Allowance | None":
        if per_minute is None:
            return None
        if (key, what) not in self._allowances:
            self._allowances[key, what] = _Allowance(what, per_minute, self._now())
        return self._allowances[key, what]


class _Counted:
    def __init__(self, limits: KeyLimits, key: str) -> None:
        self._limits, self._key = limits, key
        self._count: TokenCount | None

    def __enter__(self) -> "TokenCount | None":
        self._count = self._limits.begin(self._key)
        return self._count

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._limits.end(self._key, self._count)
