# key {path: text}   state {uuid: text | null, filesystem: text | null, options: text | null, mounted: bool}
from __future__ import annotations

from winhost.agent.linux_head import *

MOUNT_UNITS = "/etc/systemd/system"
MOUNT_HEAD = "# Written by winhost: a file system for data, by its UUID.\n"
MOUNT_UNIT = (
    MOUNT_HEAD
    + """\
[Unit]
Description=Data at {path}

[Mount]
What=/dev/disk/by-uuid/{uuid}
Where={path}
Type={filesystem}
Options={options}

[Install]
WantedBy=multi-user.target
"""
)
ABSENT_MOUNT = {"uuid": None, "filesystem": None, "options": None, "mounted": False}
DISKS_BY_UUID = "/dev/disk/by-uuid"
UDEV_SECONDS = 10  # until udev has named a new file system


# The system needs nothing below these folders.
DATA_FOLDER = r"/(?:data|home|media|mnt|models|opt|srv|var/lib)(?:/[A-Za-z0-9_-][A-Za-z0-9._-]*)*"


@reads("Mount", path=text_check(DATA_FOLDER, "a folder for data, as /srv/models"))
def mounts(key: Key | None) -> Found:
    for path in [key["path"]] if key else sorted(filter(None, map(path_of_unit, Path(MOUNT_UNITS).glob("*.mount")))):
        yield {"path": path}, mount_state(path)


def mount_unit(path: str) -> str:
    """Return the unit's name, escaped as by systemd-escape."""
    escaped = "".join(each if each.isalnum() or each in "_./" else f"\\x{ord(each):02x}" for each in path[1:])
    return escaped.replace("/", "-") + ".mount"


def path_of_unit(unit: Path) -> str | None:
    found = re.search(r"^Where=(\S+)$", unit_text(unit.name) or "", re.MULTILINE)
    return found[1] if found else None


def unit_text(unit: str) -> str | None:
    """Return the text of a unit that winhost wrote, or None."""
    path = f"{MOUNT_UNITS}/{unit}"
    found = file_status(path)
    if found is None or not stat.S_ISREG(found.st_mode):
        return None
    text = read_file(path).decode("utf-8", "replace")
    return text if text.startswith(MOUNT_HEAD) else None


def mount_state(path: str) -> State:
    said = dict(re.findall(r"^(\w+)=(.*)$", unit_text(mount_unit(path)) or "", re.MULTILINE))
    if not said:
        return dict(ABSENT_MOUNT)
    uuid = said["What"].rpartition("/")[2]
    options = ",".join(each for each in said["Options"].split(",") if each != "nofail")
    device = mounted_at(path)
    here = device is not None and os.path.realpath(f"{DISKS_BY_UUID}/{uuid}") == os.path.realpath(device)
    return {
        "uuid": uuid,
        "filesystem": said["Type"],
        "options": options or None,
        "mounted": here and is_mount_enabled(path),
    }


def mounted_at(path: str) -> str | None:
    """Return the device of the file system that is mounted last at a path, or None."""
    found = None
    for line in read_file(f"/proc/{os.getpid()}/mountinfo").decode("utf-8", "replace").splitlines():
        mount, _, system = line.partition(" - ")
        if mount.split(" ")[4] == path:
            found = system.split(" ")[1]
    return found


def is_mount_enabled(path: str) -> bool:
    return systemd_runs() and run("systemctl", "is-enabled", "--quiet", "--", mount_unit(path)).code == 0


