"""The text of a recipe, and the offset of each character of a value in it, so that edits can change the value."""

import codecs
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from winhost.core.dataclass import dataclass
from winhost.findings.finding import TextEdit

_DEFAULT = re.compile(r"\$?\$\{[A-Za-z_]\w*:?[-=]([^{}$]*)\}")
# Tags of Helm, Ansible or Jinja. Those of a dashboard or `docker ps --format '{{.Names}}'` do not make a file a
# template.
_TEMPLATE = re.compile(
    r"\{\{-?\s*(?:/\*|\$|\.(?:Values|Release|Chart|Capabilities|Files)\b|(?:include|template|toYaml|tpl|if|range|with)\b)"
    r"|[:-][ \t]+\{\{|\bimage:[^\n]*\{\{|\{%-?\s*(?:if|for|set)\b"
)
_OPENS = re.compile(r"\{\{|\{%")
_TAGS_ALONE = re.compile(r"[ \t]*\0[\0 \t]*(?:#.*)?\r?")
_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))


@dataclass(frozen=True)
class PlacedText:
    """A value with its position. offsets: of each character in the file, empty if they are not known; start, end: of
    the written value, including its quotes.
    """

    value: str
    offsets: Sequence[int]
    start: int
    end: int

    def part(self, first: int, last: int | None = None) -> "PlacedText":
        """Return a part of the value, without quotes."""
        value, at = self.value[first:last], self.offsets[first:last]
        return PlacedText(value, at, at[0] if at else self.start, at[-1] + 1 if at else self.end)

    def part_after(self, mark: str) -> "PlacedText":
        """Return the part after the first such mark."""
        return self.part(self.value.index(mark) + len(mark))

    @property
    def with_defaults(self) -> "PlacedText":
        """The text with `${VARIABLE:-default}` replaced by its default."""
        text = self
        while found := _DEFAULT.search(text.value):
            kept = [*range(found.start()), *range(found.start(1), found.end(1)), *range(found.end(), len(text.value))]
            at = [text.offsets[i] for i in kept] if len(text.offsets) == len(text.value) else ()
            text = PlacedText("".join(text.value[i] for i in kept), at, self.start, self.end)
        return text

    @cached_property
    def is_contiguous(self) -> bool:
        """True if it is written in one piece, so that other text can replace it."""
        return bool(self.offsets) and len(self.offsets) == len(self.value) == self.offsets[-1] - self.offsets[0] + 1


@dataclass(frozen=True)
class SourceFile:
    """A file with its encoding. Invalid bytes are preserved."""

    text: str
    encoding: str
    bom: bytes

    @classmethod
    def decode(cls, data: bytes, *, mark: bool = False) -> "SourceFile":
        """Decode by the byte order mark, else as UTF-8. mark: a UTF-8 mark becomes a character of the text, which can
        be removed.
        """
        bom, encoding = next(((bom, name) for bom, name in _BOMS if data.startswith(bom)), (b"", "utf-8"))
        if mark and encoding == "utf-8":
            bom = b""
        body = data[len(bom) :]
        try:
            text = body.decode(encoding, "surrogateescape" if encoding == "utf-8" else "strict")
        except UnicodeDecodeError:
            bom, encoding = b"", "latin-1"
            text = data.decode(encoding)
        return cls(text, encoding, bom)

    @cached_property
    def all_text(self) -> PlacedText:
        """The whole text."""
        return PlacedText(self.text, range(len(self.text)), 0, len(self.text))

    @cached_property
    def newline(self) -> str:
        """The line end of the first line."""
        end = self.text.find("\n")
        return "\r\n" if end > 0 and self.text[end - 1] == "\r" else "\n"

    @cached_property
    def _lines(self) -> list[int]:
        return [0, *(offset + 1 for offset, char in enumerate(self.text) if char == "\n")]

    def position(self, offset: int) -> tuple[int, int]:
        """Return line and column of an offset, counted from 1."""
        line = bisect_right(self._lines, offset)
        return line, offset - self._lines[line - 1] + 1

    def line_bounds(self, offset: int) -> tuple[int, int]:
        """Return the start of the line at an offset, and of the next line."""
        line = bisect_right(self._lines, offset)
        return self._lines[line - 1], self._lines[line] if line < len(self._lines) else len(self.text)

    @cached_property
    def is_template(self) -> bool:
        """True if the file has tags of a template language."""
        return _TEMPLATE.search(self.text) is not None

    @cached_property
    def without_tags(self) -> "SourceFile":
        """The text with `$` instead of each tag, so that it reads as a variable, and with blanks for lines that are
        only tags. All other characters keep their offsets.
        """
        if not _OPENS.search(self.text) or "\0" in self.text:
            return self
        lines = "".join(_mask_tags(self.text)).split("\n")
        blank = [" " * len(line) if _TAGS_ALONE.fullmatch(line) else line.replace("\0", "$") for line in lines]
        return SourceFile("\n".join(blank), self.encoding, self.bom)

    def edited(self, edits: Iterable[TextEdit]) -> bytes:
        """Return the file with these edits, which do not overlap; every other byte is unchanged."""
        parts, done = [], 0
        for edit in sorted(edits):
            parts += [self.text[done : edit.start], edit.text]
            done = edit.end
        text = "".join([*parts, self.text[done:]])
        return self.bom + text.encode(self.encoding, "surrogateescape" if self.encoding == "utf-8" else "strict")


def _mask_tags(text: str) -> Iterator[str]:
    """Yield the pieces of a template, with NUL for each character of a tag except line ends."""
    done = 0
    while opened := _OPENS.search(text, done):
        closes = text.find("}}" if opened[0] == "{{" else "%}", opened.end())
        if closes < 0:
            break
        yield text[done : opened.start()]
        yield re.sub(r"[^\n]", "\0", text[opened.start() : closes + 2])
        done = closes + 2
    yield text[done:]


def drop_overlapping(groups: Iterable[Sequence[TextEdit]]) -> list[TextEdit]:
    """Return the edits of all groups, without groups that overlap an earlier one."""
    accepted: list[TextEdit] = []
    for group in groups:
        new = [edit for edit in dict.fromkeys(group) if edit not in accepted]
        if not any(_overlap(one, other) for one in new for other in accepted):
            accepted += new
    return accepted


def _overlap(one: TextEdit, other: TextEdit) -> bool:
    if one.start == one.end or other.start == other.end:  # an insertion, which may touch another change
        return max(one.start, other.start) < min(one.end, other.end)
    return one.start < other.end and other.start < one.end
