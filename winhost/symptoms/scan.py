"""Decodes text that was pasted or saved, in pieces of whole lines, and searches it for symptoms, marks and codes."""

import codecs
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import field
from functools import cached_property, partial
from math import inf
from typing import BinaryIO

from winhost.core.dataclass import dataclass
from winhost.findings.condition import evaluate
from winhost.model.once import once
from winhost.model.reason import Severity
from winhost.symptoms.codes import WINDOWS, Code, find_codes, find_described_codes, is_address, spellings
from winhost.symptoms.table import Mark, Sign, Symptom, marks, symptoms

PIECE = 1 << 20  # bytes that are read at once, which bounds the memory that a log of any size takes
_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_COLOUR = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")


def pieces(stream: BinaryIO) -> Iterator[str]:
    """Yield the text of a stream in pieces. A piece ends with a line, unless the line is longer than a piece.

    Of text in another encoding than Unicode only ASCII is kept, which is all that codes need.
    """
    first = stream.read(PIECE)
    bom, encoding = _encoding(first)
    decode = codecs.getincrementaldecoder(encoding)(errors="replace").decode
    open_line, data = "", first[len(bom) :]
    while data:
        text = open_line + decode(data)
        data = stream.read(PIECE)
        whole = text.rfind("\n") + 1 if data else len(text)
        whole = whole or len(text)
        open_line = text[whole:]
        yield strip_control_codes(text[:whole])
    if rest := open_line + decode(b"", True):
        yield strip_control_codes(rest)


def _encoding(start: bytes) -> tuple[bytes, str]:
    """Return the byte order mark and the encoding. wsl.exe writes UTF-16 without a mark, which the zero bytes show."""
    for bom, encoding in _BOMS:
        if start.startswith(bom):
            return bom, encoding
    sample = start[:4096]
    even, odd = sample[::2].count(0), sample[1::2].count(0)
    if max(even, odd) * 5 > len(sample):
        return b"", "utf-16-be" if even > odd else "utf-16-le"
    return b"", "utf-8"


def strip_control_codes(text: str) -> str:
    """Remove colours and zero bytes, and unify line ends.

    There are zero bytes where UTF-16 was appended to a file of another encoding.
    """
    if "\x1b" in text:
        text = _COLOUR.sub("", text)
    return text.replace("\0", "").replace("\r\n", "\n").replace("\r", "\n")


_TOKEN = re.compile(r"[a-z0-9_]+")  # characters that may not precede or follow a literal
NEAR_CHARACTERS = 1500  # characters before and after an offset that count as `near`
MAX_LINE = 2000  # characters of a line on each side of a literal that are searched
MAX_PENDING = 8 * NEAR_CHARACTERS  # characters of a line without an end
SECRET_NAME_WORDS = 3  # words that may name a secret and contain it: Authorization: Bearer …
MAX_LINES = 1000  # line numbers that are stored for each symptom
MAX_CODES = 20  # codes without a symptom


@dataclass
class Hit:
    """A symptom in a text. line: the number of its first line, from 1; text: that line; literal: the longest match in
    it; literals: all matches in the text.
    """

    symptom: Symptom
    line: int
    text: str
    literal: str = ""
    count: int = 0
    lines: set[int] = field(default_factory=set)
    literals: set[str] = field(default_factory=set)

    def add(self, line: int) -> None:
        """Count a further line; a line that matches several signs counts once."""
        if line in self.lines:
            return
        self.count += 1
        if len(self.lines) < MAX_LINES:
            self.lines.add(line)


@dataclass
class Scan:
    """The result of a search. marks: the line that shows each mark; codes: codes of Windows without a symptom, in
    order; described: codes of other families, and codes by name; named: symptoms whose code the text has by name, which
    are only used if there is no other hit; lines: the number of lines.
    """

    hits: dict[str, Hit] = field(default_factory=dict)
    marks: dict[str, str] = field(default_factory=dict)
    codes: dict[Code, int] = field(default_factory=dict)
    described: dict[Code, int] = field(default_factory=dict)
    named: dict[str, Hit] = field(default_factory=dict)
    lines: int = 0


