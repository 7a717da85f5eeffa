"""A simulated Linux: its system, files, units, packages, driver and clock.

Sources: the NVIDIA container toolkit's documentation of CDI, microsoft/WSL.
"""

import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from hashlib import sha256
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TypeVar
from uuid import UUID

from winhost.core.answers import Json, Key, Record
from winhost.core.dataclass import dataclass
from winhost.lab.linux.disk import (
    NFT_UNIT,
    RESOLVER,
    RULES,
    Node,
    is_blacklisted,
    load_module,
    make_disk,
    put_file,
    start_kernel,
)
from winhost.lab.linux.software import FABRIC_MANAGER, NVIDIA_CTK, Apt, GpuDriver, LabPackage, Systemd, Unit
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.ssh_keys import public_line
from winhost.lab.physics.wsl_exe import Distro
from winhost.model.once import once
from winhost.model.units import GiB
from winhost.resources.windows.windows_scripts import distro_script

SSHD_FILE = "/etc/ssh/sshd_config.d/10-winhost.conf"
SSH_UNIT_FILE = "/etc/systemd/system/ssh.service.d/winhost.conf"


def _find_text(part: str) -> str:
    texts: list[str] = re.findall(r"<<END\n(.*?)END\n", distro_script(), re.DOTALL)
    return next(text for text in texts if part in text)


_SSHD = _find_text("ListenAddress ")
(_MATCH_ADDRESS,) = re.findall(r"printf '(Match Address .*?)'", distro_script())
SSH_UNIT = _find_text("[Unit]")


def sshd_file(listen: IPv4Address | IPv6Address, port: int | None = 22, allowed: Sequence[str] | None = None) -> str:
    """Return winhost's drop-in for sshd, which only accepts keys. allowed: networks; None for all networks."""
    text = _SSHD.replace("$where", f"[{listen}]:{port}" if listen.version == 6 else f"{listen}:{port}")
    limits = _MATCH_ADDRESS.replace("\\n", "\n") % "".join(f",!{each}" for each in allowed or ())
    return text + limits if allowed else text


State = dict[str, Json]
_CDI_SECONDS = 2.0
P = TypeVar("P")

NO_FILE: Mapping[str, Json] = {"text": None, "link": None, "mode": None, "owner": None}
KERNEL = "6.6.87.2-microsoft-standard-WSL2"
_UBUNTU_KERNEL = "6.8.0-87-generic"  # of Ubuntu's cloud image
_UNIT_FOLDERS = ("/etc/systemd/system", "/usr/local/lib/systemd/system")
_PCI = "/sys/bus/pci/devices"
_KEYS = "/root/.ssh/authorized_keys"
CDI_SPEC = "/run/cdi/nvidia.yaml"
_HOST_KEY = "/etc/ssh/ssh_host_ed25519_key"
MODULE = "/usr/lib/modules/nvidia.ko"
PRIVATE_KEY_PREFIX = "the private half of a key of a simulated Linux: "
public = once(public_line)

