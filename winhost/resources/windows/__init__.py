"""The nouns of a Windows host, each with its script beside it."""

from winhost.resources.base import ResourceType, State
from winhost.resources.windows.accounts import AccountRight, AccountTasks, LocalAccount, WslConfig
from winhost.resources.windows.assignable_device import AssignableDevice
from winhost.resources.windows.boot import Boot
from winhost.resources.windows.distros import WslAccess, WslConf, WslDistro, WslVm
from winhost.resources.windows.firmware import Firmware
from winhost.resources.windows.gpu_driver_model import GpuDriverModel
from winhost.resources.windows.hyperv import HyperVHost, HyperVRole, PartitionableGpu, VmSwitch
from winhost.resources.windows.machine import Disk, Memory, Processor
from winhost.resources.windows.network import (
    ExternalSwitch,
    HyperVFirewall,
    NetworkAdapter,
    PortForward,
    WslPolicy,
)
from winhost.resources.windows.operating_system import OperatingSystem
from winhost.resources.windows.pci_device import PciDevice
from winhost.resources.windows.session import Session
from winhost.resources.windows.software import StagedFile, VirtualMachinePlatform, Wsl
from winhost.resources.windows.surroundings import (
    BitLocker,
    ClusterService,
    DeviceAssignmentPolicy,
    PendingReboot,
)
from winhost.resources.windows.vm import Vm, VmActions, VmCheckpoints, VmMemory, VmMmio, VmPower

# In the order in which a host is read: who and what first, so that a refusal there explains the rest.
STATES: tuple[type[State], ...] = (
    Session,
    OperatingSystem,
    Boot,
    Firmware,
    Processor,
    Memory,
    Disk,
    HyperVRole,
    VirtualMachinePlatform,
    HyperVHost,
    VmSwitch,
    NetworkAdapter,
    ExternalSwitch,
    PartitionableGpu,
    PciDevice,
    GpuDriverModel,
    AssignableDevice,
    Vm,
    VmMmio,
    VmActions,
    VmCheckpoints,
    VmMemory,
    VmPower,
    PendingReboot,
    BitLocker,
    StagedFile,
    Wsl,
    LocalAccount,
    AccountRight,
    AccountTasks,
    WslConfig,
    WslVm,
    WslDistro,
    WslConf,
    WslAccess,
    WslPolicy,
    PortForward,
    HyperVFirewall,
    ClusterService,
    DeviceAssignmentPolicy,
)
RESOURCE_TYPES: dict[str, ResourceType] = {state.noun.name: state.noun for state in STATES}

__all__ = [
    "RESOURCE_TYPES",
    "STATES",
    "AccountRight",
    "AccountTasks",
    "AssignableDevice",
    "BitLocker",
    "Boot",
    "ClusterService",
    "DeviceAssignmentPolicy",
    "Disk",
    "ExternalSwitch",
    "Firmware",
    "GpuDriverModel",
    "HyperVFirewall",
    "HyperVHost",
    "HyperVRole",
    "LocalAccount",
    "Memory",
    "NetworkAdapter",
    "OperatingSystem",
    "PartitionableGpu",
    "PciDevice",
    "PendingReboot",
    "PortForward",
    "Processor",
    "Session",
    "StagedFile",
    "VirtualMachinePlatform",
    "Vm",
    "VmActions",
    "VmCheckpoints",
    "VmMemory",
    "VmMmio",
    "VmPower",
    "VmSwitch",
    "Wsl",
    "WslAccess",
    "WslConf",
    "WslConfig",
    "WslDistro",
    "WslPolicy",
    "WslVm",
]
