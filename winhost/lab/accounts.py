"""Accounts of a simulated Windows, their rights, their scheduled tasks, and what runs as them.

A logon of a task needs the password that the account has now and the right to log on as a batch job; the first one
makes the profile. Sources: Microsoft's "Log on as a batch job", "Task Scheduler error and success constants", and
public reports of WSL in session 0.
"""

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from winhost.lab.errors import CmdletError, NotYet, not_administrator, own_error
from winhost.lab.shown import Shown, shown
from winhost.model.facts import Json, Record
from winhost.resources.windows.accounts import NO_TASKS

if TYPE_CHECKING:
    from winhost.lab.machine import Machine

MARKER = "winhost: owns the Linux distro; see winhost docs"
ADMINISTRATORS = "S-1-5-32-544"
BATCH, SERVICE, DENY_BATCH = "SeBatchLogonRight", "SeServiceLogonRight", "SeDenyBatchLogonRight"
RIGHTS = (BATCH, SERVICE, DENY_BATCH)
PROGRAM_DATA = "C:\\ProgramData"
PROFILES = "SOFTWARE\\Microsoft\\Windows NT\\CurrentVersion\\ProfileList"
POWERSHELL = "C:\\Windows\\System32\\WindowsPowerShell\\v1.0\\powershell.exe"

# Results of tasks: not run yet, running, the logon type is not granted, the password is another one.
NOT_RUN, RUNNING, NOT_GRANTED, WRONG_PASSWORD = 267011, 267009, 2147943785, 2147943726

_DEFAULT_RIGHTS = {
    BATCH: [ADMINISTRATORS, "S-1-5-32-551", "S-1-5-32-559"],
    SERVICE: ["S-1-5-80-0"],
    DENY_BATCH: [],
}
_PEOPLE, _BATCH, _SERVICE = 2, 4, 5  # types of logon sessions
_KINDS = ("[a-z]", "[A-Z]", "[0-9]", "[^A-Za-z0-9]")  # of characters; a password policy asks for three of them
_LEAST_PASSWORD = 14


@dataclass
class Account:
    """unread: what a recorded host could not tell of it."""

    name: str
    sid: str
    enabled: bool = True
    password_expires: bool = False
    administrator: bool = False
    description: str = ""
    profile: str | None = None
    sessions: int | None = 0
    secret: str | None = None
    unread: Mapping[str, Json] = field(default_factory=dict)

    @property
    def ours(self) -> bool:
        return self.description == MARKER


@dataclass
class Task:
    """In the folder `winhost`. secret: the password that it was registered with, None for none."""

    name: str
    account: str
    program: str
    arguments: str
    at_startup: bool
    logon: str
    secret: str | None
    enabled: bool = True
    running: bool = False
    result: int = NOT_RUN

    @property
    def state(self) -> str:
        if not self.enabled:
            return "Disabled"
        return "Running" if self.running else "Ready"

    @property
    def distro(self) -> str | None:
        found = re.match(r"-d ([A-Za-z0-9._-]+) ", self.arguments)
        return found[1] if found else None


