"""Cmdlets and helpers of the agent that are each one call of a method of the simulated host.

Each is keyed by its name and the parameters that it may be called with.
"""

import base64
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.windows_files import on_wire
from winhost.lab.physics.windows_network import TASK
from winhost.lab.physics.windows_objects import WindowsObject, of_type
from winhost.lab.physics.windows_software import RECORD
from winhost.lab.powershell.calls.cmdlet_process import (
    BoundParameters,
    CmdletProcess,
    answers,
    braced,
    calls,
    windows_word,
)


def _start(machine: Machine, name: str) -> None:
    if name == TASK:
        machine.network.start()
    else:
        machine.accounts.start_scheduled_task(name)


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


def _allow(machine: Machine, bound: BoundParameters) -> None:
    names = bound["Name"] if "Name" in bound else [each["DeviceID"] for each in bound["InputObject"]]
    for name in names:
        machine.network.set_net_firewall_rule(name, bound["RemoteAddress"] if bound["Enabled"] == "True" else [])


def _set_vlan(machine: Machine, bound: BoundParameters) -> None:
    """Set the VLAN of a VM that was made here, or of the host's own port, which has a device."""
    for port in bound["VMNetworkAdapter"]:
        if port["DeviceId"]:
            machine.network.set_vm_network_adapter_vlan(port["DeviceId"].strip("{}").lower(), bound["VlanId"])
        else:
            machine.set_vm_vlan(port["VMId"], bound.get("VlanId"))


_CALLS: Mapping[str, Callable[[Machine, BoundParameters], Any]] = {
    "Start-ScheduledTask InputObject": lambda m, g: _start(m, g["InputObject"]["DeviceID"]),
    "Set-VMNetworkAdapterVlan VMNetworkAdapter Access VlanId Untagged": _set_vlan,
    "Set-NetFirewallRule Name InputObject RemoteAddress Enabled": _allow,
    "Write-WinhostRegistry Path Name Value": _write_registry,
    "Write-WinhostFile Path Bytes": lambda m, g: m.files.write(g["Path"], base64.b64decode(g["Bytes"])),
    "Write-WinhostFileRights Path Rights": lambda m, g: m.files.give_rights(g["Path"], g["Rights"]),
    "Remove-WinhostFile Path": lambda m, g: m.files.remove(g["Path"]),
    "Remove-WinhostFolder Path": lambda m, g: m.files.remove_folder(g["Path"]),
    "Add-WinhostPiece Path Restart Bytes": lambda m, g: m.files.append(
        g["Path"], base64.b64decode(g["Bytes"]), restart=g["Restart"]
    ),
    "Move-WinhostFile Path Target": lambda m, g: m.software.move_file(g["Path"], g["Target"]),
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
    "Test-WinhostEmpty Path": lambda m, g: not m.files.is_full(g["Path"]),
    "Read-WinhostOwner Path": lambda m, g: m.files.owner(g["Path"]),
    "Read-WinhostFileTime Path": lambda m, g: m.distros.config_time(g["Path"]),
    "Read-WinhostHash Path": lambda m, g: m.software.read_hash(g["Path"]),
    "Read-WinhostLength Path": lambda m, g: m.files.length(g["Path"]),
    "Test-WinhostFile Path": lambda m, g: m.files.read(g["Path"]) is not None,
    "Test-VHD Path": lambda m, g: all(map(m.test_vhd, g["Path"])),
    "Measure-WinhostFiles Folder Name": lambda m, g: m.accounts.count(g["Folder"], g["Name"]),
    "Copy-WinhostSource Source Path": lambda m, g: m.software.copy_source(g["Source"], g["Path"]),
    "Receive-WinhostSlice Source Path Version Seconds": lambda m, g: WindowsObject(
        None, m.software.receive_slice(g["Source"], g["Path"], g["Version"])
    ),
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


calls(_CALLS)
for _name, _objects in OBJECTS.items():
    _register_objects(_name, *_objects)
