"""What the scripts of distros, their VM, their first files and the way into them do, on a simulated host."""

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any

from winhost.core.answers import Json, Key
from winhost.lab.contract.account_changes import check_account_name
from winhost.lab.physics.parts import SetCall
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.windows_errors import CmdletError, NotYet, bad_request, not_ours, own_error, wrong_place
from winhost.lab.physics.windows_files import FOLDER
from winhost.lab.physics.wsl_distros import folder_of, record_of
from winhost.lab.physics.wsl_session import Distro
from winhost.resources.values import is_device
from winhost.resources.windows.windows_scripts import inside_script
from winhost.resources.windows.wsl_conf import NO_CONF

DATA, STOP = "data", "vm-stop"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_KEEP_SECONDS = 20.0  # lab seconds that the script waits to see whether somebody holds a distro
_TEE, _SH = ("/usr/bin/tee", "/var/lib/winhost.wanted"), ("/bin/sh", "-s")


class _Wsl:
    """wsl.exe as one account."""

    def __init__(self, machine: Machine, account: str) -> None:
        self.machine, self.account = machine, account

    def run(self, *arguments: str, content: str = "") -> str:
        """Raises CmdletError, NotYet."""
        code, output, errors = self.machine.accounts.run_job(self.account, arguments, content.encode())
        output, errors = output.replace("\0", ""), errors.replace("\0", "")
        if code == 0:
            return output
        message = f"{output}\n{errors}".strip()
        if 0 < code < 256:
            raise own_error("InDistroFailed", "InvalidResult", f"In the distro: {message} ({code})")
        found = re.search(r"Wsl/[A-Za-z0-9_/]+", message)
        name = f"WslFailed,{found[0]}" if found else "WslFailed"
        raise own_error(name, "InvalidResult", f"wsl.exe ended with {code}: {message}")

    def inside(self, distro: str, *command: str, content: str = "") -> str:
        return self.run("-d", distro, "-u", "root", "--cd", "/", "-e", *command, content=content)

    def script(self, distro: str, verb: str, lines: Sequence[str] = ()) -> str:
        if lines:
            self.inside(distro, *_TEE, content="".join(f"{line}\n" for line in lines))
        return self.inside(distro, *_SH, verb, content=inside_script())

    def names(self) -> list[str]:
        return self.run("--list", "--quiet", "--all").split()

    def running(self) -> list[str]:
        return self.run("--list", "--quiet", "--running").split()

    def stop_idle_vm(self) -> None:
        """Where no distro runs: without an idle timeout it would stay."""
        if not self.running():
            self.run("--shutdown")

    def has(self, distro: str) -> bool:
        return distro.casefold() in map(str.casefold, self.names())


# ---- the distro


def set_distro(machine: Machine, asked: SetCall) -> None:
    """Imported, started, stopped or taken away. Raises CmdletError and NotYet."""
    desired, key = asked.desired, asked.key
    _check_key(key)
    if desired.get("installed") is False:
        _remove(machine, asked)
        return
    if (desired.get("installed") or "image" in desired) and desired.get("image") is None:
        raise bad_request("image is the SHA-256 of a staged file.")
    if desired.get("installed"):
        _add(machine, asked)
    elif "image" in desired:
        _check_ours(machine, key)
        _check_made_of(machine, key, desired["image"])
    if "running" in desired:
        _check_ours(machine, key)
        (_start if desired["running"] else _stop)(machine, key)


def _check_key(key: Key) -> None:
    if not _NAME.fullmatch(key["distro"]) or key["distro"].endswith("."):
        raise bad_request("That is no name of a distro: letters, digits, dots and dashes.")
    check_account_name(key["account"])
    for part in (key["account"], key["distro"]):
        if is_device(part):
            raise bad_request(f"{part} is a device of Windows.")


def _check_ours(machine: Machine, key: Key) -> None:
    account, distro = key["account"], key["distro"]
    if not _Wsl(machine, account).has(distro):
        raise wrong_place(f"{account} has no distro {distro}.")
    if machine.distros.ours(account, distro) is None:
        raise not_ours(f"winhost did not make the distro {distro} of {account}, and leaves it alone.")


