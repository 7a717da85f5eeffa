"""Resources of Windows that are only read. The script of each stands in its folder."""

import ipaddress
from collections.abc import Callable
from enum import StrEnum
from functools import cached_property
from typing import Annotated

from winhost.core.answers import MissingFact, if_known
from winhost.core.dataclass import dataclass
from winhost.model.units import Bytes
from winhost.resources.base import ADDRESS, NOT_REPORTED, Bounds, ResourceType, State, resource


@resource(ResourceType("Session", title="the session", order=10))
class Session(State):
    """The logon and engine that answer. `simulated` is true on lab hosts and makes their facts `synthetic`.

    execution_policy: what group policy has the computer's Windows PowerShell run, over anything that a command line
    says: restricted, all-signed, remote-signed, unrestricted; null where no such policy is set.
    peers: addresses that WinRM sessions come from now, of whomever: ours is among them.
    """

    user: str
    administrator: bool
    language_mode: str
    powershell: str
    is_64bit: bool
    execution_policy: str | None
    simulated: bool
    peers: tuple[Annotated[str, ADDRESS], ...]


SKU_MULTI_SESSION = 175
SKU_AZURE_LOCAL = 406
WORKSTATION = 1
CLIENT_BUILDS = (19043, 19044, 19045, 22000, 22621, 22631, 26200)
"""Released as Windows 10 or 11 alone. 19041 and 19042 were Windows Server, too; 26100 is both."""


class OsFamily(StrEnum):
    """The family that the six values show. ALTERED: a client whose product type was changed to look like a server."""

    SERVER = "server"
    CLIENT = "client"
    MULTI_SESSION = "multi-session"
    AZURE_LOCAL = "azure-local"
    ALTERED = "product type altered"


@resource(ResourceType("OperatingSystem", title="the operating system", order=20))
class OperatingSystem(State):
    """The six values that decide the family, and what identifies the host. Builds do not decide it: 26100 is Server
    2025, Windows 11 24H2 and Azure Local 24H2 alike.

    product_type: 1 workstation, 2 domain controller, 3 server (Win32_OperatingSystem); sku: OperatingSystemSKU;
    product_options: WinNT, ServerNT or LanmanNT (registry); machine_id: the SMBIOS UUID, which survives renaming.
    """

    hostname: str
    machine_id: str
    caption: str
    product_type: int
    sku: int
    edition_id: str
    installation_type: str
    product_options: str
    build: int
    revision: int
    display_version: str | None
    language: str
    architecture: str

    @cached_property
    def family(self) -> OsFamily:
        """The edition decides first: the product type of a multi-session client is 3, and tools change it.

        Where it was not read, as in what people paste, a build that no Windows Server has decides.
        """
        if if_known(lambda: self.edition_id) is None and if_known(lambda: self.build) in CLIENT_BUILDS:
            return OsFamily.CLIENT
        edition = self.edition_id.casefold()
        if self.sku == SKU_AZURE_LOCAL or edition.startswith("serverazurestackhci"):
            return OsFamily.AZURE_LOCAL
        if self.sku == SKU_MULTI_SESSION or edition == "serverrdsh":
            return OsFamily.MULTI_SESSION
        if edition.startswith("server"):
            return OsFamily.SERVER
        if self.product_type != WORKSTATION or self.product_options.casefold() != "winnt":
            return OsFamily.ALTERED
        return OsFamily.CLIENT

    @property
    def named(self) -> str:
        """The caption with edition, SKU and build, `not known` for each that was not read."""
        details = (
            _or_not_known(lambda: self.edition_id),
            _or_not_known(lambda: self.sku),
            _or_not_known(lambda: self.build),
        )
        return "{} (edition {}, SKU {}, build {})".format(_or_not_known(lambda: self.caption), *details)


def _or_not_known(read: Callable[[], object]) -> str:
    try:
        return str(read())
    except MissingFact:
        return "not known"


@resource(ResourceType("Boot", title="the last start", order=30))
class Boot(State):
    """boot_id is opaque: compare it for equality only, because clocks are set and time zones change.

    logon_ready: services for logon are up; servicing: Windows is still finishing updates or features.
    """

    boot_id: str
    logon_ready: bool
    servicing: bool


DMA_PROTECTION = 3  # Win32_DeviceGuard.AvailableSecurityProperties


@resource(ResourceType("Firmware", title="the firmware", order=40))
class Firmware(State):
    """Firmware, virtualization and IOMMU, as far as Windows exposes them.

    virtualization_enabled and second_level_translation read false once a hypervisor runs: ask hypervisor_present first.
    security_properties: of Win32_DeviceGuard; 3 (DMA protection) is the best hint at an IOMMU before the role is there.
    address_width: physical address bits; no Windows interface exposes them, so a real host answers unknown.
    serial: of the machine, as its maker wrote it, which may be a placeholder; null where there is none.
    """

    manufacturer: str
    model: str
    bios_version: str
    hypervisor_present: bool
    virtualization_enabled: bool
    second_level_translation: bool
    security_properties: tuple[int, ...]
    address_width: Annotated[int, Bounds(1, 64)]
    serial: str | None = NOT_REPORTED


