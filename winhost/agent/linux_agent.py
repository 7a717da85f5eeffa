# Json {exclusive: bool, calls: [{resource, verb: get | set, key, want, expect, how}]}   answer {answers: [...]}
"""Constant text. Values come in as lines of JSON and go out as lines of JSON; none ever becomes part of a script."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import pwd
import re
import secrets
import select
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from grp import getgrgid, getgrnam
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

if TYPE_CHECKING:  # Python 3.8 cannot say these
    from collections.abc import Callable, Iterable, Iterator

    Key = dict[str, str]
    State = dict[str, Any]
    Found = Iterable[tuple[Key, State]]
    Get = Callable[[Key | None], Found]
    Set = Callable[[Key, State, State], None]
    Cuts = Callable[[Key], bool]

LOCK = "/run/winhost.lock"
KEPT = "/var/lib/winhost"  # what we must remember on the machine itself
PROGRAMS = (
    "apt-cache",
    "apt-get",
    "apt-mark",
    "docker",
    "dockerd",
    "dpkg",
    "dpkg-query",
    "dracut",
    "journalctl",
    "lsblk",
    "modinfo",
    "netplan",
    "nft",
    "nvidia-ctk",
    "nvidia-smi",
    "podman",
    "sshd",
    "systemctl",
    "systemd-analyze",
    "systemd-detect-virt",
    "update-initramfs",
    "visudo",
    "wslinfo",
)
PLACES = ("/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/lib/wsl/lib")  # the last has the nvidia-smi of WSL
ENVIRONMENT = {
    "PATH": ":".join(PLACES),
    "HOME": "/root",
    "LC_ALL": "C",
    "DEBIAN_FRONTEND": "noninteractive",
    "DEBIAN_PRIORITY": "critical",
    "APT_LISTCHANGES_FRONTEND": "none",
    # It would restart services by itself, sshd among them.
    "NEEDRESTART_MODE": "l",
    "UCF_FORCE_CONFFOLD": "1",
}
BEAT = 5.0  # seconds between signs of life while a call runs
LARGEST = 1 << 20  # bytes of a file that is read whole
CHANGES_FROM = (3, 10)  # of Python, as Ubuntu 22.04 has it: nothing older is tried with changes


# ---- what may go wrong, as data


class AgentFault(Exception):
    """An error with a code of ours."""

    def __init__(
        self, code: str, category: str, message: str, program: str = "", details: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.code, self.category, self.program, self.details = code, category, program, details


class NotThereYet(Exception):
    """It cannot be looked at before this resource is there."""


CATEGORIES = {
    "EACCES": "PermissionDenied",
    "EPERM": "PermissionDenied",
    "EROFS": "PermissionDenied",
    "ENOENT": "ObjectNotFound",
    "ELOOP": "InvalidOperation",
    "ENOTDIR": "InvalidOperation",
    "ENOSPC": "ResourceUnavailable",
    "UnicodeDecodeError": "InvalidData",
}


def describe_error(error: BaseException) -> State:
    """An error as the wire carries it. Codes are ours, errno's or Python's; the message may be in any language."""
    if isinstance(error, AgentFault):
        code, category, program, details = error.code, error.category, error.program, error.details
    else:
        number = error.errno if isinstance(error, OSError) else None
        code = errno.errorcode.get(number or 0, type(error).__name__)
        category, program, details = CATEGORIES.get(code, "NotSpecified"), "", ()
    return {"category": category, "code": code, "hresults": list(details), "cmdlet": program, "message": str(error)}


def bad_request(message: str) -> AgentFault:
    return AgentFault("Winhost.BadRequest", "InvalidArgument", message)


def wrong_place(message: str) -> AgentFault:
    return AgentFault("Winhost.WrongPlace", "InvalidOperation", message)


WARNINGS: list[str] = []


def warn(text: str) -> None:
    """Goes with the answer of the running call."""
    WARNINGS.append(text)


WAITS: list[str] = []


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """Meanwhile the signs of life say what is waited for."""
    WAITS.append(text)
    try:
        yield
    finally:
        WAITS.pop()


def doing(text: str) -> None:
    """Of what is waited for: how far it is."""
    WAITS[-1] = text


# ---- what resources are


class Entry(NamedTuple):
    key: tuple[str, ...]
    get: Get
    set: Set | None
    sets: tuple[str, ...]
    cuts: Cuts


RESOURCES: dict[str, Entry] = {}


def reads(resource: str, *key: str) -> Callable[[Get], Get]:
    """Declares what finds the instances of a resource: of one key, or of all that it knows without being asked."""

    def declare(get: Get) -> Get:
        RESOURCES[resource] = Entry(key, get, None, (), lambda key: False)
        return get

    return declare


def changes(resource: str, *properties: str, cuts: Cuts = lambda key: False) -> Callable[[Set], Set]:
    """Declares what changes these properties of an instance; it gets the key, the request, and how to go about it.

    cuts: of which instances a change may cut off whoever makes it. Such a change is undone by the machine itself
    unless it is asked for again through a new connection; `how` has `undoing` then.
    """

    def declare(change: Set) -> Set:
        RESOURCES[resource] = RESOURCES[resource]._replace(set=change, sets=properties, cuts=cuts)
        return change

    return declare


def entry(resource: str) -> Entry:
    if resource not in RESOURCES:
        raise AgentFault("Winhost.UnknownNoun", "InvalidArgument", f"There is no resource {resource}.")
    return RESOURCES[resource]


# ---- what resources read with

ONCE: dict[str, Any] = {}


def once(label: str, read: Callable[[], Any]) -> Any:
    """Read for this batch, and until the next change."""
    if label not in ONCE:
        ONCE[label] = read()
    return ONCE[label]


def value(read: Callable[[], Any]) -> Any:
    """What is read, or why it cannot be."""
    try:
        return read()
    except NotThereYet as unavailable:
        return {"unavailable": str(unavailable)}
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this property's
        return {"unknown": describe_error(error)}


def matching(pattern: str, text: Any, says: str) -> str:
    """The text, if it matches as a whole."""
    if not isinstance(text, str) or re.fullmatch(pattern, text) is None:
        raise bad_request(f"{text!r} is not {says}.")
    return text


# ---- programs


class Done(NamedTuple):
    code: int
    output: str
    errors: str


def place_of(program: str) -> str | None:
    """Where one of our programs is, or nothing."""
    if program not in PROGRAMS:
        raise bad_request(f"{program} is not among the programs that winhost runs.")
    paths = (f"{folder}/{program}" for folder in PLACES)
    return next((path for path in paths if os.access(path, os.X_OK)), None)


def run(
    program: str, *arguments: str, within: float = 60, more: dict[str, str] | None = None, given: int | None = None
) -> Done:
    """One of our programs, without a shell. It ends within so many seconds, or is ended.

    more: of its environment; given: an open file, to read from its stdin.
    """
    path = place_of(program)
    if path is None:
        raise AgentFault("Winhost.NoProgram", "ObjectNotFound", f"{program} is not there.", program)
    process = subprocess.Popen(  # noqa: S603 - no shell; the program is one of ours
        [path, *arguments],
        stdin=subprocess.DEVNULL if given is None else given,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
        env={**ENVIRONMENT, **(more or {})},
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=within)
    except subprocess.TimeoutExpired:
        end(process)
        message = f"{program} did not end within {within:.0f} s."
        raise AgentFault("Winhost.ProgramTimedOut", "OperationTimeout", message, program) from None
    return Done(process.returncode, output.decode("utf-8", "replace"), errors.decode("utf-8", "replace"))


def end(process: subprocess.Popen[bytes]) -> None:
    """It and its children: first asked, because a package half unpacked is worse than ten seconds."""
    for how, seconds in ((signal.SIGTERM, 10), (signal.SIGKILL, 10)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=seconds)
            return


def must(
    program: str, *arguments: str, within: float = 60, more: dict[str, str] | None = None, given: int | None = None
) -> str:
    """What a program says when it succeeds."""
    done = run(program, *arguments, within=within, more=more, given=given)
    if done.code != 0:
        message = (done.errors.strip() or done.output.strip())[-2000:]
        raise AgentFault("Winhost.ProgramFailed", "InvalidResult", message, program, (f"exit {done.code}",))
    return done.output


def seconds(how: State, least: float) -> float:
    """How long a slow change may take."""
    return max(least, float(how.get("within") or 0))


def systemd_runs() -> bool:
    return Path("/run/systemd/system").is_dir()


# ---- files: no symbolic link is followed, whatever part of the path it is


@contextmanager
def folder_of(path: str, make: bool = False) -> Iterator[tuple[int, str]]:
    """The opened folder of a path, and the name in it."""
    *folders, name = path.strip("/").split("/")
    here = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    try:
        for folder in folders:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(folder, 0o755, dir_fd=here)
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
            here, above = os.open(folder, flags, dir_fd=here), here
            os.close(above)
        yield here, name
    finally:
        os.close(here)


def status(path: str) -> os.stat_result | None:
    """What is there, itself and not what it points to; nothing where it or its folder is not."""
    try:
        with folder_of(path) as (folder, name):
            return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def link(path: str) -> str:
    with folder_of(path) as (folder, name):
        return os.readlink(name, dir_fd=folder)


@contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """A regular file, to read."""
    with folder_of(path) as (folder, name):
        number = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    with os.fdopen(number, "rb") as file:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise wrong_place(f"{path} is no file.")
        yield file


def content(path: str) -> bytes:
    """Of a regular file."""
    with opened(path) as file:
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise wrong_place(f"{path} is larger than 1 MiB.")
    return data


@contextmanager
def appended(path: str, most: int) -> Iterator[BinaryIO]:
    """A file of ours, to write on at its end. One that is longer than it can become is begun anew."""
    with folder_of(path, make=True) as (folder, name):
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        number = os.open(name, flags, 0o644, dir_fd=folder)
    with os.fdopen(number, "ab") as file:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise wrong_place(f"{path} is no file.")
        if os.fstat(number).st_size > most:
            os.ftruncate(number, 0)
        yield file
        file.flush()
        os.fsync(number)


def move(path: str, to: str) -> None:
    """Within a file system, so that everybody sees it whole or not at all."""
    with folder_of(path) as (folder, name), folder_of(to, make=True) as (target, called):
        os.rename(name, called, src_dir_fd=folder, dst_dir_fd=target)
        os.fsync(target)


def sha256_of(file: BinaryIO) -> str:
    """Of all of it; it is at its beginning again then."""
    file.seek(0)
    digest = hashlib.sha256()
    for piece in iter(lambda: file.read(LARGEST), b""):
        digest.update(piece)
    file.seek(0)
    return digest.hexdigest()


def put(path: str, text: str, mode: int = 0o644, owner: str = "root:root") -> None:
    """Writes beside and renames, so that everybody sees the old or the new file, also after a power cut."""
    user, group = ids(owner)

    def make(folder: int, beside: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(beside, flags, 0o600, dir_fd=folder), "wb") as file:
            file.write(text.encode("utf-8"))
            os.fchown(file.fileno(), user, group)
            os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())

    place(path, make)


def put_link(path: str, to: str) -> None:
    place(path, lambda folder, beside: os.symlink(to, beside, dir_fd=folder))


def place(path: str, make: Callable[[int, str], None]) -> None:
    """Put at the path what `make` makes under another name beside it."""
    with folder_of(path, make=True) as (folder, name):
        beside = f".{name}.winhost-{secrets.token_hex(8)}"
        try:
            make(folder, beside)
            os.rename(beside, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(beside, dir_fd=folder)
            raise
        os.fsync(folder)


def write_to_kernel(path: str, text: str) -> None:
    """Into a file of /proc/sys, which is no file and has to be written at once."""
    with folder_of(path) as (folder, name):
        opened = os.open(name, os.O_WRONLY | os.O_NOFOLLOW, dir_fd=folder)
        with os.fdopen(opened, "wb", buffering=0) as file:
            file.write(text.encode("ascii"))


def remove(path: str) -> None:
    """A file or a link; that it is not there is as good."""
    with suppress(FileNotFoundError), folder_of(path) as (folder, name):
        os.unlink(name, dir_fd=folder)
        os.fsync(folder)


def check_room(path: str, needed: int) -> None:
    """On the file system of a folder that may not be there yet. Some stays free: one without any room stops much."""
    folder = next(each for each in (Path(path), *Path(path).parents) if each.is_dir())
    found = os.statvfs(folder)
    free, spare = found.f_bavail * found.f_frsize, min(found.f_blocks * found.f_frsize // 20, 5 << 30)
    if needed + spare > free:
        message = f"{folder} has {free:,} bytes left, and {needed:,} are needed, with {spare:,} to spare."
        raise AgentFault("Winhost.NoRoom", "ResourceUnavailable", message)


def ids(owner: str) -> tuple[int, int]:
    """The numbers of `user:group`."""
    user, _, group = owner.partition(":")
    try:
        return pwd.getpwnam(user).pw_uid, getgrnam(group).gr_gid
    except KeyError as error:
        raise bad_request(f"{owner}: {error.args[0]}") from None


def owner_of(found: os.stat_result) -> str:
    """`user:group`, in numbers where nobody is called so."""
    user, group = str(found.st_uid), str(found.st_gid)
    with suppress(KeyError):
        user = pwd.getpwuid(found.st_uid).pw_name
    with suppress(KeyError):
        group = getgrgid(found.st_gid).gr_name
    return f"{user}:{group}"


# ---- the new text of a file, before it takes the place of the old one

CHECKS = "/run/winhost"


def validate(path: str, text: str) -> None:
    """By the program that will read it. Raises AgentFault with what that says."""
    validators = (
        ("/etc/ssh/sshd_config.d/", validate_sshd),
        ("/etc/sudoers.d/", validate_sudoers),
        ("/etc/netplan/", validate_netplan),
        ("/etc/nftables.d/", validate_nft),
        ("/etc/systemd/system/", validate_unit),
        ("/etc/docker/daemon.json", validate_json),
    )
    folder = f"{CHECKS}/check-{secrets.token_hex(8)}"
    for start, validator in validators:
        if path.startswith(start):
            try:
                validator(path, text, folder)
            finally:
                shutil.rmtree(folder, ignore_errors=True)


def invalid(path: str, program: str, said: str, folder: str) -> AgentFault:
    message = f"{program} refuses the new {path}: {said.replace(folder, '').strip()[-1000:]}"
    return AgentFault("Winhost.NotValid", "InvalidData", message, program)


def copy_beside(path: str, text: str, folder: str) -> None:
    """The files of a folder as they are, with the new one among them."""
    for each in Path(path).parent.glob("*"):
        found = status(str(each))
        if found is not None and stat.S_ISREG(found.st_mode):
            put(f"{folder}/{each.name}", content(str(each)).decode("utf-8", "replace"), 0o600)
    put(f"{folder}/{Path(path).name}", text, 0o600)


def validate_sshd(path: str, text: str, folder: str) -> None:
    copy_beside(path, text, f"{folder}/sshd_config.d")
    main = content("/etc/ssh/sshd_config").decode("utf-8", "replace")
    inside = re.sub(r"(?:/etc/ssh/)?sshd_config\.d/", f"{folder}/sshd_config.d/", main)
    put(f"{folder}/sshd_config", inside, 0o600)
    done = run("sshd", "-t", "-f", f"{folder}/sshd_config")
    if done.code != 0:
        raise invalid(path, "sshd", done.errors, folder)


def validate_sudoers(path: str, text: str, folder: str) -> None:
    put(f"{folder}/sudoers", text, 0o440)
    done = run("visudo", "-c", "-f", f"{folder}/sudoers")
    if done.code != 0:
        raise invalid(path, "visudo", done.errors + done.output, folder)


def validate_netplan(path: str, text: str, folder: str) -> None:
    copy_beside(path, text, f"{folder}/etc/netplan")
    done = run("netplan", "generate", "--root-dir", folder)
    if done.code != 0:
        raise invalid(path, "netplan", done.errors + done.output, folder)


def validate_nft(path: str, text: str, folder: str) -> None:
    put(f"{folder}/rules.nft", text, 0o600)
    done = run("nft", "-c", "-f", f"{folder}/rules.nft")
    if done.code != 0:
        raise invalid(path, "nft", done.errors, folder)


def validate_unit(path: str, text: str, folder: str) -> None:
    """What systemd would ignore is refused, too; a program that a later step brings is none of its business."""
    unit, _, drop_in = path[len("/etc/systemd/system/") :].partition("/")
    unit = unit[: -len(".d")] if drop_in else unit
    if place_of("systemd-analyze") is None or not unit.endswith((".service", ".socket", ".path", ".timer", ".mount")):
        return
    # A template is read as one of its instances.
    unit = unit.replace("@.", "@winhost.")
    if drop_in:
        put(f"{folder}/{unit}", fragment(unit))
    put(f"{folder}/{unit}.d/{drop_in}" if drop_in else f"{folder}/{unit}", text)
    said = run("systemd-analyze", "verify", "--man=no", f"{folder}/{unit}").errors.splitlines()
    faults = [line for line in said if re.search(rf"{re.escape(folder)}\S*:[0-9]+: |bad unit file setting", line)]
    if faults:
        raise invalid(path, "systemd-analyze", "; ".join(said), folder)


def fragment(unit: str) -> str:
    """The file of a unit, or what has no fault where there is none yet."""
    found = run("systemctl", "show", "--property=FragmentPath", "--value", "--", unit).output.strip()
    if found.startswith(("/usr/lib/", "/lib/", "/etc/", "/run/")) and Path(found).is_file():
        return content(str(Path(found).resolve())).decode("utf-8", "replace")
    return "[Service]\nExecStart=/bin/true\n" if unit.endswith(".service") else "[Unit]\n"


def validate_json(path: str, text: str, folder: str) -> None:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise invalid(path, "json", str(error), folder) from None
    if not isinstance(found, dict):
        raise invalid(path, "json", "it is no object", folder)


# ---- packages

# What brings a kernel module or a libcuda of its own.
GPU_DRIVERS = re.compile(
    r"cuda-drivers.*|libcuda1|libnvidia-compute-\d+.*|linux-modules-nvidia-.*"
    r"|nvidia-(dkms|driver|headless|kernel|open)(-.*)?|xserver-xorg-video-nvidia.*"
)


def in_wsl() -> bool:
    return "microsoft" in os.uname().release.lower()


def refuse_gpu_driver_in_wsl(coming: Iterable[str]) -> None:
    drivers = sorted(name for name in coming if GPU_DRIVERS.fullmatch(name))
    if drivers and in_wsl():
        message = "WSL uses the driver of Windows; {} would hide it.".format(", ".join(drivers))
        raise AgentFault("Winhost.DriverInWsl", "InvalidOperation", message, "apt-get")


class Package(NamedTuple):
    version: str
    held: bool
    needs: tuple[str, ...]


def packages() -> dict[str, Package]:
    """The packages that dpkg calls installed, by name."""
    found: dict[str, Package] = once("packages", read_packages)
    return found


def read_packages() -> dict[str, Package]:
    fields = "${db:Status-Abbrev}\t${Package}\t${Version}\t${Pre-Depends}, ${Depends}\n"
    found = {}
    for line in must("dpkg-query", "--show", "--showformat=" + fields).splitlines():
        status_, name, version, needs = line.split("\t")
        if status_[1] == "i":
            names = tuple(re.findall(r"(?:^|[,|])\s*([a-z0-9][a-z0-9+.-]+)", needs))
            found[name] = Package(version, status_[0] == "h", names)
    return found


# What every change by apt has in common. Whoever asks has seen what goes, and nobody is there to be asked.
APT_GET = (
    "-q",
    "-y",
    "--no-install-recommends",
    "--allow-downgrades",
    "-oDpkg::Options::=--force-confdef",
    "-oDpkg::Options::=--force-confold",
)
LONG = 1800  # seconds: a slow mirror and a slow disk
DPKG_LOCK = "/var/lib/dpkg/lock-frontend"


def await_packages(how: State) -> None:
    """Until cloud-init has ended and nobody else installs anything. What was broken off is finished then: a machine
    that went down half-way leaves packages unpacked, and apt would refuse everything.
    """
    wait_while(first_boot, "cloud-init", how)
    wait_while(installing, "another installation of packages", how)
    if any(Path("/var/lib/dpkg/updates").iterdir()):
        warn("An installation that was broken off was finished first.")
        must("dpkg", "--force-confdef", "--force-confold", "--configure", "--pending", within=seconds(how, LONG))
        ONCE.clear()


def wait_while(busy: Callable[[], bool], what: str, how: State) -> None:
    limit = float(how.get("within") or 600)
    over = time.monotonic() + limit
    with waiting(f"waiting for {what} to end, for up to {limit:.0f} s"):
        while busy():
            if time.monotonic() > over:
                message = f"{what} has not ended within {limit:.0f} s."
                raise AgentFault("Winhost.PackagesBusy", "ResourceBusy", message)
            time.sleep(0.5)


def first_boot() -> bool:
    """cloud-init was started with this boot and has not said how it ended."""
    return status("/run/cloud-init/enabled") is not None and status("/run/cloud-init/result.json") is None


def installing() -> bool:
    """Somebody holds the lock that apt and dpkg take."""
    if status(DPKG_LOCK) is None:
        return False
    with folder_of(DPKG_LOCK) as (folder, name):
        lock = os.open(name, os.O_RDWR | os.O_NOFOLLOW, dir_fd=folder)
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            raise
        return True
    finally:
        os.close(lock)
    return False


def apt_get(how: State, *arguments: str) -> str:
    lock = f"-oDPkg::Lock::Timeout={seconds(how, LONG):.0f}"
    return must("apt-get", *APT_GET, lock, *arguments, within=seconds(how, LONG) + 60)


# ---- GPUs

PCI = Path("/sys/bus/pci/devices")
FUNCTION = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])")
MEMORY_BAR, PREFETCHABLE_BAR = 0x200, 0x2000  # flags of a resource: IORESOURCE_MEM, IORESOURCE_PREFETCH
SMI_COLUMNS = "--query-gpu=pci.bus_id,uuid,name,memory.total"


def gpus() -> Iterator[tuple[str, State]]:
    """NVIDIA's, as the PCI bus and nvidia-smi know them, by address."""
    on_bus = {path.name: path for path in sorted(PCI.iterdir()) if is_gpu(path)} if PCI.is_dir() else {}
    listed, otherwise = listed_gpus()
    for address in sorted({*on_bus, *listed}):
        yield address, {**of_bus(on_bus.get(address)), **listed.get(address, otherwise)}


