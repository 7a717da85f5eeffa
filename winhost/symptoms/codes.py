"""Finds and explains error codes in text: HRESULT, NTSTATUS, Win32 errors, bug checks of Windows, errno, signals, exit
codes and HTTP statuses. code_names.txt has their names, code_families.yaml the meaning of each family.

Also reads the addresses in messages of Start-VM.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from itertools import pairwise

from winhost.core.dataclass import dataclass
from winhost.model.catalogue_file import load_catalogue
from winhost.model.once import once

_BITS = 0xFFFFFFFF
_WIN32 = 0x8007
_NT_BIT = 0x10000000  # set in an NTSTATUS that is written as an HRESULT
_FIRST_COM_CODE = 0x4000  # numbers without a facility are codes of COM from here on, such as 0x80004005
WINDOWS = "windows"  # codes of 32 bits; the other families are sections of code_names.txt, and `exit`


@dataclass(frozen=True)
class Code:
    """A number that a program gives as an error, and its family: WINDOWS, or a section of code_families.yaml."""

    family: str
    number: int


@dataclass(frozen=True)
class UnknownCode:
    """A code that no symptom has. name: its constant, None if it is not known; family: what the code belongs to; also:
    other ways to write it; says: the meaning of the family; next: what would show the cause.
    """

    code: str
    count: int
    name: str | None
    family: str
    also: tuple[str, ...]
    says: str
    next: str


def spellings(code: int) -> tuple[str, str, str]:
    """Return the code in lower-case hexadecimal, signed decimal and unsigned decimal."""
    return f"0x{code:08x}", str(code - _BITS - 1), str(code)


# Names and families


@once
def _names_by_section() -> Mapping[str, Mapping[int, str]]:
    """Read the names of codes by section. That takes milliseconds, so that it is only done for a text with a code."""
    sections: dict[str, dict[int, str]] = {}
    names: dict[int, str] = {}
    high, prefix = 0, ""
    for line in files("winhost.symptoms").joinpath("code_names.txt").read_text("ascii").splitlines()[1:]:
        if line.startswith("["):
            section, half, *start = line[1:-1].split(" ")
            names, high = sections.setdefault(section, {}), int(half, 16) << 16
            prefix = start[0] if start else ""
        else:
            low, rest = line.split(" ")
            names[high | int(low, 16)] = rest[1:] if rest[0] == "=" else prefix + rest
    return sections


@once
def _codes_by_name() -> Mapping[str, Code]:
    """Return the first code with each name. HTTP statuses are left out, because TIMEOUT and others are in every log."""
    codes: dict[str, Code] = {}
    for section, names in _names_by_section().items():
        family = WINDOWS if section in ("hresult", "ntstatus") else section
        if section != "http":
            for number, name in names.items():
                codes.setdefault(name, Code(family, number))
    return codes


def _name_of(code: Code) -> str | None:
    if code.family == "exit":
        return _exit_name(code.number)
    if code.family != WINDOWS:
        return _names_by_section()[code.family].get(code.number)
    known = {**_names_by_section()["ntstatus"], **_names_by_section()["hresult"]}
    if found := known.get(code.number) or known.get(code.number & ~_NT_BIT):
        return found
    return _names_by_section()["win32"].get(code.number & 0xFFFF) if code.number >> 16 == _WIN32 else None


_EXIT_MEANINGS = {
    125: "the container could not be started",
    126: "the program cannot be executed",
    127: "no such program",
}


def _exit_name(number: int) -> str | None:
    ended = _names_by_section()["signal"].get(number - 128)
    return _EXIT_MEANINGS.get(number) or (f"{ended}, 128 + {number - 128}" if ended else None)


@once
def _family_rows() -> tuple[tuple[Mapping[str, str], tuple[tuple[int, int], ...]], ...]:
    rows = load_catalogue(files("winhost.symptoms").joinpath("code_families.yaml"))
    return tuple((row, tuple(map(_parse_range, row.get("numbers", ())))) for row in rows)


def _parse_range(written: str) -> tuple[int, int]:
    first, _, last = written.partition("-")
    return (int(first, 16), int(last, 16)) if last else (int(first, 16) << 16, (int(first, 16) << 16) + 0xFFFF)


def _family_of(code: Code) -> Mapping[str, str] | None:
    for row, ranges in _family_rows():
        if code.family == WINDOWS:
            if any(
                first <= number <= last for first, last in ranges for number in (code.number, _without_nt_bit(code))
            ):
                return row
        elif row.get("section") == code.family:
            return row
    return None


def _without_nt_bit(code: Code) -> int:
    """Return the number without the bit that turns an NTSTATUS into an HRESULT."""
    return code.number & ~_NT_BIT if code.number >> 28 == 0xD else code.number


def describe_code(code: Code, count: int) -> UnknownCode:
    """Describe a code by its number alone. Its message is only in Windows itself, in the language of that Windows."""
    row = _family_of(code) or {"family": f"facility {code.number >> 16 & 0xFFF}", "says": "", "next": ""}
    low = str(code.number & 0xFFFF)
    return UnknownCode(
        code=_NUMBER_FORMATS.get(code.family, "{:d}").format(code.number),
        count=count,
        name=_name_of(code),
        family=row["family"].format(low=low),
        also=spellings(code.number)[1:] if code.family == WINDOWS else (),
        says=row["says"],
        next=row["next"].replace("{low}", low),
    )


_NUMBER_FORMATS = {
    WINDOWS: "0x{:08X}",
    "win32": "Win32 error {:d}",
    "bugcheck": "bugcheck 0x{:X}",
    "errno": "errno {:d}",
    "signal": "signal {:d}",
    "http": "HTTP {:d}",
    "systemd": "exit code {:d}",
    "exit": "exit code {:d}",
}


# Codes in a text

_HEX_CODE = re.compile(r"(?<![0-9a-z])(?<![0-9a-f]-)(?<!mem )0x([89cde][0-9a-f]{7})(?![0-9a-z])(?!-0x)")
# How codes begin without 0x, and in decimal. A text is searched for these first.
_BARE_CODE_STARTS = ("800", "802", "803", "c00", "c03", "-21", "-10", "214", "215", "322")
_BARE_CODE = re.compile(r"(?:([89c][0-9a-f]{7})|(-[0-9]{9,10}|[0-9]{10}))(?![0-9a-z.])")
_BARE_CODE_PREFIX = re.compile(
    r"(?:(?:error|code|hresult|status|result|exit\w*|returned|rc)\b(?: with| of| is| was| value| code| status)*"
    r"[\s:=('\"]{1,4}|^\s*|\n\s*|\()$"
)
# A status of the kernel looks like a memory address. It is only taken for a status next to one of these terms.
_STATUS_TERMS = re.compile(r"status|exception|error|code|fail|exit|crash|hresult|fehler|stop|boot")
_ADDRESS_TERMS = re.compile(r"\bmsr\b|mtrr|e820|reserved|\bmem\b|rdmsr|wrmsr|ioapic|cpuid|\bbase\b|\baddr")
_CONTEXT = 80


def normalize_single_code(text: str) -> str:
    """Rewrite text that is nothing but one code as logs write it; return any other text unchanged."""
    found = _SINGLE_CODE.fullmatch(text)
    if found is None:
        return text
    if found["stop"]:
        return f"bugcheck 0x{int(found['stop'], 16):X}"
    number = int(found["hex"], 16) if found["hex"] else int(found["decimal"]) & _BITS
    return f"0x{number:08X}" if number >> 31 else text


_SINGLE_CODE = re.compile(
    r"\s*0x0{3,5}(?P<stop>[0-9a-f]{3,5})\s*"
    r"|\s*(?:0x)?(?P<hex>[89cde][0-9a-f]{7})l?\s*"
    r"|\s*(?P<decimal>-?[0-9]{9,10})\s*",
    re.IGNORECASE,
)


def find_codes(text: str) -> Iterator[int]:
    """Yield the 32-bit codes in a lower-case text. Addresses, which logs are full of, belong to no family."""
    for written in _HEX_CODE.finditer(text):
        if _is_code(number := int(written[1], 16), text, written):
            yield number
    for start in _BARE_CODE_STARTS:
        at = text.find(start)
        while at >= 0:
            found = _BARE_CODE.match(text, at)
            if found and _BARE_CODE_PREFIX.search(text[max(0, at - _CONTEXT) : at]):
                number = int(found[1], 16) if found[1] else int(found[2]) & _BITS
                if number >> 31 and _is_named(number):
                    yield number
            at = text.find(start, at + 1)


# What precedes a number that is the content of a register, an address or a device id.
_ADDRESS_PREFIX = re.compile(
    r"(?:\b(?:pc|lr|ra|sp|epc|eip|rip)\b(?: is)?(?: at)?|\b(?:vendor|device|chip) id|\bregister|\boffset|\baddress"
    r"|\baddr|\bbase|\b(?:bar[0-9]?|mem(?:ory)?) at)[\s:=]{1,3}$"
)


def is_address(text: str, at: int) -> bool:
    """Tell whether the number at this offset of a lower-case text is called a register or an address."""
    return bool(_ADDRESS_PREFIX.search(text[max(0, at - 24) : at]))


def _is_named(number: int) -> bool:
    return _name_of(Code(WINDOWS, number)) is not None


def _is_code(number: int, text: str, found: re.Match[str]) -> bool:
    high, rest = number >> 16, number & 0xFFFF
    if not rest or is_address(text, found.start()) or _family_of(Code(WINDOWS, number)) is None:
        return False
    if high == 0x8000 and rest >= _FIRST_COM_CODE:
        return True
    around = text[max(0, found.start() - _CONTEXT) : found.end() + _CONTEXT]
    if not _is_named(number):
        return high in _PLAIN_FACILITIES and bool(rest & 0xFFF) and not _ADDRESS_TERMS.search(around)
    if high & 0xEFFF in (0x8000, 0xC000):
        whole = around.strip() == found[0]
        return not _ADDRESS_TERMS.search(around) and (whole or bool(_STATUS_TERMS.search(around)))
    return True


# Facilities whose numbers are codes even if they have no name.
_PLAIN_FACILITIES = {
    *(0x8001, 0x8004, 0x8007, 0x8008, 0x8009, 0x800B, 0x800F, 0x8013, 0x8024, 0x8031, 0x8033),
    *(0x8035, 0x8037, 0x8038, 0x803A, 0x803B, 0x803F, 0xC004, 0xC035, 0xC037, 0xC038, 0xC03A),
}

# By a literal of a lower-case text, which is searched first, because a regular expression over a log is slow.
_NUMBER = r"[\s:=(\"']{1,8}"
_DESCRIBED_CODES: Mapping[str, Sequence[tuple[str, str]]] = {
    "system error": [("win32", r"system error[\s:=(]{1,4}([0-9]{1,5})(?![0-9.])")],
    "win32": [("win32", r"win32 ?error(?: code)?[\s:=(]{1,4}([0-9]{1,5})(?![0-9.])")],
    "winerror": [("win32", r"winerror[\s:=(]{1,4}([0-9]{1,5})(?![0-9.])")],
    "helpmsg": [("win32", r"helpmsg ([0-9]{1,5})\b")],
    "getlasterror": [("win32", r"getlasterror(?:\(\))?[\s:=(]{1,4}([0-9]{1,5})(?![0-9.])")],
    "[sc]": [("win32", r"\[sc\] [^\n]{0,60}failed[\s:=(]{1,4}([0-9]{1,5})(?![0-9.])")],
    "service-specific": [("win32", r"service-specific error(?: code)?[\s:=(]{1,4}([0-9]{1,5})(?![0-9.])")],
    "error": [
        ("windows error", r"error(?: code)?[\s:=]{1,3}([1-9][0-9]{3,4})(?![0-9.])(?=$|[\s).,:])(?! \([0-9a-z]{5}\))")
    ],
    "os error": [
        ("win32", r"os error[\s:=]{1,3}([1-9][0-9]{3,4})(?=$|[\s).,:])"),
        ("errno", r"os error ([0-9]{1,3})\)"),
    ],
    "errno": [("errno", r"errno[\s:=(]{1,3}([0-9]{1,3})\b")],
    "signal": [("signal", r"signal[\s:=(]{1,2}([0-9]{1,2})\b(?!\s*(?:dbm?\b|%|bars?\b))")],
    "code=": [
        ("signal", r"code=(?:killed|dumped), status=([0-9]{1,2})/"),
        ("exit", r"code=exited, status=([0-9]{3})(?:/n/a|[^/0-9]|$)"),
    ],
    "status=": [("systemd", r"status=(2[0-4][0-9])/[a-z]")],
    "exit": [
        ("exit", rf"exit_?code{_NUMBER}([0-9]{{3,5}})\b(?!\.)"),
        (
            "exit",
            r"exit(?:(?:ed|s|ing)\b(?: with)?(?: exit)?(?: non-?zero)?(?: code| status)?|(?: with)?(?: code| status))"
            rf"{_NUMBER}([0-9]{{3,5}})\b(?!\.)",
        ),
    ],
    "bugcheckcode": [("bugcheck decimal", r"bugcheckcode\W{1,3}([0-9]{1,4})\b")],
    "bugcheck": [("bugcheck", r"bugcheck(?: code)?(?: was)?[\s:=(]{1,3}0x0*([0-9a-f]{1,4})\b")],
    "bug check": [("bugcheck", r"bug check(?: code)?(?: was)?[\s:=(]{1,3}0x0*([0-9a-f]{1,4})\b")],
    "stop": [
        ("bugcheck", r"stop(?: ?code| error)[\s:=(]{1,3}0x0*([0-9a-f]{1,4})\b"),
        ("bugcheck", r"stop(?:: {0,2}| (?=0x[0-9a-f]{8}\b))0x0*([0-9a-f]{1,4})\b"),
    ],
    "http": [("http", r"http(?: error| status)?(?: code)?(?:/[12](?:\.[01])?)?[\s:=(]{1,3}([45][0-9]{2})\b")],
    "status": [("http", r"status ?code[\s:=(]{1,3}([45][0-9]{2})\b")],
}
_SIGNAL_PREFIX = re.compile(
    r"(?:by|caught|received|fatal|got|unexpected|on|^|\n"
    r"|(?:terminat|kill|exit|die|crash|abort|end|fail)[a-z]* with)\s?$"
)
# An error number of four digits is a Windows error if the text is about Windows; databases and others have such numbers
# as well.
_WINDOWS_TERMS = re.compile(
    r"windows|win32|\bwsl|\.(?:exe|dll|msi|ps1|sys)\b|\bservice\b|[a-z]:\\|powershell|hyper-v|\bnet\b"
)
_OTHER_PRODUCTS = re.compile(r"\bsql\b|mysql|postgres|\bvba\b|run-time")
_CODE_NAME = re.compile(
    r"(?<![A-Za-z0-9_])((?:[A-Z][A-Z0-9]{1,9}_)?E_[A-Z0-9_]{3,}|(?:ERROR|STATUS|RPC_[SX]|SEC_I|DXGI_ERROR)_[A-Z0-9_]{3,}"
    r"|WSA[A-Z]{4,}|E(?!RROR\b|NABLED\b|NGINE\b|XIT\b)[A-Z]{2,14}|SIG[A-Z]{2,6})(?![A-Za-z0-9_])"
)


def find_described_codes(text: str, small: str) -> Iterator[tuple[Code, str]]:
    """Yield codes of other families, which the words around the number describe, and codes that are written by name,
    with that name. small: the text in lower case.
    """
    for word in _DESCRIBED_CODES:
        at = small.find(word)
        while at >= 0:
            for family, expression in _patterns(word) if word == "exit" or not small[at - 1 : at].isalnum() else ():
                found = expression.match(small, at)
                if found and _matches_context(family, small, at) and (code := _to_code(family, found)):
                    yield code, ""
            at = small.find(word, at + 1)
    names = {*_CODE_NAME.findall(" ".join(set(text.split()))), *((text.strip(),) if len(text) < _CONTEXT else ())}
    for name in sorted(names):
        if code := _codes_by_name().get(name):
            yield code, name


@once
def _patterns(word: str) -> Sequence[tuple[str, re.Pattern[str]]]:
    return [(family, re.compile(pattern)) for family, pattern in _DESCRIBED_CODES[word]]


def _matches_context(family: str, small: str, at: int) -> bool:
    """Tell whether the context fits the family: a signal must have ended a process, and a bare error number must be
    next to terms of Windows.
    """
    if family == "signal" and not small.startswith("code=", at):
        return bool(_SIGNAL_PREFIX.search(small[max(0, at - 24) : at] if at else "\n"))
    if family == "windows error":
        around = small[max(0, at - 2 * _CONTEXT) : at + 2 * _CONTEXT]
        return bool(_WINDOWS_TERMS.search(around)) and not _OTHER_PRODUCTS.search(around)
    return True


def _to_code(family: str, found: re.Match[str]) -> Code | None:
    number = int(found[1], 16 if family == "bugcheck" else 10)
    family = "win32" if family == "windows error" else family.split(" ")[0]
    if family == "exit" and number > 0xFF:
        family = "win32"  # an exit code of an installer
    code = Code(family, number)
    return code if number and _name_of(code) else None


_ADDRESS = re.compile(r"0x([0-9a-f]{9,16})(?![0-9a-zA-Z])", re.IGNORECASE)


def address_bits(message: str) -> int | None:
    """Return the host's physical address bits if the message names the end of a region and the lower power of two that
    it exceeds; else None.
    """
    numbers = [int(found, 16) for found in _ADDRESS.findall(message)]
    for end, limit in pairwise(numbers):
        if limit <= end and limit & (limit - 1) == 0:
            return limit.bit_length() - 1
    return None
