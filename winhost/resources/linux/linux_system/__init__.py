"""A Linux machine."""

from winhost.model.units import Bytes
from winhost.resources.base import NOT_TOLD, ResourceType, State, resource
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
    machine_id: str = NOT_TOLD
    simulated: bool = NOT_TOLD
    virtualization: str = NOT_TOLD
    secure_boot: bool | None = NOT_TOLD
    cgroups: int = NOT_TOLD
    memory: Bytes = NOT_TOLD
    shm: Bytes | None = NOT_TOLD
    pci_hyperv: bool | None = NOT_TOLD
