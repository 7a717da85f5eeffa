"""The content of .wslconfig of the account, and of /etc/wsl.conf and the network files of the distro."""

from ipaddress import IPv4Interface

from winhost.core.dataclass import dataclass
from winhost.images.seed import GuestAddress
from winhost.model.units import Bytes, MiB
from winhost.paths.wsl2_network import Mode
from winhost.paths.wsl2_settings import Wsl2Settings
from winhost.wslconfig import WSLCONF, changed


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
