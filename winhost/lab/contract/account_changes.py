"""What the scripts of accounts, rights, tasks and the configuration of WSL do, on a simulated host."""

import re
import secrets
from collections.abc import Mapping

from winhost.core.answers import Json
from winhost.lab.physics.local_accounts import MARKER, RIGHTS, Account, no_local_accounts
from winhost.lab.physics.parts import SetCall
from winhost.lab.physics.scheduled_tasks import job_folder, jobs_task, keep_alive_task, script_path
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.text_files import encoded
from winhost.lab.physics.windows_accounts import config_path
from winhost.lab.physics.windows_errors import NotYet, bad_request, not_found, not_ours, own_error
from winhost.lab.physics.windows_files import FOLDER
from winhost.lab.physics.wsl_distros import vm_record
from winhost.resources.windows.account_tasks import REFUSED, STALE
from winhost.resources.windows.windows_scripts import job_script

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,18}[A-Za-z0-9_-])?")
_SID = re.compile(r"S-1-[0-9]+(-[0-9]+)+")
_WSL_PROGRAM = "C:\\Program Files\\WSL\\wsl.exe"


def set_account(machine: Machine, asked: SetCall) -> None:
    """Made, removed, or another member of the administrators. Raises CmdletError."""
    name, desired = asked.key["account"], asked.desired
    check_account_name(name)
    account = machine.accounts.find(name)
    if desired.get("there") is False:
        if account is not None:
            _remove_account(machine, account)
        return
    if account is None:
        if "there" not in desired:
            raise not_found(f"There is no account {name}.")
        account = machine.accounts.new_local_user(name, _new_secret(), MARKER)
    if "administrator" in desired and account.administrator is not desired["administrator"]:
        _check_ours(account)
        accounts = machine.accounts
        change = accounts.add_local_group_member if desired["administrator"] else accounts.remove_local_group_member
        change(account.sid)


def _remove_account(machine: Machine, account: Account) -> None:
    _check_ours(account)
    distros = machine.accounts.distros(account)
    if distros:
        raise own_error("HoldsDistro", "ResourceExists", f"The profile of {account.name} holds {distros} distro(s).")
    if account.profile is not None and machine.accounts.loaded(account):
        raise own_error("LoggedOn", "ResourceBusy", f"{account.name} is still logged on.")
    machine.accounts.remove_profile(account.sid)
    machine.accounts.remove_local_user(account.sid)


def set_right(machine: Machine, asked: SetCall) -> None:
    """Granted or taken back. Raises CmdletError."""
    account, right = asked.key["account"], asked.key["right"]
    if right not in RIGHTS[:2]:
        raise bad_request("winhost grants and takes back SeBatchLogonRight and SeServiceLogonRight.")
    holder = _holder(machine, account)
    others = [each for each in machine.accounts.rights[right] if each != holder]
    machine.accounts.set_right(right, [*others, holder] if asked.desired["granted"] else others)


def _holder(machine: Machine, name: str) -> str:
    if _SID.fullmatch(name):
        return name
    check_account_name(name)
    return _account(machine, name).sid


def _account(machine: Machine, name: str) -> Account:
    if machine.accounts.is_controller:
        raise no_local_accounts()
    account = machine.accounts.find(name)
    if account is None:
        raise not_found(f"There is no account {name}.")
    return account


def set_tasks(machine: Machine, asked: SetCall) -> None:
    """Made, changed or removed; a first job makes the account's profile. Raises CmdletError."""
    name, accounts = asked.key["account"], machine.accounts
    check_account_name(name)
    now = accounts.tasks_of(name)
    goal = _goal(machine, asked.desired, now)
    _remove_tasks(machine, name, goal)
    if goal["jobs"] == goal["keep_alive"] == "absent":
        return
    account = _account(machine, name)
    keeps = goal["keep_alive"] != "absent" and any(goal[each] != now[each] for each in ("distro", "program"))
    runs = goal["jobs"] != "absent" and (now["jobs"] == "absent" or accounts.has_stale_script(name))
    if keeps or runs or goal["logon"] != now["logon"]:
        _register_tasks(machine, account, goal)
        if goal["jobs"] == "ready":
            accounts.first_job(name)
    for kind in ("jobs", "keep_alive"):
        _switch(machine, f"{kind.replace('_', '-')}-{name}", str(goal[kind]))