def _check_made_of(machine: Machine, key: Key, image: Json) -> None:
    record = machine.distros.ours(key["account"], key["distro"])
    if record is None or record["image"] != image:
        raise wrong_place(f"{key['distro']} was imported from another image: take it away first.")


def _add(machine: Machine, asked: SetCall) -> None:
    account, distro, image = asked.key["account"], asked.key["distro"], str(asked.desired["image"])
    wsl = _Wsl(machine, account)
    installed = wsl.has(distro)
    if installed and machine.distros.ours(account, distro) is not None:
        _check_made_of(machine, asked.key, image)
        return
    staged = machine.software.staged_path(image)
    if staged is None:
        raise own_error("NotStaged", "ObjectNotFound", f"No file with SHA-256 {image} was brought to this host.")
    folder, record = folder_of(account, distro), machine.distros.record(account, distro)
    disk = machine.files.read(f"{folder}\\ext4.vhdx") is not None
    begun = record is not None and not record["complete"] and (not installed or disk)
    if (installed or _full(machine, folder)) and not begun:
        raise not_ours(f"There is a distro {distro} of {account} that winhost did not make, or something in {folder}.")
    if installed:
        wsl.run("--unregister", distro)
    machine.files.remove_folder(folder)
    machine.files.make_folders(FOLDER, f"{FOLDER}\\distros", f"{FOLDER}\\distros\\{account}")
    machine.distros.write_record(account, distro, record_of(image, complete=False))
    machine.files.make_folders(folder)
    try:
        wsl.run("--import", distro, folder, staged, "--version", "2")
    except CmdletError as error:
        if error.code.startswith("Winhost.WslFailed"):
            machine.files.remove_folder(folder)
            machine.files.remove(f"{folder}.json")
            with asked.or_warn(f"The VM of {account} could not be ended"):
                wsl.stop_idle_vm()
        raise
    machine.distros.write_record(account, distro, record_of(image))


def _full(machine: Machine, path: str) -> bool:
    """There is such a file, or a folder with something in it."""
    return machine.files.read(path) is not None or any(True for _ in machine.files.below(path))


def _remove(machine: Machine, asked: SetCall) -> None:
    account, distro = asked.key["account"], asked.key["distro"]
    if asked.desired.get("running") is True or asked.desired.get("image") is not None:
        raise bad_request("What is not installed has no image and does not run.")
    _check_ours(machine, asked.key)
    _suspend(machine, asked.key)
    wsl = _Wsl(machine, account)
    if DATA not in asked.accept:
        machine.files.make_folders(f"{FOLDER}\\exports", f"{FOLDER}\\exports\\{account}")
        number = 1
        while _full(machine, f"{FOLDER}\\exports\\{account}\\{distro}-{number}.tar"):
            number += 1
        wsl.run("--export", distro, f"{FOLDER}\\exports\\{account}\\{distro}-{number}.tar")
    wsl.run("--unregister", distro)
    machine.files.remove_folder(folder_of(account, distro))
    machine.files.remove(f"{folder_of(account, distro)}.json")
    wsl.stop_idle_vm()


def _start(machine: Machine, key: Key) -> None:
    wsl = _Wsl(machine, key["account"])
    wsl.stop_idle_vm()
    _resume(machine, key)
    machine.clock.sleep(_KEEP_SECONDS)
    if key["distro"] not in wsl.running():
        message = (
            f"{key['distro']} started and ended again: nothing holds it. "
            "Set instanceIdleTimeout=-1 in [general] of .wslconfig."
        )
        raise own_error("NotHeld", "InvalidResult", message)


def _stop(machine: Machine, key: Key) -> None:
    _suspend(machine, key)
    _Wsl(machine, key["account"]).run("--terminate", key["distro"])


def _keeper(machine: Machine, key: Key) -> str | None:
    """The task that keeps this distro alive, if there is one that may run."""
    task = machine.accounts.task("keep-alive", key["account"])
    keeps = task is not None and task.enabled and (task.distro or "").casefold() == key["distro"].casefold()
    return task.name if task is not None and keeps else None


def _resume(machine: Machine, key: Key) -> None:
    if (task := _keeper(machine, key)) is not None:
        machine.accounts.start_scheduled_task(task)
    _Wsl(machine, key["account"]).inside(key["distro"], "/bin/true")


