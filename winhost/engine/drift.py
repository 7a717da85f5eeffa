"""Whether a host is still as the plan of a run saw it. Pure."""

from winhost.connect.wire_errors import Drifted
from winhost.core.answers import Json, identity
from winhost.engine.run_state import RunState
from winhost.model.facts import Facts
from winhost.model.plan import Stage
from winhost.resources.registry import host_answers


def refuse_drift(record: RunState, stage: Stage, facts: Facts) -> None:
    """A request must stand where the plan saw it, or already where it shall be; a need only where it was seen, or it
    would be given back to what it no longer is. What no step of the plan shows must be so already: nothing is changed
    that its reader has not seen. What this run moved itself may differ. Raises Drifted.
    """
    differing = _unseen(record, stage, facts)
    for step in stage.steps:
        if step.role == "restore" or identity(step.resource, step.key) in record.touched:
            continue
        now = host_answers(facts).state_of(step.resource, step.key) or {}
        for name, before in step.before.items():
            if now.get(name) not in ([before] if step.role == "need" else [before, step.desired[name]]):
                differing[f"{step.title}: {name}"] = (before, now.get(name))
    if differing:
        raise Drifted(record.host, "apply", differing)


def _unseen(record: RunState, stage: Stage, facts: Facts) -> dict[str, tuple[Json, Json]]:
    shown = {(identity(step.resource, step.key), name) for step in stage.steps for name in step.desired}
    differing: dict[str, tuple[Json, Json]] = {}
    for desired in stage.desired:
        id_ = identity(desired.resource, desired.key)
        now = host_answers(facts).state_of(desired.resource, desired.key) or {}
        for name, value in desired.desired.items():
            if (id_, name) not in shown and id_ not in record.touched and now.get(name) != value:
                differing[f"{desired.title}: {name}"] = (value, now.get(name))
    return differing
