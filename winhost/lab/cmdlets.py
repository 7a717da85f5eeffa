"""What the stand-ins ask: cmdlets by their names and parameters, done or answered by the simulated host."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from winhost.lab.machine import ROLE, TOOLS, Machine
from winhost.lab.shown import Entity, Properties, Shown, cim, driver_models, entities, registry, services, shown
from winhost.lab.standins import cmdlets
from winhost.lab.vms import VirtualMachine
from winhost.model.facts import Record

Given = Mapping[str, Any]
Answer = Callable[["Cmdlets", Given], Iterable[Any]]

_ANSWERS: dict[str, tuple[frozenset[str], Answer]] = {}
_WAIT = 0.5  # real seconds that a process may wait for the mutex before it is asked whether it still wants it


def _answers(name: str, *parameters: str) -> Callable[[Answer], Answer]:
    """For calls of `name` with these parameters; any other parameter is refused, not passed over."""

    def note(answer: Answer) -> Answer:
        _ANSWERS[name] = (frozenset(parameters), answer)
        return answer

    return note


class Cmdlets:
    """Of one PowerShell process on one host. Time here is what that process has slept, in lab seconds."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.slept = 0.0
        self.stopping: dict[str, float] = {}  # VMs whose guests were asked to stop, and when they have
        self.holds_mutex = False

    def run(self, name: str, given: Given) -> list[Any]:
        """The objects that the cmdlet gives. Raises CmdletError, HostDown."""
        known, answer = _ANSWERS.get(name, (frozenset(), None))
        if answer is None or set(given) - known:
            what = "such a call" if answer is None else ", ".join(f"-{p}" for p in sorted(set(given) - known))
            raise self.machine.fail("not-stood-in", name, what=what)
        module = cmdlets()[name]["module"] if name in cmdlets() else ""
        if name.split("-")[0] in _LOOK:
            with self.machine.reading(name, module):
                return list(answer(self, given))
        return list(answer(self, given))

    def close(self) -> None:
        """The process is gone; a mutex that it held is abandoned, and the next one takes it."""
        if self.holds_mutex:
            self.machine.mutex.release()
            self.holds_mutex = False

    def each_vm(self, given: Given) -> Iterator[str]:
        for vm in given["VM"]:
            yield vm["Id"]


_LOOK = ("Get", "Test", "Read", "Open")


# ---- VMs


@_answers("Get-VM", "Id")
def _get_vm(desk: Cmdlets, given: Given) -> Iterable[Any]:
    wanted = given.get("Id")
    if wanted is not None and wanted not in desk.machine.vms:
        raise desk.machine.fail("vm-unknown", "Get-VM", vm=wanted)
    return [_vm(vm) for vm in desk.machine.vms.values() if wanted in (None, vm.guid)]


def _vm(vm: VirtualMachine) -> Shown:
    return shown(
        "VirtualMachine",
        Id=vm.guid,
        Name=vm.name,
        State=_name(vm.power),
        Generation=vm.says("generation", 2),
        Version=vm.says("version", None),
        IsClustered=vm.says("clustered", None),
        AutomaticStopAction=_name(vm.stop_action),
        AutomaticStartAction=_name(vm.start_action),
        CheckpointType=_name(vm.checkpoint_type),
        AutomaticCheckpointsEnabled=vm.automatic_checkpoints,
        DynamicMemoryEnabled=vm.dynamic_memory,
        MemoryStartup=vm.startup,
        MemoryMinimum=vm.minimum,
        MemoryMaximum=vm.maximum,
        LowMemoryMappedIoSpace=vm.low,
        HighMemoryMappedIoSpace=vm.high,
        GuestControlledCacheTypes=vm.cache,
    )


def _of_each_vm(name: str, make: Callable[[Machine, VirtualMachine], Iterable[Shown]]) -> None:
    def answer(desk: Cmdlets, given: Given) -> Iterable[Any]:
        return [each for guid in desk.each_vm(given) for each in make(desk.machine, desk.machine.vms[guid])]

    _answers(name, "VM")(answer)


def _processor(_: Machine, vm: VirtualMachine) -> Iterable[Shown]:
    yield shown("VMProcessor", VMId=vm.guid, ExposeVirtualizationExtensions=vm.says("nested", False))


def _snapshots(_: Machine, vm: VirtualMachine) -> Iterable[Shown]:
    for number in range(vm.says("checkpoints", 0)):
        yield shown("VMSnapshot", VMId=vm.guid, Name=f"{vm.name} - ({number})")


