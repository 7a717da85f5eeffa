"""Installation media with our settings: remastered, or staged as files."""

import hashlib
import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.autoinstall.layouts import MANIFEST
from tests.autoinstall.made_disk import missing_tools
from tests.autoinstall.made_media import FILES, made_image, signed_program
from tests.errors import raises
from tests.processes import PATIENCE_S
from winhost.autoinstall import medium_files
from winhost.autoinstall.guard_order import order_beside, storage_beside_windows
from winhost.autoinstall.installer_guard import main as guard
from winhost.autoinstall.installer_storage import PYTHON
from winhost.autoinstall.medium_files import (
    MENU,
    SHIM,
    MediumFile,
    files_with_settings,
    files_without_settings,
    image_files,
    menu,
    read_from_image,
    remaster,
    staged_files,
    staging_size,
)
from winhost.autoinstall.shim_signers import check_starts, signers
from winhost.model.units import GiB

OLD, NEW, WINDOWS = "Microsoft Corporation UEFI CA 2011", "Microsoft UEFI CA 2023", "Windows UEFI CA 2023"
ADDED = files_with_settings({"version": 1, "storage": storage_beside_windows(MANIFEST)}, order_beside(MANIFEST))


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if missing_tools(["xorriso"]):
        pytest.skip("no xorriso")
    folder = tmp_path_factory.mktemp("image")
    made_image(folder, folder / "ubuntu.iso", signed_program(OLD, NEW))
    return folder / "ubuntu.iso"


def test_an_image_gets_our_files_and_keeps_its_own_and_its_boot_record(image: Path, tmp_path: Path) -> None:
    out = tmp_path / "winhost.iso"
    remaster(image, ADDED, out)
    assert out.stat().st_mode & 0o777 == 0o600
    before, after = ({each.path: each.sha256 for each in image_files(path)} for path in (image, out))
    changed = {path for path in after if after[path] != before.get(path)}
    assert changed == {*ADDED, "md5sum.txt"}
    assert set(before) <= set(after)
    for path, data in ADDED.items():
        assert after[path] == hashlib.sha256(data).hexdigest()
    for line in read_from_image(out, "md5sum.txt").decode().splitlines():
        sum_, _, path = line.partition("  ./")
        assert hashlib.md5(read_from_image(out, path)).hexdigest() == sum_
    records = [_boot_record(path) for path in (image, out)]
    assert records[0] == records[1]
    assert "UEFI" in records[1]


def _boot_record(image: Path) -> str:
    words = ["xorriso", "-indev", f"stdio:{image}", "-report_el_torito", "plain"]
    said = subprocess.run(words, capture_output=True, text=True, check=True, timeout=PATIENCE_S).stdout
    return "\n".join(" ".join(line.split()[:7]) for line in said.splitlines() if "boot img" in line)


def test_what_is_there_is_not_overwritten_and_what_is_no_image_is_refused(image: Path, tmp_path: Path) -> None:
    out = tmp_path / "winhost.iso"
    out.write_bytes(b"somebody's")
    with pytest.raises(FileExistsError):
        remaster(image, ADDED, out)
    assert out.read_bytes() == b"somebody's"


@pytest.mark.skipif(os.name != "posix", reason="the stand-in is a script of a shell")
def test_an_image_that_takes_too_long_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "xorriso"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexec sleep 300\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    monkeypatch.setattr(medium_files, "_MAX_SECONDS", 0.1)
    monkeypatch.setattr(medium_files, "read_from_image", lambda image, path: b"")
    with raises("NotRemastered", match="did not end within"):
        remaster(tmp_path / "x.iso", ADDED, tmp_path / "out.iso")
    assert not (tmp_path / "out.iso").exists()


def test_without_xorriso_it_is_said_where_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with raises("NoXorriso", match="no xorriso"):
        remaster(tmp_path / "x.iso", ADDED, tmp_path / "out.iso")


