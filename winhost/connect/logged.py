"""Log lines about requests to hosts: the request's name, duration and outcome. Never the content of a request or
answer.
"""

import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from winhost.connect.checked_answers import DriftAnswer, FailedAnswer, UnavailableAnswer
from winhost.core.answers import Json
from winhost.model.errors import visible

MAX_TEXT = 200
# PowerShell uses the text of a `throw` as the code of its error, so a code can be any text.
_CODE = re.compile(r"[A-Za-z0-9]\w*(?:[.,]\w+)*")


@contextmanager
def logged(log: logging.Logger, host: str, doing: str, level: int = logging.INFO) -> Iterator[list[str]]:
    """Log a line when the block ends, also by an error. Yields a list to which the block may add details."""
    details: list[str] = []
    start = time.monotonic()
    try:
        yield details
    except BaseException as error:
        parts = [f"{error_code(error)} after {time.monotonic() - start:.2f} s", *details]
        log.log(level, "%s: %s: %s", host, doing, ", ".join(parts))
        raise
    log.log(level, "%s: %s: %s", host, doing, ", ".join([f"{time.monotonic() - start:.2f} s", *details]))


def log_retry(log: logging.Logger, host: str, reason: str, attempt: Any) -> None:
    """Log a failed attempt that tenacity repeats."""
    code, pause = error_code(attempt.outcome.exception()), attempt.next_action.sleep
    log.info("%s: %s (%s): attempt %d, again in %.1f s", host, reason, code, attempt.attempt_number, pause)


def error_code(error: BaseException | None) -> str:
    """Return an error's code, or its class. Its text may be from a host, so it is not logged."""
    return str(getattr(error, "code", None) or type(error).__name__)


def shorten(text: object) -> str:
    """Escape and shorten text of a host or a file."""
    escaped = visible(str(text))
    return escaped if len(escaped) <= MAX_TEXT else f"{escaped[:MAX_TEXT]}…"


def describe_call(call: Mapping[str, Json]) -> str:
    """Describe a call without naming the instance."""
    return "restart" if call["verb"] == "restart" else f"{call['verb']} {call['resource']}"


def describe_calls(calls: Sequence[Mapping[str, Json]]) -> str:
    """Describe calls. A single one also with its key, the changed properties, and the offset of a piece of a file."""
    if len(calls) > 1:
        return f"get {len(calls)} resources"
    (call,) = calls
    parts = [describe_call(call)]
    parts += [f"{name}={shorten(value)}" for name, value in (call.get("key") or {}).items()]
    parts += [f"({', '.join(call['desired'])})"] if call.get("desired") else []
    parts += [f"from byte {call['piece']['at']:,}"] if call.get("piece") else []
    return visible(" ".join(parts))


def refusal_codes(calls: Sequence[Mapping[str, Json]], answers: Sequence[object]) -> Iterator[str]:
    """Yield the codes of refused calls. Of several reads, unavailable resources are left out: some always are."""
    for call, answer in zip(calls, answers, strict=True):
        resource = visible(f"{call['resource']} ") if len(calls) > 1 else ""
        match answer:
            case UnavailableAnswer(needs) if len(calls) == 1:
                yield f"needs {_code(needs)}"
            case DriftAnswer(differences):
                yield f"{resource}differs in {' '.join(map(_code, differences))}"
            case FailedAnswer(error):
                yield resource + " ".join(map(_code, filter(None, (error.category, error.code, *error.hresults))))


def _code(text: str) -> str:
    return shorten(text) if _CODE.fullmatch(text) else "(a text)"
