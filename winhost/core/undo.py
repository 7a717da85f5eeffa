"""Decide which changes of a run can be undone now, by the rule of each resource, and which newer resources depend on
the others. bundle/powershell/rules.ps1 does the same in PowerShell.
"""

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import cast

from .answers import HostAnswers, Id, Json, Key, MissingFact, Unavailable, identity, refuse_missing
from .changes import ChangedResource, Changes, Dependent
from .conditions import States, all_hold, fill_sentence
from .dataclass import dataclass
from .dependents import dependents_by_rule, dependents_of, depends
from .rules import DependentRule, ResourceRules, UndoRule

_MISSING_REASON = "it is not there any more"


@dataclass(frozen=True)
class Keep:
    """Rollback keeps a resource, or some of its properties. still_restored: properties that are restored
    nevertheless.
    """

    reason: str
    still_restored: Mapping[str, Json] = field(default_factory=dict)


Undo = Mapping[str, Json] | Keep


@dataclass(frozen=True)
class Verdicts:
    """The verdicts on all resources that a run changed. undone: the properties to restore, or why the resource is kept;
    kept: reasons for keeping resources; missing: resources that could not be decided; waiting: resources that can be
    undone once newer ones are removed, and the names of these.
    """

    undone: Mapping[Id, Undo]
    kept: Mapping[Id, str]
    missing: Mapping[Id, MissingFact]
    waiting: Mapping[Id, tuple[str, ...]]

    def restored(self, id_: Id) -> Mapping[str, Json]:
        """Return the properties to restore; none if that could not be decided."""
        return _restored_properties(self.undone.get(id_, {}))


def judge(record: Changes, host: HostAnswers) -> Verdicts:
    """Decide what is undone. The resources on which a kept one depends are kept too."""
    decision = _UndoDecision(record, host)
    while decision.find_more_to_keep():
        pass
    return decision.verdicts()


