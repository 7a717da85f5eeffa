"""Documents as somebody might have edited them, and bytes as a disk might have spoiled them."""

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from random import Random
from typing import Any

HOSTILE = "\x1b]0;\x9bA\u202eB\r\nwinhost: C\u2028D\x07"

JUNK: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 1.5, -0.0, 1e308, 1 << 31, 1 << 63, 1 << 64, -(1 << 70)),
    *("", " ", "x", HOSTILE, "\x00", "'; rm -rf /; $(id) `id` ${x}", "../../../etc/passwd", "C:\\", "con", "é" * 300),
    *("9.9.9", "v1", "1.2.3.4.5.6", "256.1.1.1", "::1", "fe80::1%eth0", "10.0.0.0/33", "2026-99-99", "0x10", "1e5"),
    *("true", "null", "unknown", "off", "running", "vm-stop", "dda", "${vm.id}", "${each.name}", "{{ 7 * 7 }}", "%s"),
    *("PCIROOT(0)#PCI(0100)", "8d1f3c52-6a2e-4b7d-9c41-0e5f7a6b2d10", "@lab", "env:X", "insecure-skip-verification"),
    *([], {}, [None], [[]], {"": ""}, {"unknown": {}}, {"unknown": {"category": "x"}}, {"unavailable": "HyperVRole"}),
    *({"unavailable": HOSTILE}, {"a": {"b": {"c": []}}}, ["x"] * 40, [1, "a", None], "x" * 5000),
)


def edited(document: Any, random: Random) -> Any:
    """The document with one to three changes anywhere in it."""
    made = deepcopy(document)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        places = list(_places(made))
        if places:
            holder, name = random.choice(places)
            random.choice(_CHANGES)(holder, name, random, places)
    return made


def spoiled(text: str, random: Random) -> bytes:
    """The text with some bytes of it cut out, doubled or replaced."""
    data = bytearray(text.encode())
    for _ in range(random.choice((1, 1, 2, 5))):
        at = random.randrange(len(data) + 1)
        end = min(len(data), at + random.choice((1, 1, 4, 40)))
        data[at:end] = random.choice((b"", data[at:end] * 2, random.randbytes(end - at), random.choice(_BYTES)))
    return bytes(data)


def file(document: Any, random: Random) -> bytes:
    """Mostly edited, now and then spoiled."""
    if random.random() < 0.1:
        return spoiled(json.dumps(document, indent=1), random)
    return json.dumps(edited(document, random), indent=1).encode()


_BYTES = (
    b"\x00",
    b"\xff",
    b"\xed\xa0\x80",
    b"{",
    b"}",
    b"[",
    b'"',
    b":",
    b"\n",
    b"- ",
    b"&a ",
    b"*a",
    b"!!x ",
    b"\t",
    b"9" * 5000,
)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield value, name
            yield from _places(inner)
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            yield value, at
            yield from _places(inner)


def _replace(holder: Any, name: Any, random: Random, places: Any) -> None:
    holder[name] = deepcopy(random.choice(JUNK))


def _replace_by_its_like(holder: Any, name: Any, random: Random, places: Any) -> None:
    """Replace a value by another one of the same type, from elsewhere or junk, so that the schema accepts it."""
    kind = type(holder[name])
    elsewhere = [other[at] for other, at in places if type(other[at]) is kind]
    like = [each for each in JUNK if type(each) is kind]
    holder[name] = deepcopy(random.choice(random.choice([each for each in (elsewhere, like) if each])))


def _shorten(holder: Any, name: Any, random: Random, places: Any) -> None:
    """Shorten a list, whose items are optional."""
    if isinstance(holder[name], list):
        del holder[name][random.randrange(len(holder[name]) + 1) :]
    elif isinstance(holder, list):
        del holder[name]
    else:
        _replace_by_its_like(holder, name, random, places)


def _remove(holder: Any, name: Any, random: Random, places: Any) -> None:
    del holder[name]


def _rename(holder: Any, name: Any, random: Random, places: Any) -> None:
    value = holder[name]
    if isinstance(holder, dict):
        holder[str(random.choice(JUNK))] = holder.pop(name)
    else:
        holder.append(deepcopy(value))


def _add(holder: Any, name: Any, random: Random, places: Any) -> None:
    value = holder[name]
    if isinstance(value, dict):
        value[random.choice(("x", "", HOSTILE, "schema", "unknown"))] = deepcopy(random.choice(JUNK))
    elif isinstance(value, list):
        value.append(deepcopy(random.choice([*JUNK, *value])))
    elif isinstance(value, str):
        at = random.randrange(len(value) + 1)
        holder[name] = value[:at] + random.choice((HOSTILE, "-", "0", " ", "")) + value[at + 1 :]
    elif type(value) is int:
        holder[name] = value + random.choice((-1, 1, 1 << 20, -value * 2))


def _swap(holder: Any, name: Any, random: Random, places: Any) -> None:
    other, at = random.choice(places)
    holder[name] = deepcopy(other[at])


_CHANGES: tuple[Callable[[Any, Any, Random, Any], None], ...] = (
    *(_replace_by_its_like,) * 9,
    *(_shorten, _shorten, _shorten, _add, _add, _replace, _remove, _rename, _swap),
)
