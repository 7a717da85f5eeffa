"""Who else can write a file that winhost acts on, and with it decide what winhost does.

A file is as open as the folders that lead to it: whoever can write one of these puts another file in its place.
"""

import os
import re
import shlex
import stat
import struct
import warnings
from collections.abc import Iterator
from contextlib import suppress
from enum import IntEnum
from pathlib import Path

from winhost.core.dataclass import dataclass
from winhost.model.errors import UsageError, visible


class Openness(IntEnum):
    """The worst counts. SOME: a group, single accounts, or another owner; UNTOLD: the mount has no modes."""

    OWN = 0
    SOME = 1
    UNTOLD = 2
    EVERYONE = 3


@dataclass(frozen=True)
class Writers:
    """who: goes on after the name of `place`, the file or a folder that leads to it."""

    openness: Openness
    place: Path
    who: str


class SharedInputWarning(UserWarning):
    """Others can write a file that winhost acts on; the command line shows it."""


_PACKAGE = Path(__file__).resolve().parents[1]
_SHIPPED = (_PACKAGE, *(_PACKAGE.parent / name for name in ("examples", "playbooks", "templates")))
"""Whoever can write these can change winhost itself."""


def heed_writers(path: Path, data: object = None) -> None:
    """Warns of an input that others can write. data: what was read from it.

    Raises UsageError: OpenToAll where everyone can, OpenToOthers where anyone can and its `cmd:` secrets would run.
    """
    found = writers_of(path)
    if found.openness is Openness.OWN:
        return
    if _runs_programs(data):
        raise UsageError(
            "OpenToOthers",
            what=f"{visible(str(path))} is not used: {_said(found, path)}",
            meaning="It has a `cmd:` secret, which runs a program as you: others could choose the program.",
            hint=_mend(found),
        )
    if found.openness is Openness.EVERYONE:
        raise UsageError(
            "OpenToAll",
            what=f"{visible(str(path))} is not used: {_said(found, path)}",
            meaning="It decides what winhost does, so everyone on this computer could.",
            hint=_mend(found),
        )
    warnings.warn(f"{visible(str(path))}: {_said(found, path)}", SharedInputWarning, stacklevel=2)


def _runs_programs(data: object) -> bool:
    """Whether a `cmd:` secret may be in it."""
    left = [data]
    while left:
        each = left.pop()
        if isinstance(each, str) and each.startswith("cmd:"):
            return True
        left += each.values() if isinstance(each, dict) else each if isinstance(each, list | tuple) else ()
    return False


def _said(found: Writers, path: Path) -> str:
    subject = "it" if found.place == path.absolute() else visible(str(found.place))
    return f"{subject} {visible(found.who)}"


def _mend(found: Writers) -> str:
    place = visible(shlex.quote(str(found.place)))
    if os.name == "nt":
        shown = visible(str(found.place)).replace("'", "''")
        return f"See who can: (Get-Acl -LiteralPath '{shown}').Access. Or copy the file to a folder of your own."
    if found.openness is Openness.UNTOLD or "belongs" in found.who:
        return "Look at it, then copy it to a folder of your own, for example ~/.config/winhost, and name it there."
    lists = f"; setfacl -b {place}" if "access list" in found.who else ""
    return f"Look at what is in it, then: chmod go-w {place}{lists}"


def writers_of(path: Path) -> Writers:
    """Of the file, of the folders and links that lead to it, the one that most can write."""
    whole = path.absolute()
    if not path.exists() or any(whole.resolve().is_relative_to(each) for each in _SHIPPED):
        return Writers(Openness.OWN, whole, "")
    judge = _on_windows if os.name == "nt" else _on_posix
    return max(judge(whole), key=lambda each: each.openness)


# ---- Linux and macOS


def _on_posix(path: Path) -> Iterator[Writers]:
    resolved = path.resolve()
    for place in dict.fromkeys((path, *path.parents, resolved, *resolved.parents)):
        yield _of_place(place, place.lstat())


