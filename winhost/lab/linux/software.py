"""Units, NVIDIA's driver and packages of a simulated Linux, and the programs apt and dpkg.

Sources: apt-get(8), apt-cache(8), apt-mark(8), dpkg-query(1), systemctl(1), the packages of Ubuntu, Docker and NVIDIA.
A driver is loaded by the next start, as where nouveau runs or another version does.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from hashlib import sha256
from typing import Any

from packaging.version import Version

from winhost.core.answers import Json, Record
from winhost.core.dataclass import dataclass
from winhost.lab.linux.disk import Disk
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.windows_errors import CmdletError
from winhost.lab.physics.wsl_exe import Distro


def program_failed(program: str, message: str, code: int = 1) -> CmdletError:
    """Return the error of a program that failed."""
    return CmdletError(program, "InvalidResult", "Winhost.ProgramFailed", (f"exit {code}",), message)


SSH = "ssh.service"
CDI = "winhost-cdi.service"


@dataclass
class Unit:
    enabled: str
    active: bool = False
    failed: bool = False


@dataclass
class Systemd:
    """The units. read_texts: returns the texts of unit files outside of packages; generate: makes the CDI
    specification, as its unit does, and returns whether it could.
    """

    distro: Distro
    read_texts: Callable[[], Mapping[str, str]]
    generate: Callable[[], bool]
    units: dict[str, Unit] = field(
        default_factory=lambda: {
            "systemd-networkd.service": Unit("disabled"),
            "systemd-networkd-wait-online.service": Unit("disabled"),
            "systemd-resolved.service": Unit("enabled", active=True),
        }
    )
    written_units: dict[str, Unit] = field(default_factory=dict)
    """Units of files that belong to no package."""

    def reload(self) -> None:
        """Remove units whose files were removed."""
        texts = self.read_texts()
        for name in [name for name in self.written_units if name not in texts]:
            del self.written_units[name]

    def loaded(self) -> list[str]:
        """Return the names of all units: of packages, and of other files."""
        return sorted({*self.units, *self.read_texts(), *([SSH] if self.distro.sshd else [])})

    def find(self, name: str) -> Unit:
        """Return a loaded unit."""
        if name in self.units:
            return self.units[name]
        installs = "[Install]" in self.read_texts().get(name, "")
        return self.written_units.setdefault(name, Unit("disabled" if installs else "static"))

    def state(self, name: str) -> dict[str, Json]:
        if name not in self.loaded():
            waits = {"unavailable": "LinuxFile" if name.startswith("winhost-") else "DebianPackage"}
            return {"loaded": False, "enabled": waits, "active": waits, "failed": False}
        unit = self.find(name)
        if name == SSH:
            enabled = "enabled" if self.distro.enabled else "disabled"
            return {"loaded": True, "enabled": enabled, "active": self.distro.is_listening, "failed": False}
        masked = unit.enabled == "masked"
        return {"loaded": not masked, "enabled": unit.enabled, "active": unit.active, "failed": unit.failed}

    def is_active(self, name: str) -> bool:
        return self.state(name)["active"] is True

    def enable(self, name: str, desired: str) -> None:
        """systemctl enable, disable, mask or unmask. desired: enabled, disabled or masked."""
        if name == SSH:
            self.distro.enabled = desired == "enabled"
            return
        unit = self.find(name)
        if unit.enabled == "masked" and desired != "masked":
            unit.enabled = "disabled"
        if desired == "masked" or (desired in ("enabled", "disabled") and unit.enabled != "static"):
            unit.enabled = desired

    def start(self, name: str) -> None:
        """Start a unit. Raises CmdletError."""
        if not self.state(name)["loaded"]:
            raise program_failed("systemctl", f"Failed to start {name}: Unit {name} not found.", 5)
        if name == SSH:
            self.distro.enabled = True
            return
        if name != CDI or self.generate():  # an unmet condition of a unit is no failure
            self.find(name).active = True

    def stop(self, name: str) -> None:
        """Stop a unit. Raises CmdletError."""
        if not self.state(name)["loaded"]:
            raise program_failed("systemctl", f"Failed to stop {name}: Unit {name} not loaded.", 5)
        if name == SSH:
            self.distro.enabled = False
        self.find(name).active = False

    def restart_all(self) -> None:
        """Start the enabled units, as a start of the machine does."""
        for name in self.loaded():
            unit = self.find(name)
            unit.active, unit.failed = False, False
            if unit.enabled == "enabled":
                with suppress(CmdletError):
                    self.start(name)


_MODULES = "linux-modules-nvidia-"
_BRANCH = "580-server"
_DRIVER_VERSION = "580.173.02"
FABRIC_MANAGER, FABRIC_UNIT = "nvidia-fabricmanager-580", "nvidia-fabricmanager.service"
_DRIVER_DEPENDENCIES = {
    "nvidia-headless-no-dkms": ("libnvidia-compute", "nvidia-compute-utils", "nvidia-kernel-common"),
    "nvidia-utils": ("libnvidia-compute",),
    FABRIC_MANAGER: ("nvidia-kernel-common",),
}
_DRIVER_PACKAGE = re.compile(rf"(?P<what>[a-z-]+)-{_BRANCH}(?P<open>-open)?(?P<flavour>-[a-z0-9.-]+)?")
_NOTHING: Mapping[str, Json] = dict.fromkeys(("loaded", "kind", "installed", "signer"))


class GpuDriver:
    """NVIDIA's driver. broken: it does not load, as with an untrusted signer; lost_gpus: addresses of GPUs that fell
    off the bus; multiverse: that archive of Ubuntu is among the sources.
    """

    def __init__(self, machine: Machine, packages: Callable[[], Mapping[str, str]]) -> None:
        """packages: returns the installed packages with their versions."""
        self._machine, self._packages = machine, packages
        recorded = machine.instances("LinuxGpuDriver")
        state = recorded[0].state if recorded else {}
        self._recorded: dict[str, Any] = {"packages": [], "libraries": [], "wsl_libcuda": False, **_NOTHING, **state}
        self.loaded: str | None = self._recorded["loaded"]
        self.kind: str | None = self._recorded["kind"]
        self.broken, self.multiverse = False, True
        self.lost_gpus: set[str] = set()

    def candidate(self, name: str) -> str | None:
        """Return a driver package's version in Ubuntu's archives; "" if this Linux has no such archive. None for other
        packages.
        """
        if name != FABRIC_MANAGER and _DRIVER_PACKAGE.fullmatch(name) is None:
            return None
        system = self._machine.instances("LinuxSystem")[0].state
        is_offered = system["id"] == "ubuntu" and (name != FABRIC_MANAGER or self.multiverse)
        return f"{_DRIVER_VERSION}-0ubuntu0.24.04.1" if is_offered else ""

    def dependencies(self, name: str) -> Iterator[str]:
        match = _DRIVER_PACKAGE.fullmatch(name)
        for each in _DRIVER_DEPENDENCIES.get(match["what"] if match else name, ()):
            yield f"{each}-{_BRANCH}"

    def _modules(self) -> str | None:
        return next((name for name in self._packages() if name.startswith(_MODULES)), None)

    @property
    def installed(self) -> str | None:
        """The version of the kernel module on disk: of the package, or of another installation."""
        name = self._modules()
        if name is not None:
            return self._packages()[name].partition("-")[0]
        return None if self._recorded["packages"] else self._recorded["installed"]

    def start(self) -> None:
        """Load the driver on disk, as a start of the machine does."""
        self.loaded = None if self.broken else self.installed
        modules = self._modules()
        kind = ("open" if "-open-" in modules else "proprietary") if modules else self._recorded["kind"]
        self.kind = kind if self.loaded else None

    def state(self, packages: list[str]) -> Mapping[str, Json]:
        signer = "Canonical Ltd. Kernel Module Signing" if self._modules() else self._recorded["signer"]
        on_disk = {"signer": signer, "libraries": self._recorded["libraries"]} if self.installed else {"signer": None}
        state = {"loaded": self.loaded, "kind": self.kind, "installed": self.installed, "packages": packages}
        return {**self._recorded, "libraries": [], **on_disk, **state}

    def gpus(self) -> Iterator[Record]:
        """Yield the GPUs. The values of nvidia-smi are only known while the driver runs."""
        for record in self._machine.instances("LinuxGpu"):
            yield Record({**record.state, **self._driver_values(record)}, record.key)

    def _driver_values(self, record: Record) -> Mapping[str, Json]:
        state, address = record.state, record.key["address"]
        if self.loaded is None:
            other = state["driver"] if state["driver"] != "nvidia" else "nouveau"
            return {"driver": other, "name": None, "uuid": None, "vram": None}
        if address in self.lost_gpus:
            return {"driver": "nvidia", "name": None, "uuid": None, "vram": None}
        digest = sha256(address.encode()).hexdigest()
        uuid = "-".join(("GPU", digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:32]))
        vram = max((bar["size"] for bar in state["bars"]), default=None)
        values = {"name": "NVIDIA Graphics Device", "uuid": uuid, "vram": vram}
        recorded = {name: state[name] for name in values if state[name] is not None}
        return {"driver": "nvidia", **values, **recorded}


DOCKER_SOURCE, TOOLKIT_SOURCE = "winhost-docker", "winhost-nvidia-container-toolkit"
SSHD = "openssh-server"
NVIDIA_CTK = "nvidia-container-toolkit-base"  # brings nvidia-ctk
_DEFAULT_VERSION = "1.0-1"  # of packages that are installed without a version
_UBUNTU_VERSIONS = {"docker.io": "28.2.2-0ubuntu1~24.04.1", "podman": "4.9.3+ds1-1ubuntu0.2"}
_FIRST_RELEASE = {"criu": "25.10"}  # releases of Ubuntu
_SOURCES = {"docker-ce": DOCKER_SOURCE, "nvidia-container-toolkit": TOOLKIT_SOURCE}
_DEPENDENCIES = {
    "docker-ce": ("docker-ce-cli", "containerd.io"),
    "nvidia-container-toolkit": ("nvidia-container-toolkit-base", "libnvidia-container-tools"),
    "libnvidia-container-tools": ("libnvidia-container1",),
}
_PACKAGE_UNITS = {
    "docker-ce": ("docker.service",),
    "docker.io": ("docker.service",),
    "containerd.io": ("containerd.service",),
    SSHD: (SSH, "ssh.socket"),
    FABRIC_MANAGER: (FABRIC_UNIT,),
}
_DISABLED_PACKAGES = (FABRIC_MANAGER,)  # its package does not enable its unit
_APT_SECONDS, _UPDATE_SECONDS = 20.0, 5.0


@dataclass
class LabPackage:
    """An installed package. auto: it was installed as a dependency."""

    version: str
    held: bool = False
    auto: bool = False


@dataclass
class Apt:
    """The packages. driver: NVIDIA's driver; None in a distro, which uses that of Windows."""

    machine: Machine
    distro: Distro
    systemd: Systemd
    driver: GpuDriver | None
    disk: Disk
    sleep: Callable[[float], None]
    packages: dict[str, LabPackage] = field(default_factory=dict)

    @property
    def installed(self) -> dict[str, LabPackage]:
        """All packages, with sshd, which SSH access installs."""
        return {SSHD: LabPackage(_DEFAULT_VERSION), **self.packages} if self.distro.sshd else self.packages

    def version(self, name: str) -> str:
        """Return the version of a package, or "" if this release has none."""
        if Version(self._release) < Version(_FIRST_RELEASE.get(name, self._release)):
            return ""
        driver_version = self.driver.candidate(name) if self.driver else None
        return _UBUNTU_VERSIONS.get(name, _DEFAULT_VERSION) if driver_version is None else driver_version

    def candidate(self, name: str) -> str:
        """Return the version that apt can install, or "" if its source is missing."""
        source = next((source for prefix, source in _SOURCES.items() if name.startswith(prefix)), None)
        has_source = source is None or self.disk.node(f"/etc/apt/sources.list.d/{source}.sources") is not None
        return self.version(name) if has_source else ""

    @property
    def _release(self) -> str:
        system = self.machine.instances("LinuxSystem")
        return str(system[0].state["version"]) if system else "24.04"

    def dependencies(self, name: str) -> tuple[str, ...]:
        return (*_DEPENDENCIES.get(name, ()), *(self.driver.dependencies(name) if self.driver else ()))

    # ---- changes

    def plan_install(self, requested: Mapping[str, str]) -> dict[str, str]:
        """Return the packages to install or change, with their dependencies and versions."""
        versions: dict[str, str] = {}
        for name, version in requested.items():
            installed = self.installed.get(name)
            if installed is None or version not in ("", installed.version):
                versions[name] = version or self.version(name)
                versions |= self.plan_install(dict.fromkeys(self.dependencies(name), ""))
        return versions | {name: version for name, version in requested.items() if version and name in versions}

    def plan_removal(self, names: Collection[str]) -> list[str]:
        """Return the packages to remove, with those that depend on them."""
        removed = {name for name in names if name in self.installed}
        while more := {name for name in self.installed if removed & {*self.dependencies(name)}} - removed:
            removed |= more
        return sorted(removed)

    def unneeded(self) -> list[str]:
        """Return the packages that were installed as dependencies and are no longer needed."""
        needed = {
            each for name, package in self.packages.items() if not package.auto for each in self._all_dependencies(name)
        }
        return sorted(name for name, package in self.packages.items() if package.auto and name not in needed)

    def _all_dependencies(self, name: str) -> Iterator[str]:
        for each in self.dependencies(name):
            yield each
            yield from self._all_dependencies(each)

    def install(self, name: str, version: str, *, auto: bool) -> None:
        """Install a package, and enable and start its units, as Debian does."""
        package = self.packages.get(name)
        self.packages[name] = LabPackage(
            version, package is not None and package.held, package.auto if package else auto
        )
        for unit in _PACKAGE_UNITS.get(name, ()):
            is_disabled = name in _DISABLED_PACKAGES
            self.systemd.units.setdefault(unit, Unit("disabled") if is_disabled else Unit("enabled", active=True))

    def remove(self, name: str) -> None:
        self.packages.pop(name, None)
        for unit in _PACKAGE_UNITS.get(name, ()):
            self.systemd.units.pop(unit, None)


