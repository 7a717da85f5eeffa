"""The explanation of a code: what it means, what to do, its evidence, and related codes."""

from winhost.knowledge import catalogue
from winhost.knowledge.related import related
from winhost.model.once import once
from winhost.model.reason import Explanation


@once
def explain(code: str) -> Explanation:
    """Kept: the reports of many hosts explain the same codes. Raises UsageError: UnknownCode."""
    found = catalogue.entry(code)
    return Explanation(
        code=code,
        sentence=found.sentence,
        means=found.means,
        risks=found.risks,
        remedy=catalogue.remedies()[found.remedy] if found.remedy else None,
        evidence=tuple(catalogue.evidence()[key] for key in found.evidence),
        related=related(code, found, catalogue.own_entries()),
    )
