"""Cmdlets of the host itself, of accounts and software, and the helpers of our agent that reach past cmdlets."""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from winhost.lab.physics.local_accounts import Task
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.vm_cmdlets import ROLE, TOOLS
from winhost.lab.physics.windows_errors import FileTime, WindowsObject, windows_object
from winhost.lab.powershell.calls.cmdlet_process import BoundParameters, CmdletProcess, answers, calls
from winhost.lab.powershell.standins import cmdlets
from winhost.lab.powershell.windows_views import (
    Entity,
    cim,
    driver_models,
    entities,
    gpu_addresses,
    registry,
    services,
    shown,
    windows_word,
)

_WAIT = 0.5  # real seconds that a process may wait for the mutex before it is asked whether it still wants it
_ON_BATTERIES = ("AllowStartIfOnBatteries", "DontStopIfGoingOnBatteries")


# ---- features and services


@answers("Get-WindowsFeature", "Name")
def _features(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    known = {ROLE: process.machine.role, TOOLS: process.machine.tools, "Web-Server": "available"}
    return [
        windows_object("Feature", Name=n, InstallState=windows_word(s)) for n, s in known.items() if n in bound["Name"]
    ]


@answers("Get-Service", "Name")
def _services(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    known = services(process.machine)
    for name in bound["Name"]:
        if name not in known:
            raise process.machine.windows_error("no-service", "Get-Service", service=name)
        yield windows_object("ServiceController", Name=name, Status=windows_word(known[name]))


@answers("Get-Command", "Name")
def _commands(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    for name in bound["Name"]:
        if name not in cmdlets() or not _has_command(process, name):
            raise process.machine.windows_error("no-command", "Get-Command", asked=name)
        yield windows_object("ShownCommand", Name=name)


def _has_command(process: CmdletProcess, name: str) -> bool:
    # A module that all have; these came to it later.
    if "HyperVVM" in name:
        return process.machine.network.has_hyper_v_firewall
    return process.machine.has_module(cmdlets()[name]["module"])


@answers("Get-CimInstance", "ClassName", "Namespace", "Filter")
def _cim(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    found = cim(process.machine, bound["ClassName"])
    if found is None:
        raise process.machine.windows_error("not-stood-in", "Get-CimInstance", what=bound["ClassName"])
    name = re.fullmatch(r"Name = '(.*)'", bound.get("Filter") or "Name = ''")
    if name is None:
        raise process.machine.windows_error("not-stood-in", "Get-CimInstance", what=bound["Filter"])
    return [each for each in found if name[1] in ("", each.properties.get("Name"))]


# ---- Plug and Play


@answers("Get-PnpDeviceProperty", "InputObject", "KeyName")
def _pnp_properties(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    known = {entity.instance: entity for entity in entities(process.machine)}
    asked: list[Entity] = [known[each["DeviceID"]] for each in bound["InputObject"]]
    return [entity.property(key) for entity in asked for key in bound["KeyName"]]


# ---- scheduled tasks: what a part of one says stands where other objects have the word that names them


def _part_of_a_task(name: str, class_name: str, *parameters: str) -> None:
    def answer(_: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
        return [windows_object(class_name, DeviceID=" ".join(str(bound[p]) for p in parameters if p in bound))]

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
    bundles = [
        windows_object("MSFT_ScheduledTask", DeviceID=n, TaskName=n, TaskPath="\\") for n in process.machine.tasks
    ]
    return [*bundles, *_account_tasks(process)]


@answers("Get-ScheduledTask", "TaskPath")
def _tasks(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    tasks = _all_tasks(process)
    if not bound.get("TaskPath"):
        # Some that Windows or others keep not even an administrator may read, and one of them ends the listing.
        raise process.machine.windows_error("task-unreadable", "Get-ScheduledTask")
    for path in bound["TaskPath"]:
        tasks = [task for task in tasks if task.properties["TaskPath"] == path]
        if not tasks:
            raise process.machine.windows_error("no-task-there", "Get-ScheduledTask", path=path)
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


def _program(machine: Machine, bound: BoundParameters) -> WindowsObject | None:
    """Run a program and return its result; None where there is no such program."""
    known: dict[str, Callable[[list[str]], tuple[int | None, str] | None]] = {
        "secedit.exe": machine.accounts.run_secedit,
        "netsh.exe": lambda words: machine.network.run_netsh(words[2:]),
        "OpenSSH\\ssh-keygen.exe": lambda words: (machine.run_ssh_keygen(words), ""),
        "nvidia-smi.exe": lambda words: _nvidia_smi(machine, words),
        "msiexec.exe": lambda words: (machine.software.run_msiexec(words), ""),
        **machine.programs,
    }
    if bound["Program"] == "shutdown.exe":
        code, errors = machine.run_shutdown()
        return WindowsObject(None, {"code": code, "output": "", "errors": errors})
    if bound["Program"] not in known:
        raise machine.windows_error("not-stood-in", "Invoke-WinhostNative", what=bound["Program"])
    ended = known[bound["Program"]](bound["Arguments"])
    if ended is None or ended[0] is None:
        return None
    return WindowsObject(None, {"code": ended[0], "output": ended[1], "errors": ""})


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


_EXPIRES = FileTime(134104320000000000)


# ---- accounts


def _user(machine: Machine, name: str) -> WindowsObject:
    account = machine.accounts.accounts[name]
    return shown("LocalUser", account, PasswordExpires=_EXPIRES if account.password_expires else None)


_FLAGS = ("PasswordNeverExpires", "AccountNeverExpires", "UserMayNotChangePassword")


@answers("New-LocalUser", "Name", "Password", "Description", *_FLAGS)
def _new_user(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    missing = [flag for flag in _FLAGS if not bound.get(flag)]
    if missing:
        raise process.machine.windows_error("not-stood-in", "New-LocalUser", what=f"a call without -{missing[0]}")
    account = process.machine.accounts.new_local_user(bound["Name"], bound["Password"], bound["Description"])
    return [_user(process.machine, account.name.casefold())]


# ---- tasks


def _account_tasks(process: CmdletProcess) -> Iterator[WindowsObject]:
    """The scheduled tasks in winhost's folder."""
    for task in process.machine.accounts.tasks.values():
        program = f'"{task.program}"' if " " in task.program else task.program
        action = windows_object("MSFT_TaskExecAction", Execute=program, Arguments=task.arguments)
        yield windows_object(
            "MSFT_ScheduledTask",
            DeviceID=task.name,
            TaskName=task.name,
            TaskPath="\\winhost\\",
            State=task.state,
            Actions=[action],
            Principal=windows_object(
                "MSFT_TaskPrincipal2",
                LogonType={"password": "Password", "s4u": "S4U", "interactive": "Interactive"}[task.logon],
            ),
        )


@answers("Register-WinhostAccountTask", "Task", "Account", "Secret")
def _register_account_task(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    desired = bound["Task"]
    process.machine.accounts.register_task(
        Task(
            desired["name"],
            bound["Account"],
            desired["program"].strip('"'),
            desired["arguments"],
            at_startup=desired["at_startup"],
            logon=desired["logon"],
            secret=bound["Secret"],
        )
    )
    return ()


_STATES = {
    "available": "Disabled",
    "installed": "Enabled",
    "install-pending": "EnablePending",
    "uninstall-pending": "DisablePending",
}


@answers("Get-AuthenticodeSignature", "LiteralPath")
def _signature(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    for path in bound["LiteralPath"]:
        status, subject = process.machine.software.signature(path)
        signer = windows_object("SignerCertificate", Subject=subject) if subject else None
        yield windows_object("Signature", Status=status, SignerCertificate=signer)


# ---- programs, and what is one call


def _nvidia_smi(machine: Machine, arguments: list[str]) -> tuple[int, str] | None:
    """Run nvidia-smi; None where the host does not have it."""
    found = driver_models(machine, machine.software.driver_models())
    if found is None or "-dm" not in arguments:
        return found
    asked = dict(zip(arguments[::2], arguments[1::2], strict=True))
    addresses = dict(zip(gpu_addresses(machine), machine.devices, strict=True))
    return machine.software.set_driver_model(addresses[asked["-i"]].location, int(asked["-dm"]))


def _registry(machine: Machine, path: str) -> WindowsObject | None:
    values = registry(machine, path)
    return None if values is None else WindowsObject(None, values)


calls(
    {
        "Invoke-WinhostNative Program Arguments": _program,
        "Open-WinhostRegistry Path": lambda m, g: _registry(m, g["Path"]),
        "Get-Module ListAvailable Name": lambda m, g: [
            windows_object("ModuleInfo", Name=name) for name in g["Name"] if m.has_module(name)
        ],
        "Get-PnpDevice PresentOnly": lambda m, _: [entity.as_object() for entity in entities(m)],
        "Get-LocalUser": lambda m, _: [_user(m, name) for name in m.accounts.accounts],
        # With one that is gone, as such groups have them.
        "Read-WinhostGroup Sid": lambda m, _: [
            *(account.sid for account in m.accounts.accounts.values() if account.administrator),
            "S-1-5-21-1-2-3-4004",
        ],
        "Get-ScheduledTaskInfo InputObject": lambda m, g: windows_object(
            "MSFT_TaskDynamicInfo", LastTaskResult=m.accounts.tasks[g["InputObject"]["DeviceID"].casefold()].result
        ),
        "Get-WindowsOptionalFeature Online": lambda m, _: [
            windows_object("OptionalFeature", FeatureName=name, State=_STATES[state])
            for name, state in m.optional_features.items()
        ],
    }
)
