"""The words of a command line as three shells split them, each with its offset: sh, PowerShell and cmd.

People paste from Windows: lines go on with `\\`, a backtick or `^`, quotes are curly, dashes long. What a shell would
trip over is a slip: a finding. The words are read as they were meant.
"""

import re
from collections.abc import Iterator
from enum import StrEnum

from winhost.core.dataclass import dataclass
from winhost.findings.finding import Observation, TextEdit
from winhost.recipes.recipe_text import PlacedText


class ShellKind(StrEnum):
    """Whose rules of quoting hold."""

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
_HERE = re.compile(r"<<-?[ \t]*([A-Za-z_]\w*)")
# What a shell prints before a line that goes on: of `>` alone only where no file is meant.
_GOING_ON = re.compile(r"[ \t]*(?:>>?[ \t]+|More\?[ \t]+)")
_GOING_ON_ALONE = re.compile(r">>?[ \t]+(?=-)")
_FENCE = re.compile(r"[ \t]*```[^\n]*")
_GOES_ON = re.compile(r"(?P<blanks>[ \t]*)(?:\r?\n|\r?\Z)")
_REMARK = re.compile(r"[ \t]+#[^\n]*(?:\n|\Z)")
_PLACEHOLDER = re.compile(r"<[A-Za-z][\w .:/-]{0,60}>")
_OF_POWERSHELL = re.compile(r"\$env:\w+|^[ \t]*PS [^>\n]*>|`[ \t]*\r?$", re.MULTILINE)
_OF_CMD = re.compile(r"\^[ \t]*\r?$|^[ \t]*[A-Za-z]:\\[^>\n]*>|^[ \t]*set +\"?\w+=|%\w+%", re.MULTILINE | re.IGNORECASE)


@dataclass(frozen=True)
class Command:
    """Words up to an operator. closed_by: that operator, `\\n` among them."""

    words: tuple[PlacedText, ...]
    closed_by: str = ""


def shell_of(text: str) -> ShellKind:
    """The shell that a text was written for, by what only that has."""
    lines = [line.rstrip() for line in text.split("\n")]
    ends = {shell: sum(line.endswith(f" {mark}") for line in lines) for mark, shell in _SHELL_OF.items()}
    most = max(ends, key=lambda shell: ends[shell])
    if ends[most]:
        return most
    return (
        ShellKind.POWERSHELL if _OF_POWERSHELL.search(text) else ShellKind.CMD if _OF_CMD.search(text) else ShellKind.SH
    )


def commands(
    text: PlacedText, shell: ShellKind = ShellKind.SH, *, comments: bool = True, compose: bool = False
) -> tuple[list[Command], list[Observation]]:
    """Split a text into commands, and find the slips in it. comments: whether # begins one, as in a shell;
    compose: split as Compose does, which takes a backslash away before any character within double quotes too.
    """
    lexer = _Lexer(text, shell, comments=comments and not compose and shell is not ShellKind.CMD, compose=compose)
    return list(lexer.commands()), lexer.slips


def _documents(text: str) -> Iterator[tuple[int, int]]:
    """The spans of here-documents whose end is not quoted, so that the shell reads backslashes in them."""
    at, first, end = 0, 0, ""
    for line in text.splitlines(keepends=True):
        at += len(line)
        if end and line.strip() == end:
            yield first, at
            end = ""
        elif not end and (found := _HERE.search(line)):
            first, end = at, found[1]


