# key {serial: text, size: text}   state {disk: text, holds: [text], filesystem: text | null, label: text | null,
# uuid: text | null}
from __future__ import annotations

from winhost.agent.linux_head import *

FILE_SYSTEMS = ("ext4", "xfs")
NOTHING_FOUND = 2  # blkid
MIB = 1 << 20
SAMPLES, SAMPLE = 256, 4096  # samples of the middle, which detect most disks that have zeros at both ends


@reads("DataDisk", serial=ANY_TEXT, size=ANY_TEXT)
def data_disks(key: Key | None) -> Found:
    devices = read_block_devices()
    for device in devices:
        found = key_of_disk(device)
        if found and key in (None, found):
            alike = [str(each["name"]) for each in devices if key_of_disk(each) == found and each is not device]
            yield found, data_disk(device, alike)


def key_of_disk(device: State) -> Key | None:
    if device.get("type") == "rom":
        return None  # a drive, empty or with a CD
    serial = strip_text(device.get("serial"))
    return {"serial": serial, "size": str(device["size"])} if serial else None


def data_disk(device: State, alike: list[str]) -> State:
    name = str(device["kname"])
    told = value(lambda: probe_disk(name))
    failed = told if "unknown" in told else None
    return {
        "disk": str(device["name"]),
        "holds": value(lambda: list(device_users(device, alike)) or list(disk_signatures(name))),
        "filesystem": failed or (told.get("TYPE") if told.get("USAGE") == "filesystem" else None),
        "label": failed or told.get("LABEL"),
        "uuid": failed or told.get("UUID"),
    }


def probe_disk(name: str) -> dict[str, str]:
    """Probe the disk itself with blkid, without blkid's cache."""
    done = run("blkid", "--probe", "--output", "export", f"/dev/{name}")
    if done.code not in (0, NOTHING_FOUND):
        message = done.errors.strip() or f"blkid cannot tell what /dev/{name} holds."
        raise AgentFault("Winhost.ProgramFailed", "InvalidResult", message, "blkid", (f"exit {done.code}",))
    return dict(line.split("=", 1) for line in done.output.splitlines() if "=" in line)


def device_users(device: State, alike: list[str]) -> Iterator[str]:
    """Yield what uses the device according to the kernel, without reading from the device."""
    for each in walk_devices(device):
        if each is not device:
            yield f"{each['name']} ({each.get('type')})"
        told = (("pttype", "partition table"), ("fstype", "signature"), ("mountpoint", "use at"))
        yield from (f"{each['name']}: {says} {each[column]}" for column, says in told if each.get(column))
    if is_read_only(device):
        yield "it is read-only"
    for name in alike:
        yield f"the same serial number as {name}: two ways to one disk"
    yield from (f"it is part of {path.name}" for path in Path(f"/sys/class/block/{device['kname']}/holders").glob("*"))


def disk_signatures(name: str) -> Iterator[str]:
    """Yield the signatures and other contents that are found by reading the disk. Raises OSError if it is in use."""
    with open_device(name, alone=True) as disk:
        signatures = run_checked(
            "wipefs", "--no-act", "--noheadings", "--output", "TYPE,OFFSET", f"/dev/{name}", within=120
        )
        yield from (" at ".join(line.split()) for line in signatures.splitlines() if line.strip())
        yield from (f"{name_}: {found}" for name_, found in probe_disk(name).items() if name_ in ("TYPE", "PTTYPE"))
        size = os.lseek(disk, 0, os.SEEK_END)
        if any(os.pread(disk, MIB, 0)):
            yield "bytes other than zero in its first MiB"
        if any(os.pread(disk, MIB, max(0, size - MIB))):
            yield "bytes other than zero in its last MiB"
        if any(any(os.pread(disk, SAMPLE, at)) for at in sample_offsets(size)):
            yield "bytes other than zero in its middle"


def sample_offsets(size: int) -> Iterator[int]:
    """Yield offsets to sample: evenly spaced, and that of the second superblock of Btrfs."""
    yield from (at for at in (64 * MIB + 64 * 1024, 64 * MIB) if at < size)
    yield from (size // SAMPLES * number // SAMPLE * SAMPLE for number in range(SAMPLES))


@changes("DataDisk", "filesystem", "label", "uuid")
def change_data_disk(key: Key, desired: State, how: State) -> None:
    label = check_text(r"[A-Za-z0-9_-]{1,12}", desired.get("label", "data"), "a label")
    uuid = desired.get("uuid")
    if uuid is not None:
        check_text(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", uuid, "a UUID")
    kind = desired.get("filesystem")
    if kind not in (None, *FILE_SYSTEMS):
        raise bad_request(f"{kind!r} is not a file system that winhost makes: ext4, xfs.")
    if "data" not in how.get("accept", ()):
        raise AgentFault("Winhost.NotAccepted", "PermissionDenied", f"{key['serial']} is formatted with consent only.")
    refuse_nonempty_disk(key, next(state for found, state in data_disks(key) if found == key))
    if kind is None:
        raise bad_request("A disk is formatted as a whole: say which file system, ext4 or xfs.")
    (name,) = [str(each["kname"]) for each in read_block_devices() if key_of_disk(each) == key]
    make_file_system(name, kind, label, uuid, seconds(how, 1800))


def refuse_nonempty_disk(key: Key, state: State) -> None:
    held = state["holds"]
    if held != []:
        told = held["unknown"]["message"] if isinstance(held, dict) else "; ".join(held)
        message = f"{state['disk']} ({key['serial']}) is not empty, and stays as it is: {told}."
        raise AgentFault("Winhost.NotEmpty", "ResourceExists", message)


def make_file_system(name: str, kind: str, label: str, uuid: str | None, within: float) -> None:
    # While the device is open, its number is not given to another disk.
    with open_device(name, alone=False) as disk:
        refuse_other_disk(disk, name)
        if kind == "ext4":
            more = ("-U", uuid) if uuid else ()
            run_checked("mkfs.ext4", "-q", "-m", "0", "-L", label, *more, f"/dev/{name}", within=within)
        else:
            more = ("-m", f"uuid={uuid}") if uuid else ()
            run_checked("mkfs.xfs", "-q", "-L", label, *more, f"/dev/{name}", within=within)


def refuse_other_disk(disk: int, name: str) -> None:
    """Refuse a disk that is not the one that was checked, or that is no longer empty."""
    number = os.fstat(disk).st_rdev
    there: Any = Path(f"/dev/{name}").stat()
    if not stat.S_ISBLK(there.st_mode) or there.st_rdev != number or list(disk_signatures(name)):
        raise AgentFault("Winhost.NotEmpty", "ResourceExists", f"{name} is another disk now, or no longer empty.")
