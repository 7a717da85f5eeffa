"""Units of systemd."""

from collections.abc import Mapping

from winhost.core.answers import Json
from winhost.resources.base import ResourceType, State, Undo, resource, undo_property_by_property
from winhost.resources.shared import ACCESS, DISTROS
from winhost.resources.values import FLAG, text


def _undo_unit(before: Mapping[str, Json], after: Mapping[str, Json], now: Mapping[str, Json]) -> Undo:
    """A unit that is no longer there went with its file or package."""
    gone = isinstance(now["enabled"], Mapping) and now["active"] is not True
    return {} if gone else undo_property_by_property(before, after, now)


@resource(
    ResourceType(
        "SystemdUnit",
        title="units in the distro",
        order=60,
        key=("unit",),
        sets={"enabled": text(r"[a-z-]+", "enabled, disabled, masked, or what it was"), "active": FLAG},
        after=("LinuxFile", "DebianPackage", "CdiSpec"),
        requires=ACCESS,
        within=DISTROS,
        undo=_undo_unit,
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
