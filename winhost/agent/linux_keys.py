# Part of the program that `winhost serve` sends: the gateway's API keys, changes to them, and their use.
"""Changes are in one file, which is replaced under a lock and read again by the gateway. This part has to parse with
Python 3.8.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from winhost.agent.linux_agent import AgentFault, bad_request, check_text, wrong_state
from winhost.agent.linux_files import put, read_text, try_lock
from winhost.gateway.key_lines import (
    KEY_LIMITS,
    KEY_MODEL,
    KEY_NAME,
    MAX_LIMIT,
    KeyLine,
    WrongKeys,
    effective_keys,
    keys_text,
    parse_keys,
    shadowed_keys,
    time_text,
)

if TYPE_CHECKING:  # Python 3.8 cannot say these
    from collections.abc import Iterator

    from winhost.agent.linux_agent import State

GATEWAY_UNITS = ("/etc/systemd/system", "/usr/local/lib/systemd/system")
KEY_CHANGES = "/etc/winhost/gateway-keys"
KEY_CHANGES_OWNER = "root:winhost-engines"  # the gateway is in this group, and no engine is
KEY_USE = "/var/lib/private/winhost-gateway/use.json"
KEYS_LOCK = "/run/winhost-keys.lock"
LOCKED_S = 30.0
MAX_CHANGES = 1_000_000  # characters
LAST_TIME = 253_402_300_799  # the end of the year 9999
COUNTS = ("requests", "refused", "tokens_in", "tokens_out")


def keys(request: State) -> State:
    """Apply the requested change, if there is one ({verb: add | limit | revoke, name, ...}), and list all keys of the
    gateway. outcome: the result of the change.
    """
    files = GatewayFiles()
    change, outcome = request.get("change"), "none"
    if change:
        with locked_keys():
            outcome = files.change(change)
    return {"outcome": outcome, **files.listing()}


@contextmanager
def locked_keys() -> Iterator[None]:
    """Hold the lock for changes of keys, for which a second process waits."""
    lock = os.open(KEYS_LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    deadline = time.monotonic() + LOCKED_S
    try:
        while not try_lock(lock):
            if time.monotonic() > deadline:
                raise AgentFault(
                    "Winhost.KeysLocked", "ResourceBusy", "Another process changes keys, and does not end."
                )
            time.sleep(0.1)
        yield
    finally:
        os.close(lock)


def now_s() -> int:
    return int(datetime.now(timezone.utc).timestamp())


class GatewayFiles:
    """The gateway's settings and planned keys, whose files its unit names, and the keys changed since."""

    def __init__(self) -> None:
        unit = next(
            (text for text in map(read_text, (f"{each}/winhost-gateway.service" for each in GATEWAY_UNITS)) if text), ""
        )
        planned = re.search(r"^LoadCredential=keys:(/[A-Za-z0-9._/-]+)$", unit, re.MULTILINE)
        settings = re.search(r"^ExecStart=.* (/[A-Za-z0-9._/-]+/settings\.json)$", unit, re.MULTILINE)
        if planned is None or settings is None:
            raise wrong_state("There is no winhost-gateway.service that names its keys and its settings.")
        self.settings = json.loads(read_text(settings[1]) or "{}")
        self.planned = parse_keys(read_text(planned[1]) or "")

    @property
    def models(self) -> list[str]:
        return [each["name"] for each in self.settings.get("models", [])]

    def changes(self) -> list[KeyLine]:
        """Read the changed keys. Raises WrongKeys."""
        return parse_keys(read_text(KEY_CHANGES) or "")

    def change(self, request: State) -> str:
        """Change a key. Return changed, same, exists, planned, same-key, unknown, revoked, metrics, yields or
        model M.
        """
        if self.settings.get("key_changes") != KEY_CHANGES:
            raise wrong_state(f"The gateway was set up without {KEY_CHANGES}: plan and apply anew, which names it.")
        name = check_text(KEY_NAME, request["name"], "the name of a key")
        try:
            changes = self.changes()
        except WrongKeys as wrong:
            message = f"{KEY_CHANGES} cannot be read: {wrong}. Nothing was changed; mend it there, or put back a copy."
            raise AgentFault("Winhost.NotValid", "InvalidData", message) from None
        before = next((each for each in effective_keys(self.planned, changes) if each.name == name), None)
        if unknown := [each for each in request.get("models") or () if each not in self.models]:
            return f"model {unknown[0]}"
        after = {"add": self.add, "limit": change_limits, "revoke": revoke}[request["verb"]](name, before, request)
        if isinstance(after, str):
            return after
        if after == before:
            return "same"
        # Another key of this name that was revoked stays revoked, under a name that users cannot give.
        others = [
            each if each.name != name else each._replace(name=f"revoked-{each.sha256[:32]}", planned=False)
            for each in changes
            if each.name != name or (each.revoked is not None and each.sha256 != after.sha256)
        ]
        text = keys_text([*others, after])
        if len(text) > MAX_CHANGES:
            raise AgentFault("Winhost.NoRoom", "ResourceUnavailable", f"{KEY_CHANGES} would have more than 1 MB.")
        put(KEY_CHANGES, text, 0o640, KEY_CHANGES_OWNER)
        return "changed"

    def add(self, name: str, before: KeyLine | None, request: State) -> KeyLine | str:
        """Add a key. A revoked key that is not one of the plan is replaced. Adding the same key again changes nothing,
        because a request is repeated after a lost answer.
        """
        digest = check_text(r"[0-9a-f]{64}", request["sha256"], "the hash of a key")
        if before and before.sha256 == digest and before.revoked is None:
            return before
        if before and before.revoked is None:
            return "exists"
        if before and before.planned:
            return "planned"
        if any(each.sha256 == digest for each in effective_keys(self.planned, self.changes())):
            return "same-key"
        return apply_rules(KeyLine(name, digest, metrics=request.get("metrics") is True, added=now_s()), request)

    def listing(self) -> State:
        """List all keys, and tell whether the gateway has read the present files."""
        text, problem, changes = read_text(KEY_CHANGES) or "", None, []
        try:
            changes = parse_keys(text)
        except WrongKeys as wrong:
            problem = f"{KEY_CHANGES}: {wrong}"
        use = read_gateway_use()
        listed = [self.key(each, use, each.state(now_s())) for each in effective_keys(self.planned, changes)]
        listed += [self.key(each, {}, "hidden") for each in shadowed_keys(self.planned, changes)]
        read: State = use["read"] if isinstance(use.get("read"), dict) else {}
        digest = hashlib.sha256(text.encode("utf-8")).hexdigest()
        in_force = problem is None and not read.get("problem") and read.get("changes") == digest
        reported = problem or str(read.get("problem") or "")[:300] or None
        return {"keys": listed, "models": self.models, "problem": reported, "in_force": in_force}

    def key(self, line: KeyLine, use: State, state: str) -> State:
        per_key = self.settings.get("per_key", {})
        limits = {**per_key, **per_key.get("keys", {}).get(line.name, {}), **line.limits}
        used = use.get("used", {}).get(line.name) if isinstance(use.get("used"), dict) else None
        times = {"expires": line.expires, "added": line.added, "revoked": line.revoked}
        return {
            "name": line.name,
            "planned": line.planned,
            "state": state,
            "metrics": line.metrics,
            "yields": line.yields,
            "models": None if line.models is None else list(line.models),
            **{name: None if line.metrics or line.yields else limits.get(name) for name in KEY_LIMITS},
            **{name: None if at is None else time_text(at) for name, at in times.items()},
            "used": parse_usage(used, line),
        }


