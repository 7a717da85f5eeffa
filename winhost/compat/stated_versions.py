"""Versions that a user states: what they change in facts and in remedies."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from packaging.version import Version

from winhost.core.answers import Record
from winhost.model.facts import Facts
from winhost.model.reason import Remedy
from winhost.resources.host import HostFacts
from winhost.resources.registry import is_linux
from winhost.resources.windows.wsl import Wsl

Stated = Mapping[str, Version]


def as_stated(facts: HostFacts, stated: Stated | None) -> HostFacts:
    """The facts with the versions that are stated, if any are."""
    if not stated:
        return facts
    key = ("stated", *sorted(stated.items()))
    return facts.keep(key, lambda: facts.changed(with_wsl(facts.document, stated), stated))


def with_wsl(document: Facts, stated: Stated) -> Facts:
    """The facts with WSL of the version that is stated: whoever states it knows what is or will be there."""
    wsl, resource = stated.get("wsl"), Wsl.resource_type.name
    if wsl is None or is_linux(document):
        return document
    answer = document.answer(resource)
    read = answer[0].state if isinstance(answer, tuple) and answer else {"present": True}
    return replace(document, resources={**document.resources, resource: (Record({**read, "version": str(wsl)}),)})


def after(stated: Stated | None, remedies: Iterable[Remedy]) -> Stated:
    """What is stated once these remedies are done.

    A version that facts tell is changed in them, and here only where it is stated over them.
    """
    changed = dict(stated or {})
    for remedy in remedies:
        told = {name: Version(version) for name, version in remedy.stated.items()}
        changed |= {name: version for name, version in told.items() if name in changed or not remedy.effect}
    return changed
