"""Decide which of a run's changes can be undone now, which newer resources depend on the others, and what of a resource
is undone by its rule. bundle/powershell/rules.ps1 does the same.
"""

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import cast

from .answers import HostAnswers, Id, Json, Key, MissingFact, Unavailable, identity, refuse_missing
from .changes import ChangedResource, Changes, Dependent
from .conditions import States, hold, worded
from .dataclass import dataclass
from .dependents import dependents_by, dependents_of, depends
from .rules import DependentRule, ResourceRules, UndoRule

_GONE = "it is not there any more"


@dataclass(frozen=True)
class Keep:
    """The reason why rollback leaves something, or a part of it, as it is. rest: properties that are still restored."""

    reason: str
    rest: Mapping[str, Json] = field(default_factory=dict)


Undo = Mapping[str, Json] | Keep


@dataclass(frozen=True)
class Verdicts:
    """The verdicts on everything that a run touched. undone: what is undone of each; kept: why something is not;
    missing: what could not be decided; waiting: what is undone once newer resources are gone, and their names.
    """

    undone: Mapping[Id, Undo]
    kept: Mapping[Id, str]
    missing: Mapping[Id, MissingFact]
    waiting: Mapping[Id, tuple[str, ...]]

    def restored(self, id_: Id) -> Mapping[str, Json]:
        """The properties to restore; none if that could not be decided."""
        return _rest(self.undone.get(id_, {}))


def judge(record: Changes, host: HostAnswers) -> Verdicts:
    """Decide what is undone. Whatever is kept also keeps what it depends on."""
    judging = _Judging(record, host)
    while judging.keeps_more():
        pass
    return judging.verdicts()


class _Judging:
    def __init__(self, record: Changes, host: HostAnswers) -> None:
        self._record = record
        self._host = host
        self._undone: dict[Id, Undo] = {}
        self._missing: dict[Id, MissingFact] = {}
        self._used: dict[Id, tuple[str, ...]] = {}
        for id_, touched in record.touched.items():
            try:
                # What was restored for good belongs to others by now, so it need not be read.
                self._undone[id_] = {} if id_ in record.restored else _undo(touched, host, record)
            except MissingFact as missing:
                self._missing[id_] = missing

    def keeps_more(self) -> bool:
        """Check once more all that would be undone. Returns whether some of it has to stay."""
        found = False
        for id_ in [id_ for id_ in self._undone if self._goes(id_)]:
            try:
                names = self._kept_for(self._record.touched[id_])
            except MissingFact as missing:
                self._missing[id_] = missing
                del self._undone[id_]
                found = True
                continue
            if names:
                self._used[id_] = names
                found = True
        return found

    def verdicts(self) -> Verdicts:
        lost = {id_: touched for id_, touched in self._record.touched.items() if id_ in self._missing}
        missing = {id_: self._missing[id_] for id_, touched in lost.items() if not self._goes_along(touched)}
        kept = {id_: undo.reason for id_, undo in self._undone.items() if isinstance(undo, Keep)}
        for id_, names in self._used.items():
            kept[id_] = f"for {', '.join(names)}, which came later; undo that, then do this again"
        undone: Mapping[Id, Undo] = {id_: undo for id_, undo in self._undone.items() if id_ not in self._used}
        in_order = {id_: kept[id_] for id_ in self._record.touched if id_ in kept}
        return Verdicts(undone, in_order, missing, self._used)

    def _goes(self, id_: Id) -> bool:
        return id_ in self._undone and id_ not in self._used and bool(_rest(self._undone[id_]))

    # ---- what came later

    def _kept_for(self, touched: ChangedResource) -> tuple[str, ...]:
        """The names of dependents that are newer than the change. Raises MissingFact."""
        for id_, missing in self._missing.items():
            part = self._record.touched[id_]
            if self._host.rules[part.resource].requires == touched.resource and not self._goes_along(part):
                raise missing  # without this role nobody could restore what its VMs have
        names: list[str] = []
        # What is inside a distro goes with it, and is exported first, so it need not be read.
        held = touched.dependents is not None and not self._is_of_ours(touched)
        for id_, (rule, user) in dependents_of(touched.resource, touched.key, self._host, held=held).items():
            if id_ in self._record.touched:
                names += self._named_own(id_, touched)
            elif not _is_known(rule, user, touched):
                self._refuse_nameless(user, touched)
                names.append(_named(self._host.rules[user.resource], user.key))
        names += [name for id_ in self._lent(touched) for name in self._named_own(id_, touched)]
        return tuple(dict.fromkeys(names))

    def _refuse_nameless(self, user: Dependent, touched: ChangedResource) -> None:
        """Refuse to judge by the disk of a distro that cannot be listed: it may be a known one, even one of this run.
        Raises MissingFact.
        """
        if "" not in user.key.values():
            return
        known: list[Dependent | ChangedResource] = [self._record.touched[id_] for id_ in self._missing]
        known += (*touched.users, *(touched.first_dependents or ()), *(touched.dependents or ()))
        for each in (each for each in known if each.resource == user.resource):
            if all(each.key[name] == part for name, part in user.key.items() if part):
                raise MissingFact(user.resource, cast(Unavailable, self._host.answer(user.resource)))

    def _named_own(self, id_: Id, whole: ChangedResource) -> tuple[str, ...]:
        """The names of the run's own changes that others depend on by now; none inside a distro that this run made,
        because others' changes go with the distro, too.
        """
        touched = self._record.touched[id_]
        if id_ in self._used:
            return self._used[id_]
        inside = _is_in(touched, whole, self._host) and _was_made(whole, self._host)
        others = isinstance(self._undone.get(id_), Keep) and not self._goes(id_) and is_others(touched, self._host)
        return (touched.title,) if others and not inside else ()

    def _lent(self, whole: ChangedResource) -> Iterator[Id]:
        """The resources that this run created and others have removed."""
        for rule in self._host.rules[whole.resource].dependents:
            for id_, touched in self._record.touched.items():
                left = {**touched.before, **touched.after}
                if touched.resource == rule.resource and rule.lent and depends(rule, whole.key, touched.key, left):
                    yield id_

    # ---- what went along

    def _is_of_ours(self, touched: ChangedResource) -> bool:
        """Tell whether it is a distro that this run made, or something inside one."""
        wholes = [whole for whole in self._record.touched.values() if _was_made(whole, self._host)]
        inside = {each.resource for rules in self._host.rules.values() for each in rules.within}
        itself = touched.resource in inside and touched in wholes
        return itself or any(_is_in(touched, whole, self._host) for whole in wholes)

    def _goes_along(self, part: ChangedResource) -> bool:
        """Tell whether it goes with something that this run made, and has removed or removes now."""
        return any(
            _is_in(part, whole, self._host)
            and _was_made(whole, self._host)
            and (self._goes(id_) or _is_as_found(whole, self._host))
            for id_, whole in self._record.touched.items()
        )


