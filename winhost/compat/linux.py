"""Judges of a Linux of its own: whether winhost can ready it to serve."""

from contextlib import suppress

from packaging.version import Version

from winhost.compat.rule import finding
from winhost.findings.condition import version_of
from winhost.hardware.gpus import find_model
from winhost.knowledge.versions import checked, newer_line, subjects
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
    """A release of Ubuntu whose archive nobody has checked."""
    system, newest = facts.the(LinuxSystem), subjects()["ubuntu"].newest
    release = version_of(system.version or "0")
    return f"Ubuntu {system.version}, {checked(newest)}" if release is None or release > Version(newest) else None


def without_driver(facts: HostFacts) -> str | None:
    """There is no NVIDIA driver, and none in a package source that fits all GPUs and the kernel."""
    try:
        _coming(facts)
    except UsageError as error:
        return error.what
    return None


def driver_comes(facts: HostFacts) -> str | None:
    """There is no NVIDIA driver, and the plan installs the one that fits."""
    with suppress(UsageError):  # said by without_driver
        if chosen := _coming(facts):
            bound = ", ".join(sorted({gpu.state.driver or "no driver" for gpu in facts.all(LinuxGpu)}))
            return f"bound to the GPUs: {bound}; coming: {chosen.packages}"
    return None


def driver_unproven(facts: HostFacts) -> str | None:
    """winhost would install a driver for a GPU of which it does not know what it takes."""
    with suppress(UsageError):  # said by without_driver
        if (chosen := _coming(facts)) and chosen.unverified:
            return ", ".join(chosen.unverified)
    return None


def driver_not_loaded(facts: HostFacts) -> str | None:
    """A driver is installed, was there at the last start, and does not run."""
    driver = facts.the(LinuxGpuDriver)
    if not _has_driver(facts) or _is_ours(facts):
        return None
    there = f"{driver.installed} is on disk" if driver.installed else ", ".join(driver.packages)
    signed = f", signed by {driver.signer}" if driver.signer else ""
    return f"{there}{signed}, and no module of NVIDIA's runs"


def driver_awaits_restart(facts: HostFacts) -> Finding | None:
    """Another driver is installed than the one that runs: programs of the new one fail until a restart."""
    driver = facts.the(LinuxGpuDriver)
    if facts.the(LinuxSystem).wsl or driver.loaded == driver.installed:
        return None
    observed = f"{driver.loaded or 'none'} runs, {driver.installed} is installed"
    ours = _is_ours(facts)  # which the plan restarts for
    if not ours and not (driver.loaded and driver.installed):
        return None
    return finding("linux.driver-restart", observed, Severity.NOTE if ours else Severity.UNSUPPORTED)


def driver_of_others(facts: HostFacts) -> str | None:
    """The driver came from elsewhere: NVIDIA's installer or repository, or another branch of the distribution."""
    driver = facts.the(LinuxGpuDriver)
    if _is_ours(facts):
        return None
    source = "by packages of its own" if driver.packages else "by no package: NVIDIA's installer puts it so"
    return f"{driver.loaded} ({driver.kind or 'of an unknown kind'}), {source}"


def driver_newer_than_known(facts: HostFacts) -> str | None:
    """A branch of NVIDIA's driver that nobody has checked. In WSL it is that of Windows, which its host judges."""
    driver = facts.the(LinuxGpuDriver).loaded
    if facts.the(LinuxSystem).wsl or not driver:
        return None
    newer = newer_line("NVIDIA drivers", driver) if version_of(driver) else None  # NVIDIA's are all versions
    return newer and newer.replace("NVIDIA drivers", "driver", 1)


def gpus_by_nvswitch(facts: HostFacts) -> str | None:
    """Boards with NVSwitch need its fabric manager, in the version of the driver, and no plan brings it here."""
    found = _awaiting_fabric_manager(facts)
    return found if found and not _brings_fabric_manager(facts) else None


def fabric_manager_comes(facts: HostFacts) -> str | None:
    """The plan installs it with the driver."""
    found = _awaiting_fabric_manager(facts)
    return found if found and _brings_fabric_manager(facts) else None


def docker_without_cdi(facts: HostFacts) -> str | None:
    """CDI came with Docker 25."""
    for engine in facts.all(ContainerEngine):
        if engine.key["engine"] == DOCKER and major(engine.state.version) < FIRST_WITH_CDI:
            return f"Docker {engine.state.version}"
    return None


def without_engine(facts: HostFacts) -> str | None:
    """Nothing runs containers, and no source has Docker."""
    try:
        _ = ChosenEngine(facts, "auto").packages
    except Refusal as refusal:
        return refusal.sentence
    return None


def _awaiting_fabric_manager(facts: HostFacts) -> str | None:
    """GPUs on a board that would have NVSwitches, before a driver runs."""
    found = [
        model.name
        for gpu in facts.all(LinuxGpu)
        if (model := find_model(gpu.state.device or "")) and "SXM" in model.name
    ]
    return f"{len(found)} of {found[0]}" if len(found) > 1 and not facts.the(LinuxGpuDriver).loaded else None


def _brings_fabric_manager(facts: HostFacts) -> bool:
    with suppress(UsageError):  # said by without_driver
        chosen = _coming(facts)
        return chosen is not None and has_fabric_manager(chosen.packages)
    return False


def _coming(facts: HostFacts) -> DriverChoice | None:
    """Raises UsageError: NoDriver."""
    return None if _has_driver(facts) or not facts.all(LinuxGpu) else select_driver(facts)


def _has_driver(facts: HostFacts) -> bool:
    driver = facts.the(LinuxGpuDriver)
    return facts.the(LinuxSystem).wsl or bool(driver.loaded or driver.installed or driver.packages)


def _is_ours(facts: HostFacts) -> bool:
    """It is a set that winhost installs, and runs or waits for a restart."""
    sets = [each.state for each in facts.all(AptPackages) if each.key["packages"].startswith(MODULES)]
    runs = facts.the(LinuxGpuDriver).loaded is not None
    return any(state.installed is not False and (runs or state.restart_due) for state in sets)
