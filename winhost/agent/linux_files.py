# Part of the agent, files: no symbolic link is followed, whatever part of the path it is.
from __future__ import annotations

import fcntl
import hashlib
import os
import pwd
import secrets
import stat
from contextlib import contextmanager, suppress
from grp import getgrgid, getgrnam
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from winhost.agent.linux_agent import AgentFault, bad_request, wrong_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LARGEST = 1 << 20  # bytes of a file that is read whole
MADE = "user.winhost.made"  # an attribute of folders that winhost made: it lasts as long as they do


@contextmanager
def folder_of(path: str, make: bool = False) -> Iterator[tuple[int, str]]:
    """The opened folder of a path, and the name in it."""
    *folders, name = path.strip("/").split("/")
    here = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    try:
        for folder in folders:
            made = False
            if make:
                with suppress(FileExistsError):
                    os.mkdir(folder, 0o755, dir_fd=here)
                    made = True
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
            here, above = os.open(folder, flags, dir_fd=here), here
            os.close(above)
            if made:
                with suppress(OSError):  # a file system without attributes: the folder stays when it is empty
                    os.setxattr(here, MADE, b"1")
        yield here, name
    finally:
        os.close(here)


def status(path: str) -> os.stat_result | None:
    """The status of the path itself, not of what it points to; None if it or its folder does not exist."""
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
            raise wrong_state(f"{path} is no file.")
        yield file


def content(path: str) -> bytes:
    """Read a regular file."""
    with opened(path) as file:
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise wrong_state(f"{path} is larger than 1 MiB.")
    return data


def text_of(path: str) -> str | None:
    """The text of a file; None where there is none."""
    return None if status(path) is None else content(path).decode("utf-8")


@contextmanager
def appended(path: str, most: int) -> Iterator[BinaryIO]:
    """A file of ours, to write on at its end. One that is longer than it can become is begun anew."""
    with folder_of(path, make=True) as (folder, name):
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        number = os.open(name, flags, 0o644, dir_fd=folder)
    with os.fdopen(number, "ab") as file:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise wrong_state(f"{path} is no file.")
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
    remove_folders_above(path)


def sha256_of(file: BinaryIO) -> str:
    """Hash the whole file, and rewind it."""
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


def put_or_remove(path: str, text: str | None, mode: int = 0o644) -> None:
    """Write the file, or remove it where text is None."""
    if text is None:
        remove(path)
    else:
        put(path, text, mode)


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
    remove_folders_above(path)


def remove_folders_above(path: str) -> None:
    """Remove the parent folders that winhost made and that are empty now."""
    while path := path.rpartition("/")[0]:
        try:
            with folder_of(f"{path}/.") as (here, _):
                os.getxattr(here, MADE)
            with folder_of(path) as (folder, name):
                os.rmdir(name, dir_fd=folder)
        except FileNotFoundError:
            continue
        except OSError:
            return


def check_room(path: str, needed: int) -> None:
    """Check the room on the file system of a folder that may not exist yet. Some stays free: a full file system stops
    much.
    """
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


def lock_taken(lock: int) -> bool:
    """Take the lock of an open file; False where another process has it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def boot_id() -> str:
    """The id of the kernel's present boot: another one after each start."""
    return content("/proc/sys/kernel/random/boot_id").decode("ascii").strip()
