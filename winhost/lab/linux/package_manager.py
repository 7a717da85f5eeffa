"""Packages of a simulated Linux, where they come from, and apt's and dpkg's programs.

Sources: apt-get(8), apt-cache(8), apt-mark(8), dpkg-query(1), and the packages of Docker and NVIDIA.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field

from packaging.version import Version

from winhost.core.dataclass import dataclass
from winhost.lab.linux.disk import Disk
from winhost.lab.linux.gpu_driver import FABRIC_MANAGER, FABRIC_UNIT, GpuDriver
from winhost.lab.linux.linux_errors import program_failed
from winhost.lab.linux.systemd_units import SSH, Systemd, Unit
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.wsl_session import Distro

DOCKER_SOURCE, TOOLKIT_SOURCE = "winhost-docker", "winhost-nvidia-container-toolkit"
SSHD = "openssh-server"
NVIDIA_CTK = "nvidia-container-toolkit-base"  # brings nvidia-ctk
_VERSION = "1.0-1"  # of what comes along, where nobody asked for a version
_IN_UBUNTU = {"docker.io": "28.2.2-0ubuntu1~24.04.1", "podman": "4.9.3+ds1-1ubuntu0.2"}
_SINCE = {"criu": "25.10"}  # releases of Ubuntu
_FROM = {"docker-ce": DOCKER_SOURCE, "nvidia-container-toolkit": TOOLKIT_SOURCE}
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
    """auto: it came for the sake of another."""

    version: str
    held: bool = False
    auto: bool = False


@dataclass
class Apt:
    """driver: NVIDIA's own, where the machine has one."""

    machine: Machine
    distro: Distro
    systemd: Systemd
    driver: GpuDriver | None
    disk: Disk
    sleep: Callable[[float], None]
    packages: dict[str, LabPackage] = field(default_factory=dict)

    @property
    def installed(self) -> dict[str, LabPackage]:
        """The way in brings sshd, whoever asked for it."""
        return {SSHD: LabPackage(_VERSION), **self.packages} if self.distro.sshd else self.packages

    @property
    def generates(self) -> bool:
        """nvidia-ctk is there."""
        return NVIDIA_CTK in self.packages

    def version(self, name: str) -> str:
        """Return the version that apt would install; empty where no source has it."""
        if Version(self._release) < Version(_SINCE.get(name, self._release)):
            return ""
        of_the_driver = self.driver.candidate(name) if self.driver else None
        return _IN_UBUNTU.get(name, _VERSION) if of_the_driver is None else of_the_driver

    def offered(self, name: str) -> str:
        """The same, where its source is there."""
        source = next((source for prefix, source in _FROM.items() if name.startswith(prefix)), None)
        there = source is None or self.disk.node(f"/etc/apt/sources.list.d/{source}.sources") is not None
        return self.version(name) if there else ""

    @property
    def _release(self) -> str:
        given = self.machine.instances("LinuxSystem")
        return str(given[0].state["version"]) if given else "24.04"

    def needs(self, name: str) -> tuple[str, ...]:
        return (*_NEEDS.get(name, ()), *(self.driver.needs(name) if self.driver else ()))

    def check_repositories(self) -> None:
        """Raises CmdletError."""
        image = self.machine.lab.wsl.images.get(self.distro.image or "")
        if image is not None and not image.packages:
            raise program_failed("apt-get", "E: Failed to fetch: Could not resolve host", 100)

    # ---- what is done at once

    def coming(self, asked: Mapping[str, str]) -> dict[str, str]:
        """Versions of what would be installed or changed, with all that it needs."""
        found: dict[str, str] = {}
        for name, version in asked.items():
            there = self.installed.get(name)
            if there is None or version not in ("", there.version):
                found[name] = version or self.version(name)
                found |= self.coming(dict.fromkeys(self.needs(name), ""))
        return found | {name: version for name, version in asked.items() if version and name in found}

    def going(self, names: Collection[str]) -> list[str]:
        """List packages to remove, with those that need them."""
        gone = {name for name in names if name in self.installed}
        while more := {name for name in self.installed if gone & {*self.needs(name)}} - gone:
            gone |= more
        return sorted(gone)

    def idle(self) -> list[str]:
        """List packages that came for the sake of others which are gone."""
        needed = {each for name, found in self.packages.items() if not found.auto for each in self._with_needs(name)}
        return sorted(name for name, found in self.packages.items() if found.auto and name not in needed)

    def _with_needs(self, name: str) -> Iterator[str]:
        for each in self.needs(name):
            yield each
            yield from self._with_needs(each)

    def install(self, name: str, version: str, *, auto: bool) -> None:
        """And what it brings is enabled and started, as Debian does."""
        found = self.packages.get(name)
        self.packages[name] = LabPackage(version, found is not None and found.held, found.auto if found else auto)
        for unit in _BRINGS_UNITS.get(name, ()):
            off = name in _LEFT_OFF
            self.systemd.units.setdefault(unit, Unit("disabled") if off else Unit("enabled", active=True))

    def remove(self, name: str) -> None:
        self.packages.pop(name, None)
        for unit in _BRINGS_UNITS.get(name, ()):
            self.systemd.units.pop(unit, None)


