"""WSL 2: the settings of its path, the memory of its VM, and the network of its distro."""

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib.resources import files
from ipaddress import IPv4Address, IPv4Network, ip_interface
from typing import Annotated, Literal

from packaging.version import Version
from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from winhost.core.answers import MissingFact, if_available
from winhost.core.dataclass import dataclass
from winhost.hardware.host_gpus import gpu_memory
from winhost.images.seed import GuestAddress
from winhost.model.catalogue_file import load_catalogue
from winhost.model.errors import NotOnHost, did_you_mean, visible
from winhost.model.once import once
from winhost.model.reason import Refusal
from winhost.model.units import Bytes, MiB, about, parse_size, size
from winhost.model.written import Closed
from winhost.paths.setting_values import (
    SWAP_OFF,
    Account,
    Debian,
    HostSpecific,
    Name,
    PublishedEndpoint,
    Sha256,
    Source,
    address_value,
    matching,
    memory_value,
    public_key,
    refuse_gateway,
    swap_value,
    zero_to_text,
)
from winhost.resources.host import Gpu, HostFacts
from winhost.resources.windows.network import ExternalSwitch
from winhost.resources.windows.read_only import ETHERNET, TEAM, VIRTUAL, WIFI, NetworkAdapter
from winhost.sizing.memories import WINDOWS_USABLE, wsl_default_ram


@once
def images() -> Mapping[str, Mapping[str, str]]:
    """Return the source and SHA-256 of each pinned image, by name."""
    known: dict[str, dict[str, str]] = load_catalogue(files(__package__).joinpath("images.yaml"))
    return known


def resolve_image(image: object) -> object:
    """Return source and hash of a named image; return a mapping unchanged. Raises ValueError."""
    if not isinstance(image, str):
        return image
    if image not in images():
        near = did_you_mean(image, images()) or f"; there are: {', '.join(images())}."
        raise ValueError(
            f"no image is pinned as '{visible(image)}'{near} Any other one goes by image.source and image.sha256"
        )
    return images()[image]


# ---- settings


AUTO = "auto"
_OWN_SWITCH_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")  # what resource ExternalSwitch makes
FIRST_TOOLKIT = Version("1.20.0")  # NVIDIA/nvidia-container-toolkit f2426fc7: all of the driver store, not a list


class File(Closed):
    """A file for the host, identified by its hash."""

    source: Source
    """An https:// address that the host can reach, a path on the host, or ./ and the name of a file in the plan's
    folder, which is uploaded to the host.
    """
    sha256: Sha256

    @property
    def name(self) -> str:
        """Its file name on the host: the last part of its source, in plain characters."""
        return re.sub(r"[^A-Za-z0-9._-]", "-", re.split(r"[/\\]", self.source)[-1])[-64:]


class WslPackage(File):
    """The MSI of WSL."""

    version: Annotated[
        str, matching(r"[0-9]{1,4}(\.[0-9]{1,5}){2,3}", "three or four numbers with dots between, as 2.7.14")
    ]

    @property
    def full(self) -> str:
        """The version with the four parts that Windows Installer writes."""
        return ".".join([*self.version.split("."), "0"][:4])


class Access(Closed):
    """SSH access to the distro; without a key there is none, and the plan ends with the distro."""

    key: Annotated[str, AfterValidator(public_key)] | None = None
    """The public key of the machine that runs winhost."""
    port: Annotated[int, Field(strict=True, ge=1, le=65535)] | None = None
    """Left out: 22 bridged, else 2222, because Windows may have an sshd of its own."""
    allow: tuple[IPv4Network, ...] = ()
    """IPv4 networks that may connect, as 192.0.2.0/24. Default: those that the host itself is in. The computer that
    runs winhost has to be in one of them.
    """


class Bridge(Closed):
    """The distro as a machine of its own in the host's network."""

    switch: Name = "winhost"
    """The external switch to bridge to; made on `adapter` where it is not there."""
    adapter: str | None = None
    """The network adapter to make the switch on, by name or interface GUID, or auto: a wired one with a link, rather
    not the one that winhost comes through. No other one is touched.
    """
    address: Annotated[str, AfterValidator(address_value), HostSpecific("address")] = "dhcp"
    gateway: IPv4Address | None = None
    dns: tuple[IPv4Address, ...] = ()

    @model_validator(mode="after")
    def _agrees(self) -> "Bridge":
        if self.adapter is not None and not _OWN_SWITCH_NAME.fullmatch(self.switch):
            raise ValueError(f"{self.switch}: a switch that is made has a name of 1 to 32 letters, digits, - and _")
        if self.address == "dhcp":
            if self.gateway or self.dns:
                raise ValueError("gateway and dns go with a static address; DHCP brings its own")
        elif self.gateway is None:
            raise ValueError(f"{self.address} needs a gateway in its network")
        else:
            refuse_gateway(self.gateway, self.address)
        return self


