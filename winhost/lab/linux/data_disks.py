"""Disks of a simulated Linux, the file systems on them, and what makes and mounts these.

Source: the manual pages of lsblk, mkfs, umount and systemd.mount.
"""

import json
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from uuid import NAMESPACE_OID, uuid5

from winhost.core.answers import Json, Record
from winhost.lab.linux.linux_machine import Linux, State

_MKFS_SECONDS = 5.0
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_NOTHING: State = {"filesystem": None, "label": None, "uuid": None}


class DataDisks:
    """formatted: file systems that winhost made here, and those that the facts tell, by the disk's name."""

    def __init__(self, linux: Linux) -> None:
        self._linux = linux
        self.formatted: dict[str, State] = {}
        for record in linux.found("LinuxDisk"):
            linux.disk.put(f"/dev/{record.key['disk']}", linux.disk.new(stat.S_IFBLK))
        for record in linux.found("DataDisk"):
            self._name(str(record.state["disk"]), dict(record.state))

    def _name(self, disk: str, state: State) -> None:
        """Link the disk by its UUID, as udev does."""
        self.formatted[disk] = state
        if isinstance(state["uuid"], str):
            self._linux.disk.link(f"/dev/disk/by-uuid/{state['uuid']}", f"../../{disk}")

    def _mounts(self) -> Iterator[tuple[str, str]]:
        """Folder and device of each: those of others, and then those that winhost's units mount."""
        ours = {record.key["path"] for record in self._linux.found("Mount")}
        for record in self._linux.found("LinuxDisk"):
            yield from ((path, record.key["disk"]) for path in record.state["mounted"] if path not in ours)
        for unit, text in self._linux.systemd.texts().items():
            said = dict(re.findall(r"^(What|Where)=(.+)$", text, re.MULTILINE))
            if unit.endswith(".mount") and self._linux.systemd.find(unit).active:
                here = (name for name, each in self.formatted.items() if said["What"].endswith(f"/{each['uuid']}"))
                yield from ((said["Where"], name) for name in here)

    def device_at(self, path: str) -> str | None:
        """Return the device that was mounted there last."""
        return next((f"/dev/{name}" for where, name in reversed([*self._mounts()]) if where == path), None)

    def disks(self) -> Iterator[Record]:
        """Yield the disks as lsblk lists them."""
        mounts = [*self._mounts()]
        for record in self._linux.found("LinuxDisk"):
            made = self.formatted.get(record.key["disk"], record.state)
            mounted = sorted({path for path, name in mounts if name == record.key["disk"]})
            yield Record({**record.state, "filesystem": made["filesystem"], "mounted": mounted}, record.key)

    def data_disks(self) -> Iterator[Record]:
        for record in self.disks():
            name, found = record.key["disk"], record.state
            if found["serial"]:
                told = {"disk": name, "holds": _holds(name, found), **_NOTHING, "filesystem": found["filesystem"]}
                key = {"serial": str(found["serial"]), "size": str(found["size"])}
                yield Record({**told, **self.formatted.get(name, {})}, key)

    # ---- programs

    def lsblk(self, words: Sequence[str]) -> str:
        found = ({"name": each.key["disk"], "type": "disk", **each.state} for each in self.disks())
        return json.dumps({"blockdevices": [{**each, "kname": each["name"]} for each in found]})

    def mkfs(self, kind: str, words: Sequence[str]) -> str:
        disk = words[-1].removeprefix("/dev/")
        self._linux.sleep(_MKFS_SECONDS)
        wanted = re.findall(_UUID, " ".join(words))
        state: State = {"filesystem": kind, "label": words[words.index("-L") + 1]}
        self._name(disk, state | {"uuid": wanted[0] if wanted else str(uuid5(NAMESPACE_OID, disk))})
        return ""

    def umount(self, words: Sequence[str]) -> str:
        for unit, text in self._linux.systemd.texts().items():
            if f"\nWhere={words[-1]}\n" in text:
                self._linux.systemd.find(unit).active = False
        return ""


def _holds(name: str, state: Mapping[str, Json]) -> list[str]:
    told = (("table", "partition table"), ("filesystem", "signature"))
    here = [f"{name}: {says} {state[each]}" for each, says in told if state[each]]
    here += [f"{name}: use at {each}" for each in state["mounted"]]
    here += [f"it is part of {each}" for each in state["holders"]]
    return here + (["it is read-only"] if state["read_only"] else [])
