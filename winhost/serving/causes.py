"""The causes that forbid a model to sleep, for a profile without sleep."""

from collections.abc import Iterator

from winhost.core.dataclass import dataclass
from winhost.findings.condition import format_when
from winhost.serving.profile import profile
from winhost.serving.when import Case, holds


@dataclass(frozen=True)
class Because:
    """The reason why a profile was chosen. unverified: what is missing to be sure of it."""

    why: str
    when: str
    evidence: tuple[str, ...]
    unverified: str | None = None


def causes_of(case: Case, fallback: str) -> Iterator[Because]:
    """The fallback's causes that hold or may hold."""
    for cause in profile(fallback).chosen:
        found = holds(cause.when, case)
        if found.holds is not False:
            yield Because(cause.why, format_when(cause.when), cause.evidence, found.doubt)
