"""The Linux of a simulated host: its system, its files and what programs make of it when they are asked.

Sources: the NVIDIA container toolkit's documentation of CDI, microsoft/WSL.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from hashlib import sha256
from ipaddress import ip_address
from typing import TypeVar
from uuid import UUID

from winhost.core.answers import Json, Key, Record
from winhost.core.dataclass import dataclass
from winhost.lab.linux.gpu_driver import FABRIC_UNIT, GpuDriver
from winhost.lab.linux.package_manager import NVIDIA_CTK, Apt, LabPackage, asked_of
from winhost.lab.linux.sshd_files import SSH_UNIT, SSH_UNIT_FILE, SSHD_FILE, sshd_file
from winhost.lab.linux.systemd_units import Systemd, Unit
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.wsl_session import Distro, UtilityVm
from winhost.model.units import GiB

State = dict[str, Json]
_CDI_SECONDS = 2.0
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
PACKAGE_SETS = ("containerd.io docker-ce docker-ce-cli", "criu", "docker.io", "nvidia-container-toolkit", "podman")
UNITS = (
    "containerd.service",
    "docker.service",
    "nvidia-cdi-refresh.service",
    FABRIC_UNIT,
    "ssh.service",
    "ssh.socket",
    "systemd-networkd.service",
    "systemd-networkd-wait-online.service",
    "systemd-resolved.service",
    "winhost-cdi.path",
    "winhost-cdi.service",
)

NO_FILE: Mapping[str, Json] = {"text": None, "link": None, "mode": None, "owner": None}
RESOLVER = "/mnt/wsl/resolv.conf"  # to which WSL makes /etc/resolv.conf a link, unless there is a file
KERNEL = "6.6.87.2-microsoft-standard-WSL2"
_UNIT_FILE = re.compile(r"(?:/etc|/usr/local/lib)/systemd/system/([^/]+)")

# Files that Windows puts there before there is a way in, by the names that it has for them.
_BY_WINDOWS = {
    "/etc/wsl.conf": "conf",
    "/etc/systemd/network/10-winhost.network": "network",
    "/etc/resolv.conf": "resolver",
}
_GPU_DRIVERS = re.compile(
    r"cuda-drivers.*|libcuda1|libnvidia-compute-\d+.*|linux-modules-nvidia-.*"
    r"|nvidia-(dkms|driver|headless|kernel|open)(-.*)?"
)
_ENGINES = {
    "docker": (("docker-ce", "docker.io"), "/run/docker.sock"),
    "podman": (("podman",), None),
    "nvidia-ctk": ((NVIDIA_CTK,), None),
}


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
    spec: str | None = None
    """The driver that the CDI spec is for."""
    accepted: tuple[str, ...] = ()
    """Consents to the change that is being made."""
    parts: dict[type, object] = field(default_factory=dict)
    """What else there is in it, each made when it is first asked for."""
    marks: list[str] = field(default_factory=list)
    """What runs changed there, as their controllers say it."""
    started: int = -1

    def __post_init__(self) -> None:
        self.systemd = Systemd(self.distro, self._unit_texts, self._generates_spec, self._can_run)
        self.gpu_driver = GpuDriver(self.machine, self._versions)
        self.apt = Apt(self.machine, self.distro, self.systemd, self.gpu_driver if self.own else None)
        self.driver = self._driver()
        self.started = self.distro.starts
        self._take_facts()

    def _versions(self) -> dict[str, str]:
        return {name: each.version for name, each in self.apt.packages.items()}

    def _take_facts(self) -> None:
        for key, state in self._of_facts("AptPackages", "installed", False):
            for name, version in asked_of(key["packages"]).items():
                self.apt.packages[name] = LabPackage(version or self.apt.version(name), state["held"])
        for key, state in self._of_facts("DebianPackage", "version", None):
            self.apt.packages[key["package"]] = LabPackage(state["version"], state["held"])
        for key, state in self._of_facts("AptSource", "present", False):
            self.apt.sources[key["name"]] = dict(state)
        for key, state in self._of_facts("SystemdUnit", "loaded", False):
            self.systemd.units[key["unit"]] = Unit(state["enabled"], state["active"], state["failed"])
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
        self.spec = self.driver if self.own and self.apt.generates and self.driver else None
        self.systemd.restart_all()

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
                "pci_hyperv": None,
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
        packages = sorted(name for name in self.apt.packages if _GPU_DRIVERS.fullmatch(name))
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
            found = next((self.apt.packages[name] for name in packages if name in self.apt.packages), None)
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
                self.systemd.written.pop(found[1], None)

    def cut_off(self) -> bool:
        """A drop-in makes sshd listen elsewhere, or let nobody in."""
        texts = (str(state["text"]) for path, state in self.files.items() if path.startswith("/etc/ssh/sshd_config.d/"))
        found = [re.search(r"^\s*(?:Port (\d+)|DenyUsers root)", text, re.MULTILINE) for text in texts]
        return any(each and each[1] != str(self.distro.port) for each in found)

    def _unit_texts(self) -> dict[str, str]:
        written = {found[1]: self.files[path]["text"] for path in self.files if (found := _UNIT_FILE.fullmatch(path))}
        return {name: text for name, text in written.items() if text is not None}

    # ---- CDI

    def _generates_spec(self) -> bool:
        if self.apt.generates:
            self.generate()
        return self.apt.generates

    def _can_run(self, unit: str) -> bool:
        return unit != FABRIC_UNIT or self.gpu_driver.loaded is not None

    def generate(self) -> None:
        """nvidia-ctk cdi generate: for the driver that is mounted now."""
        self.machine.clock.sleep(_CDI_SECONDS)
        self.spec = self.driver

    def cdi(self) -> State:
        present = self.spec is not None
        devices: Sequence[str] = ["nvidia.com/gpu=all"] if present else []
        return {"present": present, "fresh": present and self.spec == self.driver, "devices": devices}


def _plain(text: str, mode: str = "0644", owner: str = "root:root") -> State:
    return {"text": text, "link": None, "mode": mode, "owner": owner}
