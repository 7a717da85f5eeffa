"""What a call takes along of the agent's text, and the second try of a read that turns out to need more."""

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

_PART_NEEDED = '"Winhost.PartNeeded"'  # the code of an answer, as the agent's JSON has it


class Scripts(Protocol):
    """The agent's text in parts: which ones a request needs, and the script that defines some and makes the call."""

    def needed(self, request: str, *, compiling: bool = False) -> tuple[str, ...]: ...

    def text(self, names: Collection[str]) -> str: ...


def ask(scripts: Scripts, request: str, run: Callable[[Sequence[str], str], str]) -> str:
    """The answer of `run`, which gets the parts that the request needs.

    What winhost made in firmware and on volumes is read with C#. Only the host knows whether it made anything there, so
    a request that only reads is sent without C#, and once more with it if the host says so.
    """
    parts = scripts.needed(request)
    answer = run(parts, request)
    if _PART_NEEDED in answer and (more := scripts.needed(request, compiling=True)) != parts:
        return run(more, request)
    return answer
