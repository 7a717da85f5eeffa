# Part of the agent: files. No symbolic link is followed, in any part of a path.
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

MAX_READ_BYTES = 1 << 20  # bytes of a file that is read at once
CREATED_ATTRIBUTE = "user.winhost.made"  # an extended attribute of folders that winhost created


@contextmanager
def open_folder(path: str, make: bool = False) -> Iterator[tuple[int, str]]:
    """Open the folder of a path. Yield its descriptor, and the name in it. make: create missing folders."""
    *folders, name = path.strip("/").split("/")
    current = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    try:
        for folder in folders:
            created = False
            if make:
                with suppress(FileExistsError):
                    os.mkdir(folder, 0o755, dir_fd=current)
                    created = True
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
            current, parent = os.open(folder, flags, dir_fd=current), current
            os.close(parent)
            if created:
                with suppress(OSError):  # the file system has no attributes: the folder stays when it is empty
                    os.setxattr(current, CREATED_ATTRIBUTE, b"1")
        yield current, name
    finally:
        os.close(current)


def file_status(path: str) -> os.stat_result | None:
    """Return the status of the path itself, not of a link's target; None if it or its folder does not exist."""
    try:
        with open_folder(path) as (folder, name):
            return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def read_link(path: str) -> str:
    with open_folder(path) as (folder, name):
        return os.readlink(name, dir_fd=folder)


@contextmanager
def open_file(path: str) -> Iterator[BinaryIO]:
    """Open a regular file for reading."""
    with open_folder(path) as (folder, name):
        number = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    with os.fdopen(number, "rb") as file:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise wrong_state(f"{path} is no file.")
        yield file


def read_file(path: str) -> bytes:
    """Read a regular file of up to 1 MiB."""
    with open_file(path) as file:
        data = file.read(MAX_READ_BYTES + 1)
    if len(data) > MAX_READ_BYTES:
        raise wrong_state(f"{path} is larger than 1 MiB.")
    return data


def read_text(path: str) -> str | None:
    """Read the text of a file; None if it does not exist."""
    return None if file_status(path) is None else read_file(path).decode("utf-8")


@contextmanager
def open_for_append(path: str, limit: int) -> Iterator[BinaryIO]:
    """Open a file for appending. A file that is longer than `limit` is emptied first."""
    with open_folder(path, make=True) as (folder, name):
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        number = os.open(name, flags, 0o644, dir_fd=folder)
    with os.fdopen(number, "ab") as file:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise wrong_state(f"{path} is no file.")
        if os.fstat(number).st_size > limit:
            os.ftruncate(number, 0)
        yield file
        file.flush()
        os.fsync(number)


def move(path: str, to: str) -> None:
    """Move a file within a file system, so that it is never seen incomplete."""
    with open_folder(path) as (folder, name), open_folder(to, make=True) as (target, target_name):
        os.rename(name, target_name, src_dir_fd=folder, dst_dir_fd=target)
        os.fsync(target)
    remove_empty_parents(path)


def sha256_of(file: BinaryIO) -> str:
    """Hash the whole file, and rewind it."""
    file.seek(0)
    digest = hashlib.sha256()
    for piece in iter(lambda: file.read(MAX_READ_BYTES), b""):
        digest.update(piece)
    file.seek(0)
    return digest.hexdigest()


def put(path: str, text: str, mode: int = 0o644, owner: str = "root:root") -> None:
    """Write a file atomically: readers see the old or the new content, also after a power cut."""
    user, group = owner_ids(owner)

    def make(folder: int, temporary: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(temporary, flags, 0o600, dir_fd=folder), "wb") as file:
            file.write(text.encode("utf-8"))
            os.fchown(file.fileno(), user, group)
            os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())

    replace_file(path, make)


def put_or_remove(path: str, text: str | None, mode: int = 0o644) -> None:
    """Write the file, or remove it where text is None."""
    if text is None:
        remove(path)
    else:
        put(path, text, mode)


def put_link(path: str, to: str) -> None:
    replace_file(path, lambda folder, temporary: os.symlink(to, temporary, dir_fd=folder))


def replace_file(path: str, make: Callable[[int, str], None]) -> None:
    """Replace a path atomically. `make` creates the new file under another name in the same folder."""
    with open_folder(path, make=True) as (folder, name):
        temporary = f".{name}.winhost-{secrets.token_hex(8)}"
        try:
            make(folder, temporary)
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)
            raise
        os.fsync(folder)


def write_to_kernel(path: str, text: str) -> None:
    """Write a file of /proc/sys, which has to be written with one call."""
    with open_folder(path) as (folder, name):
        number = os.open(name, os.O_WRONLY | os.O_NOFOLLOW, dir_fd=folder)
        with os.fdopen(number, "wb", buffering=0) as file:
            file.write(text.encode("ascii"))


def remove(path: str) -> None:
    """Remove a file or a link, if it exists."""
    with suppress(FileNotFoundError), open_folder(path) as (folder, name):
        os.unlink(name, dir_fd=folder)
        os.fsync(folder)
    remove_empty_parents(path)


def remove_empty_parents(path: str) -> None:
    """Remove parent folders that winhost created and that are empty now."""
    while path := path.rpartition("/")[0]:
        try:
            with open_folder(f"{path}/.") as (current, _):
                os.getxattr(current, CREATED_ATTRIBUTE)
            with open_folder(path) as (folder, name):
                os.rmdir(name, dir_fd=folder)
        except FileNotFoundError:
            continue
        except OSError:
            return


def check_free_space(path: str, needed: int) -> None:
    """Check the free space on the file system of a folder that may not exist yet. Some has to remain free, because a
    full file system stops other programs.
    """
    folder = next(each for each in (Path(path), *Path(path).parents) if each.is_dir())
    found = os.statvfs(folder)
    free, spare = found.f_bavail * found.f_frsize, min(found.f_blocks * found.f_frsize // 20, 5 << 30)
    if needed + spare > free:
        message = f"{folder} has {free:,} bytes left, and {needed:,} are needed, with {spare:,} to spare."
        raise AgentFault("Winhost.NoRoom", "ResourceUnavailable", message)


def owner_ids(owner: str) -> tuple[int, int]:
    """Return the ids of `user:group`."""
    user, _, group = owner.partition(":")
    try:
        return pwd.getpwnam(user).pw_uid, getgrnam(group).gr_gid
    except KeyError as error:
        raise bad_request(f"{owner}: {error.args[0]}") from None


def owner_name(found: os.stat_result) -> str:
    """Return `user:group`, with ids for users and groups that do not exist."""
    user, group = str(found.st_uid), str(found.st_gid)
    with suppress(KeyError):
        user = pwd.getpwuid(found.st_uid).pw_name
    with suppress(KeyError):
        group = getgrgid(found.st_gid).gr_name
    return f"{user}:{group}"


def try_lock(lock: int) -> bool:
    """Lock an open file. Return False if another process holds the lock."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def read_boot_id() -> str:
    """Read the id of the present boot, which differs after each start."""
    return read_file("/proc/sys/kernel/random/boot_id").decode("ascii").strip()
