"""Reads files up to a limit, and writes them as a whole or not at all, never through a link.

Others must not be able to write a file that winhost acts on: they would decide what winhost does. A file is as open as
the folders that lead to it: whoever can write one of these can replace the file.
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
    """`; did you mean 'facts.json'?` where nothing is at a path, and something beside it is called almost the same."""
    try:
        return "" if path.exists() else did_you_mean(path.name, sorted(each.name for each in path.parent.iterdir()))
    except OSError:
        return ""


class TooLarge(Exception):
    """A file with more in it than its kind can have. The sentence goes on after the file's name."""


def read_within(path: Path, most: Bytes) -> bytes:
    """Read a file. Raises TooLarge, before memory is taken for the rest of it, and OSError."""
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise TooLarge(f"is larger than {size(most)}, which no file of this kind needs")
    return data


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits. Raises OSError."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def write_whole(path: Path, pieces: Iterable[str | bytes], *, mode: int = 0o644) -> None:
    """Write a file as `fill_whole` does, text in UTF-8."""

    def write(file: IO[bytes]) -> None:
        for piece in pieces:
            file.write(piece.encode() if isinstance(piece, str) else piece)

    fill_whole(path, write, mode=mode)


def fill_whole(path: Path, fill: Callable[[IO[bytes]], None], *, mode: int = 0o644) -> None:
    """Write a file as a whole or not at all. It keeps its readers, unless the new mode is private; only its owner may
    ever write it.

    A link is refused, because the file that it leads to was not named. A device, such as /dev/stdout, is written to as
    it is. fill: writes the content, and may seek; mode: of a new file, before the umask. Raises OSError with the name
    of this file.
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
    beside = path.with_name(f".winhost-{os.urandom(8).hex()}")
    try:
        with os.fdopen(os.open(beside, _CREATE_FLAGS, mode & ~_WRITABLE_BY_OTHERS), "wb") as file:
            if path.exists() and os.name == "posix":
                private = 0 if mode & 0o077 else 0o077
                os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode) & ~(_WRITABLE_BY_OTHERS | private))
            fill(file)
        beside.replace(path)
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise


# ---- who else can write a file that winhost acts on


class Openness(IntEnum):
    """The others who can write a file; the worst counts. SOME: a group, single accounts, or another owner; UNTOLD: the
    mount has no modes.
    """

    OWN = 0
    SOME = 1
    UNTOLD = 2
    EVERYONE = 3


@dataclass(frozen=True)
class Writers:
    """who: goes on after the name of `path`, the file or a folder that leads to it."""

    openness: Openness
    path: Path
    who: str


class SharedInputWarning(UserWarning):
    """Others can write a file that winhost acts on; the command line shows it."""


_PACKAGE = Path(__file__).resolve().parents[1]
_SHIPPED = (_PACKAGE, *(_PACKAGE.parent / name for name in ("examples", "playbooks", "templates")))
"""Folders of winhost's own code: writing them changes winhost itself."""


