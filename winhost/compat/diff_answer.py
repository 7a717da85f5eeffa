"""The answer of `diff --json`; `winhost schema` publishes its shape."""

from winhost.compat.compare import Comparison, Difference, VerdictChange, compare
from winhost.core.dataclass import dataclass
from winhost.model.facts import Facts


@dataclass(frozen=True)
class Reading:
    """Where facts come from: see Facts."""

    host: str
    origin: str
    read_at: str
    winhost: str


@dataclass(frozen=True)
class Diff:
    """The answer to `diff --json`. recommended: before and after; two_machines: the facts are of two machines."""

    before: Reading
    after: Reading
    differences: tuple[Difference, ...]
    verdicts: tuple[VerdictChange, ...]
    recommended: tuple[str | None, str | None]
    two_machines: bool


def difference(before: Facts, after: Facts) -> tuple[Comparison, Diff]:
    """The changes between two sets of facts, as a comparison and as its document. Raises WrongState."""
    found = compare(before, after)
    readings = _reading(before), _reading(after)
    document = Diff(*readings, found.differences, found.verdicts, found.recommended, found.two_machines)
    return found, document


def _reading(facts: Facts) -> Reading:
    return Reading(facts.host, facts.origin, facts.read_at, facts.winhost)
