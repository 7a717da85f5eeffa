"""Groups of a Linux."""

from winhost.core.rules import Condition, KeepIf, UndoRule
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import ACCESS, DISTROS
from winhost.resources.values import FLAG


@resource(
    ResourceType(
        "LinuxGroup",
        title="groups in Linux",
        order=37,
        key=("group",),
        sets={"there": FLAG, "system": FLAG},
        requires=ACCESS,
        absent={"there": False, "system": False, "ours": False, "gid": None, "members": []},
        within=DISTROS,
        undo=UndoRule(
            keep_if=(
                KeepIf(
                    (
                        Condition("there", of="before", one_of=(False,)),
                        Condition("there", one_of=(True,)),
                        Condition("ours", one_of=(False,)),
                    ),
                    "it is not the group that winhost made any more",
                ),
                KeepIf(
                    (Condition("members", gained=True), Condition("there", of="before", one_of=(False,))),
                    "{members} belongs to it now",
                ),
            ),
            remove_if_created={"there": False, "system": False},
        ),
    )
)
class LinuxGroup(State):
    """A group of the machine's own files. system: it has, or is to have, a number below 1000; ours: winhost made it;
    members: users, also those whose first group it is. Who is in it is a property of `LinuxUser`.
    """

    there: bool
    system: bool
    ours: bool
    gid: int | None
    members: tuple[str, ...]
