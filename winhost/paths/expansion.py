"""Fill in a playbook's references with the decisions of its path: the result is desired resources."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from winhost.core.answers import Json, MissingFact, Unavailable
from winhost.core.steps import DesiredResource
from winhost.model.plan import Deferred
from winhost.paths.playbook import REFERENCE, Playbook, PlaybookResource
from winhost.resources.registry import RESOURCE_TYPES


def expand(playbook: Playbook, decisions: object) -> tuple[tuple[DesiredResource, ...], tuple[Deferred, ...]]:
    """The desired resources, and those deferred because they refer to something that does not exist yet.

    `decisions` is the path's; an attribute that raises MissingFact for an unavailable resource defers the entry.
    """
    desired: list[DesiredResource] = []
    deferred: list[Deferred] = []
    for entry in playbook.resources:
        try:
            desired += _each(entry, decisions)
        except MissingFact as missing:
            if not isinstance(missing.missing, Unavailable):
                raise
            title, why = (_as_far_as_known(text, decisions) for text in (entry.title, entry.why))
            deferred.append(
                Deferred(entry.resource, title, missing.missing.unavailable, why, RESOURCE_TYPES[entry.resource].asks)
            )
    return tuple(desired), tuple(deferred)


class _Scope:
    """The names that a reference may use: the path's decisions, and `each`."""

    def __init__(self, decisions: object, each: object = None) -> None:
        self.decisions = decisions
        self.each = each


def _each(entry: PlaybookResource, decisions: object) -> list[DesiredResource]:
    return [
        DesiredResource(
            resource=entry.resource,
            key={name: str(_filled(value, scope)) for name, value in entry.key.items()},
            desired={name: _filled(value, scope) for name, value in entry.desired.items()},
            title=str(_filled(entry.title, scope)),
            why=str(_filled(entry.why, scope)),
        )
        for scope in _scopes(entry, decisions)
    ]


def _scopes(entry: PlaybookResource, decisions: object) -> Iterator[_Scope]:
    if entry.for_each is None:
        yield _Scope(decisions)
        return
    items: Iterable[Any] = _look_up(entry.for_each, _Scope(decisions))
    for item in items:
        yield _Scope(decisions, item)


def _filled(value: Json, scope: _Scope) -> Json:
    """A lone reference gives its value with its type; inside text it is written out."""
    if not isinstance(value, str):
        return value
    alone = REFERENCE.fullmatch(value)
    if alone:
        found = _look_up(alone[1], scope)
        return list(found) if isinstance(found, tuple) else found  # what a host answers is JSON
    return REFERENCE.sub(lambda match: str(_look_up(match[1], scope)), value)


def _as_far_as_known(text: str, decisions: object) -> str:
    """The text with an ellipsis for each reference that cannot be decided yet."""

    def known(match: re.Match[str]) -> str:
        try:
            return "…" if match[1].strip().startswith("each.") else str(_look_up(match[1], _Scope(decisions)))
        except MissingFact:
            return "…"

    return REFERENCE.sub(known, text)


def _look_up(reference: str, scope: _Scope) -> Any:
    """Names joined by dots, nothing else: a playbook is data, not a program."""
    first, *rest = reference.strip().split(".")
    found: Any = scope.each if first == "each" else getattr(scope.decisions, _public(first, reference))
    for name in rest:
        found = found[name] if isinstance(found, Mapping) else getattr(found, _public(name, reference))
    return found


def _public(name: str, reference: str) -> str:
    if name.startswith("_"):
        raise AttributeError(f"${{{reference}}}: no such decision")
    return name
