"""The program that starts an engine from an image of its process, without CRIU: what it accepts, and what it leaves."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes import PATIENCE_S, wait_for
from winhost.serving import process_image
from winhost.serving.process_image import Images, NoImage

GONE = 4_194_000  # no process has it: systemd's largest is 4,194,304


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Images:
    """One whose engine is this process, as far as anybody looks."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "model").mkdir()
    (tmp_path / "model/weights").write_text("w")
    (tmp_path / "venv/bin").mkdir(parents=True)
    (tmp_path / "venv/bin/vllm").write_text("vllm")
    monkeypatch.setattr(process_image, "criu_version", lambda: (4, 2, 1))
    monkeypatch.setattr(process_image, "_criu", written)
    monkeypatch.setattr(process_image, "_MEMORY_FOLDERS", (f"{tmp_path}/shm/",))
    monkeypatch.setattr(process_image, "_PID_WAIT_SECONDS", 0)
    return Images(tmp_path / "folder", tmp_path / "model", [str(tmp_path / "venv/bin/vllm"), "serve"], (0, 0))


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
        "program": lambda: (tmp_path / "venv/bin/vllm").write_text("newer"),
        "packages": lambda: (tmp_path / "venv/lib/python3.12/site-packages/vllm-0.33.0.dist-info").mkdir(parents=True),
        "environment": lambda: monkeypatch.setenv("VLLM_CACHE_ROOT", "/elsewhere"),
        "CRIU": lambda: monkeypatch.setattr(process_image, "criu_version", lambda: (4, 3)),
        "GPUs": lambda: monkeypatch.setattr(process_image, "gpus", lambda: ["NVIDIA L4"]),
    }.items():
        change()
        found[name] = name in why_not(images)
    assert all(found.values()), found


def test_an_image_is_for_the_machine_driver_engine_options_and_weights_that_it_was_made_with(images: Images) -> None:
    taken(images)
    file = images.image / "manifest.json"
    manifest = json.loads(file.read_text())
    of_machine = {"machine", "kernel", "processor", "driver", "GPUs", "CRIU"}
    of_engine = {"command", "environment", "user", "files of the model", "program", "packages"}
    assert {*manifest["made_in"]} == {"format", *of_machine, *of_engine}
    for name in manifest["made_in"]:
        file.write_text(json.dumps({**manifest, "made_in": {**manifest["made_in"], name: "another"}}))
        assert why_not(images) == f"it was made with another {name}"


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


def test_a_restore_that_takes_the_machine_down_is_not_tried_again(
    images: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken(images)
    on_disk: list[str] = []
    monkeypatch.setattr(
        process_image.os, "fsync", lambda opened: on_disk.extend(each.name for each in os.scandir(opened))
    )
    tried: list[list[str]] = []
    monkeypatch.setattr(process_image, "_criu", lambda *_: tried.append([*on_disk]))
    with pytest.raises(NoImage):
        images.restore(GONE, 1)
    assert [sorted(each) for each in tried] == [["image", "trying"]]


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


FILTERED = """
import ctypes, errno, socket
from winhost.serving.process_image import filter_calls

filter_calls()
libc = ctypes.CDLL(None, use_errno=True)
assert libc.syscall(425, 1, None) == -1  # io_uring_setup
print(errno.errorcode[ctypes.get_errno()])
for family in (socket.AF_UNIX, socket.AF_INET, socket.AF_PACKET):
    try:
        socket.socket(family, socket.SOCK_DGRAM).close()
        print("made")
    except OSError as error:
        print(errno.errorcode[error.errno])
"""


def test_the_engine_gets_no_io_uring_and_no_other_addresses() -> None:
    done = subprocess.run([sys.executable, "-c", FILTERED], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stdout.split() == ["EPERM", "made", "made", "EAFNOSUPPORT"], done.stderr


# ---- the program itself, with a stand-in for CRIU

CRIU = """\
#!/bin/sh
echo "$1" >>"$0.did"
case "$1" in
--version) echo "Version: 4.2.1" ;;
dump) echo image >"$5/core-1.img"; kill -9 "$3" ;;
restore) echo "Error (criu/files.c:1): no"; exit 1 ;;
esac
"""
ENGINE = """\
import os, signal, sys, time
if os.fork() == 0:  # a worker, whose own child it leaves
    if os.fork() == 0:
        time.sleep(0.2)
        os._exit(0)
    os._exit(0)
os.wait()
open(sys.argv[1], "a").write(f"{os.getpid()}\\n")
while True:
    signal.pause()
"""


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose sockets have short enough names."""
    with tempfile.TemporaryDirectory(prefix="image-") as folder:
        yield Path(folder)


class Unit:
    """The program as a unit runs it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.starts = folder, folder / "starts"
        for name, text in (("criu", CRIU), ("engine.py", ENGINE)):
            (folder / name).write_text(text)
        (folder / "criu").chmod(0o755)
        (folder / "images").mkdir()
        (folder / "model").mkdir()

    def start(self) -> subprocess.Popen[bytes]:
        """Returns when the engine is there."""
        before = self.pids()
        words = [process_image.__file__, str(self.folder / "images"), str(self.folder / "model"), "root", "--"]
        engine = [sys.executable, str(self.folder / "engine.py"), str(self.starts)]
        path = f"{self.folder}:{os.environ['PATH']}"
        found = subprocess.Popen([sys.executable, *words, *engine], env={**os.environ, "PATH": path})
        wait_for(lambda: len(self.pids()) > len(before))
        return found

    def pids(self) -> list[int]:
        return [*map(int, self.starts.read_text().split())] if self.starts.exists() else []

    def ask(self, what: str) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX) as to:
            to.settimeout(PATIENCE_S)
            to.connect(str(self.folder / "images/control"))
            to.sendall(json.dumps({"do": what}).encode() + b"\n")
            found: dict[str, Any] = json.loads(to.makefile().readline())
            return found

    def restores(self) -> int:
        return (self.folder / "criu.did").read_text().split().count("restore")


def state_of(pid: int) -> str:
    """Empty: there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="a unit runs it as root")
def test_a_restore_that_fails_is_tried_once_and_the_same_start_goes_on_cold(short: Path) -> None:
    unit = Unit(short)
    running = unit.start()
    assert unit.ask("look") == {"began": "cold", "image": False}
    assert "taken" in unit.ask("take")
    assert running.wait(PATIENCE_S) == 0
    assert unit.restores() == 0
    running = unit.start()
    assert unit.ask("look") == {"began": "cold", "image": False}
    assert unit.restores() == 1
    running.send_signal(signal.SIGKILL)
    running.wait(PATIENCE_S)
    os.kill(unit.pids()[-1], signal.SIGKILL)
    running = unit.start()  # nothing of the image is left to try
    assert unit.ask("look") == {"began": "cold", "image": False}
    assert unit.restores() == 1
    running.send_signal(signal.SIGTERM)
    assert running.wait(PATIENCE_S) == 0


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="a unit runs it as root")
def test_what_the_engine_leaves_is_reaped_so_that_its_process_ids_are_free(short: Path) -> None:
    unit = Unit(short)
    running = unit.start()
    (engine,) = unit.pids()
    wait_for(
        lambda: [*process_image._descendants(running.pid)] == [engine]
    )  # the one that was left came here, and went
    assert state_of(engine) == "S"
    os.kill(engine, signal.SIGKILL)
    assert running.wait(PATIENCE_S) == 256 - signal.SIGKILL
    assert state_of(engine) == ""
