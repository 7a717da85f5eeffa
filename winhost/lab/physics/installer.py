"""Resources of a simulated host for Ubuntu beside Windows: the staged installer, and the system that starts next."""

import gzip
import json
import re
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any

from pydantic import Field

from winhost.core.answers import Json, Record
from winhost.lab.physics.disks import Disks
from winhost.lab.physics.firmware import FirmwarePart
from winhost.lab.physics.lab_section import part_physics
from winhost.lab.physics.parts import Change, Host, Part, SetCall, StoredRecord
from winhost.lab.physics.windows_errors import refusal, refuse_if
from winhost.model.written import Closed
from winhost.resources.windows.boot_entries import LINUX_NEXT, WINDOWS

MARK = "EFI\\ubuntu\\winhost.txt"
TICKET = "winhost\\fetch.json"
_WINDOWS_FOLDER = "System Volume Information\\"
_RECORD_PROPERTIES = ("partition", "image", "files", "user", "address")
_LINUX_LOADER = re.compile(r"\\(ubuntu\\(shim|grub)|debian\\shim)x64\.efi\Z", re.IGNORECASE)


@part_physics("installer")
class InstallerPhysics(Closed):
    """The physics of Ubuntu's installer."""

    image: tuple[str, ...] = Field(
        default=(".disk\\info", "casper\\vmlinuz", "EFI\\boot\\bootx64.efi", "boot\\grub\\grub.cfg"),
        description="the files of each mounted image",
    )


