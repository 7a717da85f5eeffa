"""A Linux with containers: its settings, GPU driver, container engine, and packages that a workload may need."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, Literal

from packaging.version import Version
from pydantic import field_validator

from winhost.core.answers import Json, MissingFact, Unavailable, if_available, if_known
from winhost.core.dataclass import dataclass
from winhost.hardware.gpus import OpenModules, find_model
from winhost.model.errors import RefusedError, UsageError, visible
from winhost.model.reason import Refusal
from winhost.model.workload import Workload
from winhost.model.written import Closed
from winhost.paths.distro_containers import TOOLKIT, Repository
from winhost.paths.setting_values import Debian
from winhost.resources.host import HostFacts
from winhost.resources.linux.packages import MODULES, AptPackages
from winhost.resources.linux.read_only import ContainerEngine, LinuxGpu, LinuxGpuDriver, LinuxSystem

# ---- settings


Engine = Literal["auto", "docker", "podman", "none"]
NO_TOOLKIT = "none"
FIRST_TOOLKIT = Version("1.18.0")  # it renews its CDI specification by itself


class LinuxSettings(Closed):
    """`settings` of the playbook, or `winhost plan --set NAME=VALUE`."""

    toolkit: Literal["none"] | Debian
    """Version of nvidia-container-toolkit; it is pinned, and not upgraded automatically. none: containers there get no
    GPUs from winhost, for example because vLLM runs without a container.
    """

    engine: Engine = "auto"
    """The container runtime. auto: the installed one, else Docker of the distribution; none: winhost installs and
    changes no runtime.
    """

    @field_validator("toolkit")
    @classmethod
    def _check_toolkit_version(cls, version: str) -> str:
        if version != NO_TOOLKIT and Version(version.partition("-")[0]) < FIRST_TOOLKIT:
            raise ValueError(
                f"should be {FIRST_TOOLKIT} or later: with older ones, no CDI specification outlives a restart"
            )
        return version


# ---- the GPU driver


UNATTENDED_FILE = "/etc/apt/apt.conf.d/52winhost"
# A new kernel without its modules has no GPU, and the modules match only one version of the driver.
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
    """The choice of a driver. packages: the key of its set; open: with NVIDIA's open kernel modules; unverified: GPUs
    for which their support is unknown; path, text: of the file that excludes the driver from unattended upgrades.
    """

    packages: str
    open: bool
    why: str
    unverified: tuple[str, ...] = ()
    path: str = UNATTENDED_FILE
    text: str = UNATTENDED


def select_driver(facts: HostFacts, expected: Sequence[str] = ()) -> DriverChoice | None:
    """Select the set of driver packages for the GPUs of a Linux, or for those that it will get (expected). None if the
    Linux has a driver from another source, which is kept.

    Raises UsageError (NoDriver), MissingFact.
    """
    sets = {each.key["packages"]: each.state for each in facts.all(AptPackages)}
    devices = expected or [gpu.state.device or "" for gpu in facts.all(LinuxGpu)]
    with suppress(UsageError):  # an installed driver that does not support these GPUs is kept as a foreign one
        return choose_driver(devices, [packages for packages, state in sets.items() if state.installed is not False])
    driver = facts.the(LinuxGpuDriver)
    if driver.loaded or driver.installed or driver.packages:
        return None
    return choose_driver(devices, [packages for packages, state in sets.items() if _is_offered(state)])


def _is_offered(state: AptPackages) -> bool:
    """Tell whether a package source has the whole set."""
    return bool(if_available(lambda: state.to_add))


def choose_driver(devices: Sequence[str], sets: Sequence[str]) -> DriverChoice:
    """Choose the first of the sets that supports the GPUs. devices: ids as `VEN_10DE&DEV_26B9` or `10de:26b9`.

    Raises UsageError (NoDriver).
    """
    support = {device: gpu.open_modules if (gpu := find_model(device)) else None for device in devices}
    needed = [device for device, modules in support.items() if modules is OpenModules.NEEDED]
    impossible = [device for device, modules in support.items() if modules is OpenModules.IMPOSSIBLE]
    if needed and impossible:
        what = (
            f"no driver drives both {', '.join(needed)} (open modules only) and {', '.join(impossible)} (closed only)"
        )
        raise _no_driver_error(what, "Give them to two machines")
    open_ = not impossible
    matching = [each for each in sets if each.startswith(MODULES) and ("-open-" in each.split(" ")[0]) is open_]
    if not matching:
        what = "this Linux knows of no prebuilt modules of NVIDIA's driver for its kernel"
        lists = "where it never got lists of packages, because no mirror answered: sudo apt-get update"
        raise _no_driver_error(what, f"Use Ubuntu with one of its own kernels; {lists}")
    if needed:
        why = f"{', '.join(needed)} works only with the open kernel modules."
    elif impossible:
        why = f"{', '.join(impossible)} does not work with the open kernel modules."
    else:
        why = "NVIDIA recommends the open kernel modules for GPUs from Turing on."
    unverified = tuple(device for device, modules in support.items() if modules is None)
    return DriverChoice(matching[0], open_, f"{why} Signed by Ubuntu, so that Secure Boot stays on.", unverified)


def has_fabric_manager(packages: str) -> bool:
    """Tell whether a set contains the fabric manager. A Linux lists such sets if its PCI bus has NVSwitches."""
    return any(each.startswith("nvidia-fabricmanager-") for each in packages.split(" "))


def refuse_mixed_gpus(devices: Sequence[str]) -> None:
    """Refuse GPUs that no driver supports together, before there is a Linux. Raises UsageError (NoDriver)."""
    choose_driver(devices, (f"{MODULES}any-open-kernel", f"{MODULES}any-kernel"))


def _no_driver_error(what: str, hint: str) -> UsageError:
    return UsageError("NoDriver", what=what, hint=hint)


# ---- the container engine


DOCKER, PODMAN, NONE = "docker", "podman", "none"
FIRST_WITH_CDI = 25  # the first Docker with CDI, which has to be enabled there; later ones enable it by default
PACKAGES = {DOCKER: "docker.io", PODMAN: "podman"}
_RUNTIME: Json = {"path": "nvidia-container-runtime", "runtimeArgs": []}


class ChosenEngine:
    """The container engine that a plan uses. A Docker from a snap is left alone, because it has its own settings."""

    def __init__(self, facts: HostFacts, requested: Engine) -> None:
        self._facts, self._requested = facts, requested

    @cached_property
    def name(self) -> str:
        """docker, podman or none. Raises MissingFact, and Refusal (linux.docker-snap)."""
        if self._requested == DOCKER and self._is_docker_snap:
            sentence = "Docker was installed as a snap here, which reads settings of its own."
            raise Refusal(
                "linux.docker-snap", sentence, "Remove it (snap remove docker), or plan with --set engine=none."
            )
        if self._requested != "auto":
            return self._requested
        found = [each for each in (DOCKER, PODMAN) if each in self._usable_engines]
        return found[0] if found else NONE if self._is_docker_snap else DOCKER

    @cached_property
    def _engines(self) -> Mapping[str, ContainerEngine]:
        return {each.key["engine"]: each.state for each in self._facts.all(ContainerEngine)}

    @property
    def _usable_engines(self) -> Mapping[str, ContainerEngine]:
        return {name: engine for name, engine in self._engines.items() if not engine.snap}

    @property
    def _is_docker_snap(self) -> bool:
        return any(name == DOCKER and engine.snap for name, engine in self._engines.items())

    @property
    def packages(self) -> tuple[Mapping[str, str], ...]:
        """The distribution's packages, if the engine is not installed yet. Raises as `name`, and Refusal
        (linux.no-engine).
        """
        if self.name == NONE:
            return ()
        packages = PACKAGES[self.name]
        state = self._facts.find(AptPackages, {"packages": packages})
        if (self.name in self._usable_engines and (state is None or state.installed is not None)) or state is None:
            return ()
        _refuse_unavailable(packages, state)
        return ({"packages": packages, "title": f"{self.name.capitalize()}, which runs containers"},)

    @property
    def units(self) -> tuple[Mapping[str, str], ...]:
        return ({"name": "docker.service"},) if self.name == DOCKER else ()

    @property
    def settings(self) -> tuple[Mapping[str, Json], ...]:
        """Docker's settings; Podman needs none, because it knows CDI."""
        if self.name != DOCKER:
            return ()
        if DOCKER in self._usable_engines and major(self._usable_engines[DOCKER].version) < FIRST_WITH_CDI:
            why = "This Docker has no CDI yet: --gpus and --runtime nvidia give containers the GPUs."
            return (
                {"pointer": "/runtimes/nvidia", "value": _RUNTIME, "title": "NVIDIA's runtime for Docker", "why": why},
            )
        why = "Docker then gives containers the devices that a CDI specification names: --device nvidia.com/gpu=all."
        return ({"pointer": "/features/cdi", "value": True, "title": "GPUs for Docker by CDI", "why": why},)


