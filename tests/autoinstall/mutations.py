"""What may be other than it was told, one thing at a time, and the code with which the guard must stop."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tests.autoinstall.layouts import guid_of
from tests.autoinstall.made_disk import BOOT_SECTORS, ntfs, put, write_table
from tests.autoinstall.rig import Rig, told
from winhost.autoinstall.manifest import LINUX_TYPE, DiskManifest, PartitionRecord, PartitionRole
from winhost.model.units import KiB, MiB

DISK = "nvme0n1"
OTHER = guid_of(0xFFFF)
Change = Callable[[Rig, DiskManifest], None]


@dataclass(frozen=True)
class Mutation:
    """A change of the machine after the manifest was made, and the code that names it."""

    name: str
    code: str
    change: Change


def retable(rig: Rig, manifest: DiskManifest) -> None:
    """The disk gets this table, and the kernel reads it."""
    write_table(rig.device(DISK), manifest)
    seen_anew(rig, manifest.sector)


def seen_anew(rig: Rig, sector: int = 512, name: str = DISK) -> None:
    shutil.rmtree(rig.root / "sys/block" / name)
    rig.attach(name, rig.device(name), sector)


def with_partitions(*partitions: PartitionRecord) -> Change:
    return lambda rig, manifest: retable(rig, replace(manifest, partitions=partitions))


def each_partition(manifest: DiskManifest) -> Iterator[Mutation]:
    """Every field of every partition."""
    sector, all_ = manifest.sector, manifest.partitions
    for at, one in enumerate(all_):
        before, after = all_[:at], all_[at + 1 :]
        changes = {
            "another GUID": ("partition-missing", replace(one, guid=OTHER)),
            "another type": ("partition-type", replace(one, type=OTHER)),
            "moved by a sector": ("partition-moved", replace(one, offset=one.offset + sector, size=one.size - sector)),
            "a sector shorter": ("partition-resized", replace(one, size=one.size - sector)),
        }
        for what, (code, changed) in changes.items():
            yield Mutation(f"{one.role}: {what}", code, with_partitions(*before, changed, *after))
        yield Mutation(f"{one.role}: deleted", "partition-missing", with_partitions(*before, *after))


def of_table(manifest: DiskManifest) -> Iterator[Mutation]:
    first, *_, last = manifest.partitions
    sector = manifest.sector
    behind = PartitionRecord(OTHER, last.end, 512 * KiB, LINUX_TYPE, PartitionRole.OTHER)
    swapped = (replace(first, guid=last.guid), *manifest.partitions[1:-1], replace(last, guid=first.guid))
    yield Mutation("another partition", "partition-extra", with_partitions(*manifest.partitions, behind))
    yield Mutation("GUIDs swapped", "partition-moved", with_partitions(*swapped))
    yield Mutation("no partitions", "partition-missing", with_partitions())
    yield Mutation("another disk GUID", "disk-absent", lambda rig, m: retable(rig, replace(m, guid=OTHER)))
    yield Mutation("header damaged", "disk-absent", wrote(sector + 40, b"\xff"))
    yield Mutation("entries damaged", "disk-absent", wrote(2 * sector + 56, b"X"))
    yield Mutation("no table", "disk-absent", wrote(sector, bytes(512)))
    yield Mutation("backup damaged", "table-backup", wrote(manifest.size - sector, b"XXXX"))
    yield Mutation("backup lost", "table-backup", wrote(manifest.size - sector, bytes(512)))
    yield Mutation("backup of another table", "table-backup", _other_backup)
    yield Mutation("the table of a smaller disk", "table-elsewhere", _of_smaller)
    yield Mutation("an MBR that names partitions", "table-hybrid", wrote(446 + 16 + 4, b"\x07"))
    yield Mutation("an MBR without its signature", "table-hybrid", wrote(510, b"\0\0"))


def wrote(offset: int, data: bytes) -> Change:
    return lambda rig, _: put(rig.device(DISK), offset, data)


def _other_backup(rig: Rig, manifest: DiskManifest) -> None:
    """As a tool leaves it that was killed between the copies."""
    whole = rig.device(DISK).read_bytes()
    write_table(rig.device(DISK), replace(manifest, partitions=manifest.partitions[:-1]))
    put(rig.device(DISK), 0, whole[:MiB])


def _of_smaller(rig: Rig, manifest: DiskManifest) -> None:
    """As after a copy to a larger disk, and as the members of a RAID have it, whose metadata lies behind."""
    retable(rig, replace(manifest, size=manifest.size - 128 * KiB))


def of_disk(manifest: DiskManifest) -> Iterator[Mutation]:
    yield Mutation("no disk", "disk-absent", lambda rig, _: shutil.rmtree(rig.root / "sys/block" / DISK))
    yield Mutation("cloned", "disk-cloned", lambda rig, m: cloned(rig, m, m))
    yield Mutation(
        "cloned, with another disk GUID", "partition-cloned", lambda rig, m: cloned(rig, m, replace(m, guid=OTHER))
    )
    yield Mutation("the disk grown, the table not", "disk-size", lambda rig, m: resized(rig, m, m.size + MiB, False))
    yield Mutation("the table grown with the disk", "disk-size", lambda rig, m: resized(rig, m, m.size + MiB, True))
    yield Mutation("the disk cut", "disk-size", lambda rig, m: resized(rig, m, m.size - 512 * KiB, False))
    yield Mutation("other sectors", "disk-absent", lambda rig, m: seen_anew(rig, 4608 - m.sector))
    yield Mutation("the kernel has an older table", "kernel-table", lambda rig, _: told(sys(rig, 3) / "size", 8))
    yield Mutation("the kernel lacks a partition", "kernel-table", lambda rig, _: shutil.rmtree(sys(rig, 2)))
    yield Mutation("a file system on the whole disk", "disk-superblock", wrote(0, b"\0\0\0ReFS\0"))


def cloned(rig: Rig, manifest: DiskManifest, table: DiskManifest) -> None:
    shutil.copy(rig.device(DISK), rig.device("sdb"))
    write_table(rig.device("sdb"), table)
    rig.attach("sdb", rig.device("sdb"), manifest.sector, "ANOTHER")


def resized(rig: Rig, manifest: DiskManifest, size: int, grown: bool) -> None:
    with rig.device(DISK).open("r+b") as file:
        file.truncate(size)
    if grown:
        write_table(rig.device(DISK), replace(manifest, size=size))
    seen_anew(rig, manifest.sector)


def sys(rig: Rig, number: int) -> Path:
    return rig.root / "sys/block" / DISK / f"{DISK}p{number}"


def of_contents(manifest: DiskManifest) -> Iterator[Mutation]:
    for one in manifest.partitions:
        if one.filesystem:
            gone = wrote(one.offset, bytes(64 * KiB))
            yield Mutation(f"{one.role}: its file system is gone", "filesystem", gone)
            other = "ntfs" if one.filesystem != "ntfs" else "BitLocker"
            sectors = BOOT_SECTORS[other](one, manifest.sector)
            now = wrote(one.offset, sectors.ljust(64 * KiB, b"\0"))
            yield Mutation(f"{one.role}: is {other} now", "filesystem", now)


# What libblkid knows, by where it stands: ext4, LUKS, LVM, swap, XFS, btrfs; and what nobody knows.
SIGNATURES = {
    "ext4": (0x438, b"\x53\xef"),
    "LUKS": (0, b"LUKS\xba\xbe\0\x02"),
    "XFS": (0, b"XFSB"),
    "swap": (4086, b"SWAPSPACE2"),
    "data at its begin": (65536, b"somebody's"),
}


def of_target(manifest: DiskManifest) -> Iterator[Mutation]:
    target = manifest.one(PartitionRole.TARGET)
    number = manifest.partitions.index(target) + 1
    node = f"/dev/{DISK}p{number}"
    for name, (at, data) in SIGNATURES.items():
        yield Mutation(f"target holds {name}", "target-not-blank", wrote(target.offset + at, data))
    yield Mutation("target holds data at its end", "target-not-blank", wrote(target.end - 16, b"somebody's"))
    for label in ("Games", "WINHOST-deadbeef"):
        data = ntfs(label, target.size, manifest.sector)
        yield Mutation(f"target is NTFS called {label}", "target-not-blank", wrote(target.offset, data))
    mounts, swaps = f"{node} /mnt ext4 rw 0 0", f"Filename Type\n{node} partition 1 0 -2"
    yield Mutation("target is mounted", "in-use", lambda rig, _: told(rig.root / "proc/self/mounts", mounts))
    yield Mutation("target is swap", "in-use", lambda rig, _: told(rig.root / "proc/swaps", swaps))
    yield Mutation(
        "target is in a RAID", "in-use", lambda rig, _: (sys(rig, number) / "holders/md127").mkdir(parents=True)
    )


def of_machine(_: DiskManifest) -> Iterator[Mutation]:
    dmi = "sys/class/dmi/id"
    for name, code in (("uuid", "machine-uuid"), ("serial", "machine-serial")):
        other = OTHER if name == "uuid" else "B5RN13"
        file = f"{dmi}/product_{name}"
        yield Mutation(f"another {name}", code, lambda rig, _, file=file, other=other: told(rig.root / file, other))  # type: ignore[misc]
        yield Mutation(f"no {name}", code, lambda rig, _, file=file: (rig.root / file).unlink())  # type: ignore[misc]
    yield Mutation("started by a BIOS", "not-uefi", lambda rig, _: shutil.rmtree(rig.root / "sys/firmware/efi"))


def of_order(_: DiskManifest) -> Iterator[Mutation]:
    def edited(**changes: object) -> Change:
        def change(rig: Rig, _: DiskManifest) -> None:
            file = rig.folder / "guard.json"
            told(file, json.dumps(json.loads(file.read_text()) | changes))

        return change

    def storage(old: str, new: str) -> Change:
        def change(rig: Rig, _: DiskManifest) -> None:
            file = rig.root / "autoinstall.yaml"
            file.write_text(file.read_text().replace(old, new))

        return change

    yield Mutation("no order", "unreadable", lambda rig, _: (rig.folder / "guard.json").unlink())
    yield Mutation("half an order", "defect", lambda rig, _: told(rig.folder / "guard.json", '{"machine": {'))
    yield Mutation("an order without a machine", "defect", edited(machine={}))
    yield Mutation("an installer's file of somebody else", "order", storage("WINHOST-UNRESOLVED", "S5XNNG0R"))
    yield Mutation("an installer's file for other disks", "order", storage('"disk-0"', '"disk-9"'))
    yield Mutation("no file of the installer", "unreadable", lambda rig, _: (rig.root / "autoinstall.yaml").unlink())


FAMILIES = (each_partition, of_table, of_disk, of_contents, of_target, of_machine, of_order)


def mutations(manifest: DiskManifest) -> list[Mutation]:
    return [each for family in FAMILIES for each in family(manifest)]