def check_writers(path: Path, data: object = None) -> None:
    """Warns of an input that others can write. data: what was read from it.

    Raises UsageError: OpenToAll where everyone can, OpenToOthers where anyone can and its `cmd:` secrets would run.
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
    left = [data]
    while left:
        each = left.pop()
        if isinstance(each, str) and each.startswith("cmd:"):
            return True
        left += each.values() if isinstance(each, dict) else each if isinstance(each, list | tuple) else ()
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
    """Find who can write the file, or one of the folders and links that lead to it: of these the most exposed one."""
    whole = path.absolute()
    if not path.exists() or any(whole.resolve().is_relative_to(each) for each in _SHIPPED):
        return Writers(Openness.OWN, whole, "")
    if os.name == "nt":
        from winhost.model.windows_rights import judge_windows_file

        found: Iterator[Writers] = (
            Writers(Openness[level], each, who) for each, level, who in judge_windows_file(whole)
        )
    else:
        resolved = whole.resolve()
        leading = dict.fromkeys((whole, *whole.parents, resolved, *resolved.parents))
        found = (_writers_by_mode(each, each.lstat()) for each in leading)
    return max(found, key=lambda each: each.openness)


# ---- Linux and macOS


def _writers_by_mode(path: Path, status: os.stat_result) -> Writers:
    found = Writers(Openness.OWN, path, "")
    kind = "folder" if stat.S_ISDIR(status.st_mode) else "file"
    if status.st_uid not in _trusted_accounts():
        found = Writers(Openness.SOME, path, f"belongs to another account ({_name_of(status.st_uid)})")
    if stat.S_ISLNK(status.st_mode) or not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        return found  # a link has no modes, and a pipe or terminal is whoever writes to it
    sticky = kind == "folder" and status.st_mode & stat.S_ISVTX  # nobody replaces what others own
    if status.st_mode & stat.S_IWOTH and not sticky:
        found = Writers(Openness.EVERYONE, path, f"is a {kind} that everyone can write")
    elif not sticky and found.openness is Openness.OWN and (who := _other_writers(path, status)):
        found = Writers(Openness.SOME, path, f"is a {kind} that others can write: {who}")
    if found.openness is not Openness.OWN and (mount := _mount_without_modes(path)):
        return Writers(Openness.UNTOLD, path, f"lies on {mount}, which does not tell who can write it")
    return found


def _trusted_accounts() -> set[int]:
    """Root, whoever runs winhost, and whoever became root for that with sudo."""
    behind = os.environ.get("SUDO_UID", "") if os.geteuid() == 0 else ""
    return {0, os.geteuid(), *([int(behind)] if behind.isdecimal() else [])}


def _name_of(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"number {uid}"


_USER, _GROUP_OBJ, _GROUP, _WRITE = 0x02, 0x04, 0x08, 2


def _other_writers(path: Path, status: os.stat_result) -> str | None:
    """The users or groups that can write it beside the owner, but not everyone."""
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
    """Tag, rights and number of each entry of a POSIX access list, if the file has one."""
    with suppress(OSError, AttributeError):
        yield from struct.iter_unpack("<HHI", os.getxattr(path, "system.posix_acl_access")[4:])


def _group_name(gid: int) -> str:
    import grp

    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return f"number {gid}"


def _is_own_group(gid: int) -> bool:
    """The group of one user alone, which many distributions give each account, or root's."""
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
    """The mount whose modes are made up, such as /mnt/c in WSL without `metadata`; None for any other."""
    try:
        lines = mounts.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return None
    found: tuple[int, str, str, str] = (-1, "", "", "")
    for line in lines:
        own, _, of_system = line.partition(" - ")
        point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), own.split()[4])
        if path.is_relative_to(point) and len(point) >= found[0]:
            system = of_system.split()
            found = (len(point), point, system[0], system[-1])
    _, point, system_type, options = found
    told = "metadata" in re.split("[,;]", options)
    return f"{point} ({system_type})" if system_type in _FILE_SYSTEMS_WITHOUT_MODES and not told else None


_TEXT_CONTROL_BYTES = frozenset(b"\t\n\r\f\b\x1b")
_BYTE_ORDER_MARKS = (b"\xff\xfe", b"\xfe\xff")


def is_binary(data: bytes) -> bool:
    """Tell whether this is no text in whatever encoding, UTF-16 without its mark among them."""
    begun = data[:8192]
    if begun.startswith(_BYTE_ORDER_MARKS):
        return False
    zeros = (begun[::2].count(0), begun[1::2].count(0))
    if min(zeros) * 20 <= max(zeros) and max(zeros) * 4 > len(begun):
        return False
    odd = sum(byte < 32 and byte not in _TEXT_CONTROL_BYTES for byte in begun)
    return odd * 50 > len(begun)