def _is_known(rule: DependentRule, user: Dependent, touched: ChangedResource) -> bool:
    """Tell whether a dependent was there at the change or at the run's end, in its present state if that counts."""
    if rule.since is not None and touched.dependents is None:
        return True
    known = (*touched.users, *((touched.first_dependents if rule.since is None else touched.dependents) or ()))
    same = (each for each in known if identity(each.resource, each.key) == identity(user.resource, user.key))
    return any(each.state is None or each.state == user.state for each in same)


def _named(rules: ResourceRules, key: Key) -> str:
    if "" in key.values():
        return f"a distro of {key['account']}"
    return key["distro" if "distro" in key else rules.key[0]] if key else rules.title


# ---- one resource


def _undo(touched: ChangedResource, host: HostAnswers, record: Changes) -> Undo:
    try:
        now = host.state_of(touched.resource, touched.key)
    except MissingFact as missing:
        return _undo_unread(touched, host, record, missing)
    if now is None:
        return {} if any(_is_named_by(whole, touched, host) for whole in record.touched.values()) else Keep(_GONE)
    before = touched.original
    passed = [(name, value) for state in touched.transitional for name, value in state.items()]
    moved = {name: now[name] for name in before if (name, now[name]) in passed}
    undo = find_undo(host.rules[touched.resource], before, {**touched.after, **moved}, now)
    if _rest(undo) and _has_lost_its_whole(touched, host):
        return _undo_of_what_is_gone(touched, host, record)
    return undo


def _undo_unread(touched: ChangedResource, host: HostAnswers, record: Changes, missing: MissingFact) -> Undo:
    """Undo a resource that cannot be read now. A resource that exists only since the run installed the role goes with
    the role, once that is undone; no VM runs without the role, whoever removed it; and the content of a distro is gone
    where there is no such distro. Raises the MissingFact.
    """
    if not isinstance(missing.missing, Unavailable):
        raise missing
    rules = host.rules[touched.resource]
    if rules.undo.ends_with_required and missing.missing.unavailable == rules.requires:
        return {}
    ours = {other.resource for other in record.touched.values() if record.going_back and other.transitional}
    if missing.missing.unavailable in ours:
        return {}
    if not _has_lost_its_whole(touched, host):
        raise missing
    return _undo_of_what_is_gone(touched, host, record)


def _has_lost_its_whole(part: ChangedResource, host: HostAnswers) -> bool:
    """Tell whether its distro or VM is gone. Raises MissingFact."""
    within = host.rules[part.resource].within
    return bool(within) and not any(dependents_by(each, part.key, host) for each in within)


def _undo_of_what_is_gone(part: ChangedResource, host: HostAnswers, record: Changes) -> Undo:
    """Undo a part of something that is gone: nothing if this run had made that, else it is kept as somebody else's."""
    made = (whole for whole in record.touched.values() if _was_made(whole, host))
    return {} if any(_is_in(part, whole, host) for whole in made) else Keep(_GONE)


def _is_named_by(whole: ChangedResource, part: ChangedResource, host: HostAnswers) -> bool:
    """Tell whether it belongs to something that the run made, and went with it, as a setting goes with its VM.

    A run that was cut off may never have learnt the name of what it made; then this may belong to it.
    """
    known_as = host.rules[whole.resource].known_as
    if known_as is None or known_as[0] not in part.key or not _was_made(whole, host):
        return False
    return whole.after.get(known_as[1]) in (None, part.key[known_as[0]])


