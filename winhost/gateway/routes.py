"""The routes that the gateway publishes, and the JSON of bodies. A target is compared with this allow-list byte for
byte: nothing is decoded or normalised, and no path of a client is sent to an engine.
"""

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from .request_rules import FIELDS, ErrorAnswer

COMPLETIONS = frozenset(FIELDS)
MODELS, HEALTH, READY = "/v1/models", "/health", "/ready"
METRICS, ENGINE_METRICS = "/metrics", "/metrics/engines"
METRICS_ROUTES = frozenset((METRICS, ENGINE_METRICS))


def _refuse_constant(constant: str) -> None:
    raise ValueError(constant)


# With these options, `json.loads` and `json.dumps` would create a decoder or encoder for each request.
_READ = json.JSONDecoder(parse_constant=_refuse_constant)
_WRITE = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def find_route(target: str, models: Mapping[str, object]) -> str | None:
    """Return the route of a target, which is a path with or without a query; None if nothing is published there."""
    path = target.partition("?")[0]
    if path in COMPLETIONS or path in METRICS_ROUTES or path in (MODELS, HEALTH, READY):
        return path
    return MODELS if find_model(path, models) else None


def find_model(path: str, models: Mapping[str, object]) -> str | None:
    """Return the model of /v1/models/NAME; None if there is none. Slashes in the name may be escaped."""
    matches = (name for name in models if path in (f"{MODELS}/{name}", f"{MODELS}/{quote(name, safe='')}"))
    return next(matches, None)


def method_of(route: str) -> str:
    """Return the only method that the route accepts."""
    return "POST" if route in COMPLETIONS else "GET"


def needs_key(route: str | None) -> bool:
    """Tell whether a route needs a key. Paths that are not published do, so that a client without a key cannot find out
    which routes exist.
    """
    return route not in (HEALTH, READY)


def parse_body(body: bytearray) -> dict[str, Any]:
    """Parse a body, which has to be an object with a model. Raises ErrorAnswer, which does not quote the body."""
    try:
        parsed = _READ.decode(body.decode("utf-8"))
    except (ValueError, RecursionError):
        raise ErrorAnswer(400, "body", "The body is not JSON in UTF-8.") from None
    if not isinstance(parsed, dict) or not isinstance(parsed.get("model"), str):
        raise ErrorAnswer(400, "body", "The body is no JSON object with the name of a model in `model`.")
    return parsed


def encode_for_engine(request: dict[str, Any], served_as: str) -> bytes:
    """Write the body again, so that the engine reads the same values: of two fields `model`, one remains. Raises
    ErrorAnswer.
    """
    return encode_json({**request, "model": served_as})


def encode_json(content: dict[str, Any]) -> bytes:
    """Write JSON in UTF-8. Raises ErrorAnswer."""
    try:
        return _WRITE.encode(content).encode("utf-8")
    except (ValueError, RecursionError):
        message = "The body has a number or a text that JSON in UTF-8 cannot hold."
        raise ErrorAnswer(400, "body", message) from None
