"""Files of a simulated Windows host. Only files that winhost reads or writes exist."""

import base64
from collections.abc import Callable, Iterator
from dataclasses import field

from winhost.core.dataclass import dataclass
from winhost.lab.physics.windows_errors import bad_request, not_owned_error, refusal

PROGRAM_DATA = "C:\\ProgramData"
FOLDER = f"{PROGRAM_DATA}\\winhost"  # of winhost itself

_OTHER_USER_SID, _ADMINISTRATORS = "S-1-5-21-7-8-9-1004", "S-1-5-32-544"


def _normalize(path: str) -> str:
    return path.rstrip("\\").casefold()


@dataclass
class Files:
    """The files of a Windows by path, regardless of case. A folder exists while it has contents.

    links: paths that are links; foreign_folders: folders that another user made; rights: security descriptors of files,
    as SDDL; lengths: of files without stored bytes; disk_sizes: of resized virtual disks, in bytes that a guest sees.
    """

    links: set[str] = field(default_factory=set)
    foreign_folders: set[str] = field(default_factory=set)
    rights: dict[str, str] = field(default_factory=dict)
    lengths: dict[str, Callable[[], int]] = field(default_factory=dict)
    disk_sizes: dict[str, int] = field(default_factory=dict)
    _files: dict[str, tuple[str, bytes | bytearray]] = field(default_factory=dict)

    def read(self, path: str) -> bytes | None:
        """Return the bytes of a file, or None if it does not exist."""
        found = self._files.get(_normalize(path))
        return None if found is None else bytes(found[1])

    def length(self, path: str) -> int:
        """Return the length in bytes; 0 if the file does not exist."""
        if (length := self.lengths.get(_normalize(path))) is not None:
            return length()
        return len(self._files.get(_normalize(path), ("", b""))[1])

    def append(self, path: str, piece: bytes, *, restart: bool) -> None:
        """Append to a file, or replace its contents."""
        found = None if restart else self._files.get(_normalize(path))
        if found is not None and isinstance(found[1], bytearray):
            found[1].extend(piece)  # in place: a large file comes in many pieces
        else:
            self._files[_normalize(path)] = (path, bytearray((found[1] if found else b"") + piece))

    def write(self, path: str, content: bytes) -> None:
        self._files[_normalize(path)] = (path, content)

    def set_length(self, path: str, length: Callable[[], int]) -> None:
        """Set a call that returns the length of a file without stored bytes."""
        self.lengths[_normalize(path)] = length

    def set_rights(self, path: str, rights: str) -> None:
        """Set the rights of a file, as SDDL."""
        self.rights[_normalize(path)] = rights

    def make_folders(self, *paths: str) -> None:
        """Make folders for administrators. Raises CmdletError for a folder that another user made."""
        for path in paths:
            if _normalize(path) in self.foreign_folders:
                message = (
                    f"{path} was made by {_OTHER_USER_SID}, who is neither the system nor an administrator. "
                    "Look into it, and remove it."
                )
                raise not_owned_error(message)

    def is_link(self, path: str) -> bool:
        return _normalize(path) in self.links

    def owner(self, path: str) -> str:
        """Return the SID of the owner of a folder."""
        return _OTHER_USER_SID if _normalize(path) in self.foreign_folders else _ADMINISTRATORS

    def has_folder(self, path: str) -> bool:
        """Tell whether a folder exists: it has contents, or another user made it."""
        return _normalize(path) in self.links | self.foreign_folders or any(True for _ in self.list_below(path))

    def is_occupied(self, path: str) -> bool:
        """Tell whether the path is a file, or a folder with contents."""
        return self.read(path) is not None or any(True for _ in self.list_below(path))

    def is_owned(self, folder: str) -> bool:
        """Tell whether the folder is no link, and no other user made it."""
        return _normalize(folder) not in self.links | self.foreign_folders

    def remove(self, path: str) -> None:
        """Remove a file, if it exists."""
        self._files.pop(_normalize(path), None)
        self.lengths.pop(_normalize(path), None)
        self.rights.pop(_normalize(path), None)
        self.disk_sizes.pop(_normalize(path), None)

    def pop(self, path: str) -> bytes:
        """Remove a file and return its bytes."""
        content = self.read(path) or b""
        self.remove(path)
        return content

    def list_below(self, folder: str) -> Iterator[str]:
        """Return the paths of all files below a folder."""
        prefix = _normalize(folder) + "\\"
        return iter([path for normalized, (path, _) in self._files.items() if normalized.startswith(prefix)])

    def remove_folder(self, folder: str) -> None:
        """Remove a folder with its contents, if it exists."""
        for path in self.list_below(folder):
            self.remove(path)


_BYTE_ORDER_MARKS = {"utf-16le": b"\xff\xfe", "utf-8-bom": b"\xef\xbb\xbf", "utf-8": b""}


def decode_text(content: bytes) -> tuple[str, str]:
    """Return the text and its encoding, which the byte order mark tells. Raises CmdletError."""
    encoding = next(name for name, mark in _BYTE_ORDER_MARKS.items() if content.startswith(mark))
    try:
        return content[len(_BYTE_ORDER_MARKS[encoding]) :].decode(encoding.removesuffix("-bom")), encoding
    except UnicodeDecodeError:
        raise refusal("NotDecodable", encoding=encoding) from None


def encode_text(text: str, encoding: str) -> bytes:
    """Encode a text with its byte order mark. Raises CmdletError, also for an encoding that Windows does not use."""
    try:
        return _BYTE_ORDER_MARKS[encoding] + text.encode(encoding.removesuffix("-bom"))
    except (KeyError, UnicodeEncodeError):
        raise bad_request(f"This text cannot be written as {encoding}.") from None


def encode_base64(content: bytes) -> str:
    """Encode bytes for the JSON between a stand-in and the lab."""
    return base64.b64encode(content).decode()
