"""QEMU's own program makes the images, and checks and compares what became of them."""

import json
import shutil
import subprocess
from pathlib import Path
from random import Random

import pytest

from tests.errors import raises
from tests.processes import PATIENCE_S
from winhost.images.disk_image import open_image
from winhost.images.vhdx import write_vhdx
from winhost.model.units import MiB

QEMU_IMG = shutil.which("qemu-img")
pytestmark = [pytest.mark.real, pytest.mark.skipif(QEMU_IMG is None, reason="qemu-img is not installed")]


def qemu_img(*words: str | Path) -> str:
    assert QEMU_IMG
    done = subprocess.run([QEMU_IMG, *map(str, words)], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def same_disk(raw: Path, vhdx: Path) -> None:
    qemu_img("check", "-f", "vhdx", vhdx)
    qemu_img("compare", "-F", "vhdx", "-f", "raw", raw, vhdx)  # passes over sizes where the rest is zeros
    assert json.loads(qemu_img("info", "--output=json", vhdx))["virtual-size"] == raw.stat().st_size


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A disk with holes, noise, text, and what ends in the middle of a cluster and of a block."""
    path = tmp_path_factory.mktemp("raw") / "disk.raw"
    random = Random(7)
    with path.open("wb") as file:
        for at in (0, 1 * MiB - 512, 5 * MiB + 4096, 9 * MiB, 40 * MiB + 1536):
            file.seek(at)
            file.write(random.randbytes(70_000) + b"the same again " * 20_000)
        file.seek(510)
        file.write(b"\x55\xaa")
        file.truncate(64 * MiB + 7 * 512)
    return path


MADE = {
    "version 2": ["-o", "compat=0.10"],
    "version 2, compressed": ["-c", "-o", "compat=0.10"],
    "version 3": ["-o", "compat=1.1"],
    "version 3, compressed": ["-c"],
    "zstd": ["-c", "-o", "compression_type=zstd"],
    "clusters of 512 bytes": ["-c", "-o", "cluster_size=512"],
    "clusters of 4 KiB": ["-o", "cluster_size=4096"],
    "clusters of 2 MiB": ["-o", "cluster_size=2M"],
    "clusters of 2 MiB, compressed": ["-c", "-o", "cluster_size=2M"],
    "lazy refcounts": ["-o", "lazy_refcounts=on"],
    "narrow refcounts": ["-o", "refcount_bits=1"],
    "wide refcounts": ["-o", "refcount_bits=64"],
    "preallocated": ["-o", "preallocation=metadata"],
    "full": ["-S", "0"],
}


@pytest.mark.parametrize("how", MADE)
def test_an_image_becomes_the_same_disk(how: str, raw: Path, tmp_path: Path) -> None:
    source, vhdx = tmp_path / "disk.img", tmp_path / "disk.vhdx"
    qemu_img("convert", "-f", "raw", "-O", "qcow2", *MADE[how], raw, source)
    with open_image(source) as image:
        write_vhdx(image, vhdx)
    same_disk(raw, vhdx)


def test_a_raw_disk_becomes_the_same_one(raw: Path, tmp_path: Path) -> None:
    vhdx = tmp_path / "disk.vhdx"
    with open_image(raw) as image:
        write_vhdx(image, vhdx)
    same_disk(raw, vhdx)
    back = tmp_path / "back.raw"
    qemu_img("convert", "-f", "vhdx", "-O", "raw", vhdx, back)
    assert back.read_bytes() == raw.read_bytes()


def test_a_disk_of_which_most_is_empty(raw: Path, tmp_path: Path) -> None:
    source, vhdx, larger = (tmp_path / name for name in ("disk.img", "disk.vhdx", "larger.raw"))
    qemu_img("convert", "-f", "raw", "-O", "qcow2", "-c", raw, source)
    qemu_img("resize", source, "100G")
    with open_image(source) as image:
        write_vhdx(image, vhdx)
    assert vhdx.stat().st_size < 32 * MiB
    shutil.copyfile(raw, larger)
    qemu_img("resize", "-f", "raw", larger, "100G")
    same_disk(larger, vhdx)


@pytest.mark.parametrize("format_", ["vpc", "vmdk", "vdi", "vhdx"])
def test_other_formats_are_refused(format_: str, raw: Path, tmp_path: Path) -> None:
    source = tmp_path / "disk.img"
    qemu_img("convert", "-f", "raw", "-O", format_, raw, source)
    with raises("ImageUnusable", match="of the kind"), open_image(source):
        pass


# Not LUKS: that measures the processor first, and gives up where others use it.
ENCRYPTED = ["--object", "secret,id=s,data=x", "-o", "encrypt.format=aes,encrypt.key-secret=s"]
REFUSED = {
    "a backing file": ["-o", "backing_file=base.img,backing_fmt=qcow2"],
    "encrypted": ENCRYPTED,
    "data in another file": ["-o", "data_file=data.raw"],
    "subclusters": ["-o", "extended_l2=on"],
}


@pytest.mark.parametrize("why", REFUSED)
def test_images_that_are_not_all_in_one_plain_file_are_refused(
    why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    qemu_img("create", "-f", "qcow2", "base.img", "8M")
    qemu_img("create", "-f", "qcow2", *REFUSED[why], "disk.img", "8M")
    with raises("ImageUnusable", match=why), open_image(Path("disk.img")):
        pass


def test_snapshots_are_refused(tmp_path: Path) -> None:
    source = tmp_path / "disk.img"
    qemu_img("create", "-f", "qcow2", source, "8M")
    qemu_img("snapshot", "-c", "before", source)
    with raises("ImageUnusable", match="holds snapshots"), open_image(source):
        pass


def test_an_image_that_is_cut_off_anywhere_is_refused(raw: Path, tmp_path: Path) -> None:
    source = tmp_path / "disk.img"
    qemu_img("convert", "-f", "raw", "-O", "qcow2", raw, source)
    whole = source.read_bytes()
    for kept in (*range(512, len(whole), len(whole) // 40), len(whole) - 1):
        source.write_bytes(whole[:kept])
        with raises("ImageUnusable"), open_image(source) as image:
            for _ in image.pieces():
                pass
