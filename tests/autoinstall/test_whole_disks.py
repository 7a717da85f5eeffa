"""Ubuntu instead of Windows: which disks may be wiped, and what becomes of them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.autoinstall.layouts import MACHINE, SMALL, guid_of, manifest_of
from tests.autoinstall.made_disk import made_by_hand, put, write_table
from tests.autoinstall.mutations import retable
from tests.autoinstall.rig import Rig, bare_rig, told
from tests.autoinstall.test_guard import needs_blkid, stops
from tests.errors import raises
from winhost.autoinstall.guard_order import WholeDisk, order_whole
from winhost.autoinstall.manifest import DiskManifest
from winhost.autoinstall.storage_section import DiskChoice, Scheme, whole_disks
from winhost.model.units import Bytes, GiB, MiB

FULL = manifest_of(SMALL)
EMPTY: Bytes = 12 * MiB
SERIAL = "E823_8FA6_BF53_0001_001B_448B_4A2B_0C1D."


@pytest.fixture(autouse=True)
def _sbin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")


def full(wipe: str | None = FULL.guid) -> WholeDisk:
    return WholeDisk(DiskChoice("disk-0", FULL.size, FULL.guid), FULL.sector, FULL.partitions, wipe)


def empty() -> WholeDisk:
    return WholeDisk(DiskChoice("disk-1", EMPTY, serial=SERIAL), 512)


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
    config = [{"type": "disk", "id": each.choice.id, "serial": "WINHOST-UNRESOLVED"} for each in disks]
    rig.order(order_whole(MACHINE, disks), {"config": config})
    return rig


@needs_blkid
def test_disks_are_known_by_guid_or_by_serial_number(tmp_path: Path) -> None:
    rig = machine(tmp_path, full(), empty())
    assert rig.guard() == 0
    assert [each["path"] for each in rig.resolved["config"]] == ["/dev/nvme0n1", "/dev/sdb"]


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


CHANGES = {
    "nobody consented to the wipe": Other("not-blank", lambda rig: None, (full(None), empty())),
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
}


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
    with pytest.raises(ValueError, match="nothing names it"):
        WholeDisk(DiskChoice("disk-0", EMPTY), 512)


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