class _Lexer:
    """Goes through the text once; `word` collects the characters of the word being read, each with its offset."""

    def __init__(self, text: PlacedText, shell: ShellKind, *, comments: bool, compose: bool) -> None:
        self._text, self._shell, self._comments, self._compose = text.value, shell, comments, compose
        self._at = text.at if len(text.at) == len(text.value) else None
        self._whole = text
        self._prompted = False
        self._documents = list(_documents(text.value)) if shell is ShellKind.SH and "<<" in text.value else []
        self._i = 0
        self.slips: list[Observation] = []

    def _offset(self, i: int) -> int:
        if self._at is None:
            return self._whole.start
        return self._at[i] if i < len(self._at) else self._whole.end

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
        self._prompted = prompt is not None
        if prompt:
            self._i = prompt.end()

    def _next(self) -> PlacedText | str | None:
        """The next word or operator; None at the end."""
        while self._i < len(self._text):
            char = self._text[self._i]
            if char in " \t\r\ufeff":
                self._i += 1
            elif self._goes_on(self._undoubled(char)):
                continue
            elif char == "#" and self._comments:
                self._i = (self._text + "\n").index("\n", self._i)
            elif self._redirects(char):
                self._pass_redirection()
            elif char in _OPERATORS:
                return self._operator(char)
            else:
                word = self._word()
                if not (word.value.isdigit() and self._text[self._i : self._i + 1] == ">"):  # as in 2>&1
                    return word
        return None

    def _redirects(self, char: str) -> bool:
        return char in "<>" and not _PLACEHOLDER.match(self._text, self._i)

    def _operator(self, char: str) -> str:
        start = self._i
        while self._text[self._i : self._i + 1] == char:
            self._i += 1
        return self._text[start : self._i]

    def _pass_redirection(self) -> None:
        """Skip a redirection and its file: neither is a word of the command."""
        while self._i < len(self._text) and self._text[self._i] in "<>&0123456789":
            self._i += 1
        while self._text[self._i : self._i + 1] in (" ", "\t"):
            self._i += 1
        if self._i < len(self._text) and self._text[self._i] not in _OPERATORS + "<>\r":
            self._word()

    def _undoubled(self, char: str) -> str:
        """Skip the first of two backslashes in an unquoted here-document, which are one in the file that it becomes."""
        doubled = self._text.startswith("\\\\", self._i)
        if doubled and any(first <= self._i < last for first, last in self._documents):
            self._i += 1
        return char

    def _goes_on(self, char: str) -> bool:
        """Tell whether the line continues here, and skip the continuation if so."""
        if char not in _SHELL_OF:
            return False
        if char == ESCAPES[self._shell] and (remark := _REMARK.match(self._text, self._i + 1)):
            self._slip("comment-after-continuation", self._offset(self._i), char=char)
            self._i = remark.end()
            return True
        end = _GOES_ON.match(self._text, self._i + 1)
        if end is None:
            return False
        offset = self._offset(self._i)
        wanted = ESCAPES[self._shell]
        if char != wanted and self._text[self._i - 1 : self._i] not in (" ", "\t"):
            return False  # the end of a path, or of `command`
        if char != wanted:
            edit = TextEdit(offset, offset + 1, wanted)
            self._slip("foreign-continuation", offset, edit, char=char, shell=self._shell.value, wanted=wanted)
        if end["blanks"] and end.end() < len(self._text):
            edit = TextEdit(offset + 1, offset + 1 + len(end["blanks"]), "")
            self._slip("blank-after-continuation", offset, edit, char=char)
        self._i = end.end()
        shown = _GOING_ON if self._prompted else _GOING_ON_ALONE
        if prompt := shown.match(self._text, self._i):
            self._i = prompt.end()
        self._in_the_middle(offset)
        return True

    def _in_the_middle(self, offset: int) -> None:
        """A comment or an empty line after a line that goes on ends the command there."""
        rest = self._text[self._i :].split("\n", 1)[0].strip()
        if rest.startswith("#") and self._comments:
            self._slip("comment-in-command", self._offset(self._i))
            self._i = min(self._i + len(self._text[self._i :].split("\n", 1)[0]) + 1, len(self._text))
        elif not rest and self._text[self._i :].strip():
            self._slip("continues-into-nothing", offset)

    def _slip(self, code: str, offset: int, edit: TextEdit | None = None, **words: str) -> None:
        self.slips.append(Observation(code, offset, words, (edit,) if edit and self._at is not None else ()))

    def _word(self) -> PlacedText:
        start = self._i
        letters: list[tuple[str, int]] = []
        if self._shell is ShellKind.CMD and self._text[self._i] == "'":
            self._slip("no-quote-in-cmd", self._offset(start))
        if _LONG_DASH.match(self._text, self._i):
            self._long_dash(letters)
        while self._i < len(self._text) and not self._ends():
            char = self._text[self._i]
            if quote := self._quote(char):
                self._quoted(char, quote, letters)
            elif char == ESCAPES[self._shell] and self._i + 1 < len(self._text):
                letters.append((self._text[self._i + 1], self._i + 1))
                self._i += 2
            elif char in "<$":
                self._expansion(letters)
            else:
                letters.append((char, self._i))
                self._i += 1
        return self._read(letters, start)

    def _ends(self) -> bool:
        char = self._text[self._i]
        if char in " \t\r" or char in _OPERATORS or self._redirects(char):
            return True
        return char == ESCAPES[self._shell] and _GOES_ON.match(self._text, self._i + 1) is not None

    def _read(self, letters: list[tuple[str, int]], start: int) -> PlacedText:
        at = () if self._at is None else tuple(self._offset(i) for _, i in letters)
        end = self._offset(self._i - 1) + 1 if self._at is not None else self._whole.end
        return PlacedText("".join(char for char, _ in letters), at, self._offset(start), end)

    def _long_dash(self, letters: list[tuple[str, int]]) -> None:
        start = self._i
        while self._i < len(self._text) and self._text[self._i] in _DASHES + "-":
            self._i += 1
        offset = self._offset(start)
        self._slip("long-dash", offset, TextEdit(offset, self._offset(self._i - 1) + 1, "--"), char=self._text[start])
        letters += [("-", start), ("-", start)]

    def _quote(self, char: str) -> str | None:
        straight = _CURLY.get(char, char)
        return straight if straight == '"' or (straight == "'" and self._shell is not ShellKind.CMD) else None

    def _quoted(self, opened: str, quote: str, letters: list[tuple[str, int]]) -> None:
        start = self._i
        self._straighten(start, quote)
        self._i += 1
        while self._i < len(self._text):
            char = self._text[self._i]
            if _CURLY.get(char, char) == quote and (char == opened or (char in _CURLY) is (opened in _CURLY)):
                self._straighten(self._i, quote)
                self._i += 1
                if not (self._shell is ShellKind.POWERSHELL and self._text[self._i : self._i + 1] == quote):
                    self._lost_quotes(start)
                    return
            elif char == ESCAPES[self._shell] and quote == '"' and self._escaped(letters):
                continue
            elif self._shell is not ShellKind.SH and self._text[self._i : self._i + 2] == '\\"':
                self._i += 1  # as programs of Windows read it
            letters.append((self._text[self._i], self._i))
            self._i += 1
        self._slip("open-quote", self._offset(start), char=quote)

    def _lost_quotes(self, start: int) -> None:
        """Windows PowerShell hands a word to a program without the double quotes that are in it."""
        inner = self._text[start + 1 : self._i - 1]
        if self._shell is ShellKind.POWERSHELL and re.search(r'(?<!\\)"', inner):
            self._slip("quotes-lost", self._offset(start))

    def _escaped(self, letters: list[tuple[str, int]]) -> bool:
        """Within double quotes; sh keeps the sign before anything but these."""
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

    def _expansion(self, letters: list[tuple[str, int]]) -> None:
        """A placeholder, a variable or the output of a command: kept as it is written."""
        found = _PLACEHOLDER.match(self._text, self._i)
        end = found.end() if found else self._closed() if self._text[self._i + 1 : self._i + 2] in ("(", "{") else 0
        end = max(end, self._i + 1)
        letters += [(self._text[i], i) for i in range(self._i, end)]
        self._i = end

    def _closed(self) -> int:
        opened = self._text[self._i + 1]
        closing, depth = {"(": ")", "{": "}"}[opened], 0
        for i in range(self._i + 1, len(self._text)):
            depth += (self._text[i] == opened) - (self._text[i] == closing)
            if not depth:
                return i + 1
        return 0
