"""guard.json: what the guard compares in the installer, made of the manifest and of what the user consented to."""

from collections.abc import Mapping, Sequence
from typing import Any

from winhost.autoinstall.installer_storage import letters, says_nothing
from winhost.autoinstall.manifest import DiskManifest, MachineIdentity, PartitionRecord, PartitionRole
from winhost.autoinstall.storage_section import DiskChoice, Scheme, partition_order
from winhost.core.dataclass import dataclass
from winhost.model.units import Bytes, gib

SCHEMA = "winhost.guard-order/1"


@dataclass(frozen=True)
class WholeDisk:
    """A disk that Ubuntu gets whole, with what is on it now. heed: what speaks against that, for whoever consents.

    wipe: the GUID or serial number that somebody typed, or quoted in a file, to consent to its loss.
    """

    choice: DiskChoice
    sector: Bytes
    model: str
    partitions: tuple[PartitionRecord, ...] = ()
    heed: tuple[str, ...] = ()
    wipe: str | None = None

    def __post_init__(self) -> None:
        if says_nothing(self.choice.guid or self.choice.serial or ""):
            raise ValueError(f"{self.choice.id} has neither a GUID nor a serial number: nothing names it")
        if not letters(self.model):
            raise ValueError(f"{self.choice.id} has no model, which the installer compares")
        if self.wipe is not None and self.wipe != self.name:
            raise ValueError(f"the consent names {self.wipe}, and {self.choice.id} is {self.name}")

    @property
    def name(self) -> str:
        """The GUID of its table, or without one its serial number."""
        return self.choice.guid or str(self.choice.serial)

    @property
    def line(self) -> str:
        """As it is shown to whoever consents to its loss."""
        return f"{self.model}, {gib(self.choice.size)}, {self.name}"


def order_beside(disk: DiskManifest, report: str | None = None, windows_esp: str | None = None) -> dict[str, Any]:
    """For a partition that Windows made. report: where the guard says how it ended; windows_esp: where Windows is on
    another disk.
    """
    wanted = {
        "id": "disk-0",
        "use": "beside",
        "guid": disk.guid,
        "size": disk.size,
        "sector": disk.sector,
        "label": disk.label,
        "partitions": [partition_order(each) for each in disk.partitions],
    }
    esp = disk.one(PartitionRole.ESP).guid
    return _order(disk.machine, [wanted], report) | {"windows_esp": windows_esp or esp, "linux_esp": esp}


def order_whole(
    machine: MachineIdentity, disks: Sequence[WholeDisk], scheme: Scheme, report: str | None = None
) -> dict[str, Any]:
    """For whole disks, and what becomes of them."""
    return _order(machine, [_whole(each) for each in disks], report) | {"raid": scheme.raid, "lvm": scheme.lvm}


def _order(machine: MachineIdentity, disks: Sequence[Mapping[str, Any]], report: str | None) -> dict[str, Any]:
    who = {"uuid": machine.uuid} | ({"serial": machine.serial} if machine.serial else {})
    order = {"schema": SCHEMA, "machine": who, "disks": list(disks)}
    return order | ({"report": report} if report else {})


def _whole(disk: WholeDisk) -> dict[str, Any]:
    return {
        "id": disk.choice.id,
        "use": "whole",
        **({"guid": disk.choice.guid} if disk.choice.guid else {"serial": disk.choice.serial}),
        **({"wipe": disk.wipe} if disk.wipe else {}),
        "model": disk.model,
        "size": disk.choice.size,
        "sector": disk.sector,
        "partitions": [partition_order(each) for each in disk.partitions],
    }