def _was_made(whole: ChangedResource, host: HostAnswers) -> bool:
    """Tell whether the run created it: it was not there before."""
    return whole.before == host.rules[whole.resource].absent


def _is_in(part: ChangedResource, whole: ChangedResource, host: HostAnswers) -> bool:
    return any(
        rule.resource == whole.resource
        and all(whole.key[name] == part.key.get(name, whole.key[name]) for name in rule.on)
        for rule in host.rules[part.resource].within
    )


def _rest(undo: Undo) -> Mapping[str, Json]:
    return undo.rest if isinstance(undo, Keep) else undo


def is_others(touched: ChangedResource, host: HostAnswers) -> bool:
    """Tell whether others changed it: it is neither as found nor as the run left it. Raises MissingFact."""
    now = host.state_of(touched.resource, touched.key)
    left = (touched.before, touched.after, *touched.transitional)
    return now is not None and any(all(now[n] != each.get(n, now) for each in left) for n in touched.changed)


def _is_as_found(touched: ChangedResource, host: HostAnswers) -> bool:
    """Tell whether it is as the run found it, or was so when it could last be read on the way back."""
    try:
        now = host.state_of(touched.resource, touched.key)
    except MissingFact:
        return bool(touched.transitional) and all(
            state.items() <= touched.before.items() for state in touched.transitional
        )
    return now is not None and {name: now[name] for name in touched.changed} == touched.original


# ---- by the rule of a resource


def find_undo(
    rules: ResourceRules, before: Mapping[str, Json], after: Mapping[str, Json], now: Mapping[str, Json]
) -> Undo:
    """Apply the rule of a resource. before: what the run changed, as it was found; after: the state that it left.
    Raises MissingFact.
    """
    rule = rules.undo
    states = {"before": before, "after": after, "now": _Read(rules.name, now)}
    for name in before:
        _ = states["now"][name]  # what could not be read is not judged
    left = _left_alone(rule, states)
    if left is not None:
        return left
    created = _is_there_by_the_run(rule, states)
    if created and not rule.unless_changed:
        return _differing(rule.remove_if_created, states)
    if rule.never:
        return Keep(rule.never)
    undo = _by_property(rule, states)
    return _differing(rule.remove_if_created, states) if created and not isinstance(undo, Keep) else undo


def _left_alone(rule: UndoRule, states: States) -> Undo | None:
    """Apply the conditions under which nothing is undone, or the resource is kept. None: no condition holds."""
    if any(hold(each, states) for each in rule.gone_if):
        return {}
    for unknown in rule.unknown_if:
        if hold(unknown.when, states):
            raise MissingFact(unknown.fact, Unavailable(unknown.until))
    for keep in rule.keep_if:
        if hold(keep.when, states):
            return Keep(worded(keep.reason, keep.when, states))
    return None


class _Read(dict[str, Json]):
    """A state; reading a property that could not be read raises MissingFact."""

    def __init__(self, resource: str, state: Mapping[str, Json]) -> None:
        super().__init__(state)
        self._resource = resource

    def __getitem__(self, name: str) -> Json:
        value = super().__getitem__(name)
        refuse_missing(f"{self._resource}.{name}", value, unavailable=False)
        return value


def _is_there_by_the_run(rule: UndoRule, states: States) -> bool:
    """Tell whether the run created it, by the first property of what is not there."""
    for name, absent in rule.remove_if_created.items():
        found = states["before"]
        return name in found and found[name] == absent and states["now"][name] != absent
    return False


def _differing(state: Mapping[str, Json], states: States) -> Mapping[str, Json]:
    return {name: value for name, value in state.items() if states["now"][name] != value}


def _by_property(rule: UndoRule, states: States) -> Undo:
    """Put back what still stands as the run left it; what somebody changed since is theirs."""
    now = states["now"]
    found = dict(states["before"])
    for name, (value, other) in rule.instead.items():
        if name in found and found[name] == value:
            found[name] = other
    ours = rule.unconditional or any(now[name] in values for name, values in rule.transitional_states.items())
    if not ours:
        _refuse_unavailable(found, now)
    undone = _differing(found, states)
    foreign = [name for name in undone if not ours and now[name] != states["after"].get(name)]
    rest = {name: value for name, value in undone.items() if name not in foreign}
    reasons = []
    for each in rule.not_restored:
        if each.property in rest and rest[each.property] == each.value:
            del rest[each.property]
            reasons.append(each.reason)
    if foreign:
        reasons.append(f"{', '.join(foreign)} changed since by somebody else")
    if not reasons:
        return rest
    return Keep(" and ".join(reasons), {} if rule.whole and foreign else rest)


def _refuse_unavailable(found: Mapping[str, Json], now: Mapping[str, Json]) -> None:
    for name, value in found.items():
        if now[name] != value and isinstance(now[name], Mapping) and "unavailable" in now[name]:
            raise MissingFact(name, Unavailable(now[name]["unavailable"]))
