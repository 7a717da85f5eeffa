"""WSL 2 by how its network is set up: each mode has needs of its own, and carries something else."""

from packaging.version import Version

from winhost.compat.builds import WINDOWS_10_21H2, WINDOWS_11, WINDOWS_11_22H2
from winhost.compat.common import CLIENTS, SERVERS
from winhost.compat.rule import BLOCKS, NOTES, Finding, degraded, note, rule, unsupported, unverified
from winhost.compat.wsl2 import version
from winhost.resources.host import HostFacts
from winhost.resources.windows import ExternalSwitch, NetworkAdapter, VmSwitch, WslPolicy
from winhost.resources.windows.hyperv import INSTALLED
from winhost.resources.windows.network import ETHERNET, TEAM, VPN, WIFI

# microsoft/WSL #12743, #13211: announced to go, gone, back
BRIDGE_WARNED, BRIDGE_GONE, BRIDGE_BACK = Version("2.4.5"), Version("2.5.4"), Version("2.5.6")
FIRST_MIRRORED = Version("2.0.0")
HOME_SKUS = (98, 99, 100, 101)  # Core N, Country Specific, Single Language, Core
MODES = {0: "none", 1: "NAT", 3: "mirrored", 4: "VirtioProxy"}  # microsoft/WSL intune/WSL.admx, DefaultNetworkingMode
NAT, MIRRORED = 1, 3
# Of products that filter what passes an adapter, as their drivers are called in the list of its bindings.
FIREWALLS = (
    *("bitdefender", "check point", "comodo", "eset", "f-secure", "fortinet", "kaspersky", "mcafee", "norton"),
    *("sophos", "symantec", "trellix", "trend micro", "zonealarm"),
)
WIRELESS = ("wi-fi", "wifi", "wireless", "802.11", "wlan")  # in the names that vendors give adapters


# --- Bridged -------------------------------------------------------------------------------------------------------


@rule("wsl2/bridged", unknown=BLOCKS)
def windows_10_cannot_bridge(facts: HostFacts) -> Finding | None:
    """The host's network service refuses the endpoint."""
    if facts.os.family in CLIENTS and WINDOWS_10_21H2 <= facts.os.build < WINDOWS_11:
        return unsupported("wsl2.no-bridge", observed=facts.os.named)
    return None


@rule("wsl2/bridged", unknown=BLOCKS)
def home_has_no_switch(facts: HostFacts) -> Finding | None:
    """WSL needs a part of Hyper-V only, which Home has; switches are not in it."""
    if facts.os.sku in HOME_SKUS:
        return unsupported("wsl2.home", observed=facts.os.named)
    return None


@rule("wsl2/bridged", unknown=BLOCKS)
def server_bridges_doubtfully(facts: HostFacts) -> Finding | None:
    """Two people tell of it, differently."""
    if facts.os.family in SERVERS:
        return unverified("wsl2.bridge-on-server", observed=facts.os.named)
    return None


@rule("wsl2/bridged", unknown=BLOCKS)
def bridge_removed(facts: HostFacts) -> Finding | None:
    """For two versions."""
    found = version(facts)
    if found and BRIDGE_GONE <= found < BRIDGE_BACK:
        return unsupported("wsl2.bridge-removed", observed=f"WSL {found}")
    return None


@rule("wsl2/bridged", unknown=BLOCKS)
def bridge_warned(facts: HostFacts) -> Finding | None:
    """It works and says at each start that it will go."""
    found = version(facts)
    if found and BRIDGE_WARNED <= found < BRIDGE_GONE:
        return degraded("wsl2.bridge-warned", observed=f"WSL {found}")
    return None


@rule("wsl2/bridged", unknown=NOTES)
def bridge_unpromised(facts: HostFacts) -> Finding | None:
    """True on every host that can do it."""
    return note("wsl2.bridge-unpromised", observed=facts.os.named)


@rule("wsl2/bridged", unknown=NOTES)
def same_address_everywhere(facts: HostFacts) -> Finding | None:
    """True on every host: the number generator starts at the same place."""
    return note("wsl2.same-mac", observed="5e:bb:f6:9e:ee:fa unless macAddress is set")


@rule("wsl2/bridged", unknown=NOTES)
def bridge_needs_hyper_v(facts: HostFacts) -> Finding | None:
    """New-VMSwitch comes with it."""
    if facts.role.role != INSTALLED:
        return note("wsl2.bridge-needs-hyper-v", observed=f"Hyper-V is {facts.role.role}")
    return None


@rule("wsl2/bridged", unknown=NOTES)
def no_external_switch(facts: HostFacts) -> Finding | None:
    """The Default Switch leads nowhere that others see."""
    if not _external(facts):
        seen = ", ".join(f"{s.state.name} ({s.state.kind})" for s in facts.all(VmSwitch)) or "no switch"
        return note("wsl2.no-external-switch", observed=seen)
    return None


