"""Rules of the network modes of WSL 2: bridged, mirrored and NAT."""

from packaging.version import Version

from winhost.compat.common import CLIENTS, WINDOWS_10_21H2, WINDOWS_11
from winhost.compat.rule import rule
from winhost.compat.wsl2 import version
from winhost.knowledge.versions import revision
from winhost.resources.host import HostFacts
from winhost.resources.windows.external_switch import ExternalSwitch
from winhost.resources.windows.hyperv_role import INSTALLED
from winhost.resources.windows.network_adapter import ETHERNET, TEAM, VPN, WIFI, NetworkAdapter
from winhost.resources.windows.vm_switch import VmSwitch
from winhost.resources.windows.wsl_policy import WslPolicy

# microsoft/WSL #12743, #13211: announced to go, gone, back
BRIDGE_WARNED, BRIDGE_GONE, BRIDGE_BACK = Version("2.4.5"), Version("2.5.4"), Version("2.5.6")
FIRST_MIRRORED = Version("2.0.0")
MIRRORED_FROM = revision("MIRRORED")
HOME_SKUS = (98, 99, 100, 101)  # Core N, Country Specific, Single Language, Core
MODES = {0: "none", 1: "NAT", 3: "mirrored", 4: "VirtioProxy"}  # microsoft/WSL intune/WSL.admx, DefaultNetworkingMode
NAT, MIRRORED = 1, 3
VPN_BROKEN_BUILDS, VPN_BROKEN_FROM = (26100, 26200), 7019  # microsoft/WSL #13724; KB5067036, KB5068861
# Of products that filter what passes an adapter, as their drivers are called in the list of its bindings.
FIREWALLS = (
    *("bitdefender", "check point", "comodo", "eset", "f-secure", "fortinet", "kaspersky", "mcafee", "norton"),
    *("sophos", "symantec", "trellix", "trend micro", "zonealarm"),
)
WIRELESS = ("wi-fi", "wifi", "wireless", "802.11", "wlan")  # in the names that vendors give adapters


# --- Bridged -------------------------------------------------------------------------------------------------------


@rule("wsl2.no-bridge")
def windows_10_cannot_bridge(facts: HostFacts) -> str | None:
    """On Windows 10 `networkingMode=bridged` fails: the Host Network Service refuses the endpoint."""
    if facts.os.family in CLIENTS and WINDOWS_10_21H2 <= facts.os.build < WINDOWS_11:
        return facts.os.named
    return None


@rule("wsl2.bridge-removed")
def bridge_removed(facts: HostFacts) -> str | None:
    """WSL 2.5.4 and 2.5.5 have no bridged networking."""
    found = version(facts)
    if found and BRIDGE_GONE <= found < BRIDGE_BACK:
        return f"WSL {found}"
    return None


@rule("wsl2.bridge-warned")
def bridge_warned(facts: HostFacts) -> str | None:
    """WSL 2.4.5 to 2.5.3 warn at each start that bridged networking will be removed, which was revoked."""
    found = version(facts)
    if found and BRIDGE_WARNED <= found < BRIDGE_GONE:
        return f"WSL {found}"
    return None


@rule("wsl2.no-external-switch")
def no_external_switch(facts: HostFacts) -> str | None:
    """No external virtual switch exists; the Default Switch and internal ones do not reach the LAN."""
    if not _external(facts):
        return ", ".join(f"{s.state.name} ({s.state.kind})" for s in facts.all(VmSwitch)) or "no switch"
    return None


@rule("wsl2.bridge-over-wireless")
def only_wireless_switches(facts: HostFacts) -> str | None:
    """The only adapters to bridge are wireless, by their names, which vendors write in English."""
    adapters = [str(switch.adapter) for switch in _external(facts)] or _only(facts, WIFI)
    if adapters and all(any(word in name.casefold() for word in WIRELESS) for name in adapters):
        return ", ".join(adapters)
    return None


@rule("wsl2.bridge-over-team")
def only_a_team(facts: HostFacts) -> str | None:
    """The only adapter with a link is an LBFO team, on which newer servers refuse a Hyper-V switch."""
    teams = _only(facts, TEAM)
    return ", ".join(teams) if teams else None