def major(version: str) -> int:
    """Return the major version, 28 of `28.2.2`; a very large number if the version does not begin with a number."""
    first = version.partition(".")[0]
    return int(first) if first.isdecimal() else 1_000_000


def _refuse_unavailable(packages: str, state: AptPackages) -> None:
    if state.installed is not False:
        return
    try:
        _ = state.to_add
    except MissingFact as missing:
        if not isinstance(missing.missing, Unavailable):
            raise
        sentence = f"No package source of this Linux has {packages}."
        remedy = "Add one (on Ubuntu: universe), install an engine yourself, or plan with --set engine=none."
        raise Refusal("linux.no-engine", sentence, remedy) from None


# Python and the minor version of glibc: https://packages.ubuntu.com, https://packages.debian.org
_PYTHON_AND_GLIBC: dict[tuple[str, str], tuple[str, int]] = {
    ("ubuntu", "22.04"): ("3.10", 35),
    ("ubuntu", "24.04"): ("3.12", 39),
    ("debian", "12"): ("3.11", 36),
    ("debian", "13"): ("3.13", 41),
}
_MIN_GLIBC = 28  # minor version, if only the version of Python is stated: current wheels are built for it


def target_python(facts: HostFacts, stated: str | None) -> tuple[str, int, str] | None:
    """Return Python's version, glibc's minor version and the machine; None if unknown. stated: a version of Python that
    the user states for a future Linux.
    """
    try:
        system = facts.the(LinuxSystem)
        release, machine = _PYTHON_AND_GLIBC.get((system.id, system.version or "")), system.architecture
    except MissingFact:
        release, machine = None, "x86_64"
    if stated is not None and (release is None or release[0] != stated):
        return stated, _MIN_GLIBC, machine
    return (*release, machine) if release else None


