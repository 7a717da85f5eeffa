"""The catalogue: what each reason's code says to people, what to do about it, and what it rests on."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from winhost.model.errors import UsageFault, did_you_mean, visible
from winhost.model.reason import Evidence, Explanation, Remedy


@dataclass(frozen=True)
class Entry:
    """sentence: why it matters; means: what follows for the user; remedy, evidence: ids; risks: consents."""

    sentence: str
    means: str
    remedy: str | None = None
    evidence: tuple[str, ...] = ()
    risks: tuple[str, ...] = ()


@dataclass(eq=False)
class UnknownCode(UsageFault):
    """There is no such reason."""

    code: str

    @property
    def what(self) -> str:
        return f"no reason has the code '{visible(self.code)}'{did_you_mean(self.code, entries())}"

    @property
    def hint(self) -> str:
        return "winhost assess shows the codes that apply to a host"


def entry(code: str) -> Entry:
    """What the catalogue says of a code. Raises UnknownCode."""
    if code not in entries():
        raise UnknownCode(code)
    return entries()[code]


def explain(code: str) -> Explanation:
    """The whole story of a code. Raises UnknownCode."""
    found = entry(code)
    return Explanation(
        code=code,
        sentence=found.sentence,
        means=found.means,
        risks=found.risks,
        remedy=remedies()[found.remedy] if found.remedy else None,
        evidence=tuple(evidence()[key] for key in found.evidence),
    )


@cache
def entries() -> Mapping[str, Entry]:
    """By code."""
    return {code: Entry(**_tuples(row)) for code, row in _read("reasons.yaml").items()}


@cache
def remedies() -> Mapping[str, Remedy]:
    """By id."""
    return {key: Remedy(key, **row) for key, row in _read("remedies.yaml").items()}


@cache
def evidence() -> Mapping[str, Evidence]:
    """By id."""
    return {key: Evidence(key, **row | {"seen": str(row["seen"])}) for key, row in _read("evidence.yaml").items()}


def _tuples(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}


def _read(name: str) -> dict[str, dict[str, Any]]:
    import yaml

    text = files(__package__).joinpath(name).read_text(encoding="utf-8")
    read: dict[str, dict[str, Any]] = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
    return read
