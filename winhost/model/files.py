"""Reads files up to a limit, and writes them atomically, never through a link.

Others must not be able to write a file that winhost acts on, because they would decide what winhost does. Anybody who
can write one of the folders that lead to a file can replace the file.
"""

import errno
import os
import re
import shlex
import stat
import struct
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from enum import IntEnum
from hashlib import file_digest
from pathlib import Path
from typing import IO

from winhost.core.dataclass import dataclass
from winhost.model.errors import UsageError, did_you_mean, visible
from winhost.model.units import Bytes, size

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)


def suggest_sibling(path: Path) -> str:
    """Return `; did you mean 'facts.json'?` if a path does not exist and its folder has a file with a similar name;
    else an empty text.
    """
    try:
        return "" if path.exists() else did_you_mean(path.name, sorted(each.name for each in path.parent.iterdir()))
    except OSError:
        return ""


class TooLarge(Exception):
    """A file is larger than its kind can be. The message continues a sentence that begins with the file's name."""


def read_within(path: Path, limit: Bytes) -> bytes:
    """Read a file of at most `limit` bytes. Raises TooLarge without reading more, and OSError."""
    with path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise TooLarge(f"is larger than {size(limit)}, which no file of this kind needs")
    return data


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits. Raises OSError."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def write_whole(path: Path, pieces: Iterable[str | bytes], *, mode: int = 0o644) -> None:
    """Write a file like `fill_whole`, text in UTF-8."""

    def write(file: IO[bytes]) -> None:
        for piece in pieces:
            file.write(piece.encode() if isinstance(piece, str) else piece)

    fill_whole(path, write, mode=mode)


def fill_whole(path: Path, fill: Callable[[IO[bytes]], None], *, mode: int = 0o644) -> None:
    """Write a file atomically. An existing file keeps its read permissions, unless the new mode is private; only the
    owner can write the file.

    A link is refused, because the user did not name the file that it leads to. A device such as /dev/stdout is written
    directly. fill: writes the content, and may seek; mode: of a new file, before the umask. Raises OSError with the
    name of this file.
    """
    try:
        if path.parent == Path("/dev") or (path.exists() and not path.is_file()):
            with path.open("wb") as device:
                fill(device)
        elif path.is_symlink():
            raise OSError(errno.ELOOP, "it is a symbolic link; name the file itself")
        else:
            _replace(path, mode, fill)
    except OSError as error:
        error.filename = str(path)
        raise


def _replace(path: Path, mode: int, fill: Callable[[IO[bytes]], None]) -> None:
    temporary = path.with_name(f".winhost-{os.urandom(8).hex()}")
    try:
        with os.fdopen(os.open(temporary, _CREATE_FLAGS, mode & ~_WRITABLE_BY_OTHERS), "wb") as file:
            if path.exists() and os.name == "posix":
                private = 0 if mode & 0o077 else 0o077
                os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode) & ~(_WRITABLE_BY_OTHERS | private))
            fill(file)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


# ---- other accounts that can write a file that winhost acts on


class Openness(IntEnum):
    """The other accounts that can write a file. SOME: a group, single accounts, or another owner; UNTOLD: the file
    system does not say.
    """

    OWN = 0
    SOME = 1
    UNTOLD = 2
    EVERYONE = 3


@dataclass(frozen=True)
class Writers:
    """The accounts that can write a file. path: the file, or a folder that leads to it; who: continues a sentence that
    begins with `path`.
    """

    openness: Openness
    path: Path
    who: str


class SharedInputWarning(UserWarning):
    """Others can write a file that winhost acts on. The command line shows the warning."""


_PACKAGE = Path(__file__).resolve().parents[1]
_SHIPPED = (_PACKAGE, *(_PACKAGE.parent / name for name in ("examples", "playbooks", "templates")))
"""Folders of winhost itself. They are not checked, because anybody who can write them can change winhost."""