# ---- decisions


FABRIC_MANAGER = "nvidia-fabricmanager.service"


class LinuxDecisions:
    """The decisions of the path `linux`, from the facts and the settings. They raise MissingFact and Refusal."""

    def __init__(self, facts: HostFacts, settings: LinuxSettings) -> None:
        self._facts, self._settings = facts, settings

    @cached_property
    def drivers(self) -> tuple[DriverChoice, ...]:
        """The driver to install; empty if the running one is from another source. Raises UsageError: NoDriver."""
        chosen = select_driver(self._facts)
        return (chosen,) if chosen else ()

    @cached_property
    def _engine(self) -> ChosenEngine:
        return ChosenEngine(self._facts, self._settings.engine)

    @property
    def engines(self) -> tuple[Mapping[str, str], ...]:
        return self._engine.packages

    @property
    def units(self) -> tuple[Mapping[str, str], ...]:
        """The units of the engine, and of the fabric manager, which Ubuntu's package leaves disabled."""
        listed = any(has_fabric_manager(each.key["packages"]) for each in self._facts.all(AptPackages))
        is_chosen = listed and any(has_fabric_manager(each.packages) for each in self.drivers)
        return (*self._engine.units, *(({"name": FABRIC_MANAGER},) if is_chosen else ()))

    @property
    def docker_settings(self) -> tuple[Mapping[str, Json], ...]:
        return self._engine.settings

    @property
    def sources(self) -> tuple[Repository, ...]:
        return (TOOLKIT,) if self._has_toolkit else ()

    @property
    def _has_toolkit(self) -> bool:
        return self._settings.toolkit != NO_TOOLKIT

    @property
    def specs(self) -> tuple[Mapping[str, str], ...]:
        return ({"title": "The GPUs, for containers"},) if self._has_toolkit else ()

    @property
    def packages_inside(self) -> tuple[Mapping[str, str], ...]:
        version, title = self._settings.toolkit, "NVIDIA Container Toolkit"
        packages = {"name": "nvidia-container-toolkit", "version": version, "title": title}
        return (packages,) if self._has_toolkit else ()


class PartList:
    """An attribute that is the list of the same name in a part of the decisions; empty if there is no such part."""

    def __init__(self, part: str) -> None:
        self._part = part

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, decisions: object, owner: type) -> tuple[Any, ...]:
        part = getattr(decisions, self._part)
        return () if part is None else tuple(getattr(part, self._name))


