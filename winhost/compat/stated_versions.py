"""Versions that a user states: what they change in facts and in remedies."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from packaging.version import Version

from winhost.core.answers import Record
from winhost.model.reason import Remedy
from winhost.resources.host import HostFacts
from winhost.resources.windows.wsl import Wsl

Stated = Mapping[str, Version]


def as_stated(facts: HostFacts, stated: Stated | None) -> HostFacts:
    """The facts with WSL of the version that is stated: whoever states it knows what is or will be there."""
    wsl = (stated or {}).get("wsl")
    if wsl is None:
        return facts
    resource, document = Wsl.resource_type.name, facts.document
    answer = document.answer(resource)
    read = answer[0].state if isinstance(answer, tuple) and answer else {"present": True}
    record = Record({**read, "version": str(wsl)})
    return HostFacts(replace(document, resources={**document.resources, resource: (record,)}))


def after(stated: Stated | None, remedies: Iterable[Remedy]) -> Stated:
    """What is stated once these remedies are done.

    A version that facts tell is changed in them, and here only where it is stated over them.
    """
    changed = dict(stated or {})
    for remedy in remedies:
        told = {name: Version(version) for name, version in remedy.stated.items()}
        changed |= {name: version for name, version in told.items() if name in changed or not remedy.effect}
    return changed
