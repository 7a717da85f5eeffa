"""Decisions of the WSL 2 path: what its playbook may refer to."""

from collections.abc import Mapping
from functools import cached_property
from hashlib import sha256

from packaging.version import Version

from winhost.core.answers import Json, MissingFact
from winhost.core.dataclass import dataclass
from winhost.hardware.host_gpus import gpu_label, runs_cuda
from winhost.paths.distro_containers import FILES, TOOLKIT, UNITS, Repository, docker, packages
from winhost.paths.never_sleep import power_plans
from winhost.paths.setting_values import PublishedEndpoint
from winhost.paths.wsl2_config_files import Conf, Config, wsl_conf, wslconfig_values
from winhost.paths.wsl2_memory import WslMemory, memory
from winhost.paths.wsl2_network import Mode, adapter, allowed, mac_address
from winhost.paths.wsl2_settings import File, Watcher, Wsl2Settings
from winhost.resources.host import Gpu, HostFacts
from winhost.resources.windows.assignable_device import DISMOUNTED
from winhost.resources.windows.hyperv_firewall import WSL
from winhost.resources.windows.wsl import Wsl
from winhost.resources.windows.wsl_config import WslConfig
from winhost.wslconfig import changed

SSH_PORT, SSH_PORT_WITH_WINDOWS = 22, 2222
ANY_ADDRESS = "0.0.0.0"  # noqa: S104 - of the distro; who may come there, a firewall of Windows says


@dataclass(frozen=True)
class Staged:
    """A file to put on the host; the fields of resource StagedFile."""

    sha256: str
    name: str
    source: str
    title: str


@dataclass(frozen=True)
class SshAccess:
    """The distro's sshd: its port, listen address, public keys and allowed networks. allowed: None behind NAT, where
    every connection comes from Windows, whose firewall decides.
    """

    port: int
    listen: str
    keys: list[str]
    allowed: list[str] | None
    who: str


