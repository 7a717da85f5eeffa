"""The settings of the gateway: one JSON file without secrets, checked at the start."""

import ipaddress
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from .request_rules import BodyRules, parse_rules
from .settings_values import NAME, SocketOrPort, WrongSettings, engine_place, number, place, table, word
from .turn_settings import ModelTurns, TurnLimits, check_turns, parse_model_turns, parse_turn_limits

_FILE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")
READY = ("completion", "chat", "embedding")


@dataclass(frozen=True)
class PublishedModel:
    """name: as clients call it; served_as: as its engine does; ready: the request that says that it answers;
    turns: where it shares GPUs with others; body: what requests may contain besides the usual.
    """

    name: str
    engine: SocketOrPort
    served_as: str
    ready: str
    turns: ModelTurns | None = None
    body: BodyRules = field(default_factory=BodyRules)


@dataclass(frozen=True)
class Tls:
    """Names of the unit's credentials."""

    certificate: str
    key: str


@dataclass(frozen=True)
class Limits:
    """Times in seconds.

    elements: of a JSON body, which take far more memory than their text; requests: that engines have at a time;
    waiting: that wait for their turn, and how long (hold), as long as requests wait for an engine that starts;
    connections: in total, of which a quarter is kept for clients that have sent a valid key; per_address: connections
    from an address that has sent none; head: for a handshake, and again for the head of a request; receive: for a body,
    and for a client that does not read; silence: of an engine.
    """

    body_bytes: int = 16_777_216
    elements: int = 262_144
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
    """plain_http_beyond_this_machine: somebody agreed that keys and prompts can be read on their way."""

    listen: SocketOrPort
    models: Mapping[str, PublishedModel]
    tls: Tls | None = None
    plain_http_beyond_this_machine: bool = False
    limits: Limits = field(default_factory=Limits)
    turns: TurnLimits = field(default_factory=TurnLimits)

    @property
    def taking_turns(self) -> dict[str, ModelTurns]:
        return {name: model.turns for name, model in self.models.items() if model.turns}


def parse_settings(text: str) -> GatewaySettings:
    """Raises WrongSettings."""
    try:
        top = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WrongSettings(f"not JSON: {error}") from None
    names = [each.name for each in fields(GatewaySettings)]
    given = table(top, "the settings", ("listen", "models"), names)
    plain = given.get("plain_http_beyond_this_machine", False)
    if not isinstance(plain, bool):
        raise WrongSettings("plain_http_beyond_this_machine: true or false is expected")
    tls = table(given["tls"], "tls", ("certificate", "key")) if given.get("tls") is not None else None
    settings = GatewaySettings(
        listen=place(given["listen"], "listen"),
        models=_models(given["models"]),
        tls=Tls(*(word(tls, "tls", name, _FILE) for name in ("certificate", "key"))) if tls else None,
        plain_http_beyond_this_machine=plain,
        limits=_limits(given.get("limits", {})),
        turns=parse_turn_limits(given.get("turns", {})),
    )
    check_turns(settings.taking_turns, settings.turns)
    if not (settings.listen.only_this_machine or settings.tls or plain):
        raise WrongSettings(
            f"listen: {settings.listen} can be reached from other machines without TLS, where keys and prompts can be "
            "read on their way. Give it a certificate (tls), or agree with plain_http_beyond_this_machine: true"
        )
    return settings


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
    given = table(value, where, ("name", "engine"), ["name", "engine", "served_as", "ready", "turns", "body"])
    name = word(given, where, "name", NAME)
    engine = engine_place(given["engine"], f"{where}.engine")
    if engine.address and (not (found := ipaddress.ip_address(engine.address)).is_private or found.is_unspecified):
        raise WrongSettings(f"{where}.engine: {engine} is no internal address, so others could reach the engine")
    ready = given.get("ready", "completion")
    if ready not in READY:
        raise WrongSettings(f"{where}.ready: one of {', '.join(READY)} is expected, not {ready!r}")
    return PublishedModel(
        name,
        engine,
        served_as=word(given, where, "served_as", NAME) if "served_as" in given else name,
        ready=ready,
        turns=parse_model_turns(given["turns"], f"{where}.turns") if "turns" in given else None,
        body=parse_rules(given.get("body", {}), f"{where}.body"),
    )


def _limits(value: Any) -> Limits:
    names = [each.name for each in fields(Limits)]
    given = table(value, "limits", (), names)
    return Limits(**{name: number(given, "limits", name, 1_073_741_824) for name in given})
