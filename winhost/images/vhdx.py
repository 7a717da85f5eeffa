"""Write a disk image as a dynamic VHDX file, once and in order. Blocks with only zeros are left out.

The format is [MS-VHDX], with blocks of 1 MiB, as Microsoft advises for Linux ("Best practices for running Linux on
Hyper-V"). Blocks that are left out are marked PAYLOAD_BLOCK_ZERO, as qemu-img does for Hyper-V: by section 2.5.1.1, a
block that is only "not present" may read as anything.

If the disk is larger than the image, the backup header of its GPT is not at its end; growpart moves it there on the
first boot of the guest.
"""

import os
import struct
from array import array
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import IO
from uuid import UUID

from winhost.images.disk_image import SECTOR, DiskImage, Extent, Progress, check_size
from winhost.model.files import fill_whole
from winhost.model.once import once
from winhost.model.units import Bytes, KiB, MiB

BLOCK: Bytes = MiB
_CHUNK = (1 << 23) * SECTOR // BLOCK
"""Blocks between two entries for sector bitmaps, of which a dynamic disk has none."""

_HEADERS_AT = (64 * KiB, 128 * KiB)
_REGIONS_AT = (192 * KiB, 256 * KiB)
_LOG_AT, _METADATA_AT, _BAT_AT = MiB, 2 * MiB, 3 * MiB
_ITEMS_AT = 64 * KiB  # in the metadata region
_BAT = UUID("2dc27766-f623-4200-9d64-115e9bfd4a08")
_METADATA = UUID("8b7ca206-4790-4b9a-b8fe-575f050f886e")
_EMPTY_LOG = UUID(int=0)

_ZERO, _PRESENT = 2, 6  # PAYLOAD_BLOCK_ZERO, PAYLOAD_BLOCK_FULLY_PRESENT
_REQUIRED, _VIRTUAL_DISK = 4, 2
_ZEROS = bytes(BLOCK)
_CREATOR = "winhost".encode("utf-16-le")


def write_vhdx(image: DiskImage, path: Path, progress: Progress = lambda done, total: None) -> None:
    """Write the image as a VHDX, completely or not at all. The same image gives the same bytes, because the id by which
    guests identify the disk (SCSI page 0x83) is derived from its content, too.

    progress: is called with the number of bytes that are done. Raises UsageError (ImageUnusable) and OSError.
    """
    check_size(str(path), image.size)
    fill_whole(path, lambda file: _fill(file, image, progress))