class _UndoDecision:
    def __init__(self, record: Changes, host: HostAnswers) -> None:
        self._record = record
        self._host = host
        self._undone: dict[Id, Undo] = {}
        self._missing: dict[Id, MissingFact] = {}
        self._blocked: dict[Id, tuple[str, ...]] = {}
        for id_, touched in record.touched.items():
            try:
                # A resource that was restored for good may belong to others by now, so it need not be read.
                self._undone[id_] = {} if id_ in record.restored else _undo_resource(touched, host, record)
            except MissingFact as missing:
                self._missing[id_] = missing

    def find_more_to_keep(self) -> bool:
        """Check all resources that would be undone once more. Returns whether another one has to stay."""
        found_more = False
        for id_ in [id_ for id_ in self._undone if self._is_undone(id_)]:
            try:
                names = self._newer_dependents(self._record.touched[id_])
            except MissingFact as missing:
                self._missing[id_] = missing
                del self._undone[id_]
                found_more = True
                continue
            if names:
                self._blocked[id_] = names
                found_more = True
        return found_more

    def verdicts(self) -> Verdicts:
        unread = {id_: touched for id_, touched in self._record.touched.items() if id_ in self._missing}
        missing = {
            id_: self._missing[id_] for id_, touched in unread.items() if not self._is_removed_with_parent(touched)
        }
        kept = {id_: undo.reason for id_, undo in self._undone.items() if isinstance(undo, Keep)}
        for id_, names in self._blocked.items():
            kept[id_] = f"for {', '.join(names)}, which came later; undo that, then do this again"
        undone: Mapping[Id, Undo] = {id_: undo for id_, undo in self._undone.items() if id_ not in self._blocked}
        in_order = {id_: kept[id_] for id_ in self._record.touched if id_ in kept}
        return Verdicts(undone, in_order, missing, self._blocked)

    def _is_undone(self, id_: Id) -> bool:
        return id_ in self._undone and id_ not in self._blocked and bool(_restored_properties(self._undone[id_]))

    # ---- newer dependents

    def _newer_dependents(self, touched: ChangedResource) -> tuple[str, ...]:
        """Return the names of dependents that are newer than the change. Raises MissingFact."""
        for id_, missing in self._missing.items():
            part = self._record.touched[id_]
            if self._host.rules[part.resource].requires == touched.resource and not self._is_removed_with_parent(part):
                raise missing  # without this role the state of its VMs could not be restored
        names: list[str] = []
        # A distro of the run is exported and then removed with its content, which therefore need not be read.
        has_baseline = touched.dependents is not None and not self._is_in_own_distro(touched)
        for id_, (rule, user) in dependents_of(
            touched.resource, touched.key, self._host, has_baseline=has_baseline
        ).items():
            if id_ in self._record.touched:
                names += self._own_dependent_names(id_, touched)
            elif not _was_there_before(rule, user, touched):
                self._refuse_unlisted_distro(user, touched)
                names.append(_display_name(self._host.rules[user.resource], user.key))
        names += [name for id_ in self._removed_by_others(touched) for name in self._own_dependent_names(id_, touched)]
        return tuple(dict.fromkeys(names))

    def _refuse_unlisted_distro(self, user: Dependent, touched: ChangedResource) -> None:
        """Raise MissingFact if the dependent is an unlisted distro and may be one that the run knew or made."""
        if "" not in user.key.values():
            return
        known: list[Dependent | ChangedResource] = [self._record.touched[id_] for id_ in self._missing]
        known += (*touched.users, *(touched.first_dependents or ()), *(touched.dependents or ()))
        for each in (each for each in known if each.resource == user.resource):
            if all(each.key[name] == part for name, part in user.key.items() if part):
                raise MissingFact(user.resource, cast(Unavailable, self._host.answer(user.resource)))

    def _own_dependent_names(self, id_: Id, parent: ChangedResource) -> tuple[str, ...]:
        """Return the names for a changed resource of this run that keeps its parent, because others depend on it or
        have changed it. Inside a distro that this run made nothing is kept: others' changes are removed with the
        distro.
        """
        touched = self._record.touched[id_]
        if id_ in self._blocked:
            return self._blocked[id_]
        inside = _is_in(touched, parent, self._host) and _was_created(parent, self._host)
        is_foreign = (
            isinstance(self._undone.get(id_), Keep)
            and not self._is_undone(id_)
            and is_changed_by_others(touched, self._host)
        )
        return (touched.title,) if is_foreign and not inside else ()

    def _removed_by_others(self, parent: ChangedResource) -> Iterator[Id]:
        """Yield resources that this run created, that depend on the parent, and that others may have removed."""
        for rule in self._host.rules[parent.resource].dependents:
            for id_, touched in self._record.touched.items():
                final = {**touched.before, **touched.after}
                if touched.resource == rule.resource and rule.lent and depends(rule, parent.key, touched.key, final):
                    yield id_

    # ---- parts of a distro or VM

    def _is_in_own_distro(self, touched: ChangedResource) -> bool:
        """Tell whether it is a distro that this run made, or something inside one."""
        parents = [parent for parent in self._record.touched.values() if _was_created(parent, self._host)]
        inside = {each.resource for rules in self._host.rules.values() for each in rules.within}
        itself = touched.resource in inside and touched in parents
        return itself or any(_is_in(touched, parent, self._host) for parent in parents)

    def _is_removed_with_parent(self, part: ChangedResource) -> bool:
        """Tell whether it is removed with a parent that this run created, and has removed or removes now."""
        return any(
            _is_in(part, parent, self._host)
            and _was_created(parent, self._host)
            and (self._is_undone(id_) or _is_original(parent, self._host))
            for id_, parent in self._record.touched.items()
        )


def _was_there_before(rule: DependentRule, user: Dependent, touched: ChangedResource) -> bool:
    """Tell whether a dependent existed at the change or at the run's end, in its present state if that counts."""
    if rule.since is not None and touched.dependents is None:
        return True
    known = (*touched.users, *((touched.first_dependents if rule.since is None else touched.dependents) or ()))
    same = (each for each in known if identity(each.resource, each.key) == identity(user.resource, user.key))
    return any(each.state is None or each.state == user.state for each in same)


