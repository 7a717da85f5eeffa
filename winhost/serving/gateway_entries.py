"""The gateway as entries of a playbook: its program, settings and keys in a folder of their own, and the unit.

A hash of its content is part of the folder's name. A change therefore makes a new folder, and only the unit changes: it
is the last step of a run, and of its rollback.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from winhost.core.answers import Json
from winhost.gateway import api_keys
from winhost.gateway.api_keys import MIN_KEY_LENGTH, ApiKeys
from winhost.gateway.gateway_settings import parse_settings
from winhost.gateway.yielding import MODE_FILE
from winhost.model.secrets import SecretRef
from winhost.model.workload import KeyLimit, Model, Workload
from winhost.serving.engine_names import UNITS
from winhost.serving.entries import entry, file_entry

GROUP = "winhost-engines"
UNIT, KEEPER, BOOT_TEST = "winhost-gateway.service", "winhost-keeper.service", "winhost-boot-test.service"
_SOURCE = Path(__file__).parents[1] / "gateway"
KEEPER_SOCKET = "/run/winhost-keeper/keeper.sock"
KEY_CHANGES = "/etc/winhost/gateway-keys"  # no plan writes this file, so no plan reverts later changes of keys
_PROGRAM = "gateway/"


def key_line(kind: str, name: str, reference: str) -> str:
    """Return the line in the file of keys for a key of --KIND-key. name: of its owner, for a key for metrics optionally
    followed by a colon and the models whose metrics it reads; reference: to the secret.

    Raises ValueError, UsageError (SecretUnreadable).
    """
    name, colon, models = name.partition(":") if kind == "metrics" else (name, "", "")
    key = SecretRef.parse(reference).resolve()
    if len(key.reveal()) < MIN_KEY_LENGTH:
        raise ValueError(f"the key of {name} has fewer than {MIN_KEY_LENGTH} characters")
    uses = {"api": "", "metrics": f"metrics={models}" if colon else "metrics", "yield": "yield"}
    return api_keys.key_line(name, key.reveal(), uses[kind])


def published_model(model: Model, engine: Json, standby: "dict[str, Json] | None" = None) -> dict[str, Json]:
    """Return a model in the gateway's settings. engine: where it listens; standby: its second engine, empty if the same
    engine starts anew, None without a standby.
    """
    values = {"fields": [*model.body.fields], "media": [*model.body.media], "most": dict(model.body.most)}
    body = {name: value for name, value in values.items() if value}
    second: dict[str, Json] = {} if standby is None else {"standby": standby}
    return {"name": model.name, "engine": engine, **({"body": body} if body else {}), **second}


def workload_settings(
    workload: Workload,
    listen: tuple[str, int],
    models: list[Json],
    turns: Mapping[str, Json] | None = None,
    *,
    plain_http: bool,
) -> dict[str, Json]:
    """Return the settings of a gateway for a workload. models: of `published_model`; turns: settings of all turns."""
    address, port = listen
    plain: dict[str, Json] = {"plain_http_beyond_this_machine": True} if plain_http else {}
    shared_turns: dict[str, Json] = {"turns": dict(turns)} if turns else {}
    endpoint: dict[str, Json] = {"listen": {"address": address, "port": port}, "models": models}
    return {**endpoint, **plain, **shared_turns, **workload_limits(workload)}


def workload_limits(workload: Workload) -> dict[str, Json]:
    """Return the gateway's settings of limits for keys, of trusted proxies, and of yielding."""
    settings: dict[str, Json] = {}
    if workload.per_key is not None:
        limits = workload.per_key
        keys: dict[str, Json] = {name: _limits(limits.of(name)) for name in limits.keys}
        settings["per_key"] = {**_limits(limits), **({"keys": keys} if keys else {})}
    if workload.trusted_proxies:
        settings["trusted_proxies"] = [*workload.trusted_proxies]
    if workload.proxy_protocol:
        settings["proxy_protocol"] = True
    if workload.availability.yield_to is not None:
        settings["yields"] = yields()
    return settings


def yields() -> dict[str, Json]:
    """Return the gateway's settings for a workload that may yield its GPUs."""
    return {"mode": MODE_FILE}


def _limits(limit: KeyLimit) -> dict[str, Json]:
    values = {name: getattr(limit, name) for name in KeyLimit.__annotations__}
    return {name: value for name, value in values.items() if value is not None}