def _of_place(place: Path, status: os.stat_result) -> Writers:
    found = Writers(Openness.OWN, place, "")
    kind = "folder" if stat.S_ISDIR(status.st_mode) else "file"
    if status.st_uid not in _trusted():
        found = Writers(Openness.SOME, place, f"belongs to another account ({_name_of(status.st_uid)})")
    if stat.S_ISLNK(status.st_mode) or not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        return found  # a link has no modes, and a pipe or terminal is whoever writes to it
    sticky = kind == "folder" and status.st_mode & stat.S_ISVTX  # nobody replaces what others own
    if status.st_mode & stat.S_IWOTH and not sticky:
        found = Writers(Openness.EVERYONE, place, f"is a {kind} that everyone can write")
    elif not sticky and found.openness is Openness.OWN and (who := _group_or_list(place, status)):
        found = Writers(Openness.SOME, place, f"is a {kind} that others can write: {who}")
    if found.openness is not Openness.OWN and (mount := _without_modes(place)):
        return Writers(Openness.UNTOLD, place, f"lies on {mount}, which does not tell who can write it")
    return found


def _trusted() -> set[int]:
    """Root, whoever runs winhost, and whoever became root for that with sudo."""
    behind = os.environ.get("SUDO_UID", "") if os.geteuid() == 0 else ""
    return {0, os.geteuid(), *([int(behind)] if behind.isdecimal() else [])}


def _name_of(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"number {uid}"


_USER, _GROUP_OBJ, _GROUP, _MASK, _WRITE = 0x02, 0x04, 0x08, 0x10, 2


def _group_or_list(place: Path, status: os.stat_result) -> str | None:
    """Who beside the owner, but not everyone."""
    if not status.st_mode & stat.S_IWGRP:  # with an access list these bits are its mask
        return None
    entries = list(_access_list(place))
    for tag, rights, who in entries:
        if rights & _WRITE and ((tag == _USER and who not in _trusted()) or (tag == _GROUP and not _is_own_group(who))):
            return "by an access list (getfacl shows it)"
    group = next((rights for tag, rights, _ in entries if tag == _GROUP_OBJ), _WRITE)
    return f"the group {_group_name(status.st_gid)}" if group & _WRITE and not _is_own_group(status.st_gid) else None


def _access_list(place: Path) -> Iterator[tuple[int, int, int]]:
    """Tag, rights and number of each entry of a POSIX access list; none where there is none."""
    with suppress(OSError, AttributeError):
        yield from struct.iter_unpack("<HHI", os.getxattr(place, "system.posix_acl_access")[4:])


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
    return account.pw_gid == gid and account.pw_uid in _trusted() and {*group.gr_mem} <= {group.gr_name}


_NO_MODES = {"9p", "drvfs", "vfat", "msdos", "exfat", "ntfs", "ntfs3", "fuseblk", "cifs", "smb3", "vboxsf"}


def _without_modes(place: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str | None:
    """The mount whose modes are made up, such as /mnt/c in WSL without `metadata`; None for any other."""
    try:
        lines = mounts.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return None
    found: tuple[int, str, str, str] = (-1, "", "", "")
    for line in lines:
        own, _, of_system = line.partition(" - ")
        point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), own.split()[4])
        if place.is_relative_to(point) and len(point) >= found[0]:
            system = of_system.split()
            found = (len(point), point, system[0], system[-1])
    _, point, system_type, options = found
    told = "metadata" in re.split("[,;]", options)
    return f"{point} ({system_type})" if system_type in _NO_MODES and not told else None


# ---- Windows

_ALLOWED = re.compile(r"\((A|XA|OA);([A-Z]*);([^;]*);[^;]*;[^;]*;([^;)]+)")
_CONTROL = 0x40000 | 0x80000 | 0x10000000  # change its rights or owner, all
# By what it is: the bits that change it, and their words in SDDL. In a folder: to remove what others made.
_WRITES = {
    "file": (_CONTROL | 0x2 | 0x4 | 0x10000 | 0x40000000, {"FA", "FW", "GA", "GW", "WD", "WO", "SD", "DC", "LC"})
}
_WRITES["folder"] = (_CONTROL | 0x40, {"FA", "GA", "WD", "WO", "DT"})
_ADMINISTRATORS = {
    *("BA", "SY", "LA", "DA", "EA", "CO", "OW", "S-1-5-18", "S-1-5-32-544", "S-1-3-4"),
    "S-1-5-80-956008885-3418522649-1831038044-1853292631-2271478464",  # TrustedInstaller
}
_ALL = {
    "WD": "everyone",
    "AU": "every account",
    "BU": "every user",
    "IU": "every user",
    "AN": "everyone",
    "BG": "guests",
}
_ALL |= {"S-1-1-0": "everyone", "S-1-5-11": "every account", "S-1-5-32-545": "every user", "S-1-5-4": "every user"}


