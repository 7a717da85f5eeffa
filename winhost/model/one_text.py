"""Joins modules of winhost into one program, for machines on which winhost is not installed."""

import re
from collections.abc import Iterable
from importlib.resources.abc import Traversable


def join_modules(sources: Iterable[Traversable]) -> str:
    """Join modules, without their imports of winhost, and with `__future__` imports only at the top."""
    first, *others = (each.read_bytes().decode("ascii").replace("\r\n", "\n") for each in sources)
    return "\n".join(
        [_blank_imports(first, "winhost"), *(_blank_imports(each, "winhost", "__future__") for each in others)]
    )


def _blank_imports(text: str, *packages: str) -> str:
    """Blank the lines that import these packages, so that all lines keep their numbers. A regular expression is used
    because parsing the text would take longer than sshd takes to answer; a test ensures that no other line matches.
    """
    imports = re.compile(rf"^from (?:{'|'.join(packages)})\b[\w.]* import (?:\([^)]*\)|[^(\n]*)$", re.MULTILINE)
    return imports.sub(lambda found: "\n" * found[0].count("\n"), text)
