"""Judges of WSL 2 and of WSL containers (wslc)."""

from collections import Counter
from contextlib import suppress

from winhost.compat import common
from winhost.compat.common import SERVER_2022, SERVERS, WINDOWS_10_21H2, gpus, gpus_with_driver, windows_driver
from winhost.compat.rule import finding
from winhost.compat.target import FIRST_WITH_CONTAINERS, wsl_version
from winhost.core.answers import MissingFact, RemoteFault, Unknown
from winhost.hardware.gpus import NvLink
from winhost.hardware.host_gpus import catalogue_entry, gpu_label, runs_cuda
from winhost.knowledge.versions import known_range, newer_than_checked
from winhost.model.facts import Instance
from winhost.model.reason import Finding, Severity
from winhost.model.units import about, size
from winhost.resources.host import Gpu, HostFacts
from winhost.resources.windows.accounts import AccountRight
from winhost.resources.windows.distros import Wsl, WslConfig, WslVm
from winhost.resources.windows.gpu_driver_model import GpuDriverModel
from winhost.resources.windows.network import ExternalSwitch
from winhost.resources.windows.read_only import ETHERNET, TEAM, WIFI, NetworkAdapter, VmSwitch, WslPolicy
from winhost.resources.windows.vms import DISMOUNTED, INSTALLED

VIRTUAL_MACHINES = "S-1-5-83-0"  # NT VIRTUAL MACHINE\\Virtual Machines, in every language
NEWEST_KNOWN = known_range("WSL")[1]
NEWEST_DRIVER = known_range("NVIDIA drivers")[1]


# --- The package ---------------------------------------------------------------------------------------------------


def newer_than_known(facts: HostFacts) -> str | None:
    """WSL is newer than the newest checked build of its release line."""
    found = wsl_version(facts)
    if found and found.release[:3] > NEWEST_KNOWN.release and found.major == NEWEST_KNOWN.major:
        return f"WSL {found}, {newer_than_checked(NEWEST_KNOWN)}"
    return None


def line_newer_than_known(facts: HostFacts) -> str | None:
    """The release line of WSL is newer than those that were checked."""
    found = wsl_version(facts)
    return f"WSL {found}, {newer_than_checked(NEWEST_KNOWN)}" if found and found.major > NEWEST_KNOWN.major else None


def vm_logon_right_missing(facts: HostFacts) -> str | None:
    """The account of virtual machines does not have "Log on as a service", so that no VM of WSL starts."""
    rights = [each for each in facts.all(AccountRight) if each.key["right"] == "SeServiceLogonRight"]
    held = [each.key["account"] for each in rights if each.state.granted]
    if VIRTUAL_MACHINES in held:
        return None
    return f"SeServiceLogonRight: {', '.join(held) or 'nobody'}"


def networking_fallback(facts: HostFacts) -> str | None:
    """WSL runs in another networking mode than its .wslconfig sets; WSL only reports that when it starts."""
    found = [
        f"{vm.key['account']}: {vm.state.mode}, where .wslconfig says {asked}"
        for vm in facts.all(WslVm)
        if vm.state.running
        and vm.state.mode
        and (asked := _configured_mode(facts, vm)) not in (None, vm.state.mode.lower())
    ]
    return "; ".join(found) if found else None


def _configured_mode(facts: HostFacts, vm: Instance[WslVm]) -> str | None:
    """Return the networkingMode in the .wslconfig of the VM's account, in lower case; None where there is none."""
    from winhost.wslconfig.keys import read_values  # only where WSL runs

    config = facts.find(WslConfig, vm.key)
    mode = read_values((config and config.text) or "").get(("wsl2", "networkingMode"))
    return str(mode).lower() if mode else None


# --- GPUs ---------------------------------------------------------------------------------------------------------


def device_problem(facts: HostFacts) -> Finding | None:
    """Device Manager reports a problem code of a GPU: WSL uses the host's own driver."""
    ill = [gpu for gpu in gpus(facts) if not gpu.pci.state.dismounted and gpu.pci.state.problem]
    if not ill:
        return None
    severity = Severity.NOTE if any(gpu not in ill for gpu in gpus_with_driver(facts)) else Severity.UNVERIFIED
    codes = ", ".join(f"{gpu_label(gpu)}: problem code {gpu.pci.state.problem}" for gpu in ill)
    return finding("wsl2.device-problem", codes, severity)


