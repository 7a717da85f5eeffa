"""Observations from one file about a machine: its text, values with their worth, and why a value is missing."""

import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import field
from enum import IntEnum
from typing import NoReturn, TypeAlias
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from winhost.core.answers import Json
from winhost.core.dataclass import dataclass
from winhost.model.errors import UsageError, visible
from winhost.model.units import MiB

READABLE = "What can be read: winhost facts import --help"


def unreadable_file_error(file: str, why: str, hint: str | None = None) -> UsageError:
    """Make the error for a file that is broken, or of an unknown kind. why: continues a sentence after its name."""
    return UsageError("NotReadable", what=f"{visible(file)} {visible(why)}", hint=hint)


def contradiction_error(fact: str, first: tuple[str, str], second: tuple[str, str]) -> UsageError:
    """Make the error for two files with different values for a fact, neither of which is more reliable."""
    values = ", ".join(f"{visible(value)} ({visible(file)})" for file, value in (first, second))
    return UsageError(
        "Contradiction",
        what=f"two files differ in {visible(fact)}: {values}",
        meaning="They are from different machines, or the machine changed in between.",
        hint="Import files of one machine and one time, or leave one of these out.",
    )


class Worth(IntEnum):
    """The reliability of a value. Of two different values the more reliable one counts; of equal worth, none does.

    ROUNDED: to a few digits; ROUGH: less precise, or in words of the tool; DRIVER: in words of the GPU's driver; EXACT:
    as Windows or the device itself reports it.
    """

    ROUNDED = -1
    ROUGH = 0
    DRIVER = 1
    EXACT = 2


@dataclass(frozen=True)
class Observation:
    """A value in the JSON form of facts, with its worth."""

    value: Json
    worth: Worth = Worth.EXACT


@dataclass(frozen=True)
class Unreported:
    """A value that this kind of file does not contain. why: the reason."""

    why: str


Value: TypeAlias = Observation | Unreported
State: TypeAlias = Mapping[str, Value]


def observed(value: Json, otherwise: Unreported, worth: Worth = Worth.EXACT) -> Value:
    """Return the observation of a value; `otherwise` for None and an empty text."""
    return otherwise if value is None or value == "" else Observation(value, worth)


@dataclass(frozen=True)
class PciAddress:
    """The position of a function on the bus. Firmware and systems number buses, so it is no location path."""

    domain: int
    bus: int
    device: int
    function: int

    @property
    def location(self) -> str:
        """A stand-in for a location path: it groups a GPU's functions alike, and cannot be taken for a real one."""
        return f"PCIBUS({self.domain:04X}:{self.bus:02X})#PCI({self.device:02X}{self.function:02X})"

    def __str__(self) -> str:
        return f"{self.domain:04x}:{self.bus:02x}:{self.device:02x}.{self.function:x}"


@dataclass(frozen=True)
class SeenFunction:
    """A PCI function of a GPU. ids: `VEN_10DE&DEV_2684&SUBSYS_889619DA`, empty where the file has none."""

    ids: str
    state: State
    location: str | None = None
    address: PciAddress | None = None

    @property
    def name(self) -> str:
        value = self.state.get("name")
        return str(value.value) if isinstance(value, Observation) else ""

    @property
    def position(self) -> str | None:
        """The location path, else its substitute."""
        return self.location or (self.address.location if self.address else None)


@dataclass(frozen=True)
class FileObservations:
    """All observations of one file.

    host: the machine's name; resources: states by resource and the value of its key, empty for resources without one;
    functions: the GPUs that it lists, None where it is not about GPUs; every_function: it lists all GPUs of the
    machine with the other functions in their slots, every_gpu: all GPUs; advice: a file that has more facts than this
    one.
    """

    host: str | None = None
    resources: Mapping[str, Mapping[str, State]] = field(default_factory=dict)
    functions: tuple[SeenFunction, ...] | None = None
    every_function: bool = False
    every_gpu: bool = False
    advice: str | None = None


class Misread(Exception):
    """The file is of this kind, but cannot be read. The text continues a sentence after the file's name."""


MAX_FILE_SIZE = 16 * MiB
MAX_DEPTH = 64
MAX_ELEMENTS = 200_000
"""nvidia-smi writes about 400 for each GPU, dxdiag some thousand."""


