"""winhost serve keys: API keys of a target's gateway, with their lifetime, models and limits."""

import os
import re
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import click

from winhost.cli.change.running import confirm_start
from winhost.cli.envelope import show_results
from winhost.cli.errors import usage_errors
from winhost.cli.options import KeyRules, Output, TargetOptions
from winhost.cli.output import say, show_command
from winhost.cli.plan.stack_parts import show_new_key
from winhost.cli.serve.target import WatchedTarget, no_such_model, reached
from winhost.cli.tables import table
from winhost.core.answers import Json
from winhost.core.dataclass import dataclass
from winhost.gateway.api_keys import MAX_KEY_LENGTH, MIN_KEY_LENGTH
from winhost.gateway.key_lines import KEY_LIMITS, KEY_NAME
from winhost.model.durations import parse_age
from winhost.model.errors import UsageError, WinhostError, did_you_mean, visible
from winhost.model.secrets import Secret, SecretRef
from winhost.model.served import ServedKey, ServedKeys

_READ_WITHIN_S, _PAUSE_S = 10.0, 0.5
_STOPS = "Ctrl-C stops watching; a change that was asked for may be made there."
NONE, AS_EVERY = "none", "default"


@dataclass(frozen=True)
class KeysOfHost:
    """The API keys of a gateway, and what they used. changed: the key that was added, limited or revoked; saved: the
    file that has a new one; in_force: the gateway has read them as they are told here; problem: why it cannot.
    """

    host: str
    changed: str | None
    saved: str | None
    in_force: bool
    problem: str | None
    keys: tuple[ServedKey, ...]


def key_change(rules: KeyRules) -> dict[str, Json]:
    """Convert the change for the program on the target. Raises BadParameter, UsageError."""
    found: dict[str, Json] = {}
    if rules.models and rules.all_models:
        raise click.UsageError("--model and --all-models contradict each other: choose one")
    if rules.models or rules.all_models:
        found["models"] = list(dict.fromkeys(rules.models)) or None
    if rules.expires is not None:
        found.update(parse_expiry(rules.expires))
    given = {name: limit for name in KEY_LIMITS if (limit := getattr(rules, name)) is not None}
    limits: dict[str, Json] = {name: limit for name, limit in given.items() if limit != AS_EVERY}
    if limits:
        found["limits"] = {name: None if limit == NONE else limit for name, limit in limits.items()}
    if default := [name for name, limit in given.items() if limit == AS_EVERY]:
        found["default"] = list[Json](default)
    return found


_LONGEST_S = 36_500 * 86_400


def parse_expiry(text: str) -> dict[str, Json]:
    """Parse `never`, a time from now (`30d`, `12h`), or a date and time, in UTC unless it says otherwise. A date means
    its midnight. Raises BadParameter.
    """
    if text == "never":
        return {"expires": None}
    try:
        if re.fullmatch(r"[0-9dhms]+", text):  # the clock of the host counts, whatever it is here
            seconds = parse_age(text)
            if not 1 <= seconds <= _LONGEST_S:
                raise ValueError("from 1s to 36500d is expected")
            return {"expires_in": seconds}
        try:
            at, now = datetime.fromisoformat(text), datetime.now(UTC)
        except ValueError:
            raise ValueError("write 30d, 12h, 2027-01-31, 2027-01-31T12:00Z or never") from None
        at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
        if at <= now:
            raise ValueError(f"that is over: it is {now:%Y-%m-%dT%H:%M:%SZ} now; to end a key, revoke it")
    except ValueError as wrong:
        raise click.BadParameter(f"{text!r:.80}: {wrong}", param_hint="'--expires'") from None
    return {"expires": int(at.timestamp())}


# ---- the commands


def list_(at: TargetOptions) -> int:
    with reached(at, reads=True) as served:
        found = served.session.keys()
    _answer(at, served.host, found, show_keys)
    return 0


def add(at: TargetOptions, name: str, key: str | None, save: Path | None, metrics: bool, rules: KeyRules) -> int:
    change = {**_named("add", name), "metrics": metrics, **key_change(rules)}
    if metrics and (change.keys() & {"limits", "default"}):
        raise click.UsageError("limits are for keys of models, and --metrics makes one that reads metrics alone")
    secret, made = _key(key, save, at.output)
    change["sha256"] = sha256(secret.reveal().encode()).hexdigest()
    with reached(at, stops=_STOPS) as served:
        saved = _saved(save, secret) if save else None
        has_it = f"{visible(str(saved))} has it"
        try:
            found = served.session.keys(change)
            _refuse(served.host, name, found)
        except WinhostError as error:
            if saved and isinstance(error, UsageError):  # it was refused: nobody has this key
                saved.unlink()
            elif saved:
                served.watch.say(_perhaps(served.host, name, has_it))
            raise
        except KeyboardInterrupt:
            served.watch.say(_perhaps(served.host, name, has_it if saved else "nobody has seen it"))
            raise click.exceptions.Abort from None
        with served.watch.paused():
            if made and not saved:
                show_new_key(f"API key {name} of {served.host}, shown only now", secret)
        found = _until_read(served, found)
    _answer(at, served.host, found, _show_changed("added"), name, saved)
    return 0


