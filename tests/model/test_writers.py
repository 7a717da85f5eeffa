"""Files that others can change are not obeyed, and files that winhost writes are changed by nobody else."""

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.processes import PATIENCE_S
from tests.rows import each_row
from winhost.model import writers
from winhost.model.errors import UsageError
from winhost.model.fleetfile import load_fleet
from winhost.model.yamlfile import load_json

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has access lists instead")

PLAIN = "schema: winhost.fleet/1\nhosts:\n  gpu-01:\n    transport:\n      user: a\n      password: env:A\n"
RUNS = PLAIN.replace("env:A", "cmd:pass show gpu-01")
SOMEBODY, SOME_GROUP = 65534, 65534
as_root = pytest.mark.skipif(os.name != "nt" and os.geteuid() != 0, reason="only root gives files away")


@pytest.fixture
def fleet(tmp_path: Path) -> Callable[[str], Path]:
    def written(text: str) -> Path:
        file = tmp_path / "fleet.yaml"
        file.write_text(text)
        file.chmod(0o644)
        tmp_path.chmod(0o755)
        return file

    return written


def code_of(file: Path) -> str | None:
    try:
        load_fleet(file)
    except UsageError as error:
        return error.code
    return None


def test_a_file_that_everybody_can_change_is_refused(fleet: Callable[[str], Path], tmp_path: Path) -> None:
    file = fleet(PLAIN)
    assert code_of(file) is None
    file.chmod(0o666)
    assert code_of(file) == "WritableByAll"
    facts = tmp_path / "facts.json"
    facts.write_text("{}")
    facts.chmod(0o646)
    with pytest.raises(UsageError, match="every user"):
        load_json(facts, dict)


@as_root
@each_row(
    "change",
    [
        (lambda file: os.chown(file, SOMEBODY, 0)),
        (lambda file: (os.chown(file, 0, SOME_GROUP), file.chmod(0o664))),
        (lambda file: file.parent.chmod(0o777)),
        (lambda file: os.chown(file.parent, SOMEBODY, 0)),
    ],
    ids=["another owner", "a group", "an open folder", "another's folder"],
)
def test_only_secrets_that_are_programs_are_refused_where_some_others_can_change_them(
    fleet: Callable[[str], Path], change: Callable[[Path], object]
) -> None:
    for text, expected in ((RUNS, "WritableByOthers"), (PLAIN, None)):
        file = fleet(text)
        assert code_of(file) is None
        change(file)
        assert code_of(file) == expected
        os.chown(file, 0, 0)
        os.chown(file.parent, 0, 0)


@as_root
def test_others_who_can_change_a_file_are_warned_of_once(
    fleet: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    file = fleet(PLAIN)
    os.chown(file, SOMEBODY, SOME_GROUP)
    file.chmod(0o664)
    for _ in range(2):
        load_fleet(file)
    assert [record.getMessage().partition("fleet.yaml: ")[2] for record in caplog.records] == [
        "nobody's group can change it as well",
        "it belongs to nobody, who can change it",
    ]


def test_a_file_system_without_modes_is_warned_of(
    fleet: Callable[[str], Path], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = fleet(RUNS)
    file.chmod(0o777)
    monkeypatch.setattr(writers, "_mounts", lambda: [("/", "ext4"), (str(file.parent), "9p")])
    load_fleet(file)
    assert "keeps no owners and modes" in caplog.text


def test_a_users_own_group_is_nobody_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import grp

    file = tmp_path / "file"
    file.touch()
    file.chmod(0o664)
    found = os.stat_result((*file.stat()[:5], 1234, *file.stat()[6:]))
    for name, members, shares in (("alice", [], False), ("alice", ["bob"], True), ("team", [], True)):
        monkeypatch.setattr(grp, "getgrgid", lambda _, each=(name, "x", 1234, members): grp.struct_group(each))
        monkeypatch.setattr(writers, "_user", lambda _: "alice")
        assert writers._shares_group(found) is shares


def test_a_pipe_is_no_file_that_others_change() -> None:
    read, write = os.pipe()
    os.write(write, b"{}")
    os.close(write)
    assert load_json(Path(f"/dev/fd/{read}"), dict) == {}
    os.close(read)


def test_what_is_written_under_any_umask_is_writable_by_its_owner_alone(tmp_path: Path) -> None:
    code = (
        "import os, sys; os.umask(0); from winhost.cli import run; run(['lint', 'serve', '--help']); open('made', 'w')"
    )
    subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL, timeout=PATIENCE_S
    )
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o644
