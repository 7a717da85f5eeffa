"""winhost serve keys: list, add, limit and revoke the API keys of a target's gateway."""

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
from winhost.cli.serve.target import WatchedTarget, connect_target, no_such_model_error
from winhost.cli.tables import table
from winhost.core.answers import Json
from winhost.core.dataclass import dataclass
from winhost.gateway.api_keys import MAX_KEY_LENGTH, MIN_KEY_LENGTH
from winhost.gateway.key_lines import KEY_LIMITS, KEY_NAME
from winhost.model.durations import parse_age
from winhost.model.errors import UsageError, WinhostError, did_you_mean, visible
from winhost.model.secrets import Secret, SecretRef
from winhost.model.served import ServedKey, ServedKeys

_READ_TIMEOUT_S, _PAUSE_S = 10.0, 0.5
_STOPS = "Ctrl-C stops watching; the change may still be made there."
NO_LIMIT, DEFAULT_LIMIT = "none", "default"


@dataclass(frozen=True)
class KeysOfHost:
    """The API keys of a gateway, and their usage. changed: the key that was added, limited or revoked; saved: the file
    with a new key; in_force: the gateway has read the keys as they are shown here; problem: why it cannot read them.
    """

    host: str
    changed: str | None
    saved: str | None
    in_force: bool
    problem: str | None
    keys: tuple[ServedKey, ...]


def make_key_change(rules: KeyRules) -> dict[str, Json]:
    """Convert the options to a change for the agent on the target. Raises BadParameter, UsageError."""
    change: dict[str, Json] = {}
    if rules.models and rules.all_models:
        raise click.UsageError("--model and --all-models contradict each other: choose one")
    if rules.models or rules.all_models:
        change["models"] = list(dict.fromkeys(rules.models)) or None
    if rules.expires is not None:
        change.update(parse_expiry(rules.expires))
    limit_options = {name: limit for name in KEY_LIMITS if (limit := getattr(rules, name)) is not None}
    limits: dict[str, Json] = {name: limit for name, limit in limit_options.items() if limit != DEFAULT_LIMIT}
    if limits:
        change["limits"] = {name: None if limit == NO_LIMIT else limit for name, limit in limits.items()}
    if default := [name for name, limit in limit_options.items() if limit == DEFAULT_LIMIT]:
        change["default"] = list[Json](default)
    return change


_MAX_LIFETIME_S = 36_500 * 86_400


def parse_expiry(text: str) -> dict[str, Json]:
    """Parse `never`, a time from now (`30d`, `12h`), or a date and time, in UTC unless it says otherwise. A date means
    its midnight. Raises BadParameter.
    """
    if text == "never":
        return {"expires": None}
    try:
        if re.fullmatch(r"[0-9dhms]+", text):  # relative to the clock of the target, not of this computer
            seconds = parse_age(text)
            if not 1 <= seconds <= _MAX_LIFETIME_S:
                raise ValueError("from 1s to 36500d is expected")
            return {"expires_in": seconds}
        try:
            expiry_time, now = datetime.fromisoformat(text), datetime.now(UTC)
        except ValueError:
            raise ValueError("write 30d, 12h, 2027-01-31, 2027-01-31T12:00Z or never") from None
        expiry_time = expiry_time.replace(tzinfo=UTC) if expiry_time.tzinfo is None else expiry_time
        if expiry_time <= now:
            raise ValueError(f"that is in the past: it is {now:%Y-%m-%dT%H:%M:%SZ} now; to end a key, revoke it")
    except ValueError as error:
        raise click.BadParameter(f"{text!r:.80}: {error}", param_hint="'--expires'") from None
    return {"expires": int(expiry_time.timestamp())}


# ---- the commands


def list_(options: TargetOptions) -> int:
    with connect_target(options, reads=True) as target:
        keys = target.session.keys()
    _show_result(options, target.host, keys, show_keys)
    return 0


