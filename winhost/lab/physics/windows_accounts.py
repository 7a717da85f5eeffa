"""Accounts of a simulated Windows as resources: scheduled tasks, the jobs that they run, .wslconfig, yield watchers.

A task logs on with the account's present password and the right to log on as a batch job. The first logon makes the
profile. Sources: Microsoft's "Log on as a batch job", "Task Scheduler error and success constants", and public reports
of WSL in session 0.
"""

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from typing import Any

from winhost.core.answers import Json, Key, Record
from winhost.lab.physics.local_accounts import (
    ACCOUNT_PROPERTIES,
    ADMINISTRATORS,
    BATCH,
    DENY_BATCH,
    DISABLED,
    NO_ACCOUNT,
    NOT_GRANTED,
    POWERSHELL,
    RIGHTS,
    RUNNING,
    WRONG_PASSWORD,
    Account,
    LocalAccounts,
    Task,
    answer_path,
    domain_controller_error,
    job_folder,
    make_jobs_task,
    make_keep_alive_task,
    new_secret,
    script_path,
)
from winhost.lab.physics.parts import Change, Host, Part, SetCall, as_cmdlet
from winhost.lab.physics.windows_errors import CmdletError, MissingDependency, agent_error, refusal, refuse_if
from winhost.lab.physics.windows_files import FOLDER, decode_text, encode_text
from winhost.resources.windows.accounts import NO_TASKS, REFUSED, STALE
from winhost.resources.windows.windows_scripts import job_script, watcher_script

_WSL_PROGRAM = "C:\\Program Files\\WSL\\wsl.exe"
_UNDECODABLE = b"\xc3\x28"  # no text in any encoding that WSL reads
# Results of a task whose account could not log on: the resource to set first, and the error.
_LOGON_FAILURES = {
    NOT_GRANTED: ("AccountRight", "NoBatchRight", "PermissionDenied", "has no right to log on as a batch job"),
    WRONG_PASSWORD: ("AccountTasks", "PasswordChanged", "AuthenticationError", "has another password by now"),
    DISABLED: ("LocalAccount", "AccountDisabled", "PermissionDenied", "was disabled"),
}


