"""Ubuntu instead of Windows: which disks may be wiped, and what becomes of them."""

import json
import os
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.autoinstall.layouts import MACHINE, SMALL, guid_of, manifest_of
from tests.autoinstall.made_disk import made_by_hand, missing_tools, put, tool, write_table
from tests.autoinstall.mutations import retable
from tests.autoinstall.rig import Rig, bare_rig, told
from tests.autoinstall.test_guard import needs_blkid, stops
from tests.errors import raises
from tests.rows import each_row
from winhost.autoinstall.guard_order import DiskChoice, Scheme, WholeDisk, order_whole, whole_disks
from winhost.autoinstall.installer_guard import END, GIB, SAMPLE, SAMPLES, InstallDisk, checked_ranges
from winhost.autoinstall.installer_storage import section_of, section_of_whole_disks
from winhost.autoinstall.manifest import DiskManifest
from winhost.model.units import Bytes, GiB, KiB, MiB

FULL = manifest_of(SMALL)
EMPTY: Bytes = 12 * MiB
SERIAL = "E823_8FA6_BF53_0001_001B_448B_4A2B_0C1D."


@pytest.fixture(autouse=True)
def _sbin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")


MODEL = "Samsung SSD 980 PRO 2TB"


def full(wipe: str | None = FULL.guid) -> WholeDisk:
    return WholeDisk(DiskChoice("disk-0", FULL.size, FULL.guid), FULL.sector, MODEL, FULL.partitions, wipe=wipe)


def empty(wipe: str | None = SERIAL, size: Bytes = EMPTY) -> WholeDisk:
    return WholeDisk(DiskChoice("disk-1", size, serial=SERIAL), 512, MODEL, wipe=wipe)


def machine(tmp: Path, *disks: WholeDisk) -> Rig:
    """With a disk that holds a Windows, and an empty one."""
    rig = bare_rig(tmp)
    made_by_hand(tmp / "image", FULL)
    rig.attach("nvme0n1", tmp / "image")
    blank = tmp / "blank"
    blank.write_bytes(b"")
    with blank.open("r+b") as file:
        file.truncate(EMPTY)
    rig.attach("sdb", blank, serial="eui.e8238fa6bf530001001b448b4a2b0c1d")
    for name in ("nvme0n1", "sdb"):
        told(rig.root / f"sys/block/{name}/device/model", f"{MODEL}   ")
    order = order_whole(MACHINE, disks, Scheme(raid=1 if len(disks) > 1 else None))
    rig.order(order, section_of(order))
    return rig


@needs_blkid
def test_disks_are_known_by_guid_or_by_serial_number(tmp_path: Path) -> None:
    rig = machine(tmp_path, full(), empty())
    assert rig.guard() == 0
    disks = [each for each in rig.resolved["config"] if each["type"] == "disk"]
    assert [each["path"] for each in disks] == ["/dev/nvme0n1", "/dev/sdb"]
    assert all((each["preserve"], each["wipe"]) == (False, "superblock-recursive") for each in disks)
    assert rig.guard(again=True) == 0


@dataclass(frozen=True)
class Other:
    code: str
    change: Callable[[Rig], Any]
    disks: tuple[WholeDisk, ...] = (full(), empty())


def _table_on_the_empty(rig: Rig) -> None:
    write_table(rig.device("sdb"), DiskManifest(MACHINE, guid_of(77), EMPTY, 512, "", (), "00c0ffee"))


def _twin_serial(rig: Rig) -> None:
    (rig.root / "dev/sdc").write_bytes(bytes(MiB))
    rig.attach("sdc", rig.root / "dev/sdc", serial="E8238FA6BF530001001B448B4A2B0C1D")


def modelled(rig: Rig, name: str, model: str) -> None:
    told(rig.root / f"sys/block/{name}/device/model", model)


def _without_raid(document: dict[str, Any]) -> None:
    document["storage"] = section_of_whole_disks([("disk-0", FULL.size), ("disk-1", EMPTY)], None, lvm=False)


def _says_nothing(rig: Rig) -> None:
    """As a disk without a number of its own; the order was edited to ask for such a one."""
    told(rig.root / "sys/block/sdb/device/serial", "0000_0000")
    order = json.loads((rig.folder / "guard.json").read_text())
    order["disks"][1] |= {"serial": "0000_0000", "wipe": "0000_0000"}
    told(rig.folder / "guard.json", json.dumps(order))


