"""The disk of a guest: fetched, checked and made once, the same bytes each time, and no other than a plan pinned."""

from hashlib import sha256
from pathlib import Path

import pytest

from tests.errors import raises
from tests.images.made_qcow2 import made
from tests.images.mirror import Mirror, served
from tests.images.read_vhdx import ReadVhdx
from winhost.images import guest_disk as disks
from winhost.images.guest_disk import SourceImage, guest_disk
from winhost.model.units import MiB

DISK = (b"a disk" * 100).ljust(512) + bytes(3 * MiB) + b"with an end".ljust(512)
IMAGE = bytes(made(DISK.ljust(4 * MiB, b"\0"), cluster_bits=16).data)
SUM = sha256(IMAGE).hexdigest()


def test_it_is_made_once_and_made_again_the_same(tmp_path: Path) -> None:
    told: list[str] = []
    with served(Mirror({"/a.img": IMAGE})) as mirror:
        image = SourceImage(f"{mirror.url}/a.img", SUM, len(IMAGE))
        first = guest_disk(image, lambda what, done, whole: told.append(what), cache=tmp_path)
        again = guest_disk(image, lambda *_: None, first.sha256, tmp_path)
        elsewhere = guest_disk(image, lambda *_: None, first.sha256, tmp_path / "elsewhere")
        assert [path for path, _ in mirror.asked] == ["/a.img", "/a.img"]
    assert again == first
    assert (elsewhere.sha256, first.image_bytes) == (first.sha256, len(IMAGE))
    assert dict.fromkeys(told) == {"downloading the image": None, "making the disk": None}
    assert ReadVhdx(first.path.read_bytes()).disk()[: len(DISK)] == DISK


def test_a_file_of_the_users_is_checked_and_not_copied(tmp_path: Path) -> None:
    file = tmp_path / "mine.qcow2"
    file.write_bytes(IMAGE)
    guest_disk(SourceImage(str(file), SUM), lambda *_: None, cache=tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*.img"))
    file.write_bytes(IMAGE + b"!")
    with raises("NotThisImage"):
        guest_disk(SourceImage(str(file), SUM), lambda *_: None, cache=tmp_path / "cache")


def test_another_disk_than_the_plan_pinned_is_refused_but_a_spoilt_one_made_anew(tmp_path: Path) -> None:
    file = tmp_path / "mine.qcow2"
    file.write_bytes(IMAGE)
    image = SourceImage(str(file), SUM)
    first = guest_disk(image, lambda *_: None, cache=tmp_path)
    first.path.write_bytes(b"spoilt")
    assert guest_disk(image, lambda *_: None, first.sha256, tmp_path) == first
    with raises("OtherDisk", match="f" * 64) as refused:
        guest_disk(image, lambda *_: None, "f" * 64, tmp_path)
    assert "winhost plan" in (refused.value.hint or "")


def test_the_cache_is_where_the_user_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINHOST_CACHE", str(tmp_path))
    assert disks.image_cache() == tmp_path / "images"
    monkeypatch.delenv("WINHOST_CACHE")
    assert disks.image_cache().parts[-2:] == ("winhost", "images")