def rank_hits(found: Iterable[Hit]) -> list[Hit]:
    """Sort hits: causes first, by line, then consequences and harmless symptoms; in one line the longest match first.

    A consequence is left out if its lines all have a cause. A general symptom, which recognizes a line by its program
    alone, is left out if another symptom matches the line, or if there is a cause.
    """
    hits = [*found]
    causes = [hit for hit in hits if hit.symptom.severity is Severity.UNSUPPORTED]
    explained = {line for hit in causes for line in hit.lines}
    specific = {line for hit in hits if not hit.symptom.general for line in hit.lines}
    general = (hit for hit in hits if hit.symptom.general and not causes and not hit.lines <= specific)
    consequences = (
        hit for hit in hits if hit.symptom.severity is not Severity.UNSUPPORTED and not hit.lines <= explained
    )
    others = (hit for hit in (*causes, *consequences) if not hit.symptom.general)
    return sorted([*general, *others], key=_order)


def _order(hit: Hit) -> tuple[int, bool, int, int, str]:
    symptom = hit.symptom
    return -symptom.severity.rank, symptom.general, hit.line, -len(hit.literal), symptom.id


@dataclass(frozen=True)
class _Literal:
    """A literal of signs. words: the words in it, all of which a text with the literal has."""

    text: str
    words: Set[str]
    signs: Sequence[tuple[Symptom | Mark, Sign]]


@once
def _literals() -> Mapping[str, Sequence[_Literal]]:
    """Return the literals of all signs, by the longest word of each."""
    signs: dict[str, list[tuple[Symptom | Mark, Sign]]] = {}
    every: list[Symptom | Mark] = [*symptoms().values(), *marks().values()]
    for known in every:
        for sign in known.signs:
            for literal in spellings(sign.code) if sign.code is not None else (sign.text.lower(),):
                signs.setdefault(literal, []).append((known, sign))
    found: dict[str, list[_Literal]] = {}
    for text, of in signs.items():
        words = frozenset(_TOKEN.findall(text))
        found.setdefault(max(sorted(words), key=len), []).append(_Literal(text, words, of))
    return found


@once
def _longest_literal() -> int:
    return max(len(literal.text) for literals in _literals().values() for literal in literals)


@once
def _symptoms_by_code() -> Mapping[int, Symptom]:
    every = symptoms().values()
    return {sign.code: symptom for symptom in every for sign in symptom.signs if sign.code is not None}


def scan(pieces: Iterable[str]) -> Scan:
    """Search a text that is read in pieces."""
    found = Scan()
    before, waiting, ended = "", "", 0  # searched text, unsearched text, and the number of lines before `before`
    for piece in pieces:
        text = before + waiting + piece
        until = max(len(before), text.rfind("\n", 0, max(0, len(text) - NEAR_CHARACTERS)) + 1, len(text) - MAX_PENDING)
        _search(found, text, len(before), until, ended)
        keep = text.rfind("\n", 0, max(0, until - NEAR_CHARACTERS)) + 1
        keep = max(keep, until - 2 * NEAR_CHARACTERS, 0)  # a line without an end is cut off
        ended += text.count("\n", 0, keep)
        before, waiting = text[keep:until], text[until:]
    text = before + waiting
    _search(found, text, len(before), len(text), ended)
    found.lines = ended + text.count("\n") + (not text.endswith("\n") and bool(text))
    found.hits = found.hits or found.named
    return found


def _search(found: Scan, text: str, start: int, end: int, ended: int) -> None:
    """Search between two offsets of a text. Text around them is only used for conditions with `near`."""
    small, ends = _normalize(text), _LineEnds(text, ended)
    for at, literal, signs in _find_literals(small, start, end):
        for known, sign in signs:
            if isinstance(known, Mark):
                if known.id not in found.marks and _sign_holds(sign, small, at):
                    found.marks[known.id] = _line_around(text, at).strip()
            elif _sign_holds(sign, small, at):
                _add_hit(found.hits, known, ends.line(at), _line_around(text, at).strip(), literal)
    _count(
        found.codes, (Code(WINDOWS, code) for code in find_codes(small[start:end]) if code not in _symptoms_by_code())
    )
    for code, name in find_described_codes(text[start:end], small[start:end]):
        if name and code.family == WINDOWS and (symptom := _symptoms_by_code().get(code.number)):
            at = text.find(name, start)
            _add_hit(found.named, symptom, ends.line(at), _line_around(text, at).strip(), name.lower())
        else:
            _count(found.described, [code])


def _count(counts: dict[Code, int], codes: Iterable[Code]) -> None:
    for code in codes:
        if code in counts or len(counts) < MAX_CODES:
            counts[code] = counts.get(code, 0) + 1


