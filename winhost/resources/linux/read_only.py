"""Resources of Linux that are only read. The script of each stands in its folder."""

from typing import Annotated

from winhost.core.dataclass import dataclass
from winhost.model.units import Bytes
from winhost.resources.base import NOT_REPORTED, Bounds, ResourceType, State, resource
from winhost.resources.shared import ACCESS


@resource(ResourceType("LinuxSystem", title="the Linux", order=10, requires=ACCESS))
class LinuxSystem(State):
    """id, version: as in os-release (`ubuntu`, `24.04`); kernel: its release; architecture: the output of `uname -m`.

    wsl_networking: the output of `wslinfo --networking-mode`, null where this is no WSL; systemd: it runs as init;
    machine_id: as in /etc/machine-id; simulated: it is in the lab, so its facts are `synthetic`; virtualization: the
    output of `systemd-detect-virt` (`none` on metal); secure_boot: null where it was not started by UEFI; cgroups: the
    version; memory: as the kernel has it; shm: the size of /dev/shm, null where there is none;
    pci_hyperv: whether its kernel has the driver for devices that Hyper-V assigns, null where no Hyper-V runs it.
    """

    id: str
    version: str | None
    kernel: str
    architecture: str
    wsl: bool
    wsl_networking: str | None
    systemd: bool
    machine_id: str = NOT_REPORTED
    simulated: bool = NOT_REPORTED
    virtualization: str = NOT_REPORTED
    secure_boot: bool | None = NOT_REPORTED
    cgroups: int = NOT_REPORTED
    memory: Bytes = NOT_REPORTED
    shm: Bytes | None = NOT_REPORTED
    pci_hyperv: bool | None = NOT_REPORTED


@resource(ResourceType("LinuxBoot", title="the last start of the Linux", order=11, requires=ACCESS))
class LinuxBoot(State):
    """boot_id: the kernel's, another one after each start; ready: systemd has started what starts with the machine.

    It is asked to restart where it is a machine of its own. A distro of WSL is not: it starts with Windows.
    """

    boot_id: str
    ready: bool


@resource(ResourceType("LinuxGpuDriver", title="GPU drivers in Linux", order=20, requires=ACCESS))
class LinuxGpuDriver(State):
    """packages: installed ones that bring a Linux GPU driver; libraries: each libcuda that is not WSL's.

    wsl_libcuda: the driver of Windows is mounted (/usr/lib/wsl/lib). loaded: the version of NVIDIA's kernel module that
    runs, null where none does; kind: open or proprietary, null likewise; signer: who signed the module on disk, null
    where nobody did or there is none; installed: the version of that one, which may be another.
    """

    packages: tuple[str, ...]
    libraries: tuple[str, ...]
    wsl_libcuda: bool
    loaded: str | None = NOT_REPORTED
    kind: str | None = NOT_REPORTED
    installed: str | None = NOT_REPORTED
    signer: str | None = NOT_REPORTED


_Address = Annotated[int, Bounds(0, 2**63 - 1)]


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


@resource(
    ResourceType("ContainerEngine", title="container engines in Linux", order=24, key=("engine",), requires=ACCESS)
)
class ContainerEngine(State):
    """An installed engine or its toolkit: docker, podman, nvidia-ctk. socket: its API's, null if nobody listens.

    snap: it came as a snap, which has settings and files of its own.
    """

    version: str
    socket: str | None
    snap: bool = NOT_REPORTED


@resource(ResourceType("LinuxDisk", title="disks in Linux", order=26, key=("disk",), requires=ACCESS))
class LinuxDisk(State):
    """disk: its name now, as `nvme0n1`; by_id: its names in /dev/disk/by-id, which stay; table: gpt, dos or null.

    mounted: where it or what is on it is mounted (`[SWAP]`); holders: of what is on it, such as volumes and arrays.
    """

    size: Bytes
    serial: str | None
    model: str | None
    by_id: tuple[str, ...]
    table: str | None
    filesystem: str | None
    mounted: tuple[str, ...]
    holders: tuple[str, ...]
    read_only: bool


@resource(
    ResourceType("ListeningPort", title="listening ports in Linux", order=28, key=("address", "port"), requires=ACCESS)
)
class ListeningPort(State):
    """TCP. processes: their names, as the kernel has them; none where another user's cannot be seen."""

    processes: tuple[str, ...]
    everywhere: bool
