"""The table of symptoms: what programs print when something fails, the possible causes, and how to tell them apart.

Symptoms are recognized by codes and identifiers. Messages are only matched if the program always prints English
(kernels, containers, NCCL, vLLM), never those of Windows. The causes of a symptom are in the order of their likelihood.
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
    """A sign of a symptom: a literal in a line (text, in any case) or a code. when: a condition that must hold as well,
    see docs/conditions.md.
    """

    text: str = ""
    code: int | None = None
    when: Condition = field(default_factory=Condition, hash=False)


@dataclass(frozen=True)
class Mark:
    """Something in a text that helps to decide between causes (marks.yaml). shows: a sentence about the text; origins:
    the only origins that a text with this mark can have, empty if it does not tell.
    """

    id: str
    shows: str
    signs: tuple[Sign, ...]
    origins: tuple[str, ...] = ()


@dataclass(frozen=True)
class KnownCause:
    """A possible cause of a symptom.

    cause: a sentence; tell: how to check for this cause, by a command or a fact; remedy: an id of remedies.yaml; do:
    what to do, instead of a remedy; when: facts that must hold; reason: the code of a reason about the same thing,
    whose sentence, remedy and evidence are used where the cause has none. where: the origins (ORIGINS) at which this
    cause is possible; unless it names programs, the engine that prints the symptom is added. beside: marks, one of
    which shows this cause, and without which it is unlikely; shown_by: marks, one of which shows this cause, and whose
    absence means nothing; unless: marks, one of which rules this cause out.
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
    def origin_condition(self) -> Condition:
        """The condition on the marks and the origin of a text for this cause to be possible."""
        at = {kind: [each for each in self.where if each in known] for kind, known in ORIGINS.items()}
        origins = {kind: wanted for kind, wanted in at.items() if wanted}
        return Condition({"shows": {"lacks": [*self.unless]}, **origins} if self.unless else origins)


@dataclass(frozen=True)
class Symptom:
    """A symptom. program: which prints it; says: its meaning, in a sentence; severity: unsupported if the line says
    what is wrong, unverified if it only says that something is wrong, note if it is harmless; general: it recognizes
    lines by the program alone, so that other symptoms take precedence; case: a text as people paste it, for tests.
    """

    id: str
    program: str
    says: str
    signs: tuple[Sign, ...]
    causes: tuple[KnownCause, ...]
    severity: Severity = Severity.UNSUPPORTED
    general: bool = False
    case: Mapping[str, Any] = field(default_factory=dict)


# The machines that a text may come from: Windows itself, a Linux in WSL, the distro of Docker Desktop (which is in WSL
# too), a Linux on a machine of its own, in a VM with an assigned GPU (DDA), or in a VM with a GPU partition.
MACHINES: Mapping[str, str] = {
    "windows": "Windows",
    "wsl": "WSL",
    "docker-desktop": "Docker Desktop",
    "metal": "a Linux on a machine of its own",
    "dda": "a VM with an assigned GPU",
    "gpu-pv": "a VM with a GPU partition",
}
# What starts the program on the machine.
LAYERS: Mapping[str, str] = {"container": "a container", "kubernetes": "Kubernetes"}
# The programs that matter to causes.
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
LLAMA_CPP_PROGRAMS = ("ollama", "lm-studio")
ORIGINS: Mapping[str, Mapping[str, str]] = {"machine": MACHINES, "layer": LAYERS, "program": PROGRAMS}
_FOLDER = files(__package__)


@once
def marks() -> Mapping[str, Mark]:
    """Return the marks by id."""
    return Catalogue(_FOLDER / "marks.yaml", _parse_mark)


def _parse_mark(name: str, row: Mapping[str, Any]) -> Mark:
    return Mark(name, row["shows"], tuple(map(_parse_sign, row["signs"])), tuple(row.get("origins", ())))


@once
def symptoms() -> Mapping[str, Symptom]:
    """Return the symptoms by id, file by file."""
    known = Catalogue(_FOLDER / "known", _parse_symptom)
    families = Catalogue(
        _FOLDER / "families", lambda _, family: [_parse_symptom(*each) for each in _expand_family(family)]
    )
    members = [each for family in families.values() for each in family]
    found = {**known, **{each.id: each for each in members}}
    if len(found) < len(known) + len(members):
        raise ValueError("a symptom is declared twice")
    return found


