"""PCI functions of GPUs, as the bus and Windows describe them."""

import re
from typing import Annotated

from winhost.core.dataclass import dataclass
from winhost.model.units import Bytes
from winhost.resources.base import NOT_REPORTED, Bounds, ResourceType, State, resource

DISPLAY = 3  # PCI base class
ADDRESSES = 1 << 64
FUNCTION = re.compile(r"#PCI\(([0-9A-F]{2})([0-9A-F]{2})\)$", re.IGNORECASE)


@dataclass(frozen=True)
class MemoryRange:
    """A memory range of a device, as the host has currently placed it: start and length in bytes."""

    start: Annotated[Bytes, Bounds(0, ADDRESSES)]
    length: Annotated[Bytes, Bounds(1, ADDRESSES)]


def gpu_location(location: str) -> str:
    """Return the location path of function 0 of the same GPU. Functions differ in the last two digits of the path."""
    return FUNCTION.sub(r"#PCI(\g<1>00)", location)


def pci_id(device: str) -> str:
    """Convert a Windows device id to the format of Linux: `VEN_10DE&DEV_26B9&SUBSYS_…` is `10de:26b9`."""
    vendor, _, rest = device.partition("&")
    return f"{vendor.removeprefix('VEN_')}:{rest.partition('&')[0].removeprefix('DEV_')}".lower()


@resource(ResourceType("PciDevice", title="PCI devices", order=150, key=("location", "device")))
class PciDevice(State):
    """A display, audio or USB function of a GPU. Its key does not change when it is dismounted or renumbered.

    - device: VEN_10DE&DEV_2684&SUBSYS_…; instance: the current instance id (PCIP\\ when dismounted).
    - kind: display, audio, usb or other; problem: the Configuration Manager code: 0 none, 22 disabled.
    - driver_model: WDDM, TCC, MCDM or null.
    - post_path: firmware booted on it.
    - ranges: memory ranges; none while it is disabled or dismounted.
    - device_type: 2 PCIe endpoint, 3 legacy endpoint, 4 root-complex endpoint, 5 PCIe treated as PCI.
    - acs: AcsCompatibleUpHierarchy; 0 not supported, null if the bus driver does not report it.
    - rmrr: firmware reserves memory for it.
    - line_interrupts_only: it has no message-signaled interrupt.
    - pcie_control: Windows controls PCI Express on its root bus.
    - tunneled: connected by Thunderbolt or USB4; displays: the number of its monitors.
    - vram: bytes, null if the driver does not report them.
    - numa: the NUMA node (DEVPKEY_Device_Numa_Node), null if firmware does not report it.
    """

    instance: str
    name: str
    kind: str
    device_class: str
    problem: int
    driver: str | None
    driver_version: str | None
    driver_model: str | None
    post_path: bool
    ranges: tuple[MemoryRange, ...]
    base_class: int
    device_type: int
    acs: int | None
    rmrr: bool
    line_interrupts_only: bool
    pcie_control: bool
    tunneled: bool
    displays: int
    vram: Annotated[Bytes, Bounds(0, ADDRESSES)] | None
    numa: Annotated[int, Bounds(0, 1 << 32)] | None = NOT_REPORTED

    @property
    def dismounted(self) -> bool:
        """True if the pass-through driver owns it, so that the host does not use it."""
        return self.instance.upper().startswith("PCIP\\")