def limit(at: TargetOptions, name: str, rules: KeyRules) -> int:
    if not (asked := key_change(rules)):
        raise click.UsageError("say what is to change: --expires, --model, --all-models or a limit")
    return _changed("limit", at, name, asked)


def revoke(at: TargetOptions, name: str, yes: bool) -> int:
    _named("revoke", name)
    confirm_start(
        f"Revoke {name} on {visible(at.target)}? Its open requests are broken off, and it never counts again.", yes
    )
    return _changed("revoke", at, name, {})


def _changed(verb: str, at: TargetOptions, name: str, asked: Mapping[str, Json]) -> int:
    change = {**_named(verb, name), **asked}
    with reached(at, stops=_STOPS) as served:
        with served.at(f"{verb} {name}"):
            found = served.session.keys(change)
        _refuse(served.host, name, found)
        found = _until_read(served, found)
    _answer(at, served.host, found, _show_changed({"limit": "limited", "revoke": "revoked"}[verb]), name)
    return 0


def _named(verb: str, name: str) -> dict[str, Json]:
    if not re.fullmatch(KEY_NAME, name):
        raise click.BadParameter(
            f"{name!r:.80} is no name of a key: it has up to 64 letters, digits, dots, - and _", param_hint="'NAME'"
        )
    return {"verb": verb, "name": name}


# ---- a key


def _key(reference: str | None, save: Path | None, output: Output) -> tuple[Secret, bool]:
    """Resolve the key, or make one. The second value says whether it was made. Raises UsageError, BadParameter."""
    if reference is None:
        if save is None and (output.shape != "table" or not sys.stderr.isatty()):
            raise click.UsageError(
                "a new key is shown once, on a terminal, and this is none: name a new file for it, as --save FILE, or "
                "a key of your own, as --api-key REF"
            )
        return Secret(f"wh-{secrets.token_urlsafe(32)}"), True
    if save is not None:
        raise click.UsageError("--api-key names a key that you have, and --save a file for a new one: choose one")
    with usage_errors("'--api-key'"):
        found = SecretRef.parse(reference).resolve()
    if not re.fullmatch(rf"[!-~]{{{MIN_KEY_LENGTH},{MAX_KEY_LENGTH}}}", found.reveal()):
        span = f"{MIN_KEY_LENGTH} to {MAX_KEY_LENGTH}"
        why = f"the key has to have {span} characters of ASCII without blanks: openssl rand -hex 32"
        raise click.BadParameter(why, param_hint="'--api-key'")
    return found, False


def _saved(file: Path, key: Secret) -> Path:
    """Write a key to a new file that only its owner may read. Raises BadParameter."""
    try:
        number = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise click.BadParameter(f"{visible(str(file))} is there already", param_hint="'--save'") from None
    except OSError as error:
        raise click.BadParameter(f"{visible(str(file))}: {error.strerror}", param_hint="'--save'") from None
    with os.fdopen(number, "w", encoding="ascii") as opened:
        opened.write(key.reveal())
        opened.flush()
        os.fsync(number)
    return file.absolute()


def _perhaps(host: str, name: str, where: str) -> str:
    return (
        f"{host}: it is not known whether {name} was added; {where}. See: winhost serve keys list {host}\n"
        f"  If it is there and nobody has it: winhost serve keys revoke {host} {name}"
    )


# ---- what came of it


def _refuse(host: str, name: str, found: ServedKeys) -> None:
    """Raises UsageError: KeyExists, NoSuchKey, KeyRevoked, NoSuchModel."""
    outcome, _, what = found.outcome.partition(" ")
    if outcome in _TAKEN:
        says, hint = _TAKEN[outcome]
        raise UsageError(
            "KeyExists", what=f"{host}: {says.format(name)}", hint=hint.format(host=host, name=name), host=host
        )
    if outcome == "unknown":
        known = [each.name for each in found.keys]
        what = f"{host} has no API key '{name}'{did_you_mean(name, known)}"
        raise UsageError("NoSuchKey", what=what, hint=f"There are: {', '.join(known)}", host=host)
    if outcome == "revoked":
        hint = "It stays so. How to add another one: winhost serve keys add --help"
        raise UsageError("KeyRevoked", what=f"{host}: {name} was revoked", hint=hint, host=host)
    if outcome == "model":
        raise no_such_model(host, what, found.models)
    if outcome in _UNLIMITED:
        raise click.UsageError(_UNLIMITED[outcome].format(name))


