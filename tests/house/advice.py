"""Collects the commands and options of winhost that errors, refusals and verdicts advise."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import click

from tests.house.test_commands import every_command
from tests.house.test_errors import MAKERS, error_classes, is_of_super, last_name
from tests.house.tree import HOUSE, sources

TOLD_BY = {"BadParameter", "Refusal", "MmioRefused", "Caution"}
"""Besides the classes of errors: whatever stands in their arguments is read by users."""

MENTION = re.compile(r"(?<![\w/.-])winhost((?: (?:--?[a-z][\w-]*|[a-z][a-z-]*|[^\s;:,()'\"]+))+)")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")


@dataclass(frozen=True)
class Text:
    """A text with `{}` for what is filled in, and where it stands."""

    place: str
    text: str


@cache
def commands() -> dict[str, click.Command]:
    return dict(every_command())


@cache
def options() -> frozenset[str]:
    """Return the options of all commands."""
    return frozenset(name for command in commands().values() for name in options_of(command))


def options_of(command: click.Command) -> set[str]:
    found = {name for each in command.params for name in (*each.opts, *each.secondary_opts) if name.startswith("-")}
    return found | {"--help", "-v", "--verbose", "--debug"}


def text_of(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(str(each.value) if isinstance(each, ast.Constant) else "{}" for each in node.values)
    return None


def texts_within(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Each whole text, with its line; not the parts of those that have something filled in."""
    waiting = [node]
    while waiting:
        each = waiting.pop()
        text = text_of(each)
        if text is not None:
            yield getattr(each, "lineno", 0), text
        if not isinstance(each, ast.JoinedStr):
            waiting += ast.iter_child_nodes(each)
        else:
            waiting += [part for part in ast.iter_child_nodes(each) if not isinstance(part, ast.Constant)]


def docstrings(tree_nodes: list[ast.Expr]) -> set[int]:
    return {id(each.value) for each in tree_nodes if isinstance(each.value, ast.Constant)}


def every_text() -> Iterator[Text]:
    """All strings of the product but docstrings, and the data that verdicts are made from."""
    for file in sources(HOUSE):
        place = str(file.path.relative_to(HOUSE))
        within = {id(part) for joined in file.every(ast.JoinedStr) for part in joined.values}
        nodes: list[ast.AST] = [*file.every(ast.JoinedStr), *file.every(ast.Constant)]
        silent = docstrings(file.every(ast.Expr)) | within
        for node in nodes:
            text = text_of(node)
            if text and id(node) not in silent:
                yield Text(f"{place}:{getattr(node, 'lineno', 0)}", text)
    for path in sorted(HOUSE.rglob("*.yaml")):
        if "resources" not in path.parts:
            yield Text(str(path.relative_to(HOUSE)), " ".join(path.read_text("utf-8").split()))


@dataclass(frozen=True)
class Site:
    """A place that raises an error. name: its code, or its first words where it has none; texts: what users read."""

    name: str
    place: str
    texts: tuple[str, ...]

    @property
    def options(self) -> set[str]:
        return {each for text in self.texts for each in OPTION.findall(text)} & options()


OTHERS = ("agent/", "bundle/", "lab/", "recipes/", "resources/")
"""Rooms whose texts name options of other programs."""
DECLARED = {"option", "argument", "Field"}


def sites() -> Iterator[Site]:
    """All errors and refusals of the product, then each text beside them that names an option."""
    errors = error_classes()
    for file in sources(HOUSE):
        place = str(file.path.relative_to(HOUSE))
        seen = docstrings(file.every(ast.Expr))
        seen |= {id(part) for joined in file.every(ast.JoinedStr) for part in joined.values}
        for call in file.every(ast.Call):
            name = last_name(call.func)
            if name in {*errors, *MAKERS, *TOLD_BY} or is_of_super(call.func):
                yield _raised(call, place)
            elif name not in DECLARED:
                continue
            seen |= {id(part) for part in ast.walk(call)}
        if not place.startswith(OTHERS) and not place.endswith("/commands.py"):  # which have the help
            for node in (*file.every(ast.JoinedStr), *file.every(ast.Constant)):
                text = text_of(node)
                if text and " " in text.strip() and id(node) not in seen:
                    yield Site(text.strip(), f"{place}:{node.lineno}", (text,))


def _raised(call: ast.Call, place: str) -> Site:
    told = [*call.args, *(each.value for each in call.keywords if each.arg != "param_hint")]
    texts = tuple(text for each in told for _, text in sorted(texts_within(each)))
    code = next((each.value for each in call.keywords if each.arg == "code"), call.args[0] if call.args else None)
    named = text_of(code) if isinstance(code, ast.Constant) else None
    known = named and re.fullmatch(r"[A-Za-z][\w.-]*", named)
    first = next((text for each in told if (text := text_of(each))), next(iter(texts), ""))
    return Site(named if known and named else first, f"{place}:{call.lineno}", texts)
