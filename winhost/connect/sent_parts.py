"""Choose the parts of the agent's text that a call is sent, and retry reads that turn out to need more."""

import json
import re
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

_ASKS = re.compile(r'"Winhost\.PartNeeded,([\w-]+)"')  # the code of an error, as the agent's JSON has it


class Scripts(Protocol):
    """The agent's text in parts: which ones a request needs, and the script that defines some and makes the call."""

    def needed(self, request: str, asked_for: Collection[str] = ()) -> tuple[str, ...]: ...

    def text(self, names: Collection[str]) -> str: ...


def ask(scripts: Scripts, request: str, run: Callable[[Sequence[str], str], str]) -> str:
    """The answer of `run`, which gets the parts that the request needs.

    Only the host knows whether it has what some parts read, such as a distro, so a request that only reads is sent
    without them. Calls that the host answers with the name of a missing function are made once more, with its part.
    """
    sent = scripts.needed(request)
    answer = run(sent, request)
    asked_for: frozenset[str] = frozenset()
    while missing := frozenset(_ASKS.findall(answer)) - asked_for:
        asked_for |= missing
        parts = scripts.needed(request, asked_for)
        if parts == sent:
            break
        sent = parts
        answer = _asked_again(scripts, request, answer, asked_for, run)
    return answer


def _asked_again(
    scripts: Scripts, request: str, answer: str, asked_for: Collection[str], run: Callable[[Sequence[str], str], str]
) -> str:
    """The answer, in which those that lack a part are replaced by what the same calls answer now.

    What is no answer of the agent stays as it is, for the reader to refuse.
    """
    asked = json.loads(request)
    try:
        answers = json.loads(answer)["answers"]
        lacking = [number for number, each in enumerate(answers) if _ASKS.search(json.dumps(each))]
        again = json.dumps({**asked, "calls": [asked["calls"][number] for number in lacking]})
    except (ValueError, TypeError, LookupError, RecursionError):
        return answer
    second = run(scripts.needed(again, asked_for), again)
    try:
        for number, each in zip(lacking, json.loads(second)["answers"], strict=True):
            answers[number] = each
    except (ValueError, TypeError, LookupError, RecursionError):
        return second
    return json.dumps({"answers": answers})
