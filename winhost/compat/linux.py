"""Judges of a Linux machine: whether winhost can prepare it to serve."""

from contextlib import suppress

from packaging.version import Version

from winhost.compat.rule import finding
from winhost.findings.condition import version_of
from winhost.hardware.gpus import find_model
from winhost.knowledge.versions import describe_newer_line, newer_than_checked, subjects
from winhost.model.errors import UsageError
from winhost.model.reason import Finding, Refusal, Severity
from winhost.paths.linux import (
    DOCKER,
    FIRST_WITH_CDI,
    ChosenEngine,
    DriverChoice,
    has_fabric_manager,
    major,
    select_driver,
)
from winhost.resources.host import HostFacts
from winhost.resources.linux.packages import MODULES, AptPackages
from winhost.resources.linux.read_only import ContainerEngine, LinuxGpu, LinuxGpuDriver, LinuxSystem


def release_newer_than_known(facts: HostFacts) -> str | None:
    """The release of Ubuntu is newer than those that were checked."""
    system, newest = facts.the(LinuxSystem), subjects()["ubuntu"].newest
    release = version_of(system.version or "0")
    return (
        f"Ubuntu {system.version}, {newer_than_checked(newest)}"
        if release is None or release > Version(newest)
        else None
    )


def no_suitable_driver(facts: HostFacts) -> str | None:
    """No NVIDIA driver is installed, and no package source has one that fits all GPUs and the kernel."""
    try:
        _driver_to_install(facts)
    except UsageError as error:
        return error.what
    return None


def driver_to_install(facts: HostFacts) -> str | None:
    """No NVIDIA driver is installed, and the plan installs the one that fits."""
    with suppress(UsageError):  # no_suitable_driver reports it
        if chosen := _driver_to_install(facts):
            bound = ", ".join(sorted({gpu.state.driver or "no driver" for gpu in facts.all(LinuxGpu)}))
            return f"bound to the GPUs: {bound}; coming: {chosen.packages}"
    return None


def unverified_driver(facts: HostFacts) -> str | None:
    """winhost would install a driver for a GPU whose required driver it does not know."""
    with suppress(UsageError):  # no_suitable_driver reports it
        if (chosen := _driver_to_install(facts)) and chosen.unverified:
            return ", ".join(chosen.unverified)
    return None


def driver_not_loaded(facts: HostFacts) -> str | None:
    """A driver is installed, was installed before the last boot, and is not loaded."""
    driver = facts.the(LinuxGpuDriver)
    if not _has_driver(facts) or _is_managed(facts):
        return None
    there = f"{driver.installed} is on disk" if driver.installed else ", ".join(driver.packages)
    signed = f", signed by {driver.signer}" if driver.signer else ""
    return f"{there}{signed}, and no module of NVIDIA's runs"


def driver_awaits_restart(facts: HostFacts) -> Finding | None:
    """The installed driver differs from the loaded one: programs of the new driver fail until a restart."""
    driver = facts.the(LinuxGpuDriver)
    if facts.the(LinuxSystem).wsl or driver.loaded == driver.installed:
        return None
    observed = f"{driver.loaded or 'none'} runs, {driver.installed} is installed"
    managed = _is_managed(facts)  # then the plan restarts
    if not managed and not (driver.loaded and driver.installed):
        return None
    return finding("linux.driver-restart", observed, Severity.NOTE if managed else Severity.UNSUPPORTED)


def unmanaged_driver(facts: HostFacts) -> str | None:
    """winhost did not install the driver: it is from NVIDIA's installer or repository, or another branch of the
    distribution.
    """
    driver = facts.the(LinuxGpuDriver)
    if _is_managed(facts):
        return None
    source = "by packages of its own" if driver.packages else "by no package: NVIDIA's installer puts it so"
    return f"{driver.loaded} ({driver.kind or 'of an unknown kind'}), {source}"


def driver_newer_than_known(facts: HostFacts) -> str | None:
    """The branch of NVIDIA's driver is newer than those that were checked. In WSL the driver is that of Windows, and is
    judged there.
    """
    driver = facts.the(LinuxGpuDriver).loaded
    if facts.the(LinuxSystem).wsl or not driver:
        return None
    newer = describe_newer_line("NVIDIA drivers", driver) if version_of(driver) else None  # NVIDIA's are all versions
    return newer and newer.replace("NVIDIA drivers", "driver", 1)


def fabric_manager_missing(facts: HostFacts) -> str | None:
    """Boards with NVSwitch need a fabric manager of the driver's version, and the plan does not install one."""
    found = _boards_with_nvswitch(facts)
    return found if found and not _installs_fabric_manager(facts) else None


def fabric_manager_to_install(facts: HostFacts) -> str | None:
    """The plan installs the fabric manager with the driver."""
    found = _boards_with_nvswitch(facts)
    return found if found and _installs_fabric_manager(facts) else None


def docker_without_cdi(facts: HostFacts) -> str | None:
    """Docker is older than 25, the first version with CDI."""
    for engine in facts.all(ContainerEngine):
        if engine.key["engine"] == DOCKER and major(engine.state.version) < FIRST_WITH_CDI:
            return f"Docker {engine.state.version}"
    return None


def no_container_engine(facts: HostFacts) -> str | None:
    """No container engine is installed, and no package source has Docker."""
    try:
        _ = ChosenEngine(facts, "auto").packages
    except Refusal as refusal:
        return refusal.sentence
    return None


def _boards_with_nvswitch(facts: HostFacts) -> str | None:
    """Name the GPUs of a board that may have NVSwitches, as long as no driver is loaded; None without such a board."""
    found = [
        model.name
        for gpu in facts.all(LinuxGpu)
        if (model := find_model(gpu.state.device or "")) and "SXM" in model.name
    ]
    return f"{len(found)} of {found[0]}" if len(found) > 1 and not facts.the(LinuxGpuDriver).loaded else None


def _installs_fabric_manager(facts: HostFacts) -> bool:
    with suppress(UsageError):  # no_suitable_driver reports it
        chosen = _driver_to_install(facts)
        return chosen is not None and has_fabric_manager(chosen.packages)
    return False


def _driver_to_install(facts: HostFacts) -> DriverChoice | None:
    """Return the driver that a plan installs; None if it installs none. Raises UsageError: NoDriver."""
    return None if _has_driver(facts) or not facts.all(LinuxGpu) else select_driver(facts)


def _has_driver(facts: HostFacts) -> bool:
    driver = facts.the(LinuxGpuDriver)
    return facts.the(LinuxSystem).wsl or bool(driver.loaded or driver.installed or driver.packages)


def _is_managed(facts: HostFacts) -> bool:
    """Tell whether the driver is one that winhost installed, and is loaded or waits for a restart."""
    sets = [each.state for each in facts.all(AptPackages) if each.key["packages"].startswith(MODULES)]
    runs = facts.the(LinuxGpuDriver).loaded is not None
    return any(state.installed is not False and (runs or state.restart_due) for state in sets)
