"""Disk images with the layout of a manifest: the table and what is in the partitions, of our own or by real tools."""

import json
import shutil
import struct
import subprocess
import uuid
import zlib
from collections.abc import Sequence
from pathlib import Path

from tests.processes import PATIENCE_S
from winhost.autoinstall.manifest import DiskManifest, PartitionRecord, PartitionRole
from winhost.model.units import Bytes, KiB

TOOLS = ("sgdisk", "sfdisk", "mkfs.vfat", "mkntfs", "mke2fs", "blkid")
NTFS = b"\xebR\x90NTFS    "
FILLED: Bytes = 64 * KiB


def missing_tools(tools: Sequence[str] = TOOLS) -> list[str]:
    return [tool for tool in tools if shutil.which(tool, path="/usr/sbin:/sbin:/usr/bin:/bin") is None]


def tool(*words: object, **options: object) -> str:
    command = [shutil.which(str(words[0]), path="/usr/sbin:/sbin:/usr/bin:/bin") or str(words[0]), *map(str, words[1:])]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, **options)  # type: ignore[call-overload]
    assert ran.returncode == 0, (command, ran.stdout, ran.stderr)
    return str(ran.stdout)


def write_table(image: Path, manifest: DiskManifest, *, slots: Sequence[int] | None = None) -> None:
    """Both copies of a GPT and the protective MBR. slots: the entry of each partition; in order where it is None."""
    sector, last = manifest.sector, manifest.size // manifest.sector - 1
    array = bytearray(128 * 128)
    for slot, each in zip(slots or range(len(manifest.partitions)), manifest.partitions, strict=True):
        struct.pack_into(
            "<16s16sQQ",
            array,
            slot * 128,
            uuid.UUID(each.type).bytes_le,
            uuid.UUID(each.guid).bytes_le,
            each.offset // sector,
            each.end // sector - 1,
        )
    rows = len(array) // sector
    with image.open("r+b") as file:
        file.seek(446)
        file.write(
            struct.pack("<8B2I", 0, 0, 2, 0, 0xEE, 255, 255, 255, 1, min(last, 0xFFFFFFFF)) + bytes(48) + b"\x55\xaa"
        )
        for own, other, first in ((1, last, 2), (last, 1, last - rows)):
            head = struct.pack("<8s4I4Q", b"EFI PART", 0x10000, 92, 0, 0, own, other, 2 + rows, last - rows - 1)
            head += uuid.UUID(manifest.guid).bytes_le + struct.pack("<Q3I", first, 128, 128, zlib.crc32(array))
            head = head[:16] + struct.pack("<I", zlib.crc32(head)) + head[20:]
            for at, data in ((own, head), (first, bytes(array))):
                file.seek(at * sector)
                file.write(data)


def put(image: Path, offset: Bytes, data: bytes) -> None:
    with image.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def made_by_hand(image: Path, manifest: DiskManifest) -> None:
    """Sparse, with boot sectors that libblkid takes for the file systems that the manifest names."""
    image.touch()
    with image.open("r+b") as file:
        file.truncate(manifest.size)
    write_table(image, manifest)
    for each in manifest.partitions:
        if each.filesystem:
            put(image, each.offset, BOOT_SECTORS[each.filesystem](each, manifest.sector))


def _vfat(each: PartitionRecord, sector: Bytes) -> bytes:
    sectors = each.size // sector
    head = b"\xeb\x3c\x90mkfs.fat" + struct.pack("<HBHBHHBHHHII", sector, 8, 8, 2, 512, 0, 0xF8, 64, 32, 64, 0, sectors)
    return (head + b"\x80\0\x29" + b"\1\2\3\4" + b"ESP        " + b"FAT16   ").ljust(510, b"\0") + b"\x55\xaa"


def _ntfs(each: PartitionRecord, sector: Bytes) -> bytes:
    """As blkid reads it: the boot sector, and in its master file table the record of the volume with its name."""
    return ntfs("Windows", each.size, sector)


