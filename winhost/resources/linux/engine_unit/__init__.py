"""Units of engines that serve models."""

from winhost.core.rules import UndoRule
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import ACCESS, DISTROS
from winhost.resources.values import FLAG, or_nothing, text


@resource(
    ResourceType(
        "EngineUnit",
        title="units of engines",
        order=82,
        key=("unit",),
        sets={"text": or_nothing(text(r"(?s).+", "the text of a unit")), "enabled": FLAG, "active": FLAG},
        after=(
            "ContainerImage",
            "ModelFiles",
            "PackedModel",
            "LinuxGroup",
            "LinuxFile",
            "SystemdUnit",
            "CdiSpec",
            "FirewallPort",
        ),
        requires=ACCESS,
        absent={"text": None, "enabled": False, "active": False, "failed": False},
        within=DISTROS,
        lasts=lambda change: 3600,
        undo=UndoRule(whole=True),
    )
)
class EngineUnit(State):
    """`winhost-engine-NAME.service`, with its text, null where there is none. What has to be there before it starts
    (the image, the model, its own files) comes before it, and goes after it in a rollback.

    enabled: it starts with the machine; active: the engine runs and answered; failed: it ended badly. A new text
    restarts what is to be active: by default what is enabled and runs, failed or was not enabled before. Others are
    started by the gateway when their turn comes. Setting active waits until the unit has started: then the engine
    answers.
    """

    text: str | None
    enabled: bool
    active: bool
    failed: bool
