"""Nothing is written twice: a block of more than twelve lines has one place.

Held here rather than by a library: pylint's checker reads Python alone, takes a hundred times as long, and does not see
a copy whose names were changed.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import chain
from keyword import kwlist
from pathlib import Path

from tests.house.tree import HOUSE, ROOT

MOST = 12
CODE = {".py", ".ps1", ".sh", ".j2"}
IMPORTED = re.compile(r"(?:from|import) |#")
DOCSTRING = re.compile(r'^\s*[rf]*"{3}.*?"{3}$', re.DOTALL | re.MULTILINE)
TOKEN = re.compile(
    r"""(?P<literal>[rbf]*"(?:\\.|[^"\\])*"|[rbf]*'(?:\\.|[^'\\])*'|\d[\w.]*)|(?P<name>\$?[A-Za-z_]\w*)|\S"""
)
Normal = Callable[[str], str]
KEYWORDS = frozenset([*kwlist, "begin", "catch", "foreach", "function", "param", "process", "switch", "throw"])


def as_written(line: str) -> str:
    return " ".join(line.split())


def without_names(line: str) -> str:
    """The shape of a line: a copy stays one when its names and literals are changed."""

    def shape(token: re.Match[str]) -> str:
        return token.lastgroup[0] if token.lastgroup and token[0] not in KEYWORDS else token[0]

    return " ".join(shape(token) for token in TOKEN.finditer(line))


def blocks(path: Path, normal: Normal) -> Iterator[tuple[str, ...]]:
    text = DOCSTRING.sub("", path.read_text(encoding="utf-8"))
    lines = [
        normal(line)
        for line in map(str.strip, text.splitlines())
        if re.search(r"\w", line) and not IMPORTED.match(line)
    ]
    for first in range(len(lines) - MOST):
        block = tuple(lines[first : first + MOST + 1])
        if len(set(block)) > MOST // 2:  # else it is a table: rows of one shape
            yield block


def copies(files: dict[Path, str], normal: Normal) -> set[tuple[str, ...]]:
    """The sets of places that have a block in common."""
    places: defaultdict[tuple[str, ...], set[str]] = defaultdict(set)
    for path, place in files.items():
        for block in blocks(path, normal):
            places[block].add(place)
    return {tuple(sorted(among)) for among in places.values() if len(among) > 1}


def product() -> list[Path]:
    return sorted(path for path in chain(HOUSE.rglob("*"), ROOT.glob("templates/**/*")) if path.suffix in CODE)


def test_no_block_stands_in_two_files() -> None:
    assert copies({path: str(path.relative_to(ROOT)) for path in product()}, as_written) == set()


def test_no_block_stands_in_two_folders_under_other_names() -> None:
    """Within one folder things of one kind, as rules are, have one shape and ought to."""
    assert copies({path: str(path.parent.relative_to(ROOT)) for path in product()}, without_names) == set()


def test_a_copy_is_seen_and_one_with_other_names(tmp_path: Path) -> None:
    original = "\n".join(f"first_{n} = second('{n}'{', x' * n})" for n in range(MOST + 1))
    for name, text in {
        "a.py": original,
        "b.py": f"# own\n{original}",
        "c.py": original.replace("first", "third"),
    }.items():
        (tmp_path / name).write_text(text)
    files = {path: path.name for path in sorted(tmp_path.iterdir())}
    assert copies(files, as_written) == {("a.py", "b.py")}
    assert copies(files, without_names) == {("a.py", "b.py", "c.py")}