# ---- programs


def _operands(arguments: Sequence[str]) -> list[str]:
    return [word for word in arguments if not word.startswith("-")]


def _apt_get(apt: Apt, arguments: Sequence[str]) -> str:
    verb, *names = _operands(arguments)
    if verb == "update":
        apt.sleep(_UPDATE_SECONDS)
        return ""
    requested = {each.partition("=")[0]: each.partition("=")[2] for each in names if not each.endswith("-")}
    installs = apt.plan_install(requested) if verb == "install" else {}
    removed = [each[:-1] for each in names if each.endswith("-")] if verb == "install" else names
    removals = apt.unneeded() if verb == "autoremove" else apt.plan_removal(removed)
    if "--simulate" in arguments:
        present = {name: f"[{package.version}] " for name, package in apt.installed.items()}
        lines = [
            f"Inst {name} {present.get(name, '')}({version} Ubuntu:24.04 [amd64])\n"
            for name, version in installs.items()
        ]
        return "".join([*lines, *(f"Purg {name} {present[name].rstrip()}\n" for name in removals)])
    apt.sleep(_APT_SECONDS)
    for name in removals:
        apt.remove(name)
    for name, version in installs.items():
        apt.install(name, version, auto=name not in requested)
    return ""


def _apt_cache(apt: Apt, arguments: Sequence[str]) -> str:
    verb, *names = _operands(arguments)
    if verb == "policy":
        text = ""
        for each in names:
            package = apt.installed.get(each)
            text += f"{each}:\n  Installed: {package.version if package else '(none)'}\n"
            text += f"  Candidate: {apt.candidate(each) or '(none)'}\n"
        return text
    name, _, version = names[0].partition("=")
    if not apt.candidate(name):
        return ""
    # Packages with the same prefix have the same version.
    depends = (f"{each} (= {version})" if each.startswith(name) else each for each in apt.dependencies(name))
    return f"Package: {name}\nVersion: {version}\nDepends: {', '.join(depends)}\n"


