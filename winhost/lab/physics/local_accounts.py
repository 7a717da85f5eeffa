"""Local accounts of a simulated Windows, with their logons, user rights and winhost's scheduled tasks.

Source: Microsoft's documentation of local accounts and of user rights.
"""

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from hashlib import sha256
from typing import Any

from winhost.core.answers import Json
from winhost.core.dataclass import dataclass
from winhost.lab.physics.parts import Host, Part, SetCall, as_cmdlet
from winhost.lab.physics.windows_errors import (
    CmdletError,
    WindowsObject,
    agent_error,
    not_found_error,
    not_owned_error,
    refusal,
    windows_object,
)
from winhost.lab.physics.windows_files import FOLDER, decode_text, encode_text

POWERSHELL = "C:\\Windows\\System32\\WindowsPowerShell\\v1.0\\powershell.exe"

# Results of tasks: not run yet, running; logon failures: the right is missing, the password is wrong, the account is
# disabled, the account does not exist.
NOT_RUN, RUNNING = 267011, 267009
NOT_GRANTED, WRONG_PASSWORD, DISABLED, NO_ACCOUNT = 2147943785, 2147943726, 2147943731, 2147943732


@dataclass
class Task:
    """A task in the folder `winhost`. secret: the password with which it was registered, or None."""

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
        match = re.match(r"-d ([A-Za-z0-9._-]+) ", self.arguments)
        return match[1] if match else None


def make_jobs_task(account: str, logon: str, secret: str | None) -> Task:
    """Return the task for jobs, as winhost registers it."""
    arguments = f'-NoProfile -NonInteractive -ExecutionPolicy Bypass -File "{script_path(account)}"'
    return Task(f"jobs-{account}", account, POWERSHELL, arguments, at_startup=False, logon=logon, secret=secret)


def make_keep_alive_task(account: str, logon: str, secret: str | None, program: str, distro: str) -> Task:
    """Return the task that keeps a distro running, as winhost registers it."""
    arguments = f'-d {distro} -u root --cd / -e /bin/sh -c "exec sleep infinity"'
    return Task(f"keep-alive-{account}", account, program, arguments, at_startup=True, logon=logon, secret=secret)


def script_path(account: str) -> str:
    """Return the path of the script that the task for jobs runs."""
    return f"{job_folder(account)}\\job.ps1"


def answer_path(account: str, number: str) -> str:
    """Return the path of the answer to a job."""
    return f"{job_folder(account)}\\answers\\answer-{number}.json"


def job_folder(account: str) -> str:
    """Return the folder of an account's jobs."""
    return f"{FOLDER}\\jobs\\{account}"


MARKER = "winhost: owns the Linux distro; see winhost docs"
ADMINISTRATORS = "S-1-5-32-544"
BATCH, SERVICE, DENY_BATCH = "SeBatchLogonRight", "SeServiceLogonRight", "SeDenyBatchLogonRight"
RIGHTS = (BATCH, SERVICE, DENY_BATCH)
PROFILES = "SOFTWARE\\Microsoft\\Windows NT\\CurrentVersion\\ProfileList"

VIRTUAL_MACHINES = "S-1-5-83-0"
_DEFAULT_RIGHTS = {
    BATCH: [ADMINISTRATORS, "S-1-5-32-551", "S-1-5-32-559"],
    SERVICE: ["S-1-5-80-0", VIRTUAL_MACHINES],
    DENY_BATCH: [],
}
_INTERACTIVE, _BATCH, _SERVICE = 2, 4, 5  # types of logon sessions


ACCOUNT_PROPERTIES = (
    "enabled",
    "password_expires",
    "administrator",
    "profile",
    "sessions",
)  # as in resource LocalAccount


@dataclass
class Account:
    """A local account. unknown_properties: those that could not be read from a recorded host."""

    name: str
    sid: str
    enabled: bool = True
    password_expires: bool = False
    administrator: bool = False
    description: str = ""
    profile: str | None = None
    sessions: int | None = 0
    secret: str | None = None
    unknown_properties: Mapping[str, Json] = field(default_factory=dict)

    @property
    def is_owned(self) -> bool:
        return self.description == MARKER

    def check_owned(self) -> None:
        """Raise CmdletError if winhost did not make the account."""
        if not self.is_owned:
            raise not_owned_error(f"winhost did not make the account {self.name}.")