def _display_name(rules: ResourceRules, key: Key) -> str:
    if "" in key.values():
        return f"a distro of {key['account']}"
    return key["distro" if "distro" in key else rules.key[0]] if key else rules.title


# ---- one resource


def _undo_resource(touched: ChangedResource, host: HostAnswers, record: Changes) -> Undo:
    try:
        now = host.state_of(touched.resource, touched.key)
    except MissingFact as missing:
        return _undo_unreadable(touched, host, record, missing)
    if now is None:
        return (
            {}
            if any(_belongs_to(parent, touched, host) for parent in record.touched.values())
            else Keep(_MISSING_REASON)
        )
    before = touched.original
    transitional = [(name, value) for state in touched.transitional for name, value in state.items()]
    interrupted = {name: now[name] for name in before if (name, now[name]) in transitional}
    undo = find_undo(host.rules[touched.resource], before, {**touched.after, **interrupted}, now)
    if _restored_properties(undo) and _is_parent_missing(touched, host):
        return _undo_in_missing_parent(touched, host, record)
    return undo


def _undo_unreadable(touched: ChangedResource, host: HostAnswers, record: Changes, missing: MissingFact) -> Undo:
    """Decide about a resource that cannot be read now. There is nothing to undo if the resource was removed with the
    role that it requires, if this rollback is removing that role, or if it was in a distro that this run made and that
    no longer exists. Raises `missing` otherwise.
    """
    if not isinstance(missing.missing, Unavailable):
        raise missing
    rules = host.rules[touched.resource]
    if rules.undo.ends_with_required and missing.missing.unavailable == rules.requires:
        return {}
    changing = {other.resource for other in record.touched.values() if record.going_back and other.transitional}
    if missing.missing.unavailable in changing:
        return {}
    if not _is_parent_missing(touched, host):
        raise missing
    return _undo_in_missing_parent(touched, host, record)


def _is_parent_missing(part: ChangedResource, host: HostAnswers) -> bool:
    """Tell whether its distro or VM no longer exists. Raises MissingFact."""
    within = host.rules[part.resource].within
    return bool(within) and not any(dependents_by_rule(each, part.key, host) for each in within)


def _undo_in_missing_parent(part: ChangedResource, host: HostAnswers, record: Changes) -> Undo:
    """Decide about a part whose parent no longer exists: nothing to undo if this run created the parent, else
    keep it.
    """
    made = (parent for parent in record.touched.values() if _was_created(parent, host))
    return {} if any(_is_in(part, parent, host) for parent in made) else Keep(_MISSING_REASON)


def _belongs_to(parent: ChangedResource, part: ChangedResource, host: HostAnswers) -> bool:
    """Tell whether `part` belongs to a parent that the run created, as a setting belongs to its VM. A run that was
    killed may not know the name of the instance that it created; then the part may belong to that.
    """
    known_as = host.rules[parent.resource].known_as
    if known_as is None or known_as[0] not in part.key or not _was_created(parent, host):
        return False
    return parent.after.get(known_as[1]) in (None, part.key[known_as[0]])


def _was_created(parent: ChangedResource, host: HostAnswers) -> bool:
    """Tell whether the run created it: it did not exist before."""
    return parent.before == host.rules[parent.resource].absent


def _is_in(part: ChangedResource, parent: ChangedResource, host: HostAnswers) -> bool:
    return any(
        rule.resource == parent.resource
        and all(parent.key[name] == part.key.get(name, parent.key[name]) for name in rule.on)
        for rule in host.rules[part.resource].within
    )


def _restored_properties(undo: Undo) -> Mapping[str, Json]:
    return undo.still_restored if isinstance(undo, Keep) else undo


