"""Checkpoints of VMs."""

from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import DEVICES
from winhost.resources.values import FLAG, one_of


@resource(
    ResourceType(
        "VmCheckpoints",
        title="checkpoints of VMs",
        order=210,
        key=("vm",),
        sets={"kind": one_of("disabled", "production", "production-only", "standard"), "automatic": FLAG},
        requires="HyperVRole",
        after=("OwnVm",),
        rests=DEVICES,
    )
)
class VmCheckpoints(State):
    """kind: disabled, production, production-only or standard; automatic: one at each start."""

    kind: str
    automatic: bool
