"""WSL of a simulated Windows: distros and VMs of accounts, and wsl.exe as it answers them.

Sources: microsoft/WSL (WslClient.cpp, LxssUserSession.cpp, WslCoreConfig.cpp, BridgedNetworking.cpp), its
documentation, and public reports of WSL in session 0.
"""

import base64
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any, cast

from winhost.lab.accounts import Task, config_path
from winhost.lab.errors import CmdletError, not_administrator
from winhost.lab.keys import public_line
from winhost.lab.section import ImagePhysics
from winhost.model.facts import Json, Record
from winhost.resources.windows.distros import NO_ACCESS, NO_CONF
from winhost.resources.windows.scripts import inside_script

if TYPE_CHECKING:
    from winhost.lab.machine import Machine

NOUNS = ("WslDistro", "WslVm", "WslConf", "WslAccess")
FOLDER = "C:\\ProgramData\\winhost"
BOOTED = 1_767_225_600  # when its kernel started, in the words of /proc/stat; files are older or younger than that

_FAILED = -1  # of wsl.exe, whatever went wrong
_REFUSED = 3  # of what runs inside
_ADDRESS = "192.168.1.77"  # which DHCP gives to a bridged one
_WINDOWS_11 = 22000
_BRIDGE_GONE, _BRIDGE_BACK = (2, 5, 4), (2, 5, 6)
_NO_PLATFORM = "HCS_E_HYPERV_NOT_INSTALLED"
Ended = tuple[int, str, str]


@dataclass
class Distro:
    """image: the hash of what it was made of, None where that is not known. put: files that winhost wrote."""

    name: str
    folder: str
    image: str | None = None
    running: bool = False
    systemd: bool = False
    put: dict[str, str | None] = field(default_factory=lambda: dict.fromkeys(NO_CONF))
    wanted: str = ""
    sshd: bool = False
    port: int | None = None
    listen: str | None = None
    allowed: list[str] | None = None
    keys: list[str] = field(default_factory=list)
    enabled: bool = False
    starts: int = 0

    @property
    def seed(self) -> bytes:
        """Of its host key: the same each time, so that answers compare."""
        return sha256(self.name.encode()).digest()

    @property
    def host_key(self) -> str:
        return public_line(self.seed)

    @property
    def listens(self) -> bool:
        return self.running and self.systemd and self.enabled


@dataclass
class Vm:
    """config: the text of .wslconfig that it was made with; mode: of its network; switch: that it is bridged to."""

    config: str | None
    mode: str
    switch: str | None = None

    @property
    def holds(self) -> bool:
        """Without an idle timeout a distro goes on without anybody."""
        return _number(self.config, "general", "instanceIdleTimeout", 15000) < 0

    @property
    def stays(self) -> bool:
        """It goes on without a distro."""
        return _number(self.config, "wsl2", "vmIdleTimeout", 60000) < 0


@dataclass
class Session:
    """What an account has of WSL. interactive: whoever came first was logged on, and takes the VM along in the end."""

    distros: dict[str, Distro] = field(default_factory=dict)
    vm: Vm | None = None
    interactive: bool = False

    def find(self, name: str) -> Distro | None:
        return self.distros.get(name.casefold())

    @property
    def running(self) -> list[Distro]:
        return [distro for distro in self.distros.values() if distro.running]


class _Failure(Exception):
    """wsl.exe tells it and ends."""

    def __init__(self, code: str, said: str) -> None:
        super().__init__(code)
        self.code, self.said = code, said


