"""Finds winhost's own errors in pasted text. The errors are read from winhost's source, where they are raised, so that
nothing is declared twice.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable

from winhost.core.dataclass import dataclass
from winhost.model.once import once

BEGIN = "error: "
MAX_LINES = 20  # lines of a text that are checked
_PLACEHOLDER = "…"  # stands for a value that is filled in when the error is raised
_CODE = re.compile(r"[A-Z][a-z]+(?:[A-Z][a-z]+)*")
_MIN_MATCH = 12  # characters of an error's constant text that a line must contain
_MAX_VALUE = 300  # characters of a filled-in value
_ERROR_CLASS_ENDS = ("Error", "super().__init__")  # the calls that create an error end like this
_PARTS = ("code", "what", "meaning", "hint")


@dataclass(frozen=True)
class OwnError:
    """An error of winhost as in its source, with `…` for each value that is filled in. words: the constant parts of
    `what`.
    """

    code: str
    what: str
    meaning: str
    hint: str
    words: tuple[str, ...]

    def match_length(self, line: str) -> int:
        """Return how many characters of the line are the constant parts of the error, in their order; 0 if a part is
        missing.
        """
        at = 0
        for words in self.words:
            found = line.find(words, at)
            if found < 0 or found - at > _MAX_VALUE:
                return 0
            at = found + len(words)
        return sum(map(len, self.words))


class OwnLines:
    """Collects the lines of a text that begin like winhost's errors, by line number."""

    def __init__(self) -> None:
        self.lines: dict[str, int] = {}
        self._ended = 0

    def pieces(self, pieces: Iterable[str]) -> Iterator[str]:
        """Pass on the pieces of a text, and collect lines from them."""
        for piece in pieces:
            at = piece.find(BEGIN)
            while at >= 0 and len(self.lines) < MAX_LINES:
                if at == 0 or piece[at - 1] == "\n":
                    self.lines.setdefault(_paragraph(piece, at), self._ended + piece.count("\n", 0, at) + 1)
                at = piece.find(BEGIN, at + 1)
            self._ended += piece.count("\n")
            yield piece


def _paragraph(text: str, at: int) -> str:
    """Join the lines of a paragraph, which ends before an indented or empty line, because terminals break long
    errors.
    """
    lines = text[at : at + 2000].split("\n")
    rest = next((number for number, line in enumerate(lines) if number and (not line or line[0] == " ")), len(lines))
    return " ".join(lines[:rest])


def match_error(paragraph: str) -> OwnError | None:
    """Return the error of winhost in a line that begins with `error: `; None if it is of another program."""
    text = paragraph.removeprefix(BEGIN)
    best = max(all_errors(), key=lambda error: error.match_length(text))
    return best if best.match_length(text) >= _MIN_MATCH else None


def find_error(code: str) -> OwnError | None:
    """Return the first error with this code; None if there is none."""
    if not _CODE.fullmatch(code):
        return None
    return next((error for error in all_errors() if error.code == code), None)


@once
def all_errors() -> Sequence[OwnError]:
    """Return all errors whose text is in the source."""
    errors: list[OwnError] = []
    for text in _sources(files("winhost")):
        if "what=" in text or "hint=" in text:
            errors += (error for node in ast.walk(ast.parse(text)) if (error := _error_of_call(node)) is not None)
    return tuple(errors)


def _sources(folder: Traversable) -> Iterator[str]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _sources(entry)
        elif entry.name.endswith(".py"):
            yield entry.read_text("utf-8")


def _error_of_call(node: ast.AST) -> OwnError | None:
    """Read an error from a call that raises it; None for any other node."""
    if not isinstance(node, ast.Call) or not ast.unparse(node.func).endswith(_ERROR_CLASS_ENDS):
        return None
    arguments = dict(zip(_PARTS, node.args, strict=False)) | {
        each.arg: each.value for each in node.keywords if each.arg
    }
    code = arguments.get("code")
    if not isinstance(code, ast.Constant) or not _CODE.fullmatch(str(code.value)) or "what" not in arguments:
        return None
    texts = {part: _constant_text(arguments[part]) if part in arguments else "" for part in _PARTS[1:]}
    words = tuple(part for part in re.split(r"\s*…\s*", texts["what"]) if len(part) > 1)
    return OwnError(str(code.value), **texts, words=words) if words else None


def _constant_text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(_constant_text(each) for each in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _constant_text(node.left) + _constant_text(node.right)
    return _PLACEHOLDER
