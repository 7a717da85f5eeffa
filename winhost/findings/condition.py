"""The condition language of catalogue rows: questions, and the answers that they must have. docs/conditions.md is its
manual.
"""

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from itertools import repeat
from string import Formatter
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar

from winhost.core.answers import MissingFact
from winhost.core.dataclass import dataclass
from winhost.model.reason import Severity
from winhost.model.units import about, size

if TYPE_CHECKING:
    from packaging.version import Version

When: TypeAlias = Mapping[str, Any]
"""The expected answers, by question. All of them must match; an empty condition always holds."""
Ask: TypeAlias = Callable[[str], tuple[Any, ...]]
"""Returns the answers to a question, of which one that matches is enough. Raises MissingFact; KeyError for an unknown
question.
"""
Reader: TypeAlias = Callable[..., tuple[Any, ...]]
"""Returns the answers to one question about a subject. Raises MissingFact."""
Predicate: TypeAlias = Callable[..., bool]
Matcher: TypeAlias = Callable[[Any], bool]
"""Returns whether an answer matches the expected one."""

_BOUND = re.compile(r"(>=|<=|==|!=|>|<)\s*(\S+)")
_NUMBER = re.compile(r"\d+(\.\d+)?")
_RANGES = ("<", ">", "=", "!")
_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}


class Condition(dict[str, Any]):
    """A condition of a catalogue row, compiled when it is first evaluated: rows are evaluated thousands of times."""

    @cached_property
    def checks(self) -> tuple[tuple[str, Matcher], ...]:
        return tuple((question, matcher(expected)) for question, expected in self.items())

    def compile(self, reader_of: Callable[[str], Reader]) -> Predicate:
        """Return a predicate that tells whether the condition holds for a subject. It raises MissingFact where unknown
        values decide. reader_of: returns the reader of a question.
        """
        return _predicate([(reader_of(question), fits) for question, fits in self.checks])


def _predicate(checks: Sequence[tuple[Reader, Matcher]]) -> Predicate:
    def check_single(*about: Any) -> bool:
        answers = read(*about)
        return fits(answers[0]) if len(answers) == 1 else any(map(fits, answers))

    def check_all(*about: Any) -> bool:
        unknown = None
        for read, fits in checks:
            try:
                answers = read(*about)
            except MissingFact as missing:
                unknown = unknown or missing
                continue
            if not any(map(fits, answers)):
                return False
        if unknown:
            raise unknown
        return True

    if len(checks) != 1:
        return check_all
    read, fits = checks[0]
    return check_single


@dataclass(frozen=True)
class ConditionResult:
    """The result of a condition. holds: None where unknown values decide; unknown: the missing facts, by question;
    seen: where `holds` is False, the answers that do not match, else those that match.
    """

    holds: bool | None
    unknown: Mapping[str, MissingFact]
    seen: Mapping[str, tuple[Any, ...]]

    @property
    def doubt(self) -> str | None:
        return "; ".join(map(str, self.unknown.values())) if self.holds is None else None


Undecided: TypeAlias = Literal["blocks", "notes", "nothing"]
UNDECIDED: Mapping[Undecided, Severity | None] = {
    "blocks": Severity.UNVERIFIED,
    "notes": Severity.NOTE,
    "nothing": None,
}
"""The severity of a row whose condition unknown values decide; None: it is not reported. Profiles block, linters report
nothing, and the row of a rule says which (`unknown`).
"""


class _Conditional(Protocol):
    @property
    def when(self) -> When: ...


R = TypeVar("R", bound=_Conditional)


