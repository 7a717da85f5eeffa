"""The format of .wslconfig and /etc/wsl.conf, as WSL's own parser reads it, and without losing a byte.

Both files go through ParseConfigFile (microsoft/WSL, src/shared/configfile/configfile.cpp). Sections and names are
ASCII letters and digits. `#` begins a comment, also behind a value; a backslash escapes `\\ " n t b` or the end of the
line, and nothing else. Windows skips a line that it cannot read; in a distro such a line ends the reading.
"""

import re
from collections.abc import Iterator
from enum import StrEnum, auto
from functools import cached_property

from winhost.core.dataclass import dataclass


@dataclass(frozen=True)
class Dialect:
    """The reading rules of one of the two files. `windows`: read by the C runtime of Windows, and by WSL with
    CFG_SKIP_INVALID_LINES; `narrow`: values keep one byte of each character, as in .wslconfig before WSL 3.0.1
    (microsoft/WSL #41657).
    """

    name: str
    windows: bool
    narrow: bool = False


WSLCONFIG = Dialect("wslconfig", windows=True, narrow=True)
WSLCONFIG_3 = Dialect("wslconfig", windows=True)
WSLCONF = Dialect("wslconf", windows=False)  # WslDistributionConfig.cpp passes CFG_SKIP_UNKNOWN_VALUES alone


class LineKind(StrEnum):
    """The kind of a line; a line that WSL cannot read is called by its fault."""

    BLANK = auto()
    SECTION = auto()
    KEY = auto()
    UNREAD = auto()
    BAD_SECTION = "bad-section"
    BAD_NAME = "bad-name"
    NO_EQUALS = "no-equals"
    BAD_ESCAPE = "bad-escape"
    OPEN_QUOTE = "open-quote"


HARMLESS = (LineKind.BLANK, LineKind.SECTION, LineKind.KEY)


@dataclass(frozen=True)
class ConfigLine:
    """One line, or several that backslashes join, with its end. `section` is the one in force behind it.

    `raw` is where in `text` the value is written; `at` what a finding points to.
    """

    text: str
    number: int
    kind: LineKind
    section: str = ""
    key: str = ""
    value: str = ""
    raw: range = range(0)
    at: int = 0

    @property
    def id(self) -> tuple[str, str]:
        """Section and key as WSL compares them."""
        return self.section.lower(), self.key.lower()

    @property
    def position(self) -> tuple[int, int]:
        """Line and column, counted from 1, of what a finding points to."""
        before = self.text[: self.at]
        return self.number + before.count("\n"), len(before) - before.rfind("\n")


@dataclass(frozen=True)
class ConfigFile:
    """A whole file: its lines, in order, are its text."""

    dialect: Dialect
    lines: tuple[ConfigLine, ...]

    @property
    def text(self) -> str:
        """Exactly what was parsed."""
        return "".join(line.text for line in self.lines)

    @cached_property
    def keys(self) -> tuple[ConfigLine, ...]:
        """The lines that give a key a value, as far as WSL reads."""
        return tuple(line for line in self.lines if line.kind is LineKind.KEY)


def parse(text: str, dialect: Dialect = WSLCONFIG) -> ConfigFile:
    """Reads any text, whatever is wrong with it."""
    return ConfigFile(dialect, tuple(_lines(text, dialect)))


def _lines(text: str, dialect: Dialect) -> Iterator[ConfigLine]:
    at, number, section = 0, 1, ""
    if dialect.windows and text.startswith("\ufeff"):  # the C runtime takes it off; init in a distro stumbles over it
        yield ConfigLine("\ufeff", 1, LineKind.BLANK)
        at = 1
    while at < len(text):
        line = _line(text, at, number, section, dialect)
        yield line
        at, number, section = at + len(line.text), number + line.text.count("\n"), line.section
        if line.kind not in HARMLESS and not dialect.windows:
            break
    if at < len(text):
        yield ConfigLine(text[at:], number, LineKind.UNREAD)


