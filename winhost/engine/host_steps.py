"""Steps on one host, with what only the controller knows of them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from winhost.core.answers import Id
from winhost.core.order import NoInstance, change_of, steps_for
from winhost.core.steps import DesiredResource, Role, Step
from winhost.model.errors import WinhostError, visible
from winhost.model.facts import Facts
from winhost.resources.registry import RESOURCE_TYPES, host_answers


def steps_on(
    facts: Facts,
    desired: Sequence[DesiredResource],
    *,
    prefix: str = "",
    role: Role = "desired",
    backwards: bool = False,
    extra_risks: Mapping[Id, tuple[str, ...]] | None = None,
    titles: Mapping[Id, str] | None = None,
    named: str | None = None,
) -> tuple[Step, ...]:
    """The steps by core's `steps_for`. named: as a command names the host, where that is not its name. Raises
    MissingFact, and WinhostError (Gone) for what the host does not have.
    """
    try:
        steps = steps_for(
            desired,
            host_answers(facts),
            prefix=prefix,
            role=role,
            backwards=backwards,
            extra_risks=extra_risks,
            titles=titles,
        )
    except NoInstance as missing:
        raise _gone(facts.host, missing.desired, named or visible(facts.host)) from missing
    return tuple(
        replace(step, irreversible=RESOURCE_TYPES[step.resource].irreversible(change_of(step))) for step in steps
    )


def _gone(host: str, desired: DesiredResource, named: str) -> WinhostError:
    which = ", ".join(f"{name} {value}" for name, value in desired.key.items()) or "that name"
    return WinhostError(
        "Gone",
        what=f"{host} has no {desired.resource} with {which} any more ({desired.title})",
        hint=f"Read it again: winhost plan {named}",
        host=host,
    )