def is_gpu(path: Path) -> bool:
    """Display controllers of NVIDIA: VGA and 3D."""
    return sysfs_text(path, "vendor") == "0x10de" and sysfs_text(path, "class").startswith("0x03")


def of_bus(path: Path | None) -> State:
    if path is None:
        return {"device": None, "driver": None, "numa": None, "bars": []}
    node, bound = int(sysfs_text(path, "numa_node") or -1), path / "driver"
    return {
        "device": sysfs_text(path, "vendor")[2:] + ":" + sysfs_text(path, "device")[2:],
        "driver": Path(os.readlink(bound)).name if bound.is_symlink() else None,
        "numa": node if node >= 0 else None,
        "bars": pci_bars(sysfs_text(path, "resource")),
    }


def pci_bars(text: str) -> list[State]:
    """Its first six lines are the BARs: start, end and flags."""
    found = []
    for index, line in enumerate(text.splitlines()[:6]):
        start, end, flags = (int(each, 16) for each in line.split())
        if flags & MEMORY_BAR and end > start:
            prefetchable = bool(flags & PREFETCHABLE_BAR)
            found.append({"index": index, "start": start, "size": end - start + 1, "prefetchable": prefetchable})
    return found


def sysfs_text(path: Path, name: str) -> str:
    """A file of a device, whose folder on the bus is a link; nothing where there is none."""
    file = os.path.realpath(path) + "/" + name
    return content(file).decode("ascii").strip() if Path(file).exists() else ""


