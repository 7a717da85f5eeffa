"""Packages in the distro."""

from collections.abc import Mapping

from winhost.core.answers import Json
from winhost.resources.base import Keep, ResourceType, State, Undo, resource, undo_property_by_property
from winhost.resources.shared import ACCESS, DISTROS, SPEC, UNITS
from winhost.resources.values import FLAG, or_nothing, text


def _undo_package(before: Mapping[str, Json], after: Mapping[str, Json], now: Mapping[str, Json]) -> Undo:
    """Others that need it now and did not when it came keep it."""
    since = sorted(set(now["needed_by"]) - set(after["needed_by"]))
    if since and "version" in before and before["version"] is None:
        return Keep(f"{', '.join(since)} needs it now")
    return undo_property_by_property(before, after, now)


@resource(
    ResourceType(
        "DebianPackage",
        title="packages in the distro",
        order=50,
        key=("package",),
        sets={
            "version": or_nothing(text(r"[A-Za-z0-9][A-Za-z0-9.+:~-]*", "a version, as apt writes it")),
            "held": FLAG,
        },
        after=("AptSource", "LinuxFile"),
        requires=ACCESS,
        rests=(UNITS, SPEC),
        within=DISTROS,
        undo=_undo_package,
    )
)
class DebianPackage(State):
    """version: exactly this one, or null where it is not installed; taken away only where winhost installed it.

    held: upgrades leave it alone; needed_by: installed packages that depend on it.
    """

    version: str | None
    held: bool
    needed_by: tuple[str, ...]
