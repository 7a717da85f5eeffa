"""Desired resources, and the steps that reach them."""

from collections.abc import Mapping
from typing import Literal

from .answers import Json, Key
from .dataclass import dataclass

Role = Literal["desired", "need", "restore", "undo"]


@dataclass(frozen=True)
class DesiredResource:
    """One resource as the playbook wants it; `why` is the playbook's sentence."""

    resource: str
    key: Key
    desired: Mapping[str, Json]
    title: str
    why: str


@dataclass(frozen=True)
class Step:
    """One `set`. `before` and `desired` hold just the properties that differ.

    role: desired (the path wants it), need (met for other steps), restore (put back after them), undo (of a
    rollback). risks: consents without which it does not run; may_need: consents that it uses when they are given.
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
    """Another resource that must stand at `desired` while a step runs; the engine moves it there and back once."""

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
    """The host's own view before and after a set; nothing after, where the instance is gone. restart: the change takes
    effect with a restart.
    """

    before: Mapping[str, Json]
    after: Mapping[str, Json]
    restart: bool = False
    warnings: tuple[str, ...] = ()
