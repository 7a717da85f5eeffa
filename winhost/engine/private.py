"""Folders that are their owner's alone: what lies there is done by whoever goes on or back, with all rights."""

import os
import shlex
import stat
from contextlib import suppress
from pathlib import Path

from winhost.model.errors import UsageError, visible

_ROOT = 0


def private_folder(folder: Path) -> Path:
    """The folder, made where it is not there, with what leads to it; what is made is ours alone, whatever the umask.

    Raises UsageError (NotPrivate), and OSError for what cannot be made. On Windows its access list is the profile's.
    """
    for each in reversed([folder, *folder.parents]):
        if not each.exists():
            with suppress(FileExistsError):  # another winhost was quicker
                each.mkdir(mode=0o700)
                each.chmod(0o700)  # a umask may take rights from ourselves
    if not folder.is_dir():
        folder.mkdir()  # says why not
    if os.name == "posix":
        _refuse_open(folder)
    return folder


def not_private(folder: Path, why: str, hint: str) -> UsageError:
    return UsageError(
        "NotPrivate",
        what=f"{visible(str(folder))} {visible(why)}, so winhost keeps neither journals nor keys there",
        meaning="Journals say what hosts were like, and rollback does what they say. Keys are yours alone.",
        hint=visible(hint),
    )


def _refuse_open(folder: Path) -> None:
    whole = folder.resolve()
    if not _ours(whole.stat()):
        raise not_private(folder, "belongs to another account", _ANOTHER)
    mode = stat.S_IMODE(whole.stat().st_mode)
    if mode & 0o077:
        raise not_private(folder, f"may be opened by others (mode {mode:o})", f"chmod 700 {shlex.quote(str(whole))}")
    for parent in whole.parents:
        there = parent.stat()
        if not (_ours(there) or there.st_uid == _ROOT):
            raise not_private(folder, f"is below {parent}, which belongs to another account", _ANOTHER)
        if there.st_mode & stat.S_IWOTH and not there.st_mode & stat.S_ISVTX:
            raise not_private(folder, f"is below {parent}, where anyone may put another in its place", _ANOTHER)


_ANOTHER = "Set WINHOST_STATE to a folder of your own."


def _ours(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid()