class Accounts:
    """A part of the machine. Its methods are cmdlets in snake case."""

    def __init__(self, machine: "Machine", given: Mapping[str, Sequence[Record]]) -> None:
        self._machine = machine
        self.accounts: dict[str, Account] = {}
        self.rights: dict[str, list[str]] = {}
        self.tasks: dict[str, Task] = {}
        system = given.get("OperatingSystem", ())
        # It has no accounts of its own.
        self.is_controller = any(record.state.get("product_options") == "LanmanNT" for record in system)
        machine.files.foreign |= {path.casefold() for path in machine.lab.accounts.foreign}
        machine.files.links |= {path.casefold() for path in machine.lab.accounts.links}
        for account in self._made(given):
            self.accounts[account.name.casefold()] = account
        self._give_rights(given)
        self._register_tasks(given)
        self._write_configs(given)
        for noun in ("LocalAccount", "AccountRight", "AccountTasks", "WslConfig"):
            machine.refusals[noun] = partial(self._refusal, noun)
        machine.registry_keys.append(self._registry)
        machine.cim_classes |= {
            "Win32_UserProfile": self._profiles,
            "Win32_LogonSession": self._sessions,
            "Win32_LoggedOnUser": self._logons,
        }

    # ---- made from facts

    def _made(self, given: Mapping[str, Sequence[Record]]) -> Iterator[Account]:
        if "LocalAccount" not in given:
            yield from self._built_in()
        for record in given.get("LocalAccount", ()):
            unread = {name: value for name, value in record.state.items() if isinstance(value, Mapping)}
            state: dict[str, Any] = {name: value for name, value in record.state.items() if name not in unread}
            yield Account(
                record.key["account"],
                state.get("sid") or self._new_sid(),
                enabled=state.get("enabled", True),
                password_expires=state.get("password_expires", False),
                administrator=state.get("administrator", False),
                description=MARKER if state.get("ours") else "",
                profile=state.get("profile"),
                sessions=state.get("sessions", 0),
                unread=unread,
            )
            for number in range(state.get("distros") or 0):
                self._machine.files.write(f"{state['profile']}\\AppData\\Local\\wsl\\{number}\\ext4.vhdx", b"")

    def _built_in(self) -> Iterator[Account]:
        """On every Windows, but not on a domain controller."""
        if self.is_controller:
            return
        client, base = self._machine.is_client, self._base
        profile = None if client else "C:\\Users\\Administrator"
        yield Account("Administrator", f"{base}-500", enabled=not client, administrator=True, profile=profile)
        yield Account("Guest", f"{base}-501", enabled=False)
        yield Account("DefaultAccount", f"{base}-503", enabled=False)

    def _give_rights(self, given: Mapping[str, Sequence[Record]]) -> None:
        self.rights = {right: [] for right in RIGHTS}
        if "AccountRight" not in given:
            self.rights = {right: list(holders) for right, holders in _DEFAULT_RIGHTS.items()}
        for record in given.get("AccountRight", ()):
            if record.state.get("granted") is True:
                self.rights[record.key["right"]].append(self._sid_of(record.key["account"]))

    def _register_tasks(self, given: Mapping[str, Sequence[Record]]) -> None:
        for record in given.get("AccountTasks", ()):
            name, state = record.key["account"], record.state
            logon = str(state["logon"] or "password")
            if state["jobs"] != "absent":
                self._put(jobs_task(name, logon, None), str(state["jobs"]))
            if state["keep_alive"] != "absent":
                task = keep_alive_task(name, logon, None, str(state["program"]), str(state["distro"]))
                held = {"account": name, "distro": state["distro"]}
                task.running = any(r.key == held and r.state["running"] for r in given.get("WslDistro", ()))
                self._put(task, str(state["keep_alive"]))

    def _put(self, task: Task, state: str) -> None:
        task.enabled = state != "disabled"
        self.tasks[task.name.casefold()] = task

    def _write_configs(self, given: Mapping[str, Sequence[Record]]) -> None:
        for record in given.get("WslConfig", ()):
            account = self.find(record.key["account"])
            if account is None or account.profile is None:
                continue
            text, encoding = record.state["text"], record.state["encoding"]
            if isinstance(text, Mapping):
                self._machine.files.write(config_path(account.profile), b"\xc3\x28", account.sid)
            elif text is not None:
                self._machine.files.write(config_path(account.profile), encoded(str(text), str(encoding)), account.sid)

    # ---- looking

    @property
    def _base(self) -> str:
        numbers = sha256(self._machine.name.encode()).digest()
        return "S-1-5-21-" + "-".join(str(int.from_bytes(numbers[at : at + 4], "big")) for at in (0, 4, 8))

    def _new_sid(self) -> str:
        used = [int(account.sid.rpartition("-")[2]) for account in self.accounts.values()]
        return f"{self._base}-{max([1000, *used]) + 1}"

    def find(self, name: str) -> Account | None:
        """The account of this name, however it is written."""
        return self.accounts.get(name.casefold())

    def by_sid(self, sid: str) -> Account | None:
        return next((account for account in self.accounts.values() if account.sid == sid), None)

    def _sid_of(self, name: str) -> str:
        account = self.find(name)
        return account.sid if account else name

    def task(self, kind: str, account: str) -> Task | None:
        """kind: jobs or keep-alive."""
        return self.tasks.get(f"{kind}-{account}".casefold())

    def _refusal(self, noun: str) -> CmdletError | None:
        if not self._machine.lab.administrator:
            return not_administrator()
        if self.is_controller and noun in ("LocalAccount", "WslConfig"):
            return no_local_accounts()
        return None

    def _registry(self) -> Iterator[tuple[str, Mapping[str, Json]]]:
        for account in self.accounts.values():
            if account.profile is not None:
                yield f"{PROFILES}\\{account.sid}", {"ProfileImagePath": account.profile}

    def _profiles(self) -> Iterator[Shown]:
        for account in self.accounts.values():
            if account.profile is not None:
                yield shown(
                    "Win32_UserProfile",
                    DeviceID=account.sid,
                    SID=account.sid,
                    LocalPath=account.profile,
                    Loaded=self.loaded(account),
                )

    def _logged_on(self) -> Iterator[tuple[str, str, int]]:
        """Domain, name and type of each session."""
        here = self._machine.name
        for account in self.accounts.values():
            yield from ((here, account.name, _PEOPLE) for _ in range(account.sessions or 0))
            if (alive := self.task("keep-alive", account.name)) and alive.running:
                yield here, account.name, _BATCH
        # Of a domain, with the name of one that is local, too.
        yield "ELSEWHERE", "Administrator", _PEOPLE
        yield "NT AUTHORITY", "LOCAL SERVICE", _SERVICE

    def _sessions(self) -> Iterator[Shown]:
        for number, (_, _, kind) in enumerate(self._logged_on()):
            yield shown("Win32_LogonSession", LogonId=str(1000 + number), LogonType=kind)

    def _logons(self) -> Iterator[Shown]:
        for number, (domain, name, _) in enumerate(self._logged_on()):
            who = shown("Win32_Account", Domain=domain, Name=name)
            session = shown("Win32_LogonSession", LogonId=str(1000 + number))
            yield shown("Win32_LoggedOnUser", Antecedent=who, Dependent=session)

    # ---- as nouns

    def records(self) -> Mapping[str, tuple[Record, ...]]:
        return {
            "LocalAccount": tuple(Record(self._state(a), {"account": a.name}) for a in self.accounts.values()),
            "AccountRight": tuple(self._granted()),
            "AccountTasks": tuple(self._tasks()),
            "WslConfig": tuple(self._configs()),
        }

    def _state(self, account: Account) -> dict[str, Json]:
        return {
            "there": True,
            "sid": account.sid,
            "enabled": account.enabled,
            "password_expires": account.password_expires,
            "administrator": account.administrator,
            "ours": account.ours,
            "profile": account.profile,
            "sessions": account.sessions,
            "distros": self.distros(account),
            **account.unread,
        }

    def distros(self, account: Account) -> int | None:
        """How many disks of distros belong to it; of accounts of others nobody looks."""
        if not account.ours:
            return None
        folders = [f"{PROGRAM_DATA}\\winhost\\distros\\{account.name}", *([account.profile] if account.profile else [])]
        return sum(self.count(folder, "ext4.vhdx") for folder in folders)

    def count(self, folder: str, name: str) -> int:
        """Files of a name below a folder."""
        return sum(path.casefold().endswith(f"\\{name}".casefold()) for path in self._machine.files.below(folder))

    def _granted(self) -> Iterator[Record]:
        for right in RIGHTS:
            for holder in self.rights[right]:
                account = self.by_sid(holder)
                yield Record({"granted": True}, {"account": account.name if account else holder, "right": right})

    def _tasks(self) -> Iterator[Record]:
        for account in {task.account.casefold(): task.account for task in self.tasks.values()}.values():
            yield Record(self.tasks_of(account), {"account": account})

    def tasks_of(self, account: str) -> Mapping[str, Json]:
        """The state of noun AccountTasks."""
        jobs, alive = self.task("jobs", account), self.task("keep-alive", account)
        some = jobs or alive
        if some is None:
            return NO_TASKS
        return {
            "jobs": "absent" if jobs is None else jobs.state.lower().replace("running", "ready"),
            "keep_alive": "absent" if alive is None else alive.state.lower().replace("running", "ready"),
            "distro": alive.distro if alive else None,
            "program": alive.program if alive else None,
            "logon": some.logon,
        }

    def _configs(self) -> Iterator[Record]:
        for account in self.accounts.values():
            if account.profile is not None:
                yield Record(self.config_of(account), {"account": account.name})

    def config_of(self, account: Account) -> Mapping[str, Json]:
        """The state of noun WslConfig; the account has a profile."""
        try:
            return self.read_config(account)
        except CmdletError as error:
            unknown: Json = {"unknown": error.as_json()}
            return {"text": unknown, "encoding": unknown}

    def read_config(self, account: Account) -> Mapping[str, Json]:
        """The same, where it can be read. Raises CmdletError."""
        path = config_path(str(account.profile))
        content = self._machine.files.read(path)
        if content is None:
            return {"text": None, "encoding": None}
        if path.casefold() in self._machine.files.links:
            raise own_error("NotAFile", "InvalidType", f"{path} is a link.")
        text, encoding = decoded(content)
        return {"text": text, "encoding": encoding}

    # ---- accounts

    def new_local_user(self, name: str, secret: str, description: str) -> Account:
        """Raises CmdletError."""
        cmdlet = "New-LocalUser"
        with self._machine.at_work(cmdlet):
            if self.find(name):
                raise self._machine.fail("user-exists", cmdlet, account=name)
            self._check_password(secret, cmdlet)
            account = Account(name, self._new_sid(), description=description, secret=secret)
            self.accounts[name.casefold()] = account
            return account

    def set_local_user(self, sid: str, secret: str) -> None:
        """Another password. Raises CmdletError."""
        cmdlet = "Set-LocalUser"
        with self._machine.at_work(cmdlet):
            account = self._user(sid, cmdlet)
            self._check_password(secret, cmdlet)
            account.secret = secret

    def remove_local_user(self, sid: str) -> None:
        """What it left behind, such as its profile and rights, stays. Raises CmdletError."""
        cmdlet = "Remove-LocalUser"
        with self._machine.at_work(cmdlet):
            del self.accounts[self._user(sid, cmdlet).name.casefold()]

    def change_administrators(self, sid: str, cmdlet: str, *, member: bool) -> None:
        """Add-LocalGroupMember and Remove-LocalGroupMember. Raises CmdletError."""
        with self._machine.at_work(cmdlet):
            account = self._user(sid, cmdlet)
            if account.administrator is member:
                raise self._machine.fail("member-exists" if member else "member-unknown", cmdlet, account=account.name)
            account.administrator = member

    def remove_profile(self, sid: str) -> None:
        """Remove-CimInstance of a Win32_UserProfile: the folder with all that is in it."""
        with self._machine.at_work("Remove-CimInstance"):
            account = self.by_sid(sid)
            if account is not None and account.profile is not None:
                self._machine.files.remove_folder(account.profile)
                account.profile = None

    def loaded(self, account: Account) -> bool:
        """Whether its profile is in use."""
        alive = self.task("keep-alive", account.name)
        return bool(account.sessions or (alive and alive.running))

    def _user(self, sid: str, cmdlet: str) -> Account:
        account = self.by_sid(sid)
        if account is None:
            raise self._machine.fail("user-unknown", cmdlet, account=sid)
        return account

    def _check_password(self, secret: str, cmdlet: str) -> None:
        kinds = sum(re.search(kind, secret) is not None for kind in _KINDS)
        if len(secret) < _LEAST_PASSWORD or kinds < 3:
            raise self._machine.fail("password-refused", cmdlet)

    # ---- rights, as secedit.exe reads and writes them

    def run_secedit(self, arguments: Sequence[str]) -> tuple[int, str]:
        """Its exit code and what it prints. Files are those of this host."""
        options = dict(zip(arguments[1::2], arguments[2::2], strict=False))
        with self._machine.at_work("secedit.exe"):
            if arguments[0] == "/export":
                self._machine.files.write(options["/cfg"], encoded(self._policy(), "utf-16le"))
                return 0, "The task has completed successfully.\r\n"
            content = self._machine.files.read(options["/cfg"])
            self._configure(decoded(content or b"")[0])
            return 0, "The task has completed successfully.\r\n"

    def _policy(self) -> str:
        rights = {right: ",".join(f"*{holder}" for holder in holders) for right, holders in self.rights.items()}
        # One that nobody has is not listed.
        lines = [f"{right} = {holders}" for right, holders in rights.items() if holders]
        head = ["[Unicode]", "Unicode=yes", "[Privilege Rights]", "SeShutdownPrivilege = *S-1-5-32-544,*S-1-5-32-545"]
        return "\r\n".join([*head, *lines, "[Version]", 'signature="$CHICAGO$"', "Revision=1", ""])

    def _configure(self, text: str) -> None:
        for right, holders in re.findall(r"^(Se\w+) = (.*?)\r?$", text, re.MULTILINE):
            self.set_right(right, [holder.lstrip("*") for holder in holders.split(",") if holder])

    def set_right(self, right: str, holders: Sequence[str]) -> None:
        """What a policy of the domain says comes back at once here, on Windows within the hour."""
        if right not in self._machine.lab.accounts.rights_by_policy:
            self.rights[right] = list(holders)

    # ---- tasks

    def register_task(self, task: Task) -> None:
        """Made, or changed and enabled where it is there; one that runs goes on."""
        with self._machine.at_work("Register-WinhostAccountTask"):
            old = self.tasks.get(task.name.casefold())
            task.running = old.running if old else False
            self.tasks[task.name.casefold()] = task

    def unregister_scheduled_task(self, name: str) -> None:
        with self._machine.at_work("Unregister-ScheduledTask"):
            self._task(name, "Unregister-ScheduledTask")
            del self.tasks[name.casefold()]

    def stop_scheduled_task(self, name: str) -> None:
        """Also one that does not run."""
        with self._machine.at_work("Stop-ScheduledTask"):
            self._task(name, "Stop-ScheduledTask").running = False

    def switch_scheduled_task(self, name: str, cmdlet: str, *, enabled: bool) -> None:
        """Enable-ScheduledTask and Disable-ScheduledTask; one that runs goes on."""
        with self._machine.at_work(cmdlet):
            self._task(name, cmdlet).enabled = enabled

    def start_scheduled_task(self, name: str) -> None:
        """What fails then is the result of the task, and no error of this. Raises CmdletError where it is disabled."""
        cmdlet = "Start-ScheduledTask"
        with self._machine.at_work(cmdlet):
            task = self._task(name, cmdlet)
            if not task.enabled:
                raise self._machine.fail("task-disabled", cmdlet)
            if not task.running:
                self._begin(task)

    def _task(self, name: str, cmdlet: str) -> Task:
        if name.casefold() not in self.tasks:
            raise self._machine.fail("task-unknown", cmdlet)
        return self.tasks[name.casefold()]

    def _begin(self, task: Task) -> None:
        problem = self.logon_problem(task)
        if problem is not None:
            task.result = problem
            return
        self._log_on(task.account)
        if task.distro is None:
            self._do_jobs(task.account)
            task.result = 0
        else:
            code = self._machine.distros.hold(task.account, task.distro)
            task.running, task.result = code is None, RUNNING if code is None else code & 0xFFFFFFFF

    def logon_problem(self, task: Task) -> int | None:
        """What the result of the task says where its account cannot log on."""
        account = self.find(task.account)
        if account is None or not account.enabled or (task.logon == "password" and task.secret != account.secret):
            return WRONG_PASSWORD
        mine = {account.sid, *([ADMINISTRATORS] if account.administrator else [])}
        if mine & set(self.rights[DENY_BATCH]) or not mine & set(self.rights[BATCH]):
            return NOT_GRANTED
        return None

    def _log_on(self, name: str) -> None:
        account = self.accounts[name.casefold()]
        if account.profile is None:
            self._machine.clock.sleep(self._machine.lab.accounts.first_logon_seconds)
            taken = {other.profile for other in self.accounts.values()}
            path = f"C:\\Users\\{account.name}"
            account.profile = path if path not in taken else f"{path}.{self._machine.name}"

    # ---- jobs

    def _do_jobs(self, account: str) -> None:
        for path in sorted(self._machine.files.below(job_folder(account))):
            found = re.search(r"job-([0-9a-f]+)\.json$", path)
            if found is None:
                continue
            job = json.loads(self._machine.files.read(path) or b"{}")
            answer = {"code": 0, "output": "", "errors": "", "timed_out": False}
            if job["kind"] == "wsl":
                content = (self._machine.files.read(job["input"]) or b"") if job["input"] else b""
                code, output, errors = self._machine.distros.wsl(account, job["arguments"], content)
                answer |= {"code": code, "output": output, "errors": errors}
            self._machine.files.remove(path)
            self._machine.files.write(
                f"{job_folder(account)}\\answer-{found[1]}.json", json.dumps(answer, ensure_ascii=False).encode()
            )

    def run_job(self, account: str, arguments: Iterable[str], content: bytes = b"") -> tuple[int, str, str]:
        """What Invoke-WinhostJob does: the exit code of wsl.exe and what it printed. Raises NotYet, CmdletError."""
        task = self.task("jobs", account)
        if task is None or not task.enabled:
            raise NotYet("AccountTasks")
        self.first_job(account)
        return self._machine.distros.wsl(task.account, list(arguments), content)

    def first_job(self, account: str) -> None:
        """A job that runs nothing: only the logon. Raises CmdletError."""
        task = self.tasks[f"jobs-{account}".casefold()]
        self.start_scheduled_task(task.name)
        self.check_logon(task)

    def check_logon(self, task: Task) -> None:
        """Raises CmdletError for what the result of a task says."""
        if task.result == NOT_GRANTED:
            message = f"{task.account} may not log on as a batch job: right SeBatchLogonRight is missing or denied."
            raise own_error("NoBatchRight", "PermissionDenied", message)
        if task.result == WRONG_PASSWORD:
            message = f"The password of {task.account} was changed: its tasks cannot log on any more."
            raise own_error("PasswordChanged", "AuthenticationError", message)

    def restarted(self) -> bool:
        """Sessions are gone, and what starts with Windows has started."""
        for account in self.accounts.values():
            account.sessions = account.sessions and 0
        for task in self.tasks.values():
            task.running = False
            if task.at_startup and task.enabled:
                self._begin(task)
        return False


