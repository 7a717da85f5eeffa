"""Read the gateway's key files: a line for each key with its name, hash and rules, and never the key itself.

One file has the keys of a plan. The other one has the changes made since: added keys, and new rules for keys of the
plan. This module also runs with Python 3.8, because `winhost serve keys` uses it.
"""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:  # Python 3.8 cannot say these
    from collections.abc import Iterable, Mapping, Sequence

KEY_NAME = r"[A-Za-z0-9._-]{1,64}"
KEY_MODEL = r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,254}"
_FLAGS = {"planned": "planned", "yield": "yields"}
KEY_LIMITS = ("concurrent", "requests_per_minute", "tokens_per_minute")
MOST_OF_A_LIMIT = 1_000_000_000
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
_WORD = re.compile(rf"(?P<name>[a-z_]+)(?:=(?P<value>{KEY_MODEL}(?:,{KEY_MODEL})*))?")
_LINE = re.compile(rf"(?P<name>{KEY_NAME}) sha256:(?P<sha256>[0-9a-f]{{64}})(?P<words>( [!-~]+)*)")


class WrongKeys(ValueError):
    """The message says what is wrong with the file, without quoting it."""


class KeyLine(NamedTuple):
    """A key. metrics: it reads metrics and nothing else; yields: it asks for the GPUs and nothing else; models: those
    that it may call, or whose metrics it reads, None: all; limits: its own ones by name, where None lifts a limit;
    times are seconds since 1970; planned: in the file of changes, new rules for a key of the plan, in force while the
    plan has that key with this hash.
    """

    name: str
    sha256: str
    metrics: bool = False
    models: tuple[str, ...] | None = None
    limits: Mapping[str, int | None] = {}
    expires: int | None = None
    added: int | None = None
    revoked: int | None = None
    planned: bool = False
    yields: bool = False

    def state(self, now: float) -> str:
        """Return active, expired or revoked."""
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and now >= self.expires else "active"

    def text(self) -> str:
        """The line, without its end."""
        words = [self.name, f"sha256:{self.sha256}"]
        models = "" if self.models is None else f"={','.join(self.models)}"
        if self.metrics:
            words.append(f"metrics{models}")
        elif models:
            words.append(f"models{models}")
        words += ["yield"] if self.yields else []
        words += [f"{name}={'none' if limit is None else limit}" for name, limit in sorted(self.limits.items())]
        times = {"expires": self.expires, "added": self.added, "revoked": self.revoked}
        words += [f"{name}={time_text(at)}" for name, at in times.items() if at is not None]
        return " ".join([*words, *(["planned"] if self.planned else [])])


def time_text(at: float) -> str:
    """Format a Unix time in UTC, as 2027-01-31T12:00:00Z."""
    return datetime.fromtimestamp(int(at), timezone.utc).isoformat()[:19] + "Z"


def parse_time(text: str) -> int:
    """Seconds since 1970. Raises ValueError."""
    if _TIME.fullmatch(text) is None:
        raise ValueError("it is no time in UTC")
    return int(datetime.fromisoformat(text[:-1]).replace(tzinfo=timezone.utc).timestamp())


def parse_keys(text: str) -> list[KeyLine]:
    """Raises WrongKeys."""
    found: dict[str, KeyLine] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.strip()
        if not words or words.startswith("#"):
            continue
        try:
            each = parse_key(words)
        except ValueError as wrong:
            raise WrongKeys(f"line {number}: {wrong}") from None
        if each.name in found:
            raise WrongKeys(f"line {number} has a name that is there already")
        found[each.name] = each
    return list(found.values())


def parse_key(line: str) -> KeyLine:
    """Raises ValueError, which does not repeat the line."""
    found = _LINE.fullmatch(line)
    if found is None:
        raise ValueError("it is not NAME sha256:64 digits and rules (new-key NAME writes one)")
    rules: dict[str, Any] = {"limits": {}}
    for number, word in enumerate(found["words"].split(), 3):
        named = _WORD.fullmatch(word)
        try:
            given = _rule(named["name"], named["value"]) if named else None
        except ValueError:
            given = None
        if given is None:
            raise ValueError(f"word {number} is no rule of a key")
        limits = given.pop("limits", {})
        if given.keys() & rules.keys() or limits.keys() & rules["limits"].keys():
            raise ValueError(f"word {number} says again what another one says")
        rules["limits"].update(limits)
        rules.update(given)
    if rules.get("yields") and (rules["limits"] or rules.keys() & {"metrics", "models"}):
        raise ValueError("a key that asks for the GPUs is for nothing else")
    return KeyLine(found["name"], found["sha256"], **rules)


def _rule(name: str, value: str | None) -> dict[str, Any] | None:
    """Parse one rule of a key; None where the word is no rule. Raises ValueError."""
    if name == "metrics":
        return {"metrics": True, "models": tuple(value.split(",")) if value else None}
    if value is None:
        return {_FLAGS[name]: True} if name in _FLAGS else None
    if name == "models":
        return {"models": tuple(value.split(","))}
    if name in ("expires", "added", "revoked"):
        return {name: parse_time(value)}
    if name in KEY_LIMITS and value == "none":
        return {"limits": {name: None}}
    if name in KEY_LIMITS and value.isdigit() and 1 <= int(value) <= MOST_OF_A_LIMIT:
        return {"limits": {name: int(value)}}
    return None


def keys_text(keys: Iterable[KeyLine]) -> str:
    return "".join(f"{each.text()}\n" for each in keys)


def counting(planned: Sequence[KeyLine], changes: Sequence[KeyLine]) -> list[KeyLine]:
    """The keys in force: those of the plan by their present rules, then added ones. A revoked hash stays revoked,
    whatever line has it. An added key with the name of a key of the plan is not in force: `hidden` returns those.
    """
    others = {(each.name, each.sha256): each for each in changes if each.planned}
    revoked = {each.sha256: each.revoked for each in (*planned, *changes) if each.revoked is not None}
    names = {each.name for each in planned}
    found = [others.get((each.name, each.sha256), each)._replace(planned=True) for each in planned]
    found += [each for each in changes if not each.planned and each.name not in names]
    return [each._replace(revoked=revoked.get(each.sha256)) for each in found]


def hidden(planned: Sequence[KeyLine], changes: Sequence[KeyLine]) -> list[KeyLine]:
    names = {each.name for each in planned}
    return [each for each in changes if not each.planned and each.name in names]
