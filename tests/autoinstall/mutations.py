"""What may be other than it was told, one thing at a time, and the code with which the guard must stop."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.autoinstall.layouts import guid_of
from tests.autoinstall.made_disk import BOOT_SECTORS, ntfs, put, write_table
from tests.autoinstall.rig import Rig, told
from winhost.autoinstall.installer_storage import FETCHING
from winhost.autoinstall.manifest import DiskManifest, PartitionRecord, PartitionRole
from winhost.model.units import KiB, MiB
from winhost.resources.windows.disks import LINUX

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
    behind = PartitionRecord(OTHER, last.end, 512 * KiB, LINUX, PartitionRole.OTHER)
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
    target = manifest.with_role(PartitionRole.TARGET)
    number = manifest.partitions.index(target) + 1
    node = f"/dev/{DISK}p{number}"
    for name, (at, data) in SIGNATURES.items():
        yield Mutation(f"target holds {name}", "target-not-blank", wrote(target.offset + at, data))
    middle = target.offset + target.size // 2
    yield Mutation("target holds data in its middle", "target-not-blank", wrote(middle, b"somebody's"))
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

    yield Mutation("no order", "unreadable", lambda rig, _: (rig.folder / "guard.json").unlink())
    yield Mutation("half an order", "defect", lambda rig, _: told(rig.folder / "guard.json", '{"machine": {'))
    yield Mutation("an order without a machine", "defect", edited(machine={}))


Edit = Callable[[dict[str, Any]], None]
LARGEST_DISK = {"name": "direct", "match": {"size": "largest"}}


def action(name: str, **changes: object) -> Edit:
    """A key that becomes None is taken out."""

    def edit(document: dict[str, Any]) -> None:
        (one,) = (each for each in document["storage"]["config"] if each["id"] == name)
        one.update(changes)
        for key in [key for key, value in one.items() if value is None]:
            del one[key]

    return edit


def more(*actions: dict[str, Any]) -> Edit:
    return lambda document: document["storage"]["config"].extend(actions)


def without(*names: str) -> Edit:
    def edit(document: dict[str, Any]) -> None:
        config = document["storage"]["config"]
        document["storage"]["config"] = [each for each in config if each["id"] not in names]

    return edit


def both(*edits: Edit) -> Edit:
    return lambda document: [edit(document) for edit in edits] and None


def storage(**changes: object) -> Edit:
    return lambda document: document["storage"].update(changes)


def section(value: object) -> Edit:
    return lambda document: document.update(storage=value)


def commands(change: Callable[[list[Any]], list[Any]]) -> Edit:
    return lambda document: document.update({"early-commands": change(document["early-commands"])})


def beside_others(document: dict[str, Any]) -> None:
    """The installer refuses other keys there."""
    whole = {"autoinstall": dict(document), "storage": {"layout": LARGEST_DISK}}
    document.clear()
    document.update(whole)


COMMANDS: dict[str, Callable[[list[Any]], list[Any]]] = {
    "nothing before": lambda _: [],
    "the guard once": lambda all_: all_[:1],
    "the guard last only": lambda all_: all_[1:],
    "a command before the guard": lambda all_: ["wipefs -a /dev/sda", *all_],
    "a command after the guard": lambda all_: [*all_, ["sh", "-c", "sed -i s/x/y/ /autoinstall.yaml"]],
    "the guard of another folder": lambda all_: [each.replace("guard.py", "other/guard.py") for each in all_],
    "the guard whose end is ignored": lambda all_: [f"{each} || true" for each in all_],
}


def file_edits(manifest: DiskManifest) -> Iterator[tuple[str, str, Edit]]:
    """What an editor may do to the installer's file, with the code of the stop."""
    for what, edit in (storage_edits(manifest) | partition_edits(manifest)).items():
        yield what, "storage", edit
    for what, change in COMMANDS.items():
        yield what, "early-commands", commands(change)
    yield "keys beside `autoinstall`", "installer-file", beside_others