@rule("wsl2.no-adapter")
def nothing_to_bridge(facts: HostFacts) -> str | None:
    """No network adapter has a link, so a new switch would reach nothing."""
    if _switchless(facts) and not _linked(facts, ETHERNET, WIFI, TEAM):
        return ", ".join(a.name for a in _adapters(facts)) or "no adapter"
    return None


@rule("wsl2.bridge-moves-management")
def moves_the_management(facts: HostFacts) -> str | None:
    """Every suitable adapter carries the host's management, so creating the switch interrupts it. Wireless adapters and
    teams count only where no wired adapter has a link.
    """
    suiting = _linked(facts, ETHERNET) or _linked(facts, WIFI, TEAM)
    if _switchless(facts) and suiting and all(adapter.management for adapter in suiting):
        return "; ".join(map(_what_moves, suiting))
    return None


@rule("wsl2.bridge-shared")
def shares_the_switch(facts: HostFacts) -> str | None:
    """VMs use the external switch; they keep it, and rollback keeps it while they do."""
    used = [f"{each.key['name']}: {each.state.vms}" for each in facts.all(ExternalSwitch) if each.state.vms]
    return ", ".join(used) if used else None


@rule("wsl2.bridge-filtered")
def filtered(facts: HostFacts) -> str | None:
    """A third-party firewall filter, recognized by its name, is bound to an adapter."""
    known = _firewalls(facts)
    return ", ".join(known) if known else None


@rule("wsl2.bridge-beside-vpn")
def bridged_beside_a_vpn(facts: HostFacts) -> str | None:
    """A VPN is up, and a bridged distro does not use it."""
    tunnels = _tunnels(facts)
    return ", ".join(tunnels) if tunnels else None


# --- Policies ------------------------------------------------------------------------------------------------------


@rule("wsl2.policy-overrides")
def policy_overrides(facts: HostFacts) -> str | None:
    """Policies override keys of .wslconfig; WSL ignores them with a warning."""
    policy = facts.the(WslPolicy)
    settings = {
        "kernel": policy.allow_kernel,
        "kernelCommandLine": policy.allow_kernel_command_line,
        "systemDistro": policy.allow_system_distro,
        "networkingMode": policy.allow_networking,
        "firewall": policy.allow_firewall,
        "nestedVirtualization": policy.allow_nested,
    }
    fixed = [name for name, allowed in settings.items() if allowed is False]
    return ", ".join(fixed) if fixed else None


@rule("wsl2.policy-no-bridge")
def policy_fixes_the_mode(facts: HostFacts) -> str | None:
    """A policy fixes the network mode, and no policy value means bridged."""
    if facts.the(WslPolicy).allow_networking is False:
        return f"the mode is {_mode(facts)}"
    return None


@rule("wsl2.policy-no-mirror")
def policy_fixes_another_mode(facts: HostFacts) -> str | None:
    """A policy fixes the network mode to another one than mirrored."""
    if facts.the(WslPolicy).allow_networking is False and facts.the(WslPolicy).default_networking != MIRRORED:
        return f"the mode is {_mode(facts)}"
    return None


@rule("wsl2.policy-no-nat")
def policy_leaves_nat(facts: HostFacts) -> str | None:
    """A policy fixes the network mode to another one than NAT, which is also the default without a value."""
    policy = facts.the(WslPolicy)
    if policy.allow_networking is False and policy.default_networking not in (None, NAT):
        return f"the mode is {_mode(facts)}"
    return None


def _mode(facts: HostFacts) -> str:
    number = facts.the(WslPolicy).default_networking
    return MODES[NAT] if number is None else MODES.get(number, str(number))


# --- Mirrored, NAT -------------------------------------------------------------------------------------------------


@rule("wsl2.no-mirror-update")
def windows_lacks_the_update(facts: HostFacts) -> str | None:
    """Windows 11 22H2 can mirror from an update of September 2023 on; before, WSL falls back to NAT."""
    if facts.os.family in CLIENTS and MIRRORED_FROM.lacks(facts.os.build, facts.os.revision):
        return f"build {facts.os.build}.{facts.os.revision}, needed is {MIRRORED_FROM}"
    return None