def ntfs(label: str, size: Bytes, sector: Bytes) -> bytes:
    head = (
        NTFS
        + struct.pack("<HB", sector, 1)
        + bytes(7)
        + b"\xf8"
        + bytes(2)
        + struct.pack("<HHI", 63, 255, 0)
        + bytes(4)
    )
    head += struct.pack("<IQQQIIQ", 0x80008000, size // sector - 1, 8, 16, 0xF6, 1, 0x1234)
    boot = head.ljust(510, b"\0") + b"\x55\xaa"
    return boot.ljust(8 * sector, b"\0") + _volume_record(label)


def _volume_record(label: str) -> bytes:
    """The first four records, of 1 KiB; the fourth is $Volume, with its name as attribute 0x60."""
    name = label.encode("utf-16-le")
    attribute = struct.pack("<IIBBHHHIHH", 0x60, 24 + (len(name) + 7) // 8 * 8, 0, 0, 24, 0, 0, len(name), 24, 0)
    record = struct.pack("<4sHHQHHHHIIQHHI", b"FILE", 48, 3, 0, 1, 1, 56, 1, 1024, 1024, 0, 0, 0, 3) + bytes(8)
    empty = (b"FILE" + bytes(1020)) * 3
    whole = (record[:56] + attribute + name).ljust(56 + 24 + (len(name) + 7) // 8 * 8, b"\0") + b"\xff\xff\xff\xff"
    return empty + whole.ljust(1024, b"\0")


def _bitlocker(each: PartitionRecord, sector: Bytes) -> bytes:
    """Its metadata lies at three places that the first sector names."""
    head = bytearray(b"\xeb\x58\x90-FVE-FS-" + struct.pack("<HB", sector, 8) + bytes(146))
    head[160:176] = uuid.UUID("4967d63b-2e29-4ad8-8399-f6a339e3d001").bytes_le
    head += struct.pack("<QQQ", 8192, 8192, 8192)
    return bytes(head).ljust(510, b"\0") + b"\x55\xaa" + bytes(8192 - 512) + b"-FVE-FS-" + struct.pack("<HH", 64, 2)


BOOT_SECTORS = {"vfat": _vfat, "ntfs": _ntfs, "BitLocker": _bitlocker}


def made_by_tools(image: Path, manifest: DiskManifest, folder: Path) -> None:
    """With sgdisk, mkfs.vfat and mkntfs; sgdisk knows sectors of 512 bytes alone on a file, sfdisk others, too."""
    image.touch()
    with image.open("r+b") as file:
        file.truncate(manifest.size)
    if manifest.sector == 512:
        words: list[object] = ["--disk-guid", manifest.guid]
        for number, each in enumerate(manifest.partitions, 1):
            words += [f"--new={number}:{each.offset // 512}:{each.end // 512 - 1}"]
            words += [f"--typecode={number}:{each.type}", f"--partition-guid={number}:{each.guid}"]
        tool("sgdisk", "--clear", "--set-alignment=1", *words, image)
    else:
        write_table(image, manifest)  # no tool makes such a table in a file
    for each in manifest.partitions:
        if each.role is PartitionRole.TARGET:
            continue
        part = folder / "partition"
        part.write_bytes(bytes(range(256)) * (FILLED // 256))  # what a table lists as reserved holds something, too
        with part.open("r+b") as file:
            file.truncate(each.size)
        _format(part, each, manifest.sector)
        with part.open("rb") as source, image.open("r+b") as disk:
            disk.seek(each.offset)
            shutil.copyfileobj(source, disk, 1 << 20)


def _format(part: Path, each: PartitionRecord, sector: Bytes) -> None:
    if each.filesystem == "vfat":
        tool("mkfs.vfat", "-S", sector, part)
    elif each.filesystem == "ntfs":
        tool("mkntfs", "--force", "--fast", "--quiet", "--sector-size", sector, "--partition-start", 63, part)
    elif each.filesystem == "BitLocker":
        put(part, 0, _bitlocker(each, sector))


def table_of(image: Path) -> list[dict[str, object]]:
    """As sfdisk reads it."""
    rows: list[dict[str, object]] = json.loads(tool("sfdisk", "--json", image))["partitiontable"]["partitions"]
    return rows
