"""Cmdlets for network adapters, switches and firewalls."""

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_network
from typing import Any

from winhost.lab.physics.own_switches import Adapter, Switch
from winhost.lab.physics.virtual_machine import VirtualMachine
from winhost.lab.physics.windows_errors import WindowsObject, windows_object
from winhost.lab.physics.windows_firewall import ANY_ADDRESS, VM_RULE
from winhost.lab.physics.windows_network import Network
from winhost.lab.powershell.calls.cmdlet_process import BoundParameters, CmdletProcess, answers, register_calls
from winhost.lab.powershell.windows_views import braced, make_object, to_windows_enum
from winhost.resources.windows.network import WSL
from winhost.resources.windows.read_only import ETHERNET, TEAM, VIRTUAL, VPN, WIFI

_WINRM, _SOMEBODY = 5985, "198.51.100.9"
_ORIGINS = {"manual": "Manual", "dhcp": "Dhcp", "router-advertisement": "RouterAdvertisement"}
_CATEGORIES = {"public": "Public", "private": "Private", "domain": "DomainAuthenticated"}
# Kind of adapter to component, physical medium, interface type, and whether it is hardware, as its driver reports them.
_DRIVERS = {
    ETHERNET: ("PCI\\VEN_8086&DEV_15FF", 14, 6, True),
    WIFI: ("PCI\\VEN_8086&DEV_51F1", 9, 71, True),
    TEAM: ("COMPOSITEBUS\\MS_IMPLAT_MP", 14, 6, False),
    VIRTUAL: ("VMS_MP", 0, 6, False),
    VPN: ("wintun", 0, 53, False),
}
# VPN clients whose adapters are Ethernet, by a part of their description: component and driver file.
_ETHERNET_TUNNELS = {
    "AnyConnect": ("vpnva", "vpnva64-6.sys"),
    "PANGP": ("pangpd", "pangpd.sys"),
    "Fortinet": ("ftsvnic", "ftsvnic.sys"),
    "Check Point": ("cp_apvna", "vna_ap.sys"),
    "": ("ROOT\\NET", "netvirt.sys"),  # only its service shows that it is a VPN
}
_BLUETOOTH_DRIVER = ("BTH\\MS_BTHPAN", 10, 6, True)
_STATUS = {"up": (1, 1, 1), "disabled": (2, 2, 0), "disconnected": (2, 1, 2), "down": (2, 1, 1)}


def _adapter(network: Network, each: Adapter) -> WindowsObject:
    (component, medium, interface_type, hardware), driver = _driver(each.state)
    operational, administrative, connected = _STATUS[network.status(each)]
    return make_object(
        "MSFT_NetAdapter",
        each.state,
        each,
        ComponentID=component,
        DriverName=driver and f"\\SystemRoot\\System32\\drivers\\{driver}",
        NdisPhysicalMedium=medium,
        InterfaceType=interface_type,
        HardwareInterface=hardware,
        Virtual=not hardware,
        InterfaceOperationalStatus=operational,
        InterfaceAdminStatus=administrative,
        MediaConnectState=connected,
        Speed=each.state["speed"] or 0,
    )


def _driver(state: Mapping[str, Any]) -> tuple[tuple[str, int, int, bool], str]:
    """Return what the adapter's driver reports of itself, and its file if that identifies a VPN client."""
    for word, (component, file) in _ETHERNET_TUNNELS.items():
        if state["kind"] == VPN and word in state["description"] and (word or state["service"]):
            return (component, 14, 6, True), file
    return _DRIVERS.get(state["kind"], _BLUETOOTH_DRIVER), ""


