"""Parse the gateway's key files. They have a line for each key with its name, hash and rules, and never the key itself.

One file has the keys of the plan. The other one has the changes made since: added keys, and new rules for keys of the
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
MAX_LIMIT = 1_000_000_000
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
_RULE = re.compile(rf"(?P<name>[a-z_]+)(?:=(?P<value>{KEY_MODEL}(?:,{KEY_MODEL})*))?")
_LINE = re.compile(rf"(?P<name>{KEY_NAME}) sha256:(?P<sha256>[0-9a-f]{{64}})(?P<rules>( [!-~]+)*)")


class WrongKeys(ValueError):
    """A file of keys is wrong. The message says how, and does not quote the file."""


class KeyLine(NamedTuple):
    """A key. metrics: it may only read metrics; yields: it may only request the GPUs; models: those that it may call,
    or whose metrics it may read, None: all; limits: its own limits by name, None lifts a limit; times are seconds since
    1970; planned: in the file of changes, the line has new rules for a key of the plan, in force while the plan has a
    key with this name and hash.
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
        """Return `active`, `expired` or `revoked`."""
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and now >= self.expires else "active"

    def text(self) -> str:
        """Return the line, without its end."""
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
    """Parse a time in UTC, such as 2027-01-31T12:00:00Z, into seconds since 1970. Raises ValueError."""
    if _TIME.fullmatch(text) is None:
        raise ValueError("it is no time in UTC")
    return int(datetime.fromisoformat(text[:-1]).replace(tzinfo=timezone.utc).timestamp())


def parse_keys(text: str) -> list[KeyLine]:
    """Parse a file of keys. Raises WrongKeys."""
    found: dict[str, KeyLine] = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        try:
            each = parse_key(stripped)
        except ValueError as wrong:
            raise WrongKeys(f"line {number}: {wrong}") from None
        if each.name in found:
            raise WrongKeys(f"line {number} has a name that is there already")
        found[each.name] = each
    return list(found.values())


def parse_key(line: str) -> KeyLine:
    """Parse one line. Raises ValueError, whose message does not quote the line."""
    parts = _LINE.fullmatch(line)
    if parts is None:
        raise ValueError("it is not NAME sha256:64 digits and rules (new-key NAME writes one)")
    rules: dict[str, Any] = {"limits": {}}
    for number, word in enumerate(parts["rules"].split(), 3):
        match = _RULE.fullmatch(word)
        try:
            rule = _parse_rule(match["name"], match["value"]) if match else None
        except ValueError:
            rule = None
        if rule is None:
            raise ValueError(f"word {number} is no rule of a key")
        limits = rule.pop("limits", {})
        if rule.keys() & rules.keys() or limits.keys() & rules["limits"].keys():
            raise ValueError(f"word {number} says again what another one says")
        rules["limits"].update(limits)
        rules.update(rule)
    if rules.get("yields") and (rules["limits"] or rules.keys() & {"metrics", "models"}):
        raise ValueError("a key that asks for the GPUs is for nothing else")
    return KeyLine(parts["name"], parts["sha256"], **rules)


def _parse_rule(name: str, value: str | None) -> dict[str, Any] | None:
    """Parse one rule of a key; None if it is none. Raises ValueError."""
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
    if name in KEY_LIMITS and value.isdigit() and 1 <= int(value) <= MAX_LIMIT:
        return {"limits": {name: int(value)}}
    return None


def keys_text(keys: Iterable[KeyLine]) -> str:
    return "".join(f"{each.text()}\n" for each in keys)


def effective_keys(planned: Sequence[KeyLine], changes: Sequence[KeyLine]) -> list[KeyLine]:
    """Return the keys in force: those of the plan with their present rules, then added ones. A revoked hash stays
    revoked in every line that has it. An added key with the name of a key of the plan is not in force: `shadowed_keys`
    returns these.
    """
    others = {(each.name, each.sha256): each for each in changes if each.planned}
    revoked = {each.sha256: each.revoked for each in (*planned, *changes) if each.revoked is not None}
    names = {each.name for each in planned}
    keys = [others.get((each.name, each.sha256), each)._replace(planned=True) for each in planned]
    keys += [each for each in changes if not each.planned and each.name not in names]
    return [each._replace(revoked=revoked.get(each.sha256)) for each in keys]


def shadowed_keys(planned: Sequence[KeyLine], changes: Sequence[KeyLine]) -> list[KeyLine]:
    """Return the added keys that are not in force, because the plan has a key with the same name."""
    names = {each.name for each in planned}
    return [each for each in changes if not each.planned and each.name in names]
