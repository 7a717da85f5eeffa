"""The explanation of a code: what it means, what to do, its evidence, and related codes."""

from winhost.knowledge import catalogue
from winhost.knowledge.related import related
from winhost.model.reason import Explanation


def explain(code: str) -> Explanation:
    """Of a code. Raises UsageError: UnknownCode."""
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
