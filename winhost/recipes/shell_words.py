"""Splits command lines into words like sh, PowerShell and cmd, with the offset of each character.

In pasted text, lines continue with `\\`, a backtick or `^`, quotes are curly, and dashes are long. Text that the shell
would misread is reported as a slip, and read as it was intended.
"""

import re
from collections.abc import Iterator
from enum import StrEnum

from winhost.core.dataclass import dataclass
from winhost.findings.finding import Observation, TextEdit
from winhost.recipes.recipe_text import PlacedText


class ShellKind(StrEnum):
    """The shell whose quoting rules apply."""

    SH = "sh"
    POWERSHELL = "PowerShell"
    CMD = "cmd"


ESCAPES = {ShellKind.SH: "\\", ShellKind.POWERSHELL: "`", ShellKind.CMD: "^"}
_SHELL_OF = {mark: shell for shell, mark in ESCAPES.items()}
_OPERATORS = "\n;&|()"
_CURLY = {"\u201c": '"', "\u201d": '"', "\u201e": '"', "\u2018": "'", "\u2019": "'"}
_DASHES = "\u2013\u2014\u2010\u2011\u2212"  # en dash, em dash, hyphens, minus
_LONG_DASH = re.compile(rf"[{_DASHES}][{_DASHES}-]*(?=[A-Za-z])")
_PROMPT = re.compile(r"[ \t]*(?:\$|PS [^>\n]*>|[A-Za-z]:\\[^>\n]*>|[\w.-]+@[\w.-]+:[^$#\n]*[$#])[ \t]+")
_HERE_DOCUMENT = re.compile(r"<<-?[ \t]*([A-Za-z_]\w*)")
# The prompt of a shell in a continuation line; a single `>` only if it is no redirection.
_CONTINUATION_PROMPT = re.compile(r"[ \t]*(?:>>?[ \t]+|More\?[ \t]+)")
_BARE_CONTINUATION_PROMPT = re.compile(r">>?[ \t]+(?=-)")
_FENCE = re.compile(r"[ \t]*```[^\n]*")
_LINE_END = re.compile(r"(?P<blanks>[ \t]*)(?:\r?\n|\r?\Z)")
_COMMENT = re.compile(r"[ \t]+#[^\n]*(?:\n|\Z)")
_PLACEHOLDER = re.compile(r"<[A-Za-z][\w .:/-]{0,60}>")
_POWERSHELL_SYNTAX = re.compile(r"\$env:\w+|^[ \t]*PS [^>\n]*>|`[ \t]*\r?$", re.MULTILINE)
_CMD_SYNTAX = re.compile(
    r"\^[ \t]*\r?$|^[ \t]*[A-Za-z]:\\[^>\n]*>|^[ \t]*set +\"?\w+=|%\w+%", re.MULTILINE | re.IGNORECASE
)


@dataclass(frozen=True)
class Command:
    """The words up to an operator. closed_by: that operator, which may be `\\n`."""

    words: tuple[PlacedText, ...]
    closed_by: str = ""


def detect_shell(text: str) -> ShellKind:
    """Return the shell that a text was written for, by its syntax."""
    lines = [line.rstrip() for line in text.split("\n")]
    ends = {shell: sum(line.endswith(f" {mark}") for line in lines) for mark, shell in _SHELL_OF.items()}
    most = max(ends, key=lambda shell: ends[shell])
    if ends[most]:
        return most
    return (
        ShellKind.POWERSHELL
        if _POWERSHELL_SYNTAX.search(text)
        else ShellKind.CMD
        if _CMD_SYNTAX.search(text)
        else ShellKind.SH
    )


def split_commands(
    text: PlacedText, shell: ShellKind = ShellKind.SH, *, comments: bool = True, compose: bool = False
) -> tuple[list[Command], list[Observation]]:
    """Split a text into commands, and return its slips. comments: `#` begins a comment, as in a shell; compose: split
    like Compose, which also removes a backslash before any character within double quotes.
    """
    lexer = _Lexer(text, shell, comments=comments and not compose and shell is not ShellKind.CMD, compose=compose)
    return list(lexer.commands()), lexer.slips