def check_writers(path: Path, data: object = None) -> None:
    """Warn of an input file that others can write. data: what was read from it.

    Raises UsageError: OpenToAll if everyone can write it; OpenToOthers if anyone else can, and it has a `cmd:` secret.
    """
    found = writers_of(path)
    if found.openness is Openness.OWN:
        return
    if _runs_programs(data):
        raise UsageError(
            "OpenToOthers",
            what=f"{visible(str(path))} is not used: {_describe_writers(found, path)}",
            meaning="It has a `cmd:` secret, which runs a program as you: others could choose the program.",
            hint=_writers_hint(found),
        )
    if found.openness is Openness.EVERYONE:
        raise UsageError(
            "OpenToAll",
            what=f"{visible(str(path))} is not used: {_describe_writers(found, path)}",
            meaning="It decides what winhost does, so everyone on this computer could.",
            hint=_writers_hint(found),
        )
    warnings.warn(f"{visible(str(path))}: {_describe_writers(found, path)}", SharedInputWarning, stacklevel=2)


def _runs_programs(data: object) -> bool:
    """Tell whether the data may contain a `cmd:` secret."""
    remaining = [data]
    while remaining:
        each = remaining.pop()
        if isinstance(each, str) and each.startswith("cmd:"):
            return True
        remaining += each.values() if isinstance(each, dict) else each if isinstance(each, list | tuple) else ()
    return False


def _describe_writers(found: Writers, path: Path) -> str:
    subject = "it" if found.path == path.absolute() else visible(str(found.path))
    return f"{subject} {visible(found.who)}"


def _writers_hint(found: Writers) -> str:
    path = visible(shlex.quote(str(found.path)))
    if os.name == "nt":
        shown = visible(str(found.path)).replace("'", "''")
        return f"See who can: (Get-Acl -LiteralPath '{shown}').Access. Or copy the file to a folder of your own."
    if found.openness is Openness.UNTOLD or "belongs" in found.who:
        return "Look at it, then copy it to a folder of your own, for example ~/.config/winhost, and name it there."
    lists = f"; setfacl -b {path}" if "access list" in found.who else ""
    return f"Look at what is in it, then: chmod go-w {path}{lists}"


def writers_of(path: Path) -> Writers:
    """Find who else can write a file, or one of the folders and links that lead to it. Return the most exposed
    of them.
    """
    absolute = path.absolute()
    if not path.exists() or any(absolute.resolve().is_relative_to(each) for each in _SHIPPED):
        return Writers(Openness.OWN, absolute, "")
    if os.name == "nt":
        from winhost.model.windows_rights import judge_windows_file

        found: Iterator[Writers] = (
            Writers(Openness[level], each, who) for each, level, who in judge_windows_file(absolute)
        )
    else:
        resolved = absolute.resolve()
        leading = dict.fromkeys((absolute, *absolute.parents, resolved, *resolved.parents))
        found = (_writers_by_mode(each, each.lstat()) for each in leading)
    return max(found, key=lambda each: each.openness)


# ---- Linux and macOS


def _writers_by_mode(path: Path, status: os.stat_result) -> Writers:
    found = Writers(Openness.OWN, path, "")
    kind = "folder" if stat.S_ISDIR(status.st_mode) else "file"
    if status.st_uid not in _trusted_accounts():
        found = Writers(Openness.SOME, path, f"belongs to another account ({_name_of(status.st_uid)})")
    if stat.S_ISLNK(status.st_mode) or not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        return found  # a link has no modes, and those of a pipe or terminal do not matter
    sticky = kind == "folder" and status.st_mode & stat.S_ISVTX  # accounts cannot replace files of others there
    if status.st_mode & stat.S_IWOTH and not sticky:
        found = Writers(Openness.EVERYONE, path, f"is a {kind} that everyone can write")
    elif not sticky and found.openness is Openness.OWN and (who := _other_writers(path, status)):
        found = Writers(Openness.SOME, path, f"is a {kind} that others can write: {who}")
    if found.openness is not Openness.OWN and (mount := _mount_without_modes(path)):
        return Writers(Openness.UNTOLD, path, f"lies on {mount}, which does not tell who can write it")
    return found


