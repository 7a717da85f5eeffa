"""The condition language of rows: questions and the answers that are wanted. docs/conditions.md is its manual."""

import operator
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

from packaging.version import InvalidVersion, Version

from winhost.core.answers import MissingFact
from winhost.core.dataclass import dataclass

When: TypeAlias = Mapping[str, Any]
"""Answers that are wanted, by question. All of them have to hold; an empty one always holds."""
Ask: TypeAlias = Callable[[str], tuple[Any, ...]]
"""The answers to a question, of which one that fits is enough. Raises MissingFact, KeyError for an unknown question."""

_BOUND = re.compile(r"(>=|<=|==|!=|>|<)\s*(\S+)")
_COMPARE: Mapping[str, Callable[[Version, Version], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}


@dataclass(frozen=True)
class ConditionResult:
    """holds: None where unknown values decide; unknown: those, by question; seen: the answers of questions that hold,
    or of those that do not where `holds` is False.
    """

    holds: bool | None
    unknown: Mapping[str, MissingFact]
    seen: Mapping[str, tuple[Any, ...]]

    @property
    def doubt(self) -> str | None:
        return "; ".join(map(str, self.unknown.values())) if self.holds is None else None


def evaluate(when: When, ask: Ask, *, whole: bool = False) -> ConditionResult:
    """One question that does not hold decides, even if others are unknown. whole: ask all the same."""
    unknown: dict[str, MissingFact] = {}
    seen: dict[str, tuple[Any, ...]] = {}
    wrong: dict[str, tuple[Any, ...]] = {}
    for question, wanted in when.items():
        try:
            answers = ask(question)
        except MissingFact as missing:
            unknown[question] = missing
            continue
        if any(meets(answer, wanted) for answer in answers):
            seen[question] = answers
            continue
        wrong[question] = answers
        if not whole:
            break
    if wrong:
        return ConditionResult(False, {}, wrong)
    return ConditionResult(None if unknown else True, unknown, seen)


def holds(when: When, ask: Ask) -> bool:
    """Raises MissingFact where unknown values decide."""
    unknown = None
    for question, wanted in when.items():
        try:
            answers = ask(question)
        except MissingFact as missing:
            unknown = unknown or missing
            continue
        if not (meets(answers[0], wanted) if len(answers) == 1 else any(meets(answer, wanted) for answer in answers)):
            return False
    if unknown:
        raise unknown
    return True


def meets(answer: Any, wanted: Any) -> bool:
    """wanted: a value, a list of which one fits, a range such as `>=2.0, <2.5`, or `like`, `unlike` or `not`."""
    kind = type(wanted)
    if kind is list:
        return any(meets(answer, each) for each in wanted)
    if kind is dict:
        return all(_MEETS[how](answer, what) for how, what in wanted.items())
    if kind is str and wanted[:1] in "<>=!" and wanted:
        return in_range(answer, wanted)
    return bool(answer == wanted) and (type(answer) is bool) is (kind is bool)


_MEETS: Mapping[str, Callable[[Any, Any], bool]] = {
    "not": lambda answer, wanted: not meets(answer, wanted),
    "like": lambda answer, pattern: re.search(pattern, str(answer)) is not None,
    "unlike": lambda answer, pattern: bool(answer) and re.search(pattern, str(answer)) is None,
}


def in_range(answer: Any, wanted: str) -> bool:
    """A number or version within the bounds; nothing else is."""
    if answer is None or isinstance(answer, bool):
        return False
    try:
        version = answer if isinstance(answer, Version) else Version(str(answer))
    except InvalidVersion:
        return False
    return all(_COMPARE[sign](version, bound) for sign, bound in bounds(wanted))


@lru_cache(maxsize=1024)
def bounds(wanted: str) -> tuple[tuple[str, Version], ...]:
    """`>=0.24, <0.30`. Raises ValueError."""
    matches = [_BOUND.fullmatch(part.strip()) for part in wanted.split(",")]
    if not all(matches):
        raise ValueError(f"{wanted!r} is no range")
    return tuple((match[1], Version(match[2])) for match in matches if match)


def format_when(when: When) -> str:
    """For people: `vllm >=0.24, <0.30; gpus >1; not lmcache`."""
    words = (
        "not " * (not wanted) + asked if isinstance(wanted, bool) else f"{asked} {_format(wanted)}"
        for asked, wanted in when.items()
    )
    return "; ".join(words) or "always"


def _format(wanted: Any) -> str:
    if isinstance(wanted, list):
        return " or ".join(map(_format, wanted))
    if isinstance(wanted, dict):
        return ", ".join(f"{how} {_format(what)}" for how, what in wanted.items())
    return str(wanted)


def fault_of(when: When, questions: Callable[[str], bool]) -> str | None:
    """The first mistake in a condition: a question that nobody answers, a bad range or expression; None without one."""
    for question, wanted in when.items():
        if not questions(question):
            return f"nothing answers the question {question}"
        try:
            _check(wanted)
        except (ValueError, KeyError, re.error) as error:
            return f"{question}: {error}"
    return None


def _check(wanted: Any) -> None:
    if isinstance(wanted, list):
        for each in wanted:
            _check(each)
    elif isinstance(wanted, dict):
        for how, what in wanted.items():
            _MEETS[how]
            re.compile(what) if how in ("like", "unlike") else _check(what)
    elif isinstance(wanted, str) and wanted[:1] in "<>=!" and wanted:
        bounds(wanted)