@rule("wsl2/bridged", unknown=NOTES)
def only_wireless_switches(facts: HostFacts) -> Finding | None:
    """By the adapters' names, which their vendors give in English."""
    adapters = [str(switch.adapter) for switch in _external(facts)] or _only(facts, WIFI)
    if adapters and all(any(word in name.casefold() for word in WIRELESS) for name in adapters):
        return unverified("wsl2.bridge-over-wireless", observed=", ".join(adapters))
    return None


@rule("wsl2/bridged", unknown=NOTES)
def only_a_team(facts: HostFacts) -> Finding | None:
    """Windows' own teams and Hyper-V's switches have parted ways."""
    teams = _only(facts, TEAM)
    return unverified("wsl2.bridge-over-team", observed=", ".join(teams)) if teams else None


@rule("wsl2/bridged", unknown=NOTES)
def nothing_to_bridge(facts: HostFacts) -> Finding | None:
    """A switch without a link leads nowhere."""
    if _switchless(facts) and not _linked(facts, ETHERNET, WIFI, TEAM):
        return unsupported("wsl2.no-adapter", observed=", ".join(a.name for a in _adapters(facts)) or "no adapter")
    return None


@rule("wsl2/bridged", unknown=NOTES)
def moves_the_management(facts: HostFacts) -> Finding | None:
    """With a second adapter nobody need lose the wire; one by radio, or a team, counts where none is wired."""
    suiting = _linked(facts, ETHERNET) or _linked(facts, WIFI, TEAM)
    if _switchless(facts) and suiting and all(adapter.management for adapter in suiting):
        return note("wsl2.bridge-moves-management", observed="; ".join(map(_what_moves, suiting)))
    return None


@rule("wsl2/bridged", unknown=NOTES)
def shares_the_switch(facts: HostFacts) -> Finding | None:
    """They go on over it, and it stays while they do."""
    used = [f"{each.key['name']}: {each.state.vms}" for each in facts.all(ExternalSwitch) if each.state.vms]
    return note("wsl2.bridge-shared", observed=", ".join(used)) if used else None


@rule("wsl2/bridged", unknown=NOTES)
def filtered(facts: HostFacts) -> Finding | None:
    """By the names of what is bound to the adapters."""
    known = _firewalls(facts)
    return unverified("wsl2.bridge-filtered", observed=", ".join(known)) if known else None


@rule("wsl2/bridged", unknown=NOTES)
def bridged_beside_a_vpn(facts: HostFacts) -> Finding | None:
    """Its routes are those of Windows."""
    tunnels = _tunnels(facts)
    return note("wsl2.bridge-beside-vpn", observed=", ".join(tunnels)) if tunnels else None


# --- Policies ------------------------------------------------------------------------------------------------------


@rule("wsl2", unknown=NOTES)
def policy_forbids(facts: HostFacts) -> Finding | None:
    """Whoever manages this Windows does not want it."""
    if facts.the(WslPolicy).allow_wsl is False:
        return unsupported("wsl2.policy-forbids", observed="AllowWSL is 0")
    return None


@rule("wsl2", unknown=NOTES)
def policy_overrides(facts: HostFacts) -> Finding | None:
    """Keys that WSL then passes over, each with a line of warning."""
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
    return note("wsl2.policy-overrides", observed=", ".join(fixed)) if fixed else None


@rule("wsl2/bridged", unknown=NOTES)
def policy_fixes_the_mode(facts: HostFacts) -> Finding | None:
    """No policy has bridged for its default."""
    if facts.the(WslPolicy).allow_networking is False:
        return unsupported("wsl2.policy-no-bridge", observed=f"the mode is {_mode(facts)}")
    return None


@rule("wsl2/mirrored", unknown=NOTES)
def policy_fixes_another_mode(facts: HostFacts) -> Finding | None:
    """Unless it is this one."""
    if facts.the(WslPolicy).allow_networking is False and facts.the(WslPolicy).default_networking != MIRRORED:
        return unsupported("wsl2.policy-no-mirror", observed=f"the mode is {_mode(facts)}")
    return None


@rule("wsl2/nat", unknown=NOTES)
def policy_leaves_nat(facts: HostFacts) -> Finding | None:
    """Left alone, WSL takes NAT."""
    policy = facts.the(WslPolicy)
    if policy.allow_networking is False and policy.default_networking not in (None, NAT):
        return unsupported("wsl2.policy-no-nat", observed=f"the mode is {_mode(facts)}")
    return None


def _mode(facts: HostFacts) -> str:
    number = facts.the(WslPolicy).default_networking
    return MODES[NAT] if number is None else MODES.get(number, str(number))


# --- Mirrored, NAT -------------------------------------------------------------------------------------------------


