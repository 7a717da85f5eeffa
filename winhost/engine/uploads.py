"""Files that lie beside the plan: checked here before anything is changed, then sent to the host, piece by piece."""

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

if TYPE_CHECKING:  # a plan asks which files it sends, and sends none
    from winhost.connect.agent import Received

# As base64 it stays below what ConvertFrom-Json of Windows PowerShell 5.1 surely takes, 2 MiB; smaller ones are slower.
PIECE = MiB

_BEGINNINGS = 3  # of a download

_PLAIN = re.compile(r"[A-Za-z0-9._-]{0,99}[A-Za-z0-9_-]")


def _unusable(path: str, why: str) -> UsageError:
    """A file that the plan sends is not there, or is another one."""
    return UsageError(
        "NotBeside",
        what=f"{visible(path)} {visible(why)}",
        meaning="The plan sends this file to the host, and knows it by its SHA-256.",
        hint="Put the right file there and run the command again. A run that has begun: winhost runs",
    )


class UploadInterrupted(Exception):
    """Somebody asked to stop while something was sent or waited for; whoever goes on takes it up there."""


@dataclass(frozen=True)
class Receiver:
    """The host, as far as it takes one file. put: what begins at a byte; ask: how much is there, once the host is in
    reach again.
    """

    put: Callable[[int], "Received"]
    ask: Callable[[], "Received"]


@dataclass(frozen=True)
class OpenAttachment:
    """An open file. size: in bytes."""

    path: str
    size: int
    file: FileIO

    def goes_on_at(self, received: "Received") -> int:
        """The offset at which to continue; 0 if the host's part is no beginning of this file."""
        if received.size > self.size:
            return 0
        digest = hashlib.sha256()
        self.file.seek(0)
        left = received.size
        while left and (piece := self.file.read(min(left, PIECE))):
            digest.update(piece)
            left -= len(piece)
        return received.size if digest.hexdigest() == received.sha256 else 0

    def piece(self, at: int) -> bytes:
        """Raises UsageError (NotBeside) for a file that got shorter meanwhile."""
        self.file.seek(at)
        if piece := self.file.read(min(PIECE, self.size - at)):
            return piece
        raise _unusable(self.path, "got shorter while it was sent")


def attachment_of(step: Step) -> Attachment | None:
    """The file that a step takes from beside the plan."""
    return RESOURCE_TYPES[step.resource].upload(change_of(step))


Offer = Callable[[Path], AbstractContextManager[str]]
"""Has a file at an address from which the host fetches it, for as long as it is entered."""

Share = Callable[[str, Path, int], Iterator[int]]
"""Writes a file to a path on the host from a byte on, and gives how much is there. Raises NotWritten, OSError."""

Find = Callable[[Attachment], Path]
"""Finds a file of this computer that is sent."""


@dataclass(frozen=True)
class Sources:
    """The files that are sent. offer, share: return the way past the connection that was asked for, or None."""

    find: Find
    offer: Callable[[], Offer | None] = lambda: None
    share: Callable[[], Share | None] = lambda: None


def download_of(step: Step) -> str | None:
    """The address from which the host fetches what a step takes."""
    return RESOURCE_TYPES[step.resource].download(change_of(step))


def beside(folder: Path) -> Find:
    """Files that lie in the folder of the plan."""
    return lambda desired: folder / desired.name


def check(steps: Iterable[Step], find: Find) -> None:
    """All files that these steps send, by their checksums. Raises UsageError (NotBeside), and what `find` raises."""
    for desired in dict.fromkeys(filter(None, map(attachment_of, steps))):
        with opened(desired, find) as source:
            found = hashlib.file_digest(source.file, "sha256").hexdigest()
        if found != desired.sha256:
            raise _unusable(source.path, f"has SHA-256 {found}, and the plan wants {desired.sha256}")


@contextmanager
def opened(desired: Attachment, find: Find) -> Iterator[OpenAttachment]:
    """Raises UsageError (NotBeside), and what `find` raises."""
    if not _PLAIN.fullmatch(desired.name) or is_device_name(desired.name):
        raise _unusable(f"./{desired.name}", "is no plain name of a file: letters, digits, dot, dash and underscore")
    path = find(desired)
    if not path.is_file():
        raise _unusable(str(path), "is not there, or is no file")
    try:
        with path.open("rb", buffering=0) as file:
            yield OpenAttachment(str(path), path.stat().st_size, file)
    except OSError as error:
        raise _unusable(str(path), f"cannot be read: {error.strerror}") from error


def send(source: OpenAttachment, received: "Received", to: Receiver) -> Iterator[int]:
    """Send what the host does not hold yet; yields, before each piece and after the last, how many bytes it holds.

    A lost answer is settled by asking how much is there; one that is lost again at the same place is left to whoever
    resumes. Raises SessionDropped, TimedOut, RemoteError, UsageError (NotBeside).
    """
    for at, _ in _put(source.goes_on_at(received), source.size, to, source.goes_on_at):
        yield at


def fetch(received: "Received", to: Receiver) -> Iterator[tuple[int, int | None]]:
    """Let the host download what it does not hold yet; yields, as `send`, how many bytes it holds, and of how many.
    Ends early if the server has another version of it each time, so that it begins again and again.
    """
    last, beginnings = -1, 1
    for at, whole in _put(received.size, received.whole, to, lambda received: received.size):
        yield at, whole
        beginnings += at <= last
        last = at
        if beginnings > _BEGINNINGS:
            return


def _put(
    at: int, whole: int | None, to: Receiver, goes_on_at: Callable[["Received"], int]
) -> Iterator[tuple[int, int | None]]:
    lost_at = -1
    while at != whole:
        yield at, whole
        try:
            received = to.put(at)
            at, whole = received.size, whole if received.whole is None else received.whole
        except (SessionDropped, TimedOut):
            if at == lost_at:
                raise
            lost_at, at = at, goes_on_at(to.ask())
    yield at, whole
