"""The rules of resources as data: how one is undone, what a change of it needs and asks for, and its dependents.

The same data go as JSON into offline packages, so that PowerShell and the Python of a Linux read one declaration.
"""

from collections.abc import Mapping
from dataclasses import MISSING, Field, field, fields, is_dataclass, replace
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from .dataclass import dataclass

Json = Any  # JSON as `json` gives it
RESTART = "restart"  # the consent without which nothing restarts a host
R = TypeVar("R")


@dataclass(frozen=True)
class Condition:
    """A condition on a property, or on any property where none is named. All that it names must hold.

    of: which state has it: now, before or after the run; of a change, before or desired, or its key. `before` and
    `desired` have only what is changed; what a state does not have fits no condition. one_of, none_of: values;
    starts_with: of text; unavailable: it cannot be there yet, or any more; differs_from: states in which the property
    is another; gained: more than the run left, a larger number or new things in a list.
    """

    property: str = ""
    of: str = "now"
    one_of: tuple[Json, ...] = ()
    none_of: tuple[Json, ...] = ()
    starts_with: str = ""
    unavailable: bool = False
    differs_from: tuple[str, ...] = ()
    gained: bool = False


@dataclass(frozen=True)
class KeepIf:
    """Rollback leaves it as it is where all of `when` holds. reason: a property of `when` in braces is what was found:
    what follows starts_with, what was gained, or the value.
    """

    when: tuple[Condition, ...]
    reason: str


@dataclass(frozen=True)
class UnknownIf:
    """A rule by which `fact` cannot be known before `until` is there, where all of `when` holds: rollback
    cannot judge.
    """

    when: tuple[Condition, ...]
    fact: str
    until: str


@dataclass(frozen=True)
class NotRestored:
    """A property that was found at `value` does not go back to it; `reason` says what it is instead."""

    property: str
    value: Json
    reason: str


@dataclass(frozen=True)
class UndoRule:
    """The rule by which rollback undoes a resource: the first of these that applies. Without any it goes property by
    property: a value that is as the run left it is restored, and what others changed is kept.

    gone_if: there is nothing to undo where one of these lists holds. unknown_if, keep_if: the first that holds.
    remove_if_created: the state of what is not there; what did not have the first of these values, and has it no more,
    is taken away as a whole. never: why nothing is put back. whole: all properties or none. unless_changed: nothing of
    what others changed is taken away as a whole. unconditional: put back whatever it was changed to since.
    transitional_states: values of a property with which the resource is on its way, and so put back whatever stands.
    instead: values that were found, and what is put back in their place. not_restored: values that do not come back.
    ends_with_required: its state ends where what it requires is taken away, so that nothing is left to undo then.
    """

    gone_if: tuple[tuple[Condition, ...], ...] = ()
    unknown_if: tuple[UnknownIf, ...] = ()
    keep_if: tuple[KeepIf, ...] = ()
    remove_if_created: Mapping[str, Json] = field(default_factory=dict)
    unless_changed: bool = False
    never: str = ""
    whole: bool = False
    unconditional: bool = False
    transitional_states: Mapping[str, tuple[Json, ...]] = field(default_factory=dict)
    instead: Mapping[str, tuple[Json, Json]] = field(default_factory=dict)
    not_restored: tuple[NotRestored, ...] = ()
    ends_with_required: bool = False


BY_PROPERTY = UndoRule()


@dataclass(frozen=True)
class NeedRule:
    """Instances of a resource that must stand at `desired` while a step runs. part: of their key, which is `key` of the
    changed one's key; or what follows `starts_with` in `property`, before and as desired.
    """

    resource: str
    part: str
    desired: Mapping[str, Json]
    key: str = ""
    property: str = ""
    starts_with: str = ""


@dataclass(frozen=True)
class ConsentRule:
    """A consent that a change asks for where all of `when` holds, unless all of `unless` does."""

    consent: str
    when: tuple[Condition, ...] = ()
    unless: tuple[Condition, ...] = ()