def listed_gpus() -> tuple[dict[str, State], State]:
    """By address; and what is so of one that is not listed."""
    names = ("name", "uuid", "vram")
    if place_of("nvidia-smi") is None:
        return {}, dict.fromkeys(names)
    try:
        said = must("nvidia-smi", SMI_COLUMNS, "--format=csv,noheader,nounits", within=30)
    except Exception as error:  # noqa: BLE001 - a GPU is there, whatever nvidia-smi says
        why = {"unknown": describe_error(error)}
        return {}, dict.fromkeys(names, why)
    return smi_gpus(said), dict.fromkeys(names)


def smi_gpus(text: str) -> dict[str, State]:
    found = {}
    for line in text.splitlines():
        address, uuid, name, memory = (part.strip() for part in line.split(",", 3))
        matched = FUNCTION.fullmatch(address.lower())
        if matched and memory.isdigit():
            # It writes the domain with eight digits, sysfs with four.
            at = f"{int(matched[1], 16):04x}:{matched[2]}"
            found[at] = {"name": name, "uuid": uuid, "vram": int(memory) << 20}
    return found


# ---- one call


def instances(resource: str, key: Key | None) -> list[State]:
    known = entry(resource)
    if key is not None and (set(key) != set(known.key) or not all(isinstance(part, str) for part in key.values())):
        # Half a key would name several things; changing the first of them is not what anybody asked for.
        raise bad_request("The key is {}.".format(", ".join(sorted(known.key))))
    found = [{"key": each, "state": as_kept(resource, each, state)} for each, state in known.get(key)]
    return [each for each in found if key is None or each["key"] == key]