def _goal(machine: Machine, desired: Mapping[str, Json], now: Mapping[str, Json]) -> dict[str, Json]:
    goal: dict[str, Json] = {**now, "program": None, **desired}
    if goal["keep_alive"] == "absent" and "distro" not in desired:
        goal["distro"] = None
    goal["jobs"] = "ready" if goal["jobs"] == STALE else goal["jobs"]
    goal["logon"] = "password" if goal["logon"] in (None, REFUSED) else goal["logon"]
    nothing = goal["jobs"] is None or goal["keep_alive"] is None
    if nothing or (goal["keep_alive"] == "absent") != (goal["distro"] is None):
        raise bad_request("There is a distro exactly where something keeps it alive.")
    if goal["distro"] is not None:
        goal["program"] = _WSL_PROGRAM
    return goal


def _remove_tasks(machine: Machine, name: str, goal: Mapping[str, Json]) -> None:
    for kind in ("jobs", "keep_alive"):
        task = machine.accounts.task(kind.replace("_", "-"), name)
        if goal[kind] == "absent" and task is not None:
            machine.accounts.stop_scheduled_task(task.name)
            machine.accounts.unregister_scheduled_task(task.name)
    if goal["jobs"] == "absent":
        machine.files.remove_folder(job_folder(name))
        machine.files.remove(vm_record(name))


def _register_tasks(machine: Machine, account: Account, goal: Mapping[str, Json]) -> None:
    secret, logon = None, str(goal["logon"])
    if goal["jobs"] != "absent":
        folder = job_folder(account.name)
        machine.files.make_folders(FOLDER, f"{FOLDER}\\jobs", folder, f"{folder}\\answers")
        machine.files.write(script_path(account.name), job_script().encode())
    if logon == "password":
        _check_ours(account)
        secret = _new_secret()
        machine.accounts.set_local_user(account.sid, secret)
    if goal["jobs"] != "absent":
        machine.accounts.register_task(jobs_task(account.name, logon, secret))
    if goal["keep_alive"] != "absent":
        program, distro = str(goal["program"]), str(goal["distro"])
        machine.accounts.register_task(keep_alive_task(account.name, logon, secret, program, distro))


def _switch(machine: Machine, name: str, goal: str) -> None:
    task = machine.accounts.tasks.get(name.casefold())
    if task is None:
        return
    if goal == "disabled" and task.running:
        machine.accounts.stop_scheduled_task(name)
    if (goal == "disabled") is task.enabled:
        accounts = machine.accounts
        (accounts.disable_scheduled_task if goal == "disabled" else accounts.enable_scheduled_task)(name)


def set_config(machine: Machine, asked: SetCall) -> None:
    """The whole file. Raises CmdletError and NotYet."""
    desired = asked.desired
    if str(desired.get("text")).startswith("\ufeff"):
        raise bad_request("A byte order mark is said by the encoding.")
    account = machine.accounts.find(asked.key["account"])
    if account is None or account.profile is None:
        raise NotYet("AccountTasks")
    path = config_path(account.profile)
    goal: dict[str, Json] = {**machine.accounts.read_config(account), **desired}
    if machine.software.wsl is not None and machine.accounts.jobs_task(account.name) is not None:
        with asked.or_warn(f"What the VM of {asked.key['account']} was made with could not be written down"):
            machine.accounts.first_job(account.name)
            if machine.distros.vm_is_current(account.name):
                machine.distros.note_vm(account.name, machine.distros.vm_mode(account.name))
    if goal["text"] is None:
        if desired.get("encoding") is not None:
            raise bad_request("There is no text to encode.")
        machine.accounts.ready_to_run(account.name)
        machine.files.remove(path)
        return
    content = encoded(str(goal["text"]), str(goal["encoding"] or "utf-8"))
    machine.accounts.ready_to_run(account.name)
    machine.files.write(path, content)


def check_account_name(name: str) -> None:
    """Raises CmdletError for what is no name of an account of winhost."""
    if not _NAME.fullmatch(name):
        raise bad_request(
            "An account of winhost has a name of letters, digits, dots and dashes, 20 at most.",
        )


def _check_ours(account: Account) -> None:
    if not account.ours:
        raise not_ours(f"winhost did not make the account {account.name}.")


def _new_secret() -> str:
    return secrets.token_urlsafe(36) + "Aa1-"
