"""Distros of a simulated Windows as resources, and what winhost wrote down of them."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import sha256
from itertools import count
from typing import Any

from winhost.core.answers import Json, Record
from winhost.lab.physics.parts import Change, Host, SetCall
from winhost.lab.physics.windows_accounts import config_path
from winhost.lab.physics.windows_errors import MissingDependency, not_owned_error, refusal, refuse
from winhost.lab.physics.windows_files import FOLDER
from winhost.lab.physics.wsl_exe import BOOTED, Distro, UtilityVm, WslExe, WslFailure
from winhost.resources.windows.distros import NO_ACCESS, NO_CONF, NO_DISTRO

DATA, STOP = "data", "vm-stop"
_KEEP_SECONDS = 20.0  # lab seconds that the script waits to see whether somebody holds a distro
DISTRO_RESOURCES = ("WslDistro", "WslVm", "WslConf", "WslAccess")


class Distros(WslExe):
    """A part of the machine."""

    administrator_resources = DISTRO_RESOURCES

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        for record in host.initial.get("WslDistro", ()):
            self._take_over(record)
        for record in host.initial.get("WslVm", ()):
            self._take_over_vm(record)
        for resource, take_over in (("WslConf", self._take_over_conf), ("WslAccess", self._take_over_access)):
            for record in host.initial.get(resource, ()):
                if record.key["distro"].casefold() in self.session(record.key["account"]).distros:
                    take_over(record)
        for resource in DISTRO_RESOURCES:
            host.prerequisites[resource] = self._awaited

    # ---- made from facts

    def _take_over(self, record: Record) -> None:
        account, name, state = record.key["account"], record.key["distro"], record.state
        distro = Distro(name, folder_of(account, name), running=state["running"] is True)
        if isinstance(state["image"], str):
            distro.image = state["image"]
            self.write_record(account, name, record_of(distro.image))
        else:
            distro.folder = f"C:\\WSL\\{name}"
        physics = self._physics(distro)
        distro.systemd, distro.sshd = physics.systemd, physics.sshd
        self.host.files.write(f"{distro.folder}\\ext4.vhdx", b"")
        self.host.files.give_length(f"{distro.folder}\\ext4.vhdx", distro.length)
        self.session(account).distros[name.casefold()] = distro

    def _take_over_vm(self, record: Record) -> None:
        session = self.session(record.key["account"])
        if record.state["running"] is True:
            now = self.config_text(record.key["account"])
            # Of a VM that was made with another file nobody knows what that said.
            config = now if record.state["config"] is not None else f"# not {now}\n"
            session.vm = UtilityVm(config, str(record.state["mode"]), self._switch_named(config))

    def _take_over_conf(self, record: Record) -> None:
        account, name = record.key["account"], record.key["distro"]
        distro = self.session(account).distros[name.casefold()]
        distro.put = {each: record.state[each] for each in NO_CONF}
        self.write_record(account, name, self._written(account, name) | {"conf": dict(distro.put)})

    def _take_over_access(self, record: Record) -> None:
        account, name, state = record.key["account"], record.key["distro"], record.state
        distro = self.session(account).distros[name.casefold()]
        distro.sshd = True
        distro.port, distro.listen, distro.allowed = state["port"], state["listen"], state["allowed"]
        distro.keys, distro.enabled = list(state["authorized"]), bool(state["active"]) or not distro.running
        self.write_record(account, name, self._written(account, name) | {"access": _access(distro)})

    # ---- looking

    def accounts(self) -> list[str]:
        """The accounts that can run jobs."""
        return [task.account for task in self.host.accounts.jobs_tasks()]

    def _awaited(self) -> str | None:
        if self.host.software.wsl is None:
            return "Wsl"
        if not self.accounts():
            return "AccountTasks"
        if not self.host.software.has_platform:
            return "VirtualMachinePlatform"
        # As the scripts do: to look takes a logon.
        missing = map(self.host.accounts.resource_to_set_first, self.host.accounts.jobs_tasks())
        return next(filter(None, missing), None)

    def record(self, account: str, distro: str) -> dict[str, Any] | None:
        """The record of a distro that winhost made, or is making."""
        content = self.host.files.read(f"{folder_of(account, distro)}.json")
        return None if content is None else dict(json.loads(content))

    def write_record(self, account: str, distro: str, record: Mapping[str, Json]) -> None:
        self.host.files.write(f"{folder_of(account, distro)}.json", json.dumps(record).encode())

    def ours(self, account: str, distro: str) -> dict[str, Any] | None:
        """The record of a distro that winhost made, or None."""
        record = self.record(account, distro)
        disk = self.host.files.read(f"{folder_of(account, distro)}\\ext4.vhdx")
        return record if record and record["complete"] and disk is not None else None

    def _written(self, account: str, distro: str) -> dict[str, Any]:
        return self.record(account, distro) or {}

    def config_time(self, path: str) -> int | None:
        """When the .wslconfig at this path was written, beside the time at which the VM's kernel started."""
        for account in self.host.accounts.accounts.values():
            if account.profile is None or config_path(account.profile).casefold() != path.casefold():
                continue
            if self.host.files.read(path) is None:
                return None
            vm = self.session(account.name).vm
            current = vm is None or vm.config == self.config_text(account.name)
            return BOOTED - 60 if current else BOOTED + 60
        return None

    # ---- as resources

    def records(self) -> Mapping[str, Callable[[], Iterable[Record]]]:
        """List distros of accounts that can run jobs: those of others cannot be seen."""
        if self.host.software.wsl is None:
            return dict.fromkeys(DISTRO_RESOURCES, tuple)
        return {
            "WslDistro": self._distros,
            "WslVm": lambda: (Record(self._vm_state(account), {"account": account}) for account in self.accounts()),
            "WslConf": lambda: self._of_ours(self.conf, lambda state: True),
            "WslAccess": lambda: self._of_ours(self.access, lambda state: state["port"] is not None),
        }

    def _distros(self) -> Iterator[Record]:
        for account in self.accounts():
            distros = self.session(account).distros.values()
            records = {distro.name: self.ours(account, distro.name) for distro in distros}
            others = sum(record is None for record in records.values())
            for distro in distros:
                record = records[distro.name]
                state: dict[str, Json] = {**NO_DISTRO, "installed": True, "running": distro.running}
                if record is not None:
                    folder = folder_of(account, distro.name)
                    size = self.host.files.length(f"{folder}\\ext4.vhdx")
                    state |= {"image": record["image"], "folder": folder, "file_size": size}
                yield Record({**state, "others": others}, {"account": account, "distro": distro.name})

    def _vm_state(self, account: str) -> dict[str, Json]:
        session = self.session(account)
        running = bool(session.running) and session.vm is not None
        return {"running": running, "config": self.vm_config(account), "mode": self.vm_mode(account)}

    def vm_mode(self, account: str) -> Json:
        """The networking mode of the VM, in the scripts' words."""
        session = self.session(account)
        if not session.running or session.vm is None:
            return self._vm_record(account).get("mode")
        return session.vm.mode if self._has_link(session.vm) else "none"

    @staticmethod
    def vm_record(account: str) -> str:
        """The path of the record about how the VM of an account was made."""
        return f"{FOLDER}\\distros\\{account}.json"

    def linked(self, account: str) -> bool:
        """Tell whether the running VM has a network at all."""
        return bool(self.vm_mode(account) != "none")

    def _vm_record(self, account: str) -> dict[str, Any]:
        content = self.host.files.read(self.vm_record(account))
        return {} if content is None else dict(json.loads(content))

    def vm_config(self, account: str) -> Json:
        """The hash of what its VM was made with, as far as the scripts can tell."""
        if not self.vm_is_current(account):
            found: Json = self._vm_record(account).get("config")
            return found
        return self.digest(account)

    def vm_is_current(self, account: str) -> bool:
        """Tell whether the VM runs, and was made with the present .wslconfig."""
        session, now = self.session(account), self.config(account)
        if not session.running or session.vm is None:
            return False
        return now is None or (isinstance(now, str) and session.vm.config == now)

    def digest(self, account: str) -> Json:
        """The hash of what the account's .wslconfig says now, or why that cannot be read."""
        now = self.config(account)
        return sha256(now.encode()).hexdigest() if isinstance(now, str) else now

    def note_vm(self, account: str, mode: Json) -> None:
        """Record the digest of the present .wslconfig and the networking mode of the VM."""
        self.host.files.make_folders(FOLDER, f"{FOLDER}\\distros")
        record = json.dumps({"config": self.digest(account), "mode": mode})
        self.host.files.write(self.vm_record(account), record.encode())

    def conf(self, account: str, distro: Distro) -> Mapping[str, Json]:
        """The state of resource WslConf: as it is, or was left."""
        return distro.put if distro.running else self._written(account, distro.name)["conf"] or NO_CONF

    def access(self, account: str, distro: Distro) -> Mapping[str, Json]:
        """The state of resource WslAccess: as it is, or was left."""
        if distro.running:
            state = _access(distro)
            active = distro.listens and self.linked(account)
            return {**state, "address": self.address(account), "active": active} if state else NO_ACCESS
        written = self._written(account, distro.name)["access"] or {}
        return {**NO_ACCESS, **written, "address": None, "active": False}

    def _of_ours(
        self, state: Callable[[str, Distro], Mapping[str, Json]], listed: Callable[[Mapping[str, Json]], bool]
    ) -> Iterator[Record]:
        for account in self.accounts():
            for distro in self.session(account).distros.values():
                if self.ours(account, distro.name) and listed(found := state(account, distro)):
                    yield Record(dict(found), {"account": account, "distro": distro.name})

    # ---- as resources that are set

    def changes(self) -> Mapping[str, Change]:
        return {
            "WslDistro": self.set_distro,
            "WslVm": self.set_vm,
            "WslConf": self.set_conf,
            "WslAccess": self.set_access,
        }

    def _find(self, account: str, name: str) -> Distro | None:
        """Raises CmdletError, NotYet where the account can run nothing."""
        self.host.accounts.ready_to_run(account)
        return self.session(account).find(name)

    def _our_distro(self, account: str, name: str) -> tuple[Distro, dict[str, Any]]:
        """Return a distro of ours with its record. Raises CmdletError, NotYet."""
        distro, record = self._find(account, name), self.ours(account, name)
        if distro is None or record is None:
            raise not_owned_error(f"winhost did not make the distro {name} of {account}, and leaves it alone.")
        return distro, record

    def set_distro(self, asked: SetCall) -> None:
        """Import, start, stop or remove a distro."""
        desired, runs = asked.desired, asked.desired.get("running")
        account, name = asked.key["account"], asked.key["distro"]
        if desired.get("installed") is False:
            self._remove(account, name, keep=DATA not in asked.accept)
            return
        if desired.get("installed") and self.ours(account, name) is None:
            self._add(account, name, str(desired.get("image")))
        if runs is not None:
            distro, _ = self._our_distro(account, name)
            if not runs:
                self._end(account, distro)
                return
            self._end_idle(account)
            self._resume(account, distro)
            self.host.clock.sleep(_KEEP_SECONDS)
            refuse(not distro.running, "NotHeld")

    def _add(self, account: str, name: str, image: str) -> None:
        files, folder = self.host.files, folder_of(account, name)
        there, staged = self._find(account, name), self.host.software.staged_path(image)
        if there is not None or files.is_full(folder):
            raise not_owned_error(f"There is a distro {name} that winhost did not make, or something in {folder}.")
        with self.as_script():
            files.make_folders(FOLDER, f"{FOLDER}\\distros", f"{FOLDER}\\distros\\{account}", folder)
            try:
                self._import(account, name, folder, staged)
            except WslFailure:
                self._end_idle(account)
                raise
        self.write_record(account, name, record_of(image))

    def _end_idle(self, account: str) -> None:
        """End the VM where no distro runs; without an idle timeout it would stay."""
        if not self.session(account).running:
            self._end_all(account)

    def _remove(self, account: str, name: str, *, keep: bool) -> None:
        distro, _ = self._our_distro(account, name)
        with self.as_script():
            if keep:
                exports = f"{FOLDER}\\exports\\{account}"
                paths = (f"{exports}\\{name}-{number}.tar" for number in count(1))
                self._export(account, distro, next(path for path in paths if not self.host.files.is_full(path)))
            self._unregister(account, distro)
        self.host.files.remove_folder(folder_of(account, name))
        self.host.files.remove(f"{folder_of(account, name)}.json")
        self._end_idle(account)

    def _resume(self, account: str, distro: Distro) -> None:
        task = self._keeper(account, distro.name)
        if task is not None and task.enabled:
            self.host.accounts.start_scheduled_task(task.name)
        with self.inside(account, distro):
            pass

    def set_vm(self, asked: SetCall) -> None:
        """End the VM of an account, and start its distros again, with the present configuration."""
        account = asked.key["account"]
        self.host.accounts.ready_to_run(account)
        running = self.session(account).running
        if running and STOP not in asked.accept:
            names = ", ".join(each.name for each in running)
            raise refusal("EndsDistros", names=names)
        mode = asked.desired.get("mode", self.vm_mode(account))
        self._end_all(account)
        self.note_vm(account, mode)
        for distro in running:
            self._resume(account, distro)

    def _installed(self, account: str, name: str) -> tuple[Distro, dict[str, Any]]:
        if self._find(account, name) is None:
            raise MissingDependency("WslDistro")
        return self._our_distro(account, name)

    def set_conf(self, asked: SetCall) -> None:
        """Write the files that a distro starts with, and start it anew."""
        account, name = asked.key["account"], asked.key["distro"]
        distro, record = self._installed(account, name)
        ran, conf = distro.running, {**self.conf(account, distro), **asked.desired}
        with self.inside(account, distro):
            distro.put |= {each: text if text is None else str(text) for each, text in asked.desired.items()}
        self.write_record(account, distro.name, {**record, "conf": {each: conf[each] for each in NO_CONF}})
        self._end(account, distro)
        if ran:
            self._resume(account, distro)

    def set_access(self, asked: SetCall) -> None:
        """Set up sshd in a distro, or take it away."""
        account, name = asked.key["account"], asked.key["distro"]
        distro, record = self._installed(account, name)
        goal = {**self.access(account, distro), **asked.desired}
        with self.inside(account, distro):
            if why := self.not_let_in(distro, goal):
                raise refusal("InDistroFailed", code=why[0], why=why[1])
            self.let_in(distro, goal)
        access = None if goal["port"] is None else {**goal, "user": "root", "host_key": distro.host_key}
        self.write_record(account, distro.name, {**record, "access": access})

    def on_restart(self) -> bool:
        """End every VM. The tasks that start with Windows start distros again."""
        self.stop_everything()
        return False


def folder_of(account: str, distro: str) -> str:
    """The folder of a distro's disk; its record lies beside."""
    return f"{FOLDER}\\distros\\{account}\\{distro}"


def record_of(image: str) -> dict[str, Json]:
    """The record of a distro that was just made."""
    return {"image": image, "complete": True, "conf": None, "access": None}


def _access(distro: Distro) -> Mapping[str, Json] | None:
    """The state of resource WslAccess, where there is a way in."""
    if distro.port is None:
        return None
    return {
        "user": "root",
        "port": distro.port,
        "listen": distro.listen,
        "allowed": distro.allowed,
        "host_key": distro.host_key,
        "authorized": list(distro.keys),
        "active": distro.listens,
    }
