"""Image files of whatever format, told apart by how they begin: qcow2 and raw are read, others refused by name."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from winhost.images.disk_image import SECTOR, DiskImage, Extent, check_size, unusable
from winhost.images.qcow2 import MAGIC, Qcow2Image
from winhost.model.units import Bytes, MiB

_OTHERS = {
    b"vhdxfile": "VHDX",
    b"conectix": "VHD",
    b"KDMV": "VMDK",
    b"<<< ": "VDI",
    b"\x1f\x8b": "gzip",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK": "ZIP",
    b"hsqs": "squashfs",
}
_BOOT_SIGNATURE = b"\x55\xaa"  # of an MBR, and of the protective one before a GPT
_PIECE: Bytes = MiB


class RawImage:
    """A disk as it is, byte by byte."""

    def __init__(self, file: IO[bytes], name: str) -> None:
        self._file, self._name = file, name
        self.size: Bytes = file.seek(0, os.SEEK_END)
        check_size(name, self.size)

    def pieces(self) -> Iterator[Extent]:
        """The whole disk. Raises UsageError (ImageUnusable) for a file that gets shorter, or cannot be read."""
        for at in range(0, self.size, _PIECE):
            try:
                self._file.seek(at)
                data = self._file.read(min(_PIECE, self.size - at))
            except OSError as error:
                raise unusable(self._name, f"cannot be read: {error.strerror}") from error
            if len(data) < min(_PIECE, self.size - at):
                raise unusable(self._name, "got shorter while it was read")
            yield Extent(at, data)


@contextmanager
def open_image(path: Path) -> Iterator[DiskImage]:
    """The disk in a file. Raises UsageError (ImageUnusable)."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise unusable(str(path), f"cannot be opened: {error.strerror}") from error
    with file:
        yield _image(file, str(path))


def _image(file: IO[bytes], name: str) -> DiskImage:
    begin = file.read(SECTOR)
    if begin.startswith(MAGIC):
        return Qcow2Image(file, name)
    for magic, kind in _OTHERS.items():
        if begin.startswith(magic):
            raise unusable(
                name, f"is a file of the kind {kind}", "qcow2 and raw disk images are read; a VHDX is given with --vhdx"
            )
    if not begin.endswith(_BOOT_SIGNATURE):
        raise unusable(name, "has no partition table", "qcow2 images are read, and raw ones of whole disks")
    return RawImage(file, name)