@rule("wsl2.mirror-needs-wsl-2-0")
def wsl_cannot_mirror(facts: HostFacts) -> str | None:
    """Mirrored networking needs WSL 2.0 or newer."""
    found = version(facts)
    if found and found < FIRST_MIRRORED:
        return f"WSL {found}"
    return None


@rule("wsl2.nat-behind-vpn")
def behind_a_vpn(facts: HostFacts) -> str | None:
    """A VPN is up, recognized by its adapter's driver; behind NAT, WSL often loses its network then."""
    tunnels = _tunnels(facts)
    return ", ".join(tunnels) if tunnels else None


@rule("wsl2.mirrored-vpn")
def mirrors_a_vpn(facts: HostFacts) -> str | None:
    """A VPN is up, recognized by its adapter's driver; mirrored networking works with some VPN clients only."""
    tunnels = _tunnels(facts)
    return ", ".join(tunnels) if tunnels else None


@rule("wsl2.mirrored-vpn-update")
def mirrors_a_vpn_after_the_update(facts: HostFacts) -> str | None:
    """A VPN is up on a build that has the update of November 2025."""
    os, tunnels = facts.os, _tunnels(facts)
    if not tunnels or os.build not in VPN_BROKEN_BUILDS or os.revision < VPN_BROKEN_FROM:
        return None
    return f"build {os.build}.{os.revision}; {', '.join(tunnels)}"


@rule("wsl2.nat-filtered")
def nat_filtered(facts: HostFacts) -> str | None:
    """A third-party firewall filters an adapter, and some block traffic from behind NAT."""
    known = _firewalls(facts)
    return ", ".join(known) if known else None


def _tunnels(facts: HostFacts) -> list[str]:
    """Descriptions of the VPN adapters that are up."""
    return [adapter.description for adapter in _linked(facts, VPN)]


def _firewalls(facts: HostFacts) -> list[str]:
    """Names of third-party filters bound to adapters that are up."""
    names = sorted({name for adapter in _linked(facts, ETHERNET, WIFI, TEAM) for name in adapter.filters})
    return [name for name in names if any(maker in name.casefold() for maker in FIREWALLS)]


def _adapters(facts: HostFacts) -> list[NetworkAdapter]:
    return [adapter.state for adapter in facts.all(NetworkAdapter)]


def _linked(facts: HostFacts, *kinds: str) -> list[NetworkAdapter]:
    return [adapter for adapter in _adapters(facts) if adapter.kind in kinds and adapter.status == "up"]


def _switchless(facts: HostFacts) -> bool:
    """Whether no external switch exists, or Hyper-V is not installed."""
    return facts.role.role != INSTALLED or not _external(facts)


def _only(facts: HostFacts, kind: str) -> list[str]:
    """The adapters with a link that a new switch could use, where they are all of this kind."""
    found = _linked(facts, ETHERNET, WIFI, TEAM) if _switchless(facts) else []
    return [adapter.description for adapter in found] if {adapter.kind for adapter in found} == {kind} else []


def _what_moves(adapter: NetworkAdapter) -> str:
    addresses = [f"{each.address}/{each.prefix} ({each.origin})" for each in adapter.addresses]
    others = (("gateway", adapter.gateway), ("DNS", ", ".join(adapter.dns)), ("VLAN", adapter.vlan), _speed(adapter))
    told = [f"{name} {value}" for name, value in (*others, ("network", adapter.profile)) if value]
    return f"{adapter.name}: {', '.join([*addresses, *told]) or 'no address'}"


def _speed(adapter: NetworkAdapter) -> tuple[str, str]:
    return "speed", f"{adapter.speed / 1e9:g} Gbit/s" if adapter.speed else ""


def _external(facts: HostFacts) -> list[VmSwitch]:
    return [switch.state for switch in facts.all(VmSwitch) if switch.state.kind == "external"]
