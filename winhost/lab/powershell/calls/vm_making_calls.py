"""Cmdlets that make VMs and disks, and take them away."""

from collections.abc import Iterable
from typing import Any

from winhost.lab.physics.windows_objects import of_type
from winhost.lab.powershell.calls.cmdlet_process import BoundParameters, CmdletProcess, answers
from winhost.lab.powershell.calls.vm_calls import virtual_machine


@answers("Get-VMHost")
def _host(process: CmdletProcess, _bound: BoundParameters) -> Iterable[Any]:
    for record in process.machine.instances("HyperVHost"):
        yield of_type(
            "VMHost",
            IovSupport=record.state["iov_support"],
            IovSupportReasons=record.state["iov_reasons"],
            VirtualHardDiskPath=process.machine.lab.new_vms.store,
        )


@answers("Read-WinhostAttributes", "Path")
def _attributes(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    return process.machine.attributes(bound["Path"])


_NEW = ("Name", "Generation", "MemoryStartupBytes", "NoVHD", "Path")


@answers("New-VM", *_NEW)
def _new_vm(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    if bound["Generation"] != 2 or not bound.get("NoVHD"):
        raise process.machine.fail("not-stood-in", "New-VM", what="another generation, or one with a disk")
    return [virtual_machine(process.machine.new_vm(bound["Name"], bound["MemoryStartupBytes"], bound["Path"]))]


@answers("Get-VHD", "Path")
def _disks(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    for path in bound["Path"]:
        disk = process.machine.virtual_disk(path, "Get-VHD")
        kind = disk.physics.kind
        yield of_type("VirtualHardDisk", Path=path, VhdFormat=disk.physics.format, VhdType=kind, Size=disk.size)


@answers("Set-VMFirmware", "VM", "EnableSecureBoot", "SecureBootTemplateId", "FirstBootDevice")
def _set_firmware(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    for guid in process.each_vm(bound):
        if "FirstBootDevice" in bound:
            process.machine.set_vm_first_boot(guid, bound["FirstBootDevice"]["Path"])
        else:
            on = bound["EnableSecureBoot"] == "On"
            process.machine.set_vm_secure_boot(guid, on=on, template=bound.get("SecureBootTemplateId"))
    return ()


@answers("Get-VMNetworkAdapterVlan", "VMNetworkAdapter")
def _vlans(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    for each in bound["VMNetworkAdapter"]:
        vlan = process.machine.vms[each["VMId"]].vlan
        mode = "Untagged" if vlan is None else "Access"
        yield of_type("VMNetworkAdapterVlanSetting", OperationMode=mode, AccessVlanId=vlan or 0)


@answers("Get-VMComPort", "VM", "Number")
def _com_ports(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    return [of_type("VMComPort", Path=process.machine.vms[guid].com1) for guid in process.each_vm(bound)]


@answers("Test-Connection", "ComputerName", "Count", "Quiet")
def _ping(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    return [process.machine.answers_ping(bound["ComputerName"][0])]


@answers("Get-NetNeighbor", "AddressFamily")
def _neighbours(process: CmdletProcess, _bound: BoundParameters) -> Iterable[Any]:
    for address, mac in process.machine.neighbours():
        yield of_type("MSFT_NetNeighbor", IPAddress=address, LinkLayerAddress=mac, State="Stale")