class Wsl2Decisions:
    """Each is computed when it is read: before the account has logged on there is no `.wslconfig`, and entries that
    refer to it are deferred to the next stage. Optional resources are lists of none or one.
    """

    def __init__(self, facts: HostFacts, settings: Wsl2Settings, mode: Mode) -> None:
        self._facts = facts
        self._settings = settings
        self._mode = mode

    @property
    def network(self) -> str:
        return self._mode

    @property
    def account(self) -> str:
        return self._settings.account

    @property
    def administrator(self) -> bool:
        return self._settings.administrator

    @property
    def distro(self) -> str:
        return self._settings.distro

    @property
    def image(self) -> Staged:
        return _staged(self._settings.image, "The distro's image")

    @cached_property
    def packages(self) -> tuple[Staged, ...]:
        """The MSI of WSL, unless the installed version is as new: WSL is never downgraded."""
        package = self._settings.wsl
        installed = self._facts.the(Wsl).version
        if installed and Version(installed) >= Version(package.version):
            return ()
        return (_staged(package, f"The MSI of WSL {package.version}"),)

    @property
    def wsl(self) -> Mapping[str, str]:
        return {"version": self._settings.wsl.full}

    @cached_property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that CUDA runs on."""
        return tuple(filter(runs_cuda, self._facts.gpus))

    @cached_property
    def invisible(self) -> tuple[Mapping[str, str], ...]:
        """GPUs in TCC: WSL does not see them, and one of them hides all other GPUs from it."""
        return tuple(
            {**gpu.pci.key, "name": gpu_label(gpu)} for gpu in self.gpus if gpu.pci.state.driver_model == "TCC"
        )

    @cached_property
    def dismounted(self) -> tuple[Mapping[str, str], ...]:
        """Functions of GPUs that left Windows for a VM and belong to none: WSL sees what Windows has."""
        try:
            functions = [(gpu, each) for gpu in self.gpus for each in gpu.functions]
            left = [(gpu, each) for gpu, each in functions if self._facts.place(each) == DISMOUNTED]
        except MissingFact:
            return ()  # without the Hyper-V role nothing can be dismounted
        return tuple({**each.key, "name": f"{gpu_label(gpu)}, its {each.state.kind} function"} for gpu, each in left)

    @cached_property
    def switches(self) -> tuple[Mapping[str, str], ...]:
        """The switch to make, if any. Raises NotOnHost for an adapter that the host does not have, MissingFact."""
        bridge = self._settings.bridge
        if self._mode != "bridged" or bridge is None or bridge.adapter is None:
            return ()
        chosen = adapter(self._facts, bridge)
        return ({"name": bridge.switch, "adapter": chosen},) if chosen else ()

    @property
    def conf(self) -> Conf:
        return wsl_conf(self._settings, self._mode)

    @cached_property
    def ways_in(self) -> tuple[SshAccess, ...]:
        """SSH access, if the settings name a key. A bridged distro with a static address listens on that only."""
        access, bridge = self._settings.access, self._settings.bridge
        if access.key is None:
            return ()
        static = self._mode == "bridged" and bridge is not None and bridge.address != "dhcp"
        listen = bridge.address.split("/")[0] if bridge and static else ANY_ADDRESS
        allowed = None if self._mode == "nat" else self._allowed
        return (SshAccess(self._port, listen, [access.key], allowed, self._who),)

    @property
    def _port(self) -> int:
        """A bridged distro has ports of its own; otherwise it shares those of Windows, whose sshd may have 22."""
        return self._settings.access.port or (SSH_PORT if self._mode == "bridged" else SSH_PORT_WITH_WINDOWS)

    @property
    def forwards(self) -> tuple[Mapping[str, Json], ...]:
        """Behind NAT the distro is reached only through a forwarded port of Windows."""
        if self._mode != "nat" or not self.ways_in:
            return ()
        ssh = {"port": str(self._port), "connect": self._port, "allowed": self._allowed, "who": self._who}
        endpoint = self._settings.endpoint
        if endpoint is None:
            return (ssh,)
        served = {"port": str(endpoint.port), "connect": endpoint.port, "allowed": endpoint.networks}
        return (ssh, {**served, "who": endpoint.who})

    @property
    def openings(self) -> tuple[Mapping[str, Json], ...]:
        """The openings of the Hyper-V firewall, which blocks inbound connections by default with mirrored
        networking.
        """
        if self._mode != "mirrored" or not self.ways_in:
            return ()
        ssh = {"creator": WSL, "ports": [self._port], "allowed": self._allowed, "who": self._who}
        endpoint = self._settings.endpoint
        if endpoint is None:
            return (ssh,)
        # It knows one set of networks for all ports; sshd and the firewall of the distro keep each to its own.
        allowed = [*self._allowed, *(each for each in endpoint.networks if each not in self._allowed)]
        return ({**ssh, "ports": [self._port, endpoint.port], "allowed": allowed, "who": self._who_of_both(endpoint)},)

    def _who_of_both(self, endpoint: PublishedEndpoint) -> str:
        return f"SSH from {self._who}, and the endpoint from {endpoint.who}; the distro keeps each port to its own"

    @cached_property
    def _allowed(self) -> list[str]:
        """Raises Refusal where no network is known, MissingFact."""
        return list(allowed(self._facts, self._settings))

    @property
    def _who(self) -> str:
        named = "as you set it" if self._settings.access.allow else "the host's own; others: --set access.allow=[…]"
        return f"{', '.join(self._allowed)} ({named})"

    @property
    def sources(self) -> tuple[Repository, ...]:
        """Package sources for containers; none without SSH access, by which packages are installed."""
        return (docker(self._settings.containers.ubuntu), TOOLKIT) if self.ways_in else ()

    @property
    def packages_inside(self) -> tuple[Mapping[str, str], ...]:
        return packages(self._settings.containers) if self.ways_in else ()

    @property
    def files(self) -> tuple[Mapping[str, str], ...]:
        return FILES if self.ways_in else ()

    @property
    def units(self) -> tuple[Mapping[str, str], ...]:
        return UNITS if self.ways_in else ()

    @property
    def specs(self) -> tuple[Mapping[str, str], ...]:
        return ({"title": "The GPUs, for containers"},) if self.ways_in else ()

    @property
    def watchers(self) -> tuple[Watcher, ...]:
        return self._settings.watchers

    @cached_property
    def memory(self) -> WslMemory:
        return memory(self._facts, self.gpus, self._settings.stated("memory"))

    @cached_property
    def power_plans(self) -> tuple[Mapping[str, str], ...]:
        return power_plans(self._facts, self._settings.never_sleep)

    @cached_property
    def config(self) -> Config:
        found = self._facts.of(WslConfig, {"account": self.account})
        assert found is not None
        text = changed(found.text or "", self._wslconfig())
        return Config(text, found.encoding or "utf-8", sha256(text.encode()).hexdigest())

    def _wslconfig(self) -> Mapping[tuple[str, str], str | None]:
        mac = mac_address(self._facts.os.machine_id, self.account) if self._mode == "bridged" else None
        return wslconfig_values(self._settings, self._mode, self.memory.given, mac)


def _staged(file: File, title: str) -> Staged:
    return Staged(file.sha256, file.name, file.source, title)