def gateway_entries(
    settings: Mapping[str, Json], keys: Sequence[str], tls: tuple[str, str] | None, *, boot_test: bool = False
) -> list[Json]:
    """Make the entries of the gateway. settings: without TLS; keys: lines of its file of keys; tls: paths of a
    certificate and its key on that Linux; boot_test: the machine tests the endpoint after each of its starts.

    Raises ValueError.
    """
    if any(line.endswith(" metrics") for line in keys):  # only the keeper can read the GPUs
        turns = settings.get("turns")
        settings = {**settings, "turns": {"keeper": KEEPER_SOCKET, **(turns if isinstance(turns, dict) else {})}}
    files = gateway_files({**settings, "key_changes": KEY_CHANGES}, keys, tls)
    keeper = parse_settings(files["settings.json"]).turns.keeper is not None
    digest = hashlib.sha256(json.dumps(files, sort_keys=True).encode("ascii")).hexdigest()[:16]
    exposed = "-plain-http" if settings.get("plain_http_beyond_this_machine") else ""
    folder = f"/opt/winhost/gateway{exposed}-{digest}"
    entries = list(_entries(files, folder, tls, keeper))
    if boot_test:
        # The unit is enabled and not started: a plan asks for a completion itself.
        file, unit = _unit(
            BOOT_TEST, _unit_text(BOOT_TEST, folder), "It tests the endpoint after a start of the machine."
        )
        entries += [file, {**unit, "desired": {"enabled": "enabled"}}]
    return entries


def gateway_program() -> dict[str, str]:
    """Return the texts of the gateway's modules, by name."""
    return {path.name: path.read_text("utf-8") for path in sorted(_SOURCE.glob("*.py"))}


def gateway_files(
    settings: Mapping[str, Json], keys: Sequence[str], tls: tuple[str, str] | None = None
) -> dict[str, str]:
    """Make and check the gateway's files: its program in `gateway/`, `settings.json` and `keys`. Raises ValueError."""
    names = {"tls": {"certificate": "certificate", "key": "key"}} if tls else {}
    files = {f"{_PROGRAM}{name}": text for name, text in gateway_program().items()}
    files["settings.json"] = json.dumps({**settings, **names}, indent=2) + "\n"
    files["keys"] = "\n".join([*keys, ""])
    check_key_names(files["settings.json"], files["keys"])
    models = parse_settings(files["settings.json"]).models
    if unknown := sorted(ApiKeys(files["keys"]).metrics_models - models.keys()):
        raise ValueError(f"a key for metrics names {unknown[0]}, which is no model here")
    if any(not re.fullmatch(r"/[A-Za-z0-9._/-]+", path) for path in tls or ()):
        raise ValueError("a path of a certificate has letters, digits, dots, dashes and slashes")
    return files


def check_key_names(settings: str, keys: str) -> None:
    """Check that each key with limits of its own exists. Raises ValueError."""
    names = ApiKeys(keys).names
    if unknown := [name for name in parse_settings(settings).per_key.keys if name not in names]:
        raise ValueError(f"per_key.keys: {unknown[0]} has no API key here; there are {', '.join(names)}")


def _entries(files: Mapping[str, str], folder: str, tls: tuple[str, str] | None, keeper: bool) -> Iterator[Json]:
    group, why = {"there": True, "system": True}, "Engines let it into the folders of their sockets."
    yield entry("LinuxGroup", _title(GROUP), {"group": GROUP}, group, why)
    desired: dict[str, Any] = {"files": gateway_program(), "only_root": True}
    path = {"path": f"{folder}/{_PROGRAM}".rstrip("/")}
    why = "The gateway runs it, and only root can change it."
    yield entry("LinuxFolder", _title("its program"), path, desired, why)
    whys = {"settings.json": "The gateway reads it when it starts.", "keys": "Hashes of the API keys that it accepts."}
    for name, why in whys.items():
        mode = "0600" if name == "keys" else "0644"
        yield file_entry(_title(name), f"{folder}/{name}", files[name], why, mode)
    if keeper:
        why = "It starts and stops engines whose turn it is, and sees the GPUs."
        yield from _unit(KEEPER, _unit_text(KEEPER, folder), why)
    unit = _unit_text(UNIT, folder)
    for name, file in zip(("certificate", "key"), tls or (), strict=False):
        unit = unit.replace("Restart=", f"LoadCredential={name}:{file}\nRestart=", 1)
    yield from _unit(UNIT, unit, "It starts with the machine.")


def _unit_text(unit: str, folder: str) -> str:
    text = (_SOURCE / unit).read_text("utf-8")
    return text.replace("/usr/local/lib/winhost", folder).replace("/etc/winhost/gateway", folder)


def _unit(unit: str, text: str, why: str) -> Iterator[Json]:
    yield file_entry(_title(unit), f"{UNITS}/{unit}", text, "Its unit is restarted where this changes.")
    yield entry("SystemdUnit", _title(unit), {"unit": unit}, {"enabled": "enabled", "active": True}, why)


def _title(name: str) -> str:
    return f"The gateway: {name}"
