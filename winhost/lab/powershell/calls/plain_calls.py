"""Cmdlets and helpers of the agent that are each one call of a method of the simulated host.

Each is keyed by its name and the parameters that it may be called with.
"""

import base64
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.text_files import on_wire
from winhost.lab.physics.windows_network import TASK
from winhost.lab.physics.windows_objects import WindowsObject, of_type
from winhost.lab.physics.windows_software import RECORD
from winhost.lab.powershell.calls.cmdlet_process import (
    BoundParameters,
    CmdletProcess,
    answers,
    braced,
    our_word,
    windows_word,
)

Call = Callable[[Machine, BoundParameters], Any]


def _start(machine: Machine, name: str) -> None:
    if name == TASK:
        machine.network.start()
    else:
        machine.accounts.start_scheduled_task(name)


def _switch(machine: Machine, bound: BoundParameters, cmdlet: str, *, enabled: bool) -> None:
    machine.accounts.switch_scheduled_task(bound["InputObject"]["DeviceID"], cmdlet, enabled=enabled)


def _names(bound: BoundParameters) -> list[str]:
    return [each["Name"] for each in bound["Name"]]


def _feature_result(restart: bool) -> WindowsObject:
    return of_type("FeatureOperationResult", Success=True, RestartNeeded="Yes" if restart else "No")


def _write_registry(machine: Machine, bound: BoundParameters) -> None:
    if (written := machine.registry_writers.get(bound["Path"])) is not None:
        with machine.changing("Write-WinhostRegistry"):
            written(bound["Name"], bound["Value"])
        return
    if bound["Path"] != RECORD:
        raise machine.fail("not-stood-in", "Write-WinhostRegistry", what=bound["Path"])
    machine.software.write_registry(bound["Name"], bound["Value"])


def _is_empty(machine: Machine, path: str) -> bool:
    return machine.files.read(path) is None and not any(True for _ in machine.files.below(path))


def _allow(machine: Machine, bound: BoundParameters) -> None:
    names = bound["Name"] if "Name" in bound else [each["DeviceID"] for each in bound["InputObject"]]
    for name in names:
        machine.network.set_net_firewall_rule(name, bound["RemoteAddress"] if bound["Enabled"] == "True" else [])


def _new_rule(machine: Machine, bound: BoundParameters) -> None:
    assert bound["Enabled"] == "False"
    machine.network.new_net_firewall_rule(bound["Name"])


def _set_memory(machine: Machine, vm: str, bound: BoundParameters) -> None:
    if "StartupBytes" in bound:
        assert not bound["DynamicMemoryEnabled"]
        machine.set_vm_startup_memory(vm, bound["StartupBytes"])
    else:
        machine.set_vm_memory(vm, dynamic_memory_enabled=bound["DynamicMemoryEnabled"])


def _set_vlan(machine: Machine, port: Mapping[str, str], bound: BoundParameters) -> None:
    """Of a VM that was made here, or of the host's own port, which has a device."""
    if port["DeviceId"]:
        machine.network.set_vm_network_adapter_vlan(port["DeviceId"].strip("{}").lower(), bound["VlanId"])
    else:
        machine.set_vm_vlan(port["VMId"], bound.get("VlanId"))


def _each(objects: Iterable[Mapping[str, Any]], change: Callable[[Mapping[str, Any]], None]) -> None:
    for one in objects:
        change(one)


