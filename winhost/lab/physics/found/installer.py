"""Ubuntu's installer on a simulated host, as Windows put it onto a partition, and which system the firmware starts."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING

from pydantic import Field

from winhost.core.answers import Json, Record
from winhost.lab.physics.found.disks import Disks
from winhost.lab.physics.found.firmware import FirmwarePart
from winhost.lab.physics.parts import Part
from winhost.model.closed import Closed
from winhost.resources.windows.running_system import LINUX_NEXT, WINDOWS

if TYPE_CHECKING:
    from winhost.lab.physics.simulated_machine import Machine

MARK = "EFI\\ubuntu\\winhost.txt"
TICKET = "winhost\\fetch.json"
_OF_LINUX = re.compile(r"\\(ubuntu\\(shim|grub)|debian\\shim)x64\.efi\Z", re.IGNORECASE)


class InstallerPhysics(Closed):
    """`lab: {found: {installer: …}}` in a host file."""

    image: tuple[str, ...] = Field(
        default=(".disk\\info", "casper\\vmlinuz", "EFI\\boot\\bootx64.efi", "boot\\grub\\grub.cfg"),
        description="the files of every image that is mounted",
    )


class InstallerPart(Part):
    """Of one host. Its record is in the registry, under `ubuntu ubuntu`."""

    for_administrators = ("RunningSystem", "UbuntuInstaller")

    def __init__(self, host: "Machine", initial: Mapping[str, Sequence[Record]]) -> None:
        super().__init__(host)
        self.physics = InstallerPhysics.model_validate(host.lab.found.get("installer", {}))
        self.mounted: set[str] = set()  # paths of images

    def records(self) -> Mapping[str, Callable[[], Iterable[Record]]]:
        """The calls that list the instances."""
        return {"RunningSystem": lambda: [self._running()], "UbuntuInstaller": self._installers}

    def partition(self, guid: str) -> str | None:
        """The partition for it with this GUID, where it is as winhost made it."""
        text = self.host.record().get("partition staging")
        found = self._disks.own_partition(json.loads(text)) if text else None
        return found if found == guid else None

    @property
    def _disks(self) -> Disks:
        return self.host.part(Disks)

    def _running(self) -> Record:
        firmware = self.host.part(FirmwarePart)
        if firmware.kind != "uefi":
            return Record({"system": WINDOWS, "linux": None, "installer": None})
        linux = self.linux_entries()
        own = [each for each in self.host.instances("OwnBootEntry") if each.key["name"] == "installer"]
        installer = own[0].state["entry"] if own else None
        after = firmware.boot["next"]
        coming = after is not None and after in (*(each["entry"] for each in linux), installer)
        state = {"linux": linux[0]["path"] if linux else None, "installer": installer}
        return Record({"system": LINUX_NEXT if coming else WINDOWS, **state})

    def linux_entries(self) -> list[Mapping[str, Json]]:
        """Boot entries that start a Linux, in the order of the firmware."""
        home = self._home()
        there = [each for each in self.host.part(FirmwarePart).boot["entries"] if home in ("any", each["partition"])]
        return [each for each in there if _OF_LINUX.search(str(each["path"]))]

    def _home(self) -> str | None:
        """The EFI partition that the Linux is started from; None where winhost made a place for one still to come."""
        text = self.host.record().get("partition linux")
        if text is None:
            return "any"
        mark = sha256(f"{json.loads(text)['label']}\n".encode()).hexdigest()
        for record in self.host.instances("EfiVolume"):
            guid = record.key["partition"]
            if any((each["path"], each["sha256"]) == (MARK, mark) for each in self._disks.files_on(guid)):
                return guid
        return None

    def _installers(self) -> Iterator[Record]:
        text = self.host.record().get("ubuntu ubuntu")
        if text is None:
            return
        record: dict[str, Json] = json.loads(text)
        guid = self.partition(str(record["partition"]))
        record.pop("content")
        complete = record.pop("complete") is True and guid is not None
        ticket = self._disks.file(guid, TICKET) if complete and guid else None
        told = {"ticket": sha256(ticket).hexdigest() if ticket else None, "made": True if complete else None}
        yield Record({**record, **told}, {"name": "ubuntu"})


part = InstallerPart