def state_of(resource: str, key: Key) -> State | None:
    found = instances(resource, key)
    return found[0]["state"] if found else None


def same(one: Any, other: Any) -> bool:
    """As JSON: 1 is not true."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def differences(desired: State, state: State) -> State:
    unknown = sorted(set(desired) - set(state))
    if unknown:
        raise bad_request("There is no property {}.".format(", ".join(unknown)))
    return {
        name: {"expected": each, "found": state[name]} for name, each in desired.items() if not same(each, state[name])
    }


def get_answer(call: State) -> State:
    if call.get("key") is None:
        return {"ok": True, "instances": instances(call["resource"], None)}
    return {"ok": True, "state": state_of(call["resource"], call["key"])}


def refuse_old_python(version: tuple[int, int, int]) -> None:
    if version < CHANGES_FROM:
        found, oldest = (".".join(map(str, each)) for each in (version, CHANGES_FROM))
        message = f"Python {found} can read this machine. A change needs Python {oldest} or later: upgrade the distro."
        raise AgentFault("Winhost.PythonTooOld", "NotInstalled", message)


def set_answer(call: State) -> State:
    refuse_old_python(sys.version_info[:3])
    ONCE.clear()
    before = state_before(call)
    resource, key, desired = call["resource"], call["key"], call["desired"]
    known = entry(resource)
    drift = differences(call.get("expect") or {}, before)
    if drift:
        return {"ok": False, "drift": drift, "before": before}
    missing = {name: desired[name] for name in differences(desired, before)}
    if not missing:
        if awaiting(resource, key):
            undo_unkept()  # as it was found is what is wanted now
        return {"ok": True, "before": before, "after": before, "restart": []}
    foreign = sorted(set(missing) - set(known.sets))
    if foreign:
        raise bad_request("{} cannot be set.".format(", ".join(foreign)))
    try:
        (set_revocably if known.cuts(key) else set_for_good)(call, before, missing)
    except Exception as error:  # noqa: BLE001 - with what it left behind
        ONCE.clear()
        return {
            "ok": False,
            "error": describe_error(error),
            "before": before,
            "after": value(lambda: state_of(resource, key)),
        }
    ONCE.clear()
    return {"ok": True, "before": before, "after": state_of(resource, key), "restart": []}


def state_before(call: State) -> State:
    if entry(call["resource"]).set is None:
        raise bad_request("{} cannot be asked to set.".format(call["resource"]))
    if call.get("key") is None or call.get("desired") is None:
        raise bad_request("A set says of what, and what it wants.")
    before = state_of(call["resource"], call["key"])
    if before is None:
        raise AgentFault("Winhost.NotFound", "ObjectNotFound", "There is no such {}.".format(call["resource"]))
    return before


def set_for_good(call: State, before: State, missing: State) -> None:
    change = entry(call["resource"]).set
    assert change is not None
    change(call["key"], missing, call.get("how") or {})


VERBS = {"get": get_answer, "set": set_answer}


def answer(call: State) -> State:
    del WARNINGS[:]
    try:
        if call.get("verb") not in VERBS:
            raise bad_request("The verb is get or set.")
        given = VERBS[call["verb"]](call)
    except NotThereYet as unavailable:
        return {"ok": False, "unavailable": str(unavailable)}
    except Exception as error:  # noqa: BLE001 - errors are data
        given = {"ok": False, "error": describe_error(error)}
    return dict(given, warnings=list(WARNINGS))


# ---- changes that may cut off whoever makes them: the machine undoes them unless they are asked for again

UNDO = f"{KEPT}/undo"
RECORD, UNDOER = f"{UNDO}/record.json", f"{UNDO}/agent.py"
UNDO_UNIT = "/etc/systemd/system/winhost-undo"
UNDO_SERVICE = """\
# Written by winhost. A change that may have cut SSH access is undone, unless winhost comes back over a new connection.
[Unit]
Description=Undo what winhost changed and nobody kept
StartLimitIntervalSec=0