def no_local_accounts() -> CmdletError:
    """What a domain controller tells who asks for them."""
    return own_error("NoLocalAccounts", "InvalidOperation", "A domain controller has no accounts of its own.")


def jobs_task(account: str, logon: str, secret: str | None) -> Task:
    """As winhost registers it."""
    arguments = f'-NoProfile -NonInteractive -ExecutionPolicy Bypass -File "{job_folder(account)}\\job.ps1"'
    return Task(f"jobs-{account}", account, POWERSHELL, arguments, at_startup=False, logon=logon, secret=secret)


def keep_alive_task(account: str, logon: str, secret: str | None, program: str, distro: str) -> Task:
    """As winhost registers it."""
    arguments = f'-d {distro} -u root --cd / -e /bin/sh -c "exec sleep infinity"'
    return Task(f"keep-alive-{account}", account, program, arguments, at_startup=True, logon=logon, secret=secret)


def job_folder(account: str) -> str:
    """Where its jobs are written and answered."""
    return f"{PROGRAM_DATA}\\winhost\\accounts\\{account}"


def config_path(profile: str) -> str:
    """Of its configuration of WSL."""
    return f"{profile}\\.wslconfig"


_MARKS = {"utf-16le": b"\xff\xfe", "utf-8-bom": b"\xef\xbb\xbf", "utf-8": b""}


def decoded(content: bytes) -> tuple[str, str]:
    """The text and its encoding, by its mark. Raises CmdletError."""
    encoding = next(name for name, mark in _MARKS.items() if content.startswith(mark))
    try:
        return content[len(_MARKS[encoding]) :].decode(encoding.removesuffix("-bom")), encoding
    except UnicodeDecodeError:
        raise own_error("NotDecodable", "InvalidData", f"These bytes are not {encoding}.") from None


def encoded(text: str, encoding: str) -> bytes:
    """Raises CmdletError."""
    try:
        return _MARKS[encoding] + text.encode(encoding.removesuffix("-bom"))
    except UnicodeEncodeError:
        raise own_error("BadRequest", "InvalidArgument", f"This text cannot be written as {encoding}.") from None


def on_wire(content: bytes) -> str:
    """As files travel between a script and its host."""
    return base64.b64encode(content).decode()
