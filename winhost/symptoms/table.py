"""The table of symptoms: what programs print when something fails, what may cause it, and how to tell one from another.

A symptom is found by codes and by identifiers. Words are matched only of programs that speak nothing but English
(kernels, containers, NCCL, vLLM), never of Windows. Of its causes the likelier comes first.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from functools import cached_property
from importlib.resources import files
from typing import Any

from winhost.core.dataclass import dataclass
from winhost.findings.catalogue import Catalogue, parse_row
from winhost.findings.condition import Condition, When
from winhost.knowledge import catalogue
from winhost.model.once import once
from winhost.model.reason import Severity
from winhost.model.wsman import codes_of


@dataclass(frozen=True)
class Sign:
    """One way to know a symptom. text: a literal that the line contains, whatever its case, or a code; when: what also
    has to hold there, as docs/conditions.md has it.
    """

    text: str = ""
    code: int | None = None
    when: Condition = field(default_factory=Condition, hash=False)


@dataclass(frozen=True)
class Mark:
    """Something else that a text may show, and that decides between causes (marks.yaml). shows: a sentence about the
    text; origins: the machines that it comes from, no others; empty: it says nothing of that.
    """

    id: str
    shows: str
    signs: tuple[Sign, ...]
    origins: tuple[str, ...] = ()


@dataclass(frozen=True)
class KnownCause:
    """One thing that may be behind a symptom.

    cause: a sentence; tell: how to know that it is this one, a command or a fact; remedy: an id of remedies.yaml, or
    do: what to do; when: facts without which it cannot be this; reason: the code of a reason that says the same of a
    host, and whose sentence, remedy and evidence stand for what is not written here. where: the origins (ORIGINS) at
    which it can be this, with the engine that prints the symptom unless it names programs itself; beside: marks, of
    which one in the same text shows that it is this, and without which it is unlikely; shown_by: the same, where their
    absence says nothing; unless: marks, of which one shows that it is not.
    """

    cause: str
    tell: str
    evidence: tuple[str, ...]
    remedy: str | None = None
    do: str = ""
    when: When = field(default_factory=Condition)
    reason: str | None = None
    where: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    shown_by: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()

    @cached_property
    def allowed(self) -> Condition:
        """Without this of the text it cannot be this."""
        at = {kind: [each for each in self.where if each in known] for kind, known in ORIGINS.items()}
        origins = {kind: wanted for kind, wanted in at.items() if wanted}
        return Condition({"shows": {"lacks": [*self.unless]}, **origins} if self.unless else origins)


@dataclass(frozen=True)
class Symptom:
    """program: who prints it; says: what it means, in a sentence; severity: unsupported if the line says what is wrong,
    unverified if it only says that something is, which other lines tell better, a note if it is harmless; case: a text
    as people paste it, for tests. general: it knows lines by the program alone, so another symptom that knows a line
    says more of it.
    """

    id: str
    program: str
    says: str
    signs: tuple[Sign, ...]
    causes: tuple[KnownCause, ...]
    severity: Severity = Severity.UNSUPPORTED
    general: bool = False
    case: Mapping[str, Any] = field(default_factory=dict)


# Where a text may come from: a machine, which is Windows itself, a Linux in WSL, the distro of Docker Desktop (in WSL,
# too), a Linux on a machine of its own, in a VM with an assigned GPU (DDA) or in one with a partition of a GPU.
MACHINES: Mapping[str, str] = {
    "windows": "Windows",
    "wsl": "WSL",
    "docker-desktop": "Docker Desktop",
    "metal": "a Linux on a machine of its own",
    "dda": "a VM with an assigned GPU",
    "gpu-pv": "a VM with a GPU partition",
}
# And what starts the program there.
LAYERS: Mapping[str, str] = {"container": "a container", "kubernetes": "Kubernetes"}
# And which program it is, as far as it matters to a cause.
PROGRAMS: Mapping[str, str] = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "tgi": "text-generation-inference",
    "tensorrt-llm": "TensorRT-LLM",
    "lmdeploy": "LMDeploy",
    "comfyui": "ComfyUI",
    "pytorch": "a program of PyTorch",
    "llama.cpp": "llama.cpp",
    "ollama": "Ollama",
    "lm-studio": "LM Studio",
}
WITH_LLAMA_CPP = ("ollama", "lm-studio")
ORIGINS: Mapping[str, Mapping[str, str]] = {"machine": MACHINES, "layer": LAYERS, "program": PROGRAMS}
_HERE = files(__package__)


@once
def marks() -> Mapping[str, Mark]:
    """The marks, by id."""
    return Catalogue(_HERE / "marks.yaml", _mark)


def _mark(name: str, row: Mapping[str, Any]) -> Mark:
    return Mark(name, row["shows"], tuple(map(_sign, row["signs"])), tuple(row.get("origins", ())))


@once
def symptoms() -> Mapping[str, Symptom]:
    """The symptoms, by id, file by file."""
    known = Catalogue(_HERE / "known", _symptom)
    families = Catalogue(_HERE / "families", lambda _, family: [_symptom(*each) for each in _members(family)])
    members = [each for family in families.values() for each in family]
    found = {**known, **{each.id: each for each in members}}
    if len(found) < len(known) + len(members):
        raise ValueError("a symptom is told twice")
    return found


def _members(family: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The symptoms of a table of codes, one for each of its rows.

    The family's id, signs and case are patterns: `{number}` stands for that key of the row, a list of them for any.
    A row's own `signs` and `codes` come on top; `cause`, `tell` and `do` are its only cause, unless it has `causes`.
    `sentences` names a file that was made from the sources of a program: by row, its `signs`, those that other programs
    say as well (`shared`: one of the family's `near` has to stand close by), and a line that has one.
    """
    sentences = json.loads((_HERE / family["sentences"]).read_bytes()) if "sentences" in family else {}
    for row in family["rows"]:
        told = {**family.get("default", {}), **row, **sentences.get(row.get("id"), {})}
        words = {key: _either(value) for key, value in told.items() if isinstance(value, str | int | list)}
        cause = {key: _filled(told[key], words) for key in ("cause", "tell", "do", "unless", "where") if key in told}
        shared = [{"text": text, "near": family["near"]} for text in told.get("shared", ())]
        yield (
            _filled(family["id"], {**words, "number": _first(told.get("number", ""))}),
            {
                "program": told.get("program", family["program"]),
                "says": told["says"],
                "severity": told.get("severity", "unsupported"),
                "general": told.get("general", False),
                "signs": [
                    *_filled(family.get("signs", []), words),
                    *told.get("codes", ()),
                    *told.get("signs", ()),
                    *shared,
                ],
                "causes": told.get("causes") or [{**cause, "evidence": told["evidence"]}],
                "case": told.get("case")
                or _filled(family["case"], {**words, "number": _first(told.get("number", ""))}),
            },
        )


