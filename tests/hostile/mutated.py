"""Mutates real answers of the agent, as a host that is no longer the agent could give them."""

import base64
import copy
import json
import random
from typing import Any

from winhost.core.answers import Json

ERROR = {"category": "InvalidResult", "code": "X", "hresults": ["0x80004005"], "cmdlet": "Get-X", "message": "No."}
TEXTS = (
    "", " ", "\x00", "\x1b[2J", "\ud800", "\u202e", "ﬁ", "x" * 5000, "-1", "1e999", "NaN", "0x10", "../..", "$(x)",
    "{{7}}", "PCIROOT(0)", "2026-13-45T99:99:99", "10.0.99999999999.1", "::", "nobody", "\r\nwinhost: done",
)  # fmt: skip
NUMBERS = (0, -1, 1, 2**31, 2**53 + 1, 2**63, 2**64 - 1, 10**40, 0.5, -0.0, 1e308, 1e-320)
OTHERS: tuple[Json, ...] = (
    None, True, False, [], {}, [[]], [None], {"a": None}, {"unknown": ERROR}, {"unknown": None}, {"unknown": {}},
    {"unavailable": "HyperVRole"}, {"unavailable": 7}, {"unknown": {"category": [], "message": {}}}, {"": ""},
)  # fmt: skip
RAW = (
    b"",
    b"\xff\xfe",
    b"%%%",
    b"=",
    b"\x00" * 9,
    b"<html>",
    b"a b c",
    "é".encode("latin-1"),
    b"\xc2\x85",
    b"\x1c\x1d",
)


class Mutator:
    """Makes one hostile thing after another, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def document(self, found: Json) -> Json:
        """A copy with one or a few of its places changed."""
        made = copy.deepcopy(found)
        for _ in range(self.random.choice((1, 1, 1, 2, 5))):
            places = list(self._places(made))
            if not places:
                return made
            self._change(made, *self.random.choice(places))
        return made

    def text(self, document: Json) -> str:
        """It as JSON, and now and then not even that."""
        text = json.dumps(document)
        if self.random.random() < 0.85:
            return text
        at = self.random.randrange(len(text) + 1)
        return self.random.choice(
            (
                lambda: text[:at],
                lambda: text[:at] + self.random.choice(TEXTS) + text[at:],
                lambda: text[at:] + text[:at],
                lambda: text + text,
                lambda: text.replace("true", "1"),
                lambda: text.replace('"ok"', '"OK"', 1),
                lambda: "[" * self.random.choice((9, 999, 99_999)) + text,
                lambda: text[:at] + "NaN" + text[at + 3 :],
            )
        )()

    def output(self, text: str) -> bytes:
        """It as the remote shell brings it, and now and then not even that."""
        line = base64.b64encode(text.encode("utf-8", "surrogatepass"))
        at = self.random.randrange(len(line) + 1)
        return self.random.choice((line, line[:at], line[:at] + b"\n" + line[at:], self.raw() + line, self.raw()))

    def raw(self) -> bytes:
        return self.random.choice((*RAW, self.random.randbytes(self.random.randrange(40))))

    def value(self) -> Json:
        kind = self.random.random()
        if kind < 0.4:
            return self.random.choice(TEXTS)
        return copy.deepcopy(self.random.choice(NUMBERS if kind < 0.6 else OTHERS))

    def _places(self, value: Json) -> Any:
        inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for name, each in inside:
            yield value, name
            yield from self._places(each)

    def _change(self, _whole: Json, inside: Any, name: Any) -> None:
        how = self.random.random()
        if how < 0.2:
            del inside[name]
        elif how < 0.3 and isinstance(inside, dict):
            inside[self.random.choice(TEXTS)] = self.value()
        elif how < 0.4 and isinstance(inside, list):
            inside.append(inside[name])
        elif how < 0.5:
            inside[name] = self._deep(inside[name])
        else:
            inside[name] = self.value()

    def _deep(self, value: Json) -> Json:
        for _ in range(self.random.choice((1, 3, 30, 300))):
            value = self.random.choice(([value], {"a": value}))
        return value
