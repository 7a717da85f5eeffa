"""Cmdlets for the host itself, accounts, tasks and software, and helpers of the agent that use no cmdlet."""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from winhost.lab.physics.local_accounts import Task
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.vm_cmdlets import ROLE, TOOLS
from winhost.lab.physics.windows_errors import FileTime, WindowsObject, windows_object
from winhost.lab.powershell.calls.cmdlet_process import BoundParameters, CmdletProcess, answers, register_calls
from winhost.lab.powershell.standins import cmdlets
from winhost.lab.powershell.windows_views import (
    Entity,
    cim,
    driver_models,
    entities,
    gpu_addresses,
    make_object,
    registry,
    services,
    to_windows_enum,
)

_MUTEX_WAIT = 0.5  # real seconds after which a process that waits for the mutex can be stopped
_BATTERY_SETTINGS = ("AllowStartIfOnBatteries", "DontStopIfGoingOnBatteries")


# ---- features and services


@answers("Get-WindowsFeature", "Name")
def _features(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    states = {ROLE: process.machine.role, TOOLS: process.machine.tools, "Web-Server": "available"}
    return [
        windows_object("Feature", Name=n, InstallState=to_windows_enum(s))
        for n, s in states.items()
        if n in bound["Name"]
    ]


@answers("Get-Service", "Name")
def _services(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    states = services(process.machine)
    for name in bound["Name"]:
        if name not in states:
            raise process.machine.windows_error("no-service", "Get-Service", service=name)
        yield windows_object("ServiceController", Name=name, Status=to_windows_enum(states[name]))


@answers("Get-Command", "Name")
def _commands(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    for name in bound["Name"]:
        if name not in cmdlets() or not _has_command(process, name):
            raise process.machine.windows_error("no-command", "Get-Command", asked=name)
        yield windows_object("ShownCommand", Name=name)


def _has_command(process: CmdletProcess, name: str) -> bool:
    # All Windows versions have the module, but older ones lack these cmdlets.
    if "HyperVVM" in name:
        return process.machine.network.has_hyper_v_firewall
    return process.machine.has_module(cmdlets()[name]["module"])


@answers("Get-CimInstance", "ClassName", "Namespace", "Filter")
def _cim_instances(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    instances = cim(process.machine, bound["ClassName"])
    if instances is None:
        raise process.machine.windows_error("not-stood-in", "Get-CimInstance", what=bound["ClassName"])
    name = re.fullmatch(r"Name = '(.*)'", bound.get("Filter") or "Name = ''")
    if name is None:
        raise process.machine.windows_error("not-stood-in", "Get-CimInstance", what=bound["Filter"])
    return [each for each in instances if name[1] in ("", each.properties.get("Name"))]


# ---- Plug and Play


@answers("Get-PnpDeviceProperty", "InputObject", "KeyName")
def _pnp_properties(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    by_instance = {entity.instance: entity for entity in entities(process.machine)}
    requested: list[Entity] = [by_instance[each["DeviceID"]] for each in bound["InputObject"]]
    return [entity.property(key) for entity in requested for key in bound["KeyName"]]


# ---- scheduled tasks; the DeviceID of a task's part has its parameters as text


def _register_task_part(name: str, class_name: str, *parameters: str) -> None:
    def answer(_: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
        return [windows_object(class_name, DeviceID=" ".join(str(bound[p]) for p in parameters if p in bound))]

    answers(name, *parameters)(answer)


_register_task_part("New-ScheduledTaskAction", "MSFT_TaskAction", "Execute", "Argument")
_register_task_part("New-ScheduledTaskPrincipal", "MSFT_TaskPrincipal", "UserId", "LogonType", "RunLevel")
_register_task_part("New-ScheduledTaskSettingsSet", "MSFT_TaskSettings", *_BATTERY_SETTINGS)
_register_task_part("New-ScheduledTaskTrigger", "MSFT_TaskTrigger", "AtStartup")


@answers("Register-ScheduledTask", "TaskName", "Action", "Trigger", "Principal", "Settings")
def _register(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    single = {**bound, "Action": bound["Action"][0], "Trigger": bound["Trigger"][0]}
    process.machine.tasks[bound["TaskName"]] = {n: part["DeviceID"] for n, part in single.items() if n != "TaskName"}
    return [task for task in _list_tasks(process) if task.properties["TaskName"] == bound["TaskName"]]


def _list_tasks(process: CmdletProcess) -> list[WindowsObject]:
    bundles = [
        windows_object("MSFT_ScheduledTask", DeviceID=n, TaskName=n, TaskPath="\\") for n in process.machine.tasks
    ]
    return [*bundles, *_account_tasks(process)]


@answers("Get-ScheduledTask", "TaskPath")
def _tasks(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    tasks = _list_tasks(process)
    if not bound.get("TaskPath"):
        # Listing all tasks fails at the first task that not even an administrator may read.
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
    """Run a program and return its result; None if the host does not have it."""
    programs: dict[str, Callable[[list[str]], tuple[int | None, str] | None]] = {
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
    if bound["Program"] not in programs:
        raise machine.windows_error("not-stood-in", "Invoke-WinhostNative", what=bound["Program"])
    result = programs[bound["Program"]](bound["Arguments"])
    if result is None or result[0] is None:
        return None
    return WindowsObject(None, {"code": result[0], "output": result[1], "errors": ""})


@answers("Enter-WinhostMutex")
def _enter_mutex(process: CmdletProcess, _bound: BoundParameters) -> Iterable[Any]:
    process.has_mutex = process.machine.mutex.acquire(timeout=_MUTEX_WAIT)
    return [process.has_mutex]


@answers("Exit-WinhostMutex")
def _exit_mutex(process: CmdletProcess, _bound: BoundParameters) -> Iterable[Any]:
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
    return make_object("LocalUser", account, PasswordExpires=_EXPIRES if account.password_expires else None)


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
    """Yield the scheduled tasks in winhost's folder."""
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


# ---- programs, and cmdlets that are one call


def _nvidia_smi(machine: Machine, arguments: list[str]) -> tuple[int, str] | None:
    """Run nvidia-smi; return its exit code and output, or None if the host does not have it."""
    answer = driver_models(machine, machine.software.driver_models())
    if answer is None or "-dm" not in arguments:
        return answer
    options = dict(zip(arguments[::2], arguments[1::2], strict=True))
    addresses = dict(zip(gpu_addresses(machine), machine.devices, strict=True))
    return machine.software.set_driver_model(addresses[options["-i"]].location, int(options["-dm"]))


def _registry(machine: Machine, path: str) -> WindowsObject | None:
    values = registry(machine, path)
    return None if values is None else WindowsObject(None, values)


register_calls(
    {
        "Invoke-WinhostNative Program Arguments": _program,
        "Open-WinhostRegistry Path": lambda m, g: _registry(m, g["Path"]),
        "Get-Module ListAvailable Name": lambda m, g: [
            windows_object("ModuleInfo", Name=name) for name in g["Name"] if m.has_module(name)
        ],
        "Get-PnpDevice PresentOnly": lambda m, _: [entity.as_object() for entity in entities(m)],
        "Get-LocalUser": lambda m, _: [_user(m, name) for name in m.accounts.accounts],
        # With an account that no longer exists, as in real groups.
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
