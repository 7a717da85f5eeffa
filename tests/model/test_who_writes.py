"""Files that others can write: refused where everyone can, and with `cmd:` secrets where anyone can."""

import os
import stat
import struct
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.errors import raises
from winhost.model.files import (
    Openness,
    SharedInputWarning,
    _is_own_group,
    _mount_without_modes,
    _writers_by_mode,
    check_writers,
    writers_of,
)
from winhost.model.fleet import load_fleet
from winhost.model.windows_rights import judge_descriptor

pytestmark = pytest.mark.skipif(os.name != "posix", reason="modes of POSIX")

PLAIN = """schema: winhost.fleet/1
hosts:
  gpu-01: {address: 192.0.2.1, transport: {user: u, password: "env:P"}}
"""
RUNS = PLAIN.replace("env:P", "cmd:pass show gpu")


def fleet(folder: Path, text: str, mode: int = 0o600) -> Path:
    file = folder / "fleet.yaml"
    file.write_text(text, "utf-8")
    file.chmod(mode)
    return file


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o400])
def test_what_its_owner_alone_writes_is_used(tmp_path: Path, mode: int) -> None:
    assert load_fleet(fleet(tmp_path, RUNS, mode)).hosts


def test_a_file_that_everyone_can_write_is_refused(tmp_path: Path) -> None:
    with raises("OpenToAll"):
        load_fleet(fleet(tmp_path, PLAIN, 0o666))
    with raises("OpenToOthers"):
        load_fleet(fleet(tmp_path, RUNS, 0o666))


def test_so_is_one_in_a_folder_that_everyone_can_write(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    file = fleet(inner, PLAIN)
    inner.parent.chmod(0o777)
    with raises("OpenToAll"):
        load_fleet(file)
    inner.parent.chmod(0o1777)  # as /tmp: nobody replaces what others own
    assert load_fleet(file).hosts


def test_one_behind_a_link_that_everyone_can_replace_too(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "open").mkdir()
    link = tmp_path / "open" / "fleet.yaml"
    link.symlink_to(fleet(tmp_path / "own", PLAIN))
    assert load_fleet(link).hosts
    (tmp_path / "open").chmod(0o777)
    with raises("OpenToAll"):
        load_fleet(link)


def test_what_a_group_can_write_is_a_warning_unless_it_runs_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("winhost.model.files._is_own_group", lambda gid: False)
    with pytest.warns(SharedInputWarning, match="others can write: the group"):
        assert load_fleet(fleet(tmp_path, PLAIN, 0o660)).hosts
    with raises("OpenToOthers"):
        load_fleet(fleet(tmp_path, RUNS, 0o660))


def test_an_escaped_reference_is_one_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("winhost.model.files._is_own_group", lambda gid: False)
    with raises("OpenToOthers"):
        load_fleet(fleet(tmp_path, RUNS.replace("cmd:pass", "\\u0063md:pass"), 0o660))


def of(uid: int, mode: int) -> os.stat_result:
    return os.stat_result((mode, 0, 0, 1, uid, 0, 0, 0, 0, 0))


def test_a_foreign_owner_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = os.geteuid() + 4242
    found = _writers_by_mode(tmp_path, of(other, stat.S_IFREG | 0o600))
    assert (found.openness, "belongs to another account" in found.who) == (Openness.SOME, True)
    assert _writers_by_mode(tmp_path, of(other, stat.S_IFLNK | 0o777)).openness is Openness.SOME
    assert _writers_by_mode(tmp_path, of(0, stat.S_IFREG | 0o644)).openness is Openness.OWN
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("SUDO_UID", str(other))
    assert _writers_by_mode(tmp_path, of(other, stat.S_IFREG | 0o600)).openness is Openness.OWN


@pytest.mark.parametrize(("tag", "who"), [(0x02, 31337), (0x08, 31337)])
def test_an_access_list_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tag: int, who: int) -> None:
    def listed(rights: int) -> bytes:
        entries = [(0x01, 6, 2**32 - 1), (tag, rights, who), (0x04, 4, 2**32 - 1), (0x10, 6, 2**32 - 1)]
        return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *each) for each in entries)

    rights = [6]
    monkeypatch.setattr(os, "getxattr", lambda path, name: listed(rights[0]), raising=False)
    file = fleet(tmp_path, PLAIN, 0o660)
    status = SimpleNamespace(st_uid=os.geteuid(), st_gid=31337, st_mode=file.stat().st_mode)
    found = _writers_by_mode(file, status)  # type: ignore[arg-type]
    assert (found.openness, "an access list" in found.who) == (Openness.SOME, True)
    rights[0] = 4  # may only read; the mask lets the group's bit of the mode stand
    assert _writers_by_mode(file, status).openness is Openness.OWN  # type: ignore[arg-type]