class Containers(Closed):
    """Pinned versions of what runs containers in the distro; they are not upgraded automatically."""

    ubuntu: Annotated[str, matching("[a-z]{2,20}", "one word in small letters, as noble")]
    """The code name of the image's Ubuntu, by which Docker sorts its packages."""
    docker: Debian
    toolkit: Debian
    """nvidia-container-toolkit: 1.20.0 and later know the whole driver that WSL mounts."""

    @field_validator("toolkit")
    @classmethod
    def _knows_wsl(cls, version: str) -> str:
        if Version(version.partition("-")[0]) < FIRST_TOOLKIT:
            raise ValueError(
                f"should be {FIRST_TOOLKIT} or later: before it, containers in WSL lack most of the driver"
            )
        return version


class Watcher(Closed):
    """A watcher for somebody at the desktop; the fields of resource YieldWatcher."""

    account: str
    settings: str
    key: str
    """A secret reference to the yield key."""
    digest: Sha256


class Wsl2Settings(Closed):
    """Settings of the WSL 2 path. What only you can know has no default."""

    network: Literal["auto", "bridged", "mirrored", "nat"] = "auto"
    """auto: bridged where `bridge` says how, else mirrored where this Windows and WSL can, else NAT."""
    bridge: Bridge | None = None
    account: Account = "winhost"
    administrator: bool = False
    """Make the account that owns the distro an administrator: only for where WSL is seen to refuse others."""
    distro: Name = "winhost"
    image: Annotated[File, BeforeValidator(resolve_image)]
    """The name of one that is pinned, as Ubuntu-24.04, or source and sha256 of any other."""
    wsl: WslPackage
    memory: Annotated[str, AfterValidator(memory_value)] = "auto"
    """The memory of the Linux: auto, or a size such as 48 GiB."""
    swap: Annotated[str, AfterValidator(swap_value), BeforeValidator(zero_to_text)] = "auto"
    """auto: the default of WSL, a quarter of memory; 0: none, as Kubernetes requires; or a size."""
    processors: Annotated[int, Field(strict=True, ge=1, le=2048)] | None = None
    access: Access = Access()
    containers: Containers
    never_sleep: bool = False
    """Set the active power plan never to sleep or hibernate on AC power."""
    endpoint: PublishedEndpoint | None = None
    """The endpoint in the distro for other machines: Windows opens or forwards its port. `--workload` sets it."""

    watchers: tuple[Watcher, ...] = ()
    """The watchers that ask for the GPUs in the sessions of people at the desktop. `--workload` sets them, by
    availability.yield_to.
    """

    @model_validator(mode="after")
    def _agrees(self) -> "Wsl2Settings":
        if self.network == "bridged" and self.bridge is None:
            raise ValueError(
                "network=bridged also needs bridge.switch=NAME, an external switch that is there, or "
                "bridge.adapter=NAME, the network adapter to make one on"
            )
        if self.network in ("mirrored", "nat") and self.bridge is not None:
            raise ValueError(f"bridge.* is for network=bridged, and not for network={self.network}")
        return self

    def stated(self, name: Literal["memory", "swap"]) -> Bytes | None:
        """Return a size in bytes, or None for auto."""
        text: str = getattr(self, name)
        if text == "auto":
            return None
        return 0 if text == SWAP_OFF else parse_size(text)


# ---- memory of the VM


@dataclass(frozen=True)
class WslMemory:
    """The memory of WSL. given: bytes for the Linux VM; why: the size as text, with the reason."""

    given: Bytes
    why: str


