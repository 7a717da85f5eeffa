"""Cmdlets for VMs and their disks."""

from collections.abc import Callable, Iterable
from typing import Any

from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.virtual_machine import SETTINGS, VirtualMachine
from winhost.lab.physics.vm_creation import TEMPLATES
from winhost.lab.physics.windows_errors import WindowsObject, windows_object
from winhost.lab.powershell.calls.cmdlet_process import BoundParameters, CmdletProcess, answers, register_calls
from winhost.lab.powershell.windows_views import from_windows_enum, make_object


@answers("Get-VM", "Id")
def _get_vm(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    desired = bound.get("Id")
    if desired is not None and desired not in process.machine.vms:
        raise process.machine.windows_error("vm-unknown", "Get-VM", vm=desired)
    return [make_vm_object(vm) for vm in process.machine.vms.values() if desired in (None, vm.guid)]


def make_vm_object(vm: VirtualMachine) -> WindowsObject:
    """Return the object of Get-VM and New-VM."""
    return make_object("VirtualMachine", vm, vm.traits, {"generation": 2})


def _list_by_vm(
    objects: Callable[[Machine, VirtualMachine], list[WindowsObject]],
) -> Callable[[Machine, BoundParameters], list[WindowsObject]]:
    """Return a call that lists the objects of each VM in the parameter -VM."""
    return lambda machine, bound: [item for each in bound["VM"] for item in objects(machine, machine.vms[each["Id"]])]


def _firmware(machine: Machine, vm: VirtualMachine) -> list[WindowsObject]:
    if vm.get_known("generation", 2) < 2:
        raise machine.windows_error("generation-1", "Get-VMFirmware", vm=vm.name)
    secure = "On" if vm.get_known("secure_boot", False) else "Off"
    template = vm.get_known("secure_boot_template", None)
    id_ = next((guid for guid, name in TEMPLATES.items() if name == template), None)
    return [windows_object("VMFirmware", SecureBoot=secure, SecureBootTemplate=template, SecureBootTemplateId=id_)]


def _partitions(machine: Machine, vm: VirtualMachine) -> list[WindowsObject]:
    """List the GPU partitions of a VM. Facts do not have their GPUs, so the VMs get them in order."""
    used = [gpu.key["gpu"] for gpu in machine.instances("PartitionableGpu") for _ in range(gpu.state["used"])]
    for other in machine.vms.values():
        own, used = used[: other.get_known("partitions", 0)], used[other.get_known("partitions", 0) :]
        if other is vm:
            paths = (own[number] if own[number:] else "" for number in range(vm.get_known("partitions", 0)))
            return [windows_object("VMGpuPartitionAdapter", VMId=vm.guid, InstancePath=path) for path in paths]
    return []


def _setting(cmdlet: str, *parameters: str) -> None:
    """Register a cmdlet that sets fields of VMs. parameters: the one with the VMs, then those without any effect."""
    fields = {each.parameter: name for name, each in SETTINGS.items() if each.cmdlet == cmdlet}

    def answer(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
        desired = {fields[each]: _field(fields[each], bound[each]) for each in bound if each in fields}
        for each in bound[parameters[0]] if isinstance(bound[parameters[0]], list) else [bound[parameters[0]]]:
            process.machine.set_vm(each.get("VMId") or each["Id"], **desired)
        return ()

    answers(cmdlet, *parameters, *fields)(answer)


def _field(name: str, value: Any) -> Any:
    """Return the value for a field; for an object its path or id."""
    if isinstance(value, dict):
        return value.get("Path") or value["Id"]
    return from_windows_enum(value) if SETTINGS[name].is_enum else value


_setting("Set-VM", "VM")
_setting("Set-VMProcessor", "VM")
_setting("Set-VMMemory", "VM")
_setting("Set-VMComPort", "VM", "Number")
_setting("Set-VMNetworkAdapter", "VMNetworkAdapter")
_setting("Connect-VMNetworkAdapter", "VMNetworkAdapter")


@answers("Stop-VM", "VM", "TurnOff", "AsJob")
def _stop_vm(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    if bound.get("TurnOff"):
        for guid in process.vm_ids(bound):
            process.machine.turn_vm_off(guid)
        return ()
    if not bound.get("AsJob"):
        raise process.machine.windows_error("not-stood-in", "Stop-VM", what="waiting without -AsJob")
    for guid in process.vm_ids(bound):
        process.stopping[guid] = process.slept + process.machine.ask_guest_to_stop(guid)
    process.jobs += 1
    return [windows_object("VMJob", State="Running", JobStateInfo=windows_object("VMJobStateInfo"))]


@answers("Remove-Job", "Job", "Force")
def _remove_job(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    if not bound.get("Force"):
        raise process.machine.windows_error(
            "not-stood-in", "Remove-Job", what="a job that may still run, without -Force"
        )
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


# ---- new and removed VMs


_NEW = ("Name", "Generation", "MemoryStartupBytes", "NoVHD", "Path")


@answers("New-VM", *_NEW)
def _new_vm(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    if bound["Generation"] != 2 or not bound.get("NoVHD"):
        raise process.machine.windows_error("not-stood-in", "New-VM", what="another generation, or one with a disk")
    return [make_vm_object(process.machine.new_vm(bound["Name"], bound["MemoryStartupBytes"], bound["Path"]))]


@answers("Set-VMFirmware", "VM", "EnableSecureBoot", "SecureBootTemplateId", "FirstBootDevice")
def _set_firmware(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    for guid in process.vm_ids(bound):
        if "FirstBootDevice" in bound:
            process.machine.set_vm(guid, boots_from=bound["FirstBootDevice"]["Path"])
        else:
            on = bound["EnableSecureBoot"] == "On"
            process.machine.set_vm_secure_boot(guid, on=on, template=bound.get("SecureBootTemplateId"))
    return ()


def _shutdown_service(_: Machine, vm: VirtualMachine) -> list[WindowsObject]:
    identity = f"Microsoft:{vm.guid.upper()}\\9F8233AC-BE49-4C79-8EE3-E7E1985B2077"
    status = {"VMId": vm.guid, "Enabled": True, "PrimaryOperationalStatus": "Ok"}
    return [windows_object("VMIntegrationComponent", Id=identity, **status)]


def _vlan(vm: VirtualMachine) -> WindowsObject:
    mode = "Untagged" if vm.vlan is None else "Access"
    return windows_object("VMNetworkAdapterVlanSetting", OperationMode=mode, AccessVlanId=vm.vlan or 0)


register_calls(
    {
        "Get-VMProcessor VM": _list_by_vm(lambda _, vm: [make_object("VMProcessor", vm, vm.traits, {"nested": False})]),
        "Get-VMSnapshot VM": _list_by_vm(
            lambda _, vm: [
                windows_object("VMSnapshot", VMId=vm.guid, Name=f"{vm.name} - ({number})")
                for number in range(vm.get_known("checkpoints", 0))
            ]
        ),
        "Get-VMFirmware VM": _list_by_vm(_firmware),
        "Get-VMIntegrationService VM": _list_by_vm(_shutdown_service),
        "Get-VMHardDiskDrive VM": _list_by_vm(
            lambda _, vm: [windows_object("HardDiskDrive", VMId=vm.guid, Path=path) for path in vm.disks]
        ),
        "Get-VMDvdDrive VM": _list_by_vm(
            lambda _, vm: [windows_object("DvdDrive", VMId=vm.guid, Path=path) for path in vm.dvd_files]
        ),
        "Get-VMAssignableDevice VM": _list_by_vm(
            lambda _, vm: [make_object("VMAssignedDevice", claim, VMId=vm.guid) for claim in vm.assignments]
        ),
        "Get-VMGpuPartitionAdapter VM": _list_by_vm(_partitions),
        "Get-VMHost": lambda m, _: [
            make_object("VMHost", record, VirtualHardDiskPath=m.lab.new_vms.store)
            for record in m.instances("HyperVHost")
        ],
        "Find-WinhostBlockingAttributes Path": lambda m, g: m.attributes(g["Path"]),
        "Get-VHD Path": lambda m, g: [
            make_object("VirtualHardDisk", m.virtual_disk(path), Path=path) for path in g["Path"]
        ],
        "Get-VMNetworkAdapterVlan VMNetworkAdapter": lambda m, g: [
            _vlan(m.vms[each["VMId"]]) for each in g["VMNetworkAdapter"]
        ],
        "Get-VMComPort VM Number": _list_by_vm(lambda _, vm: [windows_object("VMComPort", Path=vm.com1)]),
        "Test-Connection ComputerName Count Quiet": lambda m, g: m.answers_ping(g["ComputerName"][0]),
        "Get-NetNeighbor AddressFamily": lambda m, _: [
            windows_object("MSFT_NetNeighbor", IPAddress=address, LinkLayerAddress=mac, State="Stale")
            for address, mac in m.neighbours()
        ],
    }
)
