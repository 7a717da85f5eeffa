"""WSL 2: the memory of its VM, and the network of its distro."""

from collections.abc import Sequence
from hashlib import sha256
from ipaddress import ip_interface
from typing import Literal

from winhost.core.answers import MissingFact, if_available
from winhost.core.dataclass import dataclass
from winhost.hardware.host_gpus import memory_of
from winhost.images.seed import GuestAddress
from winhost.model.errors import NotOnHost
from winhost.model.reason import Refusal
from winhost.model.units import Bytes, MiB, about, size
from winhost.paths.wsl2_settings import AUTO, Bridge, Wsl2Settings
from winhost.resources.host import Gpu, HostFacts
from winhost.resources.windows.network import ExternalSwitch
from winhost.resources.windows.read_only import ETHERNET, TEAM, VIRTUAL, WIFI, NetworkAdapter
from winhost.sizing.host_memory import WINDOWS_USABLE, wsl_default_ram

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


NetworkingMode = Literal["bridged", "mirrored", "nat"]
UNBRIDGED: tuple[NetworkingMode, ...] = ("mirrored", "nat")  # what a plan takes by itself, the better one first


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
    if bridge.adapter == AUTO:
        return _best_adapter(facts, bridge.switch)
    known = {each.key["adapter"]: each.state.name for each in facts.all(NetworkAdapter)}
    named = (bridge.adapter.strip("{}").lower(), bridge.adapter)
    found = [guid for guid, name in known.items() if guid == named[0] or name == named[1]]
    if len(found) != 1:
        raise NotOnHost(facts.host, "network adapter", bridge.adapter, known, several=bool(found))
    return found[0]


def _best_adapter(facts: HostFacts, switch: str) -> str:
    """The switch's adapter if it exists; else a wired one with a link, preferably not the one that winhost uses."""
    made = if_available(lambda: facts.of(ExternalSwitch, {"name": switch}))  # none without Hyper-V
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
