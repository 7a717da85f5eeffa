"""Disks of a simulated host: partitions, how far they shrink, what is on the EFI partition, BitLocker, controllers."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import Field

from winhost.core.answers import Json, Record
from winhost.lab.physics.disk_layouts import (
    boot_files,
    controllers,
    encryption,
    letters,
    limits,
    partitions_of,
    whole_disk,
)
from winhost.lab.physics.host_protocol import WindowsHost
from winhost.lab.physics.windows_errors import CmdletError, not_administrator
from winhost.lab.physics.windows_objects import WindowsObject, of_type
from winhost.model.closed import Closed
from winhost.resources.windows.partition.resource import EFI

Listing = Mapping[str, Callable[[], Iterable[Record]]]
_FOR_ADMINISTRATORS = ("ResizeLimit", "EfiVolume")


class DisksPhysics(Closed):
    """`lab: {found: {disks: …}}` in a host file."""

    recovery_password: str = Field(
        default="111111-222222-333333-444444-555555-666666-777777-888888",
        description="of each volume that has one: what no answer may ever hold",
    )


class Disks:
    """What is on the disks of a host, by the GUIDs of its partitions."""

    def __init__(self, host: WindowsHost, initial: Mapping[str, Sequence[Record]]) -> None:
        self._host = host
        self.physics = DisksPhysics.model_validate(host.lab.found.get("disks", {}))
        self.disks = [whole_disk(record, number) for number, record in enumerate(initial.get("Disk", ()))]
        self.partitions = {r.key["partition"]: dict(r.state) for r in self._laid_out(initial.get("Partition"))}
        self._limits = {r.key["partition"]: r.state for r in initial.get("ResizeLimit", ())}
        self._files = {r.key["partition"]: r.state for r in initial.get("EfiVolume", ())}
        self.volumes = {r.key["volume"]: dict(r.state) for r in map(encryption, initial.get("BitLocker", ()))}
        self._controllers = initial.get("StorageController", tuple(controllers(self.disks)))
        for resource in _FOR_ADMINISTRATORS:
            host.refusals[resource] = self._refusal
        host.cim_classes["Win32_PageFileUsage"] = self._page_files
        host.cim_classes["Win32_ShadowCopy"] = self._shadow_copies
        host.cim_classes["Win32_EncryptableVolume"] = self._encryptable

    def _laid_out(self, stated: Sequence[Record] | None) -> Iterator[Record]:
        """What the host file says; of disks of which it says nothing, how Windows lays them out."""
        if stated is not None and not stated:
            return
        known = {record.state["disk"] for record in stated or ()}
        yield from stated or ()
        after_c = letters()
        for disk in self.disks:
            if disk.state["guid"] not in known:
                yield from partitions_of(disk, after_c)

    def _refusal(self) -> CmdletError | None:
        return None if self._host.lab.administrator else not_administrator()

    def records(self) -> Listing:
        """The calls that list the instances."""
        return {
            "Disk": lambda: self.disks,
            "Partition": self._listed,
            "ResizeLimit": self._resize_limits,
            "EfiVolume": self._efi_volumes,
            "BitLocker": lambda: (Record(dict(state), {"volume": v}) for v, state in self.volumes.items()),
            "StorageController": lambda: self._controllers,
        }

    def restarted(self) -> bool:
        """A volume whose suspension counts restarts has one less, and is protected again after the last."""
        return False

    def disk_of(self, state: Mapping[str, Any]) -> Record | None:
        """The disk that a partition is on; of two with one GUID, the last."""
        return next((disk for disk in reversed(self.disks) if disk.state["guid"] == state["disk"]), None)

    def _listed(self) -> Iterator[Record]:
        for guid, state in self.partitions.items():
            if self.disk_of(state) is not None:
                yield Record(dict(state), {"partition": guid})

    def _resize_limits(self) -> Iterator[Record]:
        for record in self._listed():
            if record.state["boot"]:
                yield Record(self.limits(record), record.key)

    def limits(self, record: Record) -> Mapping[str, Json]:
        """How far a partition can be resized now, in the form of resource ResizeLimit."""
        found = dict(self._limits.get(record.key["partition"]) or limits(record.state))
        hibernates = any(each.state["hibernation"] for each in self._host.instances("FastStartup"))
        held = [each for each in found["holders"] if each != "hibernation-file"]
        return {**found, "holders": [*held[:1], *(["hibernation-file"] if hibernates else []), *held[1:]]}

    def _efi_volumes(self) -> Iterator[Record]:
        for record in self._listed():
            if record.state["type"] == EFI:
                yield Record(self.efi_files(record), record.key)

    def efi_files(self, record: Record) -> Mapping[str, Json]:
        """What is on an EFI system partition, in the form of resource EfiVolume."""
        return self._files.get(record.key["partition"]) or boot_files(record.state)

    # ---- CIM

    def _held(self, word: str) -> bool:
        return any(word in record.state["holders"] for record in self._resize_limits())

    def _page_files(self) -> Iterator[WindowsObject]:
        if self._held("page-file"):
            yield of_type("Win32_PageFileUsage", Name="C:\\pagefile.sys")

    def _shadow_copies(self) -> Iterator[WindowsObject]:
        if self._held("shadow-copies"):
            yield of_type("Win32_ShadowCopy", ID="{0F1E2D3C-4B5A-4697-8877-665544332211}")

    def _encryptable(self) -> Iterator[WindowsObject]:
        for volume in self.volumes:
            yield of_type("Win32_EncryptableVolume", DeviceID=volume, DriveLetter=volume)


part = Disks