@resource(ResourceType("Processor", title="processors", order=50, key=("socket",)))
class Processor(State):
    """A processor, by its socket."""

    name: str
    manufacturer: str
    cores: int
    threads: int


@resource(ResourceType("Memory", title="the memory", order=60))
class Memory(State):
    """Physical memory, in bytes. `free` changes from read to read."""

    total: Bytes
    free: Bytes


@resource(ResourceType("StorageController", title="storage controllers", order=68, key=("instance",)))
class StorageController(State):
    """A controller by its instance id. service: the driver that it has, which is the same word in every language.

    mode: standard (AHCI and NVMe, by the drivers of Windows), raid (RST, VMD, RAID of AMD, hardware RAID: what Linux
    sees of its disks is not what Windows sees), virtual (of a hypervisor or of software) or other.
    """

    name: str
    service: str | None
    mode: str


@resource(ResourceType("Disk", title="disks", order=70, key=("disk",)))
class Disk(State):
    """A disk by its unique id. `size` in bytes; `style`: GPT, MBR or RAW.

    guid: of its GPT, the one name that Linux has for it, too; a copy of a disk has the same. number: of Windows, which
    may be another after a restart. sector: a logical one, in bytes. offline: Windows leaves it alone, as it does with
    the second of two disks with one GUID. health: healthy, warning, unhealthy or unknown.
    """

    model: str
    bus: str
    size: Bytes
    style: str
    boot: bool
    system: bool
    guid: str | None = NOT_REPORTED
    number: int = NOT_REPORTED
    sector: int = NOT_REPORTED
    offline: bool = NOT_REPORTED
    read_only: bool = NOT_REPORTED
    health: str = NOT_REPORTED


@resource(ResourceType("ResizeLimit", title="how far the Windows volume can shrink", order=74, key=("partition",)))
class ResizeLimit(State):
    """The limits of the partition that Windows runs from, by its GUID.

    smallest, largest: what Windows says its size could be now. It is optimistic: a shrink may still stop early. free:
    bytes free on the volume. health: of the volume. holders: what on it cannot be moved while Windows runs: page-file,
    hibernation-file, shadow-copies, wsl-disks (unverified: told by the process of its VM, wherever its disks are).
    last_held_by: the file at which the last analysis of Windows stopped.
    """

    smallest: Bytes
    largest: Bytes
    free: Bytes
    health: str
    holders: tuple[str, ...]
    last_held_by: str | None


@resource(ResourceType("EfiVolume", title="EFI system partitions", order=76, key=("partition",)))
class EfiVolume(State):
    """The volume of an EFI system partition, by the partition's GUID."""

    free: Bytes
    file_system: str


@resource(ResourceType("PowerSource", title="the power source", order=80, usual={"batteries": 0, "on_battery": False}))
class PowerSource(State):
    """on_battery: the host runs on a battery now. A UPS may count as a battery."""

    batteries: int
    on_battery: bool


@resource(ResourceType("HardwareClock", title="the hardware clock", order=82, usual={"utc": False}))
class HardwareClock(State):
    """utc: Windows keeps the clock in UTC, which is Linux's default; otherwise in local time, which is its own."""

    utc: bool


@resource(ResourceType("SecureBoot", title="Secure Boot", order=86))
class SecureBoot(State):
    """state: on, off, or unsupported (a BIOS, or firmware without it).

    authorities: the names of the certificates in `db`. revoked: how many programs and certificates `dbx` bars.
    """

    state: str
    authorities: tuple[str, ...]
    revoked: int


@resource(ResourceType("HyperVHost", title="the settings of Hyper-V", order=100, requires="HyperVRole"))
class HyperVHost(State):
    """The hypervisor's report about itself. iov_support is a proxy for IOMMU and ACS, not a verdict on DDA."""

    iov_support: bool
    iov_reasons: tuple[str, ...]
    service: str


@resource(ResourceType("VmSwitch", title="virtual switches", order=110, key=("switch",), requires="HyperVRole"))
class VmSwitch(State):
    """A virtual switch by its GUID. kind: external, internal or private; adapter: that of an external one."""

    name: str
    kind: str
    adapter: str | None
    management_os: bool


ETHERNET, WIFI, TEAM, VIRTUAL, VPN = "ethernet", "wifi", "team", "virtual", "vpn"