def dismounted(facts: HostFacts) -> Finding | None:
    """A GPU was dismounted and belongs to no VM: Windows and WSL cannot use it until it is mounted again."""
    away = [gpu for gpu in gpus(facts) if facts.assignment(gpu.pci) == DISMOUNTED]
    if not away:
        return None
    severity = Severity.NOTE if gpus_with_driver(facts) else Severity.UNVERIFIED
    return finding("wsl2.dismounted", f"dismounted, in no VM: {', '.join(map(gpu_label, away))}", severity)


def possible_sli(facts: HostFacts) -> str | None:
    """WSL sees only one of two GPUs with SLI enabled, and Windows has no interface that reports whether it is."""
    pairs = Counter(map(_model_key, filter(_supports_sli, gpus_with_driver(facts))))
    if any(count > 1 for count in pairs.values()):
        names = sorted({gpu.pci.state.name for gpu in gpus_with_driver(facts) if pairs[_model_key(gpu)] > 1})
        return ", ".join(names)
    return None


def _model_key(gpu: Gpu) -> str:
    return gpu.pci.key["device"] or gpu.pci.state.name


def _supports_sli(gpu: Gpu) -> bool:
    found = catalogue_entry(gpu)
    return bool(found and found.nvlink is NvLink.BRIDGE) and gpu.pci.state.driver_model == "WDDM"


def vram_above_memory(facts: HostFacts) -> str | None:
    """The GPUs have more memory than the host. One report, of a 96 GB GPU in a 64 GB machine, failed."""
    vram = sum(gpu.pci.state.vram or 0 for gpu in facts.gpus)
    if vram > facts.memory.total:
        return f"{size(vram)} of VRAM, {about(facts.memory.total)} of memory"
    return None


def driver_newer_than_known(facts: HostFacts) -> str | None:
    """The branch of NVIDIA's driver is newer than those that were checked."""
    driver = windows_driver(facts)
    return (
        f"driver {driver}, {newer_than_checked(f'R{NEWEST_DRIVER}')}"
        if driver and driver.major > NEWEST_DRIVER.major
        else None
    )


def model_pending(facts: HostFacts) -> str | None:
    """A GPU gets another driver model with the next restart."""
    with suppress(MissingFact):  # without NVIDIA's driver there is no model
        found = [
            f"{each.key['location']}: {each.state.current} now, {each.state.pending} after a restart"
            for each in facts.all(GpuDriverModel)
            if each.state.pending not in (None, each.state.current)
        ]
        return "; ".join(found) if found else None
    return None


def switch_excludes_host(facts: HostFacts) -> str | None:
    """An external switch is not shared with Windows, so that Windows has no adapter on it."""
    switches = [each.state for each in facts.all(VmSwitch) if each.state.kind == "external"]
    apart = [switch.name for switch in switches if not switch.management_os]
    made = [each.key["name"] for each in facts.all(ExternalSwitch) if each.state.management_os is False]
    names = list(dict.fromkeys((*apart, *made)))
    return ", ".join(names) if names else None


# Makers of firewalls, as the names of their filter drivers in the bindings of an adapter contain them.
FIREWALLS = (
    *("bitdefender", "check point", "comodo", "eset", "f-secure", "fortinet", "kaspersky", "mcafee", "norton"),
    *("sophos", "symantec", "trellix", "trend micro", "zonealarm"),
)
WIRELESS = ("wi-fi", "wifi", "wireless", "802.11", "wlan")  # in the names that vendors give adapters


# --- Bridged -------------------------------------------------------------------------------------------------------


def only_wireless_switches(facts: HostFacts) -> str | None:
    """The only adapters to bridge are wireless, by their names, which vendors write in English."""
    adapters = [str(switch.adapter) for switch in _external_switches(facts)] or _sole_adapters(facts, WIFI)
    if adapters and all(any(word in name.casefold() for word in WIRELESS) for name in adapters):
        return ", ".join(adapters)
    return None


def only_teamed_adapter(facts: HostFacts) -> str | None:
    """The only adapter with a link is an LBFO team, on which newer servers refuse a Hyper-V switch."""
    teams = _sole_adapters(facts, TEAM)
    return ", ".join(teams) if teams else None


