"""Windows resources that are only read. The script of each one is in its folder."""

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
    """The logon session and the PowerShell that answer. simulated: true on lab hosts, whose facts are `synthetic`.

    execution_policy: the execution policy that Group Policy sets for Windows PowerShell, which overrides the command
    line: restricted, all-signed, remote-signed, unrestricted; null if none is set. peers: the remote addresses of all
    current WinRM sessions, including winhost's own.
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
"""Builds released only as Windows 10 or 11. 19041 and 19042 were also Windows Server; 26100 is both."""


class OsFamily(StrEnum):
    """The family of a Windows. ALTERED: a client whose product type was changed to make it look like a server."""

    SERVER = "server"
    CLIENT = "client"
    MULTI_SESSION = "multi-session"
    AZURE_LOCAL = "azure-local"
    ALTERED = "product type altered"


@resource(ResourceType("OperatingSystem", title="the operating system", order=20))
class OperatingSystem(State):
    """The values that determine the family of Windows, and those that identify the host. The build does not determine
    the family: 26100 is Server 2025, Windows 11 24H2 and Azure Local 24H2.

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
        """The family. The edition comes first, because the product type of a multi-session client is 3, and because
        tools can change the product type. If the edition was not read, as in imported facts, a client-only build
        decides.
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
        """The caption with edition, SKU and build; `not known` for each of them that was not read."""
        details = (
            _text_or_not_known(lambda: self.edition_id),
            _text_or_not_known(lambda: self.sku),
            _text_or_not_known(lambda: self.build),
        )
        return "{} (edition {}, SKU {}, build {})".format(_text_or_not_known(lambda: self.caption), *details)


def _text_or_not_known(read: Callable[[], object]) -> str:
    try:
        return str(read())
    except MissingFact:
        return "not known"


@resource(ResourceType("Boot", title="the last start", order=30))
class Boot(State):
    """boot_id: an opaque identifier of this boot, to be compared only for equality; logon_ready: the logon services
    run; servicing: Windows is still installing updates or features.
    """

    boot_id: str
    logon_ready: bool
    servicing: bool


DMA_PROTECTION = 3  # Win32_DeviceGuard.AvailableSecurityProperties


@resource(ResourceType("Firmware", title="the firmware", order=40))
class Firmware(State):
    """Firmware, virtualization and IOMMU, as far as Windows exposes them.

    virtualization_enabled and second_level_translation are false while a hypervisor runs: check hypervisor_present
    first. security_properties: of Win32_DeviceGuard; 3 (DMA protection) is the best sign of an IOMMU before the role is
    installed. address_width: physical address bits, unknown on a real host because no Windows interface exposes them.
    serial: the machine's serial number, which may be a placeholder of its maker; null if there is none.
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
    """Physical memory in bytes. `free` differs each time it is read."""

    total: Bytes
    free: Bytes


@resource(ResourceType("StorageController", title="storage controllers", order=68, key=("instance",)))
class StorageController(State):
    """A storage controller by its instance id. service: its driver's service name, which is not localized.

    mode: standard (AHCI and NVMe with the drivers of Windows), raid (RST, VMD, AMD RAID, hardware RAID: Linux may see
    other disks than Windows), virtual (of a hypervisor or of software) or other.
    """

    name: str
    service: str | None
    mode: str