# They give nothing.
CHANGES: Mapping[str, Call] = {
    "Dismount-VMHostAssignableDevice LocationPath Force": lambda m, g: m.dismount_vm_host_assignable_device(
        g["LocationPath"], force=g.get("Force", False)
    ),
    "Mount-VMHostAssignableDevice LocationPath": lambda m, g: m.mount_vm_host_assignable_device(g["LocationPath"]),
    "Set-LocalUser InputObject Password": lambda m, g: m.accounts.set_local_user(
        g["InputObject"]["SID"], g["Password"]
    ),
    "Remove-CimInstance InputObject": lambda m, g: m.accounts.remove_profile(g["InputObject"]["DeviceID"]),
    "Start-ScheduledTask InputObject": lambda m, g: _start(m, g["InputObject"]["DeviceID"]),
    "Stop-ScheduledTask InputObject": lambda m, g: m.accounts.stop_scheduled_task(g["InputObject"]["DeviceID"]),
    "Enable-ScheduledTask InputObject": lambda m, g: _switch(m, g, "Enable-ScheduledTask", enabled=True),
    "Disable-ScheduledTask InputObject": lambda m, g: _switch(m, g, "Disable-ScheduledTask", enabled=False),
    "New-NetIPAddress InterfaceIndex IPAddress PrefixLength": lambda m, g: m.network.new_net_ip_address(
        g["InterfaceIndex"], g["IPAddress"], g["PrefixLength"]
    ),
    "New-NetNat Name InternalIPInterfaceAddressPrefix": lambda m, g: m.nats.new_net_nat(
        g["Name"], g["InternalIPInterfaceAddressPrefix"]
    ),
    "Remove-NetNat InputObject": lambda m, g: _each(
        g["InputObject"], lambda nat: m.nats.remove_net_nat(nat["DeviceID"])
    ),
    "New-NetRoute InterfaceIndex DestinationPrefix NextHop RouteMetric": lambda m, g: m.network.new_net_route(
        g["InterfaceIndex"], g["DestinationPrefix"], g["NextHop"]
    ),
    "New-NetFirewallRule Name DisplayName Group Enabled Direction Action Protocol LocalPort RemoteAddress": _new_rule,
    "Set-NetFirewallRule Name InputObject RemoteAddress Enabled": _allow,
    "Set-NetFirewallHyperVVMSetting Name DefaultInboundAction": lambda m, g: (
        m.network.set_net_firewall_hyper_v_vm_setting(our_word(g["DefaultInboundAction"]))
    ),
    "New-NetFirewallHyperVRule Name DisplayName Direction VMCreatorId Protocol LocalPorts RemoteAddresses Action": (
        lambda m, g: m.network.new_net_firewall_hyper_v_rule(int(g["LocalPorts"][0]), g["RemoteAddresses"])
    ),
    "Write-WinhostRegistry Path Name Value": _write_registry,
    "Write-WinhostFile Path Bytes": lambda m, g: m.files.write(g["Path"], base64.b64decode(g["Bytes"])),
    "Write-WinhostFileRights Path Rights": lambda m, g: m.files.give_rights(g["Path"], g["Rights"]),
    "Remove-WinhostFile Path": lambda m, g: m.files.remove(g["Path"]),
    "Remove-WinhostFolder Path": lambda m, g: m.files.remove_folder(g["Path"]),
    "Add-WinhostPiece Path Restart Bytes": lambda m, g: m.files.append(
        g["Path"], base64.b64decode(g["Bytes"]), restart=g["Restart"]
    ),
    "Set-VMNetworkAdapter VMNetworkAdapter StaticMacAddress": lambda m, g: m.set_vm_mac(
        g["VMNetworkAdapter"]["VMId"], g["StaticMacAddress"]
    ),
    "Move-WinhostFile Path Target": lambda m, g: m.software.move_file(g["Path"], g["Target"]),
}

