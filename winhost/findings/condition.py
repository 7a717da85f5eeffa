"""The condition language of rows: questions and the answers that are wanted. docs/conditions.md is its manual."""

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
"""Answers that are wanted, by question. All of them have to hold; an empty one always holds."""
Ask: TypeAlias = Callable[[str], tuple[Any, ...]]
"""The answers to a question, of which one that fits is enough. Raises MissingFact, KeyError for an unknown question."""
Reader: TypeAlias = Callable[..., tuple[Any, ...]]
"""Answers one question about something. Raises MissingFact."""
Predicate: TypeAlias = Callable[..., bool]
Matcher: TypeAlias = Callable[[Any], bool]
"""Tells whether an answer is the wanted one."""

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
    """A condition of a catalogue, compiled when it is first evaluated. Rows of catalogues are asked thousands of
    times.
    """

    @cached_property
    def checks(self) -> tuple[tuple[str, Matcher], ...]:
        return tuple((question, matcher(wanted)) for question, wanted in self.items())

    def by(self, reading: Callable[[str], Reader]) -> Predicate:
        """Compile a predicate that tells whether it holds of something, whose questions `reading` reads. That raises
        MissingFact where unknown values decide.
        """
        return _predicate([(reading(question), fits) for question, fits in self.checks])


def _predicate(checks: Sequence[tuple[Reader, Matcher]]) -> Predicate:
    def one_holds(*about: Any) -> bool:
        answers = read(*about)
        return fits(answers[0]) if len(answers) == 1 else any(map(fits, answers))

    def all_hold(*about: Any) -> bool:
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
        return all_hold
    read, fits = checks[0]
    return one_holds


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


Undecided: TypeAlias = Literal["blocks", "notes", "nothing"]
UNDECIDED: Mapping[Undecided, Severity | None] = {
    "blocks": Severity.UNVERIFIED,
    "notes": Severity.NOTE,
    "nothing": None,
}
"""The severity of a row of which unknown values decide; None: nothing is said. Profiles block, linters say nothing, a
rule says it in its row (`unknown`).
"""


class _Conditional(Protocol):
    @property
    def when(self) -> When: ...


R = TypeVar("R", bound=_Conditional)


