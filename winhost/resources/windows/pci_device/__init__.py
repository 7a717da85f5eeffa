"""GPUs and the other functions of their boards, as the bus and Windows describe them."""

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
    """Start and length in bytes, as the host has placed it now."""

    start: Annotated[Bytes, Bounds(0, ADDRESSES)]
    length: Annotated[Bytes, Bounds(1, ADDRESSES)]


def gpu_location(location: str) -> str:
    """The location path of function 0: functions of one GPU differ only in the last two digits of the last `PCI()`."""
    return FUNCTION.sub(r"#PCI(\g<1>00)", location)


def pci_id(device: str) -> str:
    """`10de:26b9`, as Linux writes what Windows calls `VEN_10DE&DEV_26B9&SUBSYS_…`."""
    vendor, _, rest = device.partition("&")
    return f"{vendor.removeprefix('VEN_')}:{rest.partition('&')[0].removeprefix('DEV_')}".lower()


@resource(ResourceType("PciDevice", title="PCI devices", order=150, key=("location", "device")))
class PciDevice(State):
    """A display, audio or USB function of a GPU; its key is what survives dismounting and renumbering.

    device: VEN_10DE&DEV_2684&SUBSYS_…; instance: as Windows names it now (PCIP\\ once dismounted); kind: display,
    audio, usb or other; problem: Configuration Manager code, 0 is none, 22 disabled; driver_model: WDDM, TCC, MCDM or
    null; post_path: firmware booted on it; ranges: memory, none readable while disabled or dismounted; device_type:
    2 PCIe endpoint, 3 legacy endpoint, 4 root-complex endpoint, 5 PCIe treated as PCI; acs: AcsCompatibleUpHierarchy,
    0 not supported, null where the bus driver does not say; rmrr: firmware reserves memory for it;
    line_interrupts_only: it got no message interrupt; pcie_control: Windows controls PCI Express on its root bus;
    tunneled: Thunderbolt or USB4; displays: monitors on it; vram: bytes, null unless the driver reports them;
    numa: the NUMA node (DEVPKEY_Device_Numa_Node), null where firmware does not say.
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
        """It answers to the pass-through driver, not to Windows."""
        return self.instance.upper().startswith("PCIP\\")