def test_root_and_the_group_of_one_account_are_nobody_else() -> None:
    assert _is_own_group(0)
    assert not _is_own_group(31337)


def test_a_mount_without_modes_is_known(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "2 1 0:5 / /mnt/c rw,noatime shared:1 - 9p C:\\134 rw,aname=drvfs;path=C:\\;uid=1000,trans=fd\n"
        "3 1 0:6 / /mnt/d rw - 9p D:\\134 rw,aname=drvfs;path=D:\\;metadata,trans=fd\n"
        "4 1 0:7 / /mnt/my\\040stick rw - vfat /dev/sdb1 rw,umask=0\n"
    )
    assert _mount_without_modes(Path("/mnt/c/x/fleet.yaml"), mounts) == "/mnt/c (9p)"
    assert _mount_without_modes(Path("/mnt/my stick/fleet.yaml"), mounts) == "/mnt/my stick (vfat)"
    assert _mount_without_modes(Path("/mnt/d/fleet.yaml"), mounts) is None
    assert _mount_without_modes(Path("/home/me/fleet.yaml"), mounts) is None


def test_on_a_mount_without_modes_only_programs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("winhost.model.files._mount_without_modes", lambda place: "/mnt/c (9p)")
    with pytest.warns(SharedInputWarning, match=r"/mnt/c \(9p\)"):
        load_fleet(fleet(tmp_path, PLAIN, 0o777))
    with raises("OpenToOthers"):
        load_fleet(fleet(tmp_path, RUNS, 0o777))


def test_files_of_winhost_itself_are_not_asked() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_writers(Path("examples/fleet.yaml").absolute())
    assert writers_of(Path("/no/such/file")).openness is Openness.OWN


ME = "S-1-5-21-1-2-3-1001"
ADMINS = "D:AI(A;ID;FA;;;BA)(A;ID;FA;;;SY)"


@pytest.mark.parametrize(
    ("text", "openness"),
    [
        (f"O:{ME}G:DU{ADMINS}(A;ID;FA;;;{ME})", Openness.OWN),
        (f"O:BAG:SY{ADMINS}(A;ID;0x1200a9;;;BU)", Openness.OWN),
        (f"O:BAG:SY{ADMINS}(A;OICIIO;GA;;;CO)(A;OICIIOID;GA;;;AU)", Openness.OWN),
        (f"O:{ME}G:DU{ADMINS}(A;ID;0x1301bf;;;AU)", Openness.EVERYONE),
        (f"O:{ME}G:DU{ADMINS}(A;;FA;;;WD)", Openness.EVERYONE),
        (f"O:{ME}G:DU{ADMINS}(A;;FW;;;S-1-5-21-1-2-3-1002)", Openness.SOME),
        (f"O:{ME}G:DU{ADMINS}(A;;CCDCLCSWRP;;;S-1-5-21-1-2-3-1002)", Openness.SOME),
        (f"O:{ME}G:DU{ADMINS}(D;;FA;;;WD)", Openness.OWN),
        (f"O:S-1-5-21-1-2-3-1002G:DU{ADMINS}", Openness.SOME),
        (f"O:{ME}G:DUD:NO_ACCESS_CONTROL", Openness.EVERYONE),
    ],
)
def test_a_security_descriptor_of_windows(text: str, openness: Openness) -> None:
    assert judge_descriptor(text, ME)[0] == openness.name


def test_in_a_folder_of_windows_it_counts_who_may_remove() -> None:
    head = f"O:{ME}G:DU{ADMINS}"
    assert judge_descriptor(f"{head}(A;;0x100006;;;BU)", ME, "folder")[0] == "OWN"
    assert judge_descriptor(f"{head}(A;;0x40;;;BU)", ME, "folder")[0] == "EVERYONE"
