"""Read disk images: qcow2 (versions 2 and 3) and raw. Other formats are recognized by their first bytes and refused.

The format is that of docs/interop/qcow2.rst in QEMU's source, with the limits of its block/qcow2.h: L1 table 32 MiB,
refcount table 8 MiB, clusters of 512 bytes to 2 MiB. Only the current state is read, and nothing is changed.

An image may be hostile: no table takes more memory than these limits, a compressed cluster inflates to at most one
cluster, and the bytes read never exceed the length of the file, even if tables refer to the same offset many times.
"""

import os
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

from winhost.model.errors import UsageError, visible
from winhost.model.units import Bytes, GiB, KiB, MiB

SECTOR: Bytes = 512
LARGEST_DISK: Bytes = 64 * KiB * GiB
"""64 TiB, the most that a VHDX can hold."""

Progress = Callable[[Bytes, Bytes], None]
"""Is called with the bytes that are done, and with the total."""


class Extent(NamedTuple):
    """A piece of the disk. at: its offset."""

    at: Bytes
    data: bytes


class DiskImage(Protocol):
    """An image that is open for reading."""

    @property
    def size(self) -> Bytes:
        """A whole number of sectors."""

    def pieces(self) -> Iterator[Extent]:
        """Yield the contents of the disk in order, in pieces of 2 MiB at most; everything between them reads as zeros.
        Raises UsageError (ImageUnusable).
        """


def unusable(name: str, why: str, hint: str | None = None) -> UsageError:
    """Make the error for an image that winhost cannot use, or cannot use correctly. name: of its file."""
    return UsageError(
        "ImageUnusable",
        what=f"{visible(name)} cannot be used as a disk image: it {visible(why)}",
        hint=None if hint is None else visible(hint),
    )


def check_size(name: str, size: Bytes) -> None:
    """Check that a VHDX can have this size. Raises UsageError (ImageUnusable)."""
    if not 0 < size <= LARGEST_DISK:
        raise unusable(name, f"says that its disk has {size:,} bytes, and a disk has more than none and 64 TiB at most")
    if size % SECTOR:
        raise unusable(name, f"has {size:,} bytes, which is no whole number of sectors ({SECTOR} bytes): it is cut off")


MAGIC = b"QFI\xfb"

_HEADER = struct.Struct(">4sIQIIQIIQQIIQ")
_HEADER_3 = struct.Struct(">QQQII")
_COMPRESSION_TYPE_AT = _HEADER.size + _HEADER_3.size

_LARGEST_L1: Bytes = 32 * MiB
_LARGEST_REFCOUNT_TABLE: Bytes = 8 * MiB

_OFFSET = 0x00FF_FFFF_FFFF_FE00  # bits 9 to 55
_COPIED, _COMPRESSED, _ZERO = 1 << 63, 1 << 62, 1

_CONVERT_HINT = "qemu-img can make a plain one of it: qemu-img convert -O qcow2 OLD NEW"
_REPAIR_HINT = "Get it again; or qemu-img can tell more: qemu-img check -r all FILE"
_COMPRESSION_BIT = 3
_INCOMPATIBLE = {
    0: ("was not closed by whoever wrote it (it is marked dirty)", _REPAIR_HINT),
    1: ("is marked corrupt", _REPAIR_HINT),
    2: ("keeps its data in another file", _CONVERT_HINT),
    4: ("has subclusters (extended L2 entries)", _CONVERT_HINT),
}

Inflate = Callable[[bytes, Bytes], bytes]
"""Inflates data to at most so many bytes. Raises InflateError."""


class InflateError(Exception):
    """The data of a cluster cannot be inflated."""


class _Header(NamedTuple):
    """The header of both versions, in the order of the file."""

    magic: bytes
    version: int
    backing_at: Bytes
    backing_size: Bytes
    cluster_bits: int
    size: Bytes
    encryption: int
    l1_entries: int
    l1_at: Bytes
    refcounts_at: Bytes
    refcounts_clusters: int
    snapshots: int
    snapshots_at: Bytes


