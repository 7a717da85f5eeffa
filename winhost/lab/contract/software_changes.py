"""What the scripts of features, staged files, WSL and driver models do, on a simulated host."""

import base64
import binascii
import re
from collections.abc import Mapping

from winhost.core.answers import Json, Key
from winhost.lab.physics.parts import SetCall
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.windows_errors import CmdletError, bad_request, not_ours, own_error
from winhost.lab.physics.windows_files import FOLDER
from winhost.lab.physics.windows_software import MODELS, PRODUCT

_SHA256 = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9._-]{0,99}[A-Za-z0-9_-]")
_SOURCE = re.compile(
    r"""https://[A-Za-z0-9.:\[\]-]+/[!-~]+|[A-Za-z]:\\[^\x00-\x1f"*/:<>?|]+|\./[A-Za-z0-9._-]{0,99}[A-Za-z0-9_-]"""
)
_UPLOADED = "./"
_OFFER = re.compile(r"http://([0-9.]+|\[[0-9a-f:]+\]):[1-9][0-9]{0,4}/[0-9a-f]{64}")
_LONGEST_FETCH = 600
_HEADLESS = "headless"


# ---- staged files


def set_staged(machine: Machine, asked: SetCall) -> None:
    """There, or gone. Raises CmdletError."""
    software, key = machine.software, asked.key
    _check_key(key)
    path, entry = software.path_of(key["sha256"], key["name"]), f"file {key['sha256']}-{key['name']}"
    if asked.desired["present"]:
        machine.files.make_folders(FOLDER, f"{FOLDER}\\files")
        _receive(machine, key, path)
        software.write_registry(entry, key["source"])
    elif software.record.get(entry, "").casefold() == key["source"].casefold():
        machine.files.remove(path)
        software.write_registry(entry, None)
    _remove_part(machine, key, path)


def upload_staged(machine: Machine, key: Key, piece: Mapping[str, Json] | None) -> dict[str, Json]:
    """How much of it was received, and the hash of that where no piece was sent. Raises CmdletError."""
    _check_key(key)
    if not key["source"].startswith(_UPLOADED):
        raise bad_request("Only a file that lies beside the plan, as ./name, is sent.")
    part = f"{machine.software.path_of(key['sha256'], key['name'])}.part"
    received = machine.files.length(part)
    if piece is None:
        return {"received": received, "sha256": machine.software.read_hash(part)}
    at, content, address = piece.get("at"), _decoded(piece.get("bytes")), piece.get("from")
    if (content is None and address is None) or type(at) is not int:
        raise bad_request("A piece says at which byte it begins, and what it holds as base64 or where it is.")
    if at == 0:
        machine.files.make_folders(FOLDER, f"{FOLDER}\\files")
        machine.software.write_registry(f"part {key['sha256']}-{key['name']}", key["source"])
    elif at != received:
        message = f"{received} bytes of it are here, and this piece begins at {at}."
        raise own_error("OutOfStep", "InvalidOperation", message)
    if address is None:
        machine.files.append(part, content or b"", restart=at == 0)
        return {"received": machine.files.length(part), "sha256": None}
    if at == 0:
        machine.files.append(part, b"", restart=True)
    _fetch_piece(machine, part, address, piece.get("seconds"))
    return {"received": machine.files.length(part), "sha256": None}


def _fetch_piece(machine: Machine, part: str, address: Json, seconds: Json) -> None:
    """By curl.exe, from the computer that runs winhost. Raises CmdletError."""
    if not re.fullmatch(_OFFER, str(address)) or type(seconds) is not int or not 1 <= seconds <= _LONGEST_FETCH:
        raise bad_request("A file is fetched from an address of winhost, for 1 to 600 seconds.")
    curl, before = machine.programs.get("curl.exe"), machine.files.length(part)
    if curl is None:
        raise own_error("NotFetched", "ReadError", "This Windows has no curl.exe.")
    code, _ = curl(["--output", part, str(address)])
    if code not in (0, 18, 28) or machine.files.length(part) == before:
        raise own_error("NotFetched", "ReadError", f"curl.exe could not fetch it: {code}")


def _decoded(text: Json) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True) if isinstance(text, str) else None
    except binascii.Error:
        return None


def _check_key(key: Key) -> None:
    parts = (("sha256", _SHA256), ("name", _NAME), ("source", _SOURCE))
    if not all(pattern.fullmatch(str(key[part])) for part, pattern in parts):
        message = (
            "sha256 is 64 digits in lower case, name of plain characters, "
            "source an https address, a path on a drive or ./name."
        )
        raise bad_request(message)