def _fill(file: IO[bytes], image: DiskImage, progress: Progress) -> None:
    virtual = image.size
    blocks = -(-virtual // BLOCK)
    bat_length = -(-(8 * (blocks + (blocks - 1) // _CHUNK)) // MiB) * MiB
    data_at = _BAT_AT + bat_length
    content = sha256(struct.pack("<Q", virtual))
    written = array("Q")
    file.seek(data_at)
    file.truncate()
    for number, block in _blocks(image.pieces()):
        content.update(struct.pack("<Q", number))
        content.update(block)
        file.write(block)
        written.append(number)
        progress(number * BLOCK, image.size)
    file.truncate(data_at + len(written) * BLOCK)
    _write_at(file, _BAT_AT, _allocation_table(blocks, written, data_at // MiB))
    _write_headers(file, virtual, bat_length, content.digest())
    file.flush()
    os.fsync(file.fileno())
    progress(image.size, image.size)


def _blocks(pieces: Iterable[Extent]) -> Iterator[tuple[int, bytes | bytearray]]:
    """Yield the blocks that do not contain only zeros, with their numbers, in order."""
    current, block = -1, bytearray(_ZEROS)
    for at, data in pieces:
        for number, inside, part in _split(at, data):
            if number != current:
                if block != _ZEROS:
                    yield current, block
                current, block = number, bytearray(_ZEROS)
            block[inside : inside + len(part)] = part
    if block != _ZEROS:
        yield current, block


def _split(at: Bytes, data: bytes) -> Iterator[tuple[int, Bytes, memoryview]]:
    """Split a piece at the borders of blocks. Yield the number of each block, the offset in it, and the part."""
    remaining = memoryview(data)
    while remaining:
        number, inside = divmod(at, BLOCK)
        part = remaining[: BLOCK - inside]
        yield number, inside, part
        at, remaining = at + len(part), remaining[len(part) :]


def _allocation_table(blocks: int, written: "array[int]", at_mib: int) -> Iterator[bytes]:
    """Yield the block allocation table by chunks. Each but the last ends with an entry for a sector bitmap."""
    done = 0
    for first in range(0, blocks, _CHUNK):
        entries = array("Q", [_ZERO]) * min(_CHUNK, blocks - first)
        while done < len(written) and written[done] < first + _CHUNK:
            entries[written[done] - first] = (at_mib + done) << 20 | _PRESENT
            done += 1
        if first + _CHUNK < blocks:
            entries.append(0)
        yield struct.pack(f"<{len(entries)}Q", *entries)


def _write_at(file: IO[bytes], at: Bytes, pieces: Iterable[bytes]) -> None:
    file.seek(at)
    for piece in pieces:
        file.write(piece)


def _write_headers(file: IO[bytes], virtual: Bytes, bat_length: Bytes, content: bytes) -> None:
    _write_at(file, 0, [b"vhdxfile", _CREATOR])
    ids = b"".join(each.bytes_le for each in (_derive_id(content, b"file"), _derive_id(content, b"data"), _EMPTY_LOG))
    for sequence, at in enumerate(_HEADERS_AT):  # the header with the higher sequence number is valid
        fields = struct.pack("<Q48sHHIQ", sequence, ids, 0, 1, MiB, _LOG_AT)
        _write_at(file, at, [_with_checksum(b"head", fields, 4 * KiB)])
    entries = ((_BAT, _BAT_AT, bat_length), (_METADATA, _METADATA_AT, MiB))
    rows = [struct.pack("<16sQII", region.bytes_le, at, length, 1) for region, at, length in entries]
    regions = _with_checksum(b"regi", struct.pack("<II", len(rows), 0) + b"".join(rows), 64 * KiB)
    for at in _REGIONS_AT:
        _write_at(file, at, [regions])
    table, items = _metadata(virtual, _derive_id(content, b"disk"))
    _write_at(file, _METADATA_AT, [table])
    _write_at(file, _METADATA_AT + _ITEMS_AT, [items])


def _derive_id(content: bytes, what: bytes) -> UUID:
    return UUID(bytes=sha256(content + what).digest()[:16], version=4)


def _metadata(virtual: Bytes, disk_id: UUID) -> tuple[bytes, bytes]:
    """Return the table of the metadata region, and its items."""
    items = (
        ("caa16737-fa36-4d43-b3b6-33f0aa44e76b", _REQUIRED, struct.pack("<II", BLOCK, 0)),
        ("2fa54224-cd1b-4876-b211-5dbed83bf4b8", _REQUIRED | _VIRTUAL_DISK, struct.pack("<Q", virtual)),
        ("beca12ab-b2e6-4523-93ef-c309e000c746", _REQUIRED | _VIRTUAL_DISK, disk_id.bytes_le),
        ("8141bf1d-a96f-4709-ba47-f233a8faab5f", _REQUIRED | _VIRTUAL_DISK, struct.pack("<I", SECTOR)),
        ("cda348c7-445d-4471-9cc9-e9885251c556", _REQUIRED | _VIRTUAL_DISK, struct.pack("<I", 4 * KiB)),
    )
    table = struct.pack("<8sHH20x", b"metadata", 0, len(items))
    data = b""
    for item, flags, value in items:
        table += struct.pack("<16sIIII", UUID(item).bytes_le, _ITEMS_AT + len(data), len(value), flags, 0)
        data += value
    return table, data


def _with_checksum(signature: bytes, fields: bytes, length: Bytes) -> bytes:
    """Return a structure with its CRC-32C, which is computed with zeros in the place of the checksum."""
    body = fields.ljust(length - 8, b"\0")
    return signature + struct.pack("<I", crc32c(signature + bytes(4) + body)) + body


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli) of RFC 3720. A VHDX has checksums of only a few KiB, so speed does not matter."""
    table, crc = _crc_table(), 0xFFFF_FFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFF_FFFF


@once
def _crc_table() -> tuple[int, ...]:
    def row(value: int) -> int:
        for _ in range(8):
            value = value >> 1 ^ (0x82F6_3B78 if value & 1 else 0)
        return value

    return tuple(map(row, range(256)))
