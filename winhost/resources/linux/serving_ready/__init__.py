"""The endpoint of a Linux, tested by a real completion of each model through the gateway."""

from winhost.core.rules import Condition, UndoRule
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import ACCESS, DISTROS
from winhost.resources.values import Value

SERVES = Value("true: an endpoint is only waited for", lambda value: value is True)


@resource(
    ResourceType(
        "ServingReady",
        title="the endpoint of the models",
        order=84,
        sets={"ready": SERVES},
        after=("EngineUnit", "FirewallPort"),
        requires=ACCESS,
        within=DISTROS,
        lasts=lambda change: 3600,
        undo=UndoRule(gone_if=((Condition(),),)),  # it is only waited for
    )
)
class ServingReady(State):
    """ready: the gateway's /ready says that each model of /etc/winhost/serving.json answered a completion of one token,
    at most 15 seconds ago. Setting it waits until that is so, and changes nothing.
    """

    ready: bool