def _firmware(machine: Machine, vm: VirtualMachine) -> Iterable[Shown]:
    if vm.says("generation", 2) < 2:
        raise machine.fail("generation-1", "Get-VMFirmware", vm=vm.name)
    secure = "On" if vm.says("secure_boot", False) else "Off"
    yield shown("VMFirmware", SecureBoot=secure, SecureBootTemplate=vm.says("secure_boot_template", None))


def _assigned(_: Machine, vm: VirtualMachine) -> Iterable[Shown]:
    for claim in vm.assignments:
        yield shown(
            "VMAssignedDevice",
            VMId=vm.guid,
            VMName=vm.name,
            InstanceID=claim.instance,
            LocationPath=claim.location,
        )


def _partitions(machine: Machine, vm: VirtualMachine) -> Iterable[Shown]:
    """Which VM has a partition of which GPU, facts do not tell: in the order of both."""
    used = [gpu.key["gpu"] for gpu in machine.there("PartitionableGpu") for _ in range(gpu.state["used"])]
    for other in machine.vms.values():
        mine, used = used[: other.says("partitions", 0)], used[other.says("partitions", 0) :]
        if other is vm:
            for number in range(vm.says("partitions", 0)):
                yield shown("VMGpuPartitionAdapter", VMId=vm.guid, InstancePath=mine[number] if mine[number:] else "")


_of_each_vm("Get-VMProcessor", _processor)
_of_each_vm("Get-VMSnapshot", _snapshots)
_of_each_vm("Get-VMFirmware", _firmware)
_of_each_vm("Get-VMAssignableDevice", _assigned)
_of_each_vm("Get-VMGpuPartitionAdapter", _partitions)

_SET_VM = {
    "LowMemoryMappedIoSpace": "low_memory_mapped_io_space",
    "HighMemoryMappedIoSpace": "high_memory_mapped_io_space",
    "GuestControlledCacheTypes": "guest_controlled_cache_types",
    "AutomaticStopAction": "automatic_stop_action",
    "AutomaticStartAction": "automatic_start_action",
    "CheckpointType": "checkpoint_type",
    "AutomaticCheckpointsEnabled": "automatic_checkpoints_enabled",
}


@_answers("Set-VM", "VM", *_SET_VM)
def _set_vm(desk: Cmdlets, given: Given) -> Iterable[Any]:
    wanted = {_SET_VM[name]: _word(value) for name, value in given.items() if name != "VM"}
    for guid in desk.each_vm(given):
        desk.machine.set_vm(guid, **wanted)
    return ()


@_answers("Set-VMMemory", "VM", "DynamicMemoryEnabled")
def _set_vm_memory(desk: Cmdlets, given: Given) -> Iterable[Any]:
    for guid in desk.each_vm(given):
        desk.machine.set_vm_memory(guid, dynamic_memory_enabled=given["DynamicMemoryEnabled"])
    return ()


def _to_each_vm(name: str, change: Callable[[Machine, str], None]) -> None:
    def answer(desk: Cmdlets, given: Given) -> Iterable[Any]:
        for guid in desk.each_vm(given):
            change(desk.machine, guid)
        return ()

    _answers(name, "VM")(answer)


_to_each_vm("Start-VM", Machine.start_vm)
_to_each_vm("Save-VM", Machine.save_vm)
_to_each_vm("Suspend-VM", Machine.suspend_vm)
_to_each_vm("Resume-VM", Machine.resume_vm)


@_answers("Stop-VM", "VM", "TurnOff", "AsJob")
def _stop_vm(desk: Cmdlets, given: Given) -> Iterable[Any]:
    if given.get("TurnOff"):
        for guid in desk.each_vm(given):
            desk.machine.turn_vm_off(guid)
        return ()
    if not given.get("AsJob"):
        raise desk.machine.fail("not-stood-in", "Stop-VM", what="waiting without -AsJob")
    for guid in desk.each_vm(given):
        desk.stopping[guid] = desk.slept + desk.machine.ask_guest_to_stop(guid)
    return [shown("VMJob", State="Running", JobStateInfo=shown("VMJobStateInfo"))]


@_answers("Start-Sleep", "Seconds")
def _sleep(desk: Cmdlets, given: Given) -> Iterable[Any]:
    desk.machine.clock.sleep(given["Seconds"])
    desk.slept += given["Seconds"]
    for guid in [guid for guid, end in desk.stopping.items() if end <= desk.slept]:
        del desk.stopping[guid]
        desk.machine.guest_stopped(guid)
    return ()


@_answers("Read-WinhostClock")
def _clock(desk: Cmdlets, _given: Given) -> Iterable[Any]:
    return [desk.slept]


# ---- the Hyper-V host


