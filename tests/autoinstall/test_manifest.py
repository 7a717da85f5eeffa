"""The manifest holds what a GPT can hold, and reads back as it was written."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.autoinstall.layouts import MANIFEST
from tests.errors import raises
from tests.rows import each_row
from winhost.autoinstall.manifest import (
    DiskManifest,
    MachineIdentity,
    PartitionRole,
    is_placeholder,
    normalize_guid,
    read_manifest,
)
from winhost.model.documents import write_document

FIRST, SECOND, *_ = MANIFEST.partitions


def test_it_reads_back_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "manifest.json"
    file.write_text(write_document(MANIFEST))
    assert read_manifest(file) == MANIFEST
    assert MANIFEST.with_role(PartitionRole.TARGET).end <= MANIFEST.size


@each_row(
    ("change", "words"),
    [
        ({"guid": MANIFEST.guid.upper()}, "lower case"),
        ({"guid": FIRST.guid}, "the same"),
        ({"sector": 520}, "520"),
        ({"run": "12345678; reboot"}, "8 hexadecimal"),
        ({"schema": "winhost.disk-manifest/0"}, "schema"),
        ({"size": MANIFEST.partitions[-1].end - 1}, "after the end"),
        ({"partitions": (SECOND, FIRST)}, "by offset"),
        ({"partitions": (FIRST, replace(SECOND, offset=FIRST.end - 512))}, "begins before"),
        ({"partitions": (FIRST, replace(SECOND, size=1000))}, "sector"),
        ({"partitions": (FIRST, replace(SECOND, guid=FIRST.guid))}, "the same"),
    ],
)
def test_what_no_table_can_hold_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(MANIFEST, **change)


def test_a_file_with_such_a_manifest_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "manifest.json"
    file.write_text(write_document(MANIFEST).replace(FIRST.guid, SECOND.guid))
    with raises("FileFaults") as error:
        read_manifest(file)
    assert "manifest.json" in str(error.value)


def test_each_role_that_is_asked_for_is_there_once() -> None:
    both = replace(MANIFEST, partitions=(FIRST, replace(SECOND, role=FIRST.role)))
    for manifest, role in ((both, FIRST.role), (both, PartitionRole.TARGET)):
        with pytest.raises(ValueError, match="one is needed"):
            manifest.with_role(role)


@pytest.mark.parametrize("serial", ["", " ", "Default string", "To Be Filled By O.E.M.", "...", "None"])
def test_what_vendors_leave_is_no_serial_number(serial: str) -> None:
    assert is_placeholder(serial)
    with pytest.raises(ValueError, match="names no machine"):
        MachineIdentity(MANIFEST.machine.uuid, serial)


def test_a_uuid_of_a_whole_series_tells_no_machine_apart() -> None:
    assert MANIFEST.machine.is_unique
    assert not MachineIdentity("03000200-0400-0500-0006-000700080009").is_unique


def test_windows_writes_guids_in_braces() -> None:
    assert normalize_guid("{C12A7328-F81F-11D2-BA4B-00A0C93EC93B}") == "c12a7328-f81f-11d2-ba4b-00a0c93ec93b"
    with pytest.raises(ValueError, match="not a GUID"):
        normalize_guid("sda")


def test_an_empty_disk_has_a_manifest() -> None:
    assert DiskManifest(MANIFEST.machine, MANIFEST.guid, 1 << 30, 4096, "QEMU", (), "00c0ffee").partitions == ()