def add(options: TargetOptions, name: str, key: str | None, save: Path | None, metrics: bool, rules: KeyRules) -> int:
    change = {**_base_change("add", name), "metrics": metrics, **make_key_change(rules)}
    if metrics and (change.keys() & {"limits", "default"}):
        raise click.UsageError("limits are for keys of models, and --metrics makes a key that reads only metrics")
    secret, is_new = _make_or_resolve_key(key, save, options.output)
    change["sha256"] = sha256(secret.reveal().encode()).hexdigest()
    with connect_target(options, stops=_STOPS) as target:
        saved_file = _save_key(save, secret) if save else None
        location = f"{visible(str(saved_file))} contains it"
        try:
            keys = target.session.keys(change)
            _check_outcome(target.host, name, keys)
        except WinhostError as error:
            if saved_file and isinstance(error, UsageError):  # the target refused the key, so the file is useless
                saved_file.unlink()
            elif saved_file:
                target.watch.say(_unknown_outcome(target.host, name, location))
            raise
        except KeyboardInterrupt:
            target.watch.say(_unknown_outcome(target.host, name, location if saved_file else "it was not shown"))
            raise click.exceptions.Abort from None
        with target.watch.paused():
            if is_new and not saved_file:
                show_new_key(f"API key {name} of {target.host}, shown only now", secret)
        keys = _wait_until_read(target, keys)
    _show_result(options, target.host, keys, _make_change_printer("added"), name, saved_file)
    return 0


def limit(options: TargetOptions, name: str, rules: KeyRules) -> int:
    if not (change_request := make_key_change(rules)):
        raise click.UsageError("name what to change: --expires, --model, --all-models or a limit")
    return _apply_change("limit", options, name, change_request)


def revoke(options: TargetOptions, name: str, yes: bool) -> int:
    _base_change("revoke", name)
    confirm_start(
        f"Revoke {name} on {visible(options.target)}? Its open requests end now, and it is never accepted again.", yes
    )
    return _apply_change("revoke", options, name, {})


def _apply_change(verb: str, options: TargetOptions, name: str, details: Mapping[str, Json]) -> int:
    change = {**_base_change(verb, name), **details}
    with connect_target(options, stops=_STOPS) as target:
        with target.show_activity(f"{verb} {name}"):
            keys = target.session.keys(change)
        _check_outcome(target.host, name, keys)
        keys = _wait_until_read(target, keys)
    _show_result(
        options, target.host, keys, _make_change_printer({"limit": "limited", "revoke": "revoked"}[verb]), name
    )
    return 0


def _base_change(verb: str, name: str) -> dict[str, Json]:
    if not re.fullmatch(KEY_NAME, name):
        raise click.BadParameter(
            f"{name!r:.80} is not a name for a key: names have up to 64 letters, digits, dots, - and _",
            param_hint="'NAME'",
        )
    return {"verb": verb, "name": name}


# ---- a key


def _make_or_resolve_key(reference: str | None, save: Path | None, output: Output) -> tuple[Secret, bool]:
    """Resolve the key, or make one. Return the key, and whether it is new. Raises UsageError, BadParameter."""
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
        secret = SecretRef.parse(reference).resolve()
    if not re.fullmatch(rf"[!-~]{{{MIN_KEY_LENGTH},{MAX_KEY_LENGTH}}}", secret.reveal()):
        span = f"{MIN_KEY_LENGTH} to {MAX_KEY_LENGTH}"
        why = f"the key has to have {span} characters of ASCII without blanks: openssl rand -hex 32"
        raise click.BadParameter(why, param_hint="'--api-key'")
    return secret, False


def _save_key(file: Path, key: Secret) -> Path:
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


def _unknown_outcome(host: str, name: str, where: str) -> str:
    return (
        f"{host}: it is not known whether {name} was added; {where}. See: winhost serve keys list {host}\n"
        f"  If it is there and nobody has it: winhost serve keys revoke {host} {name}"
    )


# ---- results


def _check_outcome(host: str, name: str, result: ServedKeys) -> None:
    """Check that the target made the change. Raises UsageError: KeyExists, NoSuchKey, KeyRevoked, NoSuchModel."""
    outcome, _, what = result.outcome.partition(" ")
    if outcome in _CONFLICTS:
        sentence, hint = _CONFLICTS[outcome]
        raise UsageError(
            "KeyExists", what=f"{host}: {sentence.format(name)}", hint=hint.format(host=host, name=name), host=host
        )
    if outcome == "unknown":
        known = [each.name for each in result.keys]
        what = f"{host} has no API key '{name}'{did_you_mean(name, known)}"
        raise UsageError("NoSuchKey", what=what, hint=f"There are: {', '.join(known)}", host=host)
    if outcome == "revoked":
        hint = "This cannot be undone. How to add another key: winhost serve keys add --help"
        raise UsageError("KeyRevoked", what=f"{host}: {name} was revoked", hint=hint, host=host)
    if outcome == "model":
        raise no_such_model_error(host, what, result.models)
    if outcome in _UNLIMITED_KINDS:
        raise click.UsageError(_UNLIMITED_KINDS[outcome].format(name))


