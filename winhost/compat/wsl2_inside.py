"""Rules of WSL 2: what is inside a distro that is read, and what of Windows takes effect only later."""

import re
from contextlib import suppress

from winhost.compat.rule import rule
from winhost.core.answers import MissingFact
from winhost.resources.host import HostFacts
from winhost.resources.linux.linux_gpu_driver import LinuxGpuDriver
from winhost.resources.linux.linux_system import LinuxSystem
from winhost.resources.windows.external_switch import ExternalSwitch
from winhost.resources.windows.gpu_driver_model import GpuDriverModel
from winhost.resources.windows.vm_switch import VmSwitch

_OF_WSL_1 = re.compile(r"4\.4\.0-[0-9]+-Microsoft")  # that of WSL 2 ends with microsoft-standard-WSL2


@rule("wsl2.other-libcuda")
def other_libcuda(facts: HostFacts) -> str | None:
    """A distro has a libcuda of its own, which programs may find before the one of Windows' driver."""
    with suppress(MissingFact):  # no distro is read: there is none yet, or no SSH access
        driver = facts.the(LinuxGpuDriver)
        # Where a package brought it, a plan is refused by that package's name.
        found = driver.libraries if not driver.packages else ()
        return ", ".join(found) if found else None
    return None


@rule("wsl2.version-1")
def version_one(facts: HostFacts) -> str | None:
    """The distro that is read runs on WSL 1, which has no GPU: its kernel is Windows' own imitation of one."""
    with suppress(MissingFact):  # no distro is read, as above
        kernel = facts.the(LinuxSystem).kernel
        return kernel if _OF_WSL_1.fullmatch(kernel) else None
    return None


@rule("wsl2.model-pending")
def model_pending(facts: HostFacts) -> str | None:
    """A GPU gets another driver model with the next restart."""
    with suppress(MissingFact):  # without NVIDIA's driver there is no model
        found = [
            f"{each.key['location']}: {each.state.current} now, {each.state.pending} after a restart"
            for each in facts.all(GpuDriverModel)
            if each.state.pending not in (None, each.state.current)
        ]
        return "; ".join(found) if found else None
    return None


@rule("wsl2.switch-without-host")
def switch_without_the_host(facts: HostFacts) -> str | None:
    """An external switch is not shared with Windows, which then has no adapter on it."""
    apart = [switch.state.name for switch in facts.all(VmSwitch) if _apart(switch.state)]
    made = [each.key["name"] for each in facts.all(ExternalSwitch) if each.state.management_os is False]
    names = list(dict.fromkeys((*apart, *made)))
    return ", ".join(names) if names else None


def _apart(switch: VmSwitch) -> bool:
    return switch.kind == "external" and not switch.management_os