def matching_rows(rows: Iterable[R], ask: Ask, undecided: Undecided) -> Iterator[tuple[R, ConditionResult]]:
    """Yield the rows whose condition holds, and unless `undecided` is `nothing` those whose condition may hold. Each
    question is asked once for all rows.

    Three callers use `evaluate` or `Condition.compile` instead. Rules of paths (compat/rule.py) are compiled, because
    facts keep each answer for all variants and commands. Causes of an error (symptoms/diagnosis.py) and keys of
    .wslconfig without effect (wslconfig/rules.py) are reported when their condition does not hold, with every mismatch.
    Each sign of a symptom (symptoms/scan.py) is evaluated at its own position in a text.
    """
    answered: dict[str, tuple[Any, ...] | MissingFact] = {}

    def once(question: str) -> tuple[Any, ...]:
        if question not in answered:
            try:
                answered[question] = ask(question)
            except MissingFact as missing:
                answered[question] = missing
        answer = answered[question]
        if isinstance(answer, MissingFact):
            raise answer
        return answer

    for row in rows:
        result = evaluate(row.when, once)
        if result.holds or (result.holds is None and UNDECIDED[undecided]):
            yield row, result


def evaluate(when: When, ask: Ask, *, exhaustive: bool = False) -> ConditionResult:
    """Evaluate a condition. One answer that does not match decides, even if others are unknown. exhaustive: ask the
    other questions all the same, so that the result has every mismatch.
    """
    unknown: dict[str, MissingFact] = {}
    seen: dict[str, tuple[Any, ...]] = {}
    wrong: dict[str, tuple[Any, ...]] = {}
    for question, fits in (when if isinstance(when, Condition) else Condition(when)).checks:
        try:
            answers = ask(question)
        except MissingFact as missing:
            unknown[question] = missing
            continue
        if any(map(fits, answers)):
            seen[question] = answers
            continue
        wrong[question] = answers
        if not exhaustive:
            break
    if wrong:
        return ConditionResult(False, {}, wrong)
    return ConditionResult(None if unknown else True, unknown, seen)


def matches(answer: Any, expected: Any) -> bool:
    """Tell whether an answer matches. expected: a value, a list of alternatives, a range such as `>=2.0, <2.5`, or a
    mapping of `like`, `not` and the other operators.
    """
    return matcher(expected)(answer)


def matcher(expected: Any) -> Matcher:
    """Compile an expected answer. Raises ValueError, KeyError or re.error for anything outside the language."""
    if isinstance(expected, list):
        if not expected:
            return lambda answer: answer == ()
        if all(isinstance(each, str) and each[:1] not in _RANGES for each in expected):
            return partial(operator.contains, expected)
        some = [matcher(each) for each in expected]
        return lambda answer: any(fits(answer) for fits in some)
    if isinstance(expected, dict):
        every = [_MATCHERS[how](what) for how, what in expected.items()]
        return every[0] if len(every) == 1 else lambda answer: all(fits(answer) for fits in every)
    if isinstance(expected, str) and expected[:1] in _RANGES:
        return _within(bounds(expected))
    if isinstance(expected, str):
        return partial(operator.eq, expected)
    if expected is None or isinstance(expected, bool):
        return partial(operator.is_, expected)
    return lambda answer: bool(answer == expected) and not isinstance(answer, bool)


def _not(expected: Any) -> Matcher:
    fits = matcher(expected)
    return lambda answer: not fits(answer)


def _like(pattern: str) -> Matcher:
    search = re.compile(pattern).search
    return lambda answer: search(str(answer)) is not None


def _unlike(pattern: str) -> Matcher:
    search = re.compile(pattern).search
    return lambda answer: bool(answer) and search(str(answer)) is None


def _contains(expected: str | list[str]) -> Matcher:
    texts = [expected] if isinstance(expected, str) else expected
    return lambda answer: bool(answer) and any(text in str(answer) for text in texts)


def _has(expected: Any) -> Matcher:
    fits = matcher(expected)
    return lambda answer: any(map(fits, answer or ()))


def _has_not(expected: Any) -> Matcher:
    return _not({"has": expected})


_MATCHERS: Mapping[str, Callable[[Any], Matcher]] = {
    "not": _not,
    "like": _like,
    "unlike": _unlike,
    "contains": _contains,
    "has": _has,
    "lacks": _has_not,
}


