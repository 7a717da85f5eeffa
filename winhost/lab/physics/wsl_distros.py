"""Distros of a simulated Windows as resources, and winhost's records of them."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import sha256
from itertools import count
from typing import Any

from winhost.core.answers import Json, Record
from winhost.lab.physics.parts import Change, Host, SetCall
from winhost.lab.physics.windows_accounts import config_path
from winhost.lab.physics.windows_errors import MissingDependency, not_owned_error, refusal, refuse_if
from winhost.lab.physics.windows_files import FOLDER
from winhost.lab.physics.wsl_exe import BOOTED, Distro, UtilityVm, WslExe, WslFailure
from winhost.resources.windows.distros import NO_ACCESS, NO_CONF, NO_DISTRO

DATA, STOP = "data", "vm-stop"
_KEEP_SECONDS = 20.0  # lab seconds after which the script checks that a distro is still running
DISTRO_RESOURCES = ("WslDistro", "WslVm", "WslConf", "WslAccess")


class Distros(WslExe):
    """The distros of one host."""

    administrator_resources = DISTRO_RESOURCES

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        for record in host.initial.get("WslDistro", ()):
            self._load_distro(record)
        for record in host.initial.get("WslVm", ()):
            self._load_vm(record)
        for resource, take_over in (("WslConf", self._load_conf), ("WslAccess", self._load_access)):
            for record in host.initial.get(resource, ()):
                if record.key["distro"].casefold() in self.session(record.key["account"]).distros:
                    take_over(record)
        for resource in DISTRO_RESOURCES:
            host.prerequisites[resource] = self._find_missing_dependency

    # ---- from facts

    def _load_distro(self, record: Record) -> None:
        account, name, state = record.key["account"], record.key["distro"], record.state
        distro = Distro(name, distro_folder(account, name), running=state["running"] is True)
        if isinstance(state["image"], str):
            distro.image = state["image"]
            self.write_record(account, name, new_record(distro.image))
        else:
            distro.folder = f"C:\\WSL\\{name}"
        physics = self._physics(distro)
        distro.systemd, distro.sshd = physics.systemd, physics.sshd
        self.host.files.write(f"{distro.folder}\\ext4.vhdx", b"")
        self.host.files.set_length(f"{distro.folder}\\ext4.vhdx", distro.length)
        self.session(account).distros[name.casefold()] = distro

    def _load_vm(self, record: Record) -> None:
        session = self.session(record.key["account"])
        if record.state["running"] is True:
            text = self.config_text(record.key["account"])
            # The .wslconfig with which this VM was made is unknown; it only has to differ from the present one.
            config = text if record.state["config"] is not None else f"# not {text}\n"
            session.vm = UtilityVm(config, str(record.state["mode"]), self._find_switch(config))

    def _load_conf(self, record: Record) -> None:
        account, name = record.key["account"], record.key["distro"]
        distro = self.session(account).distros[name.casefold()]
        distro.conf_files = {each: record.state[each] for each in NO_CONF}
        self.write_record(account, name, self._record_or_empty(account, name) | {"conf": dict(distro.conf_files)})

    def _load_access(self, record: Record) -> None:
        account, name, state = record.key["account"], record.key["distro"], record.state
        distro = self.session(account).distros[name.casefold()]
        distro.sshd = True
        distro.port, distro.listen, distro.allowed = state["port"], state["listen"], state["allowed"]
        distro.keys, distro.enabled = list(state["authorized"]), bool(state["active"]) or not distro.running
        self.write_record(account, name, self._record_or_empty(account, name) | {"access": _access_state(distro)})

    # ---- reads

    def accounts(self) -> list[str]:
        """Return the accounts that can run jobs."""
        return [task.account for task in self.host.accounts.runnable_jobs_tasks()]

    def _find_missing_dependency(self) -> str | None:
        if self.host.software.wsl is None:
            return "Wsl"
        if not self.accounts():
            return "AccountTasks"
        if not self.host.software.has_platform:
            return "VirtualMachinePlatform"
        # The scripts log on to read distros.
        missing = map(self.host.accounts.missing_dependency, self.host.accounts.runnable_jobs_tasks())
        return next(filter(None, missing), None)

    def read_record(self, account: str, distro: str) -> dict[str, Any] | None:
        """Return the record of a distro that winhost made, or began to make; else None."""
        content = self.host.files.read(f"{distro_folder(account, distro)}.json")
        return None if content is None else dict(json.loads(content))

    def write_record(self, account: str, distro: str, record: Mapping[str, Json]) -> None:
        self.host.files.write(f"{distro_folder(account, distro)}.json", json.dumps(record).encode())

    def owned_record(self, account: str, distro: str) -> dict[str, Any] | None:
        """Return the record of a distro that winhost made completely, or None."""
        record = self.read_record(account, distro)
        disk = self.host.files.read(f"{distro_folder(account, distro)}\\ext4.vhdx")
        return record if record and record["complete"] and disk is not None else None

    def _record_or_empty(self, account: str, distro: str) -> dict[str, Any]:
        return self.read_record(account, distro) or {}

    def config_time(self, path: str) -> int | None:
        """Return the modification time of .wslconfig: before BOOTED if the VM was made with it, else after BOOTED."""
        for account in self.host.accounts.accounts.values():
            if account.profile is None or config_path(account.profile).casefold() != path.casefold():
                continue
            if self.host.files.read(path) is None:
                return None
            vm = self.session(account.name).vm
            is_current = vm is None or vm.config == self.config_text(account.name)
            return BOOTED - 60 if is_current else BOOTED + 60
        return None

    # ---- as resources

    def records(self) -> Mapping[str, Callable[[], Iterable[Record]]]:
        """Return the resources of WSL. Distros of accounts that cannot run jobs are not listed."""
        if self.host.software.wsl is None:
            return dict.fromkeys(DISTRO_RESOURCES, tuple)
        return {
            "WslDistro": self._distros,
            "WslVm": lambda: (Record(self._vm_state(account), {"account": account}) for account in self.accounts()),
            "WslConf": lambda: self._list_owned_states(self.conf_state, lambda state: True),
            "WslAccess": lambda: self._list_owned_states(self.access_state, lambda state: state["port"] is not None),
        }

    def _distros(self) -> Iterator[Record]:
        for account in self.accounts():
            distros = self.session(account).distros.values()
            records = {distro.name: self.owned_record(account, distro.name) for distro in distros}
            others = sum(record is None for record in records.values())
            for distro in distros:
                record = records[distro.name]
                state: dict[str, Json] = {**NO_DISTRO, "installed": True, "running": distro.running}
                if record is not None:
                    folder = distro_folder(account, distro.name)
                    size = self.host.files.length(f"{folder}\\ext4.vhdx")
                    state |= {"image": record["image"], "folder": folder, "file_size": size}
                yield Record({**state, "others": others}, {"account": account, "distro": distro.name})

    def _vm_state(self, account: str) -> dict[str, Json]:
        session = self.session(account)
        running = bool(session.running) and session.vm is not None
        return {"running": running, "config": self.vm_config(account), "mode": self.vm_mode(account)}

    def vm_mode(self, account: str) -> Json:
        """Return the networking mode of the running VM, or else the recorded one."""
        session = self.session(account)
        if not session.running or session.vm is None:
            return self._read_vm_record(account).get("mode")
        return session.vm.mode if self._has_link(session.vm) else "none"

    @staticmethod
    def vm_record_path(account: str) -> str:
        """Return the path of the record about the VM of an account."""
        return f"{FOLDER}\\distros\\{account}.json"

    def has_network(self, account: str) -> bool:
        """Tell whether the running VM has a network."""
        return bool(self.vm_mode(account) != "none")

    def _read_vm_record(self, account: str) -> dict[str, Any]:
        content = self.host.files.read(self.vm_record_path(account))
        return {} if content is None else dict(json.loads(content))

    def vm_config(self, account: str) -> Json:
        """Return the hash of the .wslconfig with which the VM was made, as far as the scripts can tell."""
        if not self.vm_is_current(account):
            recorded: Json = self._read_vm_record(account).get("config")
            return recorded
        return self.digest(account)

    def vm_is_current(self, account: str) -> bool:
        """Tell whether the VM runs, and was made with the present .wslconfig."""
        session, text = self.session(account), self.config(account)
        if not session.running or session.vm is None:
            return False
        return text is None or (isinstance(text, str) and session.vm.config == text)

    def digest(self, account: str) -> Json:
        """Return the hash of the account's present .wslconfig, None without one, or the error of reading it."""
        text = self.config(account)
        return sha256(text.encode()).hexdigest() if isinstance(text, str) else text

    def write_vm_record(self, account: str, mode: Json) -> None:
        """Record the digest of the present .wslconfig and the networking mode of the VM."""
        self.host.files.make_folders(FOLDER, f"{FOLDER}\\distros")
        record = json.dumps({"config": self.digest(account), "mode": mode})
        self.host.files.write(self.vm_record_path(account), record.encode())

    def conf_state(self, account: str, distro: Distro) -> Mapping[str, Json]:
        """Return the state of resource WslConf: the present one while the distro runs, else the recorded one."""
        return distro.conf_files if distro.running else self._record_or_empty(account, distro.name)["conf"] or NO_CONF

    def access_state(self, account: str, distro: Distro) -> Mapping[str, Json]:
        """Return the state of resource WslAccess: the present one while the distro runs, else the recorded one."""
        if distro.running:
            state = _access_state(distro)
            active = distro.is_listening and self.has_network(account)
            return {**state, "address": self.address(account), "active": active} if state else NO_ACCESS
        recorded = self._record_or_empty(account, distro.name)["access"] or {}
        return {**NO_ACCESS, **recorded, "address": None, "active": False}

    def _list_owned_states(
        self, state: Callable[[str, Distro], Mapping[str, Json]], is_listed: Callable[[Mapping[str, Json]], bool]
    ) -> Iterator[Record]:
        for account in self.accounts():
            for distro in self.session(account).distros.values():
                if self.owned_record(account, distro.name) and is_listed(current := state(account, distro)):
                    yield Record(dict(current), {"account": account, "distro": distro.name})

    # ---- as resources that are set

    def changes(self) -> Mapping[str, Change]:
        return {
            "WslDistro": self.set_distro,
            "WslVm": self.set_vm,
            "WslConf": self.set_conf,
            "WslAccess": self.set_access,
        }

    def _find_for_account(self, account: str, name: str) -> Distro | None:
        """Return the distro, or None. Raises CmdletError, MissingDependency if the account cannot run jobs."""
        self.host.accounts.check_can_run(account)
        return self.session(account).find(name)

    def _require_owned_distro(self, account: str, name: str) -> tuple[Distro, dict[str, Any]]:
        """Return one of winhost's distros with its record. Raises CmdletError, MissingDependency."""
        distro, record = self._find_for_account(account, name), self.owned_record(account, name)
        if distro is None or record is None:
            raise not_owned_error(f"winhost did not make the distro {name} of {account}, and leaves it alone.")
        return distro, record

    def set_distro(self, call: SetCall) -> None:
        """Import, start, stop or remove a distro."""
        desired, running = call.desired, call.desired.get("running")
        account, name = call.key["account"], call.key["distro"]
        if desired.get("installed") is False:
            self._remove_distro(account, name, keep=DATA not in call.accept)
            return
        if desired.get("installed") and self.owned_record(account, name) is None:
            self._add_distro(account, name, str(desired.get("image")))
        if running is not None:
            distro, _ = self._require_owned_distro(account, name)
            if not running:
                self._end_distro(account, distro)
                return
            self._end_idle(account)
            self._start_again(account, distro)
            self.host.clock.sleep(_KEEP_SECONDS)
            refuse_if(not distro.running, "NotHeld")

    def _add_distro(self, account: str, name: str, image: str) -> None:
        files, folder = self.host.files, distro_folder(account, name)
        existing, staged = self._find_for_account(account, name), self.host.software.find_staged_file(image)
        if existing is not None or files.is_occupied(folder):
            raise not_owned_error(f"There is a distro {name} that winhost did not make, or something in {folder}.")
        with self.script_errors():
            files.make_folders(FOLDER, f"{FOLDER}\\distros", f"{FOLDER}\\distros\\{account}", folder)
            try:
                self._import_distro(account, name, folder, staged)
            except WslFailure:
                self._end_idle(account)
                raise
        self.write_record(account, name, new_record(image))

    def _end_idle(self, account: str) -> None:
        """End the VM if no distro runs: without an idle timeout it would keep running."""
        if not self.session(account).running:
            self._end_all(account)

    def _remove_distro(self, account: str, name: str, *, keep: bool) -> None:
        distro, _ = self._require_owned_distro(account, name)
        with self.script_errors():
            if keep:
                exports = f"{FOLDER}\\exports\\{account}"
                paths = (f"{exports}\\{name}-{number}.tar" for number in count(1))
                self._export_distro(
                    account, distro, next(path for path in paths if not self.host.files.is_occupied(path))
                )
            self._unregister_distro(account, distro)
        self.host.files.remove_folder(distro_folder(account, name))
        self.host.files.remove(f"{distro_folder(account, name)}.json")
        self._end_idle(account)

    def _start_again(self, account: str, distro: Distro) -> None:
        task = self._keep_alive_task(account, distro.name)
        if task is not None and task.enabled:
            self.host.accounts.start_scheduled_task(task.name)
        with self.inside(account, distro):
            pass

    def set_vm(self, call: SetCall) -> None:
        """Restart the VM of an account and its distros with the present .wslconfig."""
        account = call.key["account"]
        self.host.accounts.check_can_run(account)
        running = self.session(account).running
        if running and STOP not in call.accept:
            names = ", ".join(each.name for each in running)
            raise refusal("EndsDistros", names=names)
        mode = call.desired.get("mode", self.vm_mode(account))
        self._end_all(account)
        self.write_vm_record(account, mode)
        for distro in running:
            self._start_again(account, distro)

    def _require_installed_distro(self, account: str, name: str) -> tuple[Distro, dict[str, Any]]:
        if self._find_for_account(account, name) is None:
            raise MissingDependency("WslDistro")
        return self._require_owned_distro(account, name)

    def set_conf(self, call: SetCall) -> None:
        """Write the configuration files of a distro, and restart it."""
        account, name = call.key["account"], call.key["distro"]
        distro, record = self._require_installed_distro(account, name)
        was_running, conf = distro.running, {**self.conf_state(account, distro), **call.desired}
        with self.inside(account, distro):
            distro.conf_files |= {each: text if text is None else str(text) for each, text in call.desired.items()}
        self.write_record(account, distro.name, {**record, "conf": {each: conf[each] for each in NO_CONF}})
        self._end_distro(account, distro)
        if was_running:
            self._start_again(account, distro)

    def set_access(self, call: SetCall) -> None:
        """Set up sshd in a distro, or remove it."""
        account, name = call.key["account"], call.key["distro"]
        distro, record = self._require_installed_distro(account, name)
        goal = {**self.access_state(account, distro), **call.desired}
        with self.inside(account, distro):
            if refused := self.access_refusal(distro, goal):
                raise refusal("InDistroFailed", code=refused[0], why=refused[1])
            self.apply_access(distro, goal)
        access = None if goal["port"] is None else {**goal, "user": "root", "host_key": distro.host_key}
        self.write_record(account, distro.name, {**record, "access": access})

    def on_restart(self) -> bool:
        """End every VM. The tasks that start with Windows start distros again."""
        self.stop_everything()
        return False


def distro_folder(account: str, distro: str) -> str:
    """Return the folder of a distro's disk. Its record is next to it."""
    return f"{FOLDER}\\distros\\{account}\\{distro}"


def new_record(image: str) -> dict[str, Json]:
    """Return the record of a new distro."""
    return {"image": image, "complete": True, "conf": None, "access": None}


def _access_state(distro: Distro) -> Mapping[str, Json] | None:
    """Return the state of resource WslAccess, or None without access."""
    if distro.port is None:
        return None
    return {
        "user": "root",
        "port": distro.port,
        "listen": distro.listen,
        "allowed": distro.allowed,
        "host_key": distro.host_key,
        "authorized": list(distro.keys),
        "active": distro.is_listening,
    }
