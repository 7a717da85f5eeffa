"""wsl.exe of a simulated Windows, and each account's distros and utility VM.

Sources: microsoft/WSL (WslClient.cpp, LxssUserSession.cpp, WslCoreConfig.cpp, BridgedNetworking.cpp), its
documentation, and public reports of WSL in session 0.
"""

import base64
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from hashlib import sha256
from typing import Any

from winhost.core.answers import Json
from winhost.core.dataclass import dataclass
from winhost.lab.physics.lab_section import ImagePhysics
from winhost.lab.physics.local_accounts import Task
from winhost.lab.physics.parts import Host, Part
from winhost.lab.physics.ssh_keys import public_line
from winhost.lab.physics.windows_errors import agent_error
from winhost.model.units import MiB
from winhost.resources.windows.distros import NO_CONF
from winhost.resources.windows.windows_scripts import distro_script

_IMPORTED, _IMPORT_SECONDS = 1400 * MiB, 60.0  # of an Ubuntu image; assumptions of the simulator


@dataclass
class Distro:
    """A distro. image: the hash of its image, None if unknown; conf_files: files that winhost wrote.

    added_bytes: returns how many bytes were added since the import.
    """

    name: str
    folder: str
    image: str | None = None
    running: bool = False
    systemd: bool = False
    conf_files: dict[str, str | None] = field(default_factory=lambda: dict.fromkeys(NO_CONF))
    script_input: str = ""
    sshd: bool = False
    port: int | None = None
    listen: str | None = None
    allowed: list[str] | None = None
    keys: list[str] = field(default_factory=list)
    enabled: bool = False
    starts: int = 0
    host_key_seed: bytes | None = None
    added_bytes: Callable[[], int] = int

    def length(self) -> int:
        """Return the length of its disk."""
        return _IMPORTED + self.added_bytes()

    @property
    def seed(self) -> bytes:
        """The seed of its host key, by default made from its name, so that answers are comparable."""
        return self.host_key_seed or sha256(self.name.encode()).digest()

    @property
    def host_key(self) -> str:
        return public_line(self.seed)

    @property
    def is_listening(self) -> bool:
        return self.running and self.systemd and self.enabled


@dataclass
class UtilityVm:
    """The utility VM of an account. config: the text of .wslconfig at its start; mode: its networking mode; switch: the
    GUID of the switch to which it is bridged.
    """

    config: str | None
    mode: str
    switch: str | None = None

    @property
    def keeps_distros(self) -> bool:
        """True without an idle timeout: a distro then keeps running without programs."""
        return _read_number(self.config, "general", "instanceIdleTimeout", 15000) < 0

    @property
    def keeps_itself(self) -> bool:
        """True if the VM keeps running without a distro."""
        return _read_number(self.config, "wsl2", "vmIdleTimeout", 60000) < 0


@dataclass
class WslSession:
    """The WSL of an account."""

    distros: dict[str, Distro] = field(default_factory=dict)
    vm: UtilityVm | None = None

    def find(self, name: str) -> Distro | None:
        return self.distros.get(name.casefold())

    @property
    def running(self) -> list[Distro]:
        return [distro for distro in self.distros.values() if distro.running]


def read_setting(config: str | None, section: str, key: str, default: str) -> str:
    """Return a value of .wslconfig or wsl.conf, or the default. As in WSL, the first line wins, and case is ignored."""
    current_section = ""
    for line in (config or "").splitlines():
        text = line.partition("#")[0].strip()
        if found := re.fullmatch(r"\[(\w+)\]", text):
            current_section = found[1].casefold()
        name, equals, value = (part.strip() for part in text.partition("="))
        if equals and (current_section, name.casefold()) == (section, key.casefold()):
            return value.strip('"')
    return default


def _read_number(config: str | None, section: str, key: str, default: int) -> int:
    text = read_setting(config, section, key, "")
    return int(text) if re.fullmatch("-?[0-9]+", text) else default


BOOTED = 1_767_225_600  # when the VM's kernel started, in seconds since 1970, as in /proc/stat

_FAILED = -1  # the exit code of wsl.exe for all errors
_ADDRESS = "192.168.1.77"  # the address that DHCP assigns to a bridged VM
ProcessResult = tuple[int, str, str]