class Accounts(LocalAccounts):
    """The accounts of one host. Its methods are cmdlets in snake case."""

    administrator_resources = ("LocalAccount", "AccountRight", "AccountTasks", "WslConfig")

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        host.files.links |= {path.casefold() for path in host.lab.accounts.links}
        host.files.foreign_folders |= {path.casefold() for path in host.lab.accounts.taken}
        self._register_tasks()
        self._write_configs()
        host.key_resolvers["AccountRight"] = self._resolve_key
        host.refusals |= {name: domain_controller_error for name in ("LocalAccount", "WslConfig") if self.is_controller}
        host.refusals["AccountTasks"] = self._check_logons

    # ---- from facts

    def _register_tasks(self) -> None:
        for record in self.host.initial.get("AccountTasks", ()):
            name, state = record.key["account"], record.state
            logon = str(state["logon"] or "password")
            # Passwords of a recorded host count as right, unless its facts say that one was refused.
            logon, secret = ("password", "another") if logon == REFUSED else (logon, None)
            if state["jobs"] != "absent":
                self.add_task(make_jobs_task(name, logon, secret), state["jobs"])
                if state["jobs"] != STALE:
                    self.host.files.write(script_path(name), job_script().encode())
            if state["keep_alive"] != "absent":
                task = make_keep_alive_task(name, logon, secret, str(state["program"]), str(state["distro"]))
                key = {"account": name, "distro": state["distro"]}
                task.running = any(r.key == key and r.state["running"] for r in self.host.initial.get("WslDistro", ()))
                self.add_task(task, state["keep_alive"])

    def _write_configs(self) -> None:
        for record in self.host.initial.get("WslConfig", ()):
            account = self.find(record.key["account"])
            if account is None or account.profile is None:
                continue
            text, encoding = record.state["text"], record.state["encoding"]
            if text is None:
                continue
            content = _UNDECODABLE
            if not isinstance(text, Mapping):
                with suppress(CmdletError):  # a host file may have a text that its encoding cannot represent
                    content = encode_text(str(text), str(encoding))
            self.host.files.write(config_path(account.profile), content)

    # ---- as resources

    def _check_logons(self) -> None:
        """Check logons as the scripts do when they read tasks. A first logon makes the account's profile."""
        for task in self.runnable_jobs_tasks():
            with suppress(CmdletError):
                if task.logon == "password":
                    self.check_logon(task.account)

    def records(self) -> Mapping[str, Callable[[], Iterable[Record]]]:
        return {
            "LocalAccount": lambda: (Record(self._state(a), {"account": a.name}) for a in self.accounts.values()),
            "AccountRight": self._list_rights,
            "AccountTasks": self._list_tasks,
            "WslConfig": self._list_configs,
        }

    def _state(self, account: Account) -> dict[str, Json]:
        properties = {name: getattr(account, name) for name in ACCOUNT_PROPERTIES}
        properties |= {"sid": account.sid, "ours": account.is_owned}
        return {"there": True, **properties, "distros": self.count_distros(account), **account.unknown_properties}

    def _list_rights(self) -> Iterator[Record]:
        for right in RIGHTS:
            for holder in self.rights[right]:
                account = self.find_by_sid(holder)
                yield Record({"granted": True}, {"account": account.name if account else holder, "right": right})

    def _resolve_key(self, key: Key) -> Key:
        account = self.find_by_sid(str(key["account"]).upper())
        return key if account is None else {**key, "account": account.name}

    def _list_tasks(self) -> Iterator[Record]:
        for account in {task.account.casefold(): task.account for task in self.tasks.values()}.values():
            if self.task_state(account) != NO_TASKS:  # an account may only have a yield watcher
                yield Record(self.task_state(account), {"account": account})

    def task_state(self, account: str) -> Mapping[str, Json]:
        """Return the state of resource AccountTasks."""
        jobs, keep_alive = self.task("jobs", account), self.task("keep-alive", account)
        if (any_task := jobs or keep_alive) is None:
            return NO_TASKS
        runnable = self.runnable_jobs_task(account)
        is_refused = (
            any_task.logon == "password" and runnable is not None and self.logon_problem(runnable) == WRONG_PASSWORD
        )
        is_stale = jobs is not None and jobs.enabled and self.has_stale_script(jobs.account)
        return {
            "jobs": "absent" if jobs is None else STALE if is_stale else jobs.state.lower(),
            "keep_alive": "absent" if keep_alive is None else keep_alive.state.lower().replace("running", "ready"),
            "distro": keep_alive.distro if keep_alive else None,
            "program": keep_alive.program if keep_alive else None,
            "logon": REFUSED if is_refused else any_task.logon,
        }

    def has_stale_script(self, account: str) -> bool:
        """Tell whether the script of the task for jobs differs from this winhost's."""
        script = self.host.files.read(script_path(account))
        return script is None or script.replace(b"\r", b"") != job_script().encode()

    def runnable_jobs_task(self, account: str) -> Task | None:
        """Return the account's task for jobs, if it is enabled, has its script, and the account exists; else None."""
        task = self.task("jobs", account)
        account_exists = not self.is_controller and self.find(account) is not None
        is_runnable = account_exists and self.host.files.read(script_path(account)) is not None
        return task if task is not None and task.enabled and is_runnable else None

    def runnable_jobs_tasks(self) -> list[Task]:
        """Return the tasks for jobs that can run, of all accounts."""
        tasks = (self.runnable_jobs_task(task.account) for task in self.tasks.values() if task.distro is None)
        return list(filter(None, tasks))

    def _list_configs(self) -> Iterator[Record]:
        for account in self.accounts.values():
            if account.profile is not None:
                yield Record(self.config_state(account), {"account": account.name})

    def config_state(self, account: Account) -> Mapping[str, Json]:
        """Return the state of resource WslConfig of an account with a profile."""
        try:
            return self.read_config(account)
        except CmdletError as error:
            unknown: Json = {"unknown": error.as_json()}
            return {"text": unknown, "encoding": unknown}

    def read_config(self, account: Account) -> Mapping[str, Json]:
        """Return the state of resource WslConfig. Raises CmdletError if it cannot be read."""
        path = config_path(str(account.profile))
        refuse_if(self.host.files.is_link(path), "NotAFile", path=path)
        refuse_if(self.host.files.is_link(str(account.profile)), "NotAFolder", path=account.profile)
        content = self.host.files.read(path)
        if content is None:
            return {"text": None, "encoding": None}
        text, encoding = decode_text(content)
        return {"text": text, "encoding": encoding}

    # ---- as resources that are set

    def changes(self) -> Mapping[str, Change]:
        return {
            "LocalAccount": self.set_account,
            "AccountRight": self.set_account_right,
            "AccountTasks": self.set_tasks,
            "WslConfig": self.set_config,
        }

    def set_tasks(self, call: SetCall) -> None:
        """Make, change or remove tasks. The first job makes the account's profile."""
        name = call.key["account"]
        current = self.task_state(name)
        goal = _desired_state(call.desired, current)
        tasks = {"jobs": self.task("jobs", name), "keep_alive": self.task("keep-alive", name)}
        for kind, task in tasks.items():
            if goal[kind] == "absent" and task is not None:
                self.unregister_scheduled_task(task.name)
        if goal["jobs"] == "absent":
            self.host.files.remove_folder(job_folder(name))
            self.host.files.remove(self.host.distros.vm_record_path(name))
            if goal["keep_alive"] == "absent":
                return
        self._make_tasks(self.require_account(name), goal, current)
        for kind in tasks:
            if (task := self.task(kind.replace("_", "-"), name)) is not None:
                task.enabled = goal[kind] != "disabled"

    def _make_tasks(self, account: Account, goal: Mapping[str, Any], current: Mapping[str, Json]) -> None:
        """Register the tasks that are missing or different."""
        name, has_jobs, has_keep_alive = account.name, goal["jobs"] != "absent", goal["keep_alive"] != "absent"
        changes_keep_alive = has_keep_alive and any(goal[each] != current[each] for each in ("distro", "program"))
        changes_jobs = has_jobs and (current["jobs"] == "absent" or self.has_stale_script(name))
        if not (changes_keep_alive or changes_jobs or goal["logon"] != current["logon"]):
            return
        secret = None
        if has_jobs:
            self.host.files.make_folders(FOLDER, f"{FOLDER}\\jobs", job_folder(name))
            self.host.files.write(script_path(name), job_script().encode())
        if goal["logon"] == "password":
            account.check_owned()
            secret = new_secret()
            self.set_local_user(account.sid, secret)
        if has_jobs:
            self.register_task(make_jobs_task(name, goal["logon"], secret))
        if has_keep_alive:
            self.register_task(make_keep_alive_task(name, goal["logon"], secret, goal["program"], goal["distro"]))
        if goal["jobs"] == "ready":
            self.check_logon(name)

    def set_config(self, call: SetCall) -> None:
        """Write or remove the .wslconfig of an account."""
        desired, name, distros = call.desired, call.key["account"], self.host.distros
        account = self.find(name)
        if account is None or account.profile is None:
            raise MissingDependency("AccountTasks")
        goal: dict[str, Json] = {**self.read_config(account), **desired}
        if distros.vm_is_current(account.name):
            distros.write_vm_record(account.name, distros.vm_mode(account.name))
        content = None if goal["text"] is None else encode_text(str(goal["text"]), str(goal["encoding"] or "utf-8"))
        self.check_can_run(account.name)
        if content is None:
            self.host.files.remove(config_path(account.profile))
        else:
            self.host.files.write(config_path(account.profile), content)

    # ---- tasks

    @as_cmdlet("Register-WinhostAccountTask")
    def register_task(self, task: Task) -> None:
        """Register a task, or replace one. A running one continues."""
        old = self.tasks.get(task.name.casefold())
        task.running = old.running if old else False
        self.tasks[task.name.casefold()] = task

    @as_cmdlet("Unregister-ScheduledTask")
    def unregister_scheduled_task(self, name: str) -> None:
        del self.tasks[name.casefold()]

    @as_cmdlet("Stop-ScheduledTask", name="InputObject.DeviceID")
    def stop_scheduled_task(self, name: str) -> None:
        """Stop a task, if it is running."""
        self.tasks[name.casefold()].running = False

    @as_cmdlet("Enable-ScheduledTask", name="InputObject.DeviceID")
    def enable_scheduled_task(self, name: str) -> None:
        self.tasks[name.casefold()].enabled = True

    @as_cmdlet("Disable-ScheduledTask", name="InputObject.DeviceID")
    def disable_scheduled_task(self, name: str) -> None:
        """Disable a task. A running one continues."""
        self.tasks[name.casefold()].enabled = False

    @as_cmdlet("Start-ScheduledTask")
    def start_scheduled_task(self, name: str) -> None:
        """Start a task. If it fails, that is the result of the task, and no error of this cmdlet."""
        if not (task := self.tasks[name.casefold()]).running:
            self._run_task(task)

    def _run_task(self, task: Task) -> None:
        problem = self.logon_problem(task)
        if problem is not None:
            task.result = problem
            return
        if task.logon == "interactive":
            task.running = bool(self.accounts[task.account.casefold()].sessions)
            return
        account = self.accounts[task.account.casefold()]
        account.profile = account.profile or f"C:\\Users\\{account.name}"
        if task.distro is None:
            self._run_jobs(task.account)
            task.result = 0
        else:
            code = self.host.distros.keep_alive(task.account, task.distro)
            task.running, task.result = code is None, RUNNING if code is None else code & 0xFFFFFFFF

    def logon_problem(self, task: Task) -> int | None:
        """Return the result of a task whose account cannot log on, or None if it can."""
        account = self.find(task.account)
        if account is None:
            return NO_ACCOUNT
        if task.logon == "interactive":
            return None
        if task.logon == "password" and task.secret != account.secret:
            return WRONG_PASSWORD
        if not account.enabled:
            return DISABLED
        sids = {account.sid, *([ADMINISTRATORS] if account.administrator else [])}
        if sids & set(self.rights[DENY_BATCH]) or not sids & set(self.rights[BATCH]):
            return NOT_GRANTED
        return None

    # ---- jobs

    def _run_jobs(self, account: str) -> None:
        for path in sorted(self.host.files.list_below(job_folder(account))):
            match = re.search(r"job-([0-9a-f]+)\.json$", path)
            if match is None:
                continue
            answer_file = answer_path(account, match[1])
            if self.host.files.read(answer_file) == b"":
                answer = self._run_job(account, json.loads(self.host.files.read(path) or b"{}"))
                self.host.files.write(answer_file, json.dumps(answer, ensure_ascii=False).encode() + b"\n")

    def _run_job(self, account: str, job: Mapping[str, Any]) -> Mapping[str, Json]:
        files, answer = self.host.files, {"code": 0, "output": "", "errors": "", "timed_out": False}
        match job["kind"]:
            case "wsl":
                content = (files.read(job["input"]) or b"") if job["input"] else b""
                code, output, errors = self.host.distros.wsl(account, job["arguments"], content)
                return answer | {"code": code, "output": output, "errors": errors}
            case "write" if job["bytes"] is None:
                files.remove(job["path"])
            case "write":
                files.write(job["path"], base64.b64decode(job["bytes"]))
            case "clear":
                files.remove_folder(job["path"])
        return answer

    def check_can_run(self, account: str) -> None:
        """Log an account on. Raises MissingDependency if another resource has to be set before its jobs can run."""
        task = self.runnable_jobs_task(account)
        missing = "AccountTasks" if task is None else self.missing_dependency(task)
        if missing is not None:
            raise MissingDependency(missing)

    def missing_dependency(self, task: Task) -> str | None:
        """Log the account of a task on; return the resource to set before that works, or None. Raises CmdletError."""
        self.start_scheduled_task(task.name)
        return _LOGON_FAILURES[task.result][0] if task.result in _LOGON_FAILURES else None

    def check_logon(self, account: str) -> None:
        """Log an account on with an empty job. Raises CmdletError if that fails."""
        task = self.tasks[f"jobs-{account}".casefold()]
        if self.missing_dependency(task) is not None:
            _, code, category, reason = _LOGON_FAILURES[task.result]
            raise agent_error(code, category, f"{task.account} {reason}: its tasks cannot log on.")

    def on_restart(self) -> bool:
        """End all sessions, and run the tasks that start with Windows."""
        for account in self.accounts.values():
            account.sessions = account.sessions and 0
        for task in self.tasks.values():
            task.running = False
            if task.at_startup and task.enabled:
                self._run_task(task)
        return False


