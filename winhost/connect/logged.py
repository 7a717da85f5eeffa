"""Lines of the log on what was asked of a host: what, how long, how it ended. Never what was sent, or came back."""

import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from winhost.connect.checked_answers import Differs, FailedAnswer, UnavailableAnswer
from winhost.core.answers import Json
from winhost.model.errors import visible

LONGEST = 200
# PowerShell makes the words of a `throw` the code of its error: such a code may say anything.
_CODE = re.compile(r"[A-Za-z0-9]\w*(?:[.,]\w+)*")


@contextmanager
def logged(log: logging.Logger, host: str, doing: str, level: int = logging.INFO) -> Iterator[list[str]]:
    """A line when this has ended, well or not. Gives the list of what else it shall say."""
    more: list[str] = []
    began = time.monotonic()
    try:
        yield more
    except BaseException as error:
        ended = [f"{failure(error)} after {time.monotonic() - began:.2f} s", *more]
        log.log(level, "%s: %s: %s", host, doing, ", ".join(ended))
        raise
    log.log(level, "%s: %s: %s", host, doing, ", ".join([f"{time.monotonic() - began:.2f} s", *more]))


def log_retry(log: logging.Logger, host: str, why: str, attempt: Any) -> None:
    """An attempt after which tenacity tries again."""
    lost, pause = failure(attempt.outcome.exception()), attempt.next_action.sleep
    log.info("%s: %s (%s): attempt %d, again in %.1f s", host, why, lost, attempt.attempt_number, pause)


def failure(error: BaseException | None) -> str:
    """An error by its code alone: its words may be those of a host."""
    return str(getattr(error, "code", None) or type(error).__name__)


def brief(text: object) -> str:
    """Shorten text that a host or the author of a file named: it may be long or hold half a character."""
    shown = visible(str(text))
    return shown if len(shown) <= LONGEST else f"{shown[:LONGEST]}…"


def doing_of(call: Mapping[str, Json]) -> str:
    """Describe a call without naming the instance."""
    return "restart" if call["verb"] == "restart" else f"{call['verb']} {call['resource']}"


def named(calls: Sequence[Mapping[str, Json]]) -> str:
    """Describe calls; one alone also by its instance, what it changes, and the start of a piece of a file."""
    if len(calls) > 1:
        return f"get {len(calls)} resources"
    (call,) = calls
    parts = [doing_of(call)]
    parts += [f"{name}={brief(value)}" for name, value in (call.get("key") or {}).items()]
    parts += [f"({', '.join(call['desired'])})"] if call.get("desired") else []
    parts += [f"from byte {call['piece']['at']:,}"] if call.get("piece") else []
    return visible(" ".join(parts))


def refusals(calls: Sequence[Mapping[str, Json]], answers: Sequence[object]) -> Iterator[str]:
    """The codes of calls that were refused. Of many reads, some are always not available yet."""
    for call, answer in zip(calls, answers, strict=True):
        resource = visible(f"{call['resource']} ") if len(calls) > 1 else ""
        match answer:
            case UnavailableAnswer(needs) if len(calls) == 1:
                yield f"needs {_code(needs)}"
            case Differs(differences):
                yield f"{resource}differs in {' '.join(map(_code, differences))}"
            case FailedAnswer(error):
                yield resource + " ".join(map(_code, filter(None, (error.category, error.code, *error.hresults))))


def _code(text: str) -> str:
    return brief(text) if _CODE.fullmatch(text) else "(a text)"
