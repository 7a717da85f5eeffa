"""Plan WSL 2: choose the networking mode, judge the host as the plan will change it, and compute the decisions of the
playbook.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property
from hashlib import sha256
from ipaddress import IPv4Interface

from packaging.version import Version

from winhost.compat.assess import judge
from winhost.core.answers import Id, Json, MissingFact, Record, identity
from winhost.core.dataclass import dataclass
from winhost.core.steps import DesiredResource
from winhost.engine.path_planner import PathPlanner
from winhost.hardware.host_gpus import gpu_label, runs_cuda
from winhost.images.seed import GuestAddress
from winhost.model.facts import Facts, with_state
from winhost.model.plan import Deferred, Unchecked, sort_risks
from winhost.model.reason import Caution, PathVerdict
from winhost.model.units import Bytes, MiB
from winhost.paths.distro_containers import FILES, TOOLKIT, UNITS, Repository, docker, packages
from winhost.paths.never_sleep import facts_kept_awake, power_plans
from winhost.paths.wsl2 import (
    UNBRIDGED,
    File,
    NetworkingMode,
    Watcher,
    Wsl2Settings,
    WslMemory,
    allowed_networks,
    bridge_adapter,
    mac_address,
    network_file,
    wsl_memory,
)
from winhost.paths.wsl2_refusals import cautions, refusals
from winhost.resources.host import Gpu, HostFacts
from winhost.resources.windows.distros import Wsl, WslConfig
from winhost.resources.windows.network import WSL
from winhost.resources.windows.vms import DISMOUNTED
from winhost.wslconfig.format import WSLCONF
from winhost.wslconfig.keys import change_keys

# ---- .wslconfig, and the files of the distro


NO_IDLE_TIMEOUT = "-1"  # for both timeouts: the distro also runs without an open client window

WslConfigValues = dict[tuple[str, str], str | None]  # by section and key; None removes a key


@dataclass(frozen=True)
class Config:
    """The whole desired `.wslconfig`. digest: its SHA-256, by which winhost sees whether a running VM has read it."""

    text: str
    encoding: str
    digest: str


@dataclass(frozen=True)
class Conf:
    """/etc/wsl.conf, and the network files of a distro with a static address. See the resource WslConf."""

    text: str
    network: str | None
    resolver: str | None


def wslconfig_values(
    settings: Wsl2Settings, networking_mode: NetworkingMode, memory: Bytes, mac: str | None
) -> WslConfigValues:
    """Return the values of .wslconfig. memory: bytes for Linux; mac: of the bridged VM."""
    values: WslConfigValues = {
        ("wsl2", "networkingMode"): networking_mode,
        ("wsl2", "memory"): f"{memory // MiB}MB",
        ("wsl2", "guiApplications"): "false",
        ("wsl2", "vmIdleTimeout"): NO_IDLE_TIMEOUT,
        ("general", "instanceIdleTimeout"): NO_IDLE_TIMEOUT,
    }
    if (swap := settings.stated("swap")) is not None:
        values["wsl2", "swap"] = f"{swap // MiB}MB"
    if settings.processors is not None:
        values["wsl2", "processors"] = str(settings.processors)
    if networking_mode == "bridged" and settings.bridge:
        values["wsl2", "vmSwitch"] = settings.bridge.switch
        values["wsl2", "macAddress"] = mac
        values["wsl2", "dhcp"] = str(settings.bridge.address == "dhcp").lower()
    return values


def wsl_conf(settings: Wsl2Settings, networking_mode: NetworkingMode) -> Conf:
    """Return wsl.conf: systemd runs, root is the default user, and the PATH of Windows is left out. A static address
    adds a network file, and with DNS servers a resolv.conf.
    """
    values = {
        ("boot", "systemd"): "true",
        ("user", "default"): "root",  # other images may log on another user, whom winhost's units do not know
        ("interop", "appendWindowsPath"): "false",
    }
    bridge = settings.bridge if networking_mode == "bridged" else None
    if bridge is None or bridge.gateway is None:  # DHCP provides both
        return Conf(change_keys("", values, WSLCONF), network=None, resolver=None)
    if bridge.dns:
        values["network", "generateResolvConf"] = "false"
    static = GuestAddress(IPv4Interface(bridge.address), bridge.gateway, bridge.dns)
    resolver = "".join(f"nameserver {server}\n" for server in bridge.dns) or None
    return Conf(change_keys("", values, WSLCONF), network_file(static), resolver)


# ---- decisions


SSH_PORT, SSH_PORT_WITH_WINDOWS = 22, 2222
ANY_ADDRESS = "0.0.0.0"  # noqa: S104 - of the distro; a firewall of Windows limits who may connect


@dataclass(frozen=True)
class Staged:
    """A file to put on the host, with the fields of the resource StagedFile."""

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
    """The decisions that the playbook of this path may refer to. Each is computed when it is read: before the account
    has logged on there is no `.wslconfig`, and entries that refer to it are deferred to the next stage. Optional
    resources are lists of none or one.
    """

    def __init__(self, facts: HostFacts, settings: Wsl2Settings, networking_mode: NetworkingMode) -> None:
        self._facts = facts
        self._settings = settings
        self._networking_mode = networking_mode

    @property
    def network(self) -> str:
        return self._networking_mode

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
        """Functions of GPUs that are dismounted from Windows and assigned to no VM. WSL sees only GPUs of Windows."""
        try:
            functions = [(gpu, each) for gpu in self.gpus for each in gpu.functions]
            dismounted_functions = [
                (gpu, each) for gpu, each in functions if self._facts.assignment(each) == DISMOUNTED
            ]
        except MissingFact:
            return ()  # without the Hyper-V role nothing can be dismounted
        return tuple(
            {**each.key, "name": f"{gpu_label(gpu)}, its {each.state.kind} function"}
            for gpu, each in dismounted_functions
        )

    @cached_property
    def switches(self) -> tuple[Mapping[str, str], ...]:
        """The virtual switch to make, if any. Raises NotOnHost for an adapter that the host does not have,
        MissingFact.
        """
        bridge = self._settings.bridge
        if self._networking_mode != "bridged" or bridge is None or bridge.adapter is None:
            return ()
        chosen = bridge_adapter(self._facts, bridge)
        return ({"name": bridge.switch, "adapter": chosen},) if chosen else ()

    @property
    def conf(self) -> Conf:
        return wsl_conf(self._settings, self._networking_mode)

    @cached_property
    def ways_in(self) -> tuple[SshAccess, ...]:
        """SSH access, if the settings name a key. A bridged distro with a static address listens on that
        address only.
        """
        access, bridge = self._settings.access, self._settings.bridge
        if access.key is None:
            return ()
        static = self._networking_mode == "bridged" and bridge is not None and bridge.address != "dhcp"
        listen = bridge.address.split("/")[0] if bridge and static else ANY_ADDRESS
        allowed = None if self._networking_mode == "nat" else self._allowed
        return (SshAccess(self._port, listen, [access.key], allowed, self._allowed_text),)

    @property
    def _port(self) -> int:
        """The port of sshd. A bridged distro has ports of its own, others share those of Windows, whose sshd may use
        22.
        """
        return self._settings.access.port or (SSH_PORT if self._networking_mode == "bridged" else SSH_PORT_WITH_WINDOWS)

    @property
    def forwards(self) -> tuple[Mapping[str, Json], ...]:
        """The ports of Windows that are forwarded to the distro, which behind NAT is reached only through these."""
        if self._networking_mode != "nat" or not self.ways_in:
            return ()
        ssh = {"port": str(self._port), "connect": self._port, "allowed": self._allowed, "who": self._allowed_text}
        endpoint = self._settings.endpoint
        if endpoint is None:
            return (ssh,)
        served = {"port": str(endpoint.port), "connect": endpoint.port, "allowed": endpoint.networks}
        return (ssh, {**served, "who": endpoint.who})

    @property
    def openings(self) -> tuple[Mapping[str, Json], ...]:
        """The rules of the Hyper-V firewall, which with mirrored networking blocks inbound connections by default."""
        if self._networking_mode != "mirrored" or not self.ways_in:
            return ()
        ssh = {"creator": WSL, "ports": [self._port], "allowed": self._allowed, "who": self._allowed_text}
        endpoint = self._settings.endpoint
        if endpoint is None:
            return (ssh,)
        # One rule has one set of networks for all ports; sshd and the distro's firewall restrict each port to its own.
        allowed = [*self._allowed, *(each for each in endpoint.networks if each not in self._allowed)]
        own = f"SSH from {self._allowed_text}, and the endpoint from {endpoint.who}"
        who = f"{own}; the distro keeps each port to its own"
        return ({**ssh, "ports": [self._port, endpoint.port], "allowed": allowed, "who": who},)

    @cached_property
    def _allowed(self) -> list[str]:
        """The networks from which SSH is allowed. Raises Refusal if no network is known, MissingFact."""
        return list(allowed_networks(self._facts, self._settings))

    @property
    def _allowed_text(self) -> str:
        named = "as you set it" if self._settings.access.allow else "the host's own; others: --set access.allow=[…]"
        return f"{', '.join(self._allowed)} ({named})"

    @property
    def sources(self) -> tuple[Repository, ...]:
        """Package sources for containers; none without SSH access, which installing packages needs."""
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
        return wsl_memory(self._facts, self.gpus, self._settings.stated("memory"))

    @cached_property
    def power_plans(self) -> tuple[Mapping[str, str], ...]:
        return power_plans(self._facts, self._settings.never_sleep)

    @cached_property
    def config(self) -> Config:
        found = self._facts.find(WslConfig, {"account": self.account})
        assert found is not None
        mac = mac_address(self._facts.os.machine_id, self.account) if self._networking_mode == "bridged" else None
        values = wslconfig_values(self._settings, self._networking_mode, self.memory.given, mac)
        text = change_keys(found.text or "", values)
        return Config(text, found.encoding or "utf-8", sha256(text.encode()).hexdigest())


def _staged(file: File, title: str) -> Staged:
    return Staged(file.sha256, file.name, file.source, title)


# ---- the planner


# The settings that only a step of a resource can check: whether a name is taken, or a package available.
_SETTINGS_CHECKED_BY = {
    "ExternalSwitch": ("bridge.switch",),
    "AptSource": ("containers.ubuntu",),
    "DebianPackage": ("containers.docker", "containers.toolkit"),
}


class Wsl2Planner(PathPlanner[Wsl2Settings]):
    """Plans WSL 2 on one host."""

    settings_type = Wsl2Settings

    @cached_property
    def verdict(self) -> PathVerdict:
        """The verdict on the host with the changes of the plan itself: the version of WSL, the driver models."""
        return judge(self._planned_facts, f"wsl2/{self._networking_mode}")

    @cached_property
    def decisions(self) -> Wsl2Decisions:
        return Wsl2Decisions(self._facts, self._settings, self._networking_mode)

    @property
    def cautions(self) -> tuple[Caution, ...]:
        return tuple(cautions(self._facts, self._settings, self._resources))

    def check(self, desired: Iterable[DesiredResource]) -> None:
        """Check desired values. Raises the first Refusal, MissingFact."""
        for refusal in refusals(self._facts, self._settings, desired):
            raise refusal

    def risks(self) -> Mapping[Id, tuple[str, ...]]:
        """Return the consents that the reasons ask for, on the virtual switch: no other step of this path takes
        something from the host.
        """
        consents = sort_risks(risk for reason in self.verdict.every_reason for risk in reason.risks)
        bridge = self._settings.bridge
        return {identity("ExternalSwitch", {"name": bridge.switch}): consents} if bridge else {}

    def unchecked(self, deferred: Iterable[Deferred]) -> tuple[Unchecked, ...]:
        """Return the settings that only a resource of a later stage can check."""
        until = {each.resource: each.until for each in deferred if each.resource in _SETTINGS_CHECKED_BY}
        values = self._settings.model_dump(mode="json")
        return tuple(
            Unchecked(name, _value_at(values, name), prerequisite, (resource,))
            for resource, prerequisite in until.items()
            for name in _SETTINGS_CHECKED_BY[resource]
        )

    @cached_property
    def _networking_mode(self) -> NetworkingMode:
        """The networking mode of the settings; else bridged if they have a bridge; else the mode with the best verdict
        that needs no switch.
        """
        if self._settings.network != "auto":
            return self._settings.network
        if self._settings.bridge:
            return "bridged"
        return min(UNBRIDGED, key=lambda mode: judge(self._planned_facts, f"wsl2/{mode}").verdict.rank)

    @cached_property
    def _planned_facts(self) -> HostFacts:

        def leave_tcc(device: Record) -> Record:
            return with_state(device, {"driver_model": "MCDM"}) if device.state.get("driver_model") == "TCC" else device

        document = self._facts.document.edited("PciDevice", leave_tcc)
        newer = {"present": True, "version": self._settings.wsl.full}
        if Wsl2Decisions(self._facts, self._settings, "nat").packages:
            document = document.edited("Wsl", lambda each: with_state(each, newer))
        return facts_kept_awake(HostFacts(self._with_bridge_only(document)), self._settings.never_sleep)

    def _with_bridge_only(self, document: Facts) -> Facts:
        """Return the facts with only the switch and the adapter of the settings: the plan uses and changes no other."""
        bridge = self._settings.bridge
        if bridge is None:
            return document
        document = document.edited("VmSwitch", lambda each: each if each.state["name"] == bridge.switch else None)
        document = document.edited("ExternalSwitch", lambda each: each if each.key["name"] == bridge.switch else None)
        if bridge.adapter is None:
            return document
        chosen = {"adapter": bridge_adapter(self._facts, bridge)}
        return document.edited("NetworkAdapter", lambda each: each if each.key == chosen else None)


def _value_at(values: Mapping[str, Json], name: str) -> Json:
    """Return the value at a dotted name such as `bridge.switch`; None if a part of it is missing."""
    value: Json = values
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