class WslFailure(Exception):
    """wsl.exe fails with this error."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code)
        self.code, self.message = code, message


class WslExe(Part):
    """wsl.exe and the sessions of its service, by account."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.sessions: dict[str, WslSession] = {}

    # ---- reads

    def session(self, account: str) -> WslSession:
        return self.sessions.setdefault(account.casefold(), WslSession())

    def _physics(self, distro: Distro) -> ImagePhysics:
        physics: ImagePhysics = self.host.lab.wsl.images.get(distro.image or "", ImagePhysics())
        return physics

    def config(self, account: str) -> Json:
        """Return the text of the account's .wslconfig, None if there is none, or the error of reading it."""
        account_found = self.host.accounts.find(account)
        if account_found is None or account_found.profile is None:
            return None
        return self.host.accounts.config_state(account_found)["text"]

    def config_text(self, account: str) -> str | None:
        """Return the text of the account's .wslconfig, or None if WSL cannot read it."""
        text = self.config(account)
        return text if isinstance(text, str) else None

    def address(self, account: str) -> str | None:
        """Return the address of a bridged VM in the network, or None."""
        vm = self.session(account).vm
        return _ADDRESS if vm is not None and vm.mode == "bridged" else None

    # ---- shutdown

    def stop_everything(self) -> None:
        """End the VMs of all accounts, as an upgrade or removal of WSL and a restart of Windows do."""
        for account in list(self.sessions):
            self._end_all(account)

    # ---- wsl.exe

    def wsl(self, account: str, arguments: Sequence[str], content: bytes) -> ProcessResult:
        """Run wsl.exe as the task for jobs does, with UTF-8 output. Output of Linux programs stays unchanged."""
        code, *texts = self._run_wsl(account, list(arguments), content.decode())
        if self.host.lab.wsl.always_utf16 and "-e" not in arguments:
            texts = [text.encode("utf-16-le").decode(errors="replace") for text in texts]
        return code, texts[0], texts[1]

    def keep_alive(self, account: str, distro: str | None) -> int | None:
        """Run the task that keeps a distro alive; return None while it runs, or the exit code of wsl.exe."""
        found = self.session(account).find(distro or "")
        if found is None or self.host.software.wsl is None:
            return _FAILED
        try:
            self._start_distro(account, found)
        except WslFailure:
            return _FAILED
        return None

    def _run_wsl(self, account: str, arguments: list[str], content: str) -> ProcessResult:
        try:
            match arguments:
                case ["-d", name, "-u", "root", "--cd", "/", "-e", *command]:
                    distro = self._find_distro(account, name)
                    self._start_distro(account, distro)
                    ended = self._run_inside(account, distro, command, content)
                    self._apply_idle_timeouts(account)
                    return ended
                case ["--list", "--quiet", "--all"]:
                    return 0, _lines(distro.name for distro in self.session(account).distros.values()), ""
                case ["--list", "--quiet", "--running"]:
                    return 0, _lines(distro.name for distro in self.session(account).running), ""
            self._run_management(account, arguments)
        except WslFailure as failure:
            return _FAILED, f"{failure.message}\nError code: Wsl/{failure.code}\n", ""
        return 0, "The operation completed successfully.\n", ""

    def _run_management(self, account: str, arguments: list[str]) -> None:
        match arguments:
            case ["--import", name, folder, file, "--version", "2"]:
                self._import_distro(account, name, folder, file)
            case ["--export", name, file]:
                self._export_distro(account, self._find_distro(account, name), file)
            case ["--unregister", name]:
                self._unregister_distro(account, self._find_distro(account, name))
            case ["--terminate", name]:
                self._end_distro(account, self._find_distro(account, name))
            case ["--shutdown"]:
                self._end_all(account)
            case _:
                raise WslFailure("E_INVALIDARG", f"Invalid command line argument: {' '.join(arguments)}")

    def _find_distro(self, account: str, name: str) -> Distro:
        found = self.session(account).find(name)
        if found is None:
            raise WslFailure("Service/WSL_E_DISTRO_NOT_FOUND", "There is no distribution with the supplied name.")
        return found

    # ---- import, export, unregister

    def _import_distro(self, account: str, name: str, folder: str, file: str) -> None:
        session, files = self.session(account), self.host.files
        if files.read(file) is None:
            raise WslFailure("ERROR_FILE_NOT_FOUND", "The system cannot find the file specified.")
        if session.find(name):
            message = "A distribution with the supplied name already exists. Use --name to choose a different name."
            raise WslFailure("Service/RegisterDistro/ERROR_ALREADY_EXISTS", message)
        distro = Distro(name, folder, self.host.software.read_hash(file))
        physics = self._physics(distro)
        self._make_vm(account, "Service/RegisterDistro")
        self.host.clock.sleep(_IMPORT_SECONDS)
        if physics.broken:
            self._apply_idle_timeouts(account)
            raise WslFailure("Service/RegisterDistro/WSL_E_IMPORT_FAILED", "Importing the distribution failed.")
        distro.sshd = physics.sshd
        session.distros[name.casefold()] = distro
        files.write(f"{folder}\\ext4.vhdx", b"")
        files.set_length(f"{folder}\\ext4.vhdx", distro.length)
        self._apply_idle_timeouts(account)

    def _export_distro(self, account: str, distro: Distro, file: str) -> None:
        self._end_distro(account, distro)
        if self.host.lab.wsl.disk_full:
            raise WslFailure("Service/ExportDistro/ERROR_DISK_FULL", "There is not enough space on the disk.")
        self.host.files.write(file, b"")

    def _unregister_distro(self, account: str, distro: Distro) -> None:
        self._end_distro(account, distro)
        del self.session(account).distros[distro.name.casefold()]
        self.host.files.remove(f"{distro.folder}\\ext4.vhdx")

    # ---- start and end

    def _start_distro(self, account: str, distro: Distro) -> None:
        if distro.running:
            return
        self._make_vm(account, "Service/CreateInstance")
        distro.running = True
        distro.starts += 1
        conf = distro.conf_files["conf"]
        is_requested = read_setting(conf, "boot", "systemd", "false") in ("true", "1")
        distro.systemd = self._physics(distro).systemd if conf is None else is_requested

    def _make_vm(self, account: str, operation: str) -> None:
        session, lab = self.session(account), self.host.lab.wsl
        if session.vm is not None:
            return
        if not self.host.runs_wsl:
            message = "WSL2 is not supported with your current machine configuration."
            raise WslFailure(f"{operation}/CreateVm/HCS/HCS_E_HYPERV_NOT_INSTALLED", message)
        if lab.no_service_logon:
            message = "Logon failure: the user has not been granted the requested logon type at this computer."
            raise WslFailure(f"{operation}/CreateVm/HCS/0x80070569", message)
        config = self.config_text(account)
        session.vm = UtilityVm(config, self._networking_mode(config), self._find_switch(config))

    def _find_switch(self, config: str | None) -> str | None:
        name = read_setting(config, "wsl2", "vmSwitch", "")
        return next((each.guid for each in self.host.network.switches if each.state["name"] == name), None)

    def _has_link(self, vm: UtilityVm) -> bool:
        """Tell whether the VM has a network. A bridged VM has none after its switch was removed or made anew."""
        return vm.mode != "bridged" or vm.switch in [each.guid for each in self.host.network.switches]

    def _networking_mode(self, config: str | None) -> str:
        """Return the networking mode that the VM gets, which may differ from the configured one."""
        configured = read_setting(config, "wsl2", "networkingMode", "").lower() or "nat"
        if configured == "bridged" and self._find_switch(config) is None:
            return "none"
        return "nat" if configured == "mirrored" and self.host.lab.wsl.no_mirrored else configured

    def _end_distro(self, account: str, distro: Distro) -> None:
        distro.running = False
        self._end_keep_alive(account, distro.name)
        self._apply_idle_timeouts(account)

    def _end_all(self, account: str) -> None:
        session = self.session(account)
        for distro in session.running:
            self._end_keep_alive(account, distro.name)
        session.vm = None
        for distro in session.distros.values():
            distro.running = False

    def _end_keep_alive(self, account: str, distro: str) -> None:
        task = self._keep_alive_task(account, distro)
        if task is not None:
            task.running, task.result = False, 1

    def _keep_alive_task(self, account: str, distro: str) -> Task | None:
        """Return the task that keeps this distro running, or None."""
        task = self.host.accounts.task("keep-alive", account)
        return task if task and (task.distro or "").casefold() == distro.casefold() else None

    def _apply_idle_timeouts(self, account: str) -> None:
        """End idle distros, and the VM if no distro runs, as if the idle timeouts had passed."""
        session = self.session(account)
        for distro in session.running:
            task = self._keep_alive_task(account, distro.name)
            is_held = (session.vm is not None and session.vm.keeps_distros) or (task is not None and task.running)
            distro.running = is_held
        if session.vm is not None and not session.running and not session.vm.keeps_itself:
            session.vm = None

    # ---- inside a distro

    @contextmanager
    def script_errors(self) -> Iterator[None]:
        """Turn a failure of wsl.exe into the error of the script that ran it. Raises CmdletError."""
        try:
            yield
        except WslFailure as failure:
            message = f"wsl.exe ended with {_FAILED}: {failure.message}\nError code: Wsl/{failure.code}"
            raise agent_error(f"WslFailed,Wsl/{failure.code}", "InvalidResult", message) from None

    @contextmanager
    def inside(self, account: str, distro: Distro) -> Iterator[None]:
        """Start a distro to run something in it. Raises CmdletError."""
        with self.script_errors():
            self._start_distro(account, distro)
        try:
            yield
        finally:
            self._apply_idle_timeouts(account)

    def _run_inside(self, account: str, distro: Distro, command: list[str], content: str) -> ProcessResult:
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
                distro.script_input = content
                return 0, content, ""
            case ["/bin/sh", "-s", verb] if content == distro_script():
                return self._run_script(account, distro, verb)
            case _:
                # The exit code of the process in Linux: FATAL_ERROR in src/linux/init.
                return 1, "", f"<3>WSL (9 - Relay) ERROR: execvpe({command[0]}) failed: No such file or directory\n"

    def _run_script(self, account: str, distro: Distro, verb: str) -> ProcessResult:
        settings = [line.partition(" ")[::2] for line in distro.script_input.splitlines()]
        match verb:
            case "look":
                vm = self.session(account).vm
                active = distro.is_listening and vm is not None and self._has_link(vm)
                return 0, _lines(_render_state(distro, self.address(account), active=active)), ""
            case "conf":
                for name, encoded in settings:
                    distro.conf_files[name] = None if encoded == "-" else base64.b64decode(encoded[1:]).decode()
                return 0, "", ""
        goal: dict[str, Any] = {"port": None, "listen": None}
        if verb == "open":
            options = dict(settings)
            goal |= {
                "port": int(options["port"]),
                "listen": options["listen"],
                "active": options.get("active") == "yes",
            }
            goal["allowed"] = [value for name, value in settings if name == "from"] or None
            goal["authorized"] = [value for name, value in settings if name == "key"]
        if refused := self.access_refusal(distro, goal):
            return refused[0], "", f"{refused[1]}\n"
        self.apply_access(distro, goal)
        return 0, "", ""

    def access_refusal(self, distro: Distro, goal: Mapping[str, Any]) -> tuple[int, str] | None:
        """Return the exit code and message of the script in a distro that sets up access, or None if it succeeds."""
        if not distro.systemd:
            return 3, "winhost: systemd does not run here"
        if goal["port"] is not None and not distro.sshd and not self._physics(distro).packages:
            return 100, "E: Unable to locate package openssh-server"
        return None

    def apply_access(self, distro: Distro, goal: Mapping[str, Any]) -> None:
        """Set up sshd as `goal` says, or remove it if that has no port."""
        distro.sshd = distro.sshd or goal["port"] is not None
        distro.port, distro.listen, distro.allowed = goal["port"], goal["listen"], goal.get("allowed")
        distro.keys, distro.enabled = list(goal.get("authorized", ())), bool(goal.get("active"))


def _render_state(distro: Distro, address: str | None, *, active: bool) -> Iterator[str]:
    """Yield the output lines of the script's verb `look`."""
    for name, text in distro.conf_files.items():
        if text is not None:
            yield f"{name} :{base64.b64encode(text.encode()).decode()}"
    if distro.port is not None:
        yield f"listen {distro.listen}"
        yield f"port {distro.port}"
    yield from (f"from {network}" for network in distro.allowed or ())
    if distro.sshd:
        yield f"host {distro.host_key}"
    for line in distro.keys:
        yield f"key {line}"
    if active:
        yield "active yes"
    if address is not None:
        yield f"address {address}"
    yield "end ."


def _lines(texts: Any) -> str:
    return "".join(f"{text}\n" for text in texts)