@resource(ResourceType("Disk", title="disks", order=70, key=("disk",)))
class Disk(State):
    """A disk by its unique id. size: in bytes; style: GPT, MBR or RAW.

    guid: of its GPT, which Linux knows as well; a cloned disk has the same. number: in Windows, which may change at a
    restart. sector: the logical sector size in bytes. offline: Windows does not use the disk, as the second of two
    disks with the same GUID. health: healthy, warning, unhealthy or unknown.
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
    """The size limits of the Windows partition, by its GUID.

    smallest, largest: the sizes that Windows reports as possible now; a shrink may still stop earlier. free: free bytes
    of the volume; health: of the volume. holders: contents that cannot be moved while Windows runs: page-file,
    hibernation-file, shadow-copies, wsl-disks (unverified: WSL's VM runs, wherever its disks are). last_held_by: the
    file at which the last analysis of Windows stopped.
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
    """batteries: their number; a UPS may count as one. on_battery: the host runs on battery power now."""

    batteries: int
    on_battery: bool


@resource(ResourceType("HardwareClock", title="the hardware clock", order=82, usual={"utc": False}))
class HardwareClock(State):
    """utc: Windows keeps the hardware clock in UTC, as Linux does by default; otherwise in local time."""

    utc: bool


@resource(ResourceType("SecureBoot", title="Secure Boot", order=86))
class SecureBoot(State):
    """state: on, off, or unsupported (a BIOS, or firmware without it).

    authorities: the names of the certificates in `db`; revoked: the number of programs and certificates in `dbx`.
    """

    state: str
    authorities: tuple[str, ...]
    revoked: int


@resource(ResourceType("HyperVHost", title="the settings of Hyper-V", order=100, requires="HyperVRole"))
class HyperVHost(State):
    """Properties that Hyper-V reports about the host. iov_support is a sign of IOMMU and ACS, no verdict on DDA."""

    iov_support: bool
    iov_reasons: tuple[str, ...]
    service: str


@resource(ResourceType("VmSwitch", title="virtual switches", order=110, key=("switch",), requires="HyperVRole"))
class VmSwitch(State):
    """A virtual switch by its GUID. kind: external, internal or private; adapter: of an external switch."""

    name: str
    kind: str
    adapter: str | None
    management_os: bool


ETHERNET, WIFI, TEAM, VIRTUAL, VPN = "ethernet", "wifi", "team", "virtual", "vpn"


@dataclass(frozen=True)
class Address:
    """An address of an adapter. origin: manual, dhcp or router-advertisement. Raises ValueError for an invalid one."""

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

    - service: the driver's service, by which VPN clients that claim to be Ethernet are recognized; missing in facts of
      older versions of winhost.
    - kind: ethernet, wifi, team, virtual (a port of a switch), vpn or other, by what the driver reports
      (NdisPhysicalMedium, InterfaceType, component, file, service, description).
    - status: up, disconnected, disabled or down; speed: bits per second; vlan: null if the driver sets none.
    - profile: public, private, domain, or null without a network.
    - switch: the virtual switch that is bound to it.
    - management: any WinRM session uses it now.
    - filters: names of filter drivers bound to it that are not part of Windows.
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
        """The description, with the driver's service if it is known. Some VPN clients are recognized only by that."""
        service = vars(self).get("service")
        return f"{self.description} (service {service})" if service else self.description


_PARAVIRTUAL = "GPUPARAV"  # the end of interface paths for GPU-PV, according to a developer in Easy-GPU-PV #49


def is_paravirtual(gpu: str) -> bool:
    """Tell whether an interface path is that of a GPU which Windows shares by paravirtualization."""
    return gpu.upper().endswith(_PARAVIRTUAL)


@resource(
    ResourceType(
        "PartitionableGpu", title="GPUs that can be partitioned", order=140, key=("gpu",), requires="HyperVRole"
    )
)
class PartitionableGpu(State):
    """A GPU that can be partitioned or shared, by its device interface path.

    There are two kinds: a GPU that its vendor's driver partitions by SR-IOV, where `partitions` 1 means not
    partitioned; and a GPU that Windows' own driver shares by paravirtualization, whose only count is 32, which is
    unrelated to its memory. used: partitions that VMs have; unknown if Windows does not report to which GPU one
    belongs.
    """

    partitions: int
    valid_counts: tuple[int, ...]
    used: int


@resource(ResourceType("Vm", title="VMs", order=180, key=("vm",), requires="HyperVRole"))
class Vm(State):
    """Any VM of the host, by its GUID, because Hyper-V allows several VMs with one name. A VM that winhost created is
    also an OwnVm.

    version: the configuration version, as `12.0`; nested: it exposes virtualization extensions; secure_boot_template:
    null for generation 1; devices: location paths of assigned devices; partitions: the number of GPU-P adapters.
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
    """reasons: why a restart is pending; empty if none is."""

    reasons: tuple[str, ...]


@resource(ResourceType("WslPolicy", title="policies for WSL", order=360))
class WslPolicy(State):
    """Group Policy for WSL (microsoft/WSL, intune/WSL.admx). null: not configured, and therefore allowed.

    allow_wsl: any WSL; allow_inbox: the WSL that is part of Windows; the others: the setting of that name in
    .wslconfig. default_networking: the mode if .wslconfig sets none: 0 none, 1 NAT, 3 mirrored, 4 VirtioProxy.
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
    """state: of the failover cluster service on this host: absent, stopped or running."""

    state: str


@resource(ResourceType("DeviceAssignmentPolicy", title="policies for device assignment", order=400))
class DeviceAssignmentPolicy(State):
    """Registry policies for device assignment; null if not set. winhost only reads them."""

    require_secure: int | None
    require_supported: int | None
