"""Packages in the distro."""

from winhost.core.rules import Condition, KeepIf, UndoRule
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import ACCESS, DISTROS, SPEC, UNITS
from winhost.resources.values import FLAG, or_nothing, text


@resource(
    ResourceType(
        "DebianPackage",
        title="packages in Linux",
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
        undo=UndoRule(
            keep_if=(
                KeepIf(
                    (Condition("needed_by", gained=True), Condition("version", of="before", one_of=(None,))),
                    "{needed_by} needs it now",
                ),
            )
        ),
    )
)
class DebianPackage(State):
    """version: exactly this one, or null where it is not installed; taken away only where winhost installed it.

    held: upgrades leave it alone; needed_by: installed packages that depend on it.
    """

    version: str | None
    held: bool
    needed_by: tuple[str, ...]
