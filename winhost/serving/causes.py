"""Why a model may not sleep: the causes of a profile without sleep that hold in a case."""

from collections.abc import Iterator

from winhost.core.dataclass import dataclass
from winhost.findings.condition import format_when
from winhost.serving.profile import profile
from winhost.serving.when import Case, holds


@dataclass(frozen=True)
class Because:
    """Why a profile was chosen. unverified: what is missing to be sure of it."""

    why: str
    when: str
    evidence: tuple[str, ...]
    unverified: str | None = None


def causes_of(case: Case, fallback: str) -> Iterator[Because]:
    """Of the fallback's, those that hold or may."""
    for cause in profile(fallback).chosen:
        found = holds(cause.when, case)
        if found.holds is not False:
            yield Because(cause.why, format_when(cause.when), cause.evidence, found.doubt)
