"""Docstrings of product and benchmarks begin as a sentence or name what they are about; none is a fragment."""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from tests.house.tree import HOUSE, ROOT, sources

FRAGMENT = re.compile(
    r"(Also|As|By|For|From|How|In|None|Of|Only|That|Those|What|Whatever|Where|Whether|Which|Who|Whoever|With)\b"
)
KINDS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstrings(node: Any) -> Iterator[str]:
    """The docstring of a module, class or function, and the texts below its fields and constants: schemas show them."""
    yield ast.get_docstring(node) or ""
    for above, text in pairwise(node.body):
        match text:
            case ast.Expr(ast.Constant(str(value))) if isinstance(above, ast.Assign | ast.AnnAssign):
                yield value.strip()


def test_no_docstring_begins_as_a_fragment() -> None:
    found = [
        f"{file.path.relative_to(ROOT)}: {text.splitlines()[0]}"
        for file in sources(HOUSE, ROOT / "winhost_weights", ROOT / "bench")
        for kind in KINDS
        for node in file.every(kind)
        for text in docstrings(node)
        if FRAGMENT.match(text)
    ]
    assert found == []


def test_a_text_below_a_field_or_constant_counts() -> None:
    for code in ('class A:\n    b: int\n    """Of c."""\n', 'B = 1\n"""Of c."""\n'):
        module = ast.parse(code)
        node = module.body[0] if isinstance(module.body[0], ast.ClassDef) else module
        assert "Of c." in [*docstrings(node)]
