"""The physics of a simulated host that facts do not show (`lab:` in its host file), and its clock."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

from pydantic import Field

from winhost.core.dataclass import dataclass
from winhost.model.written import Closed

PART_PHYSICS: dict[str, type[Closed]] = {}
"""The models of `lab: found:`, by name. The modules of the parts register them."""

Model = TypeVar("Model", bound=type[Closed])


def part_physics(name: str) -> Callable[[Model], Model]:
    """Register a model of the physics of one part."""

    def register(model: Model) -> Model:
        PART_PHYSICS[name] = model
        return model

    return register


@dataclass(frozen=True)
class LabClock:
    """A clock. scale: real seconds per lab second; 1 is real time, and with 0 nothing waits."""

    scale: float = 0.0

    def sleep(self, lab_seconds: float, stop: threading.Event | None = None) -> None:
        """Wait so many lab seconds, or until `stop` is set."""
        seconds = max(0.0, lab_seconds * self.scale)
        if stop is not None:
            stop.wait(seconds)
        elif seconds:
            time.sleep(seconds)


class DevicePhysics(Closed):
    """The physics of one PCI function, by its location path. bars64, bars32: in bytes; by default as the ranges say."""

    mitigation_driver: bool = Field(default=False, description="dismounts without -Force")
    in_use: bool = Field(default=False, description="a program holds it: it cannot be disabled")
    hides_class: bool = Field(default=False, description="while dismounted, it does not report its class")
    bars64: tuple[int, ...] | None = None
    bars32: tuple[int, ...] | None = None
    driver_models: tuple[Literal["WDDM", "TCC", "MCDM"], ...] | None = Field(
        default=None, description="which nvidia-smi accepts; left out, only WDDM for a GeForce, all for other GPUs"
    )


class GuestPhysics(Closed):
    """The physics of one VM's guest, by the VM's GUID."""

    answers: bool = Field(default=True, description="shuts down when asked")
    shutdown_seconds: float = 20


class SourcePhysics(Closed):
    """The physics of one source of a staged file: an address, a path on the host, or ./name beside the plan."""

    there: bool = True
    sha256: str | None = Field(default=None, description="of the file at the source; left out, the expected one")
    signature: Literal["Valid", "NotSigned", "HashMismatch", "NotTrusted"] = "Valid"
    signer: str = "CN=Microsoft Corporation, O=Microsoft Corporation, L=Redmond, S=Washington, C=US"
    version: str | None = Field(default=None, description="that it installs; left out, the one in its name")
    msiexec: tuple[int, ...] = Field(default=(), description="exit codes of installing it, one after another, then 0")
    piece: int | None = Field(default=None, description="bytes in one slice of a download; left out, all")
    etag: str = Field(default="", description="the version that the server has")
    ranges: bool = Field(default=True, description="its server supports range requests")


class AccountPhysics(Closed):
    """The physics of the host's accounts, rights and tasks."""

    rights_by_policy: tuple[str, ...] = Field(
        default=(), description="rights that a domain policy sets: local changes are undone"
    )
    links: tuple[str, ...] = Field(default=(), description="paths of files and folders that are links")
    taken: tuple[str, ...] = Field(default=(), description="paths of folders that another user made before winhost")


class AdapterPhysics(Closed):
    """The physics of one network adapter, by its GUID: what happens when an external switch is made on it."""

    refuses: bool = Field(default=False, description="no switch can be made on it")
    loses_static: bool = Field(default=False, description="its static addresses are lost")
    loses_link: bool = Field(default=False, description="the host's port on the switch never has a link")
    lease: str | None = Field(default=None, description="the address that DHCP assigns then")
    comes_back: bool = Field(default=True, description="the host can be reached over the switch")


class ImagePhysics(Closed):
    """The physics of one distro image, by its SHA-256."""

    systemd: bool = Field(default=True, description="it starts systemd by default")
    sshd: bool = Field(default=False, description="it contains an SSH server")
    packages: bool = Field(default=True, description="its repositories can be reached")
    broken: bool = Field(default=False, description="it cannot be imported")


class WslPhysics(Closed):
    """The physics of WSL itself."""

    images: Mapping[str, ImagePhysics] = Field(default_factory=dict)
    always_utf16: bool = Field(default=False, description="wsl.exe writes UTF-16 even where UTF-8 is requested")
    no_service_logon: bool = Field(default=False, description="a policy denies virtual machines the service logon")
    no_mirrored: bool = Field(default=False, description="Windows cannot mirror the network and falls back to NAT")
    disk_full: bool = Field(default=False, description="there is no disk space for an export")


