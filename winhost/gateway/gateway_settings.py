"""The settings of the gateway: one JSON file without secrets, checked when the gateway starts."""

import ipaddress
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .key_limits import KeyLimitSettings, parse_key_limits
from .request_rules import BodyRules, parse_rules
from .settings_values import (
    NAME,
    SOCKET,
    SocketOrPort,
    WrongSettings,
    choice,
    endpoint,
    engine_endpoint,
    field_names,
    flag,
    matching_text,
    number,
    table,
)
from .trusted_proxies import Network
from .turn_settings import ModelTurns, TurnLimits, check_turns, parse_model_turns, parse_turn_limits
from .yielding import YieldSettings, parse_yields

_FILE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")
_MAX_PROXIES = 64
READY = ("completion", "chat", "embedding")
FIRST, SECOND = "first", "second"
"""The engines of a model that has two."""


@dataclass(frozen=True)
class StandbyEngine:
    """The engine that takes over when a model's engine fails. engine: a second engine, None: the same one, which the
    model's turns start again; within: seconds in which a hang is noticed.
    """

    engine: SocketOrPort | None = None
    within: int = 1


@dataclass(frozen=True)
class PublishedModel:
    """A model that clients can call. name: its name for clients; served_as: its name in the engine; ready: the kind of
    request that checks whether it answers; turns: how it shares GPUs with other models; body: rules for the bodies of
    requests; standby: the engine that takes over from its engine.
    """

    name: str
    engine: SocketOrPort
    served_as: str
    ready: str
    turns: ModelTurns | None = None
    body: BodyRules = field(default_factory=BodyRules)
    standby: StandbyEngine | None = None


@dataclass(frozen=True)
class Tls:
    """The certificate and its key: names of credentials of the systemd unit."""

    certificate: str
    key: str


@dataclass(frozen=True)
class Limits:
    """The limits of the gateway. Times are in seconds.

    elements, depth: of a JSON body, whose values take far more memory than their text; bodies_bytes: of all bodies that
    are held until engines have answered; requests: that engines have at a time; waiting: further requests that send
    their body or wait; hold: for a request that waits for a free engine, or for one that starts; connections: in total,
    of which a quarter is reserved for clients that have sent a valid key; per_address: connections from an address that
    has sent none; head: for a handshake, and again for the head of a request; receive: for a body, and for a client
    that does not read; silence: of an engine; drain: for open requests when the gateway stops.
    """

    body_bytes: int = 16_777_216
    elements: int = 262_144
    depth: int = 64
    bodies_bytes: int = 134_217_728
    requests: int = 256
    waiting: int = 256
    connections: int = 1024
    per_address: int = 256
    hold: int = 120
    head: int = 15
    receive: int = 60
    silence: int = 600
    drain: int = 60


@dataclass(frozen=True)
class GatewaySettings:
    """All settings.

    plain_http_beyond_this_machine: the user agreed that keys and prompts can be read on the network; trusted_proxies:
    proxies that may name their client in X-Forwarded-For, or with proxy_protocol at the beginning of each connection;
    key_changes: the file of changes to the planned API keys, empty: there is none; yields: how models leave their GPUs
    when a key requests these, None: no key may.
    """

    listen: SocketOrPort
    models: Mapping[str, PublishedModel]
    tls: Tls | None = None
    plain_http_beyond_this_machine: bool = False
    limits: Limits = field(default_factory=Limits)
    turns: TurnLimits = field(default_factory=TurnLimits)
    per_key: KeyLimitSettings = field(default_factory=KeyLimitSettings)
    trusted_proxies: "tuple[Network, ...]" = ()
    proxy_protocol: bool = False
    key_changes: str = ""
    yields: YieldSettings | None = None

    @property
    def turn_models(self) -> dict[str, ModelTurns]:
        return {name: model.turns for name, model in self.models.items() if model.turns}


