"""The state folder is its owner's alone, whatever the umask, and what is not is refused with the mend."""

import errno
import fcntl
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path

import pytest

from tests.cli.conftest import Line, line
from tests.errors import raises
from tests.processes import PATIENCE_S
from winhost.engine.journal import Journal, read_journal
from winhost.engine.store import Store, private_folder

__all__ = ["line"]

pytestmark = pytest.mark.skipif(os.name != "posix", reason="rights and links as POSIX has them")


def test_runs_are_told_by_time_and_those_of_one_second_by_host(tmp_path: Path) -> None:
    """In whatever order the file system has them."""
    runs = ["z.20260101-000000", *(f"gpu-{number:02}.20260101-000001" for number in range(9))]
    store = Store(tmp_path / "state")
    for run in (*runs[::2], *runs[1::2]):
        Journal(store.path(run)).write("run")
    assert store.runs() == tuple(runs)


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o777], ids="{:03o}".format)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_all_that_is_made_is_ours_alone_whatever_the_umask(tmp_path: Path) -> None:
    store = Store(tmp_path / "state" / "of" / "winhost")
    Journal(store.path("gpu-01.20260101-000000")).write("run")
    with store.lock("gpu-01", "apply"):
        made = [path.stat().st_mode for path in (tmp_path / "state", *(tmp_path / "state").rglob("*"))]
    files = [stat.S_IMODE(mode) for mode in made if stat.S_ISREG(mode)]
    assert len(files) == 3
    assert {mode | 0o600 for mode in files} == {0o600}
    assert {stat.S_IMODE(mode) for mode in made if stat.S_ISDIR(mode)} == {0o700}


def _open(place: Path) -> None:
    place.chmod(0o755)


def _shared(place: Path) -> None:
    place.chmod(0o770)


def _in_an_open_folder(place: Path) -> None:
    place.parent.chmod(0o777)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [(_open, "mode 755"), (_shared, "mode 770"), (_in_an_open_folder, "anyone may put another in its place")],
)
def test_a_folder_that_others_may_open_is_refused(tmp_path: Path, spoil: Callable[[Path], None], told: str) -> None:
    place = tmp_path / "below" / "state"
    private_folder(place)
    Store(place).path("x")
    spoil(place)
    with raises("NotPrivate", match=told) as refused:
        Store(place).path("x")
    assert "chmod 700" in refused.value.hint or "WINHOST_STATE" in refused.value.hint


@pytest.mark.parametrize("whose", ["state", "below"])
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives folders away")
def test_a_folder_of_somebody_else_is_refused(tmp_path: Path, whose: str) -> None:
    place = tmp_path / "below" / "state"
    private_folder(place)
    os.chown(place if whose == "state" else place.parent, 12345, -1)
    with raises("NotPrivate", match="belongs to another account"):
        Store(place).path("x")


def test_a_sticky_folder_of_all_is_no_danger(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    Store(tmp_path / "tmp" / "state").path("x")


def test_a_link_is_neither_read_nor_written_through(tmp_path: Path) -> None:
    store = Store(tmp_path / "state")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    for place in (store.path("x"), store.folder / "locks" / "gpu-01.json"):
        place.parent.mkdir(exist_ok=True, mode=0o700)
        place.symlink_to(elsewhere)
    with raises("Damaged", match="symbolic link"):
        read_journal(store.path("x"))
    with raises("Damaged", match="symbolic link"):
        Journal(store.path("x"))
    dangling = store.path("y")
    dangling.symlink_to(tmp_path / "nowhere")
    with pytest.raises(OSError, match="symbolic"):
        Journal(dangling).write("run")
    with store.lock("gpu-01", "apply"):
        assert elsewhere.read_text() == "mine"
    (store.folder / "locks" / "gpu-02.lock").symlink_to(elsewhere)
    with raises("NoStore", match="symbolic link"), store.lock("gpu-02", "apply"):
        pass
    assert elsewhere.read_text() == "mine"


def test_a_note_of_a_lock_that_is_none_is_no_defect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("winhost.engine.store.LOCK_TIMEOUT_S", 0)  # nobody only looks
    store = Store(tmp_path / "state")
    with store.lock("gpu-01", "apply"):
        for note in ("[]", "{}", "1", '{"who": 1}'):
            (store.folder / "locks" / "gpu-01.json").write_text(note)
            assert store.is_locked("gpu-01")


def test_who_only_looks_keeps_no_run_from_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each other time the lock is somebody's who looks."""
    store, real = Store(tmp_path / "state"), fcntl.flock
    looks = cycle((True, False))

    def looked_at(fd: int, how: int) -> None:
        if how & fcntl.LOCK_EX and next(looks):
            raise BlockingIOError(errno.EWOULDBLOCK, "held for a moment")
        real(fd, how)

    monkeypatch.setattr("fcntl.flock", looked_at)
    with store.lock("gpu-01", "apply"):
        (note,) = (store.folder / "locks").glob("*.json")
    note.touch()
    assert not store.is_locked("gpu-01")
    assert not note.exists()


def test_a_command_says_what_to_do(line: Line) -> None:
    Path("state/runs").mkdir(parents=True)
    Path("state").chmod(0o755)
    Path("state/runs/gpu-01.20260101-000000.jsonl").touch()
    said = line("rollback", "gpu-01.20260101-000000", "--yes")
    assert (said.code, "chmod 700" in said.err) == (2, True)


def test_a_place_of_ones_own_is_made_by_the_command_as_well(tmp_path: Path) -> None:
    """With the umask of its process, as a shell sets it."""
    code = "import os; os.umask(0); from winhost.engine.store import Store; Store().path('x')"
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "of" / "mine")}
    environment.pop("WINHOST_STATE", None)
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=PATIENCE_S)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "of").rglob("*")} == {0o700}


def test_a_file_in_the_place_of_the_store_is_named_instead_of_no_runs(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("mine")
    with raises("NoStore", match="a file is there"):
        Store(tmp_path / "state").runs()
