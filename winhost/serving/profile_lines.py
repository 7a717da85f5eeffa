"""The lines of a profile for one model: what is set, with the reason, and what is left out."""

import re
from collections.abc import Iterable
from typing import Any

from winhost.core.dataclass import dataclass
from winhost.findings.condition import ConditionResult, format_condition
from winhost.model.reason import Finding, Severity
from winhost.serving.computed import COMPUTED, Computed
from winhost.serving.containers import docker_options
from winhost.serving.engine_spec import Container, Mount
from winhost.serving.profile import Kind, Profile, ProfileRow
from winhost.serving.vllm_options import changed_default, knows
from winhost.serving.when import Case, holding, reason

_UNKNOWN_WORD = "this version of vLLM does not know it"
_TAKE_SEVERAL = ("--allowed-media-domains",)
_REFERENCE = re.compile(r"\$\{(.+)\}")


@dataclass(frozen=True)
class ProfileLine:
    """A setting with the reason for it. how: how its value is computed; default: vLLM's own, where versions differ in
    it.

    The reason is a note where the setting is known to be right, and unverified where something about it is not known.
    Of a line that is left out it is degraded where its condition is not known and the setting may do harm, and
    unsupported where this version of vLLM does not know it.
    """

    kind: Kind
    name: str
    value: str | int | Mount | None
    reason: Finding
    how: str | None = None
    default: str | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """The words on a command line: one, except for an option that takes several."""
        if self.kind == "container":
            return (*docker_options(container_of([self])),)
        if self.value is None:
            return (self.name,)
        several = str(self.value).split() if self.name in _TAKE_SEVERAL else []
        return (self.name, *several) if len(several) > 1 else (f"{self.name}={self.value}",)

    @property
    def text(self) -> str:
        return " ".join(self.words)

    @property
    def left_out(self) -> bool:
        """Tell whether it is not set."""
        return self.reason.severity in (Severity.DEGRADED, Severity.UNSUPPORTED)

    @property
    def doubt(self) -> str | None:
        """The reason to doubt it, or to leave it out; None where nothing is in doubt."""
        return self.reason.observed if self.reason.severity is Severity.UNSUPPORTED else self.reason.lacks


def container_of(lines: Iterable[ProfileLine]) -> Container:
    said = [(line.name, line.value) for line in lines if line.kind == "container"]
    fields: dict[str, Any] = {name: value for name, value in said if name != "mount"}
    mounts = tuple(value for _, value in said if isinstance(value, Mount))
    return Container(mounts=mounts, **fields)


def lines_of(of: Profile, case: Case) -> tuple[tuple[ProfileLine, ...], tuple[ProfileLine, ...]]:
    """The lines that are set, and those left out: undecided ones that would do harm, or unknown to this version."""
    lines = [_line(row, found, case) for row, found in holding(of.rows, case)]
    kept = tuple(line for line in lines if not line.left_out)
    return kept, tuple(line for line in lines if line.left_out)


def _line(row: ProfileRow, found: ConditionResult, case: Case) -> ProfileLine:
    """The line of a row that holds or may hold, with what vLLM's own parser of this version says of its name."""
    reference = _REFERENCE.fullmatch(str(row.value))
    computed = COMPUTED[reference[1]](case) if reference else Computed(row.value, None)
    observed, doubts = format_condition(row.when, found), [found.doubt, computed.doubt]
    severity = Severity.NOTE if found.unknown.keys().isdisjoint(row.must_know) else Severity.DEGRADED
    version, default = case.workload.versions.get("vllm"), None
    if version and (row.kind == "engine" or (row.kind == "env" and row.name.startswith("VLLM_"))):
        known = knows(row.kind, row.name, version)
        if known is None:
            doubts.append(f"the options of vLLM {version} were not read")
        if known is False:
            severity, observed, doubts = Severity.UNSUPPORTED, _UNKNOWN_WORD, []
        else:
            default = changed_default(row.name, version)
    why = reason(row, case, severity, observed=observed, lacks="; ".join(filter(None, doubts)) or None)
    return ProfileLine(row.kind, row.name, computed.value, why, computed.how, default)
