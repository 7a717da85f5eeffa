"""Mounts of file systems for data."""

from winhost.core.rules import UndoRule
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import ACCESS, DISTROS
from winhost.resources.values import FLAG, UUID, one_of, or_nothing, text


@resource(
    ResourceType(
        "Mount",
        title="mounts in Linux",
        order=28,
        key=("path",),
        sets={
            "uuid": or_nothing(UUID),
            "filesystem": or_nothing(one_of("ext4", "xfs")),
            "options": or_nothing(text(r"[A-Za-z0-9_=.:+-]+(,[A-Za-z0-9_=.:+-]+)*", "options, as noatime,ro")),
            "mounted": FLAG,
        },
        after=("DataDisk",),
        requires=ACCESS,
        absent={"uuid": None, "filesystem": None, "options": None, "mounted": False},
        within=DISTROS,
        undo=UndoRule(
            remove_if_created={"uuid": None, "filesystem": None, "options": None, "mounted": False},
            unless_changed=True,
            whole=True,
            transitional_states={"mounted": (False,)},  # a disk that lacks is nobody's change
        ),
    )
)
class Mount(State):
    """A file system by its UUID at a folder, by a unit of systemd that winhost wrote: now and with each start.

    options: those besides `nofail`, without which a disk that lacks would hold up the start; mounted: it is there now.
    All null where winhost wrote no unit. Unmounting leaves the data on the disk, and a folder that was there before.
    """

    uuid: str | None
    filesystem: str | None
    options: str | None
    mounted: bool
