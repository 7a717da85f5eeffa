# key {disk: text}   state {size: bytes, serial: text | null, model: text | null, by_id: [text], table: text | null,
# filesystem: text | null, mounted: [text], holders: [text], read_only: bool}
from __future__ import annotations

from winhost.agent.linux_head import *

DISK_NAMES = Path("/dev/disk/by-id")
DISK_TYPES = ("part", "disk")


@reads("LinuxDisk", disk=ANY_TEXT)
def linux_disks(key: Key | None) -> Found:
    names = disk_names()
    for disk in read_block_devices():
        if disk.get("type") == "disk":
            yield {"disk": str(disk["name"])}, disk_state(disk, names)


def disk_state(disk: State, names: dict[str, list[str]]) -> State:
    inside = list(walk_devices(disk))
    mounted = {str(each["mountpoint"]) for each in inside if each.get("mountpoint")}
    return {
        "size": int(disk["size"]),
        "serial": strip_text(disk.get("serial")),
        "model": strip_text(disk.get("model")),
        "by_id": sorted(names.get(str(disk["kname"]), [])),
        "table": disk.get("pttype"),
        "filesystem": disk.get("fstype"),
        "mounted": sorted(mounted),
        "holders": sorted({str(each["name"]) for each in inside if each.get("type") not in DISK_TYPES}),
        "read_only": is_read_only(disk),
    }


def disk_names() -> dict[str, list[str]]:
    """Return the names in /dev/disk/by-id, by the device to which they point."""
    found: dict[str, list[str]] = {}
    for link in DISK_NAMES.iterdir() if DISK_NAMES.is_dir() else ():
        found.setdefault(Path(os.path.realpath(link)).name, []).append(link.name)
    return found
