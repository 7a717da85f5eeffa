"""From the bytes of a file to text, and to an XML tree that nothing outside of it can reach into."""

from typing import NoReturn
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from winhost.imports.observation import Misread
from winhost.model.units import MiB

LARGEST = 16 * MiB
DEEPEST = 64
MOST_ELEMENTS = 200_000
"""nvidia-smi writes about 400 for each GPU, dxdiag some thousand."""


def decoded(data: bytes) -> str:
    """Text as Windows PowerShell 5.1 (UTF-16), Notepad (a byte order mark) and Linux write it. Raises Misread.

    What is neither is read as Latin-1, which every byte is in: old consoles redirect in the code page of the country,
    and what is looked for is ASCII.
    """
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return _decoded(data, "utf-16")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    if "\0" in text:
        raise Misread("is not text")
    return text


def _decoded(data: bytes, coding: str) -> str:
    try:
        return data.decode(coding)
    except UnicodeDecodeError as error:
        start = error.start
    raise Misread(f"is not {coding.upper()} text (byte {start + 1})")


def tree(text: str) -> Element:
    """The root of an XML document. Raises Misread.

    A document type may be named, as nvidia-smi does, and is not fetched. One that declares anything is refused:
    entities are how a small file becomes a large one, or another file.
    """
    builder = TreeBuilder()
    parser = expat.ParserCreate()
    depth = count = 0

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal depth, count
        depth += 1
        count += 1 + len(attributes)
        if depth > DEEPEST:
            raise Misread(f"is nested deeper than {DEEPEST} elements")
        if count > MOST_ELEMENTS:
            raise Misread(f"has more than {MOST_ELEMENTS:,} elements, which none of these tools writes")
        builder.start(tag, attributes)

    def end(tag: str) -> None:
        nonlocal depth
        depth -= 1
        builder.end(tag)

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = builder.data
    parser.StartDoctypeDeclHandler = _doctype
    parser.SkippedEntityHandler = _skipped
    parser.ExternalEntityRefHandler = _skipped
    try:
        parser.Parse(text, True)
        return builder.close()
    except (expat.ExpatError, ValueError) as error:  # ValueError: text that is no Unicode, as half a surrogate pair
        fault = str(error)
    raise Misread(f"is not whole XML: {fault}")


def _doctype(name: str, system: str | None, public: str | None, declares: bool) -> None:
    if declares:
        raise Misread("declares a document type of its own (DOCTYPE […]), which is not read")


def _skipped(*entity: object) -> NoReturn:
    raise Misread(f"refers to the entity '{entity[0]}', which is not read")


def text_at(element: Element | None, path: str) -> str | None:
    """The text at a path, without the blanks around it; None where there is none, or `N/A`."""
    found = element.findtext(path) if element is not None else None
    text = (found or "").strip()
    return None if text in ("", "N/A", "n/a", "[N/A]") else text