def _remove_part(machine: Machine, key: Key, path: str) -> None:
    machine.files.remove(f"{path}.part")
    machine.software.write_registry(f"part {key['sha256']}-{key['name']}", None)


def _receive(machine: Machine, key: Key, path: str) -> None:
    part = f"{path}.part"
    sent = key["source"].startswith(_UPLOADED)
    found = machine.software.read_hash(part) if sent else _fetch(machine, key["source"], part)
    if not found:
        raise own_error("NotSent", "ObjectNotFound", "Nothing of it was sent to this host.")
    if found != key["sha256"]:
        machine.files.remove(part)
        if sent:
            machine.software.write_registry(f"part {key['sha256']}-{key['name']}", None)
        raise own_error("WrongHash", "InvalidData", f"The source gave SHA-256 {found}, and not {key['sha256']}.")
    machine.files.remove(path)
    machine.software.move_file(part, path)


def _fetch(machine: Machine, source: str, path: str) -> str:
    machine.files.remove(path)
    try:
        return machine.software.copy_source(source, path)
    except CmdletError as error:
        machine.files.remove(path)
        raise own_error("NotFetched", "ReadError", f"It could not be fetched: {error.message}") from None


# ---- WSL


def set_wsl(machine: Machine, asked: SetCall) -> bool:
    """Installed, upgraded or removed; whether that takes a restart. Raises CmdletError."""
    desired = asked.desired
    if desired.get("version") is None and desired.get("package") is None:
        return _uninstall(machine, asked)
    version, package = desired.get("version", machine.software.wsl), desired.get("package")
    if version is None or package is None:
        raise bad_request("WSL is installed in a version, and from a staged MSI.")
    return _install(machine, str(version), str(package))


def _install(machine: Machine, version: str, package: str) -> bool:
    software = machine.software
    if software.wsl is not None and _numbers(software.wsl) > _numbers(version):
        message = f"WSL {software.wsl} is installed; winhost never goes back to {version}."
        raise own_error("Downgrade", "InvalidOperation", message)
    path = software.staged_path(package)
    if path is None:
        raise own_error("NotStaged", "ObjectNotFound", f"No file with SHA-256 {package} was brought to this host.")
    _check_signature(machine, path)
    restart = _run(machine, "/i", path)
    software.write_registry("wsl version", software.wsl or "")
    software.write_registry("wsl package", package)
    return restart


def _uninstall(machine: Machine, asked: SetCall) -> bool:
    software, restart = machine.software, False
    if "version" in asked.desired:
        if software.package is None:
            raise not_ours("This WSL was not installed by winhost, which does not remove it.")
        restart = _run(machine, "/x", PRODUCT)
    for name in ("wsl version", "wsl package"):
        software.write_registry(name, None)
    return restart


def _check_signature(machine: Machine, path: str) -> None:
    status, subject = machine.software.signature(path)
    if status != "Valid":
        raise own_error("BadSignature", "SecurityError", f"The signature of {path} is {status}.")
    if not re.search(r"(^|, )O=Microsoft Corporation(,|\Z)", re.sub('"[^"]*"', "", subject)):
        message = f"{path} is signed by {subject}, not by Microsoft Corporation."
        raise own_error("BadSignature", "SecurityError", message)


def _run(machine: Machine, how: str, what: str) -> bool:
    code = machine.software.run_msiexec((how, what))
    if code == 1618:
        message = "Another installation is under way: wait until it has ended, then go on."
        raise own_error("InstallerBusy", "ResourceBusy", message)
    if code not in (0, 1641, 3010):
        raise own_error("InstallerFailed", "InvalidResult", f"msiexec.exe: {code}")
    return code != 0


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


# ---- driver models


def set_driver_model(machine: Machine, asked: SetCall) -> bool:
    """From the next restart on. Raises CmdletError."""
    model, location = asked.desired["pending"], asked.key["location"]
    displays = next(device.state()["displays"] for device in machine.devices if device.location == location)
    if model != MODELS[0] and displays and _HEADLESS not in asked.accept:
        raise own_error("TakesDisplay", "InvalidOperation", "A display is connected to this card, and would stay dark.")
    code, output = machine.software.set_driver_model(location, MODELS.index(model))
    current, pending = machine.software.driver_models().get(location, (None, None))
    if code != 0 or pending != model:
        message = (
            "This card or its driver knows no such model: consumer cards are always WDDM, and cards of data centers "
            f"mostly never. nvidia-smi.exe: {code} {' '.join(output.split())}"
        )
        raise own_error("DriverModelRefused", "InvalidOperation", message)
    return current != pending