def change_limits(name: str, before: KeyLine | None, request: State) -> KeyLine | str:
    if before is None:
        return "unknown"
    if before.revoked is not None:
        return "revoked"
    if before.metrics and request.get("limits"):
        return "metrics"
    if before.yields and (request.get("limits") or request.get("models")):
        return "yields"
    return apply_rules(before, request)


def revoke(name: str, before: KeyLine | None, request: State) -> KeyLine | str:
    if before is None:
        return "unknown"
    return before if before.revoked is not None else before._replace(revoked=now_s())


def apply_rules(line: KeyLine, request: State) -> KeyLine:
    """Apply the requested rules to a key; an omitted rule stays. models: null for all; expires: Unix time, or null;
    expires_in: seconds from now; limits: null for none; default: names of limits that are the same as for every key.
    """
    if "models" in request:
        models = request["models"]
        line = line._replace(
            models=None if models is None else tuple(check_text(KEY_MODEL, each, "a model") for each in models)
        )
    if "expires_in" in request:
        line = line._replace(expires=now_s() + check_number(LAST_TIME // 2, request["expires_in"]))
    if "expires" in request:
        at = request["expires"]
        line = line._replace(expires=None if at is None else check_number(LAST_TIME, at))
    limits = {name: limit for name, limit in line.limits.items() if name not in request.get("default", [])}
    for name, limit in request.get("limits", {}).items():
        if name not in KEY_LIMITS:
            raise bad_request(f"{name!r} is no limit.")
        limits[name] = None if limit is None else check_number(MAX_LIMIT, limit)
    return line._replace(limits=limits)


def check_number(maximum: int, value: Any) -> int:
    if type(value) is not int or not 1 <= value <= maximum:
        raise bad_request(f"{value!r} is no whole number from 1 to {maximum}.")
    return value


def read_gateway_use() -> State:
    """Read the usage that the gateway wrote last. It is not trusted: unexpected values count as absent."""
    try:
        found = json.loads(read_text(KEY_USE) or "{}")
    except (OSError, ValueError, RecursionError, AgentFault):
        return {}
    return found if isinstance(found, dict) else {}


def parse_usage(found: Any, line: KeyLine) -> State | None:
    """Read the usage of this key; None where the record belongs to an earlier key of that name."""
    if not isinstance(found, dict) or found.get("of") != line.sha256:
        return None
    numbers: dict[str, Any] = {name: found.get(name) for name in (*COUNTS, "since", "last")}
    if not all(type(each) is int and 0 <= each <= LAST_TIME for each in numbers.values()):
        return None
    since, last = numbers.pop("since"), numbers.pop("last")
    return {**numbers, "since": time_text(since), "last": time_text(last) if last else None}
