"""The hidden physics of a simulated host, which a facts file cannot tell, `lab:` in its host file; and its clock."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

from pydantic import Field

from winhost.core.dataclass import dataclass
from winhost.model.written import Closed

PART_PHYSICS: dict[str, type[Closed]] = {}
"""The models of single parts under `lab: found:`, by name; each part registers its own."""

Model = TypeVar("Model", bound=type[Closed])


def part_physics(name: str) -> Callable[[Model], Model]:
    """Register a model of the physics of one part."""

    def register(model: Model) -> Model:
        PART_PHYSICS[name] = model
        return model

    return register


@dataclass(frozen=True)
class LabClock:
    """`scale` is real seconds per lab second: 1 is a real host, 0.001 a test, 0 no waiting at all."""

    scale: float = 0.0

    def sleep(self, lab_seconds: float, stop: threading.Event | None = None) -> None:
        """Wait so many lab seconds, or until `stop` is set."""
        seconds = max(0.0, lab_seconds * self.scale)
        if stop is not None:
            stop.wait(seconds)
        elif seconds:
            time.sleep(seconds)


class DevicePhysics(Closed):
    """The physics of one PCI function, by its location path. BARs in bytes; left out, they follow from the surveyed
    ranges.
    """

    mitigation_driver: bool = Field(default=False, description="dismounts without -Force")
    in_use: bool = Field(default=False, description="a program holds it: it cannot be disabled")
    hides_class: bool = Field(default=False, description="dismounted, it does not tell what it is")
    bars64: tuple[int, ...] | None = None
    bars32: tuple[int, ...] | None = None
    driver_models: tuple[Literal["WDDM", "TCC", "MCDM"], ...] | None = Field(
        default=None, description="which nvidia-smi takes; left out, WDDM alone of a GeForce and any of another GPU"
    )


class GuestPhysics(Closed):
    """The physics of one VM's guest, by the VM's GUID."""

    answers: bool = Field(default=True, description="shuts down when asked")
    shutdown_seconds: float = 20


class SourcePhysics(Closed):
    """The physics of one source of a staged file: an address, a path on the host, or ./name beside the plan."""

    there: bool = True
    sha256: str | None = Field(default=None, description="of what comes from there; left out, what is asked for")
    signature: Literal["Valid", "NotSigned", "HashMismatch", "NotTrusted"] = "Valid"
    signer: str = "CN=Microsoft Corporation, O=Microsoft Corporation, L=Redmond, S=Washington, C=US"
    version: str | None = Field(default=None, description="that it installs; left out, the one in its name")
    msiexec: tuple[int, ...] = Field(default=(), description="exit codes of installing it, one after another, then 0")
    piece: int | None = Field(default=None, description="bytes that come in one slice of a download; left out, all")
    etag: str = Field(default="", description="which version of it the server has")
    ranges: bool = Field(default=True, description="its server sends the rest of it, and not only all of it")


class AccountPhysics(Closed):
    """The physics of the host's accounts, rights and tasks."""

    rights_by_policy: tuple[str, ...] = Field(
        default=(), description="rights that a policy of the domain sets: what is changed here does not stay"
    )
    links: tuple[str, ...] = Field(default=(), description="paths of files and folders that are links")
    taken: tuple[str, ...] = Field(default=(), description="paths of folders that somebody else made first")


class AdapterPhysics(Closed):
    """The physics of one network adapter, by its GUID: what happens when an external switch is made on it."""

    refuses: bool = Field(default=False, description="no switch can be made on it")
    loses_static: bool = Field(default=False, description="its static addresses do not come along")
    loses_link: bool = Field(default=False, description="the host's port on the switch never has a link")
    lease: str | None = Field(default=None, description="another address that DHCP gives then")
    comes_back: bool = Field(default=True, description="the host can be reached over the switch")


class ImagePhysics(Closed):
    """The physics of one image that distros are made of, by its SHA-256."""

    systemd: bool = Field(default=True, description="it starts systemd without being told to")
    sshd: bool = Field(default=False, description="it brings an SSH server")
    packages: bool = Field(default=True, description="its repositories can be reached")
    broken: bool = Field(default=False, description="it cannot be imported")


