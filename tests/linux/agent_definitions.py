"""The functions of the agent for Linux, to be called alone."""

from functools import cache
from types import CodeType
from typing import Any

from winhost.resources.linux.linux_scripts import agent_text


@cache
def _code() -> CodeType:
    return compile(agent_text(), "the agent", "exec")


def definitions() -> dict[str, Any]:
    """By name, with globals of their own."""
    made: dict[str, Any] = {}
    exec(_code(), made)
    return made