_NAME = "[A-Za-z][A-Za-z0-9]*+"
_END = re.compile(r"#[^\n]*+\n?|\r\n|\n|\r|\Z")
_START = re.compile(rf"[ \t]*+(?:(?P<bracket>\[)(?P<section>{_NAME})?|(?P<key>{_NAME})[ \t]*+(?P<equals>=[ \t]*+)?)?")
_CLOSE = re.compile(r"\][ \t]*+")
_LINE_END = re.compile(r"[^\n]*+\n?")
# A carriage return behind a backslash is dropped. On Windows the C runtime has made \n of \r\n before the parser looks.
_ESCAPE = {True: r'\\(?:\r\n?|[\\"bnt\n])', False: r'\\[\\"bnt\r\n]'}
_QUOTED = {windows: rf'"(?:[^"\\\r\n]|{escape})*+' for windows, escape in _ESCAPE.items()}
_OPEN = {windows: re.compile(f"(?:{quoted})?") for windows, quoted in _QUOTED.items()}
_VALUE = {w: re.compile(rf'(?:[^"\\\r\n#]|{_ESCAPE[w]}|{_QUOTED[w]}")*+') for w in (True, False)}


def _line(text: str, start: int, number: int, section: str, dialect: Dialect) -> ConfigLine:
    head = _START.match(text, start)
    assert head is not None
    at = head.end()
    if head["bracket"]:
        return _section(text, start, number, section, head)
    if head["equals"]:
        return _key(text, start, number, section, head, dialect)
    if head["key"]:
        return _skipped(text, start, number, section, LineKind.NO_EQUALS, at)
    end = _END.match(text, at)
    if end is None:
        return _skipped(text, start, number, section, LineKind.BAD_NAME, at)
    return ConfigLine(text[start : end.end()], number, LineKind.BLANK, section)


def _section(text: str, start: int, number: int, section: str, head: re.Match[str]) -> ConfigLine:
    name, at = head["section"] or "", head.end()
    close = _CLOSE.match(text, at) if name else None
    end = _END.match(text, close.end()) if close else None
    if end is not None:
        return ConfigLine(text[start : end.end()], number, LineKind.SECTION, name, at=head.start("section") - start)
    # The parser keeps what it read of the name, at the length of the section before.
    left = name[: len(section)].ljust(len(section), "\0") if name else section
    return _skipped(text, start, number, left, LineKind.BAD_SECTION, close.end() if close else at)


def _key(text: str, start: int, number: int, section: str, head: re.Match[str], dialect: Dialect) -> ConfigLine:
    written = _VALUE[dialect.windows].match(text, head.end())
    assert written is not None
    end = _END.match(text, written.end())
    if end is None:
        opened = _OPEN[dialect.windows].match(text, written.end())
        at = opened.end() if opened else written.end()
        kind = LineKind.BAD_ESCAPE if text.startswith("\\", at) else LineKind.OPEN_QUOTE
        return _skipped(text, start, number, section, kind, at)
    raw = written[0].rstrip(" \t")
    value = _SPECIAL.sub(lambda found: _ESCAPED.get(found[1] or "", ""), raw)
    if dialect.narrow:  # Windows takes one byte of each UTF-16 unit
        value = value.encode("utf-16-le", "surrogatepass")[::2].decode("utf-8", "replace")
    begin = head.end() - start
    return ConfigLine(
        text=text[start : end.end()],
        number=number,
        kind=LineKind.KEY,
        section=section,
        key=head["key"],
        value=value.split("\0")[0],  # a C string
        raw=range(begin, begin + len(raw)),
        at=head.start("key") - start,
    )


def _skipped(text: str, start: int, number: int, section: str, kind: LineKind, at: int) -> ConfigLine:
    rest = _LINE_END.match(text, at)
    assert rest is not None
    return ConfigLine(text[start : rest.end()], number, kind, section, at=at - start)


_SPECIAL = re.compile(r'\\(\r\n|[\s\S])|"')
_ESCAPED = {"n": "\n", "t": "\t", "b": "\b", "\\": "\\", '"': '"'}
