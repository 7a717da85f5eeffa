# key {disk: text}   state {size: bytes, serial: text | null, model: text | null, by_id: [text], table: text | null,
# filesystem: text | null, mounted: [text], holders: [text], read_only: bool}
from __future__ import annotations

from winhost.agent.linux_head import *

BY_ID = Path("/dev/disk/by-id")
ON_DISKS = ("part", "disk")


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
        "holders": sorted({str(each["name"]) for each in inside if each.get("type") not in ON_DISKS}),
        "read_only": is_read_only(disk),
    }


def disk_names() -> dict[str, list[str]]:
    """The names in by-id, by what they point to; none where udev keeps none."""
    found: dict[str, list[str]] = {}
    for link in BY_ID.iterdir() if BY_ID.is_dir() else ():
        found.setdefault(Path(os.path.realpath(link)).name, []).append(link.name)
    return found
