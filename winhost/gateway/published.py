"""The paths that the gateway publishes, and the JSON of bodies. A target is compared with this allow-list byte for
byte, as it came: nothing is decoded or normalised, and no path of a client is handed on.
"""

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from .request_rules import FIELDS, ErrorAnswer

COMPLETIONS = frozenset(FIELDS)
MODELS, HEALTH, READY = "/v1/models", "/health", "/ready"
METRICS, ENGINE_METRICS = "/metrics", "/metrics/engines"
FOR_METRICS = frozenset((METRICS, ENGINE_METRICS))


def _refuse(word: str) -> None:
    raise ValueError(word)


# With these options, json's own functions would make a new object for each request.
_READ = json.JSONDecoder(parse_constant=_refuse)
_WRITE = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def route_of(target: str, models: Mapping[str, object]) -> str | None:
    """The route of a target, which is a path with or without a query. None if nothing is published there."""
    path = target.partition("?")[0]
    if path in COMPLETIONS or path in FOR_METRICS or path in (MODELS, HEALTH, READY):
        return path
    return MODELS if model_in(path, models) else None


def model_in(path: str, models: Mapping[str, object]) -> str | None:
    """The model of /v1/models/NAME. Slashes in the name may be escaped, as clients do."""
    named = (name for name in models if path in (f"{MODELS}/{name}", f"{MODELS}/{quote(name, safe='')}"))
    return next(named, None)


def method_of(route: str) -> str:
    """The only method that the route takes."""
    return "POST" if route in COMPLETIONS else "GET"


def needs_key(route: str | None) -> bool:
    """Tell whether a route needs a key. Without one, nobody learns which routes exist."""
    return route not in (HEALTH, READY)


def understood(body: bytearray) -> dict[str, Any]:
    """The object in a body. Raises ErrorAnswer, which does not quote the body."""
    try:
        found = _READ.decode(body.decode("utf-8"))
    except (ValueError, RecursionError):
        raise ErrorAnswer(400, "body", "The body is not JSON in UTF-8.") from None
    if not isinstance(found, dict) or not isinstance(found.get("model"), str):
        raise ErrorAnswer(400, "body", "The body is no JSON object with the name of a model in `model`.")
    return found


def for_engine(request: dict[str, Any], served_as: str) -> bytes:
    """Write the body again, so that the engine reads what was read here: of two `model`, one is left. Raises
    ErrorAnswer.
    """
    return encoded({**request, "model": served_as})


def encoded(found: dict[str, Any]) -> bytes:
    """Write JSON in UTF-8. Raises ErrorAnswer."""
    try:
        return _WRITE.encode(found).encode("utf-8")
    except (ValueError, RecursionError):
        message = "The body has a number or a text that JSON in UTF-8 cannot hold."
        raise ErrorAnswer(400, "body", message) from None