class Distros:
    """A part of the machine."""

    def __init__(self, machine: "Machine", given: Mapping[str, Sequence[Record]]) -> None:
        self._machine = machine
        self.sessions: dict[str, Session] = {}
        for record in given.get("WslDistro", ()):
            self._take_over(record)
        for record in given.get("WslVm", ()):
            self._take_over_vm(record)
        for record in given.get("WslConf", ()):
            self._take_over_conf(record)
        for record in given.get("WslAccess", ()):
            self._take_over_access(record)
        for noun in NOUNS:
            machine.refusals[noun] = self._refusal
            machine.awaits[noun] = self._awaited

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
        self._machine.files.write(f"{distro.folder}\\ext4.vhdx", b"")
        self.session(account).distros[name.casefold()] = distro

    def _take_over_vm(self, record: Record) -> None:
        session = self.session(record.key["account"])
        if record.state["running"] is True:
            now = self.config_text(record.key["account"])
            # Of a VM that was made with another file nobody knows what that said.
            config = now if record.state["config"] is not None else f"# not {now}\n"
            session.vm = Vm(config, str(record.state["mode"]), self._switch_named(config))

    def _take_over_conf(self, record: Record) -> None:
        account, name = record.key["account"], record.key["distro"]
        distro = self.session(account).distros[name.casefold()]
        distro.put = {each: record.state[each] for each in NO_CONF}
        self.write_record(account, name, self._told(account, name) | {"conf": dict(distro.put)})

    def _take_over_access(self, record: Record) -> None:
        account, name, state = record.key["account"], record.key["distro"], record.state
        distro = self.session(account).distros[name.casefold()]
        distro.sshd = True
        distro.port, distro.listen, distro.allowed = state["port"], state["listen"], state["allowed"]
        distro.keys, distro.enabled = list(state["authorized"]), bool(state["active"]) or not distro.running
        self.write_record(account, name, self._told(account, name) | {"access": _access(distro)})

    # ---- looking

    def session(self, account: str) -> Session:
        interactive = account.casefold() in map(str.casefold, self._machine.lab.wsl.interactive)
        return self.sessions.setdefault(account.casefold(), Session(interactive=interactive))

    def _physics(self, distro: Distro) -> ImagePhysics:
        return self._machine.lab.wsl.images.get(distro.image or "", ImagePhysics())

    def accounts(self) -> list[str]:
        """Those that can run jobs."""
        tasks = self._machine.accounts.tasks.values()
        return [task.account for task in tasks if task.distro is None and task.enabled]

    def _refusal(self) -> CmdletError | None:
        if not self._machine.lab.administrator:
            return not_administrator()
        if self._machine.software.wsl is None:
            return None
        for account in self.accounts():
            try:
                # As the scripts do: to look takes a logon.
                self._machine.accounts.first_job(account)
            except CmdletError as error:
                return error
        return None

    def _awaited(self) -> str | None:
        if self._machine.software.wsl is None:
            return "Wsl"
        return None if self.accounts() else "AccountTasks"

    def record(self, account: str, distro: str) -> dict[str, Any] | None:
        """What winhost wrote down of a distro that it made, or is making."""
        content = self._machine.files.read(f"{folder_of(account, distro)}.json")
        return None if content is None else dict(json.loads(content))

    def write_record(self, account: str, distro: str, record: Mapping[str, Json]) -> None:
        self._machine.files.write(f"{folder_of(account, distro)}.json", json.dumps(record).encode())

    def ours(self, account: str, distro: str) -> dict[str, Any] | None:
        """Its record, if winhost made it."""
        record = self.record(account, distro)
        disk = self._machine.files.read(f"{folder_of(account, distro)}\\ext4.vhdx")
        return record if record and record["complete"] and disk is not None else None

    def _told(self, account: str, distro: str) -> dict[str, Any]:
        return self.record(account, distro) or {}

    def config(self, account: str) -> Json:
        """What the account's .wslconfig says now, or why that cannot be read."""
        found = self._machine.accounts.find(account)
        if found is None or found.profile is None:
            return None
        return self._machine.accounts.config_of(found)["text"]

    def config_error(self, account: str) -> CmdletError:
        """What whoever reads a .wslconfig gets that cannot be read."""
        fault = cast(Mapping[str, Any], self.config(account))["unknown"]
        return CmdletError("", fault["category"], fault["code"], tuple(fault["hresults"]), fault["message"])

    def config_text(self, account: str) -> str | None:
        """The same as WSL reads it."""
        text = self.config(account)
        return text if isinstance(text, str) else None

    def config_time(self, path: str) -> int | None:
        """When the .wslconfig at this path was written, beside the time at which the VM's kernel started."""
        for account in self._machine.accounts.accounts.values():
            if account.profile is None or config_path(account.profile).casefold() != path.casefold():
                continue
            if self._machine.files.read(path) is None:
                return None
            vm = self.session(account.name).vm
            current = vm is None or vm.config == self.config_text(account.name)
            return BOOTED - 60 if current else BOOTED + 60
        return None

    # ---- as nouns

    def records(self) -> Mapping[str, tuple[Record, ...]]:
        """Only of accounts that can run jobs: nobody else's distros are to be seen."""
        if self._machine.software.wsl is None:
            return dict.fromkeys(NOUNS, ())
        return {
            "WslDistro": tuple(self._distros()),
            "WslVm": tuple(Record(self._vm_state(account), {"account": account}) for account in self.accounts()),
            "WslConf": tuple(self._of_ours(self.conf, lambda state: True)),
            "WslAccess": tuple(self._of_ours(self.access, lambda state: state["port"] is not None)),
        }

    def _distros(self) -> Iterator[Record]:
        for account in self.accounts():
            distros = self.session(account).distros.values()
            records = {distro.name: self.ours(account, distro.name) for distro in distros}
            others = sum(record is None for record in records.values())
            for distro in distros:
                record = records[distro.name]
                state: dict[str, Json] = {"installed": True, "running": distro.running, "image": None, "folder": None}
                if record is not None:
                    state |= {"image": record["image"], "folder": folder_of(account, distro.name)}
                yield Record({**state, "others": others}, {"account": account, "distro": distro.name})

    def _vm_state(self, account: str) -> dict[str, Json]:
        session = self.session(account)
        running = bool(session.running) and session.vm is not None
        return {"running": running, "config": self.vm_config(account), "mode": self.vm_mode(account)}

    def vm_mode(self, account: str) -> Json:
        """Of its network, as the scripts tell."""
        session = self.session(account)
        if not session.running or session.vm is None:
            return self._vm_record(account).get("mode")
        return session.vm.mode if self._has_link(session.vm) else "none"

    def linked(self, account: str) -> bool:
        """Whether its running VM has a network at all."""
        return bool(self.vm_mode(account) != "none")

    def _has_link(self, vm: Vm) -> bool:
        """A bridge is to one switch, and not to another one of its name."""
        return vm.mode != "bridged" or vm.switch in [each.guid for each in self._machine.network.switches]

    def _vm_record(self, account: str) -> dict[str, Any]:
        content = self._machine.files.read(vm_record(account))
        return {} if content is None else dict(json.loads(content))

    def vm_config(self, account: str) -> Json:
        """The hash of what its VM was made with, as far as the scripts can tell."""
        if not self.vm_is_current(account):
            found: Json = self._vm_record(account).get("config")
            return found
        return self.digest(account)

    def vm_is_current(self, account: str) -> bool:
        """It runs, and its file was not written since it was made."""
        session, now = self.session(account), self.config(account)
        if not session.running or session.vm is None:
            return False
        return now is None or (isinstance(now, str) and session.vm.config == now)

    def digest(self, account: str) -> Json:
        """The hash of what the account's .wslconfig says now, or why that cannot be read."""
        now = self.config(account)
        return sha256(now.encode()).hexdigest() if isinstance(now, str) else now

    def note_vm(self, account: str, mode: Json) -> None:
        """What it is, written down before the file is changed, or what it was ended for."""
        record = json.dumps({"config": self.digest(account), "mode": mode})
        self._machine.files.write(vm_record(account), record.encode())

    def conf(self, account: str, distro: Distro) -> Mapping[str, Json]:
        """The state of noun WslConf: as it is, or was left."""
        return distro.put if distro.running else self._told(account, distro.name)["conf"] or NO_CONF

    def access(self, account: str, distro: Distro) -> Mapping[str, Json]:
        """The state of noun WslAccess: as it is, or was left."""
        if distro.running:
            state = _access(distro)
            active = distro.listens and self.linked(account)
            return {**state, "address": self.address(account), "active": active} if state else NO_ACCESS
        told = self._told(account, distro.name)["access"] or {}
        return {**NO_ACCESS, **told, "address": None, "active": False}

    def address(self, account: str) -> str | None:
        """Its own in the network, which only a bridge gives it."""
        vm = self.session(account).vm
        return _ADDRESS if vm is not None and vm.mode == "bridged" else None

    def _of_ours(
        self, state: Callable[[str, Distro], Mapping[str, Json]], there: Callable[[Mapping[str, Json]], bool]
    ) -> Iterator[Record]:
        for account in self.accounts():
            for distro in self.session(account).distros.values():
                if self.ours(account, distro.name) and there(found := state(account, distro)):
                    yield Record(dict(found), {"account": account, "distro": distro.name})

    # ---- Windows starts and ends

    def restarted(self) -> bool:
        """Every VM is gone; what starts with Windows starts them again."""
        for session in self.sessions.values():
            self._end_vm(session)
            session.interactive = False
        return False

    def stop_everything(self) -> None:
        """WSL itself was upgraded or removed: every VM ends, whoever's it is."""
        for account in list(self.sessions):
            self._end_all(account)

    def log_off(self, account: str) -> None:
        """Somebody who was logged on as this account leaves; a VM that began with them goes along."""
        session = self.session(account)
        if session.interactive:
            self._end_all(account)
            session.interactive = False

    # ---- wsl.exe

    def run(self, account: str, arguments: Sequence[str], content: bytes, *, utf8: bool) -> tuple[int, bytes, bytes]:
        """What wsl.exe gives, as bytes: UTF-16 unless it is asked for UTF-8; what Linux says comes as it is."""
        code, output, errors = self._answer(account, list(arguments), content.decode())
        plain = utf8 and not self._machine.lab.wsl.always_utf16
        encoding = "utf-8" if plain or "-e" in arguments else "utf-16-le"
        return code, output.encode(encoding), errors.encode(encoding)

    def wsl(self, account: str, arguments: Sequence[str], content: bytes) -> Ended:
        """As the task for jobs runs it: asked for UTF-8, and read as that."""
        code, output, errors = self.run(account, arguments, content, utf8=True)
        return code, output.decode(errors="replace"), errors.decode(errors="replace")

    def hold(self, account: str, distro: str | None) -> int | None:
        """The task that keeps a distro alive: None where it goes on, otherwise the code with which it ended."""
        found = self.session(account).find(distro or "")
        if found is None or self._machine.software.wsl is None:
            return _FAILED
        try:
            self._start(account, found)
        except _Failure:
            return _FAILED
        return None

    def _answer(self, account: str, arguments: list[str], content: str) -> Ended:
        try:
            if account.casefold() in ("system", "s-1-5-18"):
                raise _Failure("WSL_E_LOCAL_SYSTEM_NOT_SUPPORTED", "Running WSL as local system is not supported.")
            match arguments:
                case ["-d", name, "-u", "root", "--cd", "/", "-e", *command]:
                    return self._inside(account, self._distro(account, name), command, content)
                case ["--list", "--quiet", "--all"]:
                    return 0, _lines(distro.name for distro in self.session(account).distros.values()), ""
                case ["--list", "--quiet", "--running"]:
                    return 0, _lines(distro.name for distro in self.session(account).running), ""
            self._manage(account, arguments)
        except _Failure as failure:
            return _FAILED, f"{failure.said}\nError code: Wsl/{failure.code}\n", ""
        return 0, "The operation completed successfully.\n", ""

    def _manage(self, account: str, arguments: list[str]) -> None:
        match arguments:
            case ["--import", name, folder, file, "--version", "2"]:
                self._import(account, name, folder, file)
            case ["--export", name, file]:
                self._export(account, self._distro(account, name), file)
            case ["--unregister", name]:
                self._unregister(account, self._distro(account, name))
            case ["--terminate", name]:
                self._end(account, self._distro(account, name))
            case ["--shutdown"]:
                self._end_all(account)
            case _:
                raise _Failure("E_INVALIDARG", f"Invalid command line argument: {' '.join(arguments)}")

    def _distro(self, account: str, name: str) -> Distro:
        found = self.session(account).find(name)
        if found is None:
            raise _Failure("Service/WSL_E_DISTRO_NOT_FOUND", "There is no distribution with the supplied name.")
        return found

    # ---- come and go

    def _import(self, account: str, name: str, folder: str, file: str) -> None:
        session, files = self.session(account), self._machine.files
        if files.read(file) is None:
            raise _Failure("ERROR_FILE_NOT_FOUND", "The system cannot find the file specified.")
        if session.find(name):
            said = "A distribution with the supplied name already exists. Use --name to choose a different name."
            raise _Failure("Service/RegisterDistro/ERROR_ALREADY_EXISTS", said)
        distro = Distro(name, folder, self._machine.software.read_hash(file))
        physics = self._physics(distro)
        self._make_vm(account, "Service/RegisterDistro")
        self._machine.clock.sleep(physics.import_seconds)
        if physics.broken:
            self._settle(account)
            raise _Failure("Service/RegisterDistro/WSL_E_IMPORT_FAILED", "Importing the distribution failed.")
        distro.sshd = physics.sshd
        session.distros[name.casefold()] = distro
        files.write(f"{folder}\\ext4.vhdx", b"")
        self._settle(account)

    def _export(self, account: str, distro: Distro, file: str) -> None:
        self._end(account, distro)
        if self._machine.lab.wsl.disk_full:
            raise _Failure("Service/ExportDistro/ERROR_DISK_FULL", "There is not enough space on the disk.")
        self._machine.files.write(file, b"")

    def _unregister(self, account: str, distro: Distro) -> None:
        self._end(account, distro)
        del self.session(account).distros[distro.name.casefold()]
        self._machine.files.remove(f"{distro.folder}\\ext4.vhdx")

    # ---- start and end

    def _start(self, account: str, distro: Distro) -> None:
        if distro.running:
            return
        self._make_vm(account, "Service/CreateInstance")
        distro.running = True
        distro.starts += 1
        conf = distro.put["conf"]
        told = _said(conf, "boot", "systemd", "false") in ("true", "1")
        distro.systemd = self._physics(distro).systemd if conf is None else told

    def _make_vm(self, account: str, where: str) -> None:
        session, lab = self.session(account), self._machine.lab.wsl
        if session.vm is not None:
            return
        if not self._machine.runs_wsl:
            said = "WSL2 is not supported with your current machine configuration."
            raise _Failure(f"{where}/CreateVm/HCS/{_NO_PLATFORM}", said)
        if lab.no_service_logon:
            said = "Logon failure: the user has not been granted the requested logon type at this computer."
            raise _Failure(f"{where}/CreateVm/HCS/0x80070569", said)
        config = self.config_text(account)
        session.vm = Vm(config, self._mode(config), self._switch_named(config))

    def _switch_named(self, config: str | None) -> str | None:
        name = _said(config, "wsl2", "vmSwitch", "")
        return next((each.guid for each in self._machine.network.switches if each.state["name"] == name), None)

    def _mode(self, config: str | None) -> str:
        """Of the network that the VM gets, which need not be the one that is wanted."""
        asked = _said(config, "wsl2", "networkingMode", "nat").lower()
        if asked == "bridged" and _BRIDGE_GONE <= self._version < _BRIDGE_BACK:
            return "nat"
        if asked == "bridged":
            there = [str(record.state["name"]) for record in self._machine.there("VmSwitch")]
            works = _said(config, "wsl2", "vmSwitch", "") in there and self._build >= _WINDOWS_11
            return "bridged" if works else "none"
        if asked == "mirrored" and self._machine.lab.wsl.no_mirrored:
            return "nat"
        return asked

    @property
    def _version(self) -> tuple[int, ...]:
        return tuple(int(part) for part in str(self._machine.software.wsl).split("."))

    @property
    def _build(self) -> int:
        return max((int(r.state["build"]) for r in self._machine.there("OperatingSystem")), default=0)

    def _end(self, account: str, distro: Distro) -> None:
        distro.running = False
        self._client_ends(account, distro.name)
        self._settle(account)

    def _end_all(self, account: str) -> None:
        session = self.session(account)
        for distro in session.running:
            self._client_ends(account, distro.name)
        self._end_vm(session)

    def _end_vm(self, session: Session) -> None:
        session.vm = None
        for distro in session.distros.values():
            distro.running = False

    def _client_ends(self, account: str, distro: str) -> None:
        task = self._keeper(account, distro)
        if task is not None:
            task.running, task.result = False, 1

    def _keeper(self, account: str, distro: str) -> Task | None:
        """The task that keeps this distro alive."""
        task = self._machine.accounts.task("keep-alive", account)
        return task if task and (task.distro or "").casefold() == distro.casefold() else None

    def _settle(self, account: str) -> None:
        """Idle timeouts have passed: what nobody holds has ended. Nothing of ours acts within them."""
        session = self.session(account)
        for distro in session.running:
            keeper = self._keeper(account, distro.name)
            held = (session.vm is not None and session.vm.holds) or (keeper is not None and keeper.running)
            distro.running = held
        if session.vm is not None and not session.running and not session.vm.stays:
            session.vm = None

    # ---- inside

    def _inside(self, account: str, distro: Distro, command: list[str], content: str) -> Ended:
        self._start(account, distro)
        ended = self._run(account, distro, command, content)
        self._settle(account)
        return ended

    def _run(self, account: str, distro: Distro, command: list[str], content: str) -> Ended:
        vm = self.session(account).vm
        match command:
            case ["/bin/true"]:
                return 0, "", ""
            case ["/bin/cat", "/proc/stat"]:
                return 0, f"cpu  1 0 1 1 0 0 0 0 0 0\nbtime {BOOTED}\nprocesses 1\n", ""
            case ["wslinfo", "--networking-mode"] if vm is not None:
                return 0, f"{vm.mode}\n", ""
            case ["/bin/cat", "/sys/class/net/eth0/carrier"] if vm is not None:
                return 0, f"{int(self._has_link(vm))}\n", ""
            case ["/usr/bin/tee", "/var/lib/winhost.wanted"]:
                distro.wanted = content
                return 0, content, ""
            case ["/bin/sh", "-s", verb] if content == inside_script():
                return self._script(account, distro, verb)
            case _:
                return _FAILED, f"execvpe({command[0]}) failed: No such file or directory\n", ""

    def _script(self, account: str, distro: Distro, verb: str) -> Ended:
        wanted = [line.partition(" ")[::2] for line in distro.wanted.splitlines()]
        match verb:
            case "look":
                active = distro.listens and self.linked(account)
                return 0, _lines(_seen(distro, self.address(account), active=active)), ""
            case "conf":
                for name, encoded in wanted:
                    distro.put[name] = None if encoded == "-" else base64.b64decode(encoded[1:]).decode()
                return 0, "", ""
            case _ if not distro.systemd:
                return _REFUSED, "", "winhost: systemd does not run here\n"
            case "close":
                distro.port = distro.listen = distro.allowed = None
                distro.keys, distro.enabled = [], False
                return 0, "", ""
        return self._open(distro, wanted)

    def _open(self, distro: Distro, wanted: Sequence[tuple[str, ...]]) -> Ended:
        if not distro.sshd and not self._physics(distro).packages:
            return 100, "", "E: Unable to locate package openssh-server\n"
        said: dict[str, str] = {name: value for name, value in wanted if name not in ("key", "from")}
        distro.sshd = True
        distro.port, distro.listen = int(said["port"]), said["listen"]
        distro.allowed = [value for name, value in wanted if name == "from"] or None
        distro.keys = [value for name, value in wanted if name == "key"]
        distro.enabled = said.get("active") == "yes"
        return 0, "", ""