def _find_literals(
    small: str, start: int, end: int
) -> Iterator[tuple[int, str, Sequence[tuple[Symptom | Mark, Sign]]]]:
    """Yield the offset, literal and signs of each literal between two offsets.

    Each distinct word is looked up once, because logs repeat their words.
    """
    words = set(_TOKEN.findall(" ".join(set(small[start : end + _longest_literal()].split()))))
    for word in words & _literals().keys():
        for literal in _literals()[word]:
            for at in _find_offsets(small, literal.text, start, end) if literal.words <= words else ():
                yield at, literal.text, literal.signs


def _find_offsets(small: str, literal: str, start: int, end: int) -> Iterator[int]:
    """Yield the offsets between start and end at which a literal begins as a whole word."""
    at = small.find(literal, start)
    while 0 <= at < end:
        if _is_whole_word(small, at, at + len(literal)):
            yield at
        at = small.find(literal, at + len(literal))


# Quotes and dashes as web pages and chat programs write them
_PLAIN = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2013": "-", "\u00a0": " "})


def _normalize(text: str) -> str:
    """Return a text in lower case with plain quotes. Offsets stay the same: letters whose lower case is longer are
    kept.
    """
    if not text.isascii():
        text = text.translate(_PLAIN)
    small = text.lower()
    return small if len(small) == len(text) else "".join(c.lower() if len(c.lower()) == 1 else c for c in text)


def _is_whole_word(small: str, start: int, end: int) -> bool:
    """Tell whether no letter or digit continues the text between two offsets at an end that is itself a letter or
    digit.
    """
    begins = start > 0 and _is_word_character(small[start - 1]) and _is_word_character(small[start])
    return not begins and not (
        end < len(small) and _is_word_character(small[end]) and _is_word_character(small[end - 1])
    )


def _is_word_character(letter: str) -> bool:
    return letter.isascii() and (letter.isalnum() or letter == "_")


def _sign_holds(sign: Sign, small: str, at: int) -> bool:
    if sign.code is not None and is_address(small, at):
        return False
    return not sign.when or evaluate(sign.when, partial(_answer, sign, small, at)).holds is True


def _answer(sign: Sign, small: str, at: int, question: str) -> tuple[str | float, ...]:
    """Answer a question about the line at an offset, the text near it, or two sizes in that line."""
    if question == "near":
        return (small[max(0, at - NEAR_CHARACTERS) : at + NEAR_CHARACTERS],)
    line = _line_around(small, at)
    if question == "line":
        return (line,)
    one, how, other = re.split("([-/])", question)
    found = re.search(sign.when["line"]["like"], line)
    if found is None:
        return ()
    first, second = _parse_size(found[one]), _parse_size(found[other])
    return (abs(first - second) if how == "-" else first / second if second else inf,)


_SIZE = re.compile(r"([0-9]*\.?[0-9]*)[0-9.]* ?([kmgt]?)")
_UNITS: Mapping[str, int] = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def _parse_size(written: str) -> float:
    """Parse a size such as `44.00 mib`, `1.5gb` or `600` into bytes."""
    number, unit = _SIZE.findall(written)[0]
    return float(f"0{number}") * _UNITS[unit]


def _line_around(text: str, at: int) -> str:
    """Return the line around an offset, cut if it is too long. The first words after a cut are dropped, because one may
    be a secret whose name was cut off.
    """
    start = text.rfind("\n", 0, at) + 1
    if start < at - MAX_LINE:
        start = at - MAX_LINE
        for _ in range(SECRET_NAME_WORDS):
            start = text.find(" ", start, at) + 1 or at
    end = text.find("\n", at, at + MAX_LINE)
    return text[start : end if end >= 0 else at + MAX_LINE]


class _LineEnds:
    """Line numbers in a text, counted when they are needed. ended: the number of lines before the text."""

    def __init__(self, text: str, ended: int) -> None:
        self._text, self._ended = text, ended

    @cached_property
    def _ends(self) -> list[int]:
        return [found.start() for found in re.finditer("\n", self._text)]

    def line(self, at: int) -> int:
        return self._ended + bisect_left(self._ends, at) + 1


def _add_hit(hits: dict[str, Hit], symptom: Symptom, line: int, text: str, literal: str) -> None:
    known = hits.get(symptom.id)
    if known is None:
        known = hits[symptom.id] = Hit(symptom, line, text, literal)
    elif (line, -len(literal), literal) < (known.line, -len(known.literal), known.literal):
        known.line, known.text, known.literal = line, text, literal
    known.literals.add(literal)
    known.add(line)
