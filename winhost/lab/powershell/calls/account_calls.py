"""Cmdlets of accounts and their tasks, and the helpers of our agent that read and write files."""

import base64
from collections.abc import Iterable, Iterator
from typing import Any

from winhost.lab.physics.scheduled_tasks import Task
from winhost.lab.physics.text_files import on_wire
from winhost.lab.physics.windows_network import TASK
from winhost.lab.physics.windows_objects import FileTime, WindowsObject, of_type
from winhost.lab.powershell.calls.cmdlet_process import Cmdlets, Given, answers

_EXPIRES = FileTime(134104320000000000)


# ---- accounts


def _user(desk: Cmdlets, name: str) -> WindowsObject:
    account = desk.machine.accounts.accounts[name]
    return of_type(
        "LocalUser",
        Name=account.name,
        SID=account.sid,
        Enabled=account.enabled,
        PasswordExpires=_EXPIRES if account.password_expires else None,
        Description=account.description,
    )


@answers("Get-LocalUser")
def _users(desk: Cmdlets, _given: Given) -> Iterable[Any]:
    return [_user(desk, name) for name in desk.machine.accounts.accounts]


_FLAGS = ("PasswordNeverExpires", "AccountNeverExpires", "UserMayNotChangePassword")


@answers("New-LocalUser", "Name", "Password", "Description", *_FLAGS)
def _new_user(desk: Cmdlets, given: Given) -> Iterable[Any]:
    missing = [flag for flag in _FLAGS if not given.get(flag)]
    if missing:
        raise desk.machine.fail("not-stood-in", "New-LocalUser", what=f"a call without -{missing[0]}")
    account = desk.machine.accounts.new_local_user(given["Name"], given["Password"], given["Description"])
    return [_user(desk, account.name.casefold())]


@answers("Set-LocalUser", "InputObject", "Password")
def _set_user(desk: Cmdlets, given: Given) -> Iterable[Any]:
    desk.machine.accounts.set_local_user(given["InputObject"]["SID"], given["Password"])
    return ()


@answers("Remove-LocalUser", "InputObject")
def _remove_user(desk: Cmdlets, given: Given) -> Iterable[Any]:
    for each in given["InputObject"]:
        desk.machine.accounts.remove_local_user(each["SID"])
    return ()


def _membership(cmdlet: str, *, member: bool) -> None:
    def answer(desk: Cmdlets, given: Given) -> Iterable[Any]:
        for each in given["Member"]:
            desk.machine.accounts.change_administrators(each["SID"], cmdlet, member=member)
        return ()

    answers(cmdlet, "SID", "Member")(answer)


_membership("Add-LocalGroupMember", member=True)
_membership("Remove-LocalGroupMember", member=False)


@answers("Read-WinhostGroup", "Sid")
def _group(desk: Cmdlets, _given: Given) -> Iterable[Any]:
    # With one that is gone, as such groups have them.
    members = [account.sid for account in desk.machine.accounts.accounts.values() if account.administrator]
    return [*members, "S-1-5-21-1-2-3-4004"]


@answers("Remove-CimInstance", "InputObject")
def _remove_profile(desk: Cmdlets, given: Given) -> Iterable[Any]:
    desk.machine.accounts.remove_profile(given["InputObject"]["DeviceID"])
    return ()


# ---- tasks


def account_tasks(desk: Cmdlets) -> Iterator[WindowsObject]:
    """Those in the folder of winhost."""
    for task in desk.machine.accounts.tasks.values():
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
def _register(desk: Cmdlets, given: Given) -> Iterable[Any]:
    desired = given["Task"]
    desk.machine.accounts.register_task(
        Task(
            desired["name"],
            given["Account"],
            desired["program"].strip('"'),
            desired["arguments"],
            at_startup=desired["at_startup"],
            logon="s4u" if given["Secret"] is None else "password",
            secret=given["Secret"],
        )
    )
    return ()


@answers("Get-ScheduledTaskInfo", "InputObject")
def _info(desk: Cmdlets, given: Given) -> Iterable[Any]:
    task = desk.machine.accounts.tasks[given["InputObject"]["DeviceID"].casefold()]
    return [of_type("MSFT_TaskDynamicInfo", LastTaskResult=task.result)]


@answers("Start-ScheduledTask", "InputObject")
def _start(desk: Cmdlets, given: Given) -> Iterable[Any]:
    if given["InputObject"]["DeviceID"] == TASK:
        desk.machine.network.start()
    else:
        desk.machine.accounts.start_scheduled_task(given["InputObject"]["DeviceID"])
    return ()


@answers("Stop-ScheduledTask", "InputObject")
def _stop(desk: Cmdlets, given: Given) -> Iterable[Any]:
    desk.machine.accounts.stop_scheduled_task(given["InputObject"]["DeviceID"])
    return ()


def _switching(cmdlet: str, *, enabled: bool) -> None:
    def answer(desk: Cmdlets, given: Given) -> Iterable[Any]:
        desk.machine.accounts.switch_scheduled_task(given["InputObject"]["DeviceID"], cmdlet, enabled=enabled)
        return ()

    answers(cmdlet, "InputObject")(answer)


_switching("Enable-ScheduledTask", enabled=True)
_switching("Disable-ScheduledTask", enabled=False)


# ---- files


@answers("Read-WinhostBytes", "Path")
def _read(desk: Cmdlets, given: Given) -> Iterable[Any]:
    content = desk.machine.files.read(given["Path"])
    return [] if content is None else [on_wire(content)]


@answers("Test-WinhostLink", "Path")
def _link(desk: Cmdlets, given: Given) -> Iterable[Any]:
    return [desk.machine.files.is_link(given["Path"])]


@answers("Test-WinhostFolder", "Path")
def _there(desk: Cmdlets, given: Given) -> Iterable[Any]:
    return [desk.machine.files.has_folder(given["Path"])]


@answers("Read-WinhostOwner", "Path")
def _owner(desk: Cmdlets, given: Given) -> Iterable[Any]:
    return [desk.machine.files.owner(given["Path"])]


@answers("Write-WinhostFile", "Path", "Bytes")
def _write(desk: Cmdlets, given: Given) -> Iterable[Any]:
    desk.machine.files.write(given["Path"], base64.b64decode(given["Bytes"]))
    return ()


@answers("Remove-WinhostFile", "Path")
def _remove(desk: Cmdlets, given: Given) -> Iterable[Any]:
    desk.machine.files.remove(given["Path"])
    return ()


@answers("Remove-WinhostFolder", "Path")
def _remove_folder(desk: Cmdlets, given: Given) -> Iterable[Any]:
    desk.machine.files.remove_folder(given["Path"])
    return ()


@answers("Measure-WinhostFiles", "Folder", "Name")
def _count(desk: Cmdlets, given: Given) -> Iterable[Any]:
    return [desk.machine.accounts.count(given["Folder"], given["Name"])]
