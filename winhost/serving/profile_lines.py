"""The lines of a profile for one model: what is set, with the reason, and what is left out."""

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from winhost.core.dataclass import dataclass
from winhost.findings.condition import format_when
from winhost.serving.computed import COMPUTED
from winhost.serving.containers import docker_options
from winhost.serving.engine_spec import Container, Mount
from winhost.serving.profile import Kind, Profile, ProfileRow
from winhost.serving.vllm_options import changed_default, knows
from winhost.serving.when import Case, holds

UNKNOWN_WORD = "this version of vLLM does not know it"
_TAKE_SEVERAL = ("--allowed-media-domains",)
_REFERENCE = re.compile(r"\$\{(.+)\}")


@dataclass(frozen=True)
class ProfileLine:
    """A setting with the reason for it. when: the versions and cases it applies to; how: how its value is computed.

    unverified: what is not known about whether, or how, it is needed; default: vLLM's own, where versions differ in it.
    """

    kind: Kind
    name: str
    value: str | int | Mount | None
    why: str
    when: str
    evidence: tuple[str, ...]
    how: str | None = None
    unverified: str | None = None
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


def container_of(lines: Iterable[ProfileLine]) -> Container:
    said = [(line.name, line.value) for line in lines if line.kind == "container"]
    fields: dict[str, Any] = {name: value for name, value in said if name != "mount"}
    mounts = tuple(value for _, value in said if isinstance(value, Mount))
    return Container(mounts=mounts, **fields)


def lines_of(of: Profile, case: Case) -> tuple[tuple[ProfileLine, ...], tuple[ProfileLine, ...]]:
    """The lines that are set, and those left out: undecided ones that would do harm, or unknown to this version."""
    kept: list[ProfileLine] = []
    left_out: list[ProfileLine] = []
    for row in of.rows:
        line = _line(row, case)
        if line is None:
            continue
        known = _as_known(line, case)
        out = known.unverified == UNKNOWN_WORD or not holds(row.when, case).unknown.keys().isdisjoint(row.must_know)
        (left_out if out else kept).append(known)
    return tuple(kept), tuple(left_out)


def _line(row: ProfileRow, case: Case) -> ProfileLine | None:
    """The line of a row; None where the row is not for this case."""
    found = holds(row.when, case)
    if found.holds is False:
        return None
    value: str | int | Mount | None = row.value
    how, doubt = None, found.doubt
    if reference := _REFERENCE.fullmatch(str(row.value)):
        computed = COMPUTED[reference[1]](case)
        value, how, doubt = computed.value, computed.how, "; ".join(filter(None, (doubt, computed.doubt))) or None
    return ProfileLine(row.kind, row.name, value, row.why, format_when(row.when), row.evidence, how, doubt)


def _as_known(line: ProfileLine, case: Case) -> ProfileLine:
    """Add what vLLM's own parser of this version says of the line's name."""
    version = case.workload.versions.get("vllm")
    if version is None or not (line.kind == "engine" or (line.kind == "env" and line.name.startswith("VLLM_"))):
        return line
    known = knows("engine" if line.kind == "engine" else "env", line.name, version)
    if known is False:
        return replace(line, unverified=UNKNOWN_WORD)
    doubt = f"the options of vLLM {version} were not read" if known is None else None
    doubts = "; ".join(filter(None, (line.unverified, doubt))) or None
    return replace(line, unverified=doubts, default=changed_default(line.name, version))