def _filled(pattern: Any, words: Mapping[str, str]) -> Any:
    """A pattern with `{key}` replaced, wherever it stands in it."""
    if isinstance(pattern, Mapping):
        return {key: _filled(value, words) for key, value in pattern.items()}
    if isinstance(pattern, list):
        return [_filled(value, words) for value in pattern]
    if not isinstance(pattern, str):
        return pattern
    for key, value in words.items():
        pattern = pattern.replace(f"{{{key}}}", value)
    return pattern


def _first(value: Any) -> str:
    return str(value[0] if isinstance(value, list) else value)


def _either(value: Any) -> str:
    """Format numbers as alternatives of a regular expression."""
    return "|".join(map(str, value)) if isinstance(value, list) else str(value)


def _symptom(name: str, row: Mapping[str, Any]) -> Symptom:
    signs = tuple(sign for written in row["signs"] for sign in _signs(written))
    causes = tuple(_cause(f"{name}/{number}", cause) for number, cause in enumerate(row["causes"], start=1))
    causes = tuple(_of_program(cause, row["program"]) for cause in causes)
    return Symptom(name, **parse_row(name, {**row, "signs": signs, "causes": causes}))


def _of_program(cause: KnownCause, program: str) -> KnownCause:
    """A cause of what engines print belongs to them, and not to another whose text has the same words."""
    printed = tuple(key for key, name in PROGRAMS.items() if name in program)
    if not printed or not PROGRAMS.keys().isdisjoint(cause.where):
        return cause
    return replace(cause, where=(*cause.where, *printed, *(WITH_LLAMA_CPP if "llama.cpp" in printed else ())))


def _signs(written: str | int | Mapping[str, Any]) -> tuple[Sign, ...]:
    """`wsman: busy` stands for all codes of WS-Management of that kind."""
    if isinstance(written, Mapping) and "wsman" in written:
        return tuple(Sign(code=code) for code in codes_of(written["wsman"]))
    return (_sign(written),)


def _sign(written: str | int | Mapping[str, Any]) -> Sign:
    if isinstance(written, str):
        return Sign(text=written)
    if isinstance(written, int):
        return Sign(code=written)
    row = parse_row("", written, texts=("near",))
    line = {"line": {"like": f"(?i){row.pop('like')}"}} if "like" in row else {}
    near = {"near": {"contains": [each.lower() for each in row.pop("near")]}} if "near" in row else {}
    return Sign(**{**row, "when": Condition({**line, **near, **row.get("when", {})})})


def _cause(owner: str, written: Mapping[str, Any]) -> KnownCause:
    """Read a cause; what it does not say comes from its reason's entry in the catalogue."""
    code = written.get("reason")
    said = catalogue.entry(code) if code else None
    filled = dict(written)
    if said is not None:
        filled.setdefault("cause", said.sentence)
        filled.setdefault("evidence", said.evidence)
        if "do" not in filled and "remedy" not in filled:
            filled |= {"remedy": said.remedy} if said.remedy else {"do": said.means}
    cause = parse_row(owner, filled, texts=("where", "beside", "shown_by", "unless"))
    if "wsl" in cause.get("where", ()):
        cause["where"] += ("docker-desktop",)  # its distro is one of WSL
    if "llama.cpp" in cause.get("where", ()):
        cause["where"] += WITH_LLAMA_CPP
    return KnownCause(**cause)


def said_of(reason: str) -> tuple[str, ...]:
    """The texts that programs print where a reason holds: the signs of the symptoms that it may cause."""
    return tuple(
        sign.text
        for symptom in symptoms().values()
        if any(cause.reason == reason for cause in symptom.causes)
        for sign in symptom.signs
        if sign.text
    )
