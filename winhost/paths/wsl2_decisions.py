"""Decisions of the WSL 2 path: what its playbook may refer to, each with its arithmetic."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from ipaddress import ip_interface
from typing import Literal

from packaging.version import Version

from winhost.hardware.cards import card_label, memory_of, runs_cuda
from winhost.model.facts import Json, MissingFact, Unavailable
from winhost.model.no_such_thing import NoSuchThing
from winhost.model.refusal import Refusal
from winhost.model.units import Bytes, MiB, about, size
from winhost.paths.wsl2_linux import (
    CDI_PATH,
    CDI_PATH_FILE,
    CDI_SERVICE,
    CDI_SERVICE_FILE,
    DOCKER_FILE,
    DOCKER_SETTINGS,
    TOOLKIT,
    Repository,
    StaticAddress,
    docker,
    network_file,
)
from winhost.paths.wsl2_settings import AUTO, Bridge, File, Settings
from winhost.resources.host import Card, HostFacts
from winhost.resources.windows.external_switch.resource import ExternalSwitch
from winhost.resources.windows.hyperv_firewall.resource import WSL
from winhost.resources.windows.network_adapter.resource import ETHERNET, TEAM, VIRTUAL, WIFI, NetworkAdapter
from winhost.resources.windows.wsl.resource import Wsl
from winhost.resources.windows.wsl_config.resource import WslConfig
from winhost.sizing.budget import WINDOWS_USABLE, wsl_default_ram
from winhost.wslconfig import WSLCONF, changed

Mode = Literal["bridged", "mirrored", "nat"]
UNBRIDGED: tuple[Mode, ...] = ("mirrored", "nat")  # what a plan takes by itself, the better one first

SSH, BESIDE_WINDOWS = 22, 2222
EVERYWHERE = "0.0.0.0"  # noqa: S104 - of the distro; who may come there, a firewall of Windows says
FOR_EVER = "-1"  # of both idle times: no client window has to stay open
# Of the group that nobody gave out: locally administered, and no multicast.
LOCAL_MAC = 0x02


@dataclass(frozen=True)
class Staged:
    """A file that the host is to have, as noun StagedFile names it."""

    sha256: str
    name: str
    source: str
    title: str


@dataclass(frozen=True)
class Config:
    """What `.wslconfig` shall be, whole; digest: SHA-256 of it, by which a running VM tells that it has read it."""

    text: str
    encoding: str
    digest: str


@dataclass(frozen=True)
class Conf:
    """/etc/wsl.conf, and the files of an address of its own, where the distro has one; see noun WslConf."""

    text: str
    network: str | None
    resolver: str | None


@dataclass(frozen=True)
class WayIn:
    """Where sshd of the distro listens, for which public keys, and from which networks.

    allowed: None behind NAT: all that comes in comes from Windows, and whom that lets in its own firewall says.
    """

    port: int
    listen: str
    keys: list[str]
    allowed: list[str] | None
    who: str


@dataclass(frozen=True)
class WslMemory:
    """Of the Linux VM, in bytes; why: the same for people, with the reason."""

    given: Bytes
    why: str


def mac_address(machine_id: str, account: str) -> str:
    """An address of our own for the bridged VM of an account: the same on every run, another on every machine.

    Left to itself WSL takes 5e:bb:f6:9e:ee:fa everywhere: it "draws" it from a generator that is never seeded
    (microsoft/WSL #9492, and its source).
    """
    drawn = sha256(f"winhost {machine_id.lower()} {account.lower()}".encode()).digest()
    return ":".join(f"{byte:02x}" for byte in (LOCAL_MAC, *drawn[:5]))


def memory(facts: HostFacts, cards: Sequence[Card], stated: Bytes | None) -> WslMemory:
    """At least the memory of all GPUs, where the host has it beside what Windows needs. Raises MissingFact.

    With less than the cards have, WSL was seen to fail on them (microsoft/WSL #40678); half of the host is what it
    takes by itself.
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
        cards_have = sum(map(memory_of, cards))
    except MissingFact as missing:
        given = half // MiB * MiB
        return WslMemory(given, f"{size(given)}, half of the host's {about(total)}, because {missing}")
    given = max(half, min(cards_have, most)) // MiB * MiB
    larger = f"the larger of half the host's {about(total)} and the {size(cards_have)} of its GPUs"
    return WslMemory(given, f"{size(given)}, {larger}, and {size(WINDOWS_USABLE)} stay with Windows")


def adapter(facts: HostFacts, bridge: Bridge) -> str | None:
    """The interface GUID of the adapter for a switch: by that or by its exact name, or the one that suits best.

    None where none is asked for. Raises NoSuchThing, Refusal where none suits, MissingFact.
    """
    if bridge.adapter is None:
        return None
    return _best_adapter(facts, bridge.switch) if bridge.adapter == AUTO else _adapter_named(facts, bridge.adapter)


def _best_adapter(facts: HostFacts, switch: str) -> str:
    """That of the switch, once it is made; else a wired one with a link, if possible not the one that leads to us."""
    if made := _adapter_of(facts, switch):
        return made
    wired = [each for each in facts.all(NetworkAdapter) if each.state.kind == ETHERNET and each.state.switch is None]
    fit = sorted(
        (each.state.management, each.state.name, each.key["adapter"]) for each in wired if each.state.status == "up"
    )
    if not fit:
        raise Refusal(
            "wsl.no-adapter",
            "No wired network adapter with a link is free for a switch.",
            "Plug one in, name another one: --set bridge.adapter=NAME, or use --set network=nat",
        )
    return fit[0][-1]


def _adapter_of(facts: HostFacts, switch: str) -> str | None:
    """None before Hyper-V is there, and so no switch."""
    try:
        found = facts.of(ExternalSwitch, {"name": switch})
    except MissingFact as missing:
        if isinstance(missing.missing, Unavailable):
            return None
        raise
    return found.adapter if found else None


def _adapter_named(facts: HostFacts, asked: str) -> str:
    known = {each.key["adapter"]: each.state.name for each in facts.all(NetworkAdapter)}
    found = [guid for guid, name in known.items() if asked.strip("{}").lower() == guid or asked == name]
    if len(found) != 1:
        raise NoSuchThing(facts.host, "network adapter", asked, known, several=bool(found))
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


def allowed(facts: HostFacts, settings: Settings) -> tuple[str, ...]:
    """Networks that may come in: those that were named, else those that the host itself is in.

    Raises Refusal where it is in none, MissingFact.
    """
    named = _texts(settings.access.allow) or networks(facts)
    if not named:
        raise Refusal(
            "wsl.nobody-allowed",
            "No network adapter of the host has an address, so nobody is known who may come into the distro.",
            "Name the networks that may: --set access.allow=[192.0.2.0/24]",
        )
    return named


class Wsl2Decisions:
    """Each is made when it is asked for: before the account has logged on there is no `.wslconfig`, and the entries
    that ask for it wait for the next stage. Lists of none or one stand for what is wanted only sometimes.
    """

    def __init__(self, facts: HostFacts, settings: Settings, mode: Mode) -> None:
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
        """The MSI of WSL, unless what is installed is as new: it is never downgraded."""
        package = self._settings.wsl
        installed = self._facts.the(Wsl).version
        if installed and Version(installed) >= Version(package.version):
            return ()
        return (_staged(package, f"The MSI of WSL {package.version}"),)

    @property
    def wsl(self) -> Mapping[str, str]:
        return {"version": self._settings.wsl.full}

    @cached_property
    def cards(self) -> tuple[Card, ...]:
        """The GPUs that CUDA runs on."""
        return tuple(filter(runs_cuda, self._facts.cards))

    @cached_property
    def invisible(self) -> tuple[Mapping[str, str], ...]:
        """Cards whose driver model WSL cannot see, and which take the others with them."""
        return tuple(
            {**card.gpu.key, "name": card_label(card)} for card in self.cards if card.gpu.state.driver_model == "TCC"
        )

    @cached_property
    def switches(self) -> tuple[Mapping[str, str], ...]:
        """The switch to make, where one is wanted. Raises NoSuchThing for an adapter that is not there, MissingFact."""
        bridge = self._settings.bridge
        if self._mode != "bridged" or bridge is None or bridge.adapter is None:
            return ()
        chosen = adapter(self._facts, bridge)
        return ({"name": bridge.switch, "adapter": chosen},) if chosen else ()

    @property
    def conf(self) -> Conf:
        bridge = self._settings.bridge
        static = bridge if self._mode == "bridged" and bridge and bridge.address != "dhcp" else None
        own_names = static is not None and bool(static.dns)
        wanted = {
            ("boot", "systemd"): "true",
            ("user", "default"): "root",  # whom an image made for people would log on, winhost's units do not know
            ("interop", "appendWindowsPath"): "false",
        }
        if own_names:
            wanted["network", "generateResolvConf"] = "false"
        return Conf(
            changed("", wanted, WSLCONF),
            network_file(StaticAddress.parse(static.address, str(static.gateway), _texts(static.dns)))
            if static
            else None,
            "".join(f"nameserver {server}\n" for server in static.dns) if static and own_names else None,
        )

    @cached_property
    def ways_in(self) -> tuple[WayIn, ...]:
        """By SSH, where the settings name a key. Bridged with an address of its own it listens there only."""
        access, bridge = self._settings.access, self._settings.bridge
        if access.key is None:
            return ()
        static = self._mode == "bridged" and bridge is not None and bridge.address != "dhcp"
        listen = bridge.address.split("/")[0] if bridge and static else EVERYWHERE
        allowed = None if self._mode == "nat" else self._allowed
        return (WayIn(self._port, listen, [access.key], allowed, self._who),)

    @property
    def _port(self) -> int:
        """Bridged the distro has all ports to itself; else they are those of Windows, whose own sshd may have 22."""
        return self._settings.access.port or (SSH if self._mode == "bridged" else BESIDE_WINDOWS)

    @property
    def forwards(self) -> tuple[Mapping[str, Json], ...]:
        """Behind NAT nobody reaches the distro but through a port of Windows."""
        if self._mode != "nat" or not self.ways_in:
            return ()
        return ({"port": str(self._port), "connect": self._port, "allowed": self._allowed, "who": self._who},)

    @property
    def openings(self) -> tuple[Mapping[str, Json], ...]:
        """Mirrored, the Hyper-V firewall lets nothing in by itself."""
        if self._mode != "mirrored" or not self.ways_in:
            return ()
        return ({"creator": WSL, "ports": [self._port], "allowed": self._allowed, "who": self._who},)

    @cached_property
    def _allowed(self) -> list[str]:
        """Raises Refusal where nobody is known who may come in, MissingFact."""
        return list(allowed(self._facts, self._settings))

    @property
    def _who(self) -> str:
        named = "as you set it" if self._settings.access.allow else "the host's own; others: --set access.allow=[…]"
        return f"{', '.join(self._allowed)} ({named})"

    @property
    def sources(self) -> tuple[Repository, ...]:
        """Where the packages for containers come from. None where nobody can get in to install them."""
        return (docker(self._settings.containers.ubuntu), TOOLKIT) if self.ways_in else ()

    @property
    def packages_inside(self) -> tuple[Mapping[str, str], ...]:
        wanted = (
            ("docker-ce", self._settings.containers.docker, "Docker Engine"),
            ("nvidia-container-toolkit", self._settings.containers.toolkit, "NVIDIA Container Toolkit"),
        )
        return tuple({"name": n, "version": v, "title": t} for n, v, t in wanted if self.ways_in)

    @property
    def files(self) -> tuple[Mapping[str, str], ...]:
        moved = (
            "With a new driver of Windows the files that containers get are others; they are looked up at each start."
        )
        updated = "A new version of NVIDIA's tool may find more of them, so they are looked up then, too."
        runtime = "With NVIDIA's runtime Docker gives GPUs to the containers that ask for them."
        wanted = (
            (CDI_SERVICE_FILE, CDI_SERVICE, "The unit that tells containers of the GPUs", moved),
            (CDI_PATH_FILE, CDI_PATH, "The unit that watches NVIDIA's tool", updated),
            (DOCKER_FILE, DOCKER_SETTINGS, "Docker's settings", runtime),
        )
        return tuple({"path": p, "text": t, "title": n, "why": why} for p, t, n, why in wanted if self.ways_in)

    @property
    def units(self) -> tuple[Mapping[str, str], ...]:
        wanted = ("docker.service", "winhost-cdi.service", "winhost-cdi.path")
        return tuple({"name": name} for name in wanted if self.ways_in)

    @property
    def specs(self) -> tuple[Mapping[str, str], ...]:
        return ({"title": "The GPUs, for containers"},) if self.ways_in else ()

    @cached_property
    def memory(self) -> WslMemory:
        return memory(self._facts, self.cards, self._settings.stated("memory"))

    @cached_property
    def config(self) -> Config:
        found = self._facts.of(WslConfig, {"account": self.account})
        assert found is not None
        text = changed(found.text or "", self._wanted())
        return Config(text, found.encoding or "utf-8", sha256(text.encode()).hexdigest())

    def _wanted(self) -> dict[tuple[str, str], str | None]:
        wanted: dict[tuple[str, str], str | None] = {
            ("wsl2", "networkingMode"): self._mode,
            ("wsl2", "memory"): f"{self.memory.given // MiB}MB",
            ("wsl2", "guiApplications"): "false",
            ("wsl2", "vmIdleTimeout"): FOR_EVER,
            ("general", "instanceIdleTimeout"): FOR_EVER,
        }
        if (swap := self._settings.stated("swap")) is not None:
            wanted["wsl2", "swap"] = f"{swap // MiB}MB"
        if self._settings.processors is not None:
            wanted["wsl2", "processors"] = str(self._settings.processors)
        if self._mode == "bridged" and self._settings.bridge:
            wanted["wsl2", "vmSwitch"] = self._settings.bridge.switch
            wanted["wsl2", "macAddress"] = mac_address(self._facts.os.machine_id, self.account)
            wanted["wsl2", "dhcp"] = str(self._settings.bridge.address == "dhcp").lower()
        return wanted


def _texts(addresses: Sequence[object]) -> tuple[str, ...]:
    return tuple(map(str, addresses))


def _staged(file: File, title: str) -> Staged:
    return Staged(file.sha256, file.name, file.source, title)