class LocalAccounts(Part):
    """The accounts of a Windows. Its methods are cmdlets in snake case."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.accounts: dict[str, Account] = {}
        self.rights: dict[str, list[str]] = {}
        self.tasks: dict[str, Task] = {}
        system = host.initial.get("OperatingSystem", ())
        # A domain controller has no local accounts.
        self.is_controller = any(record.state.get("product_options") == "LanmanNT" for record in system)
        for account in self._load_accounts():
            self.accounts[account.name.casefold()] = account
        self._load_rights()
        host.registry_keys.append(self._registry_keys)
        host.cim_classes |= {
            "Win32_UserProfile": self._profiles,
            "Win32_LogonSession": self._sessions,
            "Win32_LoggedOnUser": self._logons,
        }

    # ---- from facts

    def _load_accounts(self) -> Iterator[Account]:
        if "LocalAccount" not in self.host.initial:
            yield from self._built_in_accounts()
        for record in self.host.initial.get("LocalAccount", ()):
            unknown_properties = {name: value for name, value in record.state.items() if isinstance(value, Mapping)}
            state: dict[str, Any] = {
                name: value for name, value in record.state.items() if name not in unknown_properties
            }
            properties = {name: state[name] for name in ACCOUNT_PROPERTIES if name in state}
            sid, mark = state.get("sid") or self._new_sid(), MARKER if state.get("ours") else ""
            yield Account(
                record.key["account"], sid, description=mark, unknown_properties=unknown_properties, **properties
            )
            owned_distros = [
                r for r in self.host.initial.get("WslDistro", ()) if r.key["account"] == record.key["account"]
            ]
            owned_distros = [r for r in owned_distros if r.state["image"]]
            for number in range(
                (state.get("distros") or 0) - len(owned_distros)
            ):  # the disks of ours lie in winhost's folder
                self.host.files.write(f"{state['profile']}\\AppData\\Local\\wsl\\{number}\\ext4.vhdx", b"")

    def _built_in_accounts(self) -> Iterator[Account]:
        """Yield the built-in accounts, which a domain controller does not have."""
        if self.is_controller:
            return
        client, base = self.host.is_client, self._sid_prefix
        profile = None if client else "C:\\Users\\Administrator"
        yield Account("Administrator", f"{base}-500", enabled=not client, administrator=True, profile=profile)
        yield Account("Guest", f"{base}-501", enabled=False)
        yield Account("DefaultAccount", f"{base}-503", enabled=False)

    def _load_rights(self) -> None:
        self.rights = {right: [] for right in RIGHTS}
        if "AccountRight" not in self.host.initial:
            self.rights = {right: list(holders) for right, holders in _DEFAULT_RIGHTS.items()}
            if self.host.lab.wsl.no_service_logon:
                self.rights[SERVICE].remove(VIRTUAL_MACHINES)
        for record in self.host.initial.get("AccountRight", ()):
            if record.state.get("granted") is True:
                self.rights[record.key["right"]].append(self._sid_of(record.key["account"]))

    # ---- reads

    @property
    def _sid_prefix(self) -> str:
        numbers = sha256(self.host.name.encode()).digest()
        return "S-1-5-21-" + "-".join(str(int.from_bytes(numbers[start : start + 4], "big")) for start in (0, 4, 8))

    def _new_sid(self) -> str:
        used = [int(account.sid.rpartition("-")[2]) for account in self.accounts.values()]
        return f"{self._sid_prefix}-{max([1000, *used]) + 1}"

    def find(self, name: str) -> Account | None:
        """Return the account of this name, regardless of case, or None."""
        return self.accounts.get(name.casefold())

    def find_by_sid(self, sid: str) -> Account | None:
        return next((account for account in self.accounts.values() if account.sid == sid), None)

    def _sid_of(self, name: str) -> str:
        account = self.find(name)
        return account.sid if account else name

    def task(self, kind: str, account: str) -> Task | None:
        """Return a task of an account, or None. kind: jobs, keep-alive or watch."""
        return self.tasks.get(f"{kind}-{account}".casefold())

    def add_task(self, task: Task, state: Json) -> None:
        """Add a task. state: ready, running or disabled."""
        task.enabled = state != "disabled"
        self.tasks[task.name.casefold()] = task

    def _registry_keys(self) -> Iterator[tuple[str, Mapping[str, Json]]]:
        for account in self.accounts.values():
            if account.profile is not None:
                yield f"{PROFILES}\\{account.sid}", {"ProfileImagePath": account.profile}

    def _profiles(self) -> Iterator[WindowsObject]:
        for account in self.accounts.values():
            if account.profile is not None:
                yield windows_object(
                    "Win32_UserProfile", DeviceID=account.sid, SID=account.sid, Loaded=self.is_profile_loaded(account)
                )

    def _list_logons(self) -> Iterator[tuple[str, str, int]]:
        """Yield the domain, account name and logon type of each session."""
        computer = self.host.name
        for account in self.accounts.values():
            yield from ((computer, account.name, _INTERACTIVE) for _ in range(account.sessions or 0))
            if (task := self.task("keep-alive", account.name)) and task.running:
                yield computer, account.name, _BATCH
        # A domain account with the name of a local account.
        yield "ELSEWHERE", "Administrator", _INTERACTIVE
        yield "NT AUTHORITY", "LOCAL SERVICE", _SERVICE

    def _sessions(self) -> list[WindowsObject]:
        kinds = enumerate(kind for _, _, kind in self._list_logons())
        return [
            windows_object("Win32_LogonSession", LogonId=str(1000 + number), LogonType=kind) for number, kind in kinds
        ]

    def _logons(self) -> Iterator[WindowsObject]:
        for number, (domain, name, _) in enumerate(self._list_logons()):
            account = windows_object("Win32_Account", Domain=domain, Name=name)
            session = windows_object("Win32_LogonSession", LogonId=str(1000 + number))
            yield windows_object("Win32_LoggedOnUser", Antecedent=account, Dependent=session)

    # ---- accounts

    @as_cmdlet("New-LocalUser")
    def new_local_user(self, name: str, secret: str, description: str) -> Account:
        account = Account(name, self._new_sid(), description=description, secret=secret)
        self.accounts[name.casefold()] = account
        return account

    @as_cmdlet("Set-LocalUser", sid="InputObject.SID", secret="Password")  # noqa: S106 - the name of a parameter
    def set_local_user(self, sid: str, secret: str) -> None:
        """Set the password of an account."""
        self._require_sid(sid).secret = secret

    @as_cmdlet("Remove-LocalUser", sid="InputObject[].SID")
    def remove_local_user(self, sid: str) -> None:
        """Remove an account. Its profile and rights stay."""
        del self.accounts[self._require_sid(sid).name.casefold()]

    @as_cmdlet("Add-LocalGroupMember", "SID", sid="Member[].SID")
    def add_local_group_member(self, sid: str) -> None:
        """Add an account to the administrators."""
        self._require_sid(sid).administrator = True

    @as_cmdlet("Remove-LocalGroupMember", "SID", sid="Member[].SID")
    def remove_local_group_member(self, sid: str) -> None:
        """Remove an account from the administrators."""
        self._require_sid(sid).administrator = False

    @as_cmdlet("Remove-CimInstance", sid="InputObject.DeviceID")
    def remove_profile(self, sid: str) -> None:
        """Remove-CimInstance of a Win32_UserProfile: remove the profile's folder."""
        account = self.find_by_sid(sid)
        if account is not None and account.profile is not None:
            self.host.files.remove_folder(account.profile)
            account.profile = None

    def is_profile_loaded(self, account: Account) -> bool:
        """Tell whether the account's profile is in use."""
        task = self.task("keep-alive", account.name)
        return bool(account.sessions or (task and task.running))

    def _require_sid(self, sid: str) -> Account:
        return next(account for account in self.accounts.values() if account.sid == sid)

    def set_account(self, call: SetCall) -> None:
        """Make or remove an account, or change whether it is an administrator."""
        name, desired = call.key["account"], call.desired
        account = self.find(name)
        if desired.get("there") is False:
            if account is None:
                return
            account.check_owned()
            if distros := self.count_distros(account):
                raise refusal("HoldsDistro", name=account.name, distros=distros)
            if account.profile is not None and self.is_profile_loaded(account):
                raise refusal("LoggedOn", name=account.name)
            self.remove_profile(account.sid)
            self.remove_local_user(account.sid)
            return
        account = account or self.new_local_user(name, new_secret(), MARKER)
        if desired.get("administrator", account.administrator) is not account.administrator:
            account.check_owned()
            (self.remove_local_group_member if account.administrator else self.add_local_group_member)(account.sid)

    def count_distros(self, account: Account) -> int | None:
        """Return the number of distro disks of one of winhost's accounts; None for other accounts."""
        if not account.is_owned:
            return None
        folders = [f"{FOLDER}\\distros\\{account.name}", *([account.profile] if account.profile else [])]
        return sum(self.count_files(folder, "ext4.vhdx") for folder in folders)

    def count_files(self, folder: str, name: str) -> int:
        """Count the files of this name below a folder."""
        return sum(path.casefold().endswith(f"\\{name}".casefold()) for path in self.host.files.list_below(folder))

    # ---- user rights, with secedit.exe

    def run_secedit(self, arguments: Sequence[str]) -> tuple[int, str]:
        """Run secedit.exe with files of this host; return its exit code and output."""
        options = dict(zip(arguments[1::2], arguments[2::2], strict=False))
        with self.host.changing("secedit.exe"):
            if arguments[0] == "/export":
                rights = {right: ",".join(map(self._format_holder, holders)) for right, holders in self.rights.items()}
                # A right that nobody has is not listed.
                lines = [f"{right} = {holders}" for right, holders in rights.items() if holders]
                head = ["[Unicode]", "Unicode=yes", "[Privilege Rights]"]
                head.append("SeShutdownPrivilege = *S-1-5-32-544,*S-1-5-32-545")
                policy = "\r\n".join([*head, *lines, "[Version]", 'signature="$CHICAGO$"', "Revision=1", ""])
                self.host.files.write(options["/cfg"], encode_text(policy, "utf-16le"))
                return 0, "The task has completed successfully.\r\n"
            text, _ = decode_text(self.host.files.read(options["/cfg"]) or b"")
            for right, holders in re.findall(r"^(Se\w+) = (.*?)\r?$", text, re.MULTILINE):
                names = [holder.lstrip("*") for holder in holders.split(",") if holder]
                self.set_right(right, [self._sid_of(holder) for holder in names])
            return 0, "The task has completed successfully.\r\n"

    def _format_holder(self, holder: str) -> str:
        """Return the name of a local account, or the SID of any other holder."""
        account = self.find_by_sid(holder)
        return account.name if account else f"*{holder}"

    def set_account_right(self, call: SetCall) -> None:
        """Apply a set of AccountRight."""
        right, name = call.key["right"], call.key["account"]
        holder = name if re.fullmatch(r"S-1-[0-9]+(-[0-9]+)+", name) else self.require_account(name).sid
        others = [each for each in self.rights[right] if each != holder]
        self.set_right(right, [*others, holder] if call.desired["granted"] else others)

    def require_account(self, name: str) -> Account:
        """Return the account of this name. Raises CmdletError if it does not exist."""
        if (account := self.find(name)) is None:
            raise not_found_error(f"There is no account {name}.")
        return account

    def set_right(self, right: str, holders: Sequence[str]) -> None:
        """Set the holders of a right. A domain policy undoes that: here at once, on Windows within an hour."""
        if right not in self.host.lab.accounts.rights_by_policy:
            self.rights[right] = list(holders)


def new_secret() -> str:
    """Return a password that satisfies every password policy."""
    return secrets.token_urlsafe(36) + "Aa1-"


def domain_controller_error() -> CmdletError:
    """Return the error with which a domain controller refuses local accounts."""
    return agent_error("NoLocalAccounts", "InvalidOperation", "A domain controller has no accounts of its own.")