[Service]
Type=oneshot
ExecStart={} -I {}
Restart=on-failure
RestartSec=10
"""
# Enabled, so that a restart meanwhile puts it off and does not end it.
UNDO_TIMER = """\
# Written by winhost.
[Unit]
Description=The time within which winhost comes back

[Timer]
OnActiveSec={}
AccuracySec=1s

[Install]
WantedBy=timers.target
"""


def set_revocably(call: State, before: State, missing: State) -> None:
    """The first call changes and never ends well; the same once more, through a new connection, keeps it."""
    resource, key, how = call["resource"], call["key"], call.get("how") or {}
    record = unkept()
    if record and record["phase"] == "undone" and is_of(record, resource, key):
        remove(RECORD)
        if same(record["desired"], missing):
            message = "Nobody came back within {} s of this change, so it was undone.".format(record["within"])
            raise AgentFault("Winhost.Undone", "OperationStopped", message)
    elif record and record["phase"] == "awaiting":
        if not is_of(record, resource, key):
            message = "Another change waits to be kept or undone: {}.".format(record["resource"])
            raise AgentFault("Winhost.Awaiting", "ResourceBusy", message)
        if same(record["desired"], missing):
            keep(record, how)
            return
        undo_unkept()
    begin(resource, key, {name: before[name] for name in missing}, missing, how)


def begin(resource: str, key: Key, before: State, missing: State, how: State) -> None:
    if not systemd_runs():
        raise wrong_place("Without systemd nothing would undo this change if it cut SSH access.")
    within = max(5, int(float(how.get("within") or 300)))
    record = {"resource": resource, "key": key, "before": before, "desired": missing, "within": within}
    record["accept"] = list(how.get("accept", ()))
    arm(dict(record, phase="awaiting", connection=connection(), changed_at=None))
    try:
        set_for_good({"resource": resource, "key": key, "how": how}, before, missing)
    except BaseException:
        undo_unkept()
        remove(RECORD)
        raise
    save_record(dict(record, phase="awaiting", connection=connection(), changed_at=since_boot()))
    raise come_back(within)


def come_back(within: int) -> AgentFault:
    message = f"It stands, and is undone in {within} s unless the same is asked for through a new connection."
    return AgentFault("Winhost.ComeBack", "OperationStopped", message)


def keep(record: State, how: State) -> None:
    """Only who got in since has shown that one still can; at the machine itself, whoever says that they looked."""
    here = connection()
    new = here and here["id"] != (record["connection"] or {}).get("id")
    since = record["changed_at"] is not None and (here or {}).get("began", 0) >= record["changed_at"]
    if not (new and since) and not (not here and how.get("keep")):
        raise come_back(record["within"])
    remove(RECORD)
    disarm()


def undo_unkept() -> None:
    """Put back what was found before. Raises what that raises, and then it is tried again."""
    record = unkept()
    if record is None or record["phase"] != "awaiting":
        return
    set_for_good({**record, "how": {"undoing": True, "accept": record["accept"]}}, {}, record["before"])
    save_record(dict(record, phase="undone"))
    disarm()


def undo_by_timer() -> None:
    lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    undo_unkept()


def unkept() -> State | None:
    found: State | None = None if status(RECORD) is None else json.loads(content(RECORD))
    return found


def is_of(record: State, resource: str, key: Key) -> bool:
    return bool(record["resource"] == resource and record["key"] == key)


def awaiting(resource: str, key: Key) -> State | None:
    record = once("unkept", unkept)
    return record if record and record["phase"] == "awaiting" and is_of(record, resource, key) else None


def as_kept(resource: str, key: Key, state: State) -> State:
    """What nobody has kept yet may go back to how it was."""
    record = awaiting(resource, key)
    return {**state, **record["before"]} if record else state


def save_record(record: State) -> None:
    put(RECORD, json.dumps(record) + "\n", 0o600)
    ONCE.clear()


def arm(record: State) -> None:
    program = globals().get("PROGRAM")
    if not isinstance(program, str):
        raise wrong_place("This agent was started in a way in which it cannot undo a change by itself.")
    put(UNDOER, re.sub(r"serve\(\)\n\Z", "", program) + f"\n{undo_by_timer.__name__}()\n", 0o600)
    put(f"{UNDO_UNIT}.service", UNDO_SERVICE.format(sys.executable, UNDOER))
    put(f"{UNDO_UNIT}.timer", UNDO_TIMER.format(record["within"]))
    save_record(record)
    must("systemctl", "daemon-reload")
    must("systemctl", "enable", "--quiet", "winhost-undo.timer")
    must("systemctl", "restart", "winhost-undo.timer")


def disarm() -> None:
    run("systemctl", "disable", "--now", "--quiet", "winhost-undo.timer")
    for path in (f"{UNDO_UNIT}.timer", f"{UNDO_UNIT}.service", UNDOER):
        remove(path)
    run("systemctl", "daemon-reload")


def since_boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def connection() -> State | None:
    """The sshd process of this very connection, and when it began; nothing at the machine itself."""
    boot = content("/proc/sys/kernel/random/boot_id").decode("ascii").strip()
    process = os.getpid()
    while process > 1:
        name, _, rest = content(f"/proc/{process}/stat").decode("utf-8", "replace").rpartition(")")
        fields = rest.split()
        if name.partition("(")[2].startswith("sshd"):
            return {"id": f"{boot} {process} {fields[19]}", "began": int(fields[19]) / os.sysconf("SC_CLK_TCK")}
        process = int(fields[1])
    return None


# ---- a batch


def batch(calls: list[State]) -> Iterator[State]:
    failed = False
    for call in calls:
        changes_ = call.get("verb") != "get"
        if changes_ and failed:
            skipped = AgentFault("Winhost.Skipped", "OperationStopped", "A call before it failed.")
            yield {"ok": False, "error": describe_error(skipped), "warnings": []}
            continue
        given = answer(call)
        failed = failed or (changes_ and not given["ok"])
        yield given


class LineWire:
    """Lines of JSON on what were stdin and stdout. What anything else prints goes to stderr."""

    def __init__(self) -> None:
        self.out = os.dup(1)
        os.dup2(2, 1)
        self.turn = threading.Lock()

    def receive(self) -> bytes:
        """The next request; nothing when the controller is gone."""
        return sys.stdin.buffer.readline()

    def send(self, line: bytes) -> None:
        """Where nobody listens any more, the answer is lost; what was done stays done."""
        with self.turn, suppress(OSError):
            while line:
                line = line[os.write(self.out, line) :]

    def gone(self, within: float) -> bool:
        """One request at a time: what there is to read meanwhile can only be the end."""
        return bool(select.select([0], [], [], within)[0])

    @contextmanager
    def alive(self) -> Iterator[None]:
        """Meanwhile a line now and then: a slow call and a dead machine must not look the same. It is empty, or says
        what is waited for.
        """
        done = threading.Event()

        def beat() -> None:
            while not done.wait(BEAT):
                said = [json.dumps({"waiting": text}) for text in WAITS[-1:]]
                self.send("".join(said).encode("ascii") + b"\n")

        beating = threading.Thread(target=beat, daemon=True)
        beating.start()
        try:
            yield
        finally:
            done.set()
            beating.join()


@contextmanager
def alone(wire: LineWire) -> Iterator[None]:
    """Machine-wide: a call that outlived its controller still holds it, and is waited for instead of raced."""
    lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        while not taken(lock):
            if wire.gone(0.2):
                sys.exit()  # nobody waits for it any more
        yield
    finally:
        os.close(lock)


def taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def answers(request: State, wire: LineWire) -> list[State]:
    calls = request["calls"]
    if not request.get("exclusive") and all(call.get("verb") == "get" for call in calls):
        return list(batch(calls))
    try:
        with alone(wire):
            return list(batch(calls))
    except OSError as error:
        return [{"ok": False, "error": describe_error(error), "warnings": []} for _ in calls]


def serve() -> None:
    """Answer until the controller is gone. A call that runs then is brought to its end."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.umask(0o022)
    wire = LineWire()
    while True:
        line = wire.receive()
        if not line:
            return
        with wire.alive():
            ONCE.clear()
            given = {"answers": answers(json.loads(line), wire)}
        wire.send(json.dumps(given).encode("ascii") + b"\n")
