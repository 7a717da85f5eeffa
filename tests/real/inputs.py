"""The files that tests read, found in what they import and name, and which of them changed since a commit.

A room of the product, such as winhost/cli, counts as a whole, with everything that its files import: rooms load some of
their modules by name and read the files beside them. A module of tests counts with the files beside it that hold no
tests.
"""

import ast
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.house.tree import modules

# They decide how every test runs.
OF_ALL = ("pyproject.toml", "requirements-dev.txt", "Makefile", ".ci", "tests/real", "winhost/__init__.py")
SHIPPED = ("playbooks", "examples", "templates")
# They name files and folders of the tree that they do not read.
NAME_ALL = ("tests/conftest.py", "tests/house/tree.py")
NAMED = re.compile(r"""((?:ROOT|HOUSE|parents\[\d\]|parent) / )?f?["']([\w.][\w./-]*)""")
STARTS_WINHOST = re.compile(r"""["']-m["'], ["']winhost["']""")
IS_TEST = re.compile(r"test_\w+\.py")


class Unknown(Exception):
    """Why nobody can say what changed."""


def git(root: Path, *words: str) -> str:
    try:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, timeout=600)
    except OSError as error:
        raise Unknown(f"git: {error}") from error
    if done.returncode:
        raise Unknown(f"git {words[0]}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def changed_since(base: str, root: Path) -> frozenset[str]:
    """Files that are others now than in this ancestor, committed or not. Raises Unknown."""
    if git(root, "rev-parse", "--is-shallow-repository").strip() != "false":
        raise Unknown("the clone is shallow")
    commit = git(root, "rev-parse", "--verify", "--quiet", f"{base}^{{commit}}").strip()
    if commit == git(root, "rev-parse", "HEAD").strip():
        raise Unknown("it is the commit that is to be tested")
    git(root, "merge-base", "--is-ancestor", commit, "HEAD")
    told = git(root, "diff", "--name-only", "--no-renames", "-z", commit, "--")
    told += git(root, "ls-files", "--others", "--exclude-standard", "-z")
    return frozenset(told.split("\0")) - {""}


@dataclass(frozen=True)
class Inputs:
    """paths: of files, and of folders with all that is below them. beside: folders of which all files count that hold
    no tests.
    """

    root: Path
    paths: frozenset[str]
    beside: frozenset[str]

    def has(self, path: str) -> bool:
        inside = [path, *(str(folder) for folder in Path(path).parents)]
        if not self.paths.isdisjoint(inside) or (inside[1] in self.beside and not IS_TEST.fullmatch(Path(path).name)):
            return True
        return not (self.root / path).exists() and self._had_neighbour(path)

    def _had_neighbour(self, path: str) -> bool:
        """Tell whether a removed file had neighbours, which are still known although no file names it any longer."""
        folder = next(each for each in Path(path).parents if (self.root / each).exists())
        return any(Path(each).is_relative_to(folder) for each in self.paths | self.beside)


class Tree:
    """The imports and names of the Python files in a folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known = modules(root / "winhost") | modules(root / "tests")
        self._names = {file: name for name, file in self._known.items()}
        self._read: dict[str, set[str]] = {}

    def inputs(self, tests: Iterable[str]) -> Inputs:
        """tests: files and folders."""
        found, todo = set(OF_ALL), set(tests)
        while todo:
            path = todo.pop()
            if path not in found and (self._root / path).exists():
                found.add(path)
                if path not in self._read:
                    self._read[path] = self._read_by(path)
                todo |= self._read[path]
        beside = (str(Path(path).parent) for path in found if path.startswith("tests/") and path.endswith(".py"))
        return Inputs(self._root, frozenset(found), frozenset(beside))

    def _read_by(self, path: str) -> set[str]:
        file = self._root / path
        if file.is_dir():
            return {self._path(each) for each in file.rglob("*.py")}
        if file not in self._names:
            return set()
        found = {self._path(self._known[each]) for each in self._imported(file)}
        if path.startswith("winhost/"):
            return found | {"/".join(path.split("/")[:2])} | self._named(file)
        if path in NAME_ALL:
            return found
        return found | {f"{folder}/conftest.py" for folder in Path(path).parents} | self._named(file)

    def _imported(self, file: Path) -> set[str]:
        """The packages above a module count: they are imported before it."""
        package = self._names[file].split(".") if file.name == "__init__.py" else self._names[file].split(".")[:-1]
        names = set[str]()
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                names |= {each.name for each in node.names}
            elif isinstance(node, ast.ImportFrom):
                above = package[: len(package) - node.level + 1] if node.level else []
                module = ".".join([*above, *([node.module] if node.module else [])])
                names |= {f"{module}.{each.name}" for each in node.names}
        return {name for each in names for name in self._with_packages(each) if name in self._known}

    def _with_packages(self, name: str) -> Iterable[str]:
        parts = name.split(".")
        return (".".join(parts[: number + 1]) for number in range(len(parts)))

    def _named(self, file: Path) -> set[str]:
        """Modules by their dotted names; what is shipped; in tests files and folders in paths that they join."""
        text = file.read_text("utf-8").replace('" / "', "/")
        in_tests = (self._root / "tests") in file.parents
        found = {"winhost/cli"} if STARTS_WINHOST.search(text) else set()
        for joined, word in NAMED.findall(text):
            first = word.split("/")[0]
            if word in self._known and "." in word:
                found.add(self._path(self._known[word]))
            elif first in SHIPPED or (in_tests and (joined or "/" in word) and not IS_TEST.fullmatch(Path(word).name)):
                for base in self._bases(joined, first, file):
                    there = longest(base, word)
                    if there != base and (joined or first in SHIPPED or there == base / word):
                        found.add(self._path(there))
        return found

    def _bases(self, joined: str, first: str, file: Path) -> tuple[Path, Path]:
        """The folders that a path in a test may start from."""
        if joined.startswith("HOUSE"):
            return self._root, self._root / "winhost"
        return self._root, self._root / "tests" if first == "data" else file.parent

    def _path(self, file: Path) -> str:
        return file.relative_to(self._root).as_posix()


def longest(base: Path, word: str) -> Path:
    """Return the longest existing part of a path: the rest is filled in when it is read."""
    at = base
    for part in word.split("/"):
        if not part or part.startswith("..") or not (at / part).exists():
            break
        at /= part
    return at
