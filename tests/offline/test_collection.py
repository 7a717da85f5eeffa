"""A folder for a site without the internet: what it counts and what it copies."""

import shutil
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.errors import raises
from winhost.images.download import RemoteImage
from winhost.model.plan import OfflineImage
from winhost.model.units import GiB, MiB
from winhost.offline.collection import Collection

GUEST = RemoteImage("https://images.example/guest.img", "a" * 64, GiB)


def collection(folder: Path) -> Collection:
    return Collection(folder, "/srv/copies", lambda what, done, whole: None)


def test_room_is_needed_only_for_what_lacks_of_a_guest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=200 * MiB))
    (tmp_path / "images").mkdir()
    with raises("NoRoom"):
        collection(tmp_path)._check_room([], [], GUEST)
    for name, there in ((f"{'a' * 64}.part", GiB - 100 * MiB), (f"{'a' * 64}.img", GiB)):
        file = tmp_path / "images" / name
        with file.open("wb") as sparse:
            sparse.truncate(there)
        collection(tmp_path)._check_room([], [], GUEST)
        file.unlink()


def test_an_archive_has_its_name_only_once_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plan").mkdir()
    (tmp_path / "plan" / "vllm.tar").write_bytes(b"an image")
    image = OfflineImage("/elsewhere/vllm.tar", sha256(b"an image").hexdigest(), "vllm:1")

    def cut_short(source: Path, target: Path) -> None:
        target.write_bytes(b"an")
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", cut_short)
        with pytest.raises(OSError, match="full"):
            collection(tmp_path).add_archive("vllm@sha256:1", image, tmp_path / "plan")
    assert not (tmp_path / "containers" / "vllm.tar").exists()
    collection(tmp_path).add_archive("vllm@sha256:1", image, tmp_path / "plan")
    assert [each.name for each in (tmp_path / "containers").iterdir()] == ["vllm.tar"]
