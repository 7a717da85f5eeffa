"""A Linux as a node of its cluster on which pods can be scheduled."""

from winhost.core.rules import Condition, UndoRule
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import ACCESS, DISTROS
from winhost.resources.values import Value

IS_READY = Value("true: a node is only waited for", lambda value: value is True)


@resource(
    ResourceType(
        "ClusterNode",
        title="nodes of a cluster",
        order=61,
        key=("node",),
        sets={"ready": IS_READY},
        after=("SystemdUnit", "ReleaseFile", "SecretFile"),
        requires=ACCESS,
        within=DISTROS,
        lasts=lambda change: 900,
        undo=UndoRule(gone_if=((Condition(),),)),  # it is only waited for
    )
)
class ClusterNode(State):
    """The node's state, as the API server tells the kubelet of this machine. ready: pods can be scheduled on it.
    Setting it waits until it is, and changes nothing.
    """

    ready: bool
