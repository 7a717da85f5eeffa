"""Choose the parts of the agent's text that a call is sent, and retry reads that turn out to need more."""

import json
import re
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

_NEEDED_PART = re.compile(r'"Winhost\.PartNeeded,([\w-]+)"')  # the code of an error in the agent's JSON


class Scripts(Protocol):
    """The agent's text in parts. needed: the parts for a request; text: the script that defines parts and makes the
    call.
    """

    def needed(self, request: str, asked_for: Collection[str] = ()) -> tuple[str, ...]: ...

    def text(self, names: Collection[str]) -> str: ...


def call_with_parts(scripts: Scripts, request: str, run: Callable[[Sequence[str], str], str]) -> str:
    """Return the answer of `run`, which is called with the parts that the request needs.

    Some parts read resources that few hosts have, such as distros, so a request that only reads is sent without them. A
    call that the host answers with the name of a missing part is repeated with that part.
    """
    sent = scripts.needed(request)
    answer = run(sent, request)
    asked_for: frozenset[str] = frozenset()
    while missing := frozenset(_NEEDED_PART.findall(answer)) - asked_for:
        asked_for |= missing
        parts = scripts.needed(request, asked_for)
        if parts == sent:
            break
        sent = parts
        answer = _repeat_calls(scripts, request, answer, asked_for, run)
    return answer


def _repeat_calls(
    scripts: Scripts, request: str, answer: str, asked_for: Collection[str], run: Callable[[Sequence[str], str], str]
) -> str:
    """Repeat the calls that miss a part, and return the answer with the new results. Output that is no answer of the
    agent is returned unchanged; its reader refuses it.
    """
    document = json.loads(request)
    try:
        answers = json.loads(answer)["answers"]
        incomplete = [number for number, each in enumerate(answers) if _NEEDED_PART.search(json.dumps(each))]
        repeated = json.dumps({**document, "calls": [document["calls"][number] for number in incomplete]})
    except (ValueError, TypeError, LookupError, RecursionError):
        return answer
    second = run(scripts.needed(repeated, asked_for), repeated)
    try:
        for number, each in zip(incomplete, json.loads(second)["answers"], strict=True):
            answers[number] = each
    except (ValueError, TypeError, LookupError, RecursionError):
        return second
    return json.dumps({"answers": answers})
