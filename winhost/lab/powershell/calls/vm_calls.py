"""Cmdlets of VMs and their disks."""

from collections.abc import Callable, Iterable
from typing import Any

from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.virtual_machine import SETTINGS, VirtualMachine
from winhost.lab.physics.vm_making import TEMPLATES
from winhost.lab.physics.windows_objects import WindowsObject, of_type
from winhost.lab.powershell.calls.cmdlet_process import BoundParameters, CmdletProcess, answers, our_word, windows_word


@answers("Get-VM", "Id")
def _get_vm(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    desired = bound.get("Id")
    if desired is not None and desired not in process.machine.vms:
        raise process.machine.fail("vm-unknown", "Get-VM", vm=desired)
    return [virtual_machine(vm) for vm in process.machine.vms.values() if desired in (None, vm.guid)]


def virtual_machine(vm: VirtualMachine) -> WindowsObject:
    """As Get-VM and New-VM give it."""
    return of_type(
        "VirtualMachine",
        Id=vm.guid,
        Name=vm.name,
        Path=vm.path,
        State=windows_word(vm.power),
        Generation=vm.known_or("generation", 2),
        Version=vm.known_or("version", None),
        IsClustered=vm.known_or("clustered", None),
        DynamicMemoryEnabled=vm.dynamic_memory,
        MemoryStartup=vm.startup,
        MemoryMinimum=vm.minimum,
        MemoryMaximum=vm.maximum,
        **{name: _shown(name, getattr(vm, field)) for name, field in SETTINGS.items() if field != "start_delay"},
    )


def _shown(name: str, value: Any) -> Any:
    return windows_word(value) if isinstance(value, str) and name != "Notes" else value


def _of_each_vm(name: str, make: Callable[[Machine, VirtualMachine], Iterable[WindowsObject]]) -> None:
    def answer(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
        return [each for guid in process.each_vm(bound) for each in make(process.machine, process.machine.vms[guid])]

    answers(name, "VM")(answer)


def _processor(_: Machine, vm: VirtualMachine) -> Iterable[WindowsObject]:
    yield of_type(
        "VMProcessor", VMId=vm.guid, Count=vm.cpus, ExposeVirtualizationExtensions=vm.known_or("nested", False)
    )


def _snapshots(_: Machine, vm: VirtualMachine) -> Iterable[WindowsObject]:
    for number in range(vm.known_or("checkpoints", 0)):
        yield of_type("VMSnapshot", VMId=vm.guid, Name=f"{vm.name} - ({number})")


def _firmware(machine: Machine, vm: VirtualMachine) -> Iterable[WindowsObject]:
    if vm.known_or("generation", 2) < 2:
        raise machine.fail("generation-1", "Get-VMFirmware", vm=vm.name)
    secure = "On" if vm.known_or("secure_boot", False) else "Off"
    template = vm.known_or("secure_boot_template", None)
    id_ = next((guid for guid, name in TEMPLATES.items() if name == template), None)
    yield of_type("VMFirmware", SecureBoot=secure, SecureBootTemplate=template, SecureBootTemplateId=id_)


def _drives(_: Machine, vm: VirtualMachine) -> Iterable[WindowsObject]:
    for path in vm.disks:
        yield of_type("HardDiskDrive", VMId=vm.guid, Path=path)


def _dvds(_: Machine, vm: VirtualMachine) -> Iterable[WindowsObject]:
    for path in vm.dvds:
        yield of_type("DvdDrive", VMId=vm.guid, Path=path)


def _assigned(_: Machine, vm: VirtualMachine) -> Iterable[WindowsObject]:
    for claim in vm.assignments:
        yield of_type(
            "VMAssignedDevice",
            VMId=vm.guid,
            VMName=vm.name,
            InstanceID=claim.instance,
            LocationPath=claim.location,
        )


def _partitions(machine: Machine, vm: VirtualMachine) -> Iterable[WindowsObject]:
    """Which VM has a partition of which GPU, facts do not tell: in the order of both."""
    used = [gpu.key["gpu"] for gpu in machine.instances("PartitionableGpu") for _ in range(gpu.state["used"])]
    for other in machine.vms.values():
        mine, used = used[: other.known_or("partitions", 0)], used[other.known_or("partitions", 0) :]
        if other is vm:
            for number in range(vm.known_or("partitions", 0)):
                yield of_type("VMGpuPartitionAdapter", VMId=vm.guid, InstancePath=mine[number] if mine[number:] else "")


_of_each_vm("Get-VMProcessor", _processor)
_of_each_vm("Get-VMSnapshot", _snapshots)
_of_each_vm("Get-VMFirmware", _firmware)
_of_each_vm("Get-VMHardDiskDrive", _drives)
_of_each_vm("Get-VMDvdDrive", _dvds)
_of_each_vm("Get-VMAssignableDevice", _assigned)
_of_each_vm("Get-VMGpuPartitionAdapter", _partitions)


@answers("Set-VM", "VM", *SETTINGS)
def _set_vm(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    given = {name: value for name, value in bound.items() if name != "VM"}
    desired = {SETTINGS[name]: value if name == "Notes" else our_word(value) for name, value in given.items()}
    for guid in process.each_vm(bound):
        process.machine.set_vm(guid, **desired)
    return ()


@answers("Stop-VM", "VM", "TurnOff", "AsJob")
def _stop_vm(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    if bound.get("TurnOff"):
        for guid in process.each_vm(bound):
            process.machine.turn_vm_off(guid)
        return ()
    if not bound.get("AsJob"):
        raise process.machine.fail("not-stood-in", "Stop-VM", what="waiting without -AsJob")
    for guid in process.each_vm(bound):
        process.stopping[guid] = process.slept + process.machine.ask_guest_to_stop(guid)
    process.jobs += 1
    return [of_type("VMJob", State="Running", JobStateInfo=of_type("VMJobStateInfo"))]


@answers("Remove-Job", "Job", "Force")
def _remove_job(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    if not bound.get("Force"):
        raise process.machine.fail("not-stood-in", "Remove-Job", what="a job that may still run, without -Force")
    process.jobs -= 1
    return ()


@answers("Start-Sleep", "Seconds")
def _sleep(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    process.machine.network.wait(bound["Seconds"])
    process.slept += bound["Seconds"]
    for guid in [guid for guid, end in process.stopping.items() if end <= process.slept]:
        del process.stopping[guid]
        process.machine.guest_stopped(guid)
    return ()


@answers("Read-WinhostClock")
def _clock(process: CmdletProcess, _bound: BoundParameters) -> Iterable[Any]:
    return [process.slept]


# ---- made and taken away


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
