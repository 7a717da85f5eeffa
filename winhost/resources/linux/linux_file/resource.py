"""Files of a Linux machine that winhost writes."""

from collections.abc import Mapping

from winhost.core.answers import Json
from winhost.resources.base import Keep, ResourceType, State, Undo, resource, undo_property_by_property
from winhost.resources.shared import ACCESS, DISTROS, PACKAGES, UNITS
from winhost.resources.values import or_nothing, text


def _undo_file(before: Mapping[str, Json], after: Mapping[str, Json], now: Mapping[str, Json]) -> Undo:
    """As a whole or not at all: without its text there is no mode to put back."""
    undo = undo_property_by_property(before, after, now)
    return Keep(undo.reason) if isinstance(undo, Keep) else undo


@resource(
    ResourceType(
        "LinuxFile",
        title="files in the distro",
        order=30,
        key=("path",),
        sets={
            "text": or_nothing(text(r"(?s).*", "text")),
            "link": or_nothing(text(r"[^\0]+", "where a link leads")),
            "mode": or_nothing(text(r"0[0-7]{3}", "a mode, as 0644")),
            "owner": or_nothing(text(r"[^:]+:[^:]+", "an owner, as root:root")),
        },
        requires=ACCESS,
        rests=(PACKAGES, UNITS),
        within=DISTROS,
        undo=_undo_file,
    )
)
class LinuxFile(State):
    """A file by its path, of those that winhost writes; all null where there is none.

    link: where it leads, if it is a symbolic link. No link is followed, and a change that replaces one sets `link:
    null`.
    """

    text: str | None
    link: str | None
    mode: str | None
    owner: str | None