def _apt_mark(apt: Apt, arguments: Sequence[str]) -> str:
    verb, *names = arguments
    if verb == "showauto":
        return "".join(f"{name}\n" for name, package in apt.installed.items() if package.auto)
    for name in names:
        package = apt.packages.setdefault(name, apt.installed[name])
        if verb == "auto":
            package.auto = True
        else:
            package.held = verb == "hold"
    return ""


def _dpkg_query(apt: Apt, arguments: Sequence[str]) -> str:
    """List one package, or all: two letters of its state, and then the requested fields."""
    names = _operands(arguments)
    if names and names[0] not in apt.installed:
        raise program_failed("dpkg-query", f"dpkg-query: no packages found matching {names[0]}")
    with_dependencies = any("Depends" in word for word in arguments)
    lines = []
    for name, package in sorted(apt.installed.items()):
        text = f"\t{name}\t{package.version}\t, {', '.join(apt.dependencies(name))}" if with_dependencies else name
        lines.append(f"{'h' if package.held else 'i'}i {text}\n")
    return "".join(lines)


PACKAGE_PROGRAMS: Mapping[str, Callable[[Apt, Sequence[str]], str]] = {
    "apt-cache": _apt_cache,
    "apt-get": _apt_get,
    "apt-mark": _apt_mark,
    "dpkg": lambda apt, arguments: "",  # no installation was interrupted
    "dpkg-query": _dpkg_query,
}
