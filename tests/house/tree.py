"""The files of the product and of its tests, each read and parsed once, and which of them imports which."""

import ast
import gc
from collections import defaultdict
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import TypeVar, cast

ROOT = Path(__file__).parents[2]
HOUSE = ROOT / "winhost"
Node = TypeVar("Node", bound=ast.AST)


class Source:
    """A file: its text, and what stands in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = path.read_text(encoding="utf-8")

    @cached_property
    def _nodes(self) -> dict[type[ast.AST], list[ast.AST]]:
        # A million nodes stay until the end. To look through them for garbage takes longer than to make them.
        gc.disable()
        try:
            return _by_class(ast.parse(self.text))
        finally:
            gc.freeze()
            gc.enable()

    def every(self, kind: type[Node]) -> list[Node]:
        """All nodes of this very class, in no order."""
        return cast(list[Node], self._nodes.get(kind, []))


def _by_class(tree: ast.AST) -> dict[type[ast.AST], list[ast.AST]]:
    """Return the nodes of a tree by class, like `ast.walk`, in half of its time."""
    found: defaultdict[type[ast.AST], list[ast.AST]] = defaultdict(list)
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        found[node.__class__].append(node)
        for value in node.__dict__.values():
            if isinstance(value, list):
                waiting += [each for each in value if isinstance(each, ast.AST)]
            elif isinstance(value, ast.AST):
                waiting.append(value)
    return dict(found)


@cache
def source(path: Path) -> Source:
    return Source(path)


def sources(*folders: Path) -> list[Source]:
    """Every Python file below these folders."""
    return [source(path) for folder in folders for path in sorted(folder.rglob("*.py"))]


def modules(house: Path = HOUSE) -> dict[str, Path]:
    """Every Python file by its dotted name; a package is its `__init__.py`."""
    found = {}
    for path in sorted(house.rglob("*.py")):
        parts = path.relative_to(house.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports() -> dict[str, set[str]]:
    """The graph of the product."""
    return graph(modules())


def graph(known: dict[str, Path]) -> dict[str, set[str]]:
    """Return the modules that each module imports, anywhere in its file.

    Imports inside functions count, and so do those under TYPE_CHECKING: of two files that need each other's types
    neither can be read, moved or changed alone, whenever the import runs.
    """
    return {name: {other for other in imported(name, known) if other != name} for name in known}


def imported(importer: str, known: dict[str, Path]) -> Iterator[str]:
    path = known[importer]
    package = importer if path.name == "__init__.py" else importer.rpartition(".")[0]
    for plain in source(path).every(ast.Import):
        yield from (name.name for name in plain.names if name.name in known)
    for node in source(path).every(ast.ImportFrom):
        module = f"{package}.{node.module}" if node.level else node.module
        for name in node.names if module in known else ():
            inner = f"{module}.{name.name}"
            yield inner if inner in known else str(module)
