"""The program that starts an engine from an image of its process, without CRIU: what it accepts, and what it leaves."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.processes import PATIENCE_S
from winhost.serving import process_image
from winhost.serving.process_image import Images, NoImage

GONE = 4_194_000  # no process has it: systemd's largest is 4,194,304


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Images:
    """One whose engine is this process, as far as anybody looks."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "model").mkdir()
    (tmp_path / "model/weights").write_text("w")
    (tmp_path / "program").write_text("vllm")
    monkeypatch.setattr(process_image, "criu_version", lambda: (4, 2, 1))
    monkeypatch.setattr(process_image, "_criu", written)
    monkeypatch.setattr(process_image, "_IN_MEMORY", (f"{tmp_path}/shm/",))
    monkeypatch.setattr(process_image, "_DYING_S", 0)
    return Images(tmp_path / "folder", tmp_path / "model", [str(tmp_path / "program"), "serve"], (0, 0))


def written(words: list[str], keep: int | None) -> None:
    if words[0] == "dump":
        folder = Path(words[words.index("--images-dir") + 1])
        (folder / "core-1.img").write_bytes(b"registers")
        (folder / "pages-1.img").write_bytes(bytes(2 << 20))


def taken(images: Images) -> dict[str, Any]:
    """An image, as of a process that has ended."""
    found = images.take(os.getpid(), 7)
    manifest = json.loads((images.image / "manifest.json").read_text())
    (images.image / "manifest.json").write_text(json.dumps({**manifest, "pid": GONE, "pids": [GONE]}))
    return found


def taken_with_a_queue(images: Images, folder: Path) -> None:
    """Of a process that holds a file in memory."""
    (folder / "shm").mkdir()
    with (folder / "shm/psm_1").open("w+") as held:
        held.write("queue")
        held.flush()
        taken(images)


def why_not(images: Images) -> str:
    with pytest.raises(NoImage) as caught:
        images.check()
    return str(caught.value)


def test_an_image_that_fits_is_used(images: Images) -> None:
    assert why_not(images) == "there is none"
    assert taken(images)["bytes"] == 9 + (2 << 20)
    assert images.check() == GONE


