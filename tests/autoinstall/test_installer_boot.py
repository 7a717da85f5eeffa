"""Boot entries as the installer's scripts read and set them, in files that look like efivarfs."""

import struct
import uuid
from pathlib import Path

import pytest

from tests.autoinstall.layouts import guid_of
from tests.autoinstall.rig import told
from winhost.autoinstall.installer_boot import GLOBAL, UBUNTU, WINDOWS, main

ESP, OTHER = guid_of(2), guid_of(3)


def option(name: str, esp: str, loader: str, data: bytes = b"") -> bytes:
    """A Boot####: attributes, name, a partition and a file on it, and what the loader is told."""
    disk = struct.pack("<IQQ16sBB", 1, 2048, 204800, uuid.UUID(esp).bytes_le, 2, 2)
    file = loader.encode("utf-16-le") + b"\0\0"
    path = struct.pack("<BBH", 4, 1, 4 + len(disk)) + disk + struct.pack("<BBH", 4, 4, 4 + len(file)) + file
    path += b"\x7f\xff\x04\0"
    return struct.pack("<IH", 1, len(path)) + name.encode("utf-16-le") + b"\0\0" + path + data


def machine(tmp: Path, order: list[int], **entries: bytes) -> Path:
    folder = tmp / "root/sys/firmware/efi/efivars"
    folder.mkdir(parents=True)
    for name, data in (entries | {"BootOrder": struct.pack(f"<{len(order)}H", *order)}).items():
        (folder / f"{name}-{GLOBAL}").write_bytes(struct.pack("<I", 7) + data)
    told(tmp / "cdrom/guard.json", f'{{"windows_esp": "{ESP}", "linux_esp": "{ESP}"}}')
    return folder


def variable(folder: Path, name: str) -> list[int]:
    file = folder / f"{name}-{GLOBAL}"
    raw = file.read_bytes() if file.exists() else bytes(4)
    return [number for (number,) in struct.iter_unpack("<H", raw[4:])]


ALL = {
    "Boot0000": option("Windows Boot Manager", ESP, WINDOWS.upper(), b"WINDOWS\0BCDOBJECT"),
    "Boot0001": option("UEFI: USB", OTHER, "\\EFI\\BOOT\\BOOTX64.EFI"),
    "Boot000A": option("ubuntu", ESP, UBUNTU),
    "Boot0003": option("Windows Boot Manager", OTHER, WINDOWS),
}


def test_a_failed_install_sets_windows_as_the_next_start_and_leaves_the_order(tmp_path: Path) -> None:
    folder = machine(tmp_path, [1, 0], **ALL)
    assert main("windows", tmp_path / "cdrom", tmp_path / "root") == 0
    assert variable(folder, "BootNext") == [0]
    assert variable(folder, "BootOrder") == [1, 0]


def test_a_finished_install_puts_windows_first_and_starts_ubuntu_once(tmp_path: Path) -> None:
    folder = machine(tmp_path, [10, 1, 0, 3], **ALL)
    assert main("order", tmp_path / "cdrom", tmp_path / "root") == 0
    assert variable(folder, "BootOrder") == [0, 10, 1, 3]
    assert variable(folder, "BootNext") == [10]


def test_an_ubuntu_on_another_disk_than_windows_is_started_from_there(tmp_path: Path) -> None:
    folder = machine(tmp_path, [11, 0], **ALL | {"Boot000B": option("ubuntu", OTHER, UBUNTU)})
    told(tmp_path / "cdrom/guard.json", f'{{"windows_esp": "{ESP}", "linux_esp": "{OTHER}"}}')
    assert main("order", tmp_path / "cdrom", tmp_path / "root") == 0
    assert (variable(folder, "BootOrder"), variable(folder, "BootNext")) == ([0, 11], [11])


@pytest.mark.parametrize(
    ("verb", "change", "words"),
    [
        ("windows", {"Boot0000": b""}, "0 boot entries"),
        ("windows", {"Boot0000": ALL["Boot0000"][:30]}, "0 boot entries"),
        ("windows", {"Boot0009": ALL["Boot0000"]}, "2 boot entries"),
        ("order", {"Boot000A": option("ubuntu", OTHER, UBUNTU)}, "shimx64"),
    ],
)
def test_without_one_such_entry_nothing_is_started_next(
    verb: str, change: dict[str, bytes], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = machine(tmp_path, [0], **ALL | change)
    assert main(verb, tmp_path / "cdrom", tmp_path / "root") == 1
    assert variable(folder, "BootNext") == []
    assert words in capsys.readouterr().err


def test_without_a_windows_on_record_there_is_none_to_go_back_to(tmp_path: Path) -> None:
    folder = machine(tmp_path, [0], **ALL)
    told(tmp_path / "cdrom/guard.json", "{}")
    assert main("windows", tmp_path / "cdrom", tmp_path / "root") == 1
    assert variable(folder, "BootNext") == []
