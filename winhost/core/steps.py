"""Desired resources, and the steps that reach them."""

from collections.abc import Mapping
from typing import Literal

from .answers import Json, Key
from .dataclass import dataclass

Role = Literal["desired", "need", "restore", "undo"]


@dataclass(frozen=True)
class DesiredResource:
    """The desired state of one resource. title, why: the playbook's text for it."""

    resource: str
    key: Key
    desired: Mapping[str, Json]
    title: str
    why: str


@dataclass(frozen=True)
class Step:
    """One `set` of a resource. before, desired: only the properties that differ.

    role: desired (a goal of the playbook), need (a state that other steps need), restore (the state before these), or
    undo (in a rollback). risks: consents without which it does not run; may_need: consents that it uses if they are
    given.
    """

    id: str
    resource: str
    key: Key
    role: Role
    before: Mapping[str, Json]
    desired: Mapping[str, Json]
    title: str
    why: str
    risks: tuple[str, ...] = ()
    may_need: tuple[str, ...] = ()
    restarts: bool = False
    irreversible: str | None = None


@dataclass(frozen=True)
class Need:
    """Another resource that must have the state `desired` while a step runs. It is changed once, and restored once."""

    resource: str
    key: Key
    desired: Mapping[str, Json]


@dataclass(frozen=True)
class Change:
    """The change that a step makes to one resource: only the properties that differ."""

    key: Key
    before: Mapping[str, Json]
    desired: Mapping[str, Json]


@dataclass(frozen=True)
class SetAnswer:
    """The state of an instance before and after a set, as the host read it. after: empty if the instance was removed;
    restart: the change takes effect with a restart.
    """

    before: Mapping[str, Json]
    after: Mapping[str, Json]
    restart: bool = False
    warnings: tuple[str, ...] = ()