def judged_descriptor(place: Path, text: str, own: str, kind: str = "file") -> Writers:
    """By a security descriptor in SDDL. own: the SID of whoever runs winhost.

    Unverified: written from Microsoft's documentation of SDDL, and not tried on a Windows.
    """
    owner, listed = re.search(r"O:(S-[\d-]+|[A-Z]{2})", text), text.partition("D:")[2].partition("S:(")[0]
    belongs = owner[1] if owner else ""
    if "NO_ACCESS_CONTROL" in listed:
        return Writers(Openness.EVERYONE, place, "has no access list: everyone can write it")
    trusted = {own, *_ADMINISTRATORS}
    found = Writers(Openness.OWN, place, "")
    if belongs not in trusted:
        found = Writers(Openness.SOME, place, f"belongs to another account ({belongs or 'not told'})")
    for _, flags, rights, who in _ALLOWED.findall(listed):
        if who in trusted or "IO" in re.findall("..", flags) or not _writes(rights, kind):
            continue
        if who in _ALL:
            return Writers(Openness.EVERYONE, place, f"can be written by {_ALL[who]}")
        found = Writers(Openness.SOME, place, f"can be written by others ({who})")
    return found


def _writes(rights: str, kind: str) -> bool:
    bits, words = _WRITES[kind]
    if re.fullmatch(r"0x[0-9a-fA-F]+|\d+", rights):
        return bool(int(rights, 0) & bits)
    return bool(words & {*re.findall("..", rights)})


def _on_windows(path: Path) -> Iterator[Writers]:
    """The file and its folder; folders above inherit to neither what they do not say there."""
    for place in (path, path.resolve(), path.resolve().parent):
        try:
            yield judged_descriptor(place, *_descriptor(place), "folder" if place.is_dir() else "file")
        except (OSError, AttributeError):
            yield Writers(Openness.UNTOLD, place, "does not tell who can write it")


def _descriptor(place: Path) -> tuple[str, str]:
    """The security descriptor of a file in SDDL, and the SID of whoever runs winhost. Raises OSError."""
    import ctypes

    load = getattr(ctypes, "WinDLL")  # noqa: B009 - Windows has it alone
    advapi, kernel = load("advapi32", use_last_error=True), load("kernel32", use_last_error=True)

    def done(worked: int) -> None:
        if not worked:
            raise OSError(ctypes.get_last_error(), "the access list cannot be read")  # type: ignore[attr-defined,unused-ignore]

    def taken(text: ctypes.c_wchar_p) -> str:
        said = text.value or ""
        kernel.LocalFree(text)
        return said

    owner_and_list, needed = 1 | 4, ctypes.c_uint32()
    advapi.GetFileSecurityW(str(place), owner_and_list, None, 0, ctypes.byref(needed))
    room = ctypes.create_string_buffer(needed.value)
    done(advapi.GetFileSecurityW(str(place), owner_and_list, room, needed, ctypes.byref(needed)))
    text = ctypes.c_wchar_p()
    convert = advapi.ConvertSecurityDescriptorToStringSecurityDescriptorW
    done(convert(room, 1, owner_and_list, ctypes.byref(text), None))
    said = taken(text)

    token = ctypes.c_void_p()
    kernel.GetCurrentProcess.restype = ctypes.c_void_p
    done(advapi.OpenProcessToken(ctypes.c_void_p(kernel.GetCurrentProcess()), 8, ctypes.byref(token)))
    try:
        advapi.GetTokenInformation(token, 1, None, 0, ctypes.byref(needed))
        user = ctypes.create_string_buffer(needed.value)
        done(advapi.GetTokenInformation(token, 1, user, needed, ctypes.byref(needed)))
        sid = ctypes.c_void_p(ctypes.cast(user, ctypes.POINTER(ctypes.c_void_p))[0])
        done(advapi.ConvertSidToStringSidW(sid, ctypes.byref(text)))
        return said, taken(text)
    finally:
        kernel.CloseHandle(token)