def test_a_partition_gets_all_files_but_links_and_ours_in_place_of_theirs(image: Path) -> None:
    listed = {each.path: each for each in staged_files(image, ADDED)}
    assert set(FILES) <= set(listed)
    assert "ubuntu" not in listed
    assert listed[MENU] == MediumFile(MENU, len(menu()), hashlib.sha256(menu()).hexdigest())
    assert staging_size([*listed.values()]) == 4 * GiB


def test_what_fat32_cannot_hold_is_refused(image: Path) -> None:
    with raises("NotStaged", match="one name"):
        staged_files(image, {"CASPER/vmlinuz": b""})
    with raises("NotStaged", match="32 GiB"):
        staging_size([MediumFile(f"{n}", 4 * GiB - 1, "") for n in range(8)])
    with raises("NotStaged", match="no casper/nothing"):
        read_from_image(image, "casper/nothing")


def test_the_menu_neither_asks_nor_waits() -> None:
    (line,) = (
        line.split()
        for line in menu("192.0.2.9::192.0.2.1:255.255.255.0::eno1:off").decode().splitlines()
        if "linux" in line
    )
    assert {
        "autoinstall",
        "subiquity.autoinstallpath=/cdrom/autoinstall.yaml",
        "noprompt",
        "ip=192.0.2.9::192.0.2.1:255.255.255.0::eno1:off",
    } <= set(line)


def test_media_without_settings_name_no_disk_and_hold_no_secret(tmp_path: Path) -> None:
    fetch = json.dumps({"url": "https://192.0.2.1:1/token", "sha256": "0" * 64})
    assert "error-commands" not in json.loads(files_without_settings(fetch)["autoinstall.yaml"])
    added = files_without_settings(fetch, esp=MANIFEST.partitions[0].guid)
    document = json.loads(added["autoinstall.yaml"])
    assert [each["serial"] for each in document["storage"]["config"]] == ["WINHOST-UNRESOLVED"]
    assert not any(b"PRIVATE KEY" in data for data in added.values())
    for path, data in added.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(data)
    assert guard(tmp_path / "winhost", tmp_path) == 1  # there is no order before it is fetched
    assert document["error-commands"] == [f"{PYTHON} /cdrom/winhost/boot.py windows"]
    assert json.loads(added["winhost/guard.json"]) == {"windows_esp": MANIFEST.partitions[0].guid}


# --- Who signed it ---------------------------------------------------------------------------------------------------


def test_all_signatures_are_read_and_not_the_first_alone(image: Path) -> None:
    assert {OLD, NEW} <= signers(read_from_image(image, SHIM))


@pytest.mark.parametrize(
    ("by", "knows", "common"),
    [((OLD,), (OLD, WINDOWS), {OLD}), ((OLD, NEW), (NEW,), {NEW}), ((NEW,), (OLD, NEW), {NEW})],
)
def test_it_starts_where_the_firmware_knows_one_of_them(
    by: tuple[str, ...], knows: tuple[str, ...], common: set[str]
) -> None:
    assert check_starts(signed_program(*by), knows, secure_boot=True) == common


@pytest.mark.parametrize(
    ("by", "knows"), [((OLD,), (WINDOWS, NEW)), ((NEW,), (WINDOWS,)), ((), (OLD, NEW)), ((OLD,), ())]
)
def test_it_is_refused_where_the_firmware_knows_none(by: tuple[str, ...], knows: tuple[str, ...]) -> None:
    with raises("ShimRefused"):
        check_starts(signed_program(*by), knows, secure_boot=True)
    check_starts(signed_program(*by), knows, secure_boot=False)


@pytest.mark.parametrize(
    "program", [b"", b"MZ", b"MZ" + bytes(600), signed_program(OLD)[:-200], b"\x7fELF" + bytes(600)]
)
def test_what_is_no_program_has_no_signer(program: bytes) -> None:
    with raises("ShimRefused"):
        check_starts(program, (OLD,), secure_boot=True)
