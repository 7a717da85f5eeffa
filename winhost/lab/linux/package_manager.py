"""Packages of a simulated Linux, where they come from, and what apt makes of a wish. Source: apt-get(8)."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import field

from packaging.version import Version

from winhost.core.answers import Json
from winhost.core.dataclass import dataclass
from winhost.lab.linux.gpu_driver import FABRIC_MANAGER, FABRIC_UNIT, GpuDriver
from winhost.lab.linux.linux_errors import program_failed, refused
from winhost.lab.linux.systemd_units import SSH, Systemd, Unit
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.windows_errors import NotYet
from winhost.lab.physics.wsl_session import Distro

SOURCES = ("winhost-docker", "winhost-nvidia-container-toolkit")
NO_SOURCE: Mapping[str, Json] = {
    "present": False,
    "uri": None,
    "suite": None,
    "components": [],
    "key": None,
    "key_sha256": None,
}
SSHD = "openssh-server"
NVIDIA_CTK = "nvidia-container-toolkit-base"  # brings nvidia-ctk
_VERSION = "1.0-1"  # of what comes along, where nobody asked for a version
_IN_UBUNTU = {"docker.io": "28.2.2-0ubuntu1~24.04.1", "podman": "4.9.3+ds1-1ubuntu0.2"}
_SINCE = {"criu": "25.10"}  # releases of Ubuntu
_FROM = {"docker-ce": SOURCES[0], "nvidia-container-toolkit": SOURCES[1]}
_NEEDS = {
    "docker-ce": ("docker-ce-cli", "containerd.io"),
    "nvidia-container-toolkit": ("nvidia-container-toolkit-base", "libnvidia-container-tools"),
    "libnvidia-container-tools": ("libnvidia-container1",),
}
_BRINGS_UNITS = {
    "docker-ce": ("docker.service",),
    "docker.io": ("docker.service",),
    "containerd.io": ("containerd.service",),
    SSHD: (SSH, "ssh.socket"),
    FABRIC_MANAGER: (FABRIC_UNIT,),
}
_LEFT_OFF = (FABRIC_MANAGER,)  # its package does not enable what it brings
_APT_SECONDS, _UPDATE_SECONDS = 20.0, 5.0


@dataclass
class LabPackage:
    """brought: what came for its sake; None where winhost did not install it."""

    version: str
    held: bool = False
    brought: tuple[str, ...] | None = None


def asked_of(wanted: str) -> dict[str, str]:
    """The packages of a key, and the version that each shall have."""
    return {word.partition("=")[0]: word.partition("=")[2] for word in wanted.split(" ")}


def _set_name(asked: Mapping[str, str]) -> str:
    return " ".join(f"{name}={version}" if version else name for name, version in asked.items())


@dataclass
class Apt:
    """driver: NVIDIA's own, where the machine has one."""

    machine: Machine
    distro: Distro
    systemd: Systemd
    driver: GpuDriver | None
    packages: dict[str, LabPackage] = field(default_factory=dict)
    sources: dict[str, dict[str, Json]] = field(default_factory=dict)
    brought: dict[str, dict[str, str | None]] = field(default_factory=dict)
    """What a set of packages brought, and the versions that were there before."""

    def package(self, name: str) -> dict[str, Json]:
        found = self._installed().get(name)
        needed_by = sorted(other for other in self._installed() if name in self._needs(other))
        return {"version": found and found.version, "held": bool(found and found.held), "needed_by": needed_by}

    def _installed(self) -> dict[str, LabPackage]:
        """The way in brings sshd, whoever asked for it."""
        sshd = {SSHD: LabPackage(_VERSION)} if self.distro.sshd and SSHD not in self.packages else {}
        return {**self.packages, **sshd}

    @property
    def generates(self) -> bool:
        """nvidia-ctk is there."""
        return NVIDIA_CTK in self.packages

    def hold(self, name: str, *, held: bool) -> None:
        """apt-mark."""
        if name in self._installed():
            self.packages.setdefault(name, self._installed()[name]).held = held
        elif held:
            raise program_failed("apt-mark", f"E: No packages found: {name}", 100)

    def install(self, name: str, version: str) -> None:
        """Exactly this version. Raises CmdletError."""
        found = self._installed().get(name)
        if found and found.held:
            raise refused("WrongPlace", "InvalidOperation", f"{name} is held at {found.version}.")
        self._check_source(name, version)
        self.machine.clock.sleep(_APT_SECONDS)
        if found:
            self.packages[name] = LabPackage(version, found.held, found.brought)
            return
        brought = [each for each in self._with_needs(name) if each not in self._installed()]
        self.packages |= {
            each: LabPackage(version if each.startswith(name) else self.version(each)) for each in brought
        }
        self.packages[name] = LabPackage(version, brought=tuple(brought))
        for unit in (unit for each in (*brought, name) for unit in _BRINGS_UNITS.get(each, ())):
            # A package of Debian enables and starts what it brings.
            self.systemd.units[unit] = Unit("enabled", active=True)

    def _check_source(self, name: str, version: str) -> None:
        source = next((source for prefix, source in _FROM.items() if name.startswith(prefix)), None)
        if source is not None and source not in self.sources:
            message = f"No source has {name} {version}."
            raise refused("NoSuchVersion", "ObjectNotFound", message, "apt-cache")
        self._check_repositories()

    def _check_repositories(self) -> None:
        image = self.machine.lab.wsl.images.get(self.distro.image or "")
        if image is not None and not image.packages:
            raise program_failed("apt-get", "E: Failed to fetch: Could not resolve host", 100)

    def purge(self, name: str) -> None:
        """Only what winhost installed, with what came along. Raises CmdletError."""
        found = self._installed()[name]
        if found.brought is None:
            raise refused("NotOurs", "PermissionDenied", f"{name} was not installed by winhost; it stays.")
        going = {name, *found.brought}
        others = sorted({other for each in going for other in self.package(each)["needed_by"]} - going)
        if others:
            raise refused("InUse", "ResourceBusy", f"Needed by {', '.join(others)}.", "apt-get")
        self.machine.clock.sleep(_APT_SECONDS)
        for each in going:
            self.packages.pop(each, None)
            for unit in _BRINGS_UNITS.get(each, ()):
                self.systemd.units.pop(unit, None)

    # ---- sets of packages

    def package_set(self, asked: Mapping[str, str]) -> dict[str, Json]:
        """As apt's simulation says. Raises NotYet where no source has one of them."""
        found = self._installed()
        coming = {} if self._has(asked) else self._coming(asked)
        changed = {name: f"{name} {found[name].version} -> {new}" for name, new in coming.items() if name in found}
        ours = self._ours()
        brought = self.brought.get(_set_name(asked), {})
        needing = (other for other in found if brought.keys() & {*self._needs(other)})
        return {
            "installed": self._has(asked),
            "held": all(name in found and found[name].held for name in asked),
            "to_add": sorted(f"{name} {new}" for name, new in coming.items() if name not in found),
            "to_change": sorted(text for name, text in changed.items() if name in ours),
            "to_change_foreign": sorted(text for name, text in changed.items() if name not in ours),
            "to_remove": [],
            "needed_by": sorted(other for other in needing if other not in brought),
            "restart_due": self._awaits_restart(asked),
        }

    def _awaits_restart(self, asked: Mapping[str, str]) -> bool:
        driver = self.driver
        return driver is not None and _set_name(asked) in driver.sets and driver.awaits_restart

    def version(self, name: str) -> str:
        """What apt would install; nothing where no source has it."""
        if Version(self._release) < Version(_SINCE.get(name, self._release)):
            return ""
        of_the_driver = self.driver.candidate(name) if self.driver else None
        return _IN_UBUNTU.get(name, _VERSION) if of_the_driver is None else of_the_driver

    @property
    def _release(self) -> str:
        given = self.machine.instances("LinuxSystem")
        return str(given[0].state["version"]) if given else "24.04"

    def _needs(self, name: str) -> tuple[str, ...]:
        return (*_NEEDS.get(name, ()), *(self.driver.needs(name) if self.driver else ()))

    def _with_needs(self, name: str) -> Iterator[str]:
        for each in self._needs(name):
            yield each
            yield from self._with_needs(each)

    def _has(self, asked: Mapping[str, str]) -> bool:
        found = self._installed()
        return all(name in found and version in ("", found[name].version) for name, version in asked.items())

    def _coming(self, asked: Mapping[str, str]) -> dict[str, str]:
        found = self._installed()
        for name in asked:
            source = next((source for prefix, source in _FROM.items() if name.startswith(prefix)), None)
            if (source is not None and source not in self.sources) or not self.version(name):
                raise NotYet("AptSource")
        needs = {each: self.version(each) for name in asked for each in self._with_needs(name) if each not in found}
        new = {name: version or self.version(name) for name, version in asked.items() if name not in found or version}
        return {**needs, **new}

    def _ours(self) -> set[str]:
        singly = {
            each
            for name, found in self.packages.items()
            for each in (*(found.brought or ()), name)
            if found.brought is not None
        }
        return singly.union(*self.brought.values())

    def install_set(self, asked: Mapping[str, str], accepted: Collection[str]) -> None:
        """In one transaction, with these consents. Raises CmdletError."""
        state, found = self.package_set(asked), self._installed()
        if state["to_change_foreign"] and "packages" not in accepted:
            raise refused("ChangesForeign", "ResourceExists", "It would change packages of others.", "apt-get")
        self._check_repositories()
        self.machine.clock.sleep(_APT_SECONDS)
        coming = self._coming(asked)
        before = {name: found[name].version if name in found else None for name in coming}
        self.brought[_set_name(asked)] = {**before, **self.brought.get(_set_name(asked), {})}
        for name, version in coming.items():
            self.packages[name] = LabPackage(version, name in found and found[name].held)
            for unit in _BRINGS_UNITS.get(name, ()):
                off = name in _LEFT_OFF
                self.systemd.units.setdefault(unit, Unit("disabled") if off else Unit("enabled", active=True))

    def take_set_back(self, asked: Mapping[str, str]) -> None:
        """Raises CmdletError."""
        brought = self.brought.get(_set_name(asked))
        if not brought:
            raise refused("NotOurs", "PermissionDenied", "winhost did not install these packages; they stay.")
        others = self.package_set(asked)["needed_by"]
        if others:
            raise refused("InUse", "ResourceBusy", f"It would take along {', '.join(others)}.", "apt-get")
        self.machine.clock.sleep(_APT_SECONDS)
        for name, version in brought.items():
            if version is not None:
                self.packages[name].version = version
                continue
            self.packages.pop(name, None)
            for unit in _BRINGS_UNITS.get(name, ()):
                self.systemd.units.pop(unit, None)
        del self.brought[_set_name(asked)]

    # ---- where packages come from

    def source(self, name: str) -> dict[str, Json]:
        return dict(self.sources.get(name, NO_SOURCE))

    def write_source(self, name: str, after: dict[str, Json]) -> None:
        """And apt reads it. Raises CmdletError; then it is as before."""
        if not after["present"]:
            self.sources.pop(name, None)
            return
        self._check_repositories()
        self.machine.clock.sleep(_UPDATE_SECONDS)
        self.sources[name] = {**after, "components": list(after["components"])}
