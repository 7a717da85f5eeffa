"""The rules of resources as data: how one is undone, what a change of it needs and asks for, and its dependents.

The same data go as JSON into offline packages, so that PowerShell and the Python of a Linux read one declaration.
"""

from collections.abc import Mapping
from dataclasses import MISSING, field, fields, is_dataclass, replace
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
    """Rollback leaves the resource as it is if all of `when` holds; of `irreversible`, the change cannot be taken back.
    reason: a property of `when` in braces stands for what was found: the text after starts_with, what was gained, or
    the value.
    """

    when: tuple[Condition, ...]
    reason: str


@dataclass(frozen=True)
class UnknownIf:
    """If all of `when` holds, `fact` cannot be known before `until` is there, and rollback cannot decide."""

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
    """The way in which rollback undoes a resource: the first of these that applies. Without any, each property is
    decided alone: a value that is as the run left it is restored, and one that others changed is kept.

    gone_if: there is nothing to undo if one of these lists holds. unknown_if, keep_if: the first that holds.
    remove_if_created: the state of an absent instance; one that had the first of these values, and no longer has it, is
    removed. never: why nothing is restored. whole: all properties or none. unless_changed: do not remove what others
    changed. unconditional: restore it, whatever it was changed to since. transitional_states: values of a property
    during a change, which are restored whatever stands. instead: values that were found, and what is restored in their
    place. not_restored: values that do not come back. ends_with_required: the state ends with what it requires, and
    then nothing is left to undo.
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
    """Instances of a resource that must be at `desired` while a step runs. part: of their key; its value is `key` of
    the changed one's key, or what follows `starts_with` in `property`, before and after the change.
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
class DependentRule:
    """A kind of resource that depends on an instance as it is: it needs that to work, or to be undone itself.

    resource: the kind; on: parts of the key that both have; at: a property, and its value in those that depend, with
    the key's parts in braces; unless: a property, and its values in those that do not depend. since: properties that
    must be as they were when the run ended (perhaps none: the instance was there); such instances exist without
    anybody's doing, so they count only if the run saw them. lent: also what the run created and others have removed,
    because it depends again once they give it back. disks: if distros cannot be listed, accounts with disks of distros
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
    """The declaration of a resource, for doing and undoing its changes.

    title: what sentences call it; key: the parts of its key; order: of changes; sets: the properties that
    can be changed; requires: without what it cannot be read; restarts: a change that asks for the consent
    `restart` takes effect with one; absent: the state of what the host does not list, where it can be made; within:
    what it lies in, one of these, and goes with; credential: the property that holds a secret reference; known_as: the
    part of others' keys that names it, and its property with that name, where others are parts of it; irreversible: why
    a change cannot be taken back.
    """

    name: str
    title: str
    key: tuple[str, ...] = ()
    order: int = 0
    sets: tuple[str, ...] = ()
    requires: str = ""
    restarts: bool = False
    absent: Mapping[str, Json] | None = None
    needs: tuple[NeedRule, ...] = ()
    risks: tuple[ConsentRule, ...] = ()
    may_need: tuple[ConsentRule, ...] = ()
    dependents: tuple[DependentRule, ...] = ()
    within: tuple[DependentRule, ...] = ()
    credential: str = ""
    known_as: tuple[str, str] | None = None
    irreversible: tuple[KeepIf, ...] = ()
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
        said = {}
        for each in fields(declared):
            default = each.default if each.default_factory is MISSING else each.default_factory()
            if (value := getattr(declared, each.name)) != default:
                said[each.name] = as_json(value)
        return said
    if isinstance(declared, Mapping):
        return {name: as_json(value) for name, value in declared.items()}
    return [as_json(each) for each in declared] if isinstance(declared, (tuple, list)) else declared


def from_json(kind: type[R], said: Mapping[str, Json]) -> R:
    """The declaration that `as_json` wrote. Raises TypeError for data of another kind."""
    hints = get_type_hints(kind)
    return kind(**{name: _typed(hints.get(name, Any), value) for name, value in said.items()})


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
