"""Files as they come and go: read no further than a limit, written as a whole or not at all, and through no link."""

import errno
import os
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO

from winhost.model.units import Bytes, size

_SHARED = stat.S_IWGRP | stat.S_IWOTH
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)


class TooLarge(Exception):
    """A file with more in it than its kind can have. The sentence goes on after the file's name."""


def read_within(path: Path, most: Bytes) -> bytes:
    """What is in a file. Raises TooLarge, before memory is taken for the rest of it, and OSError."""
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise TooLarge(f"is larger than {size(most)}, which no file of this kind needs")
    return data


def write_whole(path: Path, pieces: Iterable[str | bytes], *, mode: int = 0o644) -> None:
    """The file as a whole or not at all, text in UTF-8; as `fill_whole` does it."""
    fill_whole(path, lambda file: _write(file, pieces), mode=mode)


def fill_whole(path: Path, fill: Callable[[IO[bytes]], None], *, mode: int = 0o644) -> None:
    """The file as a whole or not at all; where there was one, who may read it stays, unless the new one is private.

    Nobody but the owner may ever write it.

    A link is refused, because the file that it leads to was not named. What is no file, such as /dev/stdout, is written
    to as it is. fill: writes what is in it, and may seek; mode: of a new file, before the umask. Raises OSError with
    the name of this file.
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


def _write(file: IO[bytes], pieces: Iterable[str | bytes]) -> None:
    for piece in pieces:
        file.write(piece.encode() if isinstance(piece, str) else piece)


def _replace(path: Path, mode: int, fill: Callable[[IO[bytes]], None]) -> None:
    beside = path.with_name(f".winhost-{os.urandom(8).hex()}")
    try:
        with os.fdopen(os.open(beside, _MAKE, mode & ~_SHARED), "wb") as file:
            if path.exists() and os.name == "posix":
                private = 0 if mode & 0o077 else 0o077
                os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode) & ~(_SHARED | private))
            fill(file)
        beside.replace(path)
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise
