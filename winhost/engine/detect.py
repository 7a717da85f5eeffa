"""Read all resources of a host into one facts document."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime
from typing import Any, TypeAlias

from winhost import __version__
from winhost.connect.agent import Agent, State
from winhost.core.answers import Id, Record, RemoteFault, Unavailable, Unknown
from winhost.model.facts import Answer, Facts
from winhost.resources.registry import LINUX_RULES, RESOURCE_TYPES, SYSTEMS, host_answers

Named: TypeAlias = Iterable[Id] | Callable[[Facts], Iterable[Id]]


def read_facts(agent: Agent, named: Named = (), *, settled: bool = False) -> Facts:
    """Read every resource of the host. named: instances to read by name if the host does not list them, or a function
    that returns these for the facts; settled: after a call that may still be running on the host has ended.
    """
    resources, states = _read_listed(agent, named, settled)
    system = resources.get("Session", resources.get("LinuxSystem"))  # the resource of a Windows, or of a Linux
    simulated = isinstance(system, tuple) and any(record.state.get("simulated") is True for record in system)
    facts = Facts(
        host=agent.host,
        origin="synthetic" if simulated else "recorded",
        read_at=datetime.now(UTC).isoformat(timespec="seconds"),
        winhost=__version__,
        resources=resources,
    )
    unlisted = host_answers(facts).unlisted(named(facts) if callable(named) else named)
    unread = [id_ for id_ in unlisted if id_ not in states]
    if unread:
        states |= zip(unread, agent.get_each(unread), strict=True)
    resources = dict(resources)
    for resource, key in unlisted:
        state, listed = states[resource, key], resources[resource]
        if isinstance(state, RemoteFault):  # no property could be read
            state_type: Any = RESOURCE_TYPES[resource].state
            state = {each.name: {"unknown": asdict(state)} for each in fields(state_type)}
        if state is not None and isinstance(listed, tuple):
            resources[resource] = (*listed, Record(state, dict(key)))
    return replace(facts, resources=resources)


def _read_listed(agent: Agent, named: Named, settled: bool) -> tuple[dict[str, Answer], dict[Id, State]]:
    """Read all resources, and of a Linux also the named instances, in one round trip. A Linux lists few of these, and
    reading one twice costs nothing. Windows lists most instances, and reading one by name would call another cmdlet.
    """
    resources = tuple(SYSTEMS[agent.system])
    if callable(named) or agent.system != "linux":
        return agent.read(resources, settled=settled), {}
    ids = sorted({id_ for id_ in named if id_[0] in resources and LINUX_RULES[id_[0]].absent is None})
    return agent.read_with(resources, ids, settled=settled)


def unavailable_resources(facts: Facts) -> dict[str, list[str]]:
    """Return resources that cannot exist yet, by the resource that has to exist first."""
    unavailable: dict[str, list[str]] = {}
    for resource, answer in facts.resources.items():
        if isinstance(answer, Unavailable):
            unavailable.setdefault(answer.unavailable, []).append(resource)
    return unavailable


def unread_facts(facts: Facts) -> Iterator[tuple[str, RemoteFault]]:
    """Yield the resources and properties that could not be read, each with its error."""
    for resource, answer in facts.resources.items():
        if isinstance(answer, Unknown):
            yield resource, answer.unknown
        elif isinstance(answer, tuple):
            for name, value in (each for record in answer for each in record.state.items()):
                if isinstance(value, dict) and set(value) == {"unknown"}:
                    error = value["unknown"]
                    fault = RemoteFault(error["category"], error.get("code", ""), message=error.get("message", ""))
                    yield f"{resource}.{name}", fault