class InstallerPart(Part):
    """The staged installer of one host. Its record in the registry is `ubuntu ubuntu`."""

    administrator_resources = ("RunningSystem", "UbuntuInstaller")

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.physics = InstallerPhysics.model_validate(host.lab.found.get("installer", {}))
        self.mounted: set[str] = set()  # paths of images

    def records(self) -> Mapping[str, Callable[[], Iterable[Record]]]:
        return {"RunningSystem": lambda: [self._running_system()], "UbuntuInstaller": self._list_installers}

    # ---- as resources that are set

    def changes(self) -> Mapping[str, Change]:
        return {"RunningSystem": self.set_running, "UbuntuInstaller": self.set_installer}

    def set_running(self, call: SetCall) -> bool:
        """Choose the system that the firmware starts next. Return True for the Linux, which takes a restart."""
        firmware, current = self.host.part(FirmwarePart), self._running_system().state
        if call.desired["system"] == WINDOWS:
            if current["system"] == LINUX_NEXT:
                firmware.set_next(None)
            return False
        linux = self.linux_entries()
        entry = linux[0]["entry"] if linux else current["installer"]
        if entry is None:
            raise refusal("NoLinux")
        if firmware.boot["next"] != entry:
            firmware.set_next(entry)
        return True

    def set_installer(self, call: SetCall) -> None:
        """Stage or remove the installer, set its host key, or write the ticket with which it fetches its settings."""
        desired = call.desired
        call.check_data()
        record = self.stored_record("ubuntu", "ubuntu")
        if desired.get("made") is False:
            if record is not None and (guid := self.find_partition(record["partition"])) is not None:
                self._disks.unprotect(guid)
                self._disks.clear(guid)
            self.store_record("ubuntu", "ubuntu", None)
            return
        record = self._stage({**(record or {}), **desired}) if "made" in desired else record or {}
        if "host_key" in desired:
            record["host_key"] = desired["host_key"]
            self.store_record("ubuntu", "ubuntu", record)
        if "ticket" in desired:
            self._write_ticket(record, desired["ticket"], call.secret)

    def _stage(self, desired: Mapping[str, Any]) -> StoredRecord:
        properties = {part: desired.get(part) for part in _RECORD_PROPERTIES}
        disks, guid = self._disks, str(properties["partition"])
        self.host.software.find_staged_file(str(properties["image"])[:64])
        texts: Mapping[str, str] = json.loads(gzip.decompress(b64decode(str(properties["files"]))))
        record = {**properties, "host_key": None, "content": None, "complete": False}
        self.store_record("ubuntu", "ubuntu", record)
        disks.unprotect(guid)
        disks.clear(guid)
        staged = dict.fromkeys(self.physics.image, b"")
        staged |= {path.replace("/", "\\"): text.encode() for path, text in texts.items()}
        for path, data in staged.items():
            disks.write_file(guid, path, data)
        record |= {"content": _hash_content(staged), "complete": True}
        self.store_record("ubuntu", "ubuntu", record)
        return record

    def _write_ticket(self, record: StoredRecord, ticket: Json, secret: str) -> None:
        disks, guid = self._disks, str(record["partition"])
        disks.unprotect(guid)
        disks.write_file(guid, TICKET, None if ticket is None else secret.encode())
        if ticket is None:
            return
        disks.protect(guid)
        paths = [str(each["path"]) for each in disks.files_on(guid)]
        files = {path: disks.read_file(guid, path) or b"" for path in paths if not path.startswith(_WINDOWS_FOLDER)}
        refuse_if(
            files.pop(TICKET, None) != secret.encode() or _hash_content(files) != record["content"], "NotAsStaged"
        )

    def find_partition(self, guid: str) -> str | None:
        """Return `guid` if it is the installer's partition, and that exists as winhost recorded it; else None."""
        record = self.stored_record("partition", "staging")
        own_partition = self._disks.find_recorded_partition(record) if record else None
        return own_partition if own_partition == guid else None

    @property
    def _disks(self) -> Disks:
        found: Disks = self.host.part(Disks)
        return found

    def _running_system(self) -> Record:
        firmware = self.host.part(FirmwarePart)
        if firmware.kind != "uefi":
            return Record({"system": WINDOWS, "linux": None, "installer": None})
        linux = self.linux_entries()
        own_entries = [each for each in self.host.instances("OwnBootEntry") if each.key["name"] == "installer"]
        installer = own_entries[0].state["entry"] if own_entries else None
        next_entry = firmware.boot["next"]
        is_next = next_entry is not None and next_entry in (*(each["entry"] for each in linux), installer)
        state = {"linux": linux[0]["path"] if linux else None, "installer": installer}
        return Record({"system": LINUX_NEXT if is_next else WINDOWS, **state})

    def linux_entries(self) -> list[Mapping[str, Json]]:
        """Return the boot entries that start a Linux, in the firmware's order."""
        efi_partition = self._linux_efi_partition()
        entries = [
            each for each in self.host.part(FirmwarePart).boot["entries"] if efi_partition in ("any", each["partition"])
        ]
        return [each for each in entries if _LINUX_LOADER.search(str(each["path"]))]

    def _linux_efi_partition(self) -> str | None:
        """Return the EFI partition of winhost's Linux: None before it is installed, "any" if it has none of its own."""
        record = self.stored_record("partition", "linux")
        if record is None:
            return "any"
        mark = sha256(f"{record['label']}\n".encode()).hexdigest()
        for record in self.host.instances("EfiVolume"):
            guid = record.key["partition"]
            if any((each["path"], each["sha256"]) == (MARK, mark) for each in self._disks.files_on(guid)):
                found: str | None = guid
                return found
        return None

    def _list_installers(self) -> Iterator[Record]:
        record = self.stored_record("ubuntu", "ubuntu")
        if record is None:
            return
        guid = self.find_partition(str(record["partition"]))
        record.pop("content")
        complete = record.pop("complete") is True and guid is not None
        ticket = self._disks.read_file(guid, TICKET) if complete and guid else None
        state = {"ticket": sha256(ticket).hexdigest() if ticket else None, "made": True if complete else None}
        yield Record({**record, **state}, {"name": "ubuntu"})


def _hash_content(files: Mapping[str, bytes]) -> str:
    """Hash the paths, regardless of case, and the contents of files."""
    lines = sorted(f"{path.lower()} {sha256(data).hexdigest()}" for path, data in files.items())
    return sha256("\n".join(lines).encode()).hexdigest()