def _here_documents(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of here-documents with an unquoted end word, in which the shell interprets backslashes."""
    at, first, end = 0, 0, ""
    for line in text.splitlines(keepends=True):
        at += len(line)
        if end and line.strip() == end:
            yield first, at
            end = ""
        elif not end and (found := _HERE_DOCUMENT.search(line)):
            first, end = at, found[1]


class _Lexer:
    """Reads a text once, and yields its commands."""

    def __init__(self, text: PlacedText, shell: ShellKind, *, comments: bool, compose: bool) -> None:
        self._text, self._shell, self._comments, self._compose = text.value, shell, comments, compose
        self._offsets = text.offsets if len(text.offsets) == len(text.value) else None
        self._placed_text = text
        self._has_prompt = False
        self._documents = list(_here_documents(text.value)) if shell is ShellKind.SH and "<<" in text.value else []
        self._i = 0
        self.slips: list[Observation] = []

    def _offset(self, i: int) -> int:
        if self._offsets is None:
            return self._placed_text.start
        return self._offsets[i] if i < len(self._offsets) else self._placed_text.end

    def commands(self) -> Iterator[Command]:
        words: list[PlacedText] = []
        self._skip_prompt()
        while (found := self._next()) is not None:
            if isinstance(found, PlacedText):
                words.append(found)
                continue
            if words:
                yield Command(tuple(words), found)
            words = []
            if "\n" in found:
                self._skip_prompt()
        if words:
            yield Command(tuple(words))

    def _skip_prompt(self) -> None:
        while fence := _FENCE.match(self._text, self._i):
            self._i = min(fence.end() + 1, len(self._text))
        prompt = _PROMPT.match(self._text, self._i)
        self._has_prompt = prompt is not None
        if prompt:
            self._i = prompt.end()

    def _next(self) -> PlacedText | str | None:
        """Return the next word or operator; None at the end."""
        while self._i < len(self._text):
            char = self._text[self._i]
            if char in " \t\r\ufeff":
                self._i += 1
            elif self._skip_continuation(self._skip_doubled_backslash(char)):
                continue
            elif char == "#" and self._comments:
                self._i = (self._text + "\n").index("\n", self._i)
            elif self._redirects(char):
                self._skip_redirection()
            elif char in _OPERATORS:
                return self._read_operator(char)
            else:
                word = self._read_word()
                if not (word.value.isdigit() and self._text[self._i : self._i + 1] == ">"):  # as in 2>&1
                    return word
        return None

    def _redirects(self, char: str) -> bool:
        return char in "<>" and not _PLACEHOLDER.match(self._text, self._i)

    def _read_operator(self, char: str) -> str:
        start = self._i
        while self._text[self._i : self._i + 1] == char:
            self._i += 1
        return self._text[start : self._i]

    def _skip_redirection(self) -> None:
        """Skip a redirection and its file: neither is a word of the command."""
        while self._i < len(self._text) and self._text[self._i] in "<>&0123456789":
            self._i += 1
        while self._text[self._i : self._i + 1] in (" ", "\t"):
            self._i += 1
        if self._i < len(self._text) and self._text[self._i] not in _OPERATORS + "<>\r":
            self._read_word()

    def _skip_doubled_backslash(self, char: str) -> str:
        """Skip the first of two backslashes in an unquoted here-document, which become one in the resulting file."""
        doubled = self._text.startswith("\\\\", self._i)
        if doubled and any(first <= self._i < last for first, last in self._documents):
            self._i += 1
        return char

    def _skip_continuation(self, char: str) -> bool:
        """Tell whether the line continues here, and skip the continuation if so."""
        if char not in _SHELL_OF:
            return False
        if char == ESCAPES[self._shell] and (comment := _COMMENT.match(self._text, self._i + 1)):
            self._slip("comment-after-continuation", self._offset(self._i), char=char)
            self._i = comment.end()
            return True
        end = _LINE_END.match(self._text, self._i + 1)
        if end is None:
            return False
        offset = self._offset(self._i)
        expected = ESCAPES[self._shell]
        if char != expected and self._text[self._i - 1 : self._i] not in (" ", "\t"):
            return False  # the end of a path, or of a `command` in backticks
        if char != expected:
            edit = TextEdit(offset, offset + 1, expected)
            self._slip("foreign-continuation", offset, edit, char=char, shell=self._shell.value, wanted=expected)
        if end["blanks"] and end.end() < len(self._text):
            edit = TextEdit(offset + 1, offset + 1 + len(end["blanks"]), "")
            self._slip("blank-after-continuation", offset, edit, char=char)
        self._i = end.end()
        shown = _CONTINUATION_PROMPT if self._has_prompt else _BARE_CONTINUATION_PROMPT
        if prompt := shown.match(self._text, self._i):
            self._i = prompt.end()
        self._check_after_continuation(offset)
        return True

    def _check_after_continuation(self, offset: int) -> None:
        """Report a comment or an empty line after a continuation, where the command ends."""
        rest = self._text[self._i :].split("\n", 1)[0].strip()
        if rest.startswith("#") and self._comments:
            self._slip("comment-in-command", self._offset(self._i))
            self._i = min(self._i + len(self._text[self._i :].split("\n", 1)[0]) + 1, len(self._text))
        elif not rest and self._text[self._i :].strip():
            self._slip("continues-into-nothing", offset)

    def _slip(self, code: str, offset: int, edit: TextEdit | None = None, **words: str) -> None:
        self.slips.append(Observation(code, offset, words, (edit,) if edit and self._offsets is not None else ()))

    def _read_word(self) -> PlacedText:
        start = self._i
        letters: list[tuple[str, int]] = []
        if self._shell is ShellKind.CMD and self._text[self._i] == "'":
            self._slip("no-quote-in-cmd", self._offset(start))
        if _LONG_DASH.match(self._text, self._i):
            self._read_long_dash(letters)
        while self._i < len(self._text) and not self._is_word_end():
            char = self._text[self._i]
            if quote := self._straight_quote(char):
                self._read_quoted(char, quote, letters)
            elif char == ESCAPES[self._shell] and self._i + 1 < len(self._text):
                letters.append((self._text[self._i + 1], self._i + 1))
                self._i += 2
            elif char in "<$":
                self._read_expansion(letters)
            else:
                letters.append((char, self._i))
                self._i += 1
        return self._make_text(letters, start)

    def _is_word_end(self) -> bool:
        char = self._text[self._i]
        if char in " \t\r" or char in _OPERATORS or self._redirects(char):
            return True
        return char == ESCAPES[self._shell] and _LINE_END.match(self._text, self._i + 1) is not None

    def _make_text(self, letters: list[tuple[str, int]], start: int) -> PlacedText:
        at = () if self._offsets is None else tuple(self._offset(i) for _, i in letters)
        end = self._offset(self._i - 1) + 1 if self._offsets is not None else self._placed_text.end
        return PlacedText("".join(char for char, _ in letters), at, self._offset(start), end)

    def _read_long_dash(self, letters: list[tuple[str, int]]) -> None:
        start = self._i
        while self._i < len(self._text) and self._text[self._i] in _DASHES + "-":
            self._i += 1
        offset = self._offset(start)
        self._slip("long-dash", offset, TextEdit(offset, self._offset(self._i - 1) + 1, "--"), char=self._text[start])
        letters += [("-", start), ("-", start)]

    def _straight_quote(self, char: str) -> str | None:
        straight = _CURLY.get(char, char)
        return straight if straight == '"' or (straight == "'" and self._shell is not ShellKind.CMD) else None

    def _read_quoted(self, opened: str, quote: str, letters: list[tuple[str, int]]) -> None:
        start = self._i
        self._straighten(start, quote)
        self._i += 1
        while self._i < len(self._text):
            char = self._text[self._i]
            if _CURLY.get(char, char) == quote and (char == opened or (char in _CURLY) is (opened in _CURLY)):
                self._straighten(self._i, quote)
                self._i += 1
                if not (self._shell is ShellKind.POWERSHELL and self._text[self._i : self._i + 1] == quote):
                    self._check_inner_quotes(start)
                    return
            elif char == ESCAPES[self._shell] and quote == '"' and self._read_escape(letters):
                continue
            elif self._shell is not ShellKind.SH and self._text[self._i : self._i + 2] == '\\"':
                self._i += 1  # programs of Windows read it as a quote
            letters.append((self._text[self._i], self._i))
            self._i += 1
        self._slip("open-quote", self._offset(start), char=quote)

    def _check_inner_quotes(self, start: int) -> None:
        """Report double quotes within a word, which Windows PowerShell removes when it passes the word to a program."""
        inner = self._text[start + 1 : self._i - 1]
        if self._shell is ShellKind.POWERSHELL and re.search(r'(?<!\\)"', inner):
            self._slip("quotes-lost", self._offset(start))

    def _read_escape(self, letters: list[tuple[str, int]]) -> bool:
        """Read an escaped character within double quotes; sh keeps the backslash before other characters than these."""
        after = self._text[self._i + 1 : self._i + 2]
        if self._shell is ShellKind.CMD or not after:
            return False
        if self._shell is ShellKind.SH and after not in '"\\$`\n' and not self._compose:
            return False
        if after != "\n":
            letters.append((after, self._i + 1))
        self._i += 2
        return True

    def _straighten(self, i: int, quote: str) -> None:
        if self._text[i] != quote:
            self._slip(
                "curly-quote",
                self._offset(i),
                TextEdit(self._offset(i), self._offset(i) + 1, quote),
                char=self._text[i],
            )

    def _read_expansion(self, letters: list[tuple[str, int]]) -> None:
        """Read a placeholder, a variable or a command substitution, which stays as it is written."""
        found = _PLACEHOLDER.match(self._text, self._i)
        end = (
            found.end()
            if found
            else self._closing_offset()
            if self._text[self._i + 1 : self._i + 2] in ("(", "{")
            else 0
        )
        end = max(end, self._i + 1)
        letters += [(self._text[i], i) for i in range(self._i, end)]
        self._i = end

    def _closing_offset(self) -> int:
        opened = self._text[self._i + 1]
        closing, depth = {"(": ")", "{": "}"}[opened], 0
        for i in range(self._i + 1, len(self._text)):
            depth += (self._text[i] == opened) - (self._text[i] == closing)
            if not depth:
                return i + 1
        return 0