class WslPhysics(Closed):
    """The physics of WSL itself."""

    images: Mapping[str, ImagePhysics] = Field(default_factory=dict)
    always_utf16: bool = Field(default=False, description="wsl.exe does so whatever it is asked for")
    no_service_logon: bool = Field(default=False, description="a policy took that right from virtual machines")
    no_mirrored: bool = Field(default=False, description="Windows cannot mirror the network and falls back to NAT")
    disk_full: bool = Field(default=False, description="there is no room for an export")


class DiskPhysics(Closed):
    """The physics of one virtual disk that VMs are made of, by the SHA-256 of its file."""

    size: int = Field(default=7 << 29, description="bytes that a guest sees; left out, 3.5 GiB as of Ubuntu's images")
    format: Literal["VHDX", "VHD"] = "VHDX"
    kind: Literal["Dynamic", "Fixed", "Differencing"] = "Dynamic"
    sound: bool = Field(default=True, description="Test-VHD finds nothing wrong with it")
    linux: bool = Field(default=True, description="with cloud-init; else nothing on it ever answers")


class NewVmPhysics(Closed):
    """The physics of new VMs: their materials and where they are stored."""

    store: str = Field(default="D:\\VHDs", description="Hyper-V's folder of virtual disks")
    free: int = Field(default=1 << 40, description="bytes left on its volume")
    attributes: tuple[Literal["SparseFile", "Compressed", "Encrypted", "IntegrityStream"], ...] = Field(
        default=(), description="of that folder, which what is made in it has as well"
    )
    disks: Mapping[str, DiskPhysics] = Field(default_factory=dict)
    refuses_template: bool = Field(default=False, description="Secure Boot stays with the template for Windows")
    loses_com_port: bool = Field(default=False, description="a serial port that is set is none when it is read")
    taken: tuple[str, ...] = Field(default=(), description="paths of files that were there before")
    discs: tuple[str, ...] = Field(default=(), description="such files that somebody puts into DVD drives of a new VM")
    lease: str = Field(default="192.0.2.77", description="the address that DHCP gives the guest")
    others: Mapping[str, bool] = Field(
        default_factory=dict, description="addresses that somebody else has, and whether he answers a ping"
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
        default="assigned", description="in which order guests meet their devices"
    )
    restart_delay: float = 2
    reboot_seconds: float = 90
    logon_seconds: float = Field(default=5, description="from the wire's return to logon_ready")
    servicing_seconds: float = Field(default=10, description="of finishing a role after the restart")
    seconds: Mapping[str, float] = Field(default_factory=dict, description="how long a cmdlet takes, by its name")
    devices: Mapping[str, DevicePhysics] = Field(default_factory=dict)
    guests: Mapping[str, GuestPhysics] = Field(default_factory=dict)
    adapters: Mapping[str, AdapterPhysics] = Field(default_factory=dict)
    nats: Mapping[str, str] = Field(default_factory=dict, description="NATs that others made: networks, by name")
    switch_vms: Mapping[str, int] = Field(default_factory=dict, description="adapters of VMs, by their switch's name")
    port_proxies: Mapping[str, str] = Field(default_factory=dict, description="ports that others forward already")
    network_fails: tuple[str, ...] = Field(
        default=(), description="what of rules and forwards fails once: a cmdlet, netsh.exe set or delete"
    )
    accounts: AccountPhysics = Field(default_factory=AccountPhysics)
    sources: Mapping[str, SourcePhysics] = Field(default_factory=dict)
    wsl: WslPhysics = Field(default_factory=WslPhysics)
    new_vms: NewVmPhysics = Field(default_factory=NewVmPhysics)
    found: Mapping[str, Mapping[str, Any]] = Field(
        default_factory=dict, description="the physics of single parts, by name (PART_PHYSICS)"
    )
    hidden: Mapping[str, tuple[Mapping[str, Any], ...]] = Field(
        default_factory=dict, description="instances that are there but do not show in the facts, by resource"
    )