_UNLIMITED = {
    "metrics": "limits are for keys of models, and {} reads metrics alone",
    "yields": "limits and models are for keys of models, and {} asks for the GPUs alone",
}
_TAKEN = {
    "exists": (
        "there is an API key '{}' already",
        "What it may use: winhost serve keys list {host}. How to change that: winhost serve keys limit --help",
    ),
    "planned": (
        "'{}' is a key of the plan and was revoked, so the plan has to name another one",
        "Choose another name, or plan with another key for it: winhost plan {host} --workload WORKLOAD --api-key "
        "{name}=REF",
    ),
    "same-key": (
        "this very key is there already, under another name than '{}'",
        "Name another key. Which there are: winhost serve keys list {host}",
    ),
}


def _until_read(served: WatchedTarget, found: ServedKeys) -> ServedKeys:
    """Wait a while until the gateway has read the keys, unless it cannot."""
    unit = served.deployed.gateway.unit
    until = time.monotonic() + _READ_WITHIN_S
    try:
        with served.at("until the gateway has read it"):
            while not (found.in_force or found.problem) and time.monotonic() < until:
                if served.unit(unit).active != "active":
                    break
                time.sleep(_PAUSE_S)
                found = served.session.keys()
    except KeyboardInterrupt:
        pass  # it was changed, and what is shown says that the gateway may not have read it
    return found


def _answer(
    at: TargetOptions,
    host: str,
    found: ServedKeys,
    human: Callable[[KeysOfHost], None],
    changed: str | None = None,
    saved: Path | None = None,
) -> None:
    keys = KeysOfHost(host, changed, None if saved is None else str(saved), found.in_force, found.problem, found.keys)
    shown = [(host, keys)]
    show_results("serving-keys", at.output.shape, shown, human, names=lambda _: [each.name for each in found.keys])


def show_keys(found: KeysOfHost) -> None:
    uses = ("requests", "refused", "tokens in", "tokens out", "last used")
    table(("key", "from", "state", "for", "limits", "expires", *uses), map(_row, found.keys))
    _show_state(found)


def _row(each: ServedKey) -> Sequence[object]:
    used = each.used
    counts: Sequence[object] = ("",) * 5
    if used is not None:
        numbers = (used.requests, used.refused, used.tokens_in, used.tokens_out)
        counts = (*(f"{count:,}" for count in numbers), used.last or "")
    origin, ends = "plan" if each.planned else "added", each.expires or "never"
    return (each.name, origin, each.state, _use(each), _limits(each), ends, *counts)


def _use(each: ServedKey) -> str:
    if each.yields:
        return "to ask for the GPUs"
    which = "all models" if each.models is None else ", ".join(each.models)
    return f"metrics of {which}" if each.metrics else which


def _limits(each: ServedKey) -> str:
    short = dict(zip(KEY_LIMITS, ("at a time", "requests/min", "tokens/min"), strict=True))
    found = [f"{limit:,} {short[name]}" for name in KEY_LIMITS if (limit := getattr(each, name)) is not None]
    return ", ".join(found) or "none"


def _show_changed(done: str) -> Callable[[KeysOfHost], None]:
    def show(found: KeysOfHost) -> None:
        each = next(each for each in found.keys if each.name == found.changed)
        rules = f": {_use(each)}, limits: {_limits(each)}, expires: {each.expires or 'never'}"
        rules = "" if done == "revoked" else rules
        say(f"{found.host}: {each.name} {done}{rules}", fg="green", hang=2)
        if found.saved:
            show_command(f"Its key is in {found.saved}. To see it:", "cat", found.saved)
        _show_state(found)

    return show


def _show_state(found: KeysOfHost) -> None:
    since = sorted({each.used.since for each in found.keys if each.used})
    if since and found.changed is None:
        say(f"Counted since {since[0]}{' or later' if len(since) > 1 else ''}; times are in UTC.")
    if hidden := [each.name for each in found.keys if each.state == "hidden"]:
        say(f"{', '.join(hidden)}: the plan has a key of this name, so the one that was added does not count.", hang=2)
    if found.problem:
        say(f"The gateway goes on with the keys that it had: {found.problem}", fg="red", hang=2)
    elif not found.in_force:
        say(
            "The gateway has not read this yet, because it does not run or has just been told. See: "
            f"winhost serve keys list {found.host}",
            fg="yellow",
            hang=2,
        )
