"""The nouns of a Linux target, each with its script in `remote`."""

from winhost.resources.base import Noun, State
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
NOUNS: dict[str, Noun] = {state.noun.name: state.noun for state in STATES}

__all__ = [
    "NOUNS",
    "STATES",
    "AptSource",
    "CdiSpec",
    "DebianPackage",
    "LinuxFile",
    "LinuxGpuDriver",
    "LinuxSystem",
    "SystemdUnit",
]