def decode(data: bytes) -> str:
    """Decode text as Windows PowerShell 5.1 (UTF-16), Notepad (a byte order mark) and Linux write it. Raises Misread.

    Other text is decoded as Latin-1, in which every byte is valid: old consoles write the code page of the country, and
    all search patterns are ASCII.
    """
    marked = data[:2] in (b"\xff\xfe", b"\xfe\xff")
    if marked or (data[1:2] == b"\0" and data[:1] != b"\0"):  # wsl.exe writes it unmarked into a file
        try:
            return data.decode("utf-16" if marked else "utf-16-le")
        except UnicodeDecodeError as error:
            raise Misread(f"is not UTF-16 text (byte {error.start + 1})") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    if "\0" in text:
        raise Misread("is not text")
    return text


_QUOTED = re.compile(r"^[ \t]*(?:> ?)+", re.MULTILINE)
_COMMENTED = re.compile(r"^[ \t]*# ?", re.MULTILINE)


def unquote(text: str) -> str:
    """Restore the text of the tool: remove the `>` of a quotation, the `#` of a comment, and a common indentation."""
    text = text.replace("\r\n", "\n")
    lines = sum(1 for line in text.splitlines() if line.strip())
    for mark in (_QUOTED, _COMMENTED):
        if 2 * len(mark.findall(text)) > lines:
            text = mark.sub("", text)
    first = next((line for line in text.splitlines() if line.strip()), "")
    return textwrap.dedent(text) if first[:1] in (" ", "\t") else text


def sections(heads: re.Pattern[str], text: str) -> Iterator[tuple[re.Match[str], str]]:
    """Yield each match of a head in a text, with the text between it and the next one."""
    found = [*heads.finditer(text)]
    for head, after in zip(found, [*found[1:], None], strict=False):
        yield head, text[head.end() : after.start() if after else len(text)]


_ITEM = re.compile(r"^([A-Z]\w{1,80}) {1,60}: ?(.*)$")


def format_list(text: str, glue: str) -> list[tuple[str, str]]:
    """Names and values as PowerShell's Format-List writes them. A value that is too long for the console goes on in
    indented lines, which are joined by the glue.
    """
    items: list[tuple[str, str]] = []
    inside = False
    for line in text.splitlines():
        if found := _ITEM.match(line):
            items.append((found[1], found[2].strip()))
            inside = True
        elif inside := inside and line.startswith("    "):
            name, value = items[-1]
            items[-1] = name, value + glue + line.strip()
    return items


def json_value(text: str) -> Json:
    """Read the observations in a text. Raises Misread."""
    if sum(map(text.count, "[{,")) > MAX_ELEMENTS:
        raise Misread(f"holds more than {MAX_ELEMENTS:,} values, which none of these tools writes")
    try:
        found: Json = json.loads(text)
    except (ValueError, RecursionError) as error:
        fault = str(error) if isinstance(error, json.JSONDecodeError) else "nested too deeply, or a number too long"
        raise Misread(f"is not whole JSON: {fault}") from None
    return found


def document(text: str, root: str) -> str:
    """Return the XML document with this root, without the text around it in a paste."""
    begin = min((at for at in map(text.find, ("<?xml", "<!DOCTYPE", f"<{root}")) if at >= 0), default=0)
    end = text.rfind(f"</{root}>")
    return text[begin : end + len(f"</{root}>")] if end > begin else text[begin:]


def tree(text: str) -> Element:
    """Parse an XML document, and return its root. Raises Misread.

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
        if depth > MAX_DEPTH:
            raise Misread(f"is nested deeper than {MAX_DEPTH} elements")
        if count > MAX_ELEMENTS:
            raise Misread(f"has more than {MAX_ELEMENTS:,} elements, which none of these tools writes")
        builder.start(tag, attributes)

    def end(tag: str) -> None:
        nonlocal depth
        depth -= 1
        builder.end(tag)

    def refuse_declarations(name: str, system: str | None, public: str | None, declares: bool) -> None:
        if declares:
            raise Misread("declares a document type of its own (DOCTYPE […]), which is not read")

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = builder.data
    parser.StartDoctypeDeclHandler = refuse_declarations
    parser.SkippedEntityHandler = _skipped
    parser.ExternalEntityRefHandler = _skipped
    try:
        parser.Parse(text, True)
        return builder.close()
    except (expat.ExpatError, ValueError) as error:  # ValueError: text that is no Unicode, as half a surrogate pair
        fault = str(error)
    raise Misread(f"is not whole XML: {fault}")


def _skipped(*entity: object) -> NoReturn:
    raise Misread(f"refers to the entity '{entity[0]}', which is not read")


def text_at(element: Element | None, path: str) -> str | None:
    """Return the text at a path, without blanks around it; None for a missing one and for `N/A`."""
    found = element.findtext(path) if element is not None else None
    text = (found or "").strip()
    return None if text in ("", "N/A", "n/a", "[N/A]") else text