@answers("Get-NetAdapterBinding", "AllBindings")
def _bindings(process: CmdletProcess, _bound: BoundParameters) -> Iterable[Any]:
    for each in process.machine.network.visible_adapters():
        own_bindings = [("ms_tcpip", "Internet Protocol Version 4 (TCP/IPv4)", True), ("vms_pp", "Hyper-V", False)]
        filters = [(f"filter_{number}", name, True) for number, name in enumerate(each.state["filters"])]
        for component, name, enabled in [*own_bindings, *filters, ("filter_off", "A filter that is off", False)]:
            yield windows_object(
                "MSFT_NetAdapterBindingSettingData",
                Name=each.state["name"],
                ComponentID=component,
                DisplayName=name,
                Enabled=enabled,
            )


def _address(index: int, address: Any, prefix: Any, origin: str) -> WindowsObject:
    return windows_object(
        "MSFT_NetIPAddress", InterfaceIndex=index, IPAddress=address, PrefixLength=prefix, PrefixOrigin=origin
    )


@answers("Get-NetTCPConnection")
def _connections(process: CmdletProcess, _bound: BoundParameters) -> Iterable[Any]:
    network = process.machine.network
    yield _connection("::", _WINRM, "Listen")
    for each in network.visible_adapters():
        for entry in each.addresses[:1]:
            address = str(entry["address"])
            yield _connection(address, 445, "Established")
            for peer in network.peers() if network.is_management_adapter(each) else ():
                yield _connection(address, _WINRM, "Established", peer)


def _connection(address: str, port: int, state: str, peer: str = _SOMEBODY) -> WindowsObject:
    return windows_object(
        "MSFT_NetTCPConnection", LocalAddress=address, LocalPort=port, State=state, RemoteAddress=peer
    )


# ---- switches


@answers("Get-VMSwitch")
def _switches(process: CmdletProcess, _bound: BoundParameters) -> Iterable[Any]:
    network = process.machine.network
    if network.now < network.ready_at:
        raise process.machine.windows_error("no-module", "Get-VMSwitch")
    return [_switch(each) for each in network.switches]


def _switch(each: Switch) -> WindowsObject:
    return make_object(
        "VMSwitch", each.state, each, NetAdapterInterfaceGuid=[each.adapter_guid] if each.adapter_guid else None
    )


