"""Rules of a Linux of its own: whether winhost can ready it to serve."""

from winhost.compat.rule import BLOCKS, NOTES, Finding, note, rule, unsupported
from winhost.resources.host import HostFacts
from winhost.resources.linux.linux_gpu.resource import LinuxGpu
from winhost.resources.linux.linux_gpu_driver.resource import LinuxGpuDriver
from winhost.resources.linux.linux_system.resource import LinuxSystem

WITH_APT = ("debian", "ubuntu")


@rule("linux", unknown=BLOCKS)
def in_wsl(facts: HostFacts) -> Finding | None:
    """A distro of WSL has the driver of Windows; its path is wsl2."""
    system = facts.the(LinuxSystem)
    return unsupported("linux.wsl", observed=f"kernel {system.kernel}") if system.wsl else None


@rule("linux", unknown=BLOCKS)
def without_apt(facts: HostFacts) -> Finding | None:
    """winhost installs packages with apt, and was tried on Debian and Ubuntu."""
    system = facts.the(LinuxSystem)
    if system.id not in WITH_APT:
        return unsupported("linux.no-apt", observed=f"{system.id} {system.version or ''}".strip())
    return None


@rule("linux", unknown=BLOCKS)
def without_systemd(facts: HostFacts) -> Finding | None:
    """What serves is started by systemd."""
    return None if facts.the(LinuxSystem).systemd else unsupported("linux.no-systemd", observed="another init runs")


@rule("linux", unknown=BLOCKS)
def without_gpu(facts: HostFacts) -> Finding | None:
    """No display controller of NVIDIA is on the PCI bus."""
    return None if facts.all(LinuxGpu) else unsupported("linux.no-gpu", observed="none on the PCI bus")


@rule("linux", unknown=BLOCKS)
def without_driver(facts: HostFacts) -> Finding | None:
    """NVIDIA's kernel module is not loaded, so no CDI specification can be made."""
    driver = facts.the(LinuxGpuDriver)
    if driver.loaded is not None or facts.the(LinuxSystem).wsl:
        return None
    bound = sorted({gpu.state.driver or "no driver" for gpu in facts.all(LinuxGpu)})
    return unsupported("linux.no-driver", observed=f"bound to the GPUs: {', '.join(bound) or 'nothing'}")


@rule("linux", unknown=NOTES)
def driver_awaits_restart(facts: HostFacts) -> Finding | None:
    """Another driver is installed than the one that runs: programs of the new one fail until a restart."""
    driver = facts.the(LinuxGpuDriver)
    if driver.loaded and driver.installed and driver.loaded != driver.installed:
        return note("linux.driver-restart", observed=f"{driver.loaded} runs, {driver.installed} is installed")
    return None