# Likewise, for each of the objects in the first parameter.
CHANGES_OF_EACH: Mapping[str, Callable[[Machine, Any, BoundParameters], object]] = {
    "Disable-PnpDevice InstanceId": lambda m, instance, g: m.disable_pnp_device(instance),
    "Enable-PnpDevice InstanceId": lambda m, instance, g: m.enable_pnp_device(instance),
    "Add-VMAssignableDevice VM LocationPath": lambda m, vm, g: m.add_vm_assignable_device(vm["Id"], g["LocationPath"]),
    "Remove-VMAssignableDevice VMAssignableDevice": lambda m, device, g: m.remove_vm_assignable_device(
        device["VMId"], device["LocationPath"]
    ),
    "Set-VMMemory VM DynamicMemoryEnabled StartupBytes": lambda m, vm, g: _set_memory(m, vm["Id"], g),
    "Set-VMProcessor VM Count": lambda m, vm, g: m.set_vm_processor(vm["Id"], g["Count"]),
    "Set-VMComPort VM Number Path": lambda m, vm, g: m.set_vm_com_port(vm["Id"], g["Path"]),
    "Add-VMDvdDrive VM Path": lambda m, vm, g: m.add_vm_dvd_drive(vm["Id"], g["Path"]),
    "Set-VMDvdDrive VMDvdDrive Path": lambda m, drive, g: m.set_vm_dvd_drive(
        drive["VMId"], drive["Path"], g["Path"] or ""
    ),
    "Add-VMHardDiskDrive VM Path": lambda m, vm, g: m.add_vm_hard_disk_drive(vm["Id"], g["Path"]),
    "Resize-VHD Path SizeBytes": lambda m, path, g: m.resize_vhd(path, g["SizeBytes"]),
    "Start-VM VM": lambda m, vm, g: m.start_vm(vm["Id"]),
    "Save-VM VM": lambda m, vm, g: m.save_vm(vm["Id"]),
    "Suspend-VM VM": lambda m, vm, g: m.suspend_vm(vm["Id"]),
    "Resume-VM VM": lambda m, vm, g: m.resume_vm(vm["Id"]),
    "Remove-LocalUser InputObject": lambda m, user, g: m.accounts.remove_local_user(user["SID"]),
    "Add-LocalGroupMember Member SID": lambda m, user, g: m.accounts.change_administrators(
        user["SID"], "Add-LocalGroupMember", member=True
    ),
    "Remove-LocalGroupMember Member SID": lambda m, user, g: m.accounts.change_administrators(
        user["SID"], "Remove-LocalGroupMember", member=False
    ),
    "Set-DnsClientServerAddress InterfaceIndex ServerAddresses": lambda m, index, g: (
        m.network.set_dns_client_server_address(index, g["ServerAddresses"])
    ),
    "Set-NetIPInterface InterfaceIndex AddressFamily InterfaceMetric": lambda m, index, g: (
        m.network.set_net_ip_interface(index, g["InterfaceMetric"])
    ),
    "Set-NetConnectionProfile InterfaceIndex NetworkCategory": lambda m, index, g: m.network.set_net_connection_profile(
        index, our_word(g["NetworkCategory"])
    ),
    "Set-VMNetworkAdapterVlan VMNetworkAdapter Access VlanId Untagged": lambda m, port, g: _set_vlan(m, port, g),
    "Remove-NetFirewallRule InputObject": lambda m, rule, g: m.network.remove_net_firewall_rule(rule["DeviceID"]),
    "Remove-NetFirewallHyperVRule InputObject": lambda m, rule, g: m.network.remove_net_firewall_hyper_v_rule(
        int(rule["DeviceID"].removeprefix("winhost-vm-port-"))
    ),
}