@_answers("Get-VMHost")
def _vm_host(desk: Cmdlets, _given: Given) -> Iterable[Any]:
    for record in desk.machine.there("HyperVHost"):
        reasons = record.state["iov_reasons"]
        yield shown("VMHost", Name=desk.machine.name, IovSupport=record.state["iov_support"], IovSupportReasons=reasons)


@_answers("Get-VMSwitch")
def _switches(desk: Cmdlets, _given: Given) -> Iterable[Any]:
    for record in desk.machine.there("VmSwitch"):
        yield shown(
            "VMSwitch",
            Id=record.key["switch"],
            Name=record.state["name"],
            SwitchType=_name(record.state["kind"]),
            NetAdapterInterfaceDescription=record.state["adapter"],
            AllowManagementOS=record.state["management_os"],
        )


@_answers("Get-VMHostPartitionableGpu")
def _partitionable(desk: Cmdlets, _given: Given) -> Iterable[Any]:
    for record in desk.machine.there("PartitionableGpu"):
        yield shown(
            "VMHostPartitionableGpu",
            Name=record.key["gpu"],
            PartitionCount=record.state["partitions"],
            ValidPartitionCounts=record.state["valid_counts"],
        )


# ---- devices


@_answers("Get-PnpDevice", "PresentOnly")
def _pnp(desk: Cmdlets, _given: Given) -> Iterable[Any]:
    return [entity.shown() for entity in entities(desk.machine)]


@_answers("Get-PnpDeviceProperty", "InputObject", "KeyName")
def _pnp_properties(desk: Cmdlets, given: Given) -> Iterable[Any]:
    known = {entity.instance: entity for entity in entities(desk.machine)}
    asked: list[Entity] = [known[each["DeviceID"]] for each in given["InputObject"]]
    return [entity.property(key) for entity in asked for key in given["KeyName"]]


@_answers("Disable-PnpDevice", "InstanceId")
def _disable(desk: Cmdlets, given: Given) -> Iterable[Any]:
    for instance in given["InstanceId"]:
        desk.machine.disable_pnp_device(instance)
    return ()


@_answers("Enable-PnpDevice", "InstanceId")
def _enable(desk: Cmdlets, given: Given) -> Iterable[Any]:
    for instance in given["InstanceId"]:
        desk.machine.enable_pnp_device(instance)
    return ()


@_answers("Dismount-VMHostAssignableDevice", "LocationPath", "Force")
def _dismount(desk: Cmdlets, given: Given) -> Iterable[Any]:
    desk.machine.dismount_vm_host_assignable_device(given["LocationPath"], force=given.get("Force", False))
    return ()


@_answers("Mount-VMHostAssignableDevice", "LocationPath")
def _mount(desk: Cmdlets, given: Given) -> Iterable[Any]:
    desk.machine.mount_vm_host_assignable_device(given["LocationPath"])
    return ()


@_answers("Add-VMAssignableDevice", "VM", "LocationPath")
def _add(desk: Cmdlets, given: Given) -> Iterable[Any]:
    for guid in desk.each_vm(given):
        desk.machine.add_vm_assignable_device(guid, given["LocationPath"])
    return ()


@_answers("Remove-VMAssignableDevice", "VMAssignableDevice")
def _remove(desk: Cmdlets, given: Given) -> Iterable[Any]:
    for each in given["VMAssignableDevice"]:
        desk.machine.remove_vm_assignable_device(each["VMId"], each["LocationPath"])
    return ()


# ---- features, disks, services


@_answers("Get-WindowsFeature", "Name")
def _features(desk: Cmdlets, given: Given) -> Iterable[Any]:
    there = {ROLE: desk.machine.role, TOOLS: desk.machine.tools, "Web-Server": "available"}
    return [shown("Feature", Name=n, InstallState=_name(s)) for n, s in there.items() if n in given["Name"]]


@_answers("Install-WindowsFeature", "Name")
def _install(desk: Cmdlets, given: Given) -> Iterable[Any]:
    return [_result(desk.machine.install_windows_feature(*(each["Name"] for each in given["Name"])))]


@_answers("Uninstall-WindowsFeature", "Name")
def _uninstall(desk: Cmdlets, given: Given) -> Iterable[Any]:
    return [_result(desk.machine.uninstall_windows_feature(*(each["Name"] for each in given["Name"])))]


def _result(restart: bool) -> Shown:
    return shown("FeatureOperationResult", Success=True, RestartNeeded="Yes" if restart else "No")


_OPTIONAL = {
    "available": "Disabled",
    "installed": "Enabled",
    "install-pending": "EnablePending",
    "uninstall-pending": "DisablePending",
    "removed": "DisabledWithPayloadRemoved",
}


