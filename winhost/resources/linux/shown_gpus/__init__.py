"""The GPUs that the driver of a Linux shows, whether it runs, and the MMIO space that the kernel lacks."""

from winhost.core.rules import Condition, UndoRule
from winhost.model.units import Bytes
from winhost.resources.base import NOT_TOLD, ResourceType, State, resource
from winhost.resources.shared import ACCESS, DISTROS
from winhost.resources.values import Value


@resource(
    ResourceType(
        "ShownGpus",
        title="the GPUs that the driver in Linux shows",
        order=24,
        sets={
            "count": Value("a number of GPUs", lambda value: type(value) is int and 0 <= value <= 1024),
            "loaded": Value("true", lambda value: value is True),
            "unplaced": Value("0", lambda value: type(value) is int and value == 0),
        },
        after=("VmPower", "AptPackages"),
        requires=ACCESS,
        within=DISTROS,
        undo=UndoRule(gone_if=((Condition(),),)),  # it is only waited for
    )
)
class ShownGpus(State):
    """count: by `nvidia-smi -L`, 0 without a driver; loaded: NVIDIA's kernel module runs, by
    `/proc/driver/nvidia/version`; unplaced: BARs of these GPUs to which the kernel gave no address. Setting them waits
    until all are so, and changes nothing.

    needed_high, needed_low: bytes of MMIO space that one of the GPUs of a Hyper-V VM did not get when the kernel
    started, as that says (`hv_pci …: Need 0x… of high MMIO space`); null where it does not.
    """

    count: int
    needed_high: Bytes | None
    needed_low: Bytes | None
    loaded: bool = NOT_TOLD
    unplaced: int = NOT_TOLD
