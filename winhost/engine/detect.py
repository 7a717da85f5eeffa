"""Reading a host: one batch, one document."""

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
    """Every resource of the host, and of those that it does not list the named ones, which may depend on what it is.

    With `settled`, after a call that may still be running there has ended.
    """
    resources, states = _first(agent, named, settled)
    said = resources.get("Session", resources.get("LinuxSystem"))  # Windows of its session, a Linux of itself
    simulated = isinstance(said, tuple) and any(record.state.get("simulated") is True for record in said)
    facts = Facts(
        host=agent.host,
        origin="synthetic" if simulated else "recorded",
        read_at=datetime.now(UTC).isoformat(timespec="seconds"),
        winhost=__version__,
        resources=resources,
    )
    unlisted = host_answers(facts).unlisted(named(facts) if callable(named) else named)
    unasked = [id_ for id_ in unlisted if id_ not in states]
    if unasked:
        states |= zip(unasked, agent.each(unasked), strict=True)
    resources = dict(resources)
    for resource, key in unlisted:
        found, listed = states[resource, key], resources[resource]
        if isinstance(found, RemoteFault):  # nothing of it could be read
            known: Any = RESOURCE_TYPES[resource].state
            found = {each.name: {"unknown": asdict(found)} for each in fields(known)}
        if found is not None and isinstance(listed, tuple):
            resources[resource] = (*listed, Record(found, dict(key)))
    return replace(facts, resources=resources)


def _first(agent: Agent, named: Named, settled: bool) -> tuple[dict[str, Answer], dict[Id, State]]:
    """A Linux tells what is named in the same round trip: it lists little of that, and what is read twice costs nothing
    the second time. On Windows most is listed, and each name would cost another call of a cmdlet.
    """
    resources = tuple(SYSTEMS[agent.system])
    if callable(named) or agent.system != "linux":
        return agent.read(resources, settled=settled), {}
    asked = sorted({id_ for id_ in named if id_[0] in resources and LINUX_RULES[id_[0]].absent is None})
    return agent.read_with(resources, asked, settled=settled)


def not_yet(facts: Facts) -> dict[str, list[str]]:
    """Resources that cannot exist yet, by what has to be there first."""
    waiting: dict[str, list[str]] = {}
    for resource, answer in facts.resources.items():
        if isinstance(answer, Unavailable):
            waiting.setdefault(answer.unavailable, []).append(resource)
    return waiting


def missing(facts: Facts) -> Iterator[tuple[str, RemoteFault]]:
    """The resources and properties that could not be read, and why."""
    for resource, answer in facts.resources.items():
        if isinstance(answer, Unknown):
            yield resource, answer.unknown
        elif isinstance(answer, tuple):
            for name, value in (each for record in answer for each in record.state.items()):
                if isinstance(value, dict) and set(value) == {"unknown"}:
                    error = value["unknown"]
                    fault = RemoteFault(error["category"], error.get("code", ""), message=error.get("message", ""))
                    yield f"{resource}.{name}", fault