_UNLIMITED_KINDS = {
    "metrics": "limits are for keys of models, and {} reads only metrics",
    "yields": "limits and models are for keys of models, and {} only asks for the GPUs",
}
_CONFLICTS = {
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
        "the same key exists already, under another name than '{}'",
        "Use another key. To list the keys: winhost serve keys list {host}",
    ),
}


def _wait_until_read(target: WatchedTarget, keys: ServedKeys) -> ServedKeys:
    """Wait until the gateway has read the keys, at most `_READ_TIMEOUT_S` and not if it cannot. Return them."""
    unit = target.deployed.gateway.unit
    deadline = time.monotonic() + _READ_TIMEOUT_S
    try:
        with target.show_activity("until the gateway has read it"):
            while not (keys.in_force or keys.problem) and time.monotonic() < deadline:
                if target.unit(unit).active != "active":
                    break
                time.sleep(_PAUSE_S)
                keys = target.session.keys()
    except KeyboardInterrupt:
        pass  # the change is made; the output says that the gateway may not have read it
    return keys


def _show_result(
    options: TargetOptions,
    host: str,
    served_keys: ServedKeys,
    show: Callable[[KeysOfHost], None],
    changed: str | None = None,
    saved: Path | None = None,
) -> None:
    keys = KeysOfHost(
        host,
        changed,
        None if saved is None else str(saved),
        served_keys.in_force,
        served_keys.problem,
        served_keys.keys,
    )
    results = [(host, keys)]
    show_results(
        "serving-keys", options.output.shape, results, show, names=lambda _: [each.name for each in served_keys.keys]
    )


def show_keys(host_keys: KeysOfHost) -> None:
    uses = ("requests", "refused", "tokens in", "tokens out", "last used")
    table(("key", "from", "state", "for", "limits", "expires", *uses), map(_key_row, host_keys.keys))
    _show_state(host_keys)


def _key_row(key: ServedKey) -> Sequence[object]:
    used = key.used
    counts: Sequence[object] = ("",) * 5
    if used is not None:
        numbers = (used.requests, used.refused, used.tokens_in, used.tokens_out)
        counts = (*(f"{count:,}" for count in numbers), used.last or "")
    origin, ends = "plan" if key.planned else "added", key.expires or "never"
    return (key.name, origin, key.state, _format_use(key), _format_limits(key), ends, *counts)


def _format_use(key: ServedKey) -> str:
    if key.yields:
        return "to ask for the GPUs"
    models = "all models" if key.models is None else ", ".join(key.models)
    return f"metrics of {models}" if key.metrics else models


def _format_limits(key: ServedKey) -> str:
    labels = dict(zip(KEY_LIMITS, ("at a time", "requests/min", "tokens/min"), strict=True))
    limits = [f"{limit:,} {labels[name]}" for name in KEY_LIMITS if (limit := getattr(key, name)) is not None]
    return ", ".join(limits) or "none"


def _make_change_printer(done: str) -> Callable[[KeysOfHost], None]:
    def show(host_keys: KeysOfHost) -> None:
        each = next(each for each in host_keys.keys if each.name == host_keys.changed)
        rules = f": {_format_use(each)}, limits: {_format_limits(each)}, expires: {each.expires or 'never'}"
        rules = "" if done == "revoked" else rules
        say(f"{host_keys.host}: {each.name} {done}{rules}", fg="green", hang=2)
        if host_keys.saved:
            show_command(f"Its key is in {host_keys.saved}. To see it:", "cat", host_keys.saved)
        _show_state(host_keys)

    return show


def _show_state(host_keys: KeysOfHost) -> None:
    since = sorted({each.used.since for each in host_keys.keys if each.used})
    if since and host_keys.changed is None:
        say(f"Counted since {since[0]}{' or later' if len(since) > 1 else ''}; times are in UTC.")
    if hidden := [each.name for each in host_keys.keys if each.state == "hidden"]:
        say(
            f"{', '.join(hidden)}: the plan has a key of this name, so the gateway ignores the one that was added.",
            hang=2,
        )
    if host_keys.problem:
        say(f"The gateway still uses its earlier keys: {host_keys.problem}", fg="red", hang=2)
    elif not host_keys.in_force:
        say(
            "The gateway has not read this yet: it is not running, or the change is too recent. See: "
            f"winhost serve keys list {host_keys.host}",
            fg="yellow",
            hang=2,
        )