CHANGES = {
    "nobody consented to the wipe": Other("no-consent", lambda rig: None, (full(None), empty())),
    "nobody consented to that of the empty one": Other("no-consent", lambda rig: None, (full(), empty(None))),
    "it is of another model": Other("disk-model", lambda rig: modelled(rig, "nvme0n1", "WDC WDS100T2B0C")),
    "it is smaller by its model": Other("disk-model", lambda rig: modelled(rig, "nvme0n1", "Samsung SSD 980 PRO 1TB")),
    "the empty one is of another model": Other("disk-model", lambda rig: modelled(rig, "sdb", "EMPTY DISK")),
    "it tells no model": Other("disk-model", lambda rig: modelled(rig, "sdb", "")),
    "the other system takes the model for another": Other(
        "disk-model", lambda rig: None, (replace(full(), model="EMPTY DISK"), empty())
    ),
    "a partition came since the consent": Other(
        "partition-missing",
        lambda rig: retable(rig, replace(FULL, partitions=FULL.partitions[:-1])),
    ),
    "another disk": Other("disk-absent", lambda rig: retable(rig, replace(FULL, guid=guid_of(9)))),
    "the empty one has a table": Other("not-blank", _table_on_the_empty),
    "the empty one holds data": Other("not-blank", lambda rig: put(rig.device("sdb"), 4096, b"somebody's")),
    "the empty one holds data at its end": Other("not-blank", lambda rig: put(rig.device("sdb"), EMPTY - 9, b"data")),
    "two have that serial number": Other("disk-cloned", _twin_serial),
    "no disk has that serial number": Other(
        "disk-absent", lambda rig: told(rig.root / "sys/block/sdb/device/serial", "ANOTHER")
    ),
    "its serial number says nothing": Other("order", _says_nothing),
    "it is mounted": Other(
        "in-use", lambda rig: told(rig.root / "proc/self/mounts", "/dev/nvme0n1p3 /mnt ntfs ro 0 0")
    ),
    "it is in a RAID": Other("in-use", lambda rig: (rig.root / "sys/block/nvme0n1/holders/md0").mkdir(parents=True)),
    "its sectors are others": Other(
        "sector-size", lambda rig: told(rig.root / "sys/block/sdb/queue/logical_block_size", 4096)
    ),
    "both are the same disk": Other(
        "order", lambda rig: None, (empty(), replace(empty(), choice=DiskChoice("disk-2", EMPTY, serial=SERIAL)))
    ),
    "the installer's file is for another scheme": Other("storage", lambda rig: rig.edit(_without_raid)),
}


