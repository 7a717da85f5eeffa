"""The downloads that a plan names, for now or for a later stage."""

from collections.abc import Iterator, Mapping

from winhost.core.answers import Json
from winhost.engine.planning import CheckedPlan
from winhost.paths.playbook import REFERENCE

_TAKEN = ("ContainerImage", "ModelFiles", "ReleaseFile")


Wanted = tuple[Mapping[str, str], Mapping[str, Json]]
"""Key and desired state."""


def wanted_of(checked: CheckedPlan, resource: str) -> tuple[Wanted, ...]:
    """Each once: of the stages, and of what the playbook names for later ones."""
    stages = [each for stage in checked.plan.stages for each in stage.desired if each.resource == resource]
    named = [each for each in checked.request.playbook.resources if each.resource == resource]
    wanted: list[Wanted] = []
    for key, desired in (*((each.key, each.desired) for each in stages), *((each.key, each.desired) for each in named)):
        if not REFERENCE.search(f"{key}{desired}") and (key, desired) not in wanted:
            wanted.append((key, desired))
    return tuple(wanted)


def not_known_yet(checked: CheckedPlan) -> Iterator[str]:
    """Titles of what only a later stage decides."""
    for deferred in checked.plan.deferred:
        named = [each for each in checked.request.playbook.resources if each.resource == deferred.resource]
        if deferred.resource in _TAKEN and any(REFERENCE.search(f"{each.key}{each.desired}") for each in named):
            yield f"{deferred.title} ({deferred.resource})"


def packages_of(checked: CheckedPlan) -> Iterator[str]:
    """Packages that it installs, which come from the sources of that Linux."""
    for step in checked.plan.steps:
        if step.resource == "DebianPackage" and step.desired.get("version"):
            yield f"{step.key['package']}={step.desired['version']}"
        if step.resource == "AptPackages" and step.role == "desired":
            listed = [*(step.before.get("to_add") or ()), *(step.before.get("to_change") or ())]
            yield from (_package(str(each)) for each in listed)


def _package(line: str) -> str:
    """`NAME VERSION` or `NAME OLD -> NEW`, as apt names it."""
    words = line.split()
    return f"{words[0]}={words[-1]}" if len(words) > 1 else line
