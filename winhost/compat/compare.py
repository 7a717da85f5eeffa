"""Differences between two sets of facts of a host, and between the verdicts that follow. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Literal, TypeAlias

from winhost.compat.assess import assess
from winhost.core.answers import Json, Key, MissingFact, Record, Unavailable, Unknown
from winhost.core.dataclass import dataclass
from winhost.model.facts import Answer, Facts
from winhost.model.reason import Assessment, Finding, PathVerdict, Severity, Verdict
from winhost.resources.host import HostFacts

NamedVerdict: TypeAlias = tuple[str, Verdict | None]
Change: TypeAlias = Literal["changed", "gone", "new"]

# Properties that change by themselves from one reading to the next.
VOLATILE = frozenset(
    {
        ("Memory", "free"),
        ("Boot", "boot_id"),
        ("Boot", "logon_ready"),
        ("Boot", "servicing"),
        ("LinuxBoot", "boot_id"),
        ("LinuxBoot", "ready"),
    }
)
_MISSING = frozenset({"unknown", "unavailable"})


@dataclass(frozen=True)
class Difference:
    """One property; a whole instance that is new or gone; or a whole resource (no key) that could not be read.

    before, after: JSON as in the facts, None where there is nothing; volatile: it changes by itself.
    """

    what: Change
    resource: str
    key: Key | None
    property: str | None
    before: Json
    after: Json
    volatile: bool = False


@dataclass(frozen=True)
class Moved:
    """A GPU, VM or capability of a path that is judged differently; None where it does not exist."""

    name: str
    before: Verdict | None
    after: Verdict | None


@dataclass(frozen=True)
class VerdictChange:
    """A path that is judged differently, or equally for other reasons. None: it was not judged."""

    path: str
    before: Verdict | None
    after: Verdict | None
    gone: tuple[Finding, ...]
    new: tuple[Finding, ...]
    subjects: tuple[Moved, ...]
    capabilities: tuple[Moved, ...]


@dataclass(frozen=True)
class Reading:
    """The source of facts: see Facts."""

    host: str
    origin: str
    read_at: str
    winhost: str


@dataclass(frozen=True)
class Diff:
    """The answer to `diff --json`. recommended: before and after; two_machines: the machine ids differ. False where one
    of them could not be read.
    """

    before: Reading
    after: Reading
    differences: tuple[Difference, ...]
    verdicts: tuple[VerdictChange, ...]
    recommended: tuple[str | None, str | None]
    two_machines: bool

    @property
    def machines(self) -> tuple[Json, Json]:
        """The machine ids before and after, if they differ."""
        machine_id = ("OperatingSystem", "machine_id")
        return next(
            (each.before, each.after) for each in self.differences if (each.resource, each.property) == machine_id
        )

    @property
    def lasting(self) -> tuple[Difference, ...]:
        """Differences other than those that change by themselves."""
        return tuple(each for each in self.differences if not each.volatile)


def compare(before: Facts, after: Facts) -> Diff:
    """Compare facts by resource, key and property, then the verdicts of both. Raises WrongState."""
    resources = dict.fromkeys((*before.resources, *after.resources))
    differences = [
        each
        for resource in resources
        for each in _compare_resource(resource, before.answer(resource), after.answer(resource))
    ]
    old, new = assess(HostFacts(before)), assess(HostFacts(after))
    ids = {_machine_id(before), _machine_id(after)}
    return Diff(
        _reading(before),
        _reading(after),
        tuple(differences),
        tuple(_compare_verdicts(old, new)),
        (old.recommended, new.recommended),
        two_machines=len(ids - {""}) == 2,
    )


def _reading(facts: Facts) -> Reading:
    return Reading(facts.host, facts.origin, facts.read_at, facts.winhost)


def _machine_id(facts: Facts) -> str:
    try:
        return HostFacts(facts).os.machine_id
    except MissingFact:
        return ""


# ---- facts


def _compare_resource(resource: str, before: Answer, after: Answer) -> Iterator[Difference]:
    if isinstance(before, tuple) and isinstance(after, tuple):
        old, new = _records_by_key(before), _records_by_key(after)
        for key in dict.fromkeys((*old, *new)):
            yield from _compare_instance(resource, old.get(key), new.get(key))
    elif not _is_same(_answer_as_json(before), _answer_as_json(after)):
        yield Difference("changed", resource, None, None, _answer_as_json(before), _answer_as_json(after))


def _records_by_key(records: Iterable[Record]) -> dict[tuple[tuple[str, str], ...], Record]:
    return {tuple(sorted(record.key.items())): record for record in records}


def _compare_instance(resource: str, before: Record | None, after: Record | None) -> Iterator[Difference]:
    if before is None:
        assert after is not None
        yield Difference("new", resource, after.key, None, None, dict(after.state))
    elif after is None:
        yield Difference("gone", resource, before.key, None, dict(before.state), None)
    else:
        yield from _compare_properties(resource, before, after)


def _compare_properties(resource: str, before: Record, after: Record) -> Iterator[Difference]:
    for name in dict.fromkeys((*before.state, *after.state)):
        old, new = before.state.get(name), after.state.get(name)
        if not _is_same(old, new):
            yield Difference("changed", resource, before.key, name, old, new, volatile=(resource, name) in VOLATILE)


def _answer_as_json(answer: Answer) -> Json:
    if isinstance(answer, Unknown | Unavailable):
        return asdict(answer)
    return [{"state": dict(record.state), "key": dict(record.key)} for record in answer]


def _is_same(before: Json, after: Json) -> bool:
    """Tell whether two values are equal. Errors are compared by code, because messages are in the host's language and
    may contain a time or a handle.
    """
    return bool(_comparable(before) == _comparable(after))


def _comparable(value: Json) -> Json:
    error = value.get("unknown") if isinstance(value, Mapping) and set(value) == {"unknown"} else None
    return ("unknown", error.get("category"), error.get("code")) if isinstance(error, Mapping) else value


def is_missing(value: Json) -> bool:
    """Tell whether a value in facts represents a missing one."""
    return isinstance(value, Mapping) and len(value) == 1 and not _MISSING.isdisjoint(value)


# ---- verdicts


def _compare_verdicts(before: Assessment, after: Assessment) -> Iterator[VerdictChange]:
    old, new = ({path.path: path for path in judged.paths} for judged in (before, after))
    for path in dict.fromkeys((*old, *new)):
        change = _compare_path(path, old.get(path), new.get(path))
        if change.before is not change.after or any((change.gone, change.new, change.subjects, change.capabilities)):
            yield change


def _compare_path(path: str, before: PathVerdict | None, after: PathVerdict | None) -> VerdictChange:
    return VerdictChange(
        path,
        before.verdict if before else None,
        after.verdict if after else None,
        gone=_reasons_only_in(before, after),
        new=_reasons_only_in(after, before),
        subjects=tuple(_changed_verdicts(_subject_verdicts(before), _subject_verdicts(after))),
        capabilities=tuple(_changed_verdicts(_capability_verdicts(before), _capability_verdicts(after))),
    )


def _reasons_only_in(these: PathVerdict | None, others: PathVerdict | None) -> tuple[Finding, ...]:
    known = {_reason_identity(reason) for reason in others.every_reason} if others else set()
    reasons = these.every_reason if these else ()
    return tuple(dict.fromkeys(reason for reason in reasons if _reason_identity(reason) not in known))


def _reason_identity(reason: Finding) -> tuple[str, Severity, str, str]:
    """Return the identity of a reason. The observation is only part of it for missing facts, which it distinguishes."""
    observed = reason.observed if reason.code.endswith(".unknown") else ""
    return reason.code, reason.severity, reason.subject, observed


def _changed_verdicts(before: Mapping[str, NamedVerdict], after: Mapping[str, NamedVerdict]) -> Iterator[Moved]:
    for key in dict.fromkeys((*before, *after)):
        name, old = before.get(key, (key, None))
        name, new = after.get(key, (name, None))
        if old is not new:
            yield Moved(name, old, new)


def _subject_verdicts(path: PathVerdict | None) -> Mapping[str, NamedVerdict]:
    return {each.key: (each.name, each.verdict) for each in (*path.gpus, *path.vms)} if path else {}


def _capability_verdicts(path: PathVerdict | None) -> Mapping[str, NamedVerdict]:
    return {each.capability: (each.capability, each.verdict) for each in path.capabilities} if path else {}