def holding(rows: Iterable[R], ask: Ask, undecided: Undecided) -> Iterator[tuple[R, ConditionResult]]:
    """Yield the rows that hold, and those that may hold unless `undecided` is `nothing`. Each row is evaluated once,
    and each question is asked once for all of them.

    Others call `evaluate` or `Condition.by` themselves. Rules of paths (compat/rule.py) are compiled, and facts keep
    the answer of each for all variants and commands. A cause of an error (symptoms/diagnosis.py) that the facts
    contradict is an answer, too, with everything that contradicts it; so is a key of .wslconfig that has no effect
    (wslconfig/rules.py). Each sign (symptoms/scan.py) is asked about its own place in a text.
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
        found = evaluate(row.when, once)
        if found.holds or (found.holds is None and UNDECIDED[undecided]):
            yield row, found


def evaluate(when: When, ask: Ask, *, whole: bool = False) -> ConditionResult:
    """One question that does not hold decides, even if others are unknown. whole: ask all the same."""
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
        if not whole:
            break
    if wrong:
        return ConditionResult(False, {}, wrong)
    return ConditionResult(None if unknown else True, unknown, seen)


def meets(answer: Any, wanted: Any) -> bool:
    """wanted: a value, a list of which one fits, a range such as `>=2.0, <2.5`, or `like`, `unlike` or `not`."""
    return matcher(wanted)(answer)


def matcher(wanted: Any) -> Matcher:
    """Compile what is wanted. Raises ValueError, KeyError, re.error for what the language does not have."""
    if isinstance(wanted, list):
        if not wanted:
            return lambda answer: answer == ()
        if all(isinstance(each, str) and each[:1] not in _RANGES for each in wanted):
            return partial(operator.contains, wanted)
        some = [matcher(each) for each in wanted]
        return lambda answer: any(fits(answer) for fits in some)
    if isinstance(wanted, dict):
        every = [_MATCHERS[how](what) for how, what in wanted.items()]
        return every[0] if len(every) == 1 else lambda answer: all(fits(answer) for fits in every)
    if isinstance(wanted, str) and wanted[:1] in _RANGES:
        return _within(bounds(wanted))
    if isinstance(wanted, str):
        return partial(operator.eq, wanted)
    if wanted is None or isinstance(wanted, bool):
        return partial(operator.is_, wanted)
    return lambda answer: bool(answer == wanted) and not isinstance(answer, bool)


def _without(wanted: Any) -> Matcher:
    fits = matcher(wanted)
    return lambda answer: not fits(answer)


def _like(pattern: str) -> Matcher:
    search = re.compile(pattern).search
    return lambda answer: search(str(answer)) is not None


def _unlike(pattern: str) -> Matcher:
    search = re.compile(pattern).search
    return lambda answer: bool(answer) and search(str(answer)) is None


def _contains(wanted: str | list[str]) -> Matcher:
    texts = [wanted] if isinstance(wanted, str) else wanted
    return lambda answer: bool(answer) and any(text in str(answer) for text in texts)


def _has(wanted: Any) -> Matcher:
    fits = matcher(wanted)
    return lambda answer: any(map(fits, answer or ()))


def _lacks(wanted: Any) -> Matcher:
    return _without({"has": wanted})


_MATCHERS: Mapping[str, Callable[[Any], Matcher]] = {
    "not": _without,
    "like": _like,
    "unlike": _unlike,
    "contains": _contains,
    "has": _has,
    "lacks": _lacks,
}


def _within(limits: "tuple[tuple[str, Version], ...]") -> Matcher:
    """A number or version within the bounds; nothing else is. As versions, 0.8 would be below 0.75."""
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
    """The version that a text is; None for any other text."""
    from packaging.version import InvalidVersion, Version  # a tab reads codes, and no condition

    try:
        return Version(text)
    except InvalidVersion:
        return None


def bounds(wanted: str) -> "tuple[tuple[str, Version], ...]":
    """`>=0.24, <0.30`. Raises ValueError."""
    from packaging.version import Version  # as above

    matches = [_BOUND.fullmatch(part.strip()) for part in wanted.split(",")]
    if not all(matches):
        raise ValueError(f"{wanted!r} is no range")
    return tuple((match[1], Version(match[2])) for match in matches if match)


_IN_WORDS: Mapping[str, Callable[[Any], str]] = {
    "size": size,
    "about": about,
    "count": lambda answer: str(len(answer)),
}


def say(sentence: str, answers: Any) -> str:
    """A sentence of a row with the answers that it names. `{name:words}` says these words where nothing is there, and
    the items of a list; `{name:size}` and `{name:about}` are sizes of bytes, `{name:count}` is how many there are.
    """
    return _saying(sentence)(answers)


@lru_cache(maxsize=1024)
def _saying(sentence: str) -> Callable[[Any], str]:
    """Most sentences have no such words, and what Python is built of fills those in fastest."""
    parts = list(_SENTENCES.parse(sentence))
    if any(spec for _, _, spec, _ in parts):
        return lambda answers: "".join(map(_SENTENCES.part, parts, repeat(answers)))
    return sentence.format_map


class _Sentences(Formatter):
    def part(self, parsed: "tuple[str, str | None, str | None, str | None]", answers: Any) -> str:
        literal, name, spec, _ = parsed
        return (
            literal if name is None else literal + self.format_field(self.get_field(name, (), answers)[0], spec or "")
        )

    def format_field(self, value: Any, spec: str) -> str:
        if spec in _IN_WORDS:
            return _IN_WORDS[spec](value)
        if isinstance(value, tuple):
            value = ", ".join(map(str, value))
        return spec if spec and value in (None, "") else str(value)


_SENTENCES = _Sentences()


def format_when(when: When, found: ConditionResult | None = None) -> str:
    """Format a condition for people: `vllm >=0.24, <0.30; gpus >1; not lmcache`. found: of one that holds, or may hold,
    adds the answers: `vllm >=0.24, <0.30 (0.28.0)`.
    """
    words = []
    for asked, wanted in when.items():
        plain = isinstance(wanted, bool)
        words.append("not " * (plain and not wanted) + (asked if plain else f"{asked} {_format(wanted)}"))
        if found and (asked in found.unknown or not plain):
            words[-1] += f" ({'unknown' if asked in found.unknown else ', '.join(map(str, found.seen[asked]))})"
    return "; ".join(words)


def _format(wanted: Any) -> str:
    if isinstance(wanted, list):
        return " or ".join(map(_format, wanted)) or "empty"
    if isinstance(wanted, dict):
        return ", ".join(f"{how} {_format(what)}" for how, what in wanted.items())
    return str(wanted)


def fault_of(when: When, questions: Callable[[str], bool]) -> str | None:
    """The first mistake in a condition: a question that nobody answers, a bad range or expression; None without one."""
    for question, wanted in when.items():
        if not questions(question):
            return f"nothing answers the question {question}"
        try:
            matcher(wanted)
        except (ValueError, KeyError, re.error) as error:
            return f"{question}: {error}"
    return None