def parse_settings(text: str) -> GatewaySettings:
    """Parse and check the file of settings. Raises WrongSettings."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WrongSettings(f"not JSON: {error}") from None
    values = table(document, "the settings", ("listen", "models"), field_names(GatewaySettings))
    plain_http = flag(values, "the settings", "plain_http_beyond_this_machine")
    tls = table(values["tls"], "tls", ("certificate", "key")) if values.get("tls") is not None else None
    limits = table(values.get("limits", {}), "limits", (), field_names(Limits))
    settings = GatewaySettings(
        listen=endpoint(values["listen"], "listen"),
        models=_parse_models(values["models"]),
        tls=Tls(*(matching_text(tls, "tls", name, _FILE) for name in ("certificate", "key"))) if tls else None,
        plain_http_beyond_this_machine=plain_http,
        limits=Limits(**{name: number(limits, "limits", name, 1_073_741_824) for name in limits}),
        turns=parse_turn_limits(values.get("turns", {})),
        per_key=parse_key_limits(values.get("per_key", {})),
        trusted_proxies=_parse_networks(values.get("trusted_proxies", [])),
        proxy_protocol=flag(values, "the settings", "proxy_protocol"),
        key_changes=matching_text(values, "the settings", "key_changes", SOCKET) if "key_changes" in values else "",
        yields=parse_yields(values["yields"]) if "yields" in values else None,
    )
    check_turns(settings.turn_models, settings.turns)
    without_turns = [name for name in settings.models if name not in settings.turn_models]
    if settings.yields and without_turns:
        raise WrongSettings(f"yields: {without_turns[0]} has no `turns`, so nothing here can take it off its GPU")
    if settings.proxy_protocol and not settings.trusted_proxies:
        raise WrongSettings("proxy_protocol: name the proxies that may use it in trusted_proxies")
    if settings.trusted_proxies and settings.listen.socket:
        raise WrongSettings("trusted_proxies: a proxy is known by its address, so listen at an address and a port")
    if not (settings.listen.is_loopback or settings.tls or plain_http):
        raise WrongSettings(
            f"listen: {settings.listen} can be reached from other machines without TLS, where keys and prompts can be "
            "read on their way. Give it a certificate (tls), or agree with plain_http_beyond_this_machine: true"
        )
    return settings


def _parse_networks(value: Any) -> "tuple[Network, ...]":
    if not isinstance(value, list) or len(value) > _MAX_PROXIES:
        raise WrongSettings(f"trusted_proxies: a list of at most {_MAX_PROXIES} networks is expected")
    found = []
    for index, each in enumerate(value):
        try:
            network = ipaddress.ip_network(each if isinstance(each, str) else "")
        except ValueError:
            raise WrongSettings(f"trusted_proxies[{index}]: a network such as 10.0.0.5/32 is expected") from None
        if not network.prefixlen:
            raise WrongSettings(f"trusted_proxies[{index}]: with {each} any client could claim another address")
        found.append(network)
    return tuple(found)


def _parse_models(value: Any) -> dict[str, PublishedModel]:
    if not isinstance(value, list) or not value:
        raise WrongSettings("models: a list of at least one model is expected")
    found: dict[str, PublishedModel] = {}
    for index, each in enumerate(value):
        model = _parse_model(each, f"models[{index}]")
        if model.name in found:
            raise WrongSettings(f"models[{index}].name: {model.name} is there already")
        found[model.name] = model
    return found


def _parse_model(value: Any, path: str) -> PublishedModel:
    values = table(value, path, ("name", "engine"), field_names(PublishedModel))
    name = matching_text(values, path, "name", NAME)
    engine = _parse_engine(values["engine"], f"{path}.engine")
    return PublishedModel(
        name,
        engine,
        served_as=matching_text(values, path, "served_as", NAME) if "served_as" in values else name,
        ready=choice(values.get("ready", "completion"), f"{path}.ready", READY),
        turns=parse_model_turns(values["turns"], f"{path}.turns") if "turns" in values else None,
        body=parse_rules(values.get("body", {}), f"{path}.body"),
        standby=_parse_standby(values, f"{path}.standby", engine) if "standby" in values else None,
    )


def _parse_engine(value: Any, path: str) -> SocketOrPort:
    engine = engine_endpoint(value, path)
    if engine.address and (not (found := ipaddress.ip_address(engine.address)).is_private or found.is_unspecified):
        raise WrongSettings(f"{path}: {engine} is no internal address, so others could reach the engine")
    return engine


def _parse_standby(model: dict[str, Any], path: str, first: SocketOrPort) -> StandbyEngine:
    values = table(model["standby"], path, () if "turns" in model else ("engine",), field_names(StandbyEngine))
    if "engine" in values and "turns" in model:
        raise WrongSettings(
            f"{path}.engine: {model['name']} takes turns: its own engine is started again, so omit this key"
        )
    if isinstance(model.get("turns"), dict) and "unit" not in model["turns"]:
        raise WrongSettings(
            f"{path}: {model['name']} is started again by the unit of its engine, but `turns` names no unit"
        )
    engine = _parse_engine(values["engine"], f"{path}.engine") if "engine" in values else None
    if engine == first:
        raise WrongSettings(f"{path}.engine: {engine} is the model's first engine")
    return StandbyEngine(engine, number(values, path, "within", 600) if "within" in values else 1)