class DiskPhysics(Closed):
    """The physics of one disk image, by the SHA-256 of its file."""

    size: int = Field(default=7 << 29, description="bytes that a guest sees; left out, 3.5 GiB as in Ubuntu's images")
    format: Literal["VHDX", "VHD"] = "VHDX"
    kind: Literal["Dynamic", "Fixed", "Differencing"] = "Dynamic"
    sound: bool = Field(default=True, description="Test-VHD accepts it")
    linux: bool = Field(default=True, description="it has a Linux with cloud-init; otherwise its guest never responds")


class NewVmPhysics(Closed):
    """The physics of new VMs: their materials and where they are stored."""

    store: str = Field(default="D:\\VHDs", description="Hyper-V's folder of virtual disks")
    free: int = Field(default=1 << 40, description="free bytes on its volume")
    attributes: tuple[Literal["SparseFile", "Compressed", "Encrypted", "IntegrityStream"], ...] = Field(
        default=(), description="of that folder and everything that is made in it"
    )
    disks: Mapping[str, DiskPhysics] = Field(default_factory=dict)
    refuses_template: bool = Field(default=False, description="Secure Boot keeps the template for Windows")
    loses_com_port: bool = Field(default=False, description="a serial port that was set reads as not set")
    taken: tuple[str, ...] = Field(default=(), description="paths of files that exist already")
    discs: tuple[str, ...] = Field(default=(), description="such files that are in DVD drives of a new VM")
    lease: str = Field(default="192.0.2.77", description="the address that DHCP assigns to the guest")
    others: Mapping[str, bool] = Field(
        default_factory=dict, description="addresses of other machines, and whether each answers a ping"
    )
    takes_devices: bool = Field(default=True, description="the kernel of its Linux has pci_hyperv")
    ssh_keygen: bool = Field(default=True, description="the host has OpenSSH's ssh-keygen.exe")


class LabSection(Closed):
    """All times in lab seconds."""

    language: str | None = Field(default=None, description="of messages; left out, the operating system's")
    administrator: bool = True
    iommu: bool | None = Field(default=None, description="left out, as DMA protection and IovSupport say")
    address_width: int | None = Field(default=None, description="in bits; left out, as the facts say, or 46")
    guest_order: Literal["assigned", "reversed"] = Field(
        default="assigned", description="the order in which guests enumerate their devices"
    )
    restart_delay: float = 2
    reboot_seconds: float = 90
    logon_seconds: float = Field(default=5, description="from the first connection to logon_ready")
    servicing_seconds: float = Field(default=10, description="for finishing a role after the restart")
    seconds: Mapping[str, float] = Field(default_factory=dict, description="how long a cmdlet takes, by its name")
    devices: Mapping[str, DevicePhysics] = Field(default_factory=dict)
    guests: Mapping[str, GuestPhysics] = Field(default_factory=dict)
    adapters: Mapping[str, AdapterPhysics] = Field(default_factory=dict)
    nats: Mapping[str, str] = Field(default_factory=dict, description="NATs that others made: name to network")
    switch_vms: Mapping[str, int] = Field(default_factory=dict, description="numbers of VM adapters, by switch name")
    port_proxies: Mapping[str, str] = Field(default_factory=dict, description="ports that others forward already")
    network_fails: tuple[str, ...] = Field(
        default=(), description="calls that fail once: cmdlets for firewall rules, `netsh.exe set`, `netsh.exe delete`"
    )
    accounts: AccountPhysics = Field(default_factory=AccountPhysics)
    sources: Mapping[str, SourcePhysics] = Field(default_factory=dict)
    wsl: WslPhysics = Field(default_factory=WslPhysics)
    new_vms: NewVmPhysics = Field(default_factory=NewVmPhysics)
    found: Mapping[str, Mapping[str, Any]] = Field(
        default_factory=dict, description="the physics of single parts, by name (PART_PHYSICS)"
    )
    hidden: Mapping[str, tuple[Mapping[str, Any], ...]] = Field(
        default_factory=dict, description="instances that exist and that the facts do not show, by resource"
    )
