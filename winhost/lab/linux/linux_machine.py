"""The Linux in a distro of a simulated host: what its resources tell, and what programs make of it when they are asked.

Sources: systemd's and apt's manual pages, the NVIDIA container toolkit's documentation of CDI, microsoft/WSL.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TypeVar
from uuid import UUID

from winhost.core.answers import Json, Key, Record
from winhost.lab.linux.gpu_driver import GpuDriver
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.windows_errors import CmdletError, NotYet
from winhost.lab.physics.wsl_session import Distro, UtilityVm
from winhost.model.units import GiB

State = dict[str, Json]
P = TypeVar("P")

# What is told without being asked for by name: the same as the scripts say.
FILES = (
    "/etc/apt/apt.conf.d/52winhost",
    "/etc/cloud/cloud-init.disabled",
    "/etc/docker/daemon.json",
    "/etc/resolv.conf",
    "/etc/wsl.conf",
    "/etc/ssh/sshd_config.d/10-winhost.conf",
    "/etc/systemd/network/10-winhost.network",
    "/etc/systemd/system/ssh.service.d/winhost.conf",
    "/etc/systemd/system/winhost-cdi.path",
    "/etc/systemd/system/winhost-cdi.service",
)
SOURCES = ("winhost-docker", "winhost-nvidia-container-toolkit")
PACKAGES = (
    "containerd.io",
    "docker-ce",
    "docker-ce-cli",
    "docker.io",
    "libnvidia-container-tools",
    "libnvidia-container1",
    "nvidia-container-toolkit",
    "nvidia-container-toolkit-base",
    "openssh-server",
)
PACKAGE_SETS = ("containerd.io docker-ce docker-ce-cli", "docker.io", "nvidia-container-toolkit", "podman")
UNITS = (
    "containerd.service",
    "docker.service",
    "nvidia-cdi-refresh.service",
    "ssh.service",
    "ssh.socket",
    "systemd-networkd.service",
    "systemd-networkd-wait-online.service",
    "systemd-resolved.service",
    "winhost-cdi.path",
    "winhost-cdi.service",
)

NO_FILE: Mapping[str, Json] = {"text": None, "link": None, "mode": None, "owner": None}
NO_SOURCE: Mapping[str, Json] = {
    "present": False,
    "uri": None,
    "suite": None,
    "components": [],
    "key": None,
    "key_sha256": None,
}
RESOLVER = "/mnt/wsl/resolv.conf"  # to which WSL makes /etc/resolv.conf a link, unless there is a file
KERNEL = "6.6.87.2-microsoft-standard-WSL2"
SSH = "ssh.service"
SSHD = "openssh-server"
CDI = "winhost-cdi.service"
_UNIT_FILE = re.compile(r"(?:/etc|/usr/local/lib)/systemd/system/([^/]+)")

# The way in, as the script makes it that Windows runs inside (wsl_conf/inside.ps1).
SSHD_FILE = "/etc/ssh/sshd_config.d/10-winhost.conf"
SSH_UNIT_FILE = "/etc/systemd/system/ssh.service.d/winhost.conf"
_SSHD = """\
# Written by winhost.
ListenAddress {}:{}
PubkeyAuthentication yes
AuthenticationMethods publickey
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitEmptyPasswords no
PermitRootLogin prohibit-password
AllowAgentForwarding no
X11Forwarding no
ClientAliveInterval 15
ClientAliveCountMax 4
"""
_ONLY_FROM = """\
Match Address *,!127.0.0.0/8,!::1/128{}
    DenyUsers *