def _trusted_accounts() -> set[int]:
    """Return root, the account that runs winhost, and the account that used sudo to run it."""
    sudo_user = os.environ.get("SUDO_UID", "") if os.geteuid() == 0 else ""
    return {0, os.geteuid(), *([int(sudo_user)] if sudo_user.isdecimal() else [])}


def _name_of(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"number {uid}"


_USER, _GROUP_OBJ, _GROUP, _WRITE = 0x02, 0x04, 0x08, 2


def _other_writers(path: Path, status: os.stat_result) -> str | None:
    """Name the users or groups temporarys the owner that can write a file; None if there are none."""
    if not status.st_mode & stat.S_IWGRP:  # with an access list these bits are its mask
        return None
    entries = list(_access_list(path))
    for tag, rights, who in entries:
        if rights & _WRITE and (
            (tag == _USER and who not in _trusted_accounts()) or (tag == _GROUP and not _is_own_group(who))
        ):
            return "by an access list (getfacl shows it)"
    group = next((rights for tag, rights, _ in entries if tag == _GROUP_OBJ), _WRITE)
    return f"the group {_group_name(status.st_gid)}" if group & _WRITE and not _is_own_group(status.st_gid) else None


def _access_list(path: Path) -> Iterator[tuple[int, int, int]]:
    """Yield tag, rights and number of each entry of a POSIX access list, if the file has one."""
    with suppress(OSError, AttributeError):
        yield from struct.iter_unpack("<HHI", os.getxattr(path, "system.posix_acl_access")[4:])


def _group_name(gid: int) -> str:
    import grp

    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return f"number {gid}"


def _is_own_group(gid: int) -> bool:
    """Tell whether a group is that of root, or the private group of a trusted account, which many distributions
    create.
    """
    import grp
    import pwd

    if gid == 0:
        return True
    try:
        group = grp.getgrgid(gid)
        account = pwd.getpwnam(group.gr_name)
    except KeyError:
        return False
    return account.pw_gid == gid and account.pw_uid in _trusted_accounts() and {*group.gr_mem} <= {group.gr_name}


_FILE_SYSTEMS_WITHOUT_MODES = {
    "9p",
    "drvfs",
    "vfat",
    "msdos",
    "exfat",
    "ntfs",
    "ntfs3",
    "fuseblk",
    "cifs",
    "smb3",
    "vboxsf",
}


def _mount_without_modes(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str | None:
    """Return the mount of a path if its file system has no real modes, such as /mnt/c in WSL without `metadata`; else
    None.
    """
    try:
        lines = mounts.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return None
    found: tuple[int, str, str, str] = (-1, "", "", "")
    for line in lines:
        mount, _, file_system = line.partition(" - ")
        point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), mount.split()[4])
        if path.is_relative_to(point) and len(point) >= found[0]:
            system = file_system.split()
            found = (len(point), point, system[0], system[-1])
    _, point, system_type, options = found
    has_modes = "metadata" in re.split("[,;]", options)
    return f"{point} ({system_type})" if system_type in _FILE_SYSTEMS_WITHOUT_MODES and not has_modes else None


_TEXT_CONTROL_BYTES = frozenset(b"\t\n\r\f\b\x1b")
_BYTE_ORDER_MARKS = (b"\xff\xfe", b"\xfe\xff")


def is_binary(data: bytes) -> bool:
    """Tell whether data is not text in any encoding, including UTF-16 without a byte order mark."""
    head = data[:8192]
    if head.startswith(_BYTE_ORDER_MARKS):
        return False
    zeros = (head[::2].count(0), head[1::2].count(0))
    if min(zeros) * 20 <= max(zeros) and max(zeros) * 4 > len(head):
        return False
    odd = sum(byte < 32 and byte not in _TEXT_CONTROL_BYTES for byte in head)
    return odd * 50 > len(head)
