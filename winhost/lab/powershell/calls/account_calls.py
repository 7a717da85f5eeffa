"""Cmdlets of accounts and their tasks, and the helpers of our agent that read and write files."""

from collections.abc import Iterable, Iterator
from typing import Any

from winhost.lab.physics.scheduled_tasks import Task
from winhost.lab.physics.windows_objects import FileTime, WindowsObject, of_type
from winhost.lab.powershell.calls.cmdlet_process import BoundParameters, CmdletProcess, answers

_EXPIRES = FileTime(134104320000000000)


# ---- accounts


def _user(process: CmdletProcess, name: str) -> WindowsObject:
    account = process.machine.accounts.accounts[name]
    return of_type(
        "LocalUser",
        Name=account.name,
        SID=account.sid,
        Enabled=account.enabled,
        PasswordExpires=_EXPIRES if account.password_expires else None,
        Description=account.description,
    )


@answers("Get-LocalUser")
def _users(process: CmdletProcess, _bound: BoundParameters) -> Iterable[Any]:
    return [_user(process, name) for name in process.machine.accounts.accounts]


_FLAGS = ("PasswordNeverExpires", "AccountNeverExpires", "UserMayNotChangePassword")


@answers("New-LocalUser", "Name", "Password", "Description", *_FLAGS)
def _new_user(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    missing = [flag for flag in _FLAGS if not bound.get(flag)]
    if missing:
        raise process.machine.fail("not-stood-in", "New-LocalUser", what=f"a call without -{missing[0]}")
    account = process.machine.accounts.new_local_user(bound["Name"], bound["Password"], bound["Description"])
    return [_user(process, account.name.casefold())]


@answers("Read-WinhostGroup", "Sid")
def _group(process: CmdletProcess, _bound: BoundParameters) -> Iterable[Any]:
    # With one that is gone, as such groups have them.
    members = [account.sid for account in process.machine.accounts.accounts.values() if account.administrator]
    return [*members, "S-1-5-21-1-2-3-4004"]


# ---- tasks


def account_tasks(process: CmdletProcess) -> Iterator[WindowsObject]:
    """Those in the folder of winhost."""
    for task in process.machine.accounts.tasks.values():
        action = of_type("MSFT_TaskExecAction", Execute=_execute(task), Arguments=task.arguments)
        yield of_type(
            "MSFT_ScheduledTask",
            DeviceID=task.name,
            TaskName=task.name,
            TaskPath="\\winhost\\",
            State=task.state,
            Actions=[action],
            Principal=of_type("MSFT_TaskPrincipal2", LogonType={"password": "Password", "s4u": "S4U"}[task.logon]),
        )


def _execute(task: Task) -> str:
    return f'"{task.program}"' if " " in task.program else task.program


@answers("Register-WinhostAccountTask", "Task", "Account", "Secret")
def _register(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    desired = bound["Task"]
    process.machine.accounts.register_task(
        Task(
            desired["name"],
            bound["Account"],
            desired["program"].strip('"'),
            desired["arguments"],
            at_startup=desired["at_startup"],
            logon="s4u" if bound["Secret"] is None else "password",
            secret=bound["Secret"],
        )
    )
    return ()


@answers("Get-ScheduledTaskInfo", "InputObject")
def _info(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    task = process.machine.accounts.tasks[bound["InputObject"]["DeviceID"].casefold()]
    return [of_type("MSFT_TaskDynamicInfo", LastTaskResult=task.result)]