@answers("New-VMSwitch", "Name", "NetAdapterName", "AllowManagementOS", "SwitchType")
def _new_switch(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    if bound.get("SwitchType") == "Internal":
        return [_switch(process.machine.network.new_internal_vm_switch(bound["Name"]))]
    if bound["AllowManagementOS"] is not True:
        raise process.machine.windows_error("not-stood-in", "New-VMSwitch", what="a switch without the host")
    return [_switch(process.machine.network.new_vm_switch(bound["Name"], bound["NetAdapterName"][0]))]


@answers("Get-VMNetworkAdapter", "All", "ManagementOS", "VM")
def _ports(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    network, vms = process.machine.network, process.machine.vms
    if "VM" in bound:
        return [_vm_adapter(vms[guid]) for guid in process.vm_ids(bound)]
    ports = [
        windows_object("VMNetworkAdapter", SwitchId=each.guid, IsManagementOs=True, DeviceId=braced(each.port))
        for each in network.switches
        if each.port is not None
    ]
    if not bound.get("All"):
        return ports
    others = [
        windows_object("VMNetworkAdapter", SwitchId=each.guid, IsManagementOs=False)
        for each in network.switches
        for _ in range(network.initial_users(each))
    ]
    return [*ports, *others, *(_vm_adapter(vm) for vm in vms.values() if vm.path)]


def _vm_adapter(vm: VirtualMachine) -> WindowsObject:
    """Return the network adapter of a VM that was made here. Facts do not have those of other VMs."""
    return make_object("VMNetworkAdapter", vm, IsManagementOs=False)


# ---- firewalls


def _format_network(network: str) -> str:
    """Return a network with its mask, or a single address, as Windows shows them."""
    parsed = ip_network(network)
    if parsed.prefixlen == parsed.max_prefixlen:
        return str(parsed.network_address)
    return str(parsed) if parsed.version == 6 else parsed.with_netmask


@answers("Get-NetFirewallRule", "Group")
def _rules(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    rules = process.machine.network.rules if bound["Group"] == ["winhost"] else {}
    if not rules:
        raise process.machine.windows_error("rule-unknown", "Get-NetFirewallRule", group=bound["Group"][0])
    for name, remote in rules.items():
        yield windows_object("MSFT_NetFirewallRule", DeviceID=name, Name=name, Enabled="True" if remote else "False")


@answers("Get-NetFirewallHyperVVMSetting")
def _vm_setting(process: CmdletProcess, _bound: BoundParameters) -> Iterable[Any]:
    network = process.machine.network
    # Another creator of VMs has settings, too.
    makers = {"{9E288F02-CE00-4D9E-BE2B-14CE463B0298}": "block", braced(WSL): network.inbound}
    for name, action in makers.items():
        if action != "not-configured":
            word = to_windows_enum(action)
            yield windows_object("MSFT_NetFirewallHyperVVMSetting", Name=name, DefaultInboundAction=word)


@answers("Get-NetFirewallHyperVRule")
def _vm_rules(process: CmdletProcess, _bound: BoundParameters) -> Iterator[Any]:
    own_rules = {f"{VM_RULE}{port}": remote for port, remote in process.machine.network.vm_rules.items()}
    for name, remote in {"Mdns-In": [ANY_ADDRESS], **own_rules}.items():
        addresses = [each if each == ANY_ADDRESS else _format_network(each) for each in remote]
        yield windows_object(
            "MSFT_NetFirewallHyperVRule", DeviceID=name, Name=name, Enabled="True", RemoteAddresses=addresses
        )


def _addresses(network: Network) -> list[WindowsObject]:
    addresses = [_address(1, "127.0.0.1", 8, "WellKnown")]
    for each in network.visible_adapters():
        addresses.append(_address(each.index, f"fe80::{each.index}%{each.index}", 64, "WellKnown"))
        addresses += [
            _address(each.index, a["address"], a["prefix"], _ORIGINS[str(a["origin"])]) for a in each.addresses
        ]
    return addresses


def _interface(each: Adapter) -> WindowsObject:
    defaults = {"AutomaticMetric": "Enabled", "InterfaceMetric": 25}
    overrides = {} if each.metric is None else {"AutomaticMetric": "Disabled", "InterfaceMetric": each.metric}
    return windows_object("MSFT_NetIPInterface", InterfaceIndex=each.index, **defaults | overrides)


register_calls(
    {
        "Get-NetAdapter": lambda m, _: [_adapter(m.network, each) for each in m.network.visible_adapters()],
        "Get-NetIPAddress": lambda m, _: _addresses(m.network),
        "Get-NetRoute": lambda m, _: [
            windows_object(
                "MSFT_NetRoute", InterfaceIndex=each.index, DestinationPrefix=to, NextHop=by, RouteMetric=256
            )
            for each in m.network.visible_adapters()
            for to, by in (("ff00::/8", "::"), *each.routes_with_default())
        ],
        "Get-NetIPInterface AddressFamily": lambda m, _: [_interface(each) for each in m.network.visible_adapters()],
        "Get-NetConnectionProfile": lambda m, _: [
            windows_object("MSFT_NetConnectionProfile", InterfaceIndex=each.index, NetworkCategory=_CATEGORIES[profile])
            for each in m.network.visible_adapters()
            if (profile := each.state["profile"]) is not None
        ],
        "Get-NetNat": lambda m, _: [
            windows_object("MSFT_NetNat", DeviceID=name, Name=name, InternalIPInterfaceAddressPrefix=prefix)
            for name, prefix in m.nats.prefixes.items()
        ],
        "Get-NetFirewallAddressFilter AssociatedNetFirewallRule": lambda m, g: windows_object(
            "MSFT_NetAddressFilter",
            RemoteAddress=list(map(_format_network, m.network.rules[g["AssociatedNetFirewallRule"]["DeviceID"]])),
        ),
    }
)
