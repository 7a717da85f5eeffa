"""How containers get the GPU: the Container Device Interface."""

from collections.abc import Mapping

from winhost.core.answers import Json
from winhost.resources.base import Keep, ResourceType, State, Undo, resource
from winhost.resources.shared import ACCESS, DISTROS
from winhost.resources.values import FLAG


def _undo_spec(before: Mapping[str, Json], after: Mapping[str, Json], now: Mapping[str, Json]) -> Undo:
    if before.get("present") is False:
        return {"present": False} if now["present"] else {}
    return Keep("a spec that did not match the driver is of no use to anybody")


@resource(
    ResourceType(
        "CdiSpec",
        title="the CDI spec in the distro",
        order=70,
        sets={"present": FLAG, "fresh": FLAG},
        after=("DebianPackage", "LinuxFile"),
        requires=ACCESS,
        within=DISTROS,
        undo=_undo_spec,
    )
)
class CdiSpec(State):
    """/run/cdi/nvidia.yaml. fresh: it is what nvidia-ctk would write now, for the driver that is mounted now.

    devices: all that the specs of this machine name, as `nvidia.com/gpu=all`. A desired state holds `present` and
    `fresh`.
    """

    present: bool
    fresh: bool
    devices: tuple[str, ...]
