"""VHDX: a reader of another hand finds what was written, and nothing else."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.errors import raises
from tests.images.read_vhdx import ReadVhdx
from winhost.images.disk_image import Extent
from winhost.images.vhdx import crc32c, write_vhdx
from winhost.model.units import Bytes, GiB, KiB, MiB


@dataclass
class Disk:
    """A disk that is zeros but for these pieces."""

    size: Bytes
    held: dict[Bytes, bytes]

    def pieces(self) -> Iterator[Extent]:
        yield from (Extent(at, self.held[at]) for at in sorted(self.held))

    def whole(self) -> bytes:
        disk = bytearray(self.size)
        for at, data in self.pieces():
            disk[at : at + len(data)] = data
        return bytes(disk)


def test_the_crc_is_that_of_the_rfc() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4


SIZES = st.integers(1, 24 * MiB // 512).map(lambda sectors: sectors * 512)


@pytest.mark.costly
@given(size=SIZES, data=st.data())
def test_what_was_written_is_read(tmp_path_factory: pytest.TempPathFactory, size: Bytes, data: st.DataObject) -> None:
    pieces = data.draw(st.dictionaries(st.integers(0, size // 512 - 1), st.integers(1, 4096), max_size=8))
    held, end = {}, 0
    for sector, sectors in sorted(pieces.items()):
        if sector * 512 >= end:
            end = min((sector + sectors) * 512, size)
            held[sector * 512] = data.draw(st.sampled_from([b"\0", b"x"])) * (end - sector * 512)
    disk = Disk(size, held)
    path = tmp_path_factory.mktemp("disk") / "disk.vhdx"
    write_vhdx(disk, path)
    found = ReadVhdx(path.read_bytes(), check_sums=False)
    assert found.size == size
    assert found.disk() == disk.whole()
    assert set(found.payload) == {
        block for block in range(-(-size // MiB)) if any(disk.whole()[block * MiB : (block + 1) * MiB])
    }


def test_sums_are_those_that_another_hand_takes(tmp_path: Path) -> None:
    path = tmp_path / "disk.vhdx"
    write_vhdx(Disk(8 * MiB, {0: b"x"}), path)
    ReadVhdx(path.read_bytes())


def test_the_same_image_is_the_same_file_and_another_is_another_disk(tmp_path: Path) -> None:
    one, same, other = (tmp_path / name for name in ("one", "same", "other"))
    write_vhdx(Disk(3 * MiB, {0: b"x" * 512, 512: b"y" * 512}), one)
    write_vhdx(Disk(3 * MiB, {0: b"x" * 512 + b"y" * 512, MiB: bytes(MiB)}), same)
    write_vhdx(Disk(3 * MiB, {0: b"x" * 512 + b"z" * 512}), other)
    assert one.read_bytes() == same.read_bytes()
    ids = {ReadVhdx(path.read_bytes(), check_sums=False).disk_id for path in (one, other)}
    assert len(ids) == 2


def test_a_disk_may_end_in_zeros(tmp_path: Path) -> None:
    """Over 4 GiB there is an entry for a sector bitmap between the blocks."""
    path = tmp_path / "disk.vhdx"
    disk = Disk(12 * GiB, {0: b"a" * 512, 4 * GiB - 512: b"b" * 1024, 5 * GiB - 512: b"c" * 512})
    write_vhdx(disk, path)
    found = ReadVhdx(path.read_bytes(), check_sums=False)
    assert found.size == 12 * GiB
    assert list(found.payload) == [0, 4095, 4096, 5119]
    assert path.stat().st_size == (3 + 1 + 4) * MiB
    for block, inside, text in ((0, 0, b"a"), (4095, MiB - 512, b"b"), (4096, 0, b"b"), (5119, MiB - 512, b"c")):
        at = found.payload[block] + inside
        assert found.data[at : at + 512] == text * 512


@pytest.mark.parametrize("asked", [64 * KiB * GiB + MiB, 0])
def test_a_size_that_cannot_be_is_refused_and_nothing_is_left(asked: Bytes, tmp_path: Path) -> None:
    with raises("ImageUnusable"):
        write_vhdx(Disk(asked, {}), tmp_path / "disk.vhdx")
    assert list(tmp_path.iterdir()) == []


def test_an_image_that_fails_in_the_middle_leaves_the_old_file(tmp_path: Path) -> None:
    class Failing(Disk):
        def pieces(self) -> Iterator[Extent]:
            yield Extent(0, b"x" * MiB)
            raise KeyboardInterrupt

    path = tmp_path / "disk.vhdx"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        write_vhdx(Failing(3 * MiB, {}), path)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["disk.vhdx"]  # noqa: PTH208 - hidden files, too


def test_progress_grows_to_the_whole(tmp_path: Path) -> None:
    seen: list[tuple[Bytes, Bytes]] = []
    disk = Disk(9 * MiB, {at * MiB: b"x" * MiB for at in (0, 2, 5)})
    write_vhdx(disk, tmp_path / "disk.vhdx", progress=lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1] == (9 * MiB, 9 * MiB)
    assert len(seen) == 4
