"""The functions of the Linux agent, for tests that call them directly."""

from functools import cache
from types import CodeType
from typing import Any

from winhost.resources.linux.linux_scripts import agent_text


@cache
def _code() -> CodeType:
    return compile(agent_text(), "the agent", "exec")


def definitions() -> dict[str, Any]:
    """Return the agent's names, with globals of their own."""
    made: dict[str, Any] = {}
    exec(_code(), made)
    return made
