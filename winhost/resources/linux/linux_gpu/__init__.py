"""GPUs as a Linux sees them: on its PCI bus, by the driver that is bound, and by nvidia-smi."""

from typing import Annotated

from winhost.core.dataclass import dataclass
from winhost.model.units import Bytes
from winhost.resources.base import ResourceType, State, Within, resource
from winhost.resources.shared import ACCESS

_Address = Annotated[int, Within(0, 2**63 - 1)]


@dataclass(frozen=True)
class LinuxBar:
    """A BAR as sysfs has it, in bytes. start: 0 where the kernel found no place for it."""

    index: int
    start: _Address
    size: _Address
    prefetchable: bool


@resource(ResourceType("LinuxGpu", title="GPUs in Linux", order=22, key=("address",), requires=ACCESS))
class LinuxGpu(State):
    """NVIDIA's. address: PCI, as `0000:01:00.0`; device: vendor and device, as `10de:2684`; driver: the one that is
    bound; numa: null where there are no nodes; name, uuid, vram: by nvidia-smi, null where it does not list the GPU.

    In WSL no GPU is on the PCI bus: what nvidia-smi lists there has no device, no BARs and no driver.
    """

    device: str | None
    driver: str | None
    numa: int | None
    bars: tuple[LinuxBar, ...]
    name: str | None
    uuid: str | None
    vram: Bytes | None
