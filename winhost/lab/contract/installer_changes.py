"""What the scripts of Ubuntu's installer, and of which system runs, do on a simulated host."""

import gzip
import json
import re
import zlib
from base64 import b64decode
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from winhost.core.answers import Json
from winhost.lab.contract.disk_changes import check_accepted, check_uefi, protect, set_next, unprotect
from winhost.lab.physics.found.disks import Disks
from winhost.lab.physics.found.firmware import FirmwarePart
from winhost.lab.physics.found.installer import TICKET, InstallerPart
from winhost.lab.physics.parts import SetCall
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.windows_errors import bad_request, own_error, wrong_place
from winhost.resources.windows.running_system import LINUX_NEXT, WINDOWS

_PATH = re.compile(r"[A-Za-z0-9._-]{1,64}(/[A-Za-z0-9._-]{1,64}){0,4}")
_OF_WINDOWS = "System Volume Information\\"
_PARTS = ("partition", "image", "files", "user", "address")


def set_running(machine: Machine, asked: SetCall) -> bool:
    """What the firmware starts next; takes a restart to the Linux. Raises CmdletError."""
    check_uefi(machine.part(FirmwarePart))
    (record,) = machine.instances("RunningSystem")
    now = record.state
    if asked.desired["system"] == WINDOWS:
        if now["system"] == LINUX_NEXT:
            _set_next(machine, asked, None)
        return False
    linux = machine.part(InstallerPart).linux_entries()
    wanted = linux[0]["entry"] if linux else now["installer"]
    if wanted is None:
        said = "No boot entry starts a Linux, or an installer of one that winhost made."
        raise own_error("NoLinux", "ObjectNotFound", said)
    if machine.part(FirmwarePart).boot["next"] != wanted:
        _set_next(machine, asked, str(wanted))
    return True


def _set_next(machine: Machine, asked: SetCall, number: str | None) -> None:
    set_next(machine, SetCall({}, {"next": number}, asked.accept, asked.within, asked.stop))


def set_installer(machine: Machine, asked: SetCall) -> None:
    """Its files put onto the partition or taken away, and what is made at the moment of use. Raises CmdletError."""
    if asked.key["name"] != "ubuntu":
        raise bad_request("winhost makes the installer ubuntu.")
    check_accepted(asked, "Files", "to a partition")
    record = machine.own_vms.read("ubuntu", "ubuntu")
    if "made" in asked.desired:
        if not asked.desired["made"]:
            _remove(machine, record)
            return
        record = _make(machine, {**(record or {}), **asked.desired})
    elif set(_PARTS) & set(asked.desired):
        raise wrong_place("An installer stays what it is: set made, too, to make it again.")
    if record is None or not record["complete"]:
        raise wrong_place("There is no finished installer on this host: set made first.")
    _hand_over(machine, record, asked)


def _make(machine: Machine, wanted: Mapping[str, Json]) -> dict[str, Any]:
    parts = {part: wanted.get(part) for part in _PARTS}
    if None in [parts[part] for part in _PARTS if part != "address"]:
        what = "An installer is made of an image, on a partition, with files beside it and for a user."
        raise bad_request(what)
    disks, installer = machine.part(Disks), machine.part(InstallerPart)
    guid = str(parts["partition"])
    if installer.partition(guid) is None:
        raise own_error(
            "WrongPlace", "ObjectNotFound", f"{guid} is not the partition that winhost made for an installer."
        )
    image = str(parts["image"])[:64]
    if machine.software.staged_path(image) is None:
        raise own_error("NotStaged", "ObjectNotFound", f"No file with SHA-256 {image} was brought to this host.")
    texts = _unpacked(str(parts["files"]))
    record = {**parts, "host_key": None, "content": None, "complete": False}
    machine.own_vms.write("ubuntu", "ubuntu", record)
    unprotect(disks, guid)
    disks.clear(guid)
    if "casper\\vmlinuz" not in installer.physics.image:
        what = "This image is not an installer of Ubuntu Server: it has no casper\\vmlinuz."
        raise own_error("NoInstaller", "InvalidData", what)
    staged = dict.fromkeys(installer.physics.image, b"")
    staged |= {path.replace("/", "\\"): text.encode() for path, text in texts.items()}
    for path, data in staged.items():
        disks.put_file(guid, path, data)
    record |= {"content": _content(staged), "complete": True}
    machine.own_vms.write("ubuntu", "ubuntu", record)
    return record


def _unpacked(packed: str) -> dict[str, str]:
    try:
        texts: Json = json.loads(gzip.decompress(b64decode(packed, validate=True)))
    except (ValueError, OSError, EOFError, zlib.error):
        raise bad_request("files is JSON, as gzip in base64.") from None
    if not isinstance(texts, dict):
        raise bad_request("files is JSON, as gzip in base64.")
    for path, text in texts.items():
        if not _PATH.fullmatch(path) or {".", ".."} & set(path.split("/")) or not isinstance(text, str):
            raise bad_request("files are texts by their paths.")
    return {path: str(text) for path, text in texts.items()}


def _hand_over(machine: Machine, record: dict[str, Any], asked: SetCall) -> None:
    if "host_key" in asked.desired:
        record["host_key"] = asked.desired["host_key"]
        machine.own_vms.write("ubuntu", "ubuntu", record)
    if "ticket" not in asked.desired:
        return
    disks, guid = machine.part(Disks), machine.part(InstallerPart).partition(record["partition"])
    if guid is None:
        raise own_error("WrongPlace", "ObjectNotFound", "The partition of the installer is not there any more.")
    if asked.desired["ticket"] is None:
        unprotect(disks, guid)
        disks.put_file(guid, TICKET, None)
        return
    if len(asked.secret) > 4096 or sha256(asked.secret.encode()).hexdigest() != asked.desired["ticket"]:
        raise bad_request("The ticket is another than its SHA-256 says.")
    unprotect(disks, guid)
    disks.put_file(guid, TICKET, asked.secret.encode())
    protect(disks, guid)
    names = [path for path in disks.names(guid) if not path.startswith(_OF_WINDOWS)]
    there = {path: disks.file(guid, path) or b"" for path in names}
    if there.pop(TICKET, None) != asked.secret.encode() or _content(there) != record["content"]:
        said = "Files on the installer's partition are others than winhost put there."
        raise own_error("NotAsStaged", "InvalidData", said)


def _content(files: Mapping[str, bytes]) -> str:
    """One hash of all paths, which have no case there, and contents."""
    lines = sorted(f"{path.lower()} {sha256(data).hexdigest()}" for path, data in files.items())
    return sha256("\n".join(lines).encode()).hexdigest()


def _remove(machine: Machine, record: dict[str, Any] | None) -> None:
    if record is None:
        return
    guid = machine.part(InstallerPart).partition(record["partition"])
    if guid is not None:
        unprotect(machine.part(Disks), guid)
        machine.part(Disks).clear(guid)
    machine.own_vms.write("ubuntu", "ubuntu", None)