def test_what_is_not_as_it_was_is_named(images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken(images)
    found = {}
    for name, change in {
        "files of the model": lambda: (tmp_path / "model/weights").write_text("others"),
        "program": lambda: (tmp_path / "program").write_text("newer"),
        "environment": lambda: monkeypatch.setenv("VLLM_CACHE_ROOT", "/elsewhere"),
        "CRIU": lambda: monkeypatch.setattr(process_image, "criu_version", lambda: (4, 3)),
        "GPUs": lambda: monkeypatch.setattr(process_image, "gpus", lambda: ["NVIDIA L4"]),
    }.items():
        change()
        found[name] = name in why_not(images)
    assert all(found.values()), found


def test_what_changes_with_each_start_of_a_unit_is_no_difference(
    images: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken(images)
    monkeypatch.setenv("INVOCATION_ID", "another")
    monkeypatch.setenv("JOURNAL_STREAM", "8:1")
    assert images.check() == GONE


def test_a_damaged_image_is_not_used(images: Images) -> None:
    for damage in (
        lambda: (images.image / "criu/core-1.img").write_bytes(b"Registers"),
        lambda: (images.image / "criu/pages-1.img").write_bytes(bytes(1 << 20)),
        lambda: (images.image / "criu/core-1.img").unlink(),
    ):
        taken(images)
        damage()
        assert "is damaged" in why_not(images)


def test_a_manifest_that_is_none_ends_in_a_cold_start(images: Images) -> None:
    taken(images)
    for text in ("[]", "{}", '{"made_in": {}}', "{"):
        (images.image / "manifest.json").write_text(text)
        assert "its manifest" in why_not(images)


def test_one_that_nobody_confirmed_is_not_used_again(images: Images) -> None:
    taken(images)
    with pytest.raises(NoImage, match="restored nothing"):
        images.restore(GONE, 1)
    assert "never confirmed" in why_not(images)
    images.confirm()
    assert images.check() == GONE


def test_a_process_id_that_somebody_has_is_not_taken_from_him(images: Images) -> None:
    images.take(os.getpid(), 7)
    assert why_not(images) == f"process id {min(int(each.name) for each in Path('/proc/self/task').iterdir())} is taken"


def test_what_fails_leaves_the_image_of_before(images: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    taken(images)

    def fails(words: list[str], keep: int | None) -> None:
        written(words, keep)
        raise NoImage("CRIU ended with 1")

    monkeypatch.setattr(process_image, "_criu", fails)
    with pytest.raises(NoImage):
        images.take(os.getpid(), 7)
    assert images.check() == GONE
    assert sorted(each.name for each in images.folder.iterdir()) == ["image"]


def test_it_is_refused_before_anything_is_written(images: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(images.folder)._replace(free=1 << 30)
    monkeypatch.setattr(process_image.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(NoImage, match="1024 MiB free"):
        images.take(os.getpid(), 7)
    monkeypatch.setattr(process_image, "criu_version", lambda: (3, 17, 1))
    with pytest.raises(NoImage, match=r"3\.17\.1 is too old"):
        images.take(os.getpid(), 7)
    assert list(images.folder.iterdir()) == []


def test_files_in_memory_come_back_before_a_restore(images: Images, tmp_path: Path) -> None:
    taken_with_a_queue(images, tmp_path)
    (tmp_path / "shm/psm_1").unlink()
    with pytest.raises(NoImage):
        images.restore(GONE, 1)
    assert (tmp_path / "shm/psm_1").read_text() == "queue"


def test_a_link_in_the_place_of_such_a_file_is_not_followed(images: Images, tmp_path: Path) -> None:
    taken_with_a_queue(images, tmp_path)
    (tmp_path / "shm/psm_1").unlink()
    (tmp_path / "victim").write_text("root's own")
    (tmp_path / "shm/psm_1").symlink_to(tmp_path / "victim")
    with pytest.raises(NoImage):
        images.restore(GONE, 1)
    assert (tmp_path / "victim").read_text() == "root's own"
    assert (tmp_path / "shm/psm_1").read_text() == "queue"


def test_a_file_of_somebody_else_stays(images: Images, tmp_path: Path) -> None:
    taken_with_a_queue(images, tmp_path)
    manifest = json.loads((images.image / "manifest.json").read_text())
    manifest["kept"][0]["owner"] = [os.getuid() + 1, os.getgid()]
    (images.image / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "shm/psm_1").write_text("theirs")
    with pytest.raises(NoImage, match="somebody else's"):
        images.restore(GONE, 1)
    assert (tmp_path / "shm/psm_1").read_text() == "theirs"


BEGINNING = """
import asyncio, os, sys, threading
from pathlib import Path
from winhost.serving.process_image import Engine, Images

release = threading.Event()


class Slow(Engine):
    def _begin(self):
        os.write(1, b"begins\\n")
        release.wait()
        self._began = "restored"


async def main():
    engine = Slow(Images(Path(sys.argv[1]), Path("model"), ["vllm"], (0, 0)))
    running = asyncio.ensure_future(engine.run())
    reader, writer = None, None
    while reader is None:
        await asyncio.sleep(0.01)
        if Path(sys.argv[1], "control").exists():
            reader, writer = await asyncio.open_unix_connection(sys.argv[1] + "/control")
    writer.write(b'{"do": "look"}\\n')
    asked = asyncio.ensure_future(reader.readline())
    for _ in range(20):
        await asyncio.sleep(0)
    os.write(1, b"early\\n" if asked.done() else b"waits\\n")
    release.set()
    print((await asked).decode().strip(), flush=True)
    engine._ended.set_result(0)
    await running


asyncio.run(main())
"""


def test_whoever_sees_a_restored_engine_can_ask_how_it_began(tmp_path: Path) -> None:
    """The engine answers as soon as it is restored: its program has to listen before."""
    done = subprocess.run(
        [sys.executable, "-c", BEGINNING, str(tmp_path)], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    said = sorted(done.stdout.splitlines())  # two threads say the first two
    assert said == ["begins", "waits", '{"began": "restored", "image": false}']
