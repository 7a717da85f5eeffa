"""Linux resources that are only read. The script of each one is in its folder."""

from typing import Annotated

from winhost.core.dataclass import dataclass
from winhost.model.units import Bytes
from winhost.resources.base import NOT_REPORTED, Bounds, ResourceType, State, resource
from winhost.resources.shared import ACCESS


@resource(ResourceType("LinuxSystem", title="the Linux", order=10, requires=ACCESS))
class LinuxSystem(State):
    """id, version: as in os-release (`ubuntu`, `24.04`); kernel: its release; architecture: the output of `uname -m`.

    wsl_networking: the output of `wslinfo --networking-mode`, null outside WSL; systemd: it runs as init; machine_id:
    as in /etc/machine-id; simulated: it is in the lab, so its facts are `synthetic`; virtualization: the output of
    `systemd-detect-virt` (`none` on bare metal); secure_boot: null if it was not booted by UEFI; cgroups: the version;
    memory: as the kernel reports it; shm: the size of /dev/shm, null if there is none; pci_hyperv: the kernel has the
    driver for devices that Hyper-V assigns, null outside Hyper-V.
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
    """boot_id: the kernel's boot id, different after each boot; ready: systemd has finished starting the machine.

    A Linux machine can be restarted through this resource. A WSL distro cannot: it restarts with Windows.
    """

    boot_id: str
    ready: bool


@resource(ResourceType("LinuxGpuDriver", title="GPU drivers in Linux", order=20, requires=ACCESS))
class LinuxGpuDriver(State):
    """packages: installed packages with a Linux GPU driver; libraries: each libcuda that is not WSL's; wsl_libcuda: the
    Windows driver is mounted (/usr/lib/wsl/lib).

    loaded: the version of the loaded NVIDIA kernel module, null if none is loaded; kind: open or proprietary, null if
    none is loaded; installed: the version of the module on disk, which may differ; signer: its signer, null if it is
    unsigned or missing.
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
    """A BAR as in sysfs, in bytes. start: 0 if the kernel assigned no address."""

    index: int
    start: _Address
    size: _Address
    prefetchable: bool


@resource(ResourceType("LinuxGpu", title="GPUs in Linux", order=22, key=("address",), requires=ACCESS))
class LinuxGpu(State):
    """An NVIDIA GPU by its PCI address, as `0000:01:00.0`. device: vendor and device id, as `10de:2684`; driver: the
    bound driver; numa: null if there are no nodes; name, uuid, vram: by nvidia-smi, null if it does not list the GPU.

    In WSL no GPU is on the PCI bus: the GPUs that nvidia-smi lists there have no device, BARs or driver.
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
    """An installed container engine or toolkit: docker, podman, nvidia-ctk. socket: the path of its API's socket, null
    if nothing listens. snap: it was installed as a snap, which has its own settings and files.
    """

    version: str
    socket: str | None
    snap: bool = NOT_REPORTED


@resource(ResourceType("LinuxDisk", title="disks in Linux", order=26, key=("disk",), requires=ACCESS))
class LinuxDisk(State):
    """A disk by its current name, as `nvme0n1`. by_id: its persistent names in /dev/disk/by-id; table: gpt, dos or
    null.

    mounted: mount points of the disk and its partitions (or `[SWAP]`); holders: devices on it, such as volumes and
    arrays.
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
    """A listening TCP port. processes: their names in the kernel; empty if they belong to a user whose processes cannot
    be read; everywhere: it listens on all addresses.
    """

    processes: tuple[str, ...]
    everywhere: bool