def _expand_family(family: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the symptoms of a family, one for each of its rows.

    The family's id, signs and case are patterns: `{number}` is replaced by that key of the row; a list becomes
    alternatives. A row's own `signs` and `codes` are added; `cause`, `tell` and `do` are its only cause, unless it has
    `causes`. `sentences` names a file that was generated from the source of a program. By row it has further `signs`,
    `shared` signs that other programs print too (one of the family's `near` must be close by), and a case.
    """
    sentences = json.loads((_FOLDER / family["sentences"]).read_bytes()) if "sentences" in family else {}
    for row in family["rows"]:
        merged = {**family.get("default", {}), **row, **sentences.get(row.get("id"), {})}
        words = {
            key: _regex_alternatives(value) for key, value in merged.items() if isinstance(value, str | int | list)
        }
        cause = {
            key: _fill_pattern(merged[key], words)
            for key in ("cause", "tell", "do", "unless", "where")
            if key in merged
        }
        shared = [{"text": text, "near": family["near"]} for text in merged.get("shared", ())]
        yield (
            _fill_pattern(family["id"], {**words, "number": _first_text(merged.get("number", ""))}),
            {
                "program": merged.get("program", family["program"]),
                "says": merged["says"],
                "severity": merged.get("severity", "unsupported"),
                "general": merged.get("general", False),
                "signs": [
                    *_fill_pattern(family.get("signs", []), words),
                    *merged.get("codes", ()),
                    *merged.get("signs", ()),
                    *shared,
                ],
                "causes": merged.get("causes") or [{**cause, "evidence": merged["evidence"]}],
                "case": merged.get("case")
                or _fill_pattern(family["case"], {**words, "number": _first_text(merged.get("number", ""))}),
            },
        )


def _fill_pattern(pattern: Any, words: Mapping[str, str]) -> Any:
    """Replace `{key}` everywhere in a pattern."""
    if isinstance(pattern, Mapping):
        return {key: _fill_pattern(value, words) for key, value in pattern.items()}
    if isinstance(pattern, list):
        return [_fill_pattern(value, words) for value in pattern]
    if not isinstance(pattern, str):
        return pattern
    for key, value in words.items():
        pattern = pattern.replace(f"{{{key}}}", value)
    return pattern


def _first_text(value: Any) -> str:
    return str(value[0] if isinstance(value, list) else value)


def _regex_alternatives(value: Any) -> str:
    """Format numbers as alternatives of a regular expression."""
    return "|".join(map(str, value)) if isinstance(value, list) else str(value)


def _parse_symptom(name: str, row: Mapping[str, Any]) -> Symptom:
    signs = tuple(sign for written in row["signs"] for sign in _parse_signs(written))
    causes = tuple(_parse_cause(f"{name}/{number}", cause) for number, cause in enumerate(row["causes"], start=1))
    causes = tuple(_limit_to_program(cause, row["program"]) for cause in causes)
    return Symptom(name, **parse_row(name, {**row, "signs": signs, "causes": causes}))


def _limit_to_program(cause: KnownCause, program: str) -> KnownCause:
    """Limit a cause of a symptom that engines print to these engines, because others may print the same words."""
    printed = tuple(key for key, name in PROGRAMS.items() if name in program)
    if not printed or not PROGRAMS.keys().isdisjoint(cause.where):
        return cause
    return replace(cause, where=(*cause.where, *printed, *(LLAMA_CPP_PROGRAMS if "llama.cpp" in printed else ())))


def _parse_signs(written: str | int | Mapping[str, Any]) -> tuple[Sign, ...]:
    """Parse a sign. `wsman: busy` becomes a sign for each code of WS-Management of that kind."""
    if isinstance(written, Mapping) and "wsman" in written:
        return tuple(Sign(code=code) for code in codes_of(written["wsman"]))
    return (_parse_sign(written),)


def _parse_sign(written: str | int | Mapping[str, Any]) -> Sign:
    if isinstance(written, str):
        return Sign(text=written)
    if isinstance(written, int):
        return Sign(code=written)
    row = parse_row("", written, texts=("near",))
    line = {"line": {"like": f"(?i){row.pop('like')}"}} if "like" in row else {}
    near = {"near": {"contains": [each.lower() for each in row.pop("near")]}} if "near" in row else {}
    return Sign(**{**row, "when": Condition({**line, **near, **row.get("when", {})})})


def _parse_cause(owner: str, written: Mapping[str, Any]) -> KnownCause:
    """Parse a cause. Keys that it does not have come from its reason's entry in the catalogue."""
    code = written.get("reason")
    entry = catalogue.entry(code) if code else None
    filled = dict(written)
    if entry is not None:
        filled.setdefault("cause", entry.sentence)
        filled.setdefault("evidence", entry.evidence)
        if "do" not in filled and "remedy" not in filled:
            filled |= {"remedy": entry.remedy} if entry.remedy else {"do": entry.means}
    cause = parse_row(owner, filled, texts=("where", "beside", "shown_by", "unless"))
    if "wsl" in cause.get("where", ()):
        cause["where"] += ("docker-desktop",)  # Docker Desktop runs in WSL
    if "llama.cpp" in cause.get("where", ()):
        cause["where"] += LLAMA_CPP_PROGRAMS
    return KnownCause(**cause)


def printed_texts(reason: str) -> tuple[str, ...]:
    """Return the texts that programs print because of a reason: the signs of the symptoms that it may cause."""
    return tuple(
        sign.text
        for symptom in symptoms().values()
        if any(cause.reason == reason for cause in symptom.causes)
        for sign in symptom.signs
        if sign.text
    )
