"""Values as WSL reads them, by type."""

import ipaddress
import re
from collections.abc import Callable, Mapping
from typing import TypeAlias

from winhost.model.units import Bytes
from winhost.wslconfig.known_keys import Key

Value: TypeAlias = bool | int | str | tuple[int, ...]

_BLANK = r"[ \t\n\v\f\r]*"
_WHOLE = re.compile(rf"{_BLANK}([-+]?)(?:0[xX]([0-9a-fA-F]+)|(0[0-7]*)|([1-9][0-9]*))")  # strtol, base 0
_SIZE = re.compile(rf"{_BLANK}([-+]?)([0-9]+)(?:([BKMGT])|([KMGT])B)?")
_NOTHING = re.compile(r"0(?:B|[KMGT]B?)?")
_MAC = re.compile(r"[0-9A-Fa-f]{2}([-:])(?:[0-9A-Fa-f]{2}\1){4}[0-9A-Fa-f]{2}")
_UNITS = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_INT = 1 << 31
_ALL_64 = (1 << 64) - 1


def read(key: Key, value: str) -> Value:
    """The value as WSL reads it. Raises ValueError, which says what to write instead."""
    if key.values:
        return _one_of(key.values, value)
    return _READ[key.type](value)


def _bool(value: str) -> bool:
    if value.lower() in ("true", "1"):
        return True
    if value.lower() in ("false", "0"):
        return False
    raise ValueError("write true or false")


def _int(value: str) -> int:
    found = _WHOLE.fullmatch(value)
    if found is None:
        raise ValueError("write a whole number, without a unit")
    sign, sixteen, eight, ten = found.groups()
    number = int(sixteen, 16) if sixteen else int(eight, 8) if eight else _decimal(ten)
    number = -number if sign == "-" else number
    return max(-_INT, min(number, _INT - 1))  # where strtol stops on Windows, whose long has 32 bits


def _decimal(digits: str) -> int:
    """As many digits as decide, since Python refuses to read thousands of them."""
    return int(digits[:30])


def _size(value: str) -> Bytes:
    found = _SIZE.fullmatch(value)
    if found is None or (not found[2].strip("0") and not _NOTHING.fullmatch(value)):
        raise ValueError("write a whole number and B, KB, MB, GB or TB in capitals, without a blank: 8GB")
    number = _decimal(found[2].lstrip("0") or "0")  # strtoull: 64 bits, which a minus turns round and too much fills
    number = _ALL_64 if number > _ALL_64 else -number if found[1] == "-" else number
    return number * _UNITS[found[3] or found[4] or ""] & _ALL_64


def _mac(value: str) -> str:
    if not _MAC.fullmatch(value):
        raise ValueError("write six pairs of hexadecimal digits: 02:15:5d:01:02:03")
    return value.lower().replace("-", ":")


def _address(value: str) -> str:
    try:
        return str(ipaddress.IPv4Address(value))
    except ValueError:
        raise ValueError("write an IPv4 address") from None


def _ports(value: str) -> tuple[int, ...]:
    parts = [part for part in value.split(",") if part]
    if not all(re.fullmatch(r" *[0-9]{1,5} *", part) and 0 < int(part) < 1 << 16 for part in parts):
        raise ValueError("write ports from 1 to 65535 with commas between")
    return tuple(int(part) for part in parts)


def _one_of(values: tuple[str, ...], value: str) -> str:
    for word in values:
        if word.lower() == value.lower():
            return word
    raise ValueError(f"write one of {', '.join(values)}")


_READ: Mapping[str, Callable[[str], Value]] = {
    "bool": _bool,
    "int": _int,
    "size": _size,
    "mac": _mac,
    "address": _address,
    "ports": _ports,
    "text": str,
    "path": str,
}
