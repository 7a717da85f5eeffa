"""Who else can change a file that winhost does as it says. On Windows, access lists decide, which are not read here."""

import os
import shlex
import stat
from contextlib import suppress
from pathlib import Path

from winhost.model.errors import UsageError, visible
from winhost.model.once import once

# They show one mode for all files, whoever may write them.
_WITHOUT_MODES = {"9p", "drvfs", "vfat", "exfat", "msdos", "ntfs", "ntfs3", "fuseblk", "cifs", "smb3"}


def refuse_public(path: Path) -> None:
    """Refuse a file that every user of this computer can change, and warn of others who can.

    Raises UsageError: WritableByAll. Whatever is no regular file, such as a pipe, is let pass.
    """
    found = _judged(path)
    if found is None:
        return
    file, owner = found
    if _has_modes(path.absolute()):
        if file.st_mode & stat.S_IWOTH:
            raise UsageError(
                "WritableByAll",
                what=f"{visible(str(path))} can be changed by every user of this computer, so nobody knows whose it is",
                hint=f"Look at what it says, then: chmod o-w {shlex.quote(str(path))}",
            )
        if _shares_group(file):
            _warn(path, f"{owner}'s group can change it as well")
    else:
        _warn(path, "it is on a file system that keeps no owners and modes: whoever can write there can change it")
    if not _is_trusted(file.st_uid):
        _warn(path, f"it belongs to {owner}, who can change it")


def refuse_shared(path: Path, why: str) -> None:
    """Refuse a file unless its owner and root alone can change or replace it, and the owner is whoever runs this.

    why: what depends on it, such as `it starts programs`. Raises UsageError: WritableByOthers.
    """
    found = _judged(path)
    if found is None or not _has_modes(path.absolute()):
        return  # warned of by `refuse_public`
    file, owner = found
    folder = path.absolute().parent
    quoted = shlex.quote(str(path))
    if not _is_trusted(file.st_uid):
        raise _shared(path, f"belongs to {owner}, and {why}", f"Make it yours, once you know what it says: {quoted}")
    if file.st_mode & stat.S_IWOTH or _shares_group(file):
        raise _shared(path, f"can be changed by others than its owner, and {why}", f"chmod go-w {quoted}")
    with suppress(OSError):
        at = folder.stat()
        if not _is_trusted(at.st_uid) or (
            not at.st_mode & stat.S_ISVTX and (at.st_mode & stat.S_IWOTH or _shares_group(at))
        ):
            mend = f"chmod go-w {shlex.quote(str(folder))}, or move the file into a folder of your own"
            raise _shared(path, f"can be replaced by others, who can write in its folder, and {why}", mend)


def _shared(path: Path, what: str, hint: str) -> UsageError:
    return UsageError("WritableByOthers", what=f"{visible(str(path))} {what}", hint=visible(hint))


def _judged(path: Path) -> tuple[os.stat_result, str] | None:
    """A regular file with the name of its owner; None where there is nothing to judge."""
    if os.name != "posix":
        return None
    try:
        file = path.stat()
    except OSError:
        return None  # whoever reads it says why
    return (file, _user(file.st_uid)) if stat.S_ISREG(file.st_mode) else None


def _user(uid: int) -> str:
    import pwd

    try:
        return visible(pwd.getpwuid(uid).pw_name)
    except KeyError:
        return f"the user {uid}"


def _is_trusted(uid: int) -> bool:
    """Whether it is root, or whoever runs this, also by sudo."""
    by_sudo = os.environ.get("SUDO_UID", "") if os.geteuid() == 0 else ""
    return uid in (0, os.geteuid()) or str(uid) == by_sudo


def _shares_group(file: os.stat_result) -> bool:
    """Whether a group of several can write it. Many systems give each user a group of the same name, and a umask that
    lets it write.
    """
    import grp

    if not file.st_mode & stat.S_IWGRP or file.st_gid == 0:
        return False
    try:
        group = grp.getgrgid(file.st_gid)
    except KeyError:
        return True
    owner = _user(file.st_uid)
    return group.gr_name != owner or not {*group.gr_mem} <= {owner}


def _has_modes(path: Path) -> bool:
    """Unknown counts as yes: then the modes are believed."""
    at = os.path.realpath(path)
    kinds = {point: kind for point, kind in _mounts() if at == point or at.startswith(point.rstrip("/") + "/")}
    return not kinds or kinds[max(kinds, key=len)] not in _WITHOUT_MODES


def _mounts() -> list[tuple[str, str]]:
    """Mount points with the kinds of their file systems; none where /proc does not tell."""
    try:
        lines = Path("/proc/self/mounts").read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return []
    words = (line.split(" ") for line in lines)
    return [(word[1].replace("\\040", " "), word[2]) for word in words if len(word) > 2]


@once
def _warn(path: Path, why: str) -> None:
    """Once, on stderr."""
    import logging

    logging.getLogger(__name__).warning("warning: %s: %s", visible(str(path)), why)