def folder_of(account: str, distro: str) -> str:
    """Where winhost puts the disk of a distro; its record lies beside."""
    return f"{FOLDER}\\distros\\{account}\\{distro}"


def vm_record(account: str) -> str:
    """Where winhost writes down what the VM of an account was made with."""
    return f"{FOLDER}\\distros\\{account}.json"


def record_of(image: str, *, complete: bool = True) -> dict[str, Json]:
    """Of a distro that has just been made, or is being made."""
    return {"image": image, "complete": complete, "conf": None, "access": None}


def _access(distro: Distro) -> Mapping[str, Json] | None:
    """The state of noun WslAccess, where there is a way in."""
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


def _seen(distro: Distro, address: str | None, *, active: bool) -> Iterator[str]:
    """What the script tells of what is there."""
    for name, text in distro.put.items():
        if text is not None:
            yield f"{name} :{base64.b64encode(text.encode()).decode()}"
    if distro.port is not None:
        yield f"listen {distro.listen}"
        yield f"port {distro.port}"
    yield from (f"from {network}" for network in distro.allowed or ())
    if distro.sshd:
        yield f"host {distro.host_key}"
    yield from (f"key {line}" for line in distro.keys)
    if active:
        yield "active yes"
    if address is not None:
        yield f"address {address}"
    yield "end ."


def _lines(texts: Any) -> str:
    return "".join(f"{text}\n" for text in texts)


def _said(config: str | None, section: str, key: str, otherwise: str) -> str:
    """As WSL reads its files, but for what nobody writes into a lab: the first line counts, case does not matter."""
    here = ""
    for line in (config or "").splitlines():
        text = line.partition("#")[0].strip()
        if found := re.fullmatch(r"\[(\w+)\]", text):
            here = found[1].casefold()
        name, equals, value = (part.strip() for part in text.partition("="))
        if equals and (here, name.casefold()) == (section, key.casefold()):
            return value.strip('"')
    return otherwise


def _number(config: str | None, section: str, key: str, otherwise: int) -> int:
    said = _said(config, section, key, "")
    return int(said) if re.fullmatch("-?[0-9]+", said) else otherwise
