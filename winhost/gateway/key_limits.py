"""Limits of each API key: requests at a time, requests and tokens per minute."""

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .key_lines import KEY_LIMITS, KEY_NAME, MAX_LIMIT
from .settings_values import WrongSettings, number, table

_NAME = re.compile(KEY_NAME)


@dataclass(frozen=True)
class KeyLimit:
    """The limits of one key. None: no limit."""

    concurrent: "int | None" = None
    requests_per_minute: "int | None" = None
    tokens_per_minute: "int | None" = None


_UNLIMITED = KeyLimit()


@dataclass(frozen=True)
class KeyLimitSettings:
    """The limits in the settings. each: of every key; keys: of keys with other limits, by name."""

    each: KeyLimit = KeyLimit()
    keys: Mapping[str, KeyLimit] = field(default_factory=dict)


def parse_key_limits(value: Any) -> KeyLimitSettings:
    """Parse the limits of keys. Raises WrongSettings."""
    given = table(value, "per_key", (), [*KEY_LIMITS, "keys"])
    each = _replace_limits(KeyLimit(), {name: given[name] for name in given if name != "keys"}, "per_key")
    keys = given.get("keys", {})
    if not isinstance(keys, dict) or not all(_NAME.fullmatch(name) for name in keys):
        raise WrongSettings("per_key.keys: an object with names of API keys is expected")
    own_limits = {name: table(limits, f"per_key.keys.{name}", (), [*KEY_LIMITS]) for name, limits in keys.items()}
    return KeyLimitSettings(
        each, {name: _replace_limits(each, limits, f"per_key.keys.{name}") for name, limits in own_limits.items()}
    )


def _replace_limits(limit: KeyLimit, given: "dict[str, Any]", path: str) -> KeyLimit:
    return replace(limit, **{name: number(given, path, name, MAX_LIMIT) for name in given})


class OverLimit(Exception):
    """A key has reached a limit. limit: in words; retry_after: seconds until it may send another request."""

    def __init__(self, limit: str, retry_after: float) -> None:
        super().__init__(limit)
        self.limit, self.retry_after = limit, max(1, int(retry_after + 0.999))


class _Allowance:
    """An allowance per minute, refilled continuously. unit: requests or tokens. It can be overdrawn, because the tokens
    of a request are known only at its end.
    """

    def __init__(self, unit: str, per_minute: int, now: float) -> None:
        self.unit, self.per_minute = unit, per_minute
        self._remaining, self._updated_at = float(per_minute), now

    def seconds_until_one(self, now: float) -> float:
        """Refill the allowance. Return the seconds until at least one is left; 0 if one is."""
        remaining = self._remaining + (now - self._updated_at) * self.per_minute / 60
        self._remaining, self._updated_at = min(float(self.per_minute), remaining), now
        return max(0.0, 1 - self._remaining) * 60 / self.per_minute

    def take(self, count: int) -> None:
        self._remaining -= count

    def change(self, per_minute: int, now: float) -> None:
        """Change the limit. The difference to a higher one can be used at once; an overdraft stays."""
        self.seconds_until_one(now)
        self._remaining = min(float(per_minute), self._remaining + max(0, per_minute - self.per_minute))
        self.per_minute = per_minute


# It does not match inside a text of the answer, where quotes have backslashes.
_REPORTED = re.compile(rb'"(prompt|input|completion|output|total)_tokens":\s*(\d{1,12})')
_MAX_MATCH = 48  # bytes of a match of _REPORTED
_EMPTY_CHOICES = re.compile(rb'"choices":\s*\[\]')
USAGE, END_OF_EVENT = b'"usage"', b"\n\n\r\n"  # the end of a chunk that ends with an event
_EVENT_BOUNDARY = re.compile(rb"(?<=\n\n)|(?<=\n\r\n)")
_MAX_EVENT_BYTES = 1_048_576


