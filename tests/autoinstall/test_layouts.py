"""Whatever Windows laid out: our section lists all of it, the linter finds nothing in it, the disk is the right one."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.autoinstall.layouts import SMALL, guid_of, manifest_of
from tests.autoinstall.made_disk import made_by_hand
from tests.autoinstall.mutations import DISK
from tests.autoinstall.rig import digest, rig_of
from tests.autoinstall.test_guard import needs_blkid
from winhost.autoinstall.autoinstall_file import disk_of_manifest
from winhost.autoinstall.guard_order import storage_beside_windows
from winhost.autoinstall.install_plan import format_install_file
from winhost.autoinstall.lint import lint_autoinstall
from winhost.autoinstall.manifest import DiskManifest, MachineIdentity, PartitionRecord, PartitionRole
from winhost.model.units import MiB
from winhost.resources.windows.disks import BASIC_DATA, EFI, LINUX, RECOVERY, RESERVED

OTHERS = (
    (PartitionRole.MSR, RESERVED),
    (PartitionRole.RECOVERY, RECOVERY),
    (PartitionRole.OTHER, BASIC_DATA),
)
NEEDED = ((PartitionRole.ESP, EFI), (PartitionRole.WINDOWS, BASIC_DATA), (PartitionRole.TARGET, LINUX))


@st.composite
def manifests(draw: st.DrawFn) -> DiskManifest:
    """ESP, Windows and target, others among them, in any order, with gaps, on either size of sectors."""
    sector = draw(st.sampled_from((512, 4096)))
    rows = draw(st.permutations([*NEEDED, *draw(st.lists(st.sampled_from(OTHERS), max_size=6))]))
    offset, parts = MiB, []
    for number, (role, kind) in enumerate(rows, 1):
        offset += draw(st.integers(0, 4096)) * sector
        size = draw(st.integers(1, 1 << 24)) * sector
        parts.append(PartitionRecord(guid_of(number), offset, size, kind, role))
        offset += size
    machine = MachineIdentity(guid_of(0x99))
    return DiskManifest(machine, guid_of(0x77), offset + MiB, sector, "any", tuple(parts), "0123abcd")


@given(manifests())
def test_all_is_listed_and_one_is_formatted(manifest: DiskManifest) -> None:
    storage = storage_beside_windows(manifest)
    parts = [each for each in storage["config"] if each["type"] == "partition"]
    assert [(each["offset"], each["size"], each["partition_type"]) for each in parts] == [
        (each.offset, each.size, each.type) for each in manifest.partitions
    ]
    assert all(each["preserve"] for each in parts)
    target = manifest.with_role(PartitionRole.TARGET)
    assert [each["offset"] for each in parts if "wipe" in each] == [target.offset]
    document = {"version": 1, "early-commands": ["guard.py"], "storage": storage}
    found = lint_autoinstall(format_install_file(document).encode(), disks=[disk_of_manifest(manifest)])
    assert {each.code for each in found if each.subject.startswith("storage")} == set()


@needs_blkid
def test_other_disks_are_nobodys_business(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one without a table, nor another Windows, nor an empty slot of a card reader."""
    monkeypatch.setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
    manifest = manifest_of(SMALL)
    rig = rig_of(tmp_path, manifest, made_by_hand)
    for name, first in (("sda", 0x100), ("sdb", None), ("sdc", None)):
        image = tmp_path / name
        if first is not None:
            made_by_hand(image, manifest_of(SMALL, first=first))
        else:
            image.write_bytes(bytes(MiB) if name == "sdb" else b"")
        rig.attach(name, image)
    names = (DISK, "sda", "sdb")
    before = [digest(rig.device(name)) for name in names]
    assert rig.guard() == 0
    assert rig.resolved["config"][0]["path"] == f"/dev/{DISK}"
    assert [digest(rig.device(name)) for name in names] == before


@needs_blkid
def test_an_unreadable_disk_may_be_a_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
    manifest = manifest_of(SMALL)
    rig = rig_of(tmp_path, manifest, made_by_hand)
    made_by_hand(tmp_path / "sda", manifest_of(SMALL, first=0x100))
    rig.attach("sda", tmp_path / "sda")
    rig.device("sda").unlink()
    rig.device("sda").mkdir()  # reading it fails
    assert rig.guard() == 1