@_answers("Get-WindowsOptionalFeature", "Online")
def _optional_features(desk: Cmdlets, _given: Given) -> Iterable[Any]:
    there = {
        "Microsoft-Hyper-V-All": desk.machine.role,
        "Microsoft-Hyper-V-Management-PowerShell": desk.machine.tools,
        "TelnetClient": "available",
    }
    return [shown("OptionalFeature", FeatureName=n, State=_OPTIONAL[s]) for n, s in there.items()]


@_answers("Get-Disk")
def _disks(desk: Cmdlets, _given: Given) -> Iterable[Any]:
    return [_disk(record) for record in desk.machine.there("Disk")]


def _disk(record: Record) -> Shown:
    state: Properties = record.state
    return shown(
        "MSFT_Disk",
        UniqueId=record.key["disk"],
        FriendlyName=state["model"],
        BusType=state["bus"],
        Size=state["size"],
        PartitionStyle=state["style"],
        IsBoot=state["boot"],
        IsSystem=state["system"],
    )


@_answers("Get-BitLockerVolume")
def _volumes(desk: Cmdlets, _given: Given) -> Iterable[Any]:
    for record in desk.machine.there("BitLocker"):
        yield shown(
            "BitLockerVolume",
            MountPoint=record.key["volume"],
            ProtectionStatus=_name(record.state["protection"]),
            VolumeType=_name(record.state["volume_type"]),
        )


@_answers("Get-Service", "Name")
def _services(desk: Cmdlets, given: Given) -> Iterable[Any]:
    there = services(desk.machine)
    for name in given["Name"]:
        if name not in there:
            raise desk.machine.fail("no-service", "Get-Service", service=name)
        yield shown("ServiceController", Name=name, Status=_name(there[name]))


@_answers("Get-Module", "ListAvailable", "Name")
def _modules(desk: Cmdlets, given: Given) -> Iterable[Any]:
    return [shown("ModuleInfo", Name=name) for name in given["Name"] if desk.machine.has_module(name)]


@_answers("Get-Command", "Name")
def _commands(desk: Cmdlets, given: Given) -> Iterable[Any]:
    for name in given["Name"]:
        if name not in cmdlets() or not desk.machine.has_module(cmdlets()[name]["module"]):
            raise desk.machine.fail("no-command", "Get-Command", asked=name)
        yield shown("ShownCommand", Name=name)


@_answers("Get-CimInstance", "ClassName", "Namespace")
def _cim(desk: Cmdlets, given: Given) -> Iterable[Any]:
    found = cim(desk.machine, given["ClassName"])
    if found is None:
        raise desk.machine.fail("not-stood-in", "Get-CimInstance", what=given["ClassName"])
    return found


# ---- the agent's own helpers


@_answers("Open-WinhostRegistry", "Path")
def _registry(desk: Cmdlets, given: Given) -> Iterable[Any]:
    values = registry(desk.machine, given["Path"])
    return [] if values is None else [Shown(None, values)]


@_answers("Invoke-WinhostNative", "Program", "Arguments")
def _program(desk: Cmdlets, given: Given) -> Iterable[Any]:
    match given["Program"]:
        case "shutdown.exe":
            code, errors = desk.machine.run_shutdown()
            return [Shown(None, {"code": code, "output": "", "errors": errors})]
        case "nvidia-smi.exe":
            ended = driver_models(desk.machine)
            return [] if ended is None else [Shown(None, {"code": ended[0], "output": ended[1], "errors": ""})]
        case other:
            raise desk.machine.fail("not-stood-in", "Invoke-WinhostNative", what=other)


@_answers("Enter-WinhostMutex")
def _enter(desk: Cmdlets, _given: Given) -> Iterable[Any]:
    desk.holds_mutex = desk.machine.mutex.acquire(timeout=_WAIT)
    return [desk.holds_mutex]


@_answers("Exit-WinhostMutex")
def _exit(desk: Cmdlets, _given: Given) -> Iterable[Any]:
    desk.close()
    return ()


@_answers("Get-WinhostSession")
def _session(desk: Cmdlets, _given: Given) -> Iterable[Any]:
    for record in desk.machine.there("Session"):
        yield Shown(None, {"user": record.state["user"], "administrator": desk.machine.lab.administrator})


# ---- words: TurnOff on the host is turn-off in the machine


def _name(word: Any) -> str:
    return "".join(part.capitalize() for part in str(word).split("-"))


def _word(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return "".join(f"-{c.lower()}" if c.isupper() and place else c.lower() for place, c in enumerate(value))