class TokenCount:
    """Count the tokens of one answer by the usage that its engine reports, or else by the events of its stream.

    hides_usage: the client did not request the usage, so the event with it is removed; answered: the engine has begun
    to answer; events: the number of complete events; between_events: no part of the next event was received. Between
    events, chunks that end with END_OF_EVENT and contain no USAGE can be relayed as they are, once their events are
    counted.
    """

    __slots__ = ("_incomplete", "_reported", "answered", "between_events", "events", "hides_usage")

    def __init__(self) -> None:
        self.hides_usage = self.answered = False
        self.between_events = True
        self.events = 0
        self._reported: dict[bytes, int] = {}
        self._incomplete = b""

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.answer_tokens

    @property
    def prompt_tokens(self) -> int:
        """The tokens of the prompt; all tokens if the engine reports only a total, as it does for scores."""
        found = self._reported
        tokens = found.get(b"prompt", found.get(b"input"))
        if tokens is None:
            tokens = max(0, found.get(b"total", 0) - found.get(b"completion", found.get(b"output", 0)))
        return tokens

    @property
    def answer_tokens(self) -> int:
        """The tokens of the answer."""
        found = self._reported
        tokens = found.get(b"completion", found.get(b"output"))
        if tokens is None:
            tokens = max(0, found.get(b"total", 0) - self.prompt_tokens)
        return max(tokens, 0 if found else self.events)

    def feed(self, part: bytes) -> bytes:
        """Count a part of the answer. Return the bytes that the client gets now."""
        data = self._incomplete + part
        self.events += part.count(b"\n\n") + part.count(b"\n\r\n")
        if b'_tokens"' in data:
            for found in _REPORTED.finditer(data):
                self._reported[found[1]] = int(found[2])
        if not self.hides_usage:
            self._incomplete = data[-_MAX_MATCH:]
            self.between_events = not data or data.endswith(b"\n\n")
            return part
        end = max(data.rfind(b"\n\n") + 2, data.rfind(b"\n\r\n") + 3)
        end = end if end > 2 else 0 if len(data) < _MAX_EVENT_BYTES else len(data)
        events, self._incomplete = data[:end], data[end:]
        self.between_events = not self._incomplete
        if USAGE in events:
            each = _EVENT_BOUNDARY.split(events)
            return b"".join(event for event in each if not (USAGE in event and _EMPTY_CHOICES.search(event)))
        return events

    def report(self, prompt_tokens: int, answer_tokens: int) -> None:
        """Use counts of the caller instead of those found in the answer."""
        self._reported.update({b"prompt": prompt_tokens, b"completion": answer_tokens})

    def end(self) -> bytes:
        """Return the remaining bytes for the client at the end of the answer."""
        return self._incomplete if self.hides_usage else b""


class KeyLimits:
    """The open requests and the allowances of all keys. now: returns the seconds of a monotonic clock."""

    def __init__(self, per_key: KeyLimitSettings, now: Callable[[], float] = time.monotonic) -> None:
        self._per_key, self._now = per_key, now
        self._own_limits: Mapping[str, Mapping[str, int | None]] = {}
        self._open: Counter[str] = Counter()
        self._allowances: dict[tuple[str, str], _Allowance] = {}

    def change(self, own_limits: "Mapping[str, Mapping[str, int | None]]") -> None:
        """Replace the limits of single keys, which override those of the settings."""
        self._own_limits = own_limits

    def limit_of(self, key: str) -> KeyLimit:
        limit, own_limits = self._per_key.keys.get(key, self._per_key.each), self._own_limits.get(key)
        return replace(limit, **own_limits) if own_limits else limit

    def admit(self, key: str) -> TokenCount:
        """Admit one request to an engine. Raises OverLimit."""
        limit = self.limit_of(key)
        if limit == _UNLIMITED and not self._allowances:
            self._open[key] += 1
            return TokenCount()
        if limit.concurrent is not None and self._open[key] >= limit.concurrent:
            raise OverLimit(f"{limit.concurrent} requests at a time", 1)
        requests = self._allowance(key, "requests", limit.requests_per_minute)
        tokens = self._allowance(key, "tokens", limit.tokens_per_minute)
        for allowance in (requests, tokens):
            if allowance and (retry_after := allowance.seconds_until_one(self._now())):
                raise OverLimit(f"{allowance.per_minute} {allowance.unit} per minute", retry_after)
        if requests:
            requests.take(1)
        self._open[key] += 1
        return TokenCount()

    def end(self, key: str, count: TokenCount) -> None:
        self._open[key] -= 1
        if tokens := self._allowances.get((key, "tokens")):
            tokens.take(count.tokens)

    def _allowance(self, key: str, unit: str, per_minute: "int | None") -> "_Allowance | None":
        """Return the key's allowance; None if it has no limit. A limit that was lifted and set again starts with a full
        allowance.
        """
        if per_minute is None:
            self._allowances.pop((key, unit), None)
            return None
        found = self._allowances.get((key, unit))
        if found is None:
            found = self._allowances[key, unit] = _Allowance(unit, per_minute, self._now())
        elif found.per_minute != per_minute:
            found.change(per_minute, self._now())
        return found


class CountedRequest:
    """A request of a key, from its admission to its end. Entering raises OverLimit."""

    def __init__(self, limits: KeyLimits, key: str) -> None:
        self._limits, self._key = limits, key
        self._count: TokenCount

    def __enter__(self) -> TokenCount:
        self._count = self._limits.admit(self._key)
        return self._count

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._limits.end(self._key, self._count)