def storage_edits(manifest: DiskManifest) -> dict[str, Edit]:
    roles = {each.role: f"partition-{each.guid}" for each in manifest.partitions}
    windows, target, esp = roles[PartitionRole.WINDOWS], roles[PartitionRole.TARGET], roles[PartitionRole.ESP]
    ext4 = {"type": "format", "id": "format-more", "volume": windows, "fstype": "ext4"}
    return {
        "formats Windows": more(ext4),
        "formats Windows in place of the target": both(
            action(f"format-{target}", volume=windows), action(windows, wipe="superblock")
        ),
        "formats the EFI system partition": action(f"format-{esp}", preserve=None),
        "mounts Windows as root": action(f"mount-{target}", device=f"format-{esp}"),
        "the disk is made anew": action("disk-0", preserve=False),
        "the disk is wiped": action("disk-0", preserve=False, wipe="superblock-recursive"),
        "the disk gets another kind of table": action("disk-0", ptable="msdos"),
        "another disk by its path": action("disk-0", serial=None, path="/dev/sdb"),
        "another disk by its serial number": action("disk-0", serial="S5XNNG0R", path=None),
        "the largest disk": action("disk-0", serial=None, path=None, match={"size": "largest"}),
        "a second disk": more({"type": "disk", "id": "disk-9", "path": "/dev/sdb", "wipe": "superblock"}),
        "another name for the disk": action("disk-0", id="disk-9"),
        "a layout": section({"layout": LARGEST_DISK}),
        "a layout beside the actions": storage(layout=LARGEST_DISK),
        "no actions": storage(config=[]),
        "actions that are no list": storage(config={}),
        "no section": lambda document: document.pop("storage") and None,
        "a misspelt section": lambda document: document.update(storag=document.pop("storage")),
        "an empty section": section({}),
        "a section that is null": section(None),
        "a swap file": storage(swap={"size": "8G"}),
        "other boot entries are removed": storage(grub={"remove_duplicate_entries": True}),
        "grub as it is by default": storage(grub={}),
        "one partition twice": both(without(target), more(dict.fromkeys(["type", "id"], "partition"))),
        "a partition more": more({"type": "partition", "id": "p", "device": "disk-0", "size": -1}),
        "the order of partitions": lambda document: document["storage"]["config"].reverse(),
        "asks for disks": lambda document: document.update({"interactive-sections": ["network", "storage"]}),
        "asks for everything": lambda document: document.update({"interactive-sections": ["*"]}),
        "asks, by a word": lambda document: document.update({"interactive-sections": "storage"}),
    }


def partition_edits(manifest: DiskManifest) -> dict[str, Edit]:
    edits: dict[str, Edit] = {}
    for each in manifest.partitions:
        role, name = each.role, f"partition-{each.guid}"
        edits |= {
            f"{role} left out": without(name, f"format-{name}", f"mount-{name}"),
            f"{role} not preserved": action(name, preserve=False),
            f"{role} larger": action(name, size=1 << 40),
            f"{role} moved": action(name, offset=5 << 20),
            f"{role} resized": action(name, resize=True, size=2 << 20),
            f"{role} of another type": action(name, partition_type=OTHER),
            f"{role} by another number": action(name, number=9),
        }
        if role is not PartitionRole.TARGET:
            edits[f"{role} wiped"] = action(name, wipe="zero")
    return edits


def wrapped_in(edit: Edit) -> Edit:
    """The same below the key `autoinstall`, as in a cloud-config."""

    def change(document: dict[str, Any]) -> None:
        edit(document)
        inner = dict(document)
        document.clear()
        document["autoinstall"] = inner

    return change


def of_file(manifest: DiskManifest) -> Iterator[Mutation]:
    for what, code, edit in file_edits(manifest):
        yield Mutation(f"file: {what}", code, lambda rig, _, edit=edit: rig.edit(edit))  # type: ignore[misc]
    for name, text in {"neither": "storage: [\n", "a list": "[]\n", "a word": "storage\n"}.items():
        change: Change = lambda rig, _, text=text: told(rig.root / "autoinstall.yaml", text)  # type: ignore[misc] # noqa: E731
        yield Mutation(f"file: {name}", "installer-file", change)
    yield Mutation("no file of the installer", "unreadable", lambda rig, _: (rig.root / "autoinstall.yaml").unlink())
    yield Mutation("the medium runs the guard once", "early-commands", _medium_without_the_last)


def _medium_without_the_last(rig: Rig, _: DiskManifest) -> None:
    """Settings that were fetched are whole; the file that the installer began with runs no guard at its end."""
    started = json.loads((rig.root / "autoinstall.yaml").read_text())
    started["early-commands"] = [FETCHING, started["early-commands"][0], "mkfs.ext4 /dev/sda"]
    told(rig.root / "cdrom/autoinstall.yaml", json.dumps(started))


FAMILIES = (each_partition, of_table, of_disk, of_contents, of_target, of_machine, of_order, of_file)


def mutations(manifest: DiskManifest) -> list[Mutation]:
    return [each for family in FAMILIES for each in family(manifest)]
