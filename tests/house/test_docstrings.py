"""A docstring of the product begins as a sentence or names what it is about; it is no fragment to be guessed at."""

import ast
import re

from tests.house.tree import HOUSE, ROOT, sources

FRAGMENT = re.compile(
    r"(Also|As|By|For|From|How|In|None|Of|Only|That|Those|What|Whatever|Where|Whether|Which|Who|Whoever|With)\b"
)
KINDS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def test_no_docstring_begins_as_a_fragment() -> None:
    found = [
        f"{file.path.relative_to(ROOT)}: {text.splitlines()[0]}"
        for file in sources(HOUSE, ROOT / "winhost_weights")
        for kind in KINDS
        for node in file.every(kind)
        if (text := ast.get_docstring(node) or "") and FRAGMENT.match(text)
    ]
    assert found == []
