"""The rules of resources as data: undo, the needs and consents of a change, and dependents.

Offline packages contain the same data as JSON, so that PowerShell and the Python of a Linux read one declaration.
"""

from collections.abc import Mapping
from dataclasses import MISSING, field, fields, is_dataclass, replace
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from .dataclass import dataclass

Json = Any  # a value as `json` parses it
RESTART = "restart"  # the consent to restart a host
R = TypeVar("R")


@dataclass(frozen=True)
class Condition:
    """A condition on a property, or on any property if none is named. All tests of a condition must hold.

    of: the state that has the property: now, before or after (the run); of a change: before, desired, or its key.
    `before` and `desired` have only changed properties; a property that the state does not have meets no condition.
    one_of, none_of: values; starts_with: of text; unavailable: it cannot be read yet, or any more; differs_from: states
    in which the property has another value; gained: more than after the run, a larger number or new elements of a list.
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
    """Rollback leaves the resource as it is if all of `when` holds; in `irreversible`, the change cannot be undone.
    reason: a property of `when` in braces stands for the gained value, for the text after starts_with, or for the
    value.
    """

    when: tuple[Condition, ...]
    reason: str


@dataclass(frozen=True)
class UnknownIf:
    """If all of `when` holds, `fact` cannot be read before the resource `until` exists, so rollback cannot decide."""

    when: tuple[Condition, ...]
    fact: str
    until: str


@dataclass(frozen=True)
class NotRestored:
    """A property that had `value` before the run is not restored to it; `reason` says what it is instead."""

    property: str
    value: Json
    reason: str


@dataclass(frozen=True)
class UndoRule:
    """The way in which rollback undoes a resource: the first of these that applies. If none does, each property is
    decided alone: a value that is as the run left it is restored, and one that others changed is kept.

    gone_if: there is nothing to undo if one of these lists holds. unknown_if, keep_if: the first that holds.
    remove_if_created: the state of an absent instance; an instance that had the first of these values before the run,
    and no longer has it, is removed. never: why nothing is restored. whole: restore all properties or none.
    unless_changed: do not remove an instance that others changed. unconditional: restore it, whatever it was changed to
    since. transitional_states: values that a property has during a change, which are always restored. instead: values
    before the run, and what is restored in their place. not_restored: values that are not restored. ends_with_required:
    the resource is removed together with the one that it requires, and then nothing remains to undo.
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


UNDO_EACH_PROPERTY = UndoRule()


@dataclass(frozen=True)
class NeedRule:
    """Instances of a resource that must have the state `desired` while a step runs. part: the part of their key. Its
    value is the part `key` of the changed instance's key, or the text after `starts_with` in its `property`, before and
    after the change.
    """

    resource: str
    part: str
    desired: Mapping[str, Json]
    key: str = ""
    property: str = ""
    starts_with: str = ""


@dataclass(frozen=True)
class ConsentRule:
    """A consent that a change needs if all of `when` holds, unless all of `unless` does."""

    consent: str
    when: tuple[Condition, ...] = ()
    unless: tuple[Condition, ...] = ()


@dataclass(frozen=True)
class DependentRule:
    """Instances of a resource type that depend on an instance: they need it to work, or to be undone themselves.

    resource: the type; on: parts of the key that both have in common; at: a property, and its value in dependents, with
    parts of the key in braces; unless: a property, and its values in instances that do not depend. since: properties
    that must be as they were when the run ended (an empty tuple: the instance existed then); such instances can appear
    by themselves, so they count only if the run recorded dependents. lent: count also instances that the run created
    and others have removed, because they depend again when these are rolled back. disks: if distros cannot be listed,
    accounts with disks of distros stand for them.
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
    """The rules of a resource type, for making and undoing changes.

    title: its name in sentences; key: the parts of its key; order: in which resources are changed; sets: the properties
    that can be changed; requires: the resource without which it cannot be read; restarts: a change that needs the
    consent `restart` takes effect with a restart; absent: the state of an instance that does not exist, for types whose
    instances can be created; within: its possible parents, with which it is removed; credential: the property that
    holds a secret reference; known_as: of a parent, the part of its children's keys that names it, and its property
    with that name; irreversible: why a change cannot be undone.
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
    undo: UndoRule = UNDO_EACH_PROPERTY

    @property
    def is_wait_only(self) -> bool:
        """True if setting the resource only waits: it changes nothing, and nothing has to be undone."""
        return self.undo.gone_if == ((Condition(),),)


def restarted_by_its_vm(rules: ResourceRules) -> ResourceRules:
    """Return the rules for a guest whose VM is started again with its GPUs, so that changes need no other restart."""
    return replace(rules, restarts=False, risks=tuple(each for each in rules.risks if each.consent != RESTART))


# ---- as JSON


def as_json(declared: Json) -> Json:
    """Convert a declaration to JSON. Fields with their default value are left out."""
    if is_dataclass(declared):
        data = {}
        for spec in fields(declared):
            default = spec.default if spec.default_factory is MISSING else spec.default_factory()
            if (value := getattr(declared, spec.name)) != default:
                data[spec.name] = as_json(value)
        return data
    if isinstance(declared, Mapping):
        return {name: as_json(value) for name, value in declared.items()}
    return [as_json(spec) for spec in declared] if isinstance(declared, (tuple, list)) else declared


def from_json(kind: type[R], data: Mapping[str, Json]) -> R:
    """Parse a declaration that `as_json` wrote. Raises TypeError for data of another kind."""
    hints = get_type_hints(kind)
    return kind(**{name: _typed(hints.get(name, Any), value) for name, value in data.items()})


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
