"""Joins modules of ours into one program that runs elsewhere, where no package of ours is."""

import re
from collections.abc import Iterable
from importlib.resources.abc import Traversable


def one_text(sources: Iterable[Traversable]) -> str:
    """All names are there already, and `__future__` may only be named at its top."""
    first, *others = (each.read_bytes().decode("ascii").replace("\r\n", "\n") for each in sources)
    return "\n".join(
        [_without_imports(first, "winhost"), *(_without_imports(each, "winhost", "__future__") for each in others)]
    )


def _without_imports(text: str, *packages: str) -> str:
    """Its lines stay the same ones. Every session needs this text, and to parse it all would cost it more than sshd's
    answer: a test holds that no other line looks like such an import.
    """
    imports = re.compile(rf"^from (?:{'|'.join(packages)})\b[\w.]* import (?:\([^)]*\)|[^(\n]*)$", re.MULTILINE)
    return imports.sub(lambda found: "\n" * found[0].count("\n"), text)
