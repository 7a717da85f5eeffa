"""Bytes that somebody pasted or saved, as text: whatever the encoding, without colours, in pieces of whole lines."""

import codecs
import re
from collections.abc import Iterator
from typing import BinaryIO

PIECE = 1 << 20  # bytes read at once, and about the memory that a log of any size takes
_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_COLOUR = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")


def pieces(stream: BinaryIO) -> Iterator[str]:
    """The text of a stream. A piece ends where a line does, unless that line is longer than a piece.

    What is in no encoding of Unicode keeps its ASCII, which is all that codes need.
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
        yield plain(text[:whole])
    if rest := open_line + decode(b"", True):
        yield plain(rest)


def _encoding(start: bytes) -> tuple[bytes, str]:
    """wsl.exe writes UTF-16 without saying so: half of its bytes are zero."""
    for bom, encoding in _BOMS:
        if start.startswith(bom):
            return bom, encoding
    sample = start[:4096]
    even, odd = sample[::2].count(0), sample[1::2].count(0)
    if max(even, odd) * 5 > len(sample):
        return b"", "utf-16-be" if even > odd else "utf-16-le"
    return b"", "utf-8"


def plain(text: str) -> str:
    """Without colours, and with one sign for the end of a line.

    Zeros are what is left of UTF-16 that was appended to a file of another encoding.
    """
    if "\x1b" in text:
        text = _COLOUR.sub("", text)
    return text.replace("\0", "").replace("\r\n", "\n").replace("\r", "\n")
