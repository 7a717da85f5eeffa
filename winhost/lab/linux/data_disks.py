"""Disks of a simulated Linux, those that are formatted and mounted by winhost, and what stands in the way.

Source: the manual pages of mkfs, systemd.mount and lsblk.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from uuid import NAMESPACE_OID, uuid5

from winhost.core.answers import Json, Key, Record
from winhost.core.dataclass import dataclass
from winhost.lab.linux.linux_errors import refused
from winhost.lab.linux.linux_machine import Linux, State
from winhost.lab.physics.windows_errors import CmdletError

_MKFS_SECONDS = 5.0
_NO_MOUNT: State = {"uuid": None, "filesystem": None, "options": None, "mounted": False}
_NO_FILE_SYSTEM: State = {"filesystem": None, "label": None, "uuid": None}
_UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_OPTIONS = r"[A-Za-z0-9_=.:+-]+(,[A-Za-z0-9_=.:+-]+)*"
_PLACES = r"/(?:data|home|media|mnt|models|opt|srv|var/lib)(?:/[A-Za-z0-9_-][A-Za-z0-9._-]*)*"


@dataclass
class DataDisks:
    """formatted: file systems that winhost made here, by the disk's name; mounts: its units, by the folder; told: what
    the facts of this machine say of disks.
    """

    linux: Linux
    formatted: dict[str, State] = field(default_factory=dict)
    mounts: dict[str, State] = field(default_factory=dict)
    told: dict[str, State] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.mounts = {each.key["path"]: dict(each.state) for each in self.linux.found("Mount")}
        self.told = {each.state["disk"]: dict(each.state) for each in self.linux.found("DataDisk")}

    def disks(self) -> Iterator[tuple[str, State]]:
        """As lsblk has them."""
        for record in self.linux.found("LinuxDisk"):
            name = record.key["disk"]
            made = self.formatted.get(name, {})
            at = [path for path, mount in self.mounts.items() if mount["mounted"] and mount["uuid"] == made.get("uuid")]
            filesystem = made.get("filesystem", record.state["filesystem"])
            yield name, {**record.state, "filesystem": filesystem, "mounted": sorted([*record.state["mounted"], *at])}

    def named(self, uuid: str) -> bool:
        return any(disk["uuid"] == uuid for disk in (*self.formatted.values(), *self.told.values()))

    def format(self, disk: str, desired: Mapping[str, Json]) -> None:
        self.linux.machine.clock.sleep(_MKFS_SECONDS)
        uuid = desired.get("uuid") or str(uuid5(NAMESPACE_OID, disk))
        self.formatted[disk] = {**desired, "label": desired.get("label", "data"), "uuid": uuid}


def linux_disks(linux: Linux, key: Key | None) -> Iterator[Record]:
    for name, state in linux.part(DataDisks).disks():
        yield Record(state, {"disk": name})


def data_disks(linux: Linux, key: Key | None) -> Iterator[Record]:
    part = linux.part(DataDisks)
    for name, state in part.disks():
        if state["serial"]:
            shown = {"disk": name, "holds": _holds(name, state), **_NO_FILE_SYSTEM, "filesystem": state["filesystem"]}
            shown.update(part.formatted.get(name, part.told.get(name, {})))
            yield Record(shown, {"serial": str(state["serial"]), "size": str(state["size"])})


def _holds(name: str, state: State) -> list[str]:
    told = (("table", "partition table"), ("filesystem", "signature"))
    here = [f"{name}: {says} {state[each]}" for each, says in told if state[each]]
    here += [f"{name}: use at {each}" for each in state["mounted"]]
    here += [f"it is part of {each}" for each in state["holders"]]
    return here + (["it is read-only"] if state["read_only"] else [])


def set_data_disk(linux: Linux, key: Key, desired: Mapping[str, Json]) -> None:
    """Raises CmdletError."""
    _check(r"[A-Za-z0-9_-]{1,12}", desired.get("label", "data"), "a label")
    _check(_UUID, desired.get("uuid") or "0" * 8 + "-0000" * 3 + "-" + "0" * 12, "a UUID")
    kind = desired.get("filesystem")
    if kind not in (None, "ext4", "xfs"):
        raise _bad(f"{kind!r} is not a file system that winhost makes: ext4, xfs.")
    if "data" not in linux.accepted:
        raise refused("NotAccepted", "PermissionDenied", f"{key['serial']} is formatted with consent only.")
    (state,) = (record.state for record in data_disks(linux, None) if dict(record.key) == dict(key))
    if state["holds"]:
        raise refused("NotEmpty", "ResourceExists", f"{state['disk']} is not empty: {state['holds']}")
    if kind is None:
        raise _bad("A disk is formatted as a whole: say which file system, ext4 or xfs.")
    linux.part(DataDisks).format(str(state["disk"]), desired)


def mounts(linux: Linux, key: Key | None) -> Iterator[Record]:
    made = linux.part(DataDisks).mounts
    for path in [_check(_PLACES, key["path"], "a folder for data")] if key else sorted(made):
        yield Record(dict(made.get(path, _NO_MOUNT)), {"path": path})


def set_mount(linux: Linux, key: Key, desired: Mapping[str, Json]) -> None:
    """Raises CmdletError."""
    part, path = linux.part(DataDisks), key["path"]
    wanted = {**part.mounts.get(path, _NO_MOUNT), **desired}
    if not linux.distro.systemd:
        raise _wrong("Without systemd nothing would mount it.")
    if wanted["uuid"] is None:
        part.mounts.pop(path, None)
        return
    _check(_UUID, wanted["uuid"], "a UUID")
    if wanted["filesystem"] not in ("ext4", "xfs"):
        raise _bad("A mount says its file system, ext4 or xfs.")
    if wanted["options"] is not None:
        _check(_OPTIONS, wanted["options"], "options, as noatime,ro")
    if any(path in state["mounted"] for _, state in part.disks()) and path not in part.mounts:
        raise _wrong(f"Something is mounted at {path}.")
    if wanted["mounted"] and not part.named(wanted["uuid"]):
        raise _wrong(f"No file system here has the UUID {wanted['uuid']}.")
    part.mounts[path] = wanted


def _check(pattern: str, text: Json, says: str) -> str:
    if not isinstance(text, str) or re.fullmatch(pattern, text) is None:
        raise _bad(f"{text!r} is not {says}.")
    return text


def _bad(message: str) -> CmdletError:
    return refused("BadRequest", "InvalidArgument", message)


def _wrong(message: str) -> CmdletError:
    return refused("WrongPlace", "InvalidOperation", message)
