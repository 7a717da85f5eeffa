"""qcow2: what is read is what was written, and what is not understood or hostile is refused by name."""

import io
import struct
import subprocess
import sys
import tracemalloc
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import read_cases
from tests.errors import raises, suppressed
from tests.images.made_qcow2 import deflated, made
from tests.processes import PATIENCE_S
from tests.rows import each_row
from winhost.images.disk_image import DiskImage, Qcow2Image, RawImage, open_image
from winhost.model.units import GiB, KiB, MiB

CASES: dict[str, dict[str, Any]] = read_cases(Path(__file__).parent.parent / "data" / "images" / "refused.yaml")
DISK = bytes(range(1, 256)) * (MiB // 255) + bytes(MiB % 255)


def disk_of(image: DiskImage) -> bytes:
    disk = bytearray(image.size)
    end = 0
    for at, data in image.pieces():
        assert at >= end
        end = at + len(data)
        assert 0 < len(data) <= 2 * MiB
        disk[at:end] = data
    assert len(disk) == image.size
    return bytes(disk)


def read(data: bytes) -> bytes:
    return disk_of(Qcow2Image(io.BytesIO(data), "a.img"))


@dataclass
class Refused:
    """A case; see the file."""

    says: str
    set: dict[str, int] = field(default_factory=dict)
    version: int = 3
    cut: int = 0
    keep: int | None = None
    hint: str = ""


@each_row("name", CASES)
def test_what_is_hostile_or_not_understood_is_refused(name: str) -> None:
    case = Refused(**CASES[name])
    image = made(DISK, cluster_bits=12, version=case.version)
    assert read(image.data) == DISK
    for key, value in case.set.items():
        image.set(key, value)
    with raises("ImageUnusable") as refused:
        read(image.data[: len(image.data) - case.cut][: case.keep])
    assert case.says in refused.value.what
    assert case.hint in (refused.value.hint or "")


SECTORS = st.lists(st.sampled_from([bytes(512), b"a" * 512, bytes(range(256)) * 2]), min_size=1, max_size=300)


@given(
    sectors=SECTORS,
    bits=st.integers(9, 14),
    version=st.sampled_from([2, 3]),
    compressed=st.sets(st.integers(0, 300)),
    flagged=st.sets(st.integers(0, 300)),
)
def test_what_was_written_is_read(
    sectors: list[bytes], bits: int, version: int, compressed: set[int], flagged: set[int]
) -> None:
    disk = b"".join(sectors)
    image = made(
        disk,
        cluster_bits=bits,
        version=version,
        compressed=compressed,
        zero_flagged=flagged - compressed if version == 3 else (),
    )
    assert read(image.data) == disk


@given(st.data())
def test_damage_is_refused_or_harmless(data: st.DataObject) -> None:
    """Whatever bytes are changed: an error of ours, or a disk of the size that the header says."""
    image = made(DISK[: 8 * KiB], compressed={1, 3}).data
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(image) - 1) | st.integers(0, 120))
        image[at] = data.draw(st.integers(0, 255))
    with suppressed("ImageUnusable"):
        opened = Qcow2Image(io.BytesIO(image), "a.img")
        assert sum(len(piece.data) for piece in opened.pieces()) <= opened.size


def test_a_flag_of_zeros_hides_the_cluster_below_it() -> None:
    image = made(DISK, cluster_bits=12)
    image.set("l2", int.from_bytes(image.data[image.l2_at : image.l2_at + 8]) | 1)
    assert read(image.data) == bytes(4 * KiB) + DISK[4 * KiB :]


@pytest.mark.parametrize("inflated", [64 * KiB + 1, 64 * MiB], ids=["a byte too many", "a bomb"])
def test_a_compressed_cluster_that_inflates_further_is_refused_before_memory_is_taken(inflated: int) -> None:
    image = made(DISK[: 64 * KiB], cluster_bits=16, compressed={0})
    bomb = made(DISK[: 64 * KiB], cluster_bits=16, compressed={0}, pack=lambda _: deflated(bytes(inflated)))
    assert read(image.data) == DISK[: 64 * KiB]
    tracemalloc.start()
    try:
        with raises("ImageUnusable", match="inflates to more than a cluster"):
            read(bomb.data)
        assert tracemalloc.get_traced_memory()[1] < 4 * MiB
    finally:
        tracemalloc.stop()


def test_a_compressed_cluster_that_inflates_to_less_is_refused() -> None:
    image = made(DISK[: 4 * KiB], cluster_bits=12, compressed={0}, pack=lambda _: deflated(b"short"))
    with raises("ImageUnusable", match="inflates to less than a cluster"):
        read(image.data)


