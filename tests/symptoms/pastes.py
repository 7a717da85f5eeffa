"""Cases of symptoms: what people paste, and what winhost should say first. How a text was saved is part of a case."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cases import read_cases
from winhost.symptoms.table import Symptom, symptoms

CASES = Path(__file__).parent.parent / "data" / "symptoms"


@dataclass(frozen=True)
class Paste:
    """symptom: the first that is found; cause: its first, in words or as the code of a reason behind `@`; also: further
    symptoms in order; saved: how the text came to be a file.
    """

    symptom: str
    cause: str
    text: str
    also: tuple[str, ...] = ()
    saved: str = "plain"

    @property
    def data(self) -> bytes:
        return SAVED[self.saved](self.text)


def _compose(text: str) -> bytes:
    """Format lines like `docker compose logs` on a terminal."""
    return "".join(f"\x1b[36mvllm-1  |\x1b[0m {line}\n" for line in text.splitlines()).encode()


def _journal(text: str) -> bytes:
    return "".join(f"Nov 20 08:14:03 gpu-01 kernel: {line}\n" for line in text.splitlines()).encode()


def _coloured(text: str) -> bytes:
    return "".join(f"\x1b[1;31m{line}\x1b[0m\n" for line in text.splitlines()).encode()


SAVED = {
    "plain": str.encode,
    "crlf": lambda text: text.replace("\n", "\r\n").encode(),
    "utf16": lambda text: text.replace("\n", "\r\n").encode("utf-16-le"),
    "utf16bom": lambda text: text.encode("utf-16"),
    "cp1252": lambda text: text.encode("cp1252", errors="replace"),
    "compose": _compose,
    "journal": _journal,
    "coloured": _coloured,
}


def read(name: str) -> list[Any]:
    found: list[Any] = read_cases(CASES / name)
    return found


def pastes() -> list[Paste]:
    return [_paste(symptom) for symptom in symptoms().values() if symptom.case]


def _paste(symptom: Symptom) -> Paste:
    first, case = symptom.causes[0], symptom.case
    cause = f"@{first.reason}" if first.reason else first.cause
    return Paste(symptom.id, cause, **{**case, "also": tuple(case.get("also", ()))})
