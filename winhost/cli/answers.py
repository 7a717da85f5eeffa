"""The shape of a result of each kind, as `winhost schema` publishes it; envelope.py puts results together."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from winhost.cli.envelope import schema_of
from winhost.compat.answer import Brief, Diff, Full
from winhost.engine.events import AnyEvent
from winhost.engine.run import Outcome
from winhost.engine.verify import Check
from winhost.model.documents import answer_schema
from winhost.model.errors import ErrorResult
from winhost.model.facts import Facts
from winhost.model.path import path_of, variant_name
from winhost.model.plan import Plan, Step, in_order
from winhost.model.reason import Explanation, Verdict
from winhost.serving.choice import Served, Serving
from winhost.serving.command import command
from winhost.wslconfig import LintFinding


@dataclass(frozen=True)
class Detected:
    """A host as it was read, by `detect` or from files by `facts import`."""

    host: str
    facts: Facts


@dataclass(frozen=True)
class Reported:
    """A host that is in a report. file: where it stands."""

    host: str
    file: str


@dataclass(frozen=True)
class Code:
    """A reason that `explain` knows."""

    code: str
    sentence: str


@dataclass(frozen=True)
class PlannedHost:
    """A plan, and the file that it was written to, if it was. The file holds the plan alone.

    recommended: the verdict for which the path was taken, where nobody named one.
    """

    host: str
    path: str
    variant: str | None
    recommended: Verdict | None
    file: str | None
    plan: Plan


@dataclass(frozen=True)
class EndedHost:
    """How a run ended: of apply, resume or rollback."""

    host: str
    outcome: Outcome


@dataclass(frozen=True)
class Checked:
    """What `apply --check` found: the steps that are left of a plan's first stage, what is planned only after it, and
    which consents they ask for, surely and perhaps.
    """

    host: str
    steps: tuple[Step, ...]
    later: tuple[str, ...]
    risks: tuple[str, ...]
    possible_risks: tuple[str, ...]

    @classmethod
    def of(cls, plan: Plan, steps: tuple[Step, ...]) -> "Checked":
        needed = in_order(risk for step in steps for risk in step.risks)
        later = tuple(deferred.title for deferred in plan.deferred)
        return cls(plan.host, steps, later, needed, tuple(risk for risk in plan.possible_risks if risk not in needed))


@dataclass(frozen=True)
class ListedRun:
    """A run. why: it went no further by itself; empty for one that did. last: when it last wrote to its journal;
    changed: how many resources are not as they were found; path: of its plan, which lay in the folder.
    """

    run: str
    host: str
    state: str
    began: str
    why: str = ""
    last: str = ""
    path: str = ""
    changed: int = 0
    folder: str = ""
    journal: str = ""


@dataclass(frozen=True)
class ShownRun(ListedRun):
    """A run with its journal."""

    entries: tuple[AnyEvent, ...] = ()


@dataclass(frozen=True)
class Verified:
    """A host against a plan. holds: everything that the plan wants is so; plan: its file."""

    host: str
    plan: str
    holds: bool
    checks: tuple[Check, ...]


@dataclass(frozen=True)
class Bundled:
    """A bundle. sha256sums: the sum of its list of sums."""

    folder: str
    files: tuple[str, ...]
    sha256sums: str


@dataclass(frozen=True)
class Linted:
    """What WSL passes over in a file."""

    file: str
    findings: tuple[LintFinding, ...]


@dataclass(frozen=True)
class Commanded(Served):
    """A model with the command that serves it."""

    command: str


@dataclass(frozen=True)
class Profiled:
    """How the models of a workload are served on a host: see Serving."""

    host: str
    origin: str
    path: str
    variant: str | None
    chosen: str
    verdict: Verdict
    vllm: str | None
    models: tuple[Commanded, ...]

    @classmethod
    def of(cls, found: Serving) -> "Profiled":
        """With the command of each model."""
        models = tuple(
            Commanded(**vars(served), command=" ".join(command(served, found.vllm))) for served in found.models
        )
        variant = path_of(found.variant), variant_name(found.variant)
        return cls(found.host, found.origin, *variant, found.chosen, found.verdict, found.vllm, models)


@dataclass(frozen=True)
class ListedLabHost:
    """A host that the lab can simulate. base: the host that it differs from, where it is told as a difference."""

    name: str
    about: str
    base: str | None = None
    origin: str = "synthetic"


# The kinds of envelope.py. Any result may be an error instead.
RESULTS: Mapping[str, Any] = {
    "detection": Detected,
    "assessment": Brief,
    "assessment-full": Full,
    "report": Reported,
    "diff": Diff,
    "explanation": Explanation,
    "codes": Code,
    "planning": PlannedHost,
    "outcome": EndedHost,
    "check": Checked,
    "runs": ListedRun,
    "run": ShownRun,
    "verification": Verified,
    "bundle": Bundled,
    "lint": Linted,
    "profile": Profiled,
    "lab": ListedLabHost,
    "error": ErrorResult,
}


def schema(kind: str) -> dict[str, Any]:
    """The JSON Schema of a document of this kind. Whoever reads one can rely on every field."""
    result = answer_schema(RESULTS[kind] | ErrorResult)
    return {
        "title": schema_of(kind),
        "type": "object",
        "properties": {
            "schema": {"const": schema_of(kind), "type": "string"},
            "results": {"type": "array", "items": {name: part for name, part in result.items() if name != "$defs"}},
        },
        "required": ["schema", "results"],
        "additionalProperties": False,
        "$defs": result["$defs"],
    }