def test_a_small_file_cannot_be_an_endless_disk() -> None:
    """All entries of the L1 table lead to one L2 table, and all of its entries to one cluster."""
    image = made(DISK[: 64 * KiB], cluster_bits=16)
    cluster = 64 * KiB
    table = bytes(image.data[image.l2_at : image.l2_at + 8]) * (cluster // 8)
    image.data[image.l2_at : image.l2_at + cluster] = table
    image.set("size", 512 * GiB)
    image.set("l1_entries", 1024)
    image.data[image.l1_at : image.l1_at + 8 * KiB] = bytes(image.data[image.l1_at : image.l1_at + 8]) * 1024
    with raises("ImageUnusable", match="more than once"):
        read_sparsely(image.data)


def test_an_empty_disk_of_the_largest_size_is_read_at_once() -> None:
    image = made(bytes(512), cluster_bits=21)
    image.set("size", 64 * KiB * GiB)
    image.set("l1_entries", 128)
    assert read_sparsely(image.data) == 0


def read_sparsely(data: bytes) -> int:
    """How much the disk holds, without a disk in memory."""
    return sum(len(piece.data) for piece in Qcow2Image(io.BytesIO(data), "a.img").pieces())


def test_zstd_is_read_where_there_is_a_library_for_it() -> None:
    def pack(data: bytes) -> bytes:
        return zstd.compress(data)

    image = made(DISK, cluster_bits=16, compressed=range(16), pack=pack, compression=1)
    assert read(image.data) == DISK
    bombs = zstd.compress(bytes(64 * MiB))
    bomb = made(DISK, cluster_bits=16, compressed={0}, pack=lambda _: bombs, compression=1)
    with raises("ImageUnusable", match="more than a cluster"):
        read(bomb.data)
    damaged = made(DISK[:512], compressed={0}, pack=lambda _: b"nothing", compression=1)
    with raises("ImageUnusable", match="cannot be inflated"):
        read(damaged.data)


def test_without_a_library_zstd_is_refused_and_qemu_img_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "compression.zstd", None)
    monkeypatch.setitem(sys.modules, "backports.zstd", None)
    with raises("ImageUnusable", match="compressed with zstd") as refused:
        read(made(DISK, cluster_bits=16, compression=1).data)
    assert "winhost[zstd]" in (refused.value.hint or "")
    assert "qemu-img convert" in (refused.value.hint or "")


@pytest.mark.parametrize(
    ("begin", "says"),
    [
        (b"vhdxfile", "of the kind VHDX"),
        (b"conectix", "of the kind VHD"),
        (b"KDMV", "of the kind VMDK"),
        (b"\x1f\x8b\x08", "of the kind gzip"),
        (b"\xfd7zXZ\0", "of the kind xz"),
        (b"<html>", "no partition table"),
        (b"", "no partition table"),
    ],
)
def test_other_files_are_named(begin: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "image\x1b[2J.img"
    path.write_bytes(begin.ljust(4096 if begin else 0, b"\0"))
    with raises("ImageUnusable", match=says) as refused, open_image(path):
        pass
    assert "\x1b" not in refused.value.what


def test_a_file_that_is_not_there_or_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "none.img", tmp_path):
        with raises("ImageUnusable", match=r"cannot be (opened|read)"), open_image(path):
            pass


def test_a_raw_disk_is_read(tmp_path: Path) -> None:
    path = tmp_path / "disk.raw"
    disk = DISK[:510] + b"\x55\xaa" + DISK * 3
    path.write_bytes(disk[: 2 * MiB + 512])
    with open_image(path) as image:
        assert isinstance(image, RawImage)
        assert disk_of(image) == disk[: 2 * MiB + 512]
    path.write_bytes(disk[: 2 * MiB + 511])
    with raises("ImageUnusable", match="no whole number of sectors"), open_image(path):
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="memory is bounded as Linux does it")
def test_memory_is_bounded_whatever_the_image_is(tmp_path: Path) -> None:
    """The largest L1 table there can be, all of whose entries lead somewhere."""
    image = made(bytes(512))
    image.set("size", 128 * GiB)
    image.set("l1_entries", 4 * MiB)
    image.set("l1_at", 64 * KiB)
    path = tmp_path / "large.img"
    path.write_bytes(image.data)
    with path.open("r+b") as file:
        file.seek(64 * KiB)
        file.write(struct.pack(">Q", image.l2_at | 1 << 63) * (4 * MiB))
    code = (
        "import resource, sys; from pathlib import Path; from winhost.images.disk_image import open_image\n"
        "now = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (now + (72 << 20),) * 2)\n"
        "with open_image(Path(sys.argv[1])) as image: list(image.pieces())"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=PATIENCE_S)
    assert "refers to some of its clusters more than once" in done.stderr
