"""Cmdlets of the host itself, and the helpers of our agent that reach past cmdlets."""

from collections.abc import Iterable
from typing import Any

from winhost.lab.physics.feature_cmdlets import ROLE, TOOLS
from winhost.lab.physics.windows_objects import WindowsObject, of_type
from winhost.lab.powershell.calls.account_calls import account_tasks
from winhost.lab.powershell.calls.cmdlet_process import BoundParameters, CmdletProcess, answers, windows_word
from winhost.lab.powershell.calls.software_calls import msiexec, nvidia_smi
from winhost.lab.powershell.standins import cmdlets
from winhost.lab.powershell.windows_views import Entity, cim, entities, registry, services

_WAIT = 0.5  # real seconds that a process may wait for the mutex before it is asked whether it still wants it
_ON_BATTERIES = ("AllowStartIfOnBatteries", "DontStopIfGoingOnBatteries")


# ---- features and services


@answers("Get-WindowsFeature", "Name")
def _features(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    known = {ROLE: process.machine.role, TOOLS: process.machine.tools, "Web-Server": "available"}
    return [of_type("Feature", Name=n, InstallState=windows_word(s)) for n, s in known.items() if n in bound["Name"]]


@answers("Get-Service", "Name")
def _services(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    known = services(process.machine)
    for name in bound["Name"]:
        if name not in known:
            raise process.machine.fail("no-service", "Get-Service", service=name)
        yield of_type("ServiceController", Name=name, Status=windows_word(known[name]))


@answers("Get-Module", "ListAvailable", "Name")
def _modules(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    return [of_type("ModuleInfo", Name=name) for name in bound["Name"] if process.machine.has_module(name)]


@answers("Get-Command", "Name")
def _commands(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    for name in bound["Name"]:
        if name not in cmdlets() or not _has_command(process, name):
            raise process.machine.fail("no-command", "Get-Command", asked=name)
        yield of_type("ShownCommand", Name=name)


def _has_command(process: CmdletProcess, name: str) -> bool:
    # A module that all have; these came to it later.
    if "HyperVVM" in name:
        return process.machine.network.has_hyper_v_firewall
    return process.machine.has_module(cmdlets()[name]["module"])


@answers("Get-CimInstance", "ClassName", "Namespace")
def _cim(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    found = cim(process.machine, bound["ClassName"])
    if found is None:
        raise process.machine.fail("not-stood-in", "Get-CimInstance", what=bound["ClassName"])
    return found


# ---- Plug and Play


@answers("Get-PnpDevice", "PresentOnly")
def _pnp(process: CmdletProcess, _bound: BoundParameters) -> Iterable[Any]:
    return [entity.as_object() for entity in entities(process.machine)]


@answers("Get-PnpDeviceProperty", "InputObject", "KeyName")
def _pnp_properties(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    known = {entity.instance: entity for entity in entities(process.machine)}
    asked: list[Entity] = [known[each["DeviceID"]] for each in bound["InputObject"]]
    return [entity.property(key) for entity in asked for key in bound["KeyName"]]


# ---- scheduled tasks: what a part of one says stands where other objects have the word that names them


def _part_of_a_task(name: str, class_name: str, *parameters: str) -> None:
    def answer(_: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
        return [of_type(class_name, DeviceID=" ".join(str(bound[p]) for p in parameters if p in bound))]

    answers(name, *parameters)(answer)


_part_of_a_task("New-ScheduledTaskAction", "MSFT_TaskAction", "Execute", "Argument")
_part_of_a_task("New-ScheduledTaskPrincipal", "MSFT_TaskPrincipal", "UserId", "LogonType", "RunLevel")
_part_of_a_task("New-ScheduledTaskSettingsSet", "MSFT_TaskSettings", *_ON_BATTERIES)
_part_of_a_task("New-ScheduledTaskTrigger", "MSFT_TaskTrigger", "AtStartup")


@answers("Register-ScheduledTask", "TaskName", "Action", "Trigger", "Principal", "Settings")
def _register(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    one = {**bound, "Action": bound["Action"][0], "Trigger": bound["Trigger"][0]}
    process.machine.tasks[bound["TaskName"]] = {n: part["DeviceID"] for n, part in one.items() if n != "TaskName"}
    return [task for task in _all_tasks(process) if task.properties["TaskName"] == bound["TaskName"]]


def _all_tasks(process: CmdletProcess) -> list[WindowsObject]:
    bundles = [of_type("MSFT_ScheduledTask", DeviceID=n, TaskName=n, TaskPath="\\") for n in process.machine.tasks]
    return [*bundles, *account_tasks(process)]


@answers("Get-ScheduledTask", "TaskPath")
def _tasks(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    tasks = _all_tasks(process)
    if not bound.get("TaskPath"):
        # Some that Windows or others keep not even an administrator may read, and one of them ends the listing.
        raise process.machine.fail("task-unreadable", "Get-ScheduledTask")
    for path in bound["TaskPath"]:
        tasks = [task for task in tasks if task.properties["TaskPath"] == path]
        if not tasks:
            raise process.machine.fail("no-task-there", "Get-ScheduledTask", path=path)
    return tasks


@answers("Unregister-ScheduledTask", "InputObject")
def _unregister(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    for task in bound["InputObject"]:
        if task["DeviceID"] in process.machine.tasks:
            del process.machine.tasks[task["DeviceID"]]
        else:
            process.machine.accounts.unregister_scheduled_task(task["DeviceID"])
    return ()


# ---- the agent's own helpers


@answers("Open-WinhostRegistry", "Path")
def _registry(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    values = registry(process.machine, bound["Path"])
    return [] if values is None else [WindowsObject(None, values)]


@answers("Invoke-WinhostNative", "Program", "Arguments")
def _program(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    match bound["Program"]:
        case "shutdown.exe":
            code, errors = process.machine.run_shutdown()
            return [WindowsObject(None, {"code": code, "output": "", "errors": errors})]
        case "secedit.exe":
            code, output = process.machine.accounts.run_secedit(bound["Arguments"])
            return [WindowsObject(None, {"code": code, "output": output, "errors": ""})]
        case "netsh.exe":
            code, output = process.machine.network.run_netsh(bound["Arguments"][2:])
            return [WindowsObject(None, {"code": code, "output": output, "errors": ""})]
        case "OpenSSH\\ssh-keygen.exe":
            ended_with = process.machine.run_ssh_keygen(bound["Arguments"])
            known = WindowsObject(None, {"code": ended_with, "output": "", "errors": ""})
            return [] if ended_with is None else [known]
        case "nvidia-smi.exe":
            ended = nvidia_smi(process, bound["Arguments"])
            return [] if ended is None else [ended]
        case "msiexec.exe":
            return [msiexec(process, bound["Arguments"])]
        case other if other in process.machine.programs:
            code, output = process.machine.programs[other](bound["Arguments"])
            return [WindowsObject(None, {"code": code, "output": output, "errors": ""})]
        case other:
            raise process.machine.fail("not-stood-in", "Invoke-WinhostNative", what=other)


@answers("Enter-WinhostMutex")
def _enter(process: CmdletProcess, _bound: BoundParameters) -> Iterable[Any]:
    process.has_mutex = process.machine.mutex.acquire(timeout=_WAIT)
    return [process.has_mutex]


@answers("Exit-WinhostMutex")
def _exit(process: CmdletProcess, _bound: BoundParameters) -> Iterable[Any]:
    process.close()
    return ()


@answers("Get-WinhostSession")
def _session(process: CmdletProcess, _bound: BoundParameters) -> Iterable[Any]:
    for record in process.machine.instances("Session"):
        yield WindowsObject(None, {"user": record.state["user"], "administrator": process.machine.lab.administrator})
