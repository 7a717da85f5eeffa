"""The lines of a profile for one model: the settings with their reasons, and those that are left out."""

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

_UNKNOWN_OPTION = "this version of vLLM does not know it"
_OPTIONS_OF_SEVERAL_VALUES = ("--allowed-media-domains",)
_REFERENCE = re.compile(r"\$\{(.+)\}")


@dataclass(frozen=True)
class ProfileLine:
    """A setting with the reason for it. how: how its value is computed; default: a sentence on vLLM's own default, if
    versions differ in it.

    The reason of a line that is set is a note if the setting is known to be right, and unverified if something about it
    is not known. The reason of a line that is left out is degraded if its condition is not known and the setting may do
    harm, and unsupported if this version of vLLM does not know it.
    """

    kind: Kind
    name: str
    value: str | int | Mount | None
    reason: Finding
    how: str | None = None
    default: str | None = None

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments on a command line: one, except for an option of several values."""
        if self.kind == "container":
            return (*docker_options(container_of([self])),)
        if self.value is None:
            return (self.name,)
        values = str(self.value).split() if self.name in _OPTIONS_OF_SEVERAL_VALUES else []
        return (self.name, *values) if len(values) > 1 else (f"{self.name}={self.value}",)

    @property
    def text(self) -> str:
        return " ".join(self.arguments)

    @property
    def is_omitted(self) -> bool:
        return self.reason.severity in (Severity.DEGRADED, Severity.UNSUPPORTED)

    @property
    def doubt(self) -> str | None:
        """The reason to doubt it, or to leave it out; None if there is none."""
        return self.reason.observed if self.reason.severity is Severity.UNSUPPORTED else self.reason.lacks


def container_of(lines: Iterable[ProfileLine]) -> Container:
    """Collect the lines of the kind `container`."""
    settings = [(line.name, line.value) for line in lines if line.kind == "container"]
    fields: dict[str, Any] = {name: value for name, value in settings if name != "mount"}
    mounts = tuple(value for _, value in settings if isinstance(value, Mount))
    return Container(mounts=mounts, **fields)


def profile_lines(profile: Profile, case: Case) -> tuple[tuple[ProfileLine, ...], tuple[ProfileLine, ...]]:
    """Return the lines that are set, and those that are left out."""
    lines = [_line(row, result, case) for row, result in holding(profile.rows, case)]
    return tuple(line for line in lines if not line.is_omitted), tuple(line for line in lines if line.is_omitted)


def _line(row: ProfileRow, result: ConditionResult, case: Case) -> ProfileLine:
    """Make the line of a row that holds or may hold. The tables of vLLM's options say whether this version knows it."""
    reference = _REFERENCE.fullmatch(str(row.value))
    computed = COMPUTED[reference[1]](case) if reference else Computed(row.value, None)
    observed, doubts = format_condition(row.when, result), [result.doubt, computed.doubt]
    severity = Severity.NOTE if result.unknown.keys().isdisjoint(row.must_know) else Severity.DEGRADED
    version, default = case.workload.versions.get("vllm"), None
    if version and (row.kind == "engine" or (row.kind == "env" and row.name.startswith("VLLM_"))):
        known = knows(row.kind, row.name, version)
        if known is None:
            doubts.append(f"the options of vLLM {version} were not read")
        if known is False:
            severity, observed, doubts = Severity.UNSUPPORTED, _UNKNOWN_OPTION, []
        else:
            default = changed_default(row.name, version)
    why = reason(row, case, severity, observed=observed, lacks="; ".join(filter(None, doubts)) or None)
    return ProfileLine(row.kind, row.name, computed.value, why, computed.how, default)