def nothing_to_bridge(facts: HostFacts) -> str | None:
    """No network adapter has a link, so a new switch would reach nothing."""
    if _needs_switch(facts) and not _adapters_with_link(facts, ETHERNET, WIFI, TEAM):
        return ", ".join(a.name for a in _adapters(facts)) or "no adapter"
    return None


def switch_moves_management(facts: HostFacts) -> str | None:
    """Every suitable adapter carries the host's management, so creating the switch interrupts it. Wireless adapters and
    teams count only where no wired adapter has a link.
    """
    suiting = _adapters_with_link(facts, ETHERNET) or _adapters_with_link(facts, WIFI, TEAM)
    if _needs_switch(facts) and suiting and all(adapter.management for adapter in suiting):
        return "; ".join(map(_describe_adapter, suiting))
    return None


# --- Policies ------------------------------------------------------------------------------------------------------


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


# --- Mirrored, NAT -------------------------------------------------------------------------------------------------


def firewalls(facts: HostFacts) -> str | None:
    """A third-party firewall filter, recognized by its name, is bound to an adapter that is up."""
    names = sorted({name for adapter in _adapters_with_link(facts, ETHERNET, WIFI, TEAM) for name in adapter.filters})
    return ", ".join(name for name in names if any(maker in name.casefold() for maker in FIREWALLS)) or None


def _adapters(facts: HostFacts) -> list[NetworkAdapter]:
    return [adapter.state for adapter in facts.all(NetworkAdapter)]


def _adapters_with_link(facts: HostFacts, *kinds: str) -> list[NetworkAdapter]:
    return [adapter for adapter in _adapters(facts) if adapter.kind in kinds and adapter.status == "up"]


def _needs_switch(facts: HostFacts) -> bool:
    return facts.role.role != INSTALLED or not _external_switches(facts)


def _sole_adapters(facts: HostFacts, kind: str) -> list[str]:
    """Return the adapters that a new switch could use, if all of them are of this kind."""
    found = _adapters_with_link(facts, ETHERNET, WIFI, TEAM) if _needs_switch(facts) else []
    return [adapter.description for adapter in found] if {adapter.kind for adapter in found} == {kind} else []


def _describe_adapter(adapter: NetworkAdapter) -> str:
    addresses = [f"{each.address}/{each.prefix} ({each.origin})" for each in adapter.addresses]
    speed = f"{adapter.speed / 1e9:g} Gbit/s" if adapter.speed else ""
    dns = ", ".join(adapter.dns)
    others = (("gateway", adapter.gateway), ("DNS", dns), ("VLAN", adapter.vlan), ("speed", speed))
    properties = [f"{name} {value}" for name, value in (*others, ("network", adapter.profile)) if value]
    return f"{adapter.name}: {', '.join([*addresses, *properties]) or 'no address'}"


def _external_switches(facts: HostFacts) -> list[VmSwitch]:
    return [switch.state for switch in facts.all(VmSwitch) if switch.state.kind == "external"]


# --- WSL containers -----------------------------------------------------------------------------------------------


def wslc_on_old_windows(facts: HostFacts) -> str | None:
    """wslc uses the same kind of VM as WSL 2, and needs the same Windows for the GPU."""
    first = SERVER_2022 if facts.os.family in SERVERS else WINDOWS_10_21H2
    if facts.os.build < first:
        return facts.os.named
    return None


def wslc_missing(facts: HostFacts) -> str | None:
    """wslc needs WSL 2.9 or newer."""
    found = wsl_version(facts)
    if found is None and facts.the(Wsl).present:
        raise MissingFact("Wsl.version", Unknown(RemoteFault("NotThere", message="only the WSL in the box is there")))
    return None if found and found >= FIRST_WITH_CONTAINERS else f"WSL {found or 'is not installed'}"


def wslc_without_gpu(facts: HostFacts) -> str | None:
    """NVIDIA's Windows driver runs none of the GPUs. GPUs of other vendors are wslc.no-cuda."""
    if not common.no_cuda(facts) and not any(runs_cuda(gpu) and gpu.pci.state.driver_model for gpu in facts.gpus):
        return "no GPU is run by NVIDIA's Windows driver"
    return None
