"""The settings of the gateway: one JSON file without secrets, checked when the gateway starts."""

import ipaddress
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .key_limits import PerKey, parse_per_key
from .request_rules import BodyRules, parse_rules
from .settings_values import (
    NAME,
    SOCKET,
    SocketOrPort,
    WrongSettings,
    endpoint,
    engine_endpoint,
    flag,
    names_of,
    number,
    one_of,
    table,
    word,
)
from .trusted_proxies import Network
from .turn_settings import ModelTurns, TurnLimits, check_turns, parse_model_turns, parse_turn_limits
from .yielding import YieldSettings, parse_yields

_FILE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")
_MOST_PROXIES = 64
READY = ("completion", "chat", "embedding")
FIRST, SECOND = "first", "second"
"""The engines of a model that has two."""


@dataclass(frozen=True)
class StandbyEngine:
    """The engine that takes over from a model's first one. engine: a second engine; None: the same one, which the
    model's turns start anew; within: seconds in which a hang is noticed.
    """

    engine: SocketOrPort | None = None
    within: int = 1


@dataclass(frozen=True)
class PublishedModel:
    """A model that clients can call. name: its name for clients; served_as: its name in the engine; ready: the kind of
    request that shows that it answers; turns: how it shares GPUs with other models; body: what requests may contain
    besides the usual; standby: what takes over from its engine.
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
    are held until engines have answered; requests: how many engines work on at a time; waiting: how many more send
    their body or wait; hold: how long they wait, for a free engine or for one that starts; connections: in total, of
    which a quarter is kept for clients that have sent a valid key; per_address: connections from an address that has
    sent none; head: for a handshake, and again for the head of a request; receive: for a body, and for a client that
    does not read; silence: of an engine; drain: for open requests when the gateway stops.
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

    plain_http_beyond_this_machine: somebody agreed that keys and prompts can be read on the network; trusted_proxies:
    proxies that are believed when they name their client, in X-Forwarded-For, or with proxy_protocol at the beginning
    of each connection; key_changes: the file of changes to the planned API keys, empty: there is none; yields: how
    models leave their GPUs when a key asks for these, None: no key may ask.
    """

    listen: SocketOrPort
    models: Mapping[str, PublishedModel]
    tls: Tls | None = None
    plain_http_beyond_this_machine: bool = False
    limits: Limits = field(default_factory=Limits)
    turns: TurnLimits = field(default_factory=TurnLimits)
    per_key: PerKey = field(default_factory=PerKey)
    trusted_proxies: "tuple[Network, ...]" = ()
    proxy_protocol: bool = False
    key_changes: str = ""
    yields: YieldSettings | None = None

    @property
    def taking_turns(self) -> dict[str, ModelTurns]:
        return {name: model.turns for name, model in self.models.items() if model.turns}


def parse_settings(text: str) -> GatewaySettings:
    """Parse and check the file of settings. Raises WrongSettings."""
    try:
        top = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WrongSettings(f"not JSON: {error}") from None
    given = table(top, "the settings", ("listen", "models"), names_of(GatewaySettings))
    plain = flag(given, "the settings", "plain_http_beyond_this_machine")
    tls = table(given["tls"], "tls", ("certificate", "key")) if given.get("tls") is not None else None
    limits = table(given.get("limits", {}), "limits", (), names_of(Limits))
    settings = GatewaySettings(
        listen=endpoint(given["listen"], "listen"),
        models=_models(given["models"]),
        tls=Tls(*(word(tls, "tls", name, _FILE) for name in ("certificate", "key"))) if tls else None,
        plain_http_beyond_this_machine=plain,
        limits=Limits(**{name: number(limits, "limits", name, 1_073_741_824) for name in limits}),
        turns=parse_turn_limits(given.get("turns", {})),
        per_key=parse_per_key(given.get("per_key", {})),
        trusted_proxies=_networks(given.get("trusted_proxies", [])),
        proxy_protocol=flag(given, "the settings", "proxy_protocol"),
        key_changes=word(given, "the settings", "key_changes", SOCKET) if "key_changes" in given else "",
        yields=parse_yields(given["yields"]) if "yields" in given else None,
    )
    check_turns(settings.taking_turns, settings.turns)
    staying = [name for name in settings.models if name not in settings.taking_turns]
    if settings.yields and staying:
        raise WrongSettings(f"yields: {staying[0]} has no `turns`, so nothing here can take it off its GPU")
    if settings.proxy_protocol and not settings.trusted_proxies:
        raise WrongSettings("proxy_protocol: name in trusted_proxies who may use it")
    if settings.trusted_proxies and settings.listen.socket:
        raise WrongSettings("trusted_proxies: a proxy is known by its address, so listen at an address and a port")
    if not (settings.listen.only_this_machine or settings.tls or plain):
        raise WrongSettings(
            f"listen: {settings.listen} can be reached from other machines without TLS, where keys and prompts can be "
            "read on their way. Give it a certificate (tls), or agree with plain_http_beyond_this_machine: true"
        )
    return settings