@pytest.mark.costly
@needs_blkid
@pytest.mark.parametrize("other", CHANGES.values(), ids=CHANGES)
def test_a_disk_that_may_not_be_wiped_stops_it(
    other: Other, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rig = machine(tmp_path, *other.disks)
    other.change(rig)
    assert stops(rig, capsys) == other.code


def test_a_consent_names_the_disk_that_it_is_for() -> None:
    with pytest.raises(ValueError, match="the consent names"):
        full(guid_of(9))
    for serial in (None, "", "_", " ", ".", "0000_0000_0000_0000.", "eui.0000000000000000", "--"):
        with pytest.raises(ValueError, match="nothing names it"):
            WholeDisk(DiskChoice("disk-0", EMPTY, serial=serial), 512, MODEL)
    with pytest.raises(ValueError, match="has no model"):
        WholeDisk(DiskChoice("disk-0", EMPTY, guid_of(1)), 512, " ")


@each_row(
    "windows, vendor, linux, same",
    [
        ("Samsung SSD 980 PRO 2TB", "", "Samsung SSD 980 PRO 2TB", True),
        ("NVMe SAMSUNG MZVLB512", "", "SAMSUNG MZVLB512HAJQ-00000", True),  # older Windows cuts it, as SCSI does
        ("Samsung SSD 870 EVO 1TB", "ATA", "Samsung SSD 870", True),
        ("DELL PERC H730P Mini", "DELL", "PERC H730P Mini", True),
        ("Msft Virtual Disk", "Msft", "Virtual Disk", True),
        ("Samsung SSD 980 PRO 2TB", "", "Samsung SSD 980 PRO 1TB", False),
        ("Samsung", "", "Samsung SSD 980 PRO 1TB", False),
        ("EMPTY DISK", "", "Samsung SSD 980 PRO 2TB", False),
        ("Disk", "", "", False),
    ],
)
def test_a_model_is_known_under_the_names_of_both_systems(windows: str, vendor: str, linux: str, same: bool) -> None:
    disk = InstallDisk.__new__(InstallDisk)
    disk.vendor, disk.model = vendor, linux
    assert disk.has_model_name(windows) is same


# --- Blank ------------------------------------------------------------------------------------------------------------


def blank_machine(tmp: Path, size: Bytes) -> Rig:
    rig = bare_rig(tmp)
    (tmp / "blank").touch()
    os.truncate(tmp / "blank", size)
    rig.attach("sdb", tmp / "blank", serial=SERIAL)
    modelled(rig, "sdb", MODEL)
    order = order_whole(MACHINE, [empty(size=size)], Scheme())
    rig.order(order, section_of(order))
    return rig


SEEDED = Random(30)


@pytest.mark.costly
@needs_blkid
@each_row(
    "size, at",
    [
        (3 * GiB, None),
        (3 * GiB, 0),
        (3 * GiB, 17 * MiB + 1080),
        (3 * GiB, 3 * GiB - 1),
        (3 * GiB, 3 * GiB - 64 * KiB),
        *((3 * GiB, SEEDED.randrange(GiB)) for _ in range(4)),
        *((2 * GiB, SEEDED.randrange(1024, 2040) * MiB) for _ in range(4)),  # where a partition may begin
        (900 * GiB, None),
        (MiB, None),
        (MiB, MiB - 1),
        (9 * MiB, 5 * MiB),
    ],
)
def test_a_byte_where_headers_stand_is_no_blank_disk(
    size: Bytes, at: Bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rig = blank_machine(tmp_path, size)
    if at is None:
        assert rig.guard() == 0
        return
    put(rig.device("sdb"), at, b"x")
    assert rig.guard() == 1
    assert "not-blank: /dev/sdb" in capsys.readouterr().err


def test_a_large_disk_is_sampled_throughout_and_read_in_bounds() -> None:
    size = 8192 * GiB
    places = list(checked_ranges(0, size))
    assert sum(length for _, length in places) <= GIB + END + SAMPLES * SAMPLE
    assert all(length <= MiB for _, length in places)
    covered = sorted(at for at, _ in places if GIB <= at < size - END)
    assert len(covered) == SAMPLES == len(set(covered))
    assert all(after - before <= 2 * size // SAMPLES for before, after in pairwise(covered))
    assert all(at % MiB == 0 for at in covered)
    assert sorted({at // MiB for at, _ in places if at < GIB}) == list(range(1024))


_QUICK = ("--pbkdf", "pbkdf2", "--iter-time", "1", "-q")


def _partition(kind: str, folder: Path) -> Path:
    """The begin of a partition of this kind, by real tools where they make it in a file."""
    part = folder / "partition"
    part.touch()
    os.truncate(part, 400 * MiB)
    words = {
        "ext4": ["mkfs.ext4", "-q", "-F", part],
        "xfs": ["mkfs.xfs", "-q", part],
        "btrfs": ["mkfs.btrfs", "-q", part],
        "ntfs": ["mkntfs", "-F", "-f", "-q", part],
        "vfat": ["mkfs.vfat", part],
        "swap": ["mkswap", part],
        "LUKS1": ["cryptsetup", "luksFormat", "--type", "luks1", "--iter-time", "1", "-q", part, "-"],
        "LUKS2": [
            "cryptsetup",
            "luksFormat",
            "--type",
            "luks2",
            "--pbkdf",
            "pbkdf2",
            "--iter-time",
            "1",
            "-q",
            part,
            "-",
        ],
    }
    if kind in words:
        if missing_tools([str(words[kind][0])]):
            pytest.skip(f"no {words[kind][0]}")
        tool(*words[kind], **({"input": "secret"} if kind.startswith("LUKS") else {}))
    elif kind == "LVM by its tools":
        if missing_tools(["pvcreate", "losetup"]):
            pytest.skip("no pvcreate or losetup")
        device = tool("losetup", "--find", "--show", part).strip()
        try:
            tool("pvcreate", "--quiet", "--config", "devices{use_devicesfile=0}", device)
        finally:
            tool("losetup", "--detach", device)
    else:
        for at, data in HEADERS[kind]:
            put(part, at, data)
    return part


# Of what no tool here makes in a file: where its header stands, and how it begins.
HEADERS = {
    "LVM": [(512, b"LABELONE" + struct.pack("<QI", 1, 0) + bytes(4) + b"LVM2 001")],
    "RAID 1.2": [(4096, struct.pack("<II", 0xA92B4EFC, 1))],
    "RAID 1.1": [(0, struct.pack("<II", 0xA92B4EFC, 1))],
    "RAID 1.0": [(400 * MiB - 8192, struct.pack("<II", 0xA92B4EFC, 1))],
    "RAID 0.90": [(400 * MiB - 65536, struct.pack("<II", 0xA92B4EFC, 0))],
    "ZFS": [(n * 256 * KiB + 128 * KiB, struct.pack("<Q", 0x00BAB10C)) for n in (0, 1, 1598, 1599)],
    "BitLocker": [(0, b"\xeb\x58\x90-FVE-FS-"), (32 * MiB, b"-FVE-FS-")],
    "VMFS": [(MiB, struct.pack("<I", 0xC001D00D)), (18 * MiB, struct.pack("<I", 0x2FABF15E))],
    "ReFS": [(0, b"\0\0\0ReFS\0\0\0\0FSRS")],
    "Storage Spaces": [(4096, b"SPACEDB ")],
}
LOOPS = os.name == "posix" and os.geteuid() == 0 and Path("/dev/loop-control").exists()  # pvcreate takes no files
KINDS = (
    "ext4",
    "xfs",
    "btrfs",
    "ntfs",
    "vfat",
    "swap",
    "LUKS1",
    "LUKS2",
    *HEADERS,
    *(["LVM by its tools"] if LOOPS else []),
)


@pytest.mark.real
@needs_blkid
@pytest.mark.parametrize("kind", KINDS)
def test_a_disk_that_lost_its_table_is_not_blank(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At the MiB where Windows, Linux or a firmware's RAID lets a first partition begin, and behind an MSR."""
    part = _partition(kind, tmp_path)
    for number, at in enumerate((0, 1, 17, 501)):
        rig = blank_machine(tmp_path / f"{number}", 3 * GiB)
        with part.open("rb") as source, rig.device("sdb").open("r+b") as disk:
            for offset in range(0, 400 * MiB, MiB):
                if (data := source.read(MiB)) != bytes(MiB):
                    disk.seek(at * MiB + offset)
                    disk.write(data)
        assert rig.guard() == 1, at
        said = capsys.readouterr().err
        assert "not-blank" in said or "disk-superblock" in said or "ambiguous" in said, at
        if kind in ("ext4", "LUKS2"):
            assert {"ext4": "ext4", "LUKS2": "crypto_LUKS"}[kind] in said
        shutil.rmtree(tmp_path / f"{number}")


# --- What becomes of them --------------------------------------------------------------------------------------------

SIZES = {1: (2000 * GiB,), 2: (2000 * GiB, 1900 * GiB), 4: (1000 * GiB,) * 4}


@pytest.mark.parametrize(
    ("disks", "scheme"),
    [(1, Scheme()), (1, Scheme(lvm=True)), (2, Scheme(1)), (2, Scheme(0, True)), (4, Scheme(5, True)), (4, Scheme(10))],
)
def test_sections_name_every_byte_and_no_disk(disks: int, scheme: Scheme) -> None:
    choices = [DiskChoice(f"disk-{n}", size, guid_of(n + 1)) for n, size in enumerate(SIZES[disks])]
    actions = whole_disks(choices, scheme)["config"]
    by_id = {each["id"]: each for each in actions}
    assert len(by_id) == len(actions)
    for each in actions:
        if each["type"] == "disk":
            assert each["serial"] == "WINHOST-UNRESOLVED"
        if each["type"] == "partition":
            room = next(choice.size for choice in choices if choice.id == each["device"])
            assert 0 < each["offset"] < each["offset"] + each["size"] <= room - MiB
    assert [each["path"] for each in actions if each["type"] == "mount"][-1] == "/"
    if scheme.lvm:
        rest = sum(each["size"] for each in actions if each["type"] == "lvm_partition")
        members = [each["size"] for each in actions if each["id"].endswith("-rest")]
        assert rest < sum(members) - (min(members) if scheme.raid == 5 else 0)


@pytest.mark.parametrize(
    ("disks", "scheme"),
    [(2, Scheme()), (1, Scheme(1)), (2, Scheme(5)), (4, Scheme(7))],
)
def test_what_these_disks_cannot_become_is_refused(disks: int, scheme: Scheme) -> None:
    with raises("DisksUnusable"):
        whole_disks([DiskChoice(f"disk-{n}", size) for n, size in enumerate(SIZES[disks])], scheme)


def test_a_disk_without_room_is_refused() -> None:
    with raises("DisksUnusable"):
        whole_disks([DiskChoice("disk-0", 8 * GiB)], Scheme())