def _desired_state(desired: Mapping[str, Json], current: Mapping[str, Json]) -> dict[str, Json]:
    """Return the complete desired state of the tasks."""
    goal: dict[str, Json] = {**current, **desired}
    goal["jobs"] = "ready" if goal["jobs"] == STALE else goal["jobs"]
    goal["logon"] = "password" if goal["logon"] in (None, REFUSED) else goal["logon"]
    goal["program"] = None if goal["distro"] is None else _WSL_PROGRAM
    return goal


def config_path(profile: str) -> str:
    """Return the path of .wslconfig in a profile."""
    return f"{profile}\\.wslconfig"


_WATCHERS = f"{FOLDER}\\watchers"


class YieldWatchers(Part):
    """The yield watchers of all accounts."""

    administrator_resources = ("YieldWatcher",)

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._accounts: Accounts = host.accounts
        for record in host.initial.get("YieldWatcher", ()):
            account, state = str(record.key["account"]), record.state
            script = watcher_script() if state["task"] not in ("absent", STALE) else None
            contents = {"settings.json": state["settings"], "reference": state["key"], "watch.ps1": script}
            for name, text in contents.items():
                if text is not None:
                    host.files.write(_watcher_file(account, name), str(text).encode())
            if state["task"] != "absent":
                self._accounts.add_task(_make_watcher_task(account), state["task"])

    def records(self) -> Mapping[str, Callable[[], Iterable[Record]]]:
        return {"YieldWatcher": self._list_watchers}

    def _list_watchers(self) -> Iterator[Record]:
        for task in self._accounts.tasks.values():
            if task.name.startswith("watch-"):
                yield Record(self._state(task.account), {"account": task.account})

    def _state(self, account: str) -> dict[str, Json]:
        task, key = self._accounts.task("watch", account), self._read(account, "key")
        script = (self._read(account, "watch.ps1") or b"").replace(b"\r", b"")
        settings, reference = (self._read(account, name) for name in ("settings.json", "reference"))
        task_state = "absent" if task is None else "disabled" if task.state == "Disabled" else "ready"
        return {
            "task": STALE if task_state == "ready" and script != watcher_script().encode() else task_state,
            "settings": settings and settings.decode("ascii"),
            "key": reference and reference.decode("ascii"),
            "digest": None if key is None else sha256(key).hexdigest(),
        }

    def _read(self, account: str, name: str) -> Any:
        return self.host.files.read(_watcher_file(account, name))

    def changes(self) -> Mapping[str, Change]:
        return {"YieldWatcher": self.set_watcher}

    def set_watcher(self, call: SetCall) -> None:
        """Make, change or remove a watcher. Raises CmdletError."""
        name, files = call.key["account"], self.host.files
        goal: dict[str, Any] = {**self._state(name), **call.desired}
        if goal["task"] == "absent":
            self._accounts.tasks.pop(f"watch-{name}".casefold(), None)
            files.remove_folder(_watcher_folder(name))
            return
        name, key = self._accounts.require_account(name).name, call.secret.encode() or self._read(name, "key")
        if key is None or sha256(key).hexdigest() != goal["digest"]:
            raise refusal("WrongHash", found="that of another key", desired=goal["digest"])
        files.make_folders(FOLDER, _WATCHERS, _watcher_folder(name))
        files_to_write = {"key": key, "reference": goal["key"].encode(), "settings.json": goal["settings"].encode()}
        for file, content in {**files_to_write, "watch.ps1": watcher_script().encode(), "last.txt": b""}.items():
            files.write(_watcher_file(name, file), content)
        self._accounts.add_task(_make_watcher_task(name), goal["task"])


def _watcher_folder(account: str) -> str:
    return f"{_WATCHERS}\\{account}"


def _watcher_file(account: str, name: str) -> str:
    return f"{_watcher_folder(account)}\\{name}"


def _make_watcher_task(account: str) -> Task:
    script = _watcher_file(account, "watch.ps1")
    arguments = f'-NoProfile -NonInteractive -WindowStyle Hidden -ExecutionPolicy Bypass -File "{script}"'
    return Task(f"watch-{account}", account, POWERSHELL, arguments, at_startup=False, logon="interactive", secret=None)
