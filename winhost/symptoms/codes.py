"""HRESULT and NTSTATUS, as people write them and what they say of themselves, and addresses that Start-VM names."""

import re
from collections.abc import Iterator
from itertools import pairwise

_BITS = 0xFFFFFFFF
WIN32 = 7
# winerror.h and ntstatus.h; those of virtualization are the same in both.
FACILITIES = {
    1: "RPC",
    4: "of the component that reports it",
    WIN32: "Win32",
    8: "Windows",
    9: "security",
    19: ".NET",
    0x35: "the hypervisor",
    0x37: "virtual machines (Host Compute Service)",
    0x38: "volumes",
    0x3A: "virtual disks",
    0x3B: "the Host Network Service",
}
_OWN = 0x4000  # from here on numbers without a facility are codes of COM; 0x80004005
_WRITTEN = re.compile(r"(?<![0-9a-z])0x([89c][0-9a-f]{7})(?![0-9a-z])")
_ALONE = re.compile(r"\s*(?:0x)?(?P<hex>[89c][0-9a-f]{7})l?\s*|\s*(?P<decimal>-?[0-9]{9,10})\s*", re.IGNORECASE)


def spellings(code: int) -> tuple[str, str, str]:
    """Hexadecimal, signed and unsigned, in small letters."""
    return f"0x{code:08x}", str(code - _BITS - 1), str(code)


def alone(text: str) -> str:
    """Text that is nothing but one code, in the way that logs write it; any other text as it is."""
    found = _ALONE.fullmatch(text)
    if found is None:
        return text
    number = int(found["hex"], 16) if found["hex"] else int(found["decimal"]) & _BITS
    return f"0x{number:08X}" if number >> 31 else text


def written_in(text: str) -> Iterator[int]:
    """Codes of failures in a text in small letters. Logs are full of addresses, which are of no facility."""
    return filter(_is_code, (int(found[1], 16) for found in _WRITTEN.finditer(text)))


def _is_code(number: int) -> bool:
    facility, rest = number >> 16 & 0xFFF, number & 0xFFFF
    return bool(rest) and (facility in FACILITIES or (not facility and rest >= _OWN))


def told(code: int) -> str:
    """What the number alone says. Only Windows has the sentence, in its own language."""
    facility, number = code >> 16 & 0xFFF, code & 0xFFFF
    kind = "NTSTATUS or HRESULT" if code >> 30 == 3 else "HRESULT"
    if facility == WIN32:
        return f"{kind} of Win32 error {number}; on Windows, net helpmsg {number} says what it is"
    return f"{kind} of {FACILITIES.get(facility, f'facility {facility}')}, number {number}"


_NUMBERS = re.compile(r"0x([0-9a-f]{9,16})(?![0-9a-zA-Z])", re.IGNORECASE)


def address_bits(message: str) -> int | None:
    """The host's physical address bits, where the message names the end of a region and a lower power of two, below
    which it has to be; else None.
    """
    numbers = [int(found, 16) for found in _NUMBERS.findall(message)]
    for end, limit in pairwise(numbers):
        if limit <= end and limit & (limit - 1) == 0:
            return limit.bit_length() - 1
    return None
