"""Watchers for the desktop of a simulated Windows: their scheduled tasks and files, as resource YieldWatcher."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

from winhost.core.answers import Json, Key, Record
from winhost.lab.physics.local_accounts import Account, no_local_accounts
from winhost.lab.physics.parts import Change, Host, Part, SetCall
from winhost.lab.physics.scheduled_tasks import POWERSHELL, Task
from winhost.lab.physics.windows_accounts import Accounts
from winhost.lab.physics.windows_errors import bad_request, not_found, own_error
from winhost.lab.physics.windows_files import FOLDER
from winhost.resources.windows.windows_scripts import watcher_script
from winhost.resources.windows.yield_watcher import NO_WATCHER, STALE

_WATCHERS = f"{FOLDER}\\watchers"
_EDGE = r"""[^\s."/\\\[\]:;|=,+*?<>@%$]"""
_PERSON = re.compile(rf"""{_EDGE}([^\x00-\x1f"/\\\[\]:;|=,+*?<>@%$]{{0,18}}{_EDGE})?""")


class YieldWatchers(Part):
    """Those of all accounts."""

    for_administrators = ("YieldWatcher",)

    def __init__(self, host: Host, initial: Mapping[str, Sequence[Record]]) -> None:
        super().__init__(host)
        self._accounts: Accounts = host.accounts
        for record in initial.get("YieldWatcher", ()):
            account, state = str(record.key["account"]), record.state
            for name, value in (("settings.json", state["settings"]), ("reference", state["key"])):
                if value is not None:
                    host.files.write(_file(account, name), str(value).encode())
            if state["task"] != "absent":
                self._accounts.tasks[f"watch-{account}".casefold()] = _task(account, state["task"] != "disabled")
                if state["task"] != STALE:
                    host.files.write(_file(account, "watch.ps1"), watcher_script().encode())
        host.known_as["YieldWatcher"] = _named

    def records(self) -> Mapping[str, Callable[[], Iterable[Record]]]:
        return {"YieldWatcher": self._watchers}

    def _watchers(self) -> Iterator[Record]:
        for task in self._accounts.tasks.values():
            if task.name.startswith("watch-"):
                yield Record(self._state(task.account), {"account": task.account})

    def _state(self, account: str) -> dict[str, Json]:
        task, key = self._accounts.task("watch", account), self._read(account, "key")
        script = (self._read(account, "watch.ps1") or b"").replace(b"\r", b"")
        word = "absent" if task is None else "disabled" if task.state == "Disabled" else "ready"
        return {
            "task": STALE if word == "ready" and script != watcher_script().encode() else word,
            "settings": self._text(account, "settings.json"),
            "key": self._text(account, "reference"),
            "digest": None if key is None else sha256(key).hexdigest(),
        }

    def _read(self, account: str, name: str) -> bytes | None:
        found: bytes | None = self.host.files.read(_file(account, name))
        return found

    def _text(self, account: str, name: str) -> str | None:
        found = self._read(account, name)
        return None if found is None else found.decode("ascii")

    def changes(self) -> Mapping[str, Change]:
        return {"YieldWatcher": self.set_watcher}

    def set_watcher(self, asked: SetCall) -> None:
        """Made, changed or removed. Raises CmdletError."""
        name = asked.key["account"]
        goal: dict[str, Any] = {**self._state(name), **asked.desired}
        missing = [each for each in ("settings", "key", "digest") if goal[each] is None]
        if goal["task"] not in NO_TASK_LACKS or len(missing) != NO_TASK_LACKS[goal["task"]]:
            raise bad_request("A watcher has settings, key and digest; without its task it has none of them.")
        if goal["task"] == "absent":
            if self._accounts.task("watch", name) is not None:
                self._accounts.unregister_scheduled_task(f"watch-{name}")
            self.host.files.remove_folder(_folder(name))
            return
        if self._accounts.is_controller:
            raise no_local_accounts()
        if (account := self._accounts.find(name)) is None:
            raise not_found(f"There is no local account {name}.")
        self._install(account, goal, asked.secret.encode() or self._read(name, "key"))

    def _install(self, account: Account, goal: Mapping[str, Any], key: bytes | None) -> None:
        if key is None or sha256(key).hexdigest() != goal["digest"]:
            raise own_error("WrongHash", "InvalidData", "The key is another than the gateway knows: its hash differs.")
        files, name = self.host.files, account.name
        files.make_folders(FOLDER, _WATCHERS, _folder(name))
        written = {"key": key, "reference": goal["key"].encode(), "settings.json": goal["settings"].encode()}
        for file, content in {**written, "watch.ps1": watcher_script().encode(), "last.txt": b""}.items():
            files.write(_file(name, file), content)
        self._accounts.register_task(_task(name, True))
        if goal["task"] == "disabled":
            self._accounts.disable_scheduled_task(f"watch-{name}")


NO_TASK_LACKS = {"absent": len(NO_WATCHER) - 1, "ready": 0, "disabled": 0}
"""How many of the other properties are null."""


def _named(key: Key) -> Key:
    """The same key. Raises CmdletError for what is no account's name."""
    if not _PERSON.fullmatch(str(key.get("account"))):
        raise bad_request(
            "The account is the name of a local account, 20 characters at most, without %, $ and what no such name has."
        )
    return key


def _folder(account: str) -> str:
    return f"{_WATCHERS}\\{account}"


def _file(account: str, name: str) -> str:
    return f"{_folder(account)}\\{name}"


def _task(account: str, enabled: bool) -> Task:
    """The task that winhost registers."""
    arguments = (
        f'-NoProfile -NonInteractive -WindowStyle Hidden -ExecutionPolicy Bypass -File "{_file(account, "watch.ps1")}"'
    )
    made = Task(f"watch-{account}", account, POWERSHELL, arguments, at_startup=False, logon="interactive", secret=None)
    made.enabled = enabled
    return made
