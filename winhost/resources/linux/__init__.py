"""The nouns of a Linux target, each with its script in `remote`."""

from winhost.resources.base import ResourceType, State
from winhost.resources.linux.cdi import CdiSpec
from winhost.resources.linux.files import LinuxFile
from winhost.resources.linux.packages import AptSource, DebianPackage
from winhost.resources.linux.system import LinuxGpuDriver, LinuxSystem
from winhost.resources.linux.units import SystemdUnit

# In the order in which a target is read.
STATES: tuple[type[State], ...] = (
    LinuxSystem,
    LinuxGpuDriver,
    LinuxFile,
    AptSource,
    DebianPackage,
    SystemdUnit,
    CdiSpec,
)
RESOURCE_TYPES: dict[str, ResourceType] = {state.noun.name: state.noun for state in STATES}

__all__ = [
    "RESOURCE_TYPES",
    "STATES",
    "AptSource",
    "CdiSpec",
    "DebianPackage",
    "LinuxFile",
    "LinuxGpuDriver",
    "LinuxSystem",
    "SystemdUnit",
]