# They give one value, or nothing where it is None.
VALUES: Mapping[str, Call] = {
    "Install-WindowsFeature Name": lambda m, g: _feature_result(m.install_windows_feature(*_names(g))),
    "Uninstall-WindowsFeature Name": lambda m, g: _feature_result(m.uninstall_windows_feature(*_names(g))),
    "Enable-WindowsOptionalFeature Online FeatureName All NoRestart": lambda m, g: of_type(
        "ImageObject", RestartNeeded=m.enable_windows_optional_feature(*g["FeatureName"])
    ),
    "Disable-WindowsOptionalFeature Online FeatureName NoRestart": lambda m, g: of_type(
        "ImageObject", RestartNeeded=m.disable_windows_optional_feature(*g["FeatureName"])
    ),
    "Read-WinhostBytes Path": lambda m, g: None if (found := m.files.read(g["Path"])) is None else on_wire(found),
    "Test-WinhostLink Path": lambda m, g: m.files.is_link(g["Path"]),
    "Test-WinhostFolder Path": lambda m, g: m.files.has_folder(g["Path"]),
    "Test-WinhostEmpty Path": lambda m, g: _is_empty(m, g["Path"]),
    "Read-WinhostOwner Path": lambda m, g: m.files.owner(g["Path"]),
    "Read-WinhostFileTime Path": lambda m, g: m.distros.config_time(g["Path"]),
    "Read-WinhostHash Path": lambda m, g: m.software.read_hash(g["Path"]),
    "Read-WinhostLength Path": lambda m, g: m.files.length(g["Path"]),
    "Test-WinhostFile Path": lambda m, g: m.files.read(g["Path"]) is not None,
    "Test-VHD Path": lambda m, g: all(map(m.test_vhd, g["Path"])),
    "Measure-WinhostFiles Folder Name": lambda m, g: m.accounts.count(g["Folder"], g["Name"]),
    "Copy-WinhostSource Source Path": lambda m, g: m.software.copy_source(g["Source"], g["Path"]),
}

# They tell of all instances of a resource: its name, their type, and for each property of an object the one of the
# resource, of its key or of its state, as it is or as a word of Windows.
_PARTITIONABLE = (
    "PartitionableGpu",
    "VMHostPartitionableGpu",
    {"Name": "gpu", "PartitionCount": "partitions", "ValidPartitionCounts": "valid_counts"},
)
OBJECTS: Mapping[str, tuple[str, str, Mapping[str, str]]] = {
    "Get-VMHostPartitionableGpu": _PARTITIONABLE,
    "Get-VMPartitionableGpu": _PARTITIONABLE,
    "Get-Disk": (
        "Disk",
        "MSFT_Disk",
        {"UniqueId": "disk", "FriendlyName": "model", "BusType": "bus", "Size": "size", "PartitionStyle": "style"}
        | {"IsBoot": "boot", "IsSystem": "system", "Guid": "braced guid", "Number": "number"}
        | {"LogicalSectorSize": "sector", "IsOffline": "offline", "IsReadOnly": "read_only"}
        | {"HealthStatus": "word health"},
    ),
}


def _register_objects(name: str, resource: str, type_name: str, properties: Mapping[str, str]) -> None:
    def value(known: Mapping[str, Any], source: str) -> Any:
        how, _, name = source.rpartition(" ")
        return {"": lambda each: each, "word": windows_word, "braced": braced}[how](known[name])

    def answer(process: CmdletProcess, _: BoundParameters) -> Iterable[Any]:
        for record in process.machine.instances(resource):
            known = {**record.key, **record.state}
            yield of_type(type_name, **{name: value(known, source) for name, source in properties.items()})

    answers(name)(answer)


def _register(line: str, call: Call, *, answers_with_it: bool) -> None:
    def answer(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
        found = call(process.machine, bound)
        return [found] if answers_with_it and found is not None else ()

    answers(*line.split())(answer)


def _register_each(line: str, call: Callable[[Machine, Any, BoundParameters], object]) -> None:
    name, first, *others = line.split()

    def answer(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
        for each in bound[first]:
            call(process.machine, each, bound)
        return ()

    answers(name, first, *others)(answer)


for _line, _call in CHANGES.items():
    _register(_line, _call, answers_with_it=False)
for _line, _call in VALUES.items():
    _register(_line, _call, answers_with_it=True)
for _name, _objects in OBJECTS.items():
    _register_objects(_name, *_objects)
for _line, _call_of_each in CHANGES_OF_EACH.items():
    _register_each(_line, _call_of_each)