class ContainersInside:
    """The decisions about containers that a path's playbook may refer to. They raise MissingFact until that Linux can
    be read.
    """

    @property
    def inside(self) -> LinuxDecisions | None:
        """The decisions about the Linux with the containers; None without containers. Raises MissingFact."""
        raise NotImplementedError

    engines, units, docker_settings = PartList("inside"), PartList("inside"), PartList("inside")
    sources, packages_inside = PartList("inside"), PartList("inside")


# ---- packages that a workload may need: `docker compose`, CRIU, FFmpeg with the driver's libraries


_FIRST_DEBIAN_WITH_COMPOSE = 13  # docker-compose of Debian 12 is version 1, a program of its own


def compose_package(facts: HostFacts) -> str | None:
    """Return the package of Compose; None if the distribution has none or lacks Docker. Raises MissingFact."""
    if not facts.is_linux:
        return None
    try:
        there = any(each.key["engine"] == DOCKER for each in facts.all(ContainerEngine))
        state = facts.find(AptPackages, {"packages": PACKAGES[DOCKER]})
        if there and (state is None or state.installed is not True):
            return None
    except MissingFact:
        return None
    system = facts.the(LinuxSystem)
    if system.id == "ubuntu":
        return "docker-compose-v2"
    first = (system.version or "").partition(".")[0]
    return (
        "docker-compose"
        if system.id == "debian" and first.isdecimal() and int(first) >= _FIRST_DEBIAN_WITH_COMPOSE
        else None
    )


CRIU = "criu"


def criu_packages(facts: HostFacts, workload: Workload) -> str | None:
    """Return the key of AptPackages for CRIU; None if it is not needed, or only nice to have and not available.

    Raises RefusedError: NoCriu, OldCriu.
    """
    needs = workload.needs
    imaged = [model.name for model in workload.models if model.image]
    if not facts.is_linux or not (imaged or CRIU in (*needs.must, *needs.nice)):
        return None
    if _offers_criu(facts):
        if imaged and (old := _outdated_criu(facts)):
            raise RefusedError(
                "OldCriu",
                what=f"CRIU {old} cannot write the image of {visible(imaged[0])}",
                meaning="CRIU before 4.1 does not start on kernels of today, and CRIU 4.1 saves no connection on Linux "
                "6.16 and later.",
                hint="Leave suspend: disk out, or add a package source with CRIU 4.2 (Ubuntu 26.04 has it).",
            )
        return CRIU
    if not imaged and CRIU not in needs.must:
        return None
    raise RefusedError(
        "NoCriu",
        what=f"the workload needs CRIU, and no package source of {visible(facts.host)} has it",
        hint="Ubuntu has it from 25.10 on. For 24.04 (unverified): sudo add-apt-repository ppa:criu/ppa",
    )


def _outdated_criu(facts: HostFacts) -> str | None:
    """Return the version of CRIU that would be installed, if it is known and too old; else None."""
    kernel = if_known(lambda: facts.the(LinuxSystem).kernel)
    least = (4, 2) if kernel and _first_two_numbers(kernel) >= (6, 16) else (4, 1)
    with suppress(MissingFact):
        state = facts.find(AptPackages, {"packages": CRIU})
        for line in state.to_add if state else ():
            name, _, version = line.partition(" ")
            if name == CRIU and _first_two_numbers(version) != (0, 0):
                return version if _first_two_numbers(version) < least else None
    return None


def _first_two_numbers(version: str) -> tuple[int, int]:
    """Return the first two numbers of a version; (0, 0) if it does not begin with two numbers."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _offers_criu(facts: HostFacts) -> bool:
    """Tell whether the package sources have CRIU. True if that is unknown."""
    with suppress(MissingFact):
        state = facts.find(AptPackages, {"packages": CRIU})
        try:
            return state is None or state.installed is not False or state.to_add is not None
        except MissingFact as missing:
            return not isinstance(missing.missing, Unavailable)
    return True


_BRANCH = re.compile(r"nvidia-headless-no-dkms-(\d+(?:-server)?)")


def video_packages(facts: HostFacts) -> str:
    """Return the key of AptPackages for video: FFmpeg and the driver's video libraries.

    Ubuntu's server driver lacks these libraries. NVIDIA's installer includes them, and WSL uses those of Windows.
    """
    names = ["ffmpeg"]
    if facts.is_linux:
        with suppress(MissingFact, UsageError):
            choice = select_driver(facts)
            found = _BRANCH.search(choice.packages) if choice else None
            names += [f"libnvidia-{what}-{found[1]}" for what in ("decode", "encode")] if found else []
    return " ".join(sorted(names))
