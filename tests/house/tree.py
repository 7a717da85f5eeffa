"""The product's files as the tests of the house see them: which there are, and which imports which."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOUSE = ROOT / "winhost"


def modules(house: Path = HOUSE) -> dict[str, Path]:
    """Every Python file by its dotted name; a package is its `__init__.py`."""
    found = {}
    for path in sorted(house.rglob("*.py")):
        parts = path.relative_to(house.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def graph(known: dict[str, Path]) -> dict[str, set[str]]:
    """Which of the modules each module imports, anywhere in its file.

    Imports inside functions count, and so do those under TYPE_CHECKING: of two files that need each other's types
    neither can be read, moved or changed alone, whenever the import runs.
    """
    return {name: {other for other in imported(name, known) if other != name} for name in known}


@cache
def imports_of(path: Path) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """Parsed once: several tests ask of all files."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return tuple(node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom))


def imported(importer: str, known: dict[str, Path]) -> Iterator[str]:
    path = known[importer]
    package = importer if path.name == "__init__.py" else importer.rpartition(".")[0]
    for node in imports_of(path):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name in known)
        else:
            module = f"{package}.{node.module}" if node.level else node.module
            for name in node.names if module in known else ():
                inner = f"{module}.{name.name}"
                yield inner if inner in known else str(module)
