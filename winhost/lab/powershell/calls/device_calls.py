"""Cmdlets of devices: Plug and Play, and what Hyper-V takes from the host and gives to VMs."""

from collections.abc import Iterable
from typing import Any

from winhost.lab.powershell.calls.cmdlet_process import Cmdlets, Given, answers
from winhost.lab.powershell.windows_views import Entity, entities


@answers("Get-PnpDevice", "PresentOnly")
def _pnp(desk: Cmdlets, _given: Given) -> Iterable[Any]:
    return [entity.as_object() for entity in entities(desk.machine)]


@answers("Get-PnpDeviceProperty", "InputObject", "KeyName")
def _pnp_properties(desk: Cmdlets, given: Given) -> Iterable[Any]:
    known = {entity.instance: entity for entity in entities(desk.machine)}
    asked: list[Entity] = [known[each["DeviceID"]] for each in given["InputObject"]]
    return [entity.property(key) for entity in asked for key in given["KeyName"]]


@answers("Disable-PnpDevice", "InstanceId")
def _disable(desk: Cmdlets, given: Given) -> Iterable[Any]:
    for instance in given["InstanceId"]:
        desk.machine.disable_pnp_device(instance)
    return ()


@answers("Enable-PnpDevice", "InstanceId")
def _enable(desk: Cmdlets, given: Given) -> Iterable[Any]:
    for instance in given["InstanceId"]:
        desk.machine.enable_pnp_device(instance)
    return ()


@answers("Dismount-VMHostAssignableDevice", "LocationPath", "Force")
def _dismount(desk: Cmdlets, given: Given) -> Iterable[Any]:
    desk.machine.dismount_vm_host_assignable_device(given["LocationPath"], force=given.get("Force", False))
    return ()


@answers("Mount-VMHostAssignableDevice", "LocationPath")
def _mount(desk: Cmdlets, given: Given) -> Iterable[Any]:
    desk.machine.mount_vm_host_assignable_device(given["LocationPath"])
    return ()


@answers("Add-VMAssignableDevice", "VM", "LocationPath")
def _add(desk: Cmdlets, given: Given) -> Iterable[Any]:
    for guid in desk.each_vm(given):
        desk.machine.add_vm_assignable_device(guid, given["LocationPath"])
    return ()


@answers("Remove-VMAssignableDevice", "VMAssignableDevice")
def _remove(desk: Cmdlets, given: Given) -> Iterable[Any]:
    for each in given["VMAssignableDevice"]:
        desk.machine.remove_vm_assignable_device(each["VMId"], each["LocationPath"])
    return ()
