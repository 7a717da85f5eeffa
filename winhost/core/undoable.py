"""Decide which of a run's changes can be undone now, and which newer resources depend on the others."""

from collections.abc import Iterator, Mapping
from typing import cast

from .answers import Id, Json, Key, MissingFact, Unavailable, identity
from .changes import ChangedResource, Changes, Dependent
from .dataclass import dataclass
from .dependents import dependents_by, dependents_of, depends
from .host_answers import HostAnswers
from .rules import DependentRule, ResourceRules
from .undo import Keep, Undo, find_undo

_GONE = "it is not there any more"


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
        self._refuse_unread_parts(touched)
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
        known = (*touched.users, *(touched.first_dependents or ()), *(touched.dependents or ()))
        unread = (self._record.touched[id_] for id_ in self._missing)
        for resource, key in [(each.resource, each.key) for each in known] + [
            (each.resource, each.key) for each in unread
        ]:
            if resource == user.resource and all(key[name] == part for name, part in user.key.items() if part):
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

    def _refuse_unread_parts(self, whole: ChangedResource) -> None:
        """Refuse to undo a role while parts of its VMs cannot be read: without the role nobody could restore them.
        Raises MissingFact.
        """
        for id_, missing in self._missing.items():
            part = self._record.touched[id_]
            if self._host.rules[part.resource].requires == whole.resource and not self._goes_along(part):
                raise missing

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