# ---- programs


def _words(words: Sequence[str]) -> list[str]:
    return [word for word in words if not word.startswith("-")]


def _apt_get(apt: Apt, words: Sequence[str]) -> str:
    verb, *names = _words(words)
    if verb == "update":
        apt.check_repositories()
        apt.sleep(_UPDATE_SECONDS)
        return ""
    asked = {each.partition("=")[0]: each.partition("=")[2] for each in names if not each.endswith("-")}
    coming = apt.coming(asked) if verb == "install" else {}
    leaving = [each[:-1] for each in names if each.endswith("-")] if verb == "install" else names
    going = apt.idle() if verb == "autoremove" else apt.going(leaving)
    if "--simulate" in words:
        return "".join([*(_inst(apt, *each) for each in coming.items()), *(_purg(apt, name) for name in going)])
    if coming:
        apt.check_repositories()
    apt.sleep(_APT_SECONDS)
    for name in going:
        apt.remove(name)
    for name, version in coming.items():
        apt.install(name, version, auto=name not in asked)
    return ""


def _inst(apt: Apt, name: str, version: str) -> str:
    found = apt.installed.get(name)
    return f"Inst {name} {f'[{found.version}] ' if found else ''}({version} Ubuntu:24.04 [amd64])\n"


def _purg(apt: Apt, name: str) -> str:
    return f"Purg {name} [{apt.installed[name].version}]\n"


def _apt_cache(apt: Apt, words: Sequence[str]) -> str:
    verb, *names = _words(words)
    if verb == "policy":
        return "".join(_policy(apt, name) for name in names)
    name, _, version = names[0].partition("=")
    if not apt.offered(name):
        return ""
    # What is called like a package comes in its version.
    needs = (f"{each} (= {version})" if each.startswith(name) else each for each in apt.needs(name))
    return f"Package: {name}\nVersion: {version}\nDepends: {', '.join(needs)}\n"


def _policy(apt: Apt, name: str) -> str:
    found = apt.installed.get(name)
    lines = (f"{name}:", f"  Installed: {found.version if found else '(none)'}", "  Candidate: ")
    return "\n".join(lines) + f"{apt.offered(name) or '(none)'}\n"


def _apt_mark(apt: Apt, words: Sequence[str]) -> str:
    verb, *names = words
    if verb == "showauto":
        return "".join(f"{name}\n" for name, found in apt.installed.items() if found.auto)
    for name in names:
        if name not in apt.installed:
            raise program_failed("apt-mark", f"E: No packages found: {name}", 100)
        found = apt.packages.setdefault(name, apt.installed[name])
        if verb == "auto":
            found.auto = True
        else:
            found.held = verb == "hold"
    return ""


def _dpkg_query(apt: Apt, words: Sequence[str]) -> str:
    """Each by name, or all of them: two letters of its state, and then what was asked for."""
    names = _words(words)
    if names and names[0] not in apt.installed:
        raise program_failed("dpkg-query", f"dpkg-query: no packages found matching {names[0]}")
    whole = any("Depends" in word for word in words)
    lines = []
    for name, found in sorted(apt.installed.items()):
        tab = "\t" if whole else ""
        rest = f"\t{found.version}\t, {', '.join(apt.needs(name))}" if whole else ""
        lines.append(f"{'h' if found.held else 'i'}i {tab}{name}{rest}\n")
    return "".join(lines)


def _dpkg(apt: Apt, words: Sequence[str]) -> str:
    """Nothing was broken off."""
    return ""


PACKAGE_PROGRAMS: Mapping[str, Callable[[Apt, Sequence[str]], str]] = {
    "apt-cache": _apt_cache,
    "apt-get": _apt_get,
    "apt-mark": _apt_mark,
    "dpkg": _dpkg,
    "dpkg-query": _dpkg_query,
}