def wsl_memory(facts: HostFacts, gpus: Sequence[Gpu], stated: Bytes | None) -> WslMemory:
    """Size the memory of WSL: at least that of all GPUs, if the host has as much besides what Windows needs.

    With less than the GPUs have, WSL was seen to fail on them (microsoft/WSL #40678). Its default is half of the host's
    memory. Raises MissingFact.
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
        gpus_have = sum(map(gpu_memory, gpus))
    except MissingFact as missing:
        given = half // MiB * MiB
        return WslMemory(given, f"{size(given)}, half of the host's {about(total)}, because {missing}")
    given = max(half, min(gpus_have, most)) // MiB * MiB
    larger = f"the larger of half the host's {about(total)} and the {size(gpus_have)} of its GPUs"
    return WslMemory(given, f"{size(given)}, {larger}, and {size(WINDOWS_USABLE)} stay with Windows")


# ---- network of the distro


NetworkingMode = Literal["bridged", "mirrored", "nat"]
UNBRIDGED: tuple[NetworkingMode, ...] = ("mirrored", "nat")  # what a plan takes by itself, the better one first


# The first byte: locally administered, and not multicast.
LOCAL_MAC = 0x02


def mac_address(machine_id: str, account: str) -> str:
    """Return a MAC address for the bridged VM of an account: the same on every run, different on every machine.

    By default WSL uses 5e:bb:f6:9e:ee:fa everywhere, because its random generator is never seeded (microsoft/WSL #9492,
    and its source).
    """
    digest = sha256(f"winhost {machine_id.lower()} {account.lower()}".encode()).digest()
    return ":".join(f"{byte:02x}" for byte in (LOCAL_MAC, *digest[:5]))


def bridge_adapter(facts: HostFacts, bridge: Bridge) -> str | None:
    """Return the interface GUID of the adapter for a switch, by GUID, by exact name, or (auto) the most suitable one.

    None if the setting is unset. Raises NotOnHost, Refusal if no adapter is suitable, MissingFact.
    """
    if bridge.adapter is None:
        return None
    if bridge.adapter == AUTO:
        return _best_adapter(facts, bridge.switch)
    known = {each.key["adapter"]: each.state.name for each in facts.all(NetworkAdapter)}
    names = (bridge.adapter.strip("{}").lower(), bridge.adapter)
    found = [guid for guid, name in known.items() if guid == names[0] or name == names[1]]
    if len(found) != 1:
        raise NotOnHost(facts.host, "network adapter", bridge.adapter, known, several=bool(found))
    return found[0]


def _best_adapter(facts: HostFacts, switch: str) -> str:
    """Return the switch's adapter if it exists; else a wired one with a link, preferably not that of winhost."""
    made = if_available(lambda: facts.find(ExternalSwitch, {"name": switch}))  # none without Hyper-V
    if made and made.adapter:
        return made.adapter
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


def host_networks(facts: HostFacts) -> tuple[str, ...]:
    """Return the IPv4 networks of the host's external adapters, as `192.0.2.0/24`. Raises MissingFact.

    They do not change when a switch is created on an adapter: then the host's port on the switch has the addresses.
    """
    adapters = [each.state for each in facts.all(NetworkAdapter)]
    outward = [adapter for adapter in adapters if adapter.kind in (ETHERNET, WIFI, TEAM)]
    bound = {adapter.mac for adapter in outward} - {None}
    outward += [each for each in adapters if each.kind == VIRTUAL and (each.mac in bound or each.gateway is not None)]
    found = [ip_interface(f"{each.address}/{each.prefix}") for adapter in outward for each in adapter.addresses]
    return tuple(sorted({str(each.network) for each in found if each.version == 4 and not each.is_link_local}))


def allowed_networks(facts: HostFacts, settings: Wsl2Settings) -> tuple[str, ...]:
    """Return the networks that may connect: those of the settings, else the host's own.

    Raises Refusal if the host is in none, MissingFact.
    """
    chosen = tuple(map(str, settings.access.allow)) or host_networks(facts)
    if not chosen:
        raise Refusal(
            "wsl.nobody-allowed",
            "No network adapter of the host has an address, so no network is allowed to reach the distro.",
            "Set the networks that may connect: --set access.allow=[192.0.2.0/24]",
        )
    return chosen


def network_file(static: GuestAddress) -> str:
    """Return the file for systemd-networkd. All distros of one WSL share their adapter: exactly one of them has this
    file.
    """
    lines = [
        "# Written by winhost.",
        "[Match]",
        "Name=eth0",
        "",
        "[Network]",
        f"Address={static.interface.with_prefixlen}",
        f"Gateway={static.gateway}",
        *(f"DNS={each}" for each in static.resolvers),
        # Otherwise networkd waits for an IPv6 router, and delays all that needs the network by two minutes at each
        # boot.
        "IPv6AcceptRA=no",
    ]
    return "\n".join(lines) + "\n"