class Qcow2Image:
    """A qcow2 image that is open for reading. Raises UsageError (ImageUnusable), here and in `pieces`."""

    def __init__(self, file: IO[bytes], name: str) -> None:
        self._file, self._name = file, name
        self._length = file.seek(0, os.SEEK_END)
        self._remaining = self._length
        self._header = _Header._make(_HEADER.unpack(self._read(0, _HEADER.size)))
        self._inflate: Inflate = _inflate_zlib
        if self._header.magic != MAGIC or self._header.version not in (2, 3):
            raise self._image_error("is no qcow2 of version 2 or 3")
        if self._header.version == 3:
            self._read_version_3()
        self._check_header()
        self._check_refcounts()

    @property
    def size(self) -> Bytes:
        return self._header.size

    @property
    def _cluster(self) -> Bytes:
        return 1 << self._header.cluster_bits

    def pieces(self) -> Iterator[Extent]:
        """Yield the data of the disk, cluster by cluster. Raises UsageError (ImageUnusable)."""
        self._remaining = self._length
        per_table = self._cluster // 8
        for index, entry in enumerate(self._table(self._header.l1_at, 8 * self._l1_needed())):
            if not entry:
                continue
            first = index * per_table
            entries = self._table(self._offset(entry), self._cluster)
            needed = -(-self.size // self._cluster) - first
            for number, cluster in enumerate(islice(entries, needed), first):
                begin = number * self._cluster
                if cluster & ~_COPIED and (data := self._data(cluster, min(self._cluster, self.size - begin))):
                    yield Extent(begin, data)

    def _data(self, entry: int, length: Bytes) -> bytes:
        """Return the first bytes of a cluster by its entry in an L2 table; empty for a cluster of zeros."""
        if entry & _COMPRESSED:
            return self._compressed(entry)[:length]
        if entry & _ZERO and self._header.version == 3:
            return b""
        at = self._offset(entry)
        self._count_read(length)
        return self._read(at, length)

    def _compressed(self, entry: int) -> bytes:
        """Inflate a whole cluster. The entry counts sectors from the one in which the data begins, so up to 511 bytes
        of them do not belong to the data.
        """
        offset_bits = 62 - (self._header.cluster_bits - 8)
        at = entry & ((1 << offset_bits) - 1)
        sectors = ((entry & (_COMPRESSED - 1)) >> offset_bits) + 1
        length = sectors * SECTOR - at % SECTOR
        self._count_read(max(length - SECTOR + 1, 1))
        try:
            data = self._inflate(self._read(at, max(min(length, self._length - at), 1)), self._cluster + 1)
        except InflateError:
            raise self._image_error(
                f"has a compressed cluster at {at:,} that cannot be inflated", _REPAIR_HINT
            ) from None
        if len(data) != self._cluster:
            relation = "more" if len(data) > self._cluster else "less"
            raise self._image_error(f"has a compressed cluster at {at:,} that inflates to {relation} than a cluster")
        return data

    def _table(self, at: Bytes, length: Bytes) -> Iterator[int]:
        self._count_read(length)
        return (entry for (entry,) in struct.iter_unpack(">Q", self._read(at, length)))

    def _offset(self, entry: int) -> Bytes:
        """Return the offset in an entry of a table."""
        at = entry & _OFFSET
        if entry & ~(_OFFSET | _COPIED) or at % self._cluster or at == 0:
            raise self._image_error(f"has an entry in a table that no qcow2 has ({entry:#018x})", _REPAIR_HINT)
        return at

    def _count_read(self, length: Bytes) -> None:
        self._remaining -= length
        if self._remaining < 0:
            raise self._image_error("refers to some of its clusters more than once", _REPAIR_HINT)

    def _read(self, at: Bytes, length: Bytes) -> bytes:
        try:
            self._file.seek(at)
            data = self._file.read(length) if at + length <= self._length else b""
        except OSError as error:
            raise self._image_error(f"cannot be read: {error.strerror}") from error
        if len(data) < length:
            raise self._image_error(
                f"is cut off, or damaged: {at + length:,} bytes are needed, it has {self._length:,}"
            )
        return data

    def _image_error(self, why: str, hint: str | None = None) -> UsageError:
        return unusable(self._name, why, hint)

    def _read_version_3(self) -> None:
        incompatible, _, _, refcount_order, length = _HEADER_3.unpack(self._read(_HEADER.size, _HEADER_3.size))
        for bit in (bit for bit in range(64) if incompatible >> bit & 1 and bit != _COMPRESSION_BIT):
            unknown = (f"needs a feature that winhost does not know (incompatible bit {bit})", _CONVERT_HINT)
            raise self._image_error(*_INCOMPATIBLE.get(bit, unknown))
        if refcount_order > 6 or not _COMPRESSION_TYPE_AT <= length <= self._cluster or length % 8:
            raise self._image_error("has a header that no qcow2 has", _REPAIR_HINT)
        kind = self._read(_COMPRESSION_TYPE_AT, 1)[0] if length > _COMPRESSION_TYPE_AT else 0
        if bool(kind) != bool(incompatible >> _COMPRESSION_BIT & 1) or kind > 1:
            raise self._image_error(
                f"has compressed clusters of a kind that winhost does not know ({kind})", _CONVERT_HINT
            )
        if kind == 1:
            self._inflate = _zstd(self._name)

    def _check_header(self) -> None:
        header = self._header
        if not 9 <= header.cluster_bits <= 21:
            raise self._image_error(f"has clusters of 2^{header.cluster_bits} bytes, and 2^9 to 2^21 are allowed")
        check_size(self._name, header.size)
        for found, why in (
            (header.backing_at, "holds only what differs from another image (a backing file)"),
            (header.encryption, "is encrypted"),
            (header.snapshots, "holds snapshots"),
        ):
            if found:
                raise self._image_error(why, _CONVERT_HINT)
        if header.l1_entries < self._l1_needed() or 8 * header.l1_entries > _LARGEST_L1:
            raise self._image_error(
                f"has an L1 table of {header.l1_entries:,} entries, too few or too many", _REPAIR_HINT
            )
        if header.l1_at % self._cluster or not header.l1_at:
            raise self._image_error("has its L1 table at an offset where none can be", _REPAIR_HINT)
        self._check_inside(header.l1_at, 8 * header.l1_entries, "L1 table")

    def _l1_needed(self) -> int:
        return -(-self.size // (self._cluster * (self._cluster // 8)))

    def _check_refcounts(self) -> None:
        """Check the refcount table. Reading does not need it, but a table that leads out of the file shows that the
        file is damaged.
        """
        at, length = self._header.refcounts_at, self._header.refcounts_clusters * self._cluster
        if at % self._cluster or not at or not 0 < length <= _LARGEST_REFCOUNT_TABLE:
            raise self._image_error("has a refcount table that no qcow2 has", _REPAIR_HINT)
        self._check_inside(at, length, "refcount table")
        for entry in filter(None, self._table(at, length)):
            if entry % self._cluster:
                raise self._image_error("has a refcount block at an offset where none can be", _REPAIR_HINT)
            self._check_inside(entry, self._cluster, "refcount block")

    def _check_inside(self, at: Bytes, length: Bytes, what: str) -> None:
        if at + length > self._length:
            raise self._image_error(f"is cut off, or damaged: its {what} ends behind the file's own end")


def _inflate_zlib(data: bytes, most: Bytes) -> bytes:
    try:
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, most)
    except zlib.error:
        raise InflateError from None


def _zstd(name: str) -> Inflate:
    """Return the inflater of Python 3.14, or of the package backports.zstd. Raises UsageError (ImageUnusable) if there
    is neither.
    """
    library: Any = None
    for module in ("compression.zstd", "backports.zstd"):
        try:
            library = import_module(module)
            break
        except ImportError:
            continue
    if library is None:
        hint = f"pip install 'winhost[zstd]'. Or {_CONVERT_HINT}"
        raise unusable(name, "is compressed with zstd, which this Python cannot read", hint)

    def inflate(data: bytes, most: Bytes) -> bytes:
        try:
            return bytes(library.ZstdDecompressor().decompress(data, most))
        except library.ZstdError:
            raise InflateError from None

    return inflate


_UNSUPPORTED_FORMATS = {
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
    """A raw image: the bytes of a disk."""

    def __init__(self, file: IO[bytes], name: str) -> None:
        self._file, self._name = file, name
        self.size: Bytes = file.seek(0, os.SEEK_END)
        check_size(name, self.size)

    def pieces(self) -> Iterator[Extent]:
        """Yield the whole disk. Raises UsageError (ImageUnusable) if the file gets shorter, or cannot be read."""
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
    """Open the image in a file. Raises UsageError (ImageUnusable)."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise unusable(str(path), f"cannot be opened: {error.strerror}") from error
    with file:
        begin, name = file.read(SECTOR), str(path)
        other = next((kind for magic, kind in _UNSUPPORTED_FORMATS.items() if begin.startswith(magic)), None)
        if other:
            hint = "qcow2 and raw disk images are read; a VHDX is given with --vhdx"
            raise unusable(name, f"is a file of the kind {other}", hint)
        if begin.startswith(MAGIC):
            yield Qcow2Image(file, name)
        elif begin.endswith(_BOOT_SIGNATURE):
            yield RawImage(file, name)
        else:
            raise unusable(name, "has no partition table", "qcow2 images are read, and raw ones of whole disks")