def _suspend(machine: Machine, key: Key) -> None:
    if (task := _keeper(machine, key)) is not None:
        machine.accounts.stop_scheduled_task(task)


# ---- its VM


def set_vm(machine: Machine, asked: SetCall) -> None:
    """Ended and started with another configuration. Raises CmdletError and NotYet."""
    account = asked.key["account"]
    check_account_name(account)
    wsl = _Wsl(machine, account)
    running = wsl.running()
    digest = machine.distros.digest(account)
    if isinstance(digest, Mapping):
        raise machine.distros.config_error(account)
    if digest != asked.desired.get("config", digest):
        raise wrong_place(f"The .wslconfig of {account} is another one, so no VM can be made with that.")
    if running and STOP not in asked.accept:
        raise own_error("EndsDistros", "ResourceBusy", f"What runs in {', '.join(running)} would end.")
    keys = [{"account": account, "distro": distro} for distro in running]
    for key in keys:
        _suspend(machine, key)
    mode = asked.desired.get("mode", machine.distros.vm_mode(account))
    wsl.run("--shutdown")
    machine.distros.note_vm(account, mode)
    for key in keys:
        _resume(machine, key)


# ---- what it starts with, and the way in


def _installed(machine: Machine, key: Key) -> tuple[_Wsl, Distro, dict[str, Any]]:
    """Raises CmdletError, NotYet."""
    wsl = _Wsl(machine, key["account"])
    if not wsl.has(key["distro"]):
        raise NotYet("WslDistro")
    _check_ours(machine, key)
    record = machine.distros.ours(key["account"], key["distro"])
    distro = machine.distros.session(key["account"]).find(key["distro"])
    assert record is not None
    assert distro is not None
    return wsl, distro, record


def set_conf(machine: Machine, asked: SetCall) -> None:
    """What it starts with. Raises CmdletError and NotYet."""
    _check_key(asked.key)
    lines = [f"{name} {_encoded(text)}" for name, text in asked.desired.items()]
    wsl, distro, record = _installed(machine, asked.key)
    ran, conf = distro.running, dict(machine.distros.conf(asked.key["account"], distro))
    wsl.script(distro.name, "conf", lines)
    record["conf"] = {name: (conf | dict(asked.desired))[name] for name in NO_CONF}
    machine.distros.write_record(asked.key["account"], distro.name, record)
    _stop(machine, asked.key)
    if ran:
        _resume(machine, asked.key)


def _encoded(text: Json) -> str:
    if text is None:
        return "-"
    try:
        return f":{base64.b64encode(str(text).encode()).decode()}"
    except UnicodeEncodeError:
        raise bad_request("This text cannot be written as utf-8.") from None


def set_access(machine: Machine, asked: SetCall) -> None:
    """sshd in it. Raises CmdletError and NotYet."""
    _check_key(asked.key)
    wsl, distro, record = _installed(machine, asked.key)
    account = asked.key["account"]
    goal = {**machine.distros.access(account, distro), **asked.desired}
    if goal["port"] is None and "allowed" not in asked.desired:
        goal["allowed"] = None
    _check_access(goal)
    if goal["port"] is None:
        wsl.script(distro.name, "close")
        record["access"] = None
    else:
        active = ["active yes"] if goal["active"] else []
        allowed = [f"from {each}" for each in goal["allowed"] or ()]
        keys = [f"key {line}" for line in goal["authorized"]]
        wsl.script(distro.name, "open", [f"port {goal['port']}", f"listen {goal['listen']}", *active, *allowed, *keys])
        record["access"] = {**goal, "user": "root", "host_key": distro.host_key}
    machine.distros.write_record(account, distro.name, record)


def _check_access(goal: Mapping[str, Any]) -> None:
    port, listen, keys = goal["port"], goal["listen"], goal["authorized"]
    none = port is None and listen is None and goal["allowed"] is None and not keys and not goal["active"]
    if not none and (port is None or listen is None or not keys):
        message = "A way in is a port, an address to listen on, and keys; none is null, null, null, [], and not active."
        raise bad_request(message)
