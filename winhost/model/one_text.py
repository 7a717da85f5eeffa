"""Joins modules of winhost into one program, for machines on which winhost is not installed."""

import re
from collections.abc import Iterable
from importlib.resources.abc import Traversable


def join_modules(sources: Iterable[Traversable]) -> str:
    """The modules without their imports of each other, and with `__future__` imports only at the top."""
    first, *others = (each.read_bytes().decode("ascii").replace("\r\n", "\n") for each in sources)
    return "\n".join(
        [_blank_imports(first, "winhost"), *(_blank_imports(each, "winhost", "__future__") for each in others)]
    )


def _blank_imports(text: str, *packages: str) -> str:
    """Empty the lines of these imports, so that all lines keep their numbers. Parsing the text for it would take longer
    than sshd takes to answer; a test holds that no other line looks like such an import.
    """
    imports = re.compile(rf"^from (?:{'|'.join(packages)})\b[\w.]* import (?:\([^)]*\)|[^(\n]*)$", re.MULTILINE)
    return imports.sub(lambda found: "\n" * found[0].count("\n"), text)