def _networks(value: Any) -> "tuple[Network, ...]":
    if not isinstance(value, list) or len(value) > _MOST_PROXIES:
        raise WrongSettings(f"trusted_proxies: a list of at most {_MOST_PROXIES} networks is expected")
    found = []
    for index, each in enumerate(value):
        try:
            network = ipaddress.ip_network(each if isinstance(each, str) else "")
        except ValueError:
            raise WrongSettings(f"trusted_proxies[{index}]: a network such as 10.0.0.5/32 is expected") from None
        if not network.prefixlen:
            raise WrongSettings(f"trusted_proxies[{index}]: with {each} any client could say that it is another")
        found.append(network)
    return tuple(found)


def _models(value: Any) -> dict[str, PublishedModel]:
    if not isinstance(value, list) or not value:
        raise WrongSettings("models: a list of at least one model is expected")
    found: dict[str, PublishedModel] = {}
    for index, each in enumerate(value):
        model = _model(each, f"models[{index}]")
        if model.name in found:
            raise WrongSettings(f"models[{index}].name: {model.name} is there already")
        found[model.name] = model
    return found


def _model(value: Any, where: str) -> PublishedModel:
    given = table(value, where, ("name", "engine"), names_of(PublishedModel))
    name = word(given, where, "name", NAME)
    engine = _engine(given["engine"], f"{where}.engine")
    return PublishedModel(
        name,
        engine,
        served_as=word(given, where, "served_as", NAME) if "served_as" in given else name,
        ready=one_of(given.get("ready", "completion"), f"{where}.ready", READY),
        turns=parse_model_turns(given["turns"], f"{where}.turns") if "turns" in given else None,
        body=parse_rules(given.get("body", {}), f"{where}.body"),
        standby=_standby(given, f"{where}.standby", engine) if "standby" in given else None,
    )


def _engine(value: Any, where: str) -> SocketOrPort:
    engine = engine_endpoint(value, where)
    if engine.address and (not (found := ipaddress.ip_address(engine.address)).is_private or found.is_unspecified):
        raise WrongSettings(f"{where}: {engine} is no internal address, so others could reach the engine")
    return engine


def _standby(model: dict[str, Any], where: str, first: SocketOrPort) -> StandbyEngine:
    given = table(model["standby"], where, () if "turns" in model else ("engine",), names_of(StandbyEngine))
    if "engine" in given and "turns" in model:
        raise WrongSettings(
            f"{where}.engine: {model['name']} takes turns: its own engine is started anew, so leave it out"
        )
    if isinstance(model.get("turns"), dict) and "unit" not in model["turns"]:
        raise WrongSettings(
            f"{where}: {model['name']} is started anew by the unit of its engine, and `turns` names none"
        )
    engine = _engine(given["engine"], f"{where}.engine") if "engine" in given else None
    if engine == first:
        raise WrongSettings(f"{where}.engine: {engine} is the engine that it is to stand by for")
    return StandbyEngine(engine, number(given, where, "within", 600) if "within" in given else 1)
