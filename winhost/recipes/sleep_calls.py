"""Calls of vLLM's /sleep that name the level in a body, which vLLM does not read."""

import re
from collections.abc import Iterator

_LINE = re.compile(r"(?:\\\r?\n|[^\n])+")
_CALL = re.compile(r"\bcurl\b")
_SLEEP = re.compile(r"/sleep(?![\w/-])(?!\?\S*level=)")
_LEVEL = re.compile(r"\{[^{}\n]*\blevel\W{1,6}([02-9])\b")


def sleep_levels(text: str) -> Iterator[tuple[int, str]]:
    """Where each body stands, and its level; level 1 is what vLLM takes anyway."""
    for line in _LINE.finditer(text) if "/sleep" in text else ():
        if _CALL.search(line[0]) and _SLEEP.search(line[0]) and (level := _LEVEL.search(line[0])):
            yield line.start() + level.start(), level[1]