# Files that Windows writes without SSH, each with its name in resource WslConf.
_WINDOWS_FILES = {
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
    """A Linux. What Windows reads and writes without SSH is in `distro`; everything else is here."""

    machine: Machine
    distro: Distro
    is_standalone: bool = False
    """It is no distro, but a machine with its own kernel and driver."""
    online: bool = True
    """It can reach registries and hubs."""
    containers: list[str] = field(default_factory=list)
    """The running Docker containers."""
    stdin: Node | None = None
    """The standard input of the running program."""
    rules: str = ""
    """winhost's rules that nftables has loaded."""
    parts: dict[type, object] = field(default_factory=dict)
    """Other parts, by class; each is made at its first use."""
    last_start: int = -1
    undo_due: float | None = None
    """The time at which an unconfirmed change is undone."""
    is_initializing: bool = False
    """It is being made from facts: nothing takes any time."""
    skipped_seconds: float = 0.0
    """Seconds by which its clock was advanced without waiting."""

    def __post_init__(self) -> None:
        self.systemd = Systemd(self.distro, self._read_unit_texts, self._generate_spec_if_possible)
        self.gpu_driver = GpuDriver(self.machine, self._versions)
        self.disk = make_disk(self.fact_records)
        self.apt = Apt(
            self.machine,
            self.distro,
            self.systemd,
            self.gpu_driver if self.is_standalone else None,
            self.disk,
            self.sleep,
        )
        self.driver = self._find_driver()
        self.last_start = self.distro.starts
        self.reboot: Callable[[], object] = self.machine.run_shutdown
        self._load_facts()
        self.booted = self.now()
        self._write_driver_files()
        self._settings = {path: node.data for path, node in self.disk.walk("/proc/sys") if node.entries is None}
        self._synced_files: dict[str, str | None] = dict.fromkeys(self._windows_files())

    def _versions(self) -> dict[str, str]:
        return {name: each.version for name, each in self.apt.packages.items()}

    def _load_facts(self) -> None:
        for key, state in self._recorded_states("AptPackages", "installed", False):
            for name, _, version in (word.partition("=") for word in key["packages"].split(" ")):
                self.apt.packages[name] = LabPackage(version or self.apt.version(name), state["held"])
        for key, state in self._recorded_states("DebianPackage", "version", None):
            self.apt.packages[key["package"]] = LabPackage(state["version"], state["held"])
        for key, state in self._recorded_states("SystemdUnit", "loaded", False):
            self.systemd.units[key["unit"]] = Unit(state["enabled"], state["active"], state["failed"])
        for _, state in self._recorded_states("CdiSpec", "present", False):
            self.spec = self.driver if state["fresh"] is True else "another"

    def part(self, kind: type[P]) -> P:
        """Return the part of this class, which is made at its first use."""
        if kind not in self.parts:
            self.parts[kind] = kind(self)  # type: ignore[call-arg]
        part = self.parts[kind]
        assert isinstance(part, kind)
        return part

    def _recorded_states(self, resource: str, name: str, nothing: Json) -> Iterator[tuple[Key, Mapping[str, Json]]]:
        """Yield key and state of each instance in the facts whose property `name` is not `nothing`."""
        yield from ((r.key, r.state) for r in self.machine.instances(resource) if r.state[name] != nothing)

    def catch_up(self) -> None:
        """Apply a start that has happened since: empty /run, load the driver, and start enabled units."""
        if self.last_start == self.distro.starts:
            return
        self.last_start = self.distro.starts
        if self.is_standalone:
            self.gpu_driver.start()
        self.driver = self._find_driver()
        self.booted = self.now()
        start_kernel(self.disk, self._settings)
        self._write_driver_files()
        # On a standalone machine, the toolkit writes its specification at each start.
        if self.is_standalone and NVIDIA_CTK in self.apt.packages and self.driver:
            self.spec = self.driver
        self.rules = ""
        self.systemd.restart_all()
        if self.systemd.is_active(NFT_UNIT):
            self.rules = self.disk.text(RULES) or ""

    def _find_driver(self) -> str:
        """Return the version of the loaded driver; in WSL that of Windows when the distro started."""
        if self.is_standalone:
            return self.gpu_driver.loaded or ""
        gpus = [device for device in self.machine.devices if device.key["device"].startswith("VEN_10DE&")]
        return ", ".join(
            sorted({str(gpu.get_known("driver_version", "")) for gpu in gpus if gpu.get_known("driver", "")})
        )

    # ---- the system

    def system(self) -> Iterator[Record]:
        recorded = self.machine.instances("LinuxSystem")
        state = dict(recorded[0].state) if recorded else {"id": "ubuntu", "version": "24.04", "kernel": KERNEL}
        if self.is_standalone:
            yield Record({**state, "simulated": True})
            return
        default = ubuntu(sha256(self.distro.seed).hexdigest()[:32], 16 * GiB)
        default |= {"virtualization": "wsl", "secure_boot": None, "pci_hyperv": None}
        sessions = self.machine.distros.sessions.values()
        mode = next((each.vm.mode for each in sessions if each.vm is not None and self.distro in each.running), None)
        wsl_state = {"simulated": True, "wsl": True, "wsl_networking": mode, "systemd": self.distro.systemd}
        yield Record({**default, **state, **wsl_state})

    @property
    def boot_id(self) -> str:
        """The boot id, which changes with each start. A replica begins with the recorded one."""
        recorded, is_first = self.machine.instances("LinuxBoot"), self.distro.starts == 0
        digest = sha256(self.distro.name.encode() + bytes([self.distro.starts % 256])).digest()[:16]
        return str(recorded[0].state["boot_id"] if recorded and is_first else UUID(bytes=digest, version=4))

    def driver_state(self) -> Iterator[Record]:
        packages = sorted(name for name in self.apt.packages if _GPU_DRIVERS.fullmatch(name))
        if self.is_standalone:
            yield Record(self.gpu_driver.state(packages))
            return
        recorded = self.machine.instances("LinuxGpuDriver")
        state: State = {"libraries": [], **dict.fromkeys(("loaded", "kind", "installed", "signer"))}
        read_state = recorded[0].state if recorded else {"wsl_libcuda": bool(self.driver)}
        yield Record({**state, **read_state, "packages": packages})

    def _write_driver_files(self) -> None:
        """Load modules, and write the files that show the driver, as at a start of the kernel."""
        if not self.is_standalone:
            return
        for module in sorted({str(each.state["driver"]) for each in self.gpus() if each.state["driver"]}):
            if not is_blacklisted(self.disk, module):
                load_module(self.disk, module)
        if self.gpu_driver.loaded:
            self.disk.write("/sys/module/nvidia/version", f"{self.gpu_driver.loaded}\n")
        if self.gpu_driver.installed:
            self.disk.write(MODULE, self.gpu_driver.installed)

    def gpus(self) -> Iterator[Record]:
        yield from self.gpu_driver.gpus() if self.is_standalone else self.fact_records("LinuxGpu")

    def gpu_view(self) -> dict[str, Callable[[], int | bool]]:
        """Return calls that return the driver's view of the GPUs, by property of resource ShownGpus."""
        return {
            "count": lambda: sum(gpu.state["uuid"] is not None for gpu in self.gpus()) if self.is_standalone else 0,
            "loaded": lambda: self.is_standalone and bool(self.driver),
            "unplaced": lambda: sum(bar["start"] == 0 for gpu in self.gpus() for bar in gpu.state["bars"]),
        }

    def fact_records(self, resource: str) -> Sequence[Record]:
        """Return the records of a resource in the facts that this machine was made from."""
        return self.machine.instances(resource)

    def engines(self) -> Iterator[Record]:
        """Yield the engines whose packages are installed."""
        for engine, (packages, socket) in _ENGINES.items():
            package = next((self.apt.packages[name] for name in packages if name in self.apt.packages), None)
            if package:
                yield Record(
                    {"version": package.version.partition("-")[0], "socket": socket, "snap": False}, {"engine": engine}
                )
        yield from (each for each in self.fact_records("ContainerEngine") if each.state.get("snap") is True)

    # ---- files

    def read_file(self, path: str) -> State:
        self.sync_to_disk()
        node = self.disk.node(path)
        if node is None:
            return dict(NO_FILE)
        if node.kind == stat.S_IFLNK:
            return {**NO_FILE, "link": node.data.decode()}
        owner = f"{node.uid or 'root'}:{node.gid or 'root'}"
        return {"text": node.data.decode(), "link": None, "mode": f"{node.mode:04o}", "owner": owner}

    def write_file(self, path: str, state: State) -> None:
        """Write a file in the form of resource LinuxFile; NO_FILE removes it."""
        self.sync_to_disk()
        put_file(self.disk, path, state)
        self.systemd.reload()
        self.sync_from_disk()

    def texts(self) -> dict[str, str]:
        """Return the texts of all files that survive a restart, by path."""
        texts = {path: node.data.decode() for path, node in self.disk.walk("") if node.kind == stat.S_IFREG}
        return {path: text for path, text in texts.items() if not path.startswith(("/proc/", "/run/", "/sys/"))}

    @property
    def marks(self) -> list[str]:
        """The marks of runs on this Linux."""
        return (self.disk.text("/var/lib/winhost/marks.txt") or "").splitlines()

    def _windows_files(self) -> dict[str, str | None]:
        """Return the files that Windows writes and reads without SSH, as the distro has them."""
        distro = self.distro
        files = {path: distro.conf_files[name] for path, name in _WINDOWS_FILES.items()}
        has_access = distro.port is not None and distro.listen is not None
        text = sshd_file(ip_address(str(distro.listen)), distro.port, distro.allowed) if has_access else None
        files |= {SSHD_FILE: text, SSH_UNIT_FILE: SSH_UNIT if has_access else None}
        files[_KEYS] = "".join(f"{line}\n" for line in distro.keys) or None
        files[_HOST_KEY] = f"{PRIVATE_KEY_PREFIX}{distro.seed.hex()}\n"
        return files

    def sync_to_disk(self) -> None:
        """Write to the disk what Windows or the kernel has changed since the last call."""
        files = self._windows_files()
        for path, text in files.items():
            if text == self._synced_files[path]:
                continue
            if path == _KEYS:
                self._write_authorized_keys()
            elif text is not None:
                self.disk.write(path, text)
            elif path == "/etc/resolv.conf":
                self.disk.link(path, RESOLVER)
            else:
                self.disk.remove(path)
            if path == _HOST_KEY:
                self.disk.write(f"{_HOST_KEY}.pub", f"{public(self.distro.seed)} root@{self.distro.name}\n")
        self._synced_files = files
        self._write_kernel_state()

    def _write_kernel_state(self) -> None:
        """Write the kernel's present state to the disk."""
        self.disk.remove(_PCI)
        if self.is_standalone:
            kinds = {each.key["address"]: "0x030200" for each in self.fact_records("LinuxGpu")}
            if any(FABRIC_MANAGER in each.key["packages"] for each in self.fact_records("AptPackages")):
                kinds["0000:00:1f.7"] = "0x068000"  # a switch, which the fabric manager needs
            for address, kind in kinds.items():
                self.disk.write(f"{_PCI}/{address}/vendor", "0x10de\n")
                self.disk.write(f"{_PCI}/{address}/class", f"{kind}\n")
        if self.distro.systemd:
            self.disk.make_folder("/run/systemd/system")
        else:
            self.disk.remove("/run/systemd")
        self.disk.write("/proc/sys/kernel/random/boot_id", f"{self.boot_id}\n")

    def _write_authorized_keys(self) -> None:
        """Write the authorized keys that Windows set, then those that were added inside the Linux."""
        before = (self._synced_files[_KEYS] or "").splitlines()
        present = (self.disk.text(_KEYS) or "").splitlines()
        lines = [*self.distro.keys, *(line for line in present if line not in (*before, *self.distro.keys))]
        if lines:
            self.disk.write(_KEYS, "".join(f"{line}\n" for line in lines), 0o600)
        else:
            self.disk.remove(_KEYS)

    def sync_from_disk(self) -> None:
        """Copy changes of shared files from the disk to the distro."""
        distro = self.distro
        for path, name in _WINDOWS_FILES.items():
            distro.conf_files[name] = self.disk.text(path)
        keys = (re.search(r"(?:ssh-|ecdsa-|sk-).*", line) for line in (self.disk.text(_KEYS) or "").splitlines())
        if self.disk.text(_KEYS) != self._synced_files[_KEYS]:
            distro.keys = [match[0] for match in keys if match]
        private = (self.disk.text(_HOST_KEY) or "").removeprefix(PRIVATE_KEY_PREFIX).strip()
        if private and private != distro.seed.hex():
            distro.host_key_seed = bytes.fromhex(private)
        self._synced_files = self._windows_files()

    def is_cut_off(self) -> bool:
        """Tell whether a drop-in makes sshd use another port, or refuse root."""
        self.sync_to_disk()
        texts = (
            self.disk.text(f"/etc/ssh/sshd_config.d/{name}") for name in self.disk.list_names("/etc/ssh/sshd_config.d")
        )
        matches = [re.search(r"^\s*(?:Port (\d+)|DenyUsers root)", text or "", re.MULTILINE) for text in texts]
        return any(each and each[1] != str(self.distro.port) for each in matches)

    def unit_file(self, unit: str) -> str | None:
        """Return the path of the unit's file, or None for a unit of a package."""
        return next((f"{each}/{unit}" for each in _UNIT_FOLDERS if self.disk.node(f"{each}/{unit}")), None)

    def _read_unit_texts(self) -> dict[str, str]:
        paths = {
            name: f"{folder}/{name}" for folder in reversed(_UNIT_FOLDERS) for name in self.disk.list_names(folder)
        }
        texts = {name: self.disk.text(path) for name, path in paths.items()}
        return {name: text for name, text in texts.items() if text is not None}

    # ---- clock and kernel

    def now(self) -> float:
        """Return the time of the lab's clock. If lab time takes no real time, waiting advances it."""
        scale = self.machine.clock.scale
        return (
            time.monotonic() / scale if scale and not self.is_initializing else time.monotonic() + self.skipped_seconds
        )

    def uptime(self) -> float:
        return self.now() - self.booted

    def sleep(self, seconds: float) -> None:
        self.skipped_seconds += seconds
        if not self.is_initializing:
            self.machine.clock.sleep(seconds)

    def kernel(self) -> str:
        return str(next(self.system()).state["kernel"])

    def is_ready(self) -> bool:
        return self.machine.ready if self.is_standalone else True

    # ---- CDI

    def _generate_spec_if_possible(self) -> bool:
        if is_installed := NVIDIA_CTK in self.apt.packages:
            self.generate()
        return is_installed

    def generate(self) -> None:
        """nvidia-ctk cdi generate: write the CDI specification for the present driver."""
        self.sleep(_CDI_SECONDS)
        self.spec = self.driver

    @property
    def spec(self) -> str | None:
        """The driver version in the CDI specification, or None without one."""
        text = self.disk.text(CDI_SPEC)
        return None if text is None else text.rstrip("\n").rpartition(" ")[2]

    @spec.setter
    def spec(self, driver: str | None) -> None:
        if driver is None:
            self.disk.remove(CDI_SPEC)
        else:
            self.disk.write(CDI_SPEC, spec_text(driver))


def spec_text(driver: str) -> str:
    """Return the CDI specification that nvidia-ctk writes for a driver."""
    return f"cdiVersion: 0.5.0\nkind: nvidia.com/gpu\n# {driver.replace(' ', '')}\n"


def ubuntu(machine: str, memory: Json) -> dict[str, Json]:
    """Return the state of resource LinuxSystem of an Ubuntu 24.04. machine: its machine id; memory: in bytes."""
    return {
        "id": "ubuntu",
        "version": "24.04",
        "kernel": _UBUNTU_KERNEL,
        "architecture": "x86_64",
        "wsl": False,
        "wsl_networking": None,
        "systemd": True,
        "machine_id": machine,
        "simulated": True,
        "cgroups": 2,
        "memory": memory,
        "shm": memory // 2,
    }