@dataclass(frozen=True)
class Address:
    """origin: manual, dhcp or router-advertisement. Raises ValueError for what is no address with its prefix."""

    address: str
    prefix: int
    origin: str

    def __post_init__(self) -> None:
        try:
            ipaddress.ip_interface(f"{self.address}/{self.prefix}")
        except ValueError:
            raise ValueError("should be an IP address with the length of its prefix") from None


@resource(ResourceType("NetworkAdapter", title="network adapters", order=120, key=("adapter",)))
class NetworkAdapter(State):
    """A network adapter by its interface GUID, which survives renaming.

    service: that of its driver, which tells VPN clients that call themselves Ethernet; facts of older winhosts lack it;
    kind: ethernet, wifi, team, virtual (of a switch), vpn or other, by what its driver reports (NdisPhysicalMedium,
    InterfaceType, component, file, service, description); status: up, disconnected, disabled or down; speed: bits per
    second; vlan: null where the driver has none; profile: public, private, domain, or null without a network; switch:
    the virtual switch that is bound to it; management: a WinRM session goes over it now, of whomever; filters: names of
    those bound to it that are not Windows' own.
    """

    name: str
    description: str
    mac: str | None
    kind: str
    status: str
    speed: int | None
    vlan: int | None
    addresses: tuple[Address, ...]
    gateway: str | None
    dns: tuple[str, ...]
    profile: str | None
    switch: str | None
    management: bool
    filters: tuple[str, ...]
    service: str | None = NOT_REPORTED

    @property
    def described(self) -> str:
        """The description, and the driver's service if it is told: some VPN clients are known by that alone."""
        service = vars(self).get("service")
        return f"{self.description} (service {service})" if service else self.description


_PARAVIRTUAL = "GPUPARAV"  # the end of their paths; a developer of it in Easy-GPU-PV #49


def is_paravirtual(gpu: str) -> bool:
    """Tell from the interface path of a GPU whether Windows shares it by paravirtualization."""
    return gpu.upper().endswith(_PARAVIRTUAL)


@resource(
    ResourceType(
        "PartitionableGpu", title="GPUs that can be partitioned", order=140, key=("gpu",), requires="HyperVRole"
    )
)
class PartitionableGpu(State):
    """A GPU that can be split, or shared. `gpu` is its device interface path.

    There are two kinds. The vendor's driver splits one by SR-IOV: with `partitions` 1 it is whole. Windows' own driver
    shares one (paravirtualization): its only count is 32, which says nothing about memory. used: partitions that VMs
    have; unknown where Windows does not name the GPU of one.
    """

    partitions: int
    valid_counts: tuple[int, ...]
    used: int


@resource(ResourceType("Vm", title="VMs", order=180, key=("vm",), requires="HyperVRole"))
class Vm(State):
    """A VM by its GUID, whoever made it; one of winhost's own is resource OwnVm as well. Names are for people: Hyper-V
    allows the same one twice.

    version: configuration version, as `12.0`; nested: exposes virtualization extensions; secure_boot_template: null on
    generation 1; devices: location paths assigned to it; partitions: GPU-P adapters it has.
    """

    name: str
    state: str
    generation: int
    version: str
    nested: bool
    clustered: bool
    checkpoints: int
    secure_boot: bool
    secure_boot_template: str | None
    devices: tuple[str, ...]
    partitions: int


@resource(ResourceType("PendingReboot", title="whether a restart is pending", order=240))
class PendingReboot(State):
    """The reasons why Windows waits for a restart; empty when it does not."""

    reasons: tuple[str, ...]


@resource(ResourceType("WslPolicy", title="policies for WSL", order=360))
class WslPolicy(State):
    """Group Policy for WSL (microsoft/WSL, intune/WSL.admx): null where nothing is configured, and then all is allowed.

    allow_wsl: WSL at all; allow_inbox: the WSL that is part of Windows; the others: whether .wslconfig may set this.
    default_networking: 0 none, 1 NAT, 3 mirrored, 4 VirtioProxy, where .wslconfig sets no mode.
    """

    allow_wsl: bool | None
    allow_inbox: bool | None
    allow_kernel: bool | None
    allow_kernel_command_line: bool | None
    allow_system_distro: bool | None
    allow_networking: bool | None
    allow_firewall: bool | None
    allow_nested: bool | None
    default_networking: int | None


@resource(ResourceType("ClusterService", title="the cluster service", order=390))
class ClusterService(State):
    """Failover clustering on this host: absent, stopped or running."""

    state: str


@resource(ResourceType("DeviceAssignmentPolicy", title="policies for device assignment", order=400))
class DeviceAssignmentPolicy(State):
    """Registry policy on device assignment; null where not set. Only ever read: changing it is the owner's decision."""

    require_secure: int | None
    require_supported: int | None
