"""NVIDIA's driver for a Linux that has the GPUs to itself: which set of packages, by the PCI ids of the GPUs.

The GPUs need not be there yet: before they are assigned, a guest has no PCI bus to look at.
"""

from collections.abc import Sequence
from contextlib import suppress

from winhost.core.answers import if_available
from winhost.core.dataclass import dataclass
from winhost.hardware.gpus import OpenModules, known
from winhost.model.errors import UsageError
from winhost.resources.host import HostFacts
from winhost.resources.linux.packages import MODULES, AptPackages
from winhost.resources.linux.read_only import LinuxGpu, LinuxGpuDriver

UNATTENDED_FILE = "/etc/apt/apt.conf.d/52winhost"
# A new kernel without its modules has no GPU, and modules fit one version of the rest of the driver alone.
UNATTENDED = """\
// Written by winhost: the kernel and the driver are upgraded together, and never by themselves.
Unattended-Upgrade::Package-Blacklist {
    "linux-(generic|headers|image|modules|virtual)";
    "libnvidia-";
    "nvidia-";
};
"""


@dataclass(frozen=True)
class DriverChoice:
    """packages: the key of the set; open: with NVIDIA's open kernel modules; unverified: GPUs of which nobody has
    shown that they take them. path, text: of the file that keeps unattended upgrades from it.
    """

    packages: str
    open: bool
    why: str
    unverified: tuple[str, ...] = ()
    path: str = UNATTENDED_FILE
    text: str = UNATTENDED


def wanted_driver(facts: HostFacts, coming: Sequence[str] = ()) -> DriverChoice | None:
    """The set of packages that a Linux gets, or has got, for the GPUs that it has or that are coming. None where it has
    a driver of another source, which stays.

    Raises UsageError (NoDriver), MissingFact.
    """
    sets = {each.key["packages"]: each.state for each in facts.all(AptPackages)}
    devices = coming or [gpu.state.device or "" for gpu in facts.all(LinuxGpu)]
    with suppress(UsageError):  # what is there and does not suit these GPUs is somebody's own
        return choose_driver(devices, [packages for packages, state in sets.items() if state.installed is not False])
    driver = facts.the(LinuxGpuDriver)
    if driver.loaded or driver.installed or driver.packages:
        return None
    return choose_driver(devices, [packages for packages, state in sets.items() if _is_offered(state)])


def _is_offered(state: AptPackages) -> bool:
    """Tell whether a package source has the whole set."""
    return bool(if_available(lambda: state.to_add))


def choose_driver(devices: Sequence[str], sets: Sequence[str]) -> DriverChoice:
    """devices: ids as `VEN_10DE&DEV_26B9` or `10de:26b9`; sets: those that the Linux knows.

    Raises UsageError (NoDriver).
    """
    support = {device: gpu.open_modules if (gpu := known(device)) else None for device in devices}
    needed = [device for device, modules in support.items() if modules is OpenModules.NEEDED]
    impossible = [device for device, modules in support.items() if modules is OpenModules.IMPOSSIBLE]
    if needed and impossible:
        what = (
            f"no driver drives both {', '.join(needed)} (open modules only) and {', '.join(impossible)} (closed only)"
        )
        raise _no_driver(what, "Give them to two machines")
    open_ = not impossible
    ours = [each for each in sets if each.startswith(MODULES) and ("-open-" in each.split(" ")[0]) is open_]
    if not ours:
        what = "this Linux knows of no prebuilt modules of NVIDIA's driver for its kernel"
        lists = "where it never got lists of packages, because no mirror answered: sudo apt-get update"
        raise _no_driver(what, f"Use Ubuntu with one of its own kernels; {lists}")
    if needed:
        why = f"{', '.join(needed)} works with the open kernel modules alone."
    elif impossible:
        why = f"{', '.join(impossible)} does not work with the open kernel modules."
    else:
        why = "NVIDIA recommends the open kernel modules for GPUs from Turing on."
    unverified = tuple(device for device, modules in support.items() if modules is None)
    return DriverChoice(ours[0], open_, f"{why} Signed by Ubuntu, so that Secure Boot stays on.", unverified)


def has_fabric_manager(packages: str) -> bool:
    """Tell whether a set contains the fabric manager, which a Linux lists whose PCI bus has NVSwitches."""
    return any(each.startswith("nvidia-fabricmanager-") for each in packages.split(" "))


def refuse_mixed(devices: Sequence[str]) -> None:
    """Before there is a Linux to ask. Raises UsageError (NoDriver) for GPUs that no driver drives together."""
    choose_driver(devices, (f"{MODULES}any-open-kernel", f"{MODULES}any-kernel"))


def _no_driver(what: str, hint: str) -> UsageError:
    return UsageError("NoDriver", what=what, hint=hint)
