"""How many GPUs the driver of a Linux shows, and what its kernel says of those that it lacks."""

from winhost.core.rules import Condition, UndoRule
from winhost.model.units import Bytes
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import ACCESS, DISTROS
from winhost.resources.values import Value


@resource(
    ResourceType(
        "ShownGpus",
        title="the GPUs that the driver in Linux shows",
        order=24,
        sets={"count": Value("a number of GPUs", lambda value: type(value) is int and 0 <= value <= 1024)},
        after=("VmPower", "AptPackages"),
        requires=ACCESS,
        within=DISTROS,
        undo=UndoRule(gone_if=((Condition(),),)),  # it is only waited for
    )
)
class ShownGpus(State):
    """count: by `nvidia-smi -L`, 0 without a driver. Setting it waits until that many are shown, and changes nothing.

    needed_high, needed_low: bytes of MMIO space that one of the GPUs of a Hyper-V VM did not get when the kernel
    started, as that says (`hv_pci …: Need 0x… of high MMIO space`); null where it does not.
    """

    count: int
    needed_high: Bytes | None
    needed_low: Bytes | None
