"""Units of systemd."""

from winhost.resources.base import Noun, State, resource
from winhost.resources.linux.system import ACCESS
from winhost.resources.values import FLAG, text


@resource(
    Noun(
        "SystemdUnit",
        key=("unit",),
        sets={"enabled": text(r"[a-z-]+", "enabled, disabled, masked, or what it was"), "active": FLAG},
        after=("LinuxFile", "DebianPackage", "CdiSpec"),
        requires=ACCESS,
    )
)
class SystemdUnit(State):
    """loaded: systemd knows it and could read it; enabled: enabled, disabled, masked, or static and the like, which
    cannot be chosen; active: it runs, or ran and stays; failed: it ended badly.
    """

    loaded: bool
    enabled: str
    active: bool
    failed: bool
