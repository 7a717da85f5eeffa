"""Parse a body after checking its size and depth, and write it again for the engine of its model.

Nothing else holds the parsed body. This runs in the gateway for small bodies and in the process of `body_process` for
others, so it takes settings and bytes and returns bytes.
"""

from dataclasses import dataclass

from .continuing import Again, why_not, with_again
from .gateway_settings import GatewaySettings, Limits
from .published import NotUnderstood, for_engine, understood
from .request_rules import NotAllowed, check

_WITH_USAGE = ("/v1/chat/completions", "/v1/completions")  # streams that can report what they took
_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(sorted(set(range(256)) - set(b"[]{}")))


class WrongBody(Exception):
    """A body is refused. status, code, message: the answer; param: the field that is wrong, if it is one."""

    def __init__(self, status: int, code: str, message: str, param: "str | None" = None) -> None:
        super().__init__(code)
        self.status, self.code, self.message, self.param = status, code, message, param


@dataclass(frozen=True)
class ForEngine:
    """A body for an engine. model: its name for clients; parts: of the body; adds_usage: the stream will end with an
    event that its client did not ask for; again: how to ask a second engine for the rest of the answer.
    """

    model: str
    parts: "list[bytes]"
    adds_usage: bool = False
    again: "Again | None" = None


def written_for_engine(body: bytearray, route: str, settings: GatewaySettings) -> ForEngine:
    """Check a body and write it for its engine, which is asked to report the usage of a stream. Raises WrongBody."""
    check_shape(body, settings.limits)
    try:
        found = understood(body)
        model = settings.models.get(found["model"])
        if model is None:
            message = f"There is no such model here. There are: {', '.join(settings.models)}."
            raise WrongBody(404, "model_not_found", message, "model")
        check(found, route, model.body)
        if model.standby:
            why = why_not(found, route)
            if not why:
                whole, again = with_again(found, route, model.served_as)
                return ForEngine(model.name, [whole], again=again)
        options = found.get("stream_options") or {}
        adds = route in _WITH_USAGE and found.get("stream") is True and isinstance(options, dict)
        adds = adds and options.get("include_usage") is not True
        if adds:
            found["stream_options"] = {**options, "include_usage": True}
        return ForEngine(model.name, [for_engine(found, model.served_as)], adds, Again(why) if model.standby else None)
    except NotUnderstood as error:
        raise WrongBody(400, "body", str(error)) from None
    except NotAllowed as error:
        raise WrongBody(400, error.code, error.message, error.param) from None


def check_shape(body: bytearray, limits: Limits) -> None:
    """Count elements and depth without a parser, whose values take far more memory than text. Raises WrongBody."""
    opened = body.count(b"[") + body.count(b"{")
    if opened <= limits.depth and opened + body.count(b",") <= limits.elements:
        return
    outside = _outside_of_strings(body, limits)
    if sum(map(outside.count, (b",", b"[", b"{"))) > limits.elements:
        raise _too_many(limits)
    nested = outside.translate(_BRACKETS, _NO_BRACKETS)
    for _ in range(limits.depth):  # each time the innermost
        nested = nested.replace(b"[]", b"")
        if not nested:
            return
    raise WrongBody(413, "too-deep", f"The body is nested deeper than {limits.depth} levels, or no JSON.")


def _outside_of_strings(body: bytearray, limits: Limits) -> bytes:
    plain = bytes(body).replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') > 4 * limits.elements + 4:  # a name and a text for each element
        raise _too_many(limits)
    return b"".join(plain.split(b'"')[::2])


def _too_many(limits: Limits) -> WrongBody:
    return WrongBody(413, "too-many-elements", f"The body has more than {limits.elements} elements.")
