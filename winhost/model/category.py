"""Defect or advice: how a linter's finding counts, by its severity."""

from enum import StrEnum

NOTE = "note"


class Category(StrEnum):
    """A defect keeps the thing from starting, makes it other than written, exposes or destroys something. All else is
    advice. Every linter has a severity `note`, which is the one of advice.
    """

    DEFECT = "defect"
    ADVICE = "advice"

    @classmethod
    def of(cls, severity: str) -> "Category":
        return cls.ADVICE if severity == NOTE else cls.DEFECT
