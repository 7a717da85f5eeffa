"""The driver model of an NVIDIA GPU in Windows."""

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
    """WDDM, TCC or MCDM, now (current) and after the next restart (pending); null if no NVIDIA driver runs the GPU.

    WSL sees GPUs in WDDM and MCDM. It does not see a GPU in TCC, and has been seen to lose the other GPUs as well.
    Rollback may restore TCC, but winhost never sets it otherwise. Consumer GPUs support only WDDM. NVIDIA documents
    MCDM as an enumeration of NVML, and it is reported to work with WSL; from which driver version on, and for which
    GPUs, is unverified.
    """

    current: str | None
    pending: str | None