@dataclass(frozen=True)
class Rests:
    """A kind of thing that rests on an instance as it is: it needs that to go on, or to be taken back itself.

    resource: of the things; on: parts of the key that both have; at: a property, and the value at which one rests,
    with the key's parts in braces; unless: a property, and the values at which none does. since: properties that must
    be as they were when the run came to an end (perhaps none: it was there): such things are there without anybody's
    doing, so they count only where the run saw them. lent: what the run put there and others have taken away counts,
    too: taken back from them, it rests there again. disks: where they cannot be listed, accounts with disks of distros
    stand for them.
    """

    resource: str
    on: tuple[str, ...] = ()
    at: tuple[str, str] | None = None
    unless: tuple[str, tuple[Json, ...]] | None = None
    since: tuple[str, ...] | None = None
    lent: bool = False
    disks: bool = False


@dataclass(frozen=True)
class ResourceRules:
    """All that those who do and undo changes know of a resource.

    title: what sentences call it; key: the parts of its key; place: in the order of changes; sets: the properties that
    can be changed; requires: without what it cannot be read; restarts: a change that asks for the consent
    `restart` takes effect with one; absent: the state of what the host does not list, where it can be made; within:
    what it lies in, one of these, and goes with; credential: the property that holds a secret reference; known_as: the
    part of others' keys that names it, and its property with that name, where others are parts of it.
    """

    name: str
    title: str
    key: tuple[str, ...] = ()
    place: int = 0
    sets: tuple[str, ...] = ()
    requires: str = ""
    restarts: bool = False
    absent: Mapping[str, Json] | None = None
    needs: tuple[NeedRule, ...] = ()
    risks: tuple[ConsentRule, ...] = ()
    may_need: tuple[ConsentRule, ...] = ()
    rests: tuple[Rests, ...] = ()
    within: tuple[Rests, ...] = ()
    credential: str = ""
    known_as: tuple[str, str] | None = None
    undo: UndoRule = BY_PROPERTY

    @property
    def only_waited_for(self) -> bool:
        """Setting it changes nothing, and nothing has to be taken back."""
        return self.undo.gone_if == ((Condition(),),)


def restarted_by_its_vm(rules: ResourceRules) -> ResourceRules:
    """The rules of our own guest: changes take effect when its VM starts with its GPUs, which restarts it."""
    return replace(rules, restarts=False, risks=tuple(each for each in rules.risks if each.consent != RESTART))


# ---- as JSON


def as_json(declared: Json) -> Json:
    """A declaration without what it does not say."""
    if is_dataclass(declared):
        said = {each: getattr(declared, each.name) for each in fields(declared)}
        return {each.name: as_json(value) for each, value in said.items() if value != _default(each)}
    if isinstance(declared, Mapping):
        return {name: as_json(value) for name, value in declared.items()}
    return [as_json(each) for each in declared] if isinstance(declared, (tuple, list)) else declared


def from_json(kind: type[R], said: Mapping[str, Json]) -> R:
    """The declaration that `as_json` wrote. Raises TypeError for what is none of that kind."""
    hints = get_type_hints(kind)
    return kind(**{name: _typed(hints.get(name, Any), value) for name, value in said.items()})


def _default(declared: Field[Any]) -> Json:
    return declared.default if declared.default_factory is MISSING else declared.default_factory()


def _typed(hint: Any, value: Json) -> Json:
    inner = get_args(hint)
    if is_dataclass(hint):
        return from_json(hint, value)  # type: ignore[arg-type]
    if value is None or not inner:
        return value
    if get_origin(hint) is tuple:
        kinds = [inner[0]] * len(value) if inner[-1] is Ellipsis else inner
        return tuple(_typed(each, item) for each, item in zip(kinds, value))  # noqa: B905 - same length
    if get_origin(hint) is Mapping:
        return {name: _typed(inner[1], item) for name, item in value.items()}
    return _typed(inner[0], value)
