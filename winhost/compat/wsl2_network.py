"""WSL 2 by how its network is set up: each mode has needs of its own, and carries something else."""

from packaging.version import Version

from winhost.compat.builds import WINDOWS_10_21H2, WINDOWS_11, WINDOWS_11_22H2
from winhost.compat.machine import CLIENTS, SERVERS
from winhost.compat.rule import BLOCKS, NOTES, Finding, degraded, note, rule, unsupported, unverified
from winhost.compat.wsl2 import version
from winhost.resources.host import HostFacts
from winhost.resources.windows import VmSwitch
from winhost.resources.windows.hyperv import INSTALLED

# microsoft/WSL #12743, #13211: announced to go, gone, back
BRIDGE_WARNED, BRIDGE_GONE, BRIDGE_BACK = Version("2.4.5"), Version("2.5.4"), Version("2.5.6")
FIRST_MIRRORED = Version("2.0.0")
HOME_SKUS = (98, 99, 100, 101)  # Core N, Country Specific, Single Language, Core
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
    adapters = [str(switch.adapter) for switch in _external(facts)]
    if adapters and all(any(word in name.casefold() for word in WIRELESS) for name in adapters):
        return unverified("wsl2.bridge-over-wireless", observed=", ".join(adapters))
    return None


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


def _external(facts: HostFacts) -> list[VmSwitch]:
    return [switch.state for switch in facts.all(VmSwitch) if switch.state.kind == "external"]
