"""MMIO windows of VMs."""

from winhost.model.units import Bytes, MiB
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import DEVICES
from winhost.resources.values import FLAG, sizes
from winhost.resources.windows.vm_power import VM_OFF


@resource(
    ResourceType(
        "VmMmio",
        title="MMIO windows of VMs",
        order=190,
        key=("vm",),
        sets={"low": sizes(2 * MiB), "high": sizes(2 * MiB), "cache": FLAG},
        requires="HyperVRole",
        after=("OwnVm",),
        needs=(VM_OFF,),
        rests=DEVICES,
    )
)
class VmMmio(State):
    """MMIO windows of a VM. Sizes in bytes, multiples of 2 MiB (Set-VM); cache: guest-controlled cache types."""

    low: Bytes
    high: Bytes
    cache: bool