"""
SSH_UNIT = """\
# Written by winhost.
[Unit]
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
Restart=on-failure
RestartSec=2
"""
_VERSION = "1.0-1"  # of what comes along, where nobody asked for a version
_IN_UBUNTU = {"docker.io": "28.2.2-0ubuntu1~24.04.1", "podman": "4.9.3+ds1-1ubuntu0.2"}
# Files that Windows puts there before there is a way in, by the names that it has for them.
_BY_WINDOWS = {
    "/etc/wsl.conf": "conf",
    "/etc/systemd/network/10-winhost.network": "network",
    "/etc/resolv.conf": "resolver",
}
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
}
_NVIDIA_CTK = "nvidia-container-toolkit-base"  # brings nvidia-ctk
_GPU_DRIVERS = re.compile(
    r"cuda-drivers.*|libcuda1|libnvidia-compute-\d+.*|linux-modules-nvidia-.*"
    r"|nvidia-(dkms|driver|headless|kernel|open)(-.*)?"
)
_ENGINES = {
    "docker": (("docker-ce", "docker.io"), "/run/docker.sock"),
    "podman": (("podman",), None),
    "nvidia-ctk": ((_NVIDIA_CTK,), None),
}
_APT_SECONDS, _UPDATE_SECONDS, _CDI_SECONDS = 20.0, 5.0, 2.0


@dataclass
class LabPackage:
    """brought: what came for its sake; None where winhost did not install it."""

    version: str
    held: bool = False
    brought: tuple[str, ...] | None = None


@dataclass
class Unit:
    enabled: str
    active: bool = False
    failed: bool = False


def sshd_file(listen: IPv4Address | IPv6Address, port: int | None = 22, allowed: Sequence[str] | None = None) -> str:
    """A drop-in for sshd: keys only, root by key only, on one address, from some networks or from everywhere.

    A lost controller is noticed in a minute.
    """
    text = _SSHD.format(f"[{listen}]" if listen.version == 6 else listen, port)
    return text + _ONLY_FROM.format("".join(f",!{each}" for each in allowed)) if allowed else text


def program_failed(program: str, message: str, code: int = 1) -> CmdletError:
    """A program of Linux that says no."""
    return CmdletError(program, "InvalidResult", "Winhost.ProgramFailed", (f"exit {code}",), message)


def refused(code: str, category: str, message: str, program: str = "") -> CmdletError:
    """An error of the agent there."""
    return CmdletError(program, category, f"Winhost.{code}", (), message)


@dataclass
class Linux:
    """Of one distro. What Windows can put there or look at is kept by the distro, all else here."""

    machine: Machine
    distro: Distro
    own: bool = False
    """It is no distro, but a machine of its own, with a driver of its own."""
    online: bool = True
    """It reaches registries and hubs."""
    files: dict[str, State] = field(default_factory=dict)
    sources: dict[str, State] = field(default_factory=dict)
    packages: dict[str, LabPackage] = field(default_factory=dict)
    units: dict[str, Unit] = field(default_factory=dict)
    brought: dict[str, dict[str, str | None]] = field(default_factory=dict)
    """What a set of packages brought, and the versions that were there before."""
    written: dict[str, Unit] = field(default_factory=dict)
    """Units of files that somebody wrote, not of a package."""
    spec: str | None = None
    """The driver that the CDI spec is for."""
    accepted: tuple[str, ...] = ()
    """Consents to the change that is being made."""
    parts: dict[type, object] = field(default_factory=dict)
    """What else there is in it, each made when it is first asked for."""
    started: int = -1

    def __post_init__(self) -> None:
        self.units |= {
            "systemd-networkd.service": Unit("disabled"),
            "systemd-networkd-wait-online.service": Unit("disabled"),
            "systemd-resolved.service": Unit("enabled", active=True),
        }
        self.gpu_driver = GpuDriver(self.machine, lambda: {name: each.version for name, each in self.packages.items()})
        self.driver = self._driver()
        self.started = self.distro.starts
        self._take_facts()

    def _take_facts(self) -> None:
        for key, state in self._of_facts("AptPackages", "installed", False):
            for name, version in asked_of(key["packages"]).items():
                self.packages[name] = LabPackage(version or self._version(name), state["held"])
        for key, state in self._of_facts("DebianPackage", "version", None):
            self.packages[key["package"]] = LabPackage(state["version"], state["held"])
        for key, state in self._of_facts("AptSource", "present", False):
            self.sources[key["name"]] = dict(state)
        for key, state in self._of_facts("SystemdUnit", "loaded", False):
            self.units[key["unit"]] = Unit(state["enabled"], state["active"], state["failed"])
        for _, state in self._of_facts("CdiSpec", "present", False):
            self.spec = self.driver if state["fresh"] is True else "another"
        found = ((record.key["path"], dict(record.state)) for record in self.machine.instances("LinuxFile"))
        self.files |= {path: state for path, state in found if state != NO_FILE}

    def part(self, kind: type[P]) -> P:
        """Made of this machine, once."""
        if kind not in self.parts:
            self.parts[kind] = kind(self)  # type: ignore[call-arg]
        made = self.parts[kind]
        assert isinstance(made, kind)
        return made

    def _of_facts(self, resource: str, name: str, nothing: Json) -> Iterator[tuple[Key, Mapping[str, Json]]]:
        """What the facts that this machine was made of tell of its Linux."""
        yield from ((r.key, r.state) for r in self.machine.instances(resource) if r.state[name] != nothing)

    def look(self) -> None:
        """What happened to it since: a start empties /run and starts what is enabled."""
        if self.started == self.distro.starts:
            return
        self.started = self.distro.starts
        if self.own:
            self.gpu_driver.start()
        self.driver = self._driver()
        # The toolkit of an own machine renews its specification when it starts.
        self.spec = self.driver if self.own and self.generates and self.driver else None
        for name in self._loaded():
            unit = self.unit(name)
            unit.active, unit.failed = False, False
            if unit.enabled == "enabled":
                self.start(name)

    def _driver(self) -> str:
        """What is mounted of the driver store; a running distro never sees another. Of an own machine what runs."""
        if self.own:
            return self.gpu_driver.loaded or ""
        cards = [device for device in self.machine.devices if device.key["device"].startswith("VEN_10DE&")]
        return ", ".join(
            sorted({str(card.known_or("driver_version", "")) for card in cards if card.known_or("driver", "")})
        )

    # ---- the system

    def system(self) -> Iterator[Record]:
        given = self.machine.instances("LinuxSystem")
        known = dict(given[0].state) if given else {"id": "ubuntu", "version": "24.04", "kernel": KERNEL}
        if self.own:
            yield Record({**known, "simulated": True})
            return
        modes = [vm.mode for vm in self._vms()]
        yield Record(
            {
                "architecture": "x86_64",
                "machine_id": sha256(self.distro.seed).hexdigest()[:32],
                "virtualization": "wsl",
                "secure_boot": None,
                "cgroups": 2,
                "memory": 16 * GiB,
                "shm": 8 * GiB,
                **known,
                "simulated": True,
                "wsl": True,
                "wsl_networking": modes[0] if modes else None,
                "systemd": self.distro.systemd,
            }
        )

    def _vms(self) -> Iterator[UtilityVm]:
        for session in self.machine.distros.sessions.values():
            if session.vm is not None and self.distro in session.running:
                yield session.vm

    def boot(self) -> Iterator[Record]:
        """As the kernel says; a replica begins with the boot that was read."""
        given, first = self.machine.instances("LinuxBoot"), self.distro.starts == 0
        made = UUID(bytes=sha256(self.distro.seed + bytes([self.distro.starts % 256])).digest()[:16], version=4)
        boot_id = given[0].state["boot_id"] if given and first else str(made)
        yield Record({"boot_id": boot_id, "ready": self.machine.ready if self.own else True})

    def driver_state(self) -> Iterator[Record]:
        packages = sorted(name for name in self.packages if _GPU_DRIVERS.fullmatch(name))
        if self.own:
            yield Record(self.gpu_driver.state(packages))
            return
        given = self.machine.instances("LinuxGpuDriver")
        state: State = {"libraries": [], **dict.fromkeys(("loaded", "kind", "installed", "signer"))}
        known = given[0].state if given else {"wsl_libcuda": bool(self.driver)}
        yield Record({**state, **known, "packages": packages})

    def gpus(self) -> Iterator[Record]:
        yield from self.gpu_driver.gpus() if self.own else self.found("LinuxGpu")

    def found(self, resource: str) -> Sequence[Record]:
        """What can only be read is as in the facts that this machine was made of."""
        return self.machine.instances(resource)

    def engines(self) -> Iterator[Record]:
        """As their packages are there."""
        for engine, (packages, socket) in _ENGINES.items():
            found = next((self.packages[name] for name in packages if name in self.packages), None)
            if found:
                yield Record(
                    {"version": found.version.partition("-")[0], "socket": socket, "snap": False}, {"engine": engine}
                )
        yield from (each for each in self.found("ContainerEngine") if each.state.get("snap") is True)

    # ---- files

    def file(self, path: str) -> State:
        if path in _BY_WINDOWS and (text := self.distro.put[_BY_WINDOWS[path]]) is not None:
            return {"text": text, "link": None, "mode": "0644", "owner": "root:root"}
        if path in self.files:
            return dict(self.files[path])
        if path == "/etc/resolv.conf":
            return {**NO_FILE, "link": RESOLVER}
        if self.distro.port is not None and path in (SSHD_FILE, SSH_UNIT_FILE):
            text = sshd_file(ip_address(str(self.distro.listen)), self.distro.port, self.distro.allowed)
            return _plain(text if path == SSHD_FILE else SSH_UNIT)
        return dict(NO_FILE)

    def write(self, path: str, after: State) -> None:
        """All null: there is none any more."""
        if path in _BY_WINDOWS:
            self.distro.put[_BY_WINDOWS[path]] = after["text"]
        if after["link"] is not None:
            self.files[path] = {**NO_FILE, "link": after["link"]}
        elif after["text"] is not None:
            mode = str(after["mode"] or "0644")
            self.files[path] = _plain(after["text"], f"{int(mode, 8):04o}", after["owner"] or "root:root")
        else:
            self.files[path] = dict(NO_FILE)
            if found := _UNIT_FILE.fullmatch(path):
                self.written.pop(found[1], None)

    def cut_off(self) -> bool:
        """A drop-in makes sshd listen elsewhere, or let nobody in."""
        texts = (str(state["text"]) for path, state in self.files.items() if path.startswith("/etc/ssh/sshd_config.d/"))
        found = [re.search(r"^\s*(?:Port (\d+)|DenyUsers root)", text, re.MULTILINE) for text in texts]
        return any(each and each[1] != str(self.distro.port) for each in found)

    # ---- packages

    def package(self, name: str) -> State:
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
        return _NVIDIA_CTK in self.packages

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
            each: LabPackage(version if each.startswith(name) else self._version(each)) for each in brought
        }
        self.packages[name] = LabPackage(version, brought=tuple(brought))
        for unit in (unit for each in (*brought, name) for unit in _BRINGS_UNITS.get(each, ())):
            # A package of Debian enables and starts what it brings.
            self.units[unit] = Unit("enabled", active=True)

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
                self.units.pop(unit, None)

    # ---- sets of packages

    def package_set(self, asked: Mapping[str, str]) -> State:
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
            "restart_due": self.own and _set_name(asked) in self.gpu_driver.sets and self.gpu_driver.awaits_restart,
        }

    def _version(self, name: str) -> str:
        """What apt would install; nothing where no source has it."""
        of_the_driver = self.gpu_driver.candidate(name) if self.own else None
        return _IN_UBUNTU.get(name, _VERSION) if of_the_driver is None else of_the_driver

    def _needs(self, name: str) -> tuple[str, ...]:
        return (*_NEEDS.get(name, ()), *(self.gpu_driver.needs(name) if self.own else ()))

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
            if (source is not None and source not in self.sources) or not self._version(name):
                raise NotYet("AptSource")
        needs = {each: self._version(each) for name in asked for each in self._with_needs(name) if each not in found}
        new = {name: version or self._version(name) for name, version in asked.items() if name not in found or version}
        return {**needs, **new}

    def _ours(self) -> set[str]:
        singly = {
            each
            for name, found in self.packages.items()
            for each in (*(found.brought or ()), name)
            if found.brought is not None
        }
        return singly.union(*self.brought.values())

    def install_set(self, asked: Mapping[str, str]) -> None:
        """In one transaction. Raises CmdletError."""
        state, found = self.package_set(asked), self._installed()
        if state["to_change_foreign"] and "packages" not in self.accepted:
            raise refused("ChangesForeign", "ResourceExists", "It would change packages of others.", "apt-get")
        self._check_repositories()
        self.machine.clock.sleep(_APT_SECONDS)
        coming = self._coming(asked)
        before = {name: found[name].version if name in found else None for name in coming}
        self.brought[_set_name(asked)] = {**before, **self.brought.get(_set_name(asked), {})}
        for name, version in coming.items():
            self.packages[name] = LabPackage(version, name in found and found[name].held)
            for unit in _BRINGS_UNITS.get(name, ()):
                self.units.setdefault(unit, Unit("enabled", active=True))

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
                self.units.pop(unit, None)
        del self.brought[_set_name(asked)]

    # ---- where packages come from

    def source(self, name: str) -> State:
        return dict(self.sources.get(name, NO_SOURCE))

    def write_source(self, name: str, after: State) -> None:
        """And apt reads it. Raises CmdletError; then it is as before."""
        if not after["present"]:
            self.sources.pop(name, None)
            return
        self._check_repositories()
        self.machine.clock.sleep(_UPDATE_SECONDS)
        self.sources[name] = {**after, "components": list(after["components"])}

    # ---- units

    def _loaded(self) -> list[str]:
        """Units that systemd can read: of packages, and those that somebody wrote."""
        return sorted({*self.units, *self._unit_texts(), *([SSH] if self.distro.sshd else [])})

    def _unit_texts(self) -> dict[str, str]:
        written = {found[1]: self.files[path]["text"] for path in self.files if (found := _UNIT_FILE.fullmatch(path))}
        return {name: text for name, text in written.items() if text is not None}

    def unit(self, name: str) -> Unit:
        """One of those that are loaded."""
        if name in self.units:
            return self.units[name]
        installs = "[Install]" in self._unit_texts().get(name, "")
        return self.written.setdefault(name, Unit("disabled" if installs else "static"))

    def unit_state(self, name: str) -> State:
        if name not in self._loaded():
            waits = {"unavailable": "LinuxFile" if name.startswith("winhost-") else "DebianPackage"}
            return {"loaded": False, "enabled": waits, "active": waits, "failed": False}
        unit = self.unit(name)
        if name == SSH:
            enabled = "enabled" if self.distro.enabled else "disabled"
            return {"loaded": True, "enabled": enabled, "active": self.distro.listens, "failed": False}
        masked = unit.enabled == "masked"
        return {"loaded": not masked, "enabled": unit.enabled, "active": unit.active, "failed": unit.failed}

    def enable(self, name: str, desired: str) -> None:
        """systemctl mask, unmask, enable, disable. Raises CmdletError."""
        if name not in self._loaded() and desired in ("enabled", "disabled", "masked"):
            raise program_failed("systemctl", f"Failed: Unit file {name} does not exist.")
        if name == SSH:
            self.distro.enabled = desired == "enabled"
            return
        unit = self.unit(name)
        if unit.enabled == "masked" and desired != "masked":
            unit.enabled = "disabled"
        if desired == "masked" or (desired in ("enabled", "disabled") and unit.enabled != "static"):
            unit.enabled = desired

    def start(self, name: str) -> None:
        """Raises CmdletError."""
        if not self.unit_state(name)["loaded"]:
            raise program_failed("systemctl", f"Failed to start {name}: Unit {name} not found.", 5)
        if name == SSH:
            self.distro.enabled = True
            return
        if name == CDI:
            if not self.generates:
                return  # its conditions are not met, which is no failure
            self.generate()
        self.unit(name).active = True

    def stop(self, name: str) -> None:
        """Raises CmdletError."""
        if not self.unit_state(name)["loaded"]:
            raise program_failed("systemctl", f"Failed to stop {name}: Unit {name} not loaded.", 5)
        if name == SSH:
            self.distro.enabled = False
        self.unit(name).active = False

    # ---- CDI

    def generate(self) -> None:
        """nvidia-ctk cdi generate: for the driver that is mounted now."""
        self.machine.clock.sleep(_CDI_SECONDS)
        self.spec = self.driver

    def cdi(self) -> State:
        present = self.spec is not None
        devices: Sequence[str] = ["nvidia.com/gpu=all"] if present else []
        return {"present": present, "fresh": present and self.spec == self.driver, "devices": devices}


def asked_of(wanted: str) -> dict[str, str]:
    """The packages of a key, and the version that each shall have."""
    return {word.partition("=")[0]: word.partition("=")[2] for word in wanted.split(" ")}


def _plain(text: str, mode: str = "0644", owner: str = "root:root") -> State:
    return {"text": text, "link": None, "mode": mode, "owner": owner}


def _set_name(asked: Mapping[str, str]) -> str:
    return " ".join(f"{name}={version}" if version else name for name, version in asked.items())
