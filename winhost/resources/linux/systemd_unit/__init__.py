"""Units of systemd."""

from winhost.core.rules import Condition, UndoRule
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import ACCESS, DISTROS
from winhost.resources.values import FLAG, text


@resource(
    ResourceType(
        "SystemdUnit",
        title="units in Linux",
        order=60,
        key=("unit",),
        sets={"enabled": text(r"[a-z-]+", "enabled, disabled, masked, or what it was"), "active": FLAG},
        after=("LinuxFile", "DebianPackage", "CdiSpec", "ReleaseFile", "SecretFile"),
        requires=ACCESS,
        within=DISTROS,
        # A unit that is no longer there went with its file or package.
        undo=UndoRule(gone_if=((Condition("enabled", unavailable=True), Condition("active", none_of=(True,))),)),
    )
)
class SystemdUnit(State):
    """loaded: systemd knows it and could read it; enabled: enabled, disabled, masked, or static and the like, which
    cannot be chosen; active: it runs, or ran and stays; failed: it ended badly. How a unit begins that does not
    exist yet depends on the file or package that brings it; until then its state is unavailable.
    """

    loaded: bool
    enabled: str
    active: bool
    failed: bool