@rule("wsl2/mirrored", unknown=BLOCKS)
def windows_cannot_mirror(facts: HostFacts) -> Finding | None:
    """WSL falls back to NAT there, with a line that nobody reads."""
    if facts.os.family in CLIENTS and facts.os.build < WINDOWS_11_22H2:
        return unsupported("wsl2.no-mirror", observed=facts.os.named)
    return None


@rule("wsl2/mirrored", unknown=BLOCKS)
def server_cannot_mirror(facts: HostFacts) -> Finding | None:
    """Whatever its build."""
    if facts.os.family in SERVERS:
        return unsupported("wsl2.mirror-on-server", observed=facts.os.named)
    return None


@rule("wsl2/mirrored", unknown=BLOCKS)
def wsl_cannot_mirror(facts: HostFacts) -> Finding | None:
    """It came with WSL 2.0."""
    found = version(facts)
    if found and found < FIRST_MIRRORED:
        return unsupported("wsl2.mirror-needs-wsl-2-0", observed=f"WSL {found}")
    return None


@rule("wsl2/mirrored", unknown=BLOCKS)
def shares_addresses(facts: HostFacts) -> Finding | None:
    """True on every host that can do it."""
    return degraded("wsl2.mirrored", observed="addresses and ports are those of Windows")


@rule("wsl2/nat", unknown=BLOCKS)
def hides_behind_windows(facts: HostFacts) -> Finding | None:
    """True on every host."""
    return degraded("wsl2.nat", observed="the address is Windows' own affair, and changes")


@rule("wsl2/nat", unknown=NOTES)
def behind_a_vpn(facts: HostFacts) -> Finding | None:
    """Only while it is up; which ones: by their drivers."""
    tunnels = _tunnels(facts)
    return degraded("wsl2.nat-behind-vpn", observed=", ".join(tunnels)) if tunnels else None


@rule("wsl2/mirrored", unknown=NOTES)
def mirrors_a_vpn(facts: HostFacts) -> Finding | None:
    """It was made for this, and not with every client."""
    tunnels = _tunnels(facts)
    return note("wsl2.mirrored-vpn", observed=", ".join(tunnels)) if tunnels else None


@rule("wsl2/nat", unknown=NOTES)
def nat_filtered(facts: HostFacts) -> Finding | None:
    """What comes from WSL is not what they know of Windows."""
    known = _firewalls(facts)
    return note("wsl2.nat-filtered", observed=", ".join(known)) if known else None


@rule("wsl2/mirrored", unknown=NOTES)
@rule("wsl2/nat", unknown=NOTES)
def home_stays_unbridged(facts: HostFacts) -> Finding | None:
    """Said where it is decided, before somebody builds on an address of its own."""
    if facts.os.sku in HOME_SKUS:
        return note("wsl2.home-unbridged", observed=facts.os.named)
    return None


def _tunnels(facts: HostFacts) -> list[str]:
    """VPNs that are up."""
    return [adapter.description for adapter in _linked(facts, VPN)]


def _firewalls(facts: HostFacts) -> list[str]:
    """Filters of other makers on adapters that lead out."""
    names = sorted({name for adapter in _linked(facts, ETHERNET, WIFI, TEAM) for name in adapter.filters})
    return [name for name in names if any(maker in name.casefold() for maker in FIREWALLS)]


def _adapters(facts: HostFacts) -> list[NetworkAdapter]:
    return [adapter.state for adapter in facts.all(NetworkAdapter)]


def _linked(facts: HostFacts, *kinds: str) -> list[NetworkAdapter]:
    return [adapter for adapter in _adapters(facts) if adapter.kind in kinds and adapter.status == "up"]


def _switchless(facts: HostFacts) -> bool:
    """No switch leads out; before Hyper-V is there, none can."""
    return facts.role.role != INSTALLED or not _external(facts)


def _only(facts: HostFacts, kind: str) -> list[str]:
    """The adapters on which a switch would have to be made, where they are all of this kind."""
    found = _linked(facts, ETHERNET, WIFI, TEAM) if _switchless(facts) else []
    return [adapter.description for adapter in found] if {adapter.kind for adapter in found} == {kind} else []


def _what_moves(adapter: NetworkAdapter) -> str:
    addresses = [f"{each.address}/{each.prefix} ({each.origin})" for each in adapter.addresses]
    others = (("gateway", adapter.gateway), ("DNS", ", ".join(adapter.dns)), ("VLAN", adapter.vlan))
    told = [f"{name} {value}" for name, value in (*others, ("network", adapter.profile)) if value]
    return f"{adapter.name}: {', '.join([*addresses, *told]) or 'no address'}"


def _external(facts: HostFacts) -> list[VmSwitch]:
    return [switch.state for switch in facts.all(VmSwitch) if switch.state.kind == "external"]