def _within(limits: "tuple[tuple[str, Version], ...]") -> Matcher:
    """Match numbers and versions within the bounds, and nothing else. Numbers are compared as numbers: as a version,
    0.8 would be below 0.75.
    """
    numbers = [(_COMPARE[sign], float(str(bound))) for sign, bound in limits if _NUMBER.fullmatch(str(bound))]

    def fits(answer: Any) -> bool:
        if type(answer) in (int, float) and len(numbers) == len(limits):
            return all(compare(answer, bound) for compare, bound in numbers)
        if answer is None or isinstance(answer, bool):
            return False
        version = answer if hasattr(answer, "release") else version_of(str(answer))
        return version is not None and all(_COMPARE[sign](version, bound) for sign, bound in limits)

    return fits


@lru_cache(maxsize=1024)
def version_of(text: str) -> "Version | None":
    """Parse a version; None if the text is none."""
    from packaging.version import InvalidVersion, Version  # shell completion evaluates no condition

    try:
        return Version(text)
    except InvalidVersion:
        return None


def bounds(text: str) -> "tuple[tuple[str, Version], ...]":
    """Parse a range such as `>=0.24, <0.30`. Raises ValueError."""
    from packaging.version import Version  # as above

    matches = [_BOUND.fullmatch(part.strip()) for part in text.split(",")]
    if not all(matches):
        raise ValueError(f"{text!r} is no range")
    return tuple((match[1], Version(match[2])) for match in matches if match)


_FORMATS: Mapping[str, Callable[[Any], str]] = {"size": size, "about": about, "count": lambda answer: str(len(answer))}


def format_sentence(sentence: str, answers: Any) -> str:
    """Fill the placeholders of a row's sentence with answers. `{name:words}` becomes these words where the answer is
    empty; a list becomes its items; `{name:size}` and `{name:about}` format bytes, `{name:count}` counts items.
    """
    return _compile_sentence(sentence)(answers)


@lru_cache(maxsize=1024)
def _compile_sentence(sentence: str) -> Callable[[Any], str]:
    """Most sentences have no format specification; `str.format_map` is the fastest for them."""
    parts = list(_FORMATTER.parse(sentence))
    if any(spec for _, _, spec, _ in parts):
        return lambda answers: "".join(map(_FORMATTER.part, parts, repeat(answers)))
    return sentence.format_map


class _SentenceFormatter(Formatter):
    def part(self, parsed: "tuple[str, str | None, str | None, str | None]", answers: Any) -> str:
        literal, name, spec, _ = parsed
        return (
            literal if name is None else literal + self.format_field(self.get_field(name, (), answers)[0], spec or "")
        )

    def format_field(self, value: Any, spec: str) -> str:
        if spec in _FORMATS:
            return _FORMATS[spec](value)
        if isinstance(value, tuple):
            value = ", ".join(map(str, value))
        return spec if spec and value in (None, "") else str(value)


_FORMATTER = _SentenceFormatter()


def format_condition(when: When, result: ConditionResult | None = None) -> str:
    """Format a condition for people: `vllm >=0.24, <0.30; gpus >1; not lmcache`. result: of a condition that holds or
    may hold; its answers are added: `vllm >=0.24, <0.30 (0.28.0)`.
    """
    parts = []
    for question, expected in when.items():
        if isinstance(expected, bool):
            part = question if expected else f"not {question}"
        else:
            part = f"{question} {_format_expected(expected)}"
        if result and question in result.unknown:
            part += " (unknown)"
        elif result and not isinstance(expected, bool):
            part += f" ({', '.join(map(str, result.seen[question]))})"
        parts.append(part)
    return "; ".join(parts)


def _format_expected(expected: Any) -> str:
    if isinstance(expected, list):
        return " or ".join(map(_format_expected, expected)) or "empty"
    if isinstance(expected, dict):
        return ", ".join(f"{how} {_format_expected(what)}" for how, what in expected.items())
    return str(expected)


def find_mistake(when: When, questions: Callable[[str], bool]) -> str | None:
    """Return the first mistake in a condition: an unknown question, a bad range or a bad expression; None if there is
    none. questions: tells whether a question is known.
    """
    for question, expected in when.items():
        if not questions(question):
            return f"nothing answers the question {question}"
        try:
            matcher(expected)
        except (ValueError, KeyError, re.error) as error:
            return f"{question}: {error}"
    return None
