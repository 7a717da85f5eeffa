"""WSL 2: its network mode, memory and .wslconfig, and what else a plan decides for it."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from ipaddress import IPv4Interface, ip_interface
from typing import Literal

from packaging.version import Version

from winhost.core.answers import Json, MissingFact, if_available
from winhost.core.dataclass import dataclass
from winhost.hardware.host_gpus import gpu_label, memory_of, runs_cuda
from winhost.images.seed import GuestAddress
from winhost.model.errors import NotOnHost
from winhost.model.reason import Refusal
from winhost.model.units import Bytes, MiB, about, size
from winhost.paths.distro_containers import FILES, TOOLKIT, UNITS, Repository, docker, packages
from winhost.paths.never_sleep import power_plans
from winhost.paths.setting_values import PublishedEndpoint
from winhost.paths.wsl2_settings import AUTO, Bridge, File, Watcher, Wsl2Settings
from winhost.resources.host import Gpu, HostFacts
from winhost.resources.windows.assignable_device import DISMOUNTED
from winhost.resources.windows.external_switch import ExternalSwitch
from winhost.resources.windows.hyperv_firewall import WSL
from winhost.resources.windows.read_only import ETHERNET, TEAM, VIRTUAL, WIFI, NetworkAdapter
from winhost.resources.windows.wsl import Wsl
from winhost.resources.windows.wsl_config import WslConfig
from winhost.sizing.host_memory import WINDOWS_USABLE, wsl_default_ram
from winhost.wslconfig import WSLCONF, changed

# ---- memory of the VM


@dataclass(frozen=True)
class WslMemory:
    """given: bytes for the Linux VM; why: the size as text, with the reason."""

    given: Bytes
    why: str


def memory(facts: HostFacts, gpus: Sequence[Gpu], stated: Bytes | None) -> WslMemory:
    """Give WSL at least the memory of all GPUs, if the host has as much besides what Windows needs. Raises MissingFact.
    With less than the GPUs have, WSL was seen to fail on them (microsoft/WSL #40678); by itself it takes half of the
    host's memory.
    """
    total = facts.memory.total
    if stated is not None:
        return WslMemory(stated, f"{size(stated)} as you set it")
    half, most = wsl_default_ram(total), total - WINDOWS_USABLE
    if most < half:
        given = half // MiB * MiB
        small = f"half of the host's {about(total)}, as WSL takes by itself: beside what Windows needs there is no more"
        return WslMemory(given, f"{size(given)}, {small}")
    try:
        gpus_have = sum(map(memory_of, gpus))
    except MissingFact as missing:
        given = half // MiB * MiB
        return WslMemory(given, f"{size(given)}, half of the host's {about(total)}, because {missing}")
    given = max(half, min(gpus_have, most)) // MiB * MiB
    larger = f"the larger of half the host's {about(total)} and the {size(gpus_have)} of its GPUs"
    return WslMemory(given, f"{size(given)}, {larger}, and {size(WINDOWS_USABLE)} stay with Windows")


# ---- network of the distro


Mode = Literal["bridged", "mirrored", "nat"]
UNBRIDGED: tuple[Mode, ...] = ("mirrored", "nat")  # what a plan takes by itself, the better one first


# The first byte: locally administered, and not multicast.
LOCAL_MAC = 0x02


def mac_address(machine_id: str, account: str) -> str:
    """A MAC address for the bridged VM of an account: the same on every run, different on every machine.

    Left to itself WSL takes 5e:bb:f6:9e:ee:fa everywhere: it "draws" it from a generator that is never seeded
    (microsoft/WSL #9492, and its source).
    """
    drawn = sha256(f"winhost {machine_id.lower()} {account.lower()}".encode()).digest()
    return ":".join(f"{byte:02x}" for byte in (LOCAL_MAC, *drawn[:5]))


def adapter(facts: HostFacts, bridge: Bridge) -> str | None:
    """The interface GUID of the adapter for a switch: by that or by its exact name, or the one that suits best.

    None where none is asked for. Raises NotOnHost, Refusal where none suits, MissingFact.
    """
    if bridge.adapter is None:
        return None
    return _best_adapter(facts, bridge.switch) if bridge.adapter == AUTO else _adapter_named(facts, bridge.adapter)


def _best_adapter(facts: HostFacts, switch: str) -> str:
    """The switch's adapter if it exists; else a wired one with a link, preferably not the one that winhost uses."""
    if made := _adapter_of(facts, switch):
        return made
    wired = [each for each in facts.all(NetworkAdapter) if each.state.kind == ETHERNET and each.state.switch is None]
    fit = sorted(
        (each.state.management, each.state.name, each.key["adapter"]) for each in wired if each.state.status == "up"
    )
    if not fit:
        raise Refusal(
            "wsl.no-adapter",
            "No wired network adapter with a link is available for a switch.",
            "Connect one, choose another with --set bridge.adapter=NAME, or use --set network=nat",
        )
    return fit[0][-1]


def _adapter_of(facts: HostFacts, switch: str) -> str | None:
    """The adapter of a switch; None if there is no such switch, or no Hyper-V."""
    found = if_available(lambda: facts.of(ExternalSwitch, {"name": switch}))
    return found.adapter if found else None


def _adapter_named(facts: HostFacts, asked: str) -> str:
    known = {each.key["adapter"]: each.state.name for each in facts.all(NetworkAdapter)}
    found = [guid for guid, name in known.items() if asked.strip("{}").lower() == guid or asked == name]
    if len(found) != 1:
        raise NotOnHost(facts.host, "network adapter", asked, known, several=bool(found))
    return found[0]


def networks(facts: HostFacts) -> tuple[str, ...]:
    """IPv4 networks of the adapters that lead out of the host, as `192.0.2.0/24`. Raises MissingFact.

    The same before and after a switch was made on one of them: then the host's own port on it has the addresses.
    """
    adapters = [each.state for each in facts.all(NetworkAdapter)]
    outward = [adapter for adapter in adapters if adapter.kind in (ETHERNET, WIFI, TEAM)]
    bound = {adapter.mac for adapter in outward} - {None}
    outward += [each for each in adapters if each.kind == VIRTUAL and (each.mac in bound or each.gateway is not None)]
    found = [ip_interface(f"{each.address}/{each.prefix}") for adapter in outward for each in adapter.addresses]
    return tuple(sorted({str(each.network) for each in found if each.version == 4 and not each.is_link_local}))


def allowed(facts: HostFacts, settings: Wsl2Settings) -> tuple[str, ...]:
    """Networks that may connect: those that were named, else the host's own.

    Raises Refusal where it is in none, MissingFact.
    """
    named = tuple(map(str, settings.access.allow)) or networks(facts)
    if not named:
        raise Refusal(
            "wsl.nobody-allowed",
            "No network adapter of the host has an address, so no network is allowed to reach the distro.",
            "Set the networks that may connect: --set access.allow=[192.0.2.0/24]",
        )
    return named


# ---- .wslconfig, and the files of the distro


def network_file(static: GuestAddress) -> str:
    """The file for systemd-networkd. All distros of one WSL share their adapter: exactly one of them has this file."""
    lines = [
        "# Written by winhost.",
        "[Match]",
        "Name=eth0",
        "",
        "[Network]",
        f"Address={static.interface.with_prefixlen}",
        f"Gateway={static.gateway}",
        *(f"DNS={each}" for each in static.resolvers),
        # Otherwise it waits for a router of IPv6, and all that wants the network waits for it: two minutes a boot.
        "IPv6AcceptRA=no",
    ]
    return "\n".join(lines) + "\n"


NEVER_IDLE = "-1"  # of both idle times: no client window has to stay open

WslConfigValues = dict[tuple[str, str], str | None]  # by section and key; None takes a key out


@dataclass(frozen=True)
class Config:
    """The whole desired `.wslconfig`. digest: its SHA-256, which shows whether a running VM has read it."""

    text: str
    encoding: str
    digest: str


@dataclass(frozen=True)
class Conf:
    """/etc/wsl.conf, and the network files of a distro with a static address; see resource WslConf."""

    text: str
    network: str | None
    resolver: str | None


def wslconfig_values(settings: Wsl2Settings, mode: Mode, memory: Bytes, mac: str | None) -> WslConfigValues:
    """Values of .wslconfig: the network mode, `memory` bytes for Linux, no idle timeout; mac: of the bridged VM."""
    values: WslConfigValues = {
        ("wsl2", "networkingMode"): mode,
        ("wsl2", "memory"): f"{memory // MiB}MB",
        ("wsl2", "guiApplications"): "false",
        ("wsl2", "vmIdleTimeout"): NEVER_IDLE,
        ("general", "instanceIdleTimeout"): NEVER_IDLE,
    }
    if (swap := settings.stated("swap")) is not None:
        values["wsl2", "swap"] = f"{swap // MiB}MB"
    if settings.processors is not None:
        values["wsl2", "processors"] = str(settings.processors)
    if mode == "bridged" and settings.bridge:
        values["wsl2", "vmSwitch"] = settings.bridge.switch
        values["wsl2", "macAddress"] = mac
        values["wsl2", "dhcp"] = str(settings.bridge.address == "dhcp").lower()
    return values


def wsl_conf(settings: Wsl2Settings, mode: Mode) -> Conf:
    """systemd runs, root is the default user, and Windows' PATH stays out. A static address has its network file, and
    where it names DNS servers, a resolv.conf of its own.
    """
    values = {
        ("boot", "systemd"): "true",
        ("user", "default"): "root",  # an image made for people logs on another user, whom winhost's units do not know
        ("interop", "appendWindowsPath"): "false",
    }
    bridge = settings.bridge if mode == "bridged" else None
    if bridge is None or bridge.gateway is None:  # DHCP tells both
        return Conf(changed("", values, WSLCONF), network=None, resolver=None)
    if bridge.dns:
        values["network", "generateResolvConf"] = "false"
    static = GuestAddress(IPv4Interface(bridge.address), bridge.gateway, bridge.dns)
    resolver = "".join(f"nameserver {server}\n" for server in bridge.dns) or None
    return Conf(changed("", values, WSLCONF), network_file(static), resolver)


# ---- decisions


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
