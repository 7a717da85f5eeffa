"""The Container Device Interface, by which containers get the GPU."""

from winhost.core.rules import Condition, UndoRule
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import ACCESS, DISTROS
from winhost.resources.values import FLAG


@resource(
    ResourceType(
        "CdiSpec",
        title="the CDI spec in Linux",
        order=70,
        sets={"present": FLAG, "fresh": FLAG},
        after=("AptPackages", "DebianPackage", "LinuxFile"),
        requires=ACCESS,
        within=DISTROS,
        undo=UndoRule(
            gone_if=((Condition("present", of="before", one_of=(False,)), Condition("present", one_of=(False,))),),
            remove_if_created={"present": False},
            never="a spec that did not match the driver is of no use to anybody",
        ),
    )
)
class CdiSpec(State):
    """/run/cdi/nvidia.yaml. fresh: it is what nvidia-ctk would write now, for the driver of now.

    devices: all that the specs of this machine name, as `nvidia.com/gpu=all`. A desired state holds `present` and
    `fresh`.
    """

    present: bool
    fresh: bool
    devices: tuple[str, ...]
