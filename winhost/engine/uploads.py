"""Files next to the plan. They are checked before anything is changed, then sent to the host in pieces."""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

from winhost.connect.wire_errors import SessionDropped, TimedOut
from winhost.core.dataclass import dataclass
from winhost.core.order import change_of
from winhost.core.steps import Step
from winhost.model.errors import UsageError, visible
from winhost.model.units import MiB
from winhost.resources.base import Attachment
from winhost.resources.registry import RESOURCE_TYPES
from winhost.resources.values import is_device_name

if TYPE_CHECKING:  # planning asks which files are sent, and sends none
    from winhost.connect.agent import Received

# As base64 a piece stays below 2 MiB, which ConvertFrom-Json of Windows PowerShell 5.1 accepts; smaller ones are
# slower.
PIECE = MiB

_MAX_STARTS = 3  # of one download from its first byte

_PLAIN_NAME = re.compile(r"[A-Za-z0-9._-]{0,99}[A-Za-z0-9_-]")


def _unusable_file_error(path: str, why: str) -> UsageError:
    """Make the error for a file of the plan that is missing, or is not the one of the plan."""
    return UsageError(
        "NotBeside",
        what=f"{visible(path)} {visible(why)}",
        meaning="The plan sends this file to the host, and knows it by its SHA-256.",
        hint="Put the right file there and run the command again. A run that has begun: winhost runs",
    )


class UploadInterrupted(Exception):
    """The user asked to stop while the run was sending or waiting. A resumed run continues there."""


@dataclass(frozen=True)
class Receiver:
    """The receiving end of one file. put: transfers the part at an offset; received: returns how much the host has,
    once it can be reached again.
    """

    put: Callable[[int], "Received"]
    received: Callable[[], "Received"]


@dataclass(frozen=True)
class OpenAttachment:
    """An open attachment. size: in bytes."""

    path: str
    size: int
    file: FileIO

    def resume_offset(self, received: "Received") -> int:
        """Return the offset at which to continue; 0 if the part on the host is no beginning of this file."""
        if received.size > self.size:
            return 0
        digest = hashlib.sha256()
        self.file.seek(0)
        remaining = received.size
        while remaining and (piece := self.file.read(min(remaining, PIECE))):
            digest.update(piece)
            remaining -= len(piece)
        return received.size if digest.hexdigest() == received.sha256 else 0

    def piece(self, offset: int) -> bytes:
        """Read the piece at an offset. Raises UsageError (NotBeside) if the file became shorter meanwhile."""
        self.file.seek(offset)
        if piece := self.file.read(min(PIECE, self.size - offset)):
            return piece
        raise _unusable_file_error(self.path, "got shorter while it was sent")


def attachment_of(step: Step) -> Attachment | None:
    """Return the file next to the plan that a step needs."""
    return RESOURCE_TYPES[step.resource].upload(change_of(step))


Offer = Callable[[Path], AbstractContextManager[str]]
"""A context that serves a file at an address from which the host downloads it."""

Share = Callable[[str, Path, int], Iterator[int]]
"""Writes a file to a path on the host from an offset, and yields how much is there. Raises NotWritten, OSError."""

Find = Callable[[Attachment], Path]
"""Returns the path of an attachment on this computer."""


@dataclass(frozen=True)
class Sources:
    """The sources of files. offer, share: return the requested way to send files outside the connection, or None."""

    find: Find
    offer: Callable[[], Offer | None] = lambda: None
    share: Callable[[], Share | None] = lambda: None


def download_address(step: Step) -> str | None:
    """Return the address from which the host downloads the file of a step, if it does."""
    return RESOURCE_TYPES[step.resource].download(change_of(step))


def find_in_folder(folder: Path) -> Find:
    """Return a function that finds attachments in the folder of the plan."""
    return lambda desired: folder / desired.name


def check(steps: Iterable[Step], find: Find) -> None:
    """Check the files of these steps by their SHA-256. Raises UsageError (NotBeside), and as `find` does."""
    for desired in dict.fromkeys(filter(None, map(attachment_of, steps))):
        with open_attachment(desired, find) as source:
            digest = hashlib.file_digest(source.file, "sha256").hexdigest()
        if digest != desired.sha256:
            raise _unusable_file_error(source.path, f"has SHA-256 {digest}, and the plan wants {desired.sha256}")


@contextmanager
def open_attachment(attachment: Attachment, find: Find) -> Iterator[OpenAttachment]:
    """Open the file of an attachment. Raises UsageError (NotBeside), and as `find` does."""
    if not _PLAIN_NAME.fullmatch(attachment.name) or is_device_name(attachment.name):
        raise _unusable_file_error(
            f"./{attachment.name}", "is no plain name of a file: letters, digits, dot, dash and underscore"
        )
    path = find(attachment)
    if not path.is_file():
        raise _unusable_file_error(str(path), "is not there, or is no file")
    try:
        with path.open("rb", buffering=0) as file:
            yield OpenAttachment(str(path), path.stat().st_size, file)
    except OSError as error:
        raise _unusable_file_error(str(path), f"cannot be read: {error.strerror}") from error


def send(source: OpenAttachment, received: "Received", receiver: Receiver) -> Iterator[int]:
    """Send the part of the file that the host does not have yet. Yields, before each piece and after the last, how many
    bytes it has.

    After a lost answer, ask the host how much it has. Raises SessionDropped or TimedOut if an answer is lost twice at
    the same offset, RemoteError, UsageError (NotBeside).
    """
    for offset, _ in _transfer(source.resume_offset(received), source.size, receiver, source.resume_offset):
        yield offset


def fetch(received: "Received", receiver: Receiver) -> Iterator[tuple[int, int | None]]:
    """Let the host download the part of the file that it does not have yet. Yields, as `send` does, how many bytes it
    has, and the size of the file. Ends early if the download starts again several times, because the file on the server
    changes.
    """
    previous, starts = -1, 1
    for offset, total in _transfer(received.size, received.whole, receiver, lambda received: received.size):
        yield offset, total
        starts += offset <= previous
        previous = offset
        if starts > _MAX_STARTS:
            return


def _transfer(
    offset: int, total: int | None, receiver: Receiver, resume_offset: Callable[["Received"], int]
) -> Iterator[tuple[int, int | None]]:
    lost_offset = -1
    while offset != total:
        yield offset, total
        try:
            received = receiver.put(offset)
            offset, total = received.size, total if received.whole is None else received.whole
        except (SessionDropped, TimedOut):
            if offset == lost_offset:
                raise
            lost_offset, offset = offset, resume_offset(receiver.received())
    yield offset, total
