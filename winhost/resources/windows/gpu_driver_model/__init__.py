"""The driver model by which an NVIDIA GPU is presented to Windows."""

from winhost.core.rules import Condition, ConsentRule
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import DISTROS, RESTART_CONSENT
from winhost.resources.values import one_of

WDDM = "WDDM"
MCDM = "MCDM"


@resource(
    ResourceType(
        "GpuDriverModel",
        title="driver models of GPUs",
        order=160,
        key=("location", "device"),
        sets={"pending": one_of(WDDM, MCDM)},
        restarts=True,
        asks=("restart", "headless"),
        risks=RESTART_CONSENT,
        # Only WDDM drives a display; whether one is attached is read on the host.
        may_need=(ConsentRule("headless", (Condition("pending", of="desired", none_of=(WDDM,)),)),),
        dependents=(DISTROS,),
    )
)
class GpuDriverModel(State):
    """WDDM, TCC or MCDM, now and after the next restart; null where no driver of NVIDIA runs the GPU.

    WSL sees GPUs in WDDM and MCDM; one in TCC it does not see, and is seen to lose the others as well. TCC comes back
    with a rollback, and is never wanted. Consumer GPUs know WDDM alone. MCDM is documented by NVIDIA as an enumeration
    of NVML and reported to work with WSL; from which driver version on, and for which GPUs, is unverified.
    """

    current: str | None
    pending: str | None