@changes("Mount", "uuid", "filesystem", "options", "mounted")
def change_mount(key: Key, desired: State, how: State) -> None:
    path = key["path"]
    before = mount_state(path)
    wanted = {**before, **desired}
    if not systemd_runs():
        raise wrong_state("Without systemd nothing would mount it.")
    if wanted["uuid"] is None:
        unmount(path, how, for_good=True)
        return
    check_mount(wanted)
    refuse_foreign_mounts(path)
    if before["uuid"] is not None:
        unmount(path, how, for_good=False)
    make_mount_point(path)
    write_mount(path, wanted)
    if wanted["mounted"]:
        uuid = wanted["uuid"]
        if poll(lambda: "" if Path(f"{DISKS_BY_UUID}/{uuid}").exists() else uuid, UDEV_SECONDS, 0.2):
            raise wrong_state(f"No file system here has the UUID {uuid}.")
        run_checked("systemctl", "enable", "--quiet", "--now", "--", mount_unit(path), within=seconds(how, 120))


def check_mount(wanted: State) -> None:
    check_text(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", wanted["uuid"], "a UUID")
    if wanted["filesystem"] not in ("ext4", "xfs"):
        raise bad_request("A mount says its file system, ext4 or xfs.")
    if wanted["options"] is not None:
        check_text(r"[A-Za-z0-9_=.:+-]+(?:,[A-Za-z0-9_=.:+-]+)*", wanted["options"], "options, as noatime,ro")


def refuse_foreign_mounts(path: str) -> None:
    """Refuse a path that a line of fstab, a unit of others or a manual mount uses."""
    fstab = read_file("/etc/fstab").decode("utf-8", "replace") if file_status("/etc/fstab") else ""
    if any(line.split()[1:2] == [path] for line in fstab.splitlines() if not line.lstrip().startswith("#")):
        raise wrong_state(f"/etc/fstab mounts {path}.")
    if unit_text(mount_unit(path)) is not None:
        return
    shown = run("systemctl", "show", "--property=FragmentPath", "--value", "--", mount_unit(path)).output.strip()
    if shown or file_status(f"{MOUNT_UNITS}/{mount_unit(path)}") is not None:
        raise not_owned_error(f"{mount_unit(path)} ({shown})")
    if mounted_at(path) is not None:
        raise wrong_state(f"{mounted_at(path)} is mounted at {path}.")


def make_mount_point(path: str) -> None:
    """Create the folder, or check that it is empty: the mount would hide its content."""
    try:
        with open_folder(path + "/x") as (folder, _):
            if os.listdir(folder):
                raise wrong_state(f"{path} is not empty; the mount would hide what is in it.")
    except FileNotFoundError:
        write_record("made", f"mount {path}", {"name": path})
        with open_folder(path + "/x", make=True):
            return


def write_mount(path: str, wanted: State) -> None:
    file = f"{MOUNT_UNITS}/{mount_unit(path)}"
    options = ",".join(filter(None, (wanted["options"], "nofail")))
    text = MOUNT_UNIT.format(path=path, uuid=wanted["uuid"], filesystem=wanted["filesystem"], options=options)
    validate(file, text)
    put(file, text)
    run_checked("systemctl", "daemon-reload")


def unmount(path: str, how: State, for_good: bool) -> None:
    """Unmount a path; for_good: and remove its unit and folder. The data stay on the disk."""
    unit = mount_unit(path)
    if unit_text(unit) is None:
        raise not_owned_error(f"{unit}")
    if mounted_at(path) is not None:
        # Stopping the unit instead would stop the units that require it.
        done = run("umount", "--", path, within=seconds(how, 120))
        if done.code != 0:
            raise AgentFault("Winhost.InUse", "ResourceBusy", done.errors.strip()[-500:], "umount")
    run("systemctl", "disable", "--quiet", "--", unit)
    if not for_good:
        return
    if find_record("made", f"mount {path}"):
        with suppress(OSError), open_folder(path) as (folder, name):
            os.rmdir(name, dir_fd=folder)
        remove_empty_parents(path)
        remove_record("made", f"mount {path}")
    # The unit is removed last: while it exists, a repeated call after an interruption removes the rest.
    remove(f"{MOUNT_UNITS}/{unit}")
    run_checked("systemctl", "daemon-reload")
    warn(f"The file system that was mounted at {path} stays on its disk, with all that is on it.")
