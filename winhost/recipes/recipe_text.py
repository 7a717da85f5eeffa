"""A recipe as text, and where each character of a value that was read from it stands, to mend it there."""

import codecs
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from winhost.core.dataclass import dataclass
from winhost.findings.finding import TextEdit

_DEFAULT = re.compile(r"\$?\$\{[A-Za-z_]\w*:?[-=]([^{}$]*)\}")
# Tags of Helm, Ansible or Jinja; those of a dashboard or `docker ps --format '{{.Names}}'` make no template of a file.
_TEMPLATE = re.compile(
    r"\{\{-?\s*(?:/\*|\$|\.(?:Values|Release|Chart|Capabilities|Files)\b|(?:include|template|toYaml|tpl|if|range|with)\b)"
    r"|[:-][ \t]+\{\{|\bimage:[^\n]*\{\{|\{%-?\s*(?:if|for|set)\b"
)
_OPENS = re.compile(r"\{\{|\{%")
_TAGS_ALONE = re.compile(r"[ \t]*\0[\0 \t]*(?:#.*)?\r?")
_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))


@dataclass(frozen=True)
class PlacedText:
    """A value as its reader sees it. at: the offset of each character in the file, or nothing where that is not known;
    start, end: where it is written, with its quotes.
    """

    value: str
    offsets: Sequence[int]
    start: int
    end: int

    def part(self, first: int, last: int | None = None) -> "PlacedText":
        """A piece of the value, without quotes."""
        value, at = self.value[first:last], self.offsets[first:last]
        return PlacedText(value, at, at[0] if at else self.start, at[-1] + 1 if at else self.end)

    def part_after(self, mark: str) -> "PlacedText":
        """Return the part behind the first such mark."""
        return self.part(self.value.index(mark) + len(mark))

    @property
    def with_defaults(self) -> "PlacedText":
        """`${VARIABLE:-default}` as its default."""
        text = self
        while found := _DEFAULT.search(text.value):
            kept = [*range(found.start()), *range(found.start(1), found.end(1)), *range(found.end(), len(text.value))]
            at = [text.offsets[i] for i in kept] if len(text.offsets) == len(text.value) else ()
            text = PlacedText("".join(text.value[i] for i in kept), at, self.start, self.end)
        return text

    @cached_property
    def is_contiguous(self) -> bool:
        """True where it is written in one piece, so that other text can replace it."""
        return bool(self.offsets) and len(self.offsets) == len(self.value) == self.offsets[-1] - self.offsets[0] + 1


@dataclass(frozen=True)
class SourceFile:
    """A file with its encoding. Bytes that are none of it stay as they are."""

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
        """All of it."""
        return PlacedText(self.text, range(len(self.text)), 0, len(self.text))

    @cached_property
    def newline(self) -> str:
        """The sign for the end of a line that the file begins with."""
        end = self.text.find("\n")
        return "\r\n" if end > 0 and self.text[end - 1] == "\r" else "\n"

    @cached_property
    def _lines(self) -> list[int]:
        return [0, *(offset + 1 for offset, char in enumerate(self.text) if char == "\n")]

    def position(self, offset: int) -> tuple[int, int]:
        """Line and column, counted from 1."""
        line = bisect_right(self._lines, offset)
        return line, offset - self._lines[line - 1] + 1

    def line_bounds(self, offset: int) -> tuple[int, int]:
        """Return the start of the line of this position, and of the next line."""
        line = bisect_right(self._lines, offset)
        return self._lines[line - 1], self._lines[line] if line < len(self._lines) else len(self.text)

    @cached_property
    def is_template(self) -> bool:
        """A program fills its tags before anybody reads it."""
        return _TEMPLATE.search(self.text) is not None

    @cached_property
    def without_tags(self) -> "SourceFile":
        """The text with `$` instead of each tag, which stands for whatever a variable has, and without the lines that
        are tags alone. Every other character stays where it is.
        """
        if not _OPENS.search(self.text) or "\0" in self.text:
            return self
        lines = "".join(_mask_tags(self.text)).split("\n")
        blank = [" " * len(line) if _TAGS_ALONE.fullmatch(line) else line.replace("\0", "$") for line in lines]
        return SourceFile("\n".join(blank), self.encoding, self.bom)

    def edited(self, edits: Iterable[TextEdit]) -> bytes:
        """The file with these changes, which do not overlap, and every other byte as it was."""
        parts, done = [], 0
        for edit in sorted(edits):
            parts += [self.text[done : edit.start], edit.text]
            done = edit.end
        text = "".join([*parts, self.text[done:]])
        return self.bom + text.encode(self.encoding, "surrogateescape" if self.encoding == "utf-8" else "strict")


def _mask_tags(text: str) -> Iterator[str]:
    """The pieces of a template, with NUL for each character of a tag but the ends of lines."""
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
    """The edits of groups that belong together, without those groups that meet an earlier one."""
    taken: list[TextEdit] = []
    for group in groups:
        new = [edit for edit in dict.fromkeys(group) if edit not in taken]
        if not any(_overlap(one, other) for one in new for other in taken):
            taken += new
    return taken


def _overlap(one: TextEdit, other: TextEdit) -> bool:
    if one.start == one.end or other.start == other.end:  # an insertion, which may touch another change
        return max(one.start, other.start) < min(one.end, other.end)
    return one.start < other.end and other.start < one.end