def is_changed_by_others(touched: ChangedResource, host: HostAnswers) -> bool:
    """Tell whether others changed it: it is neither as before the run nor as the run left it. Raises MissingFact."""
    now = host.state_of(touched.resource, touched.key)
    known_states = (touched.before, touched.after, *touched.transitional)
    return now is not None and any(all(now[n] != each.get(n, now) for each in known_states) for n in touched.changed)


def _is_original(touched: ChangedResource, host: HostAnswers) -> bool:
    """Tell whether it is as before the run, or was so when it could last be read during the rollback."""
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
    """Apply the rule of a resource. before: the values that the run replaced; after: the state that it left. Raises
    MissingFact.
    """
    rule = rules.undo
    states = {"before": before, "after": after, "now": _ReadState(rules.name, now)}
    for name in before:
        _ = states["now"][name]  # raises MissingFact if it could not be read
    undo_early = _undo_by_conditions(rule, states)
    if undo_early is not None:
        return undo_early
    created = _exists_since_run(rule, states)
    if created and not rule.unless_changed:
        return _differences(rule.remove_if_created, states)
    if rule.never:
        return Keep(rule.never)
    undo = _undo_each_property(rule, states)
    return _differences(rule.remove_if_created, states) if created and not isinstance(undo, Keep) else undo


def _undo_by_conditions(rule: UndoRule, states: States) -> Undo | None:
    """Apply the conditions under which nothing is undone, or the resource is kept. Returns None if none holds."""
    if any(all_hold(each, states) for each in rule.gone_if):
        return {}
    for unknown in rule.unknown_if:
        if all_hold(unknown.when, states):
            raise MissingFact(unknown.fact, Unavailable(unknown.until))
    for keep in rule.keep_if:
        if all_hold(keep.when, states):
            return Keep(fill_sentence(keep.reason, keep.when, states))
    return None


class _ReadState(dict[str, Json]):
    """A state; reading a property that could not be read raises MissingFact."""

    def __init__(self, resource: str, state: Mapping[str, Json]) -> None:
        super().__init__(state)
        self._resource = resource

    def __getitem__(self, name: str) -> Json:
        value = super().__getitem__(name)
        refuse_missing(f"{self._resource}.{name}", value, unavailable=False)
        return value


def _exists_since_run(rule: UndoRule, states: States) -> bool:
    """Tell whether the instance did not exist before the run and exists now, by the first property of an absent one."""
    for name, absent in rule.remove_if_created.items():
        before = states["before"]
        return name in before and before[name] == absent and states["now"][name] != absent
    return False


def _differences(state: Mapping[str, Json], states: States) -> Mapping[str, Json]:
    return {name: value for name, value in state.items() if states["now"][name] != value}


def _undo_each_property(rule: UndoRule, states: States) -> Undo:
    """Restore the properties that are as the run left them; keep those that somebody else changed since."""
    now = states["now"]
    originals = dict(states["before"])
    for name, (value, replacement) in rule.instead.items():
        if name in originals and originals[name] == value:
            originals[name] = replacement
    restore_always = rule.unconditional or any(now[name] in values for name, values in rule.transitional_states.items())
    if not restore_always:
        _refuse_unavailable(originals, now)
    undone = _differences(originals, states)
    changed_by_others = [name for name in undone if not restore_always and now[name] != states["after"].get(name)]
    restorable = {name: value for name, value in undone.items() if name not in changed_by_others}
    reasons = []
    for exception in rule.not_restored:
        if exception.property in restorable and restorable[exception.property] == exception.value:
            del restorable[exception.property]
            reasons.append(exception.reason)
    if changed_by_others:
        reasons.append(f"{', '.join(changed_by_others)} changed since by somebody else")
    if not reasons:
        return restorable
    return Keep(" and ".join(reasons), {} if rule.whole and changed_by_others else restorable)


def _refuse_unavailable(found: Mapping[str, Json], now: Mapping[str, Json]) -> None:
    for name, value in found.items():
        if now[name] != value and isinstance(now[name], Mapping) and "unavailable" in now[name]:
            raise MissingFact(name, Unavailable(now[name]["unavailable"]))
