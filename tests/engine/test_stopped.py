"""Whatever would end the controller: the step in flight is finished, and the journal says why the run stopped."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.test_killed import ACCEPT, journal
from winhost.cli import run
from winhost.engine.journal import read_journal
from winhost.engine.record import Record, replay
from winhost.lab.hostfile import find
from winhost.lab.lab import Lab

pytestmark = pytest.mark.skipif(os.name != "posix", reason="its signals and pipes are POSIX's")


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    with Lab([find("server2025-role-installed")], tmp_path, scale=0.001) as running:
        monkeypatch.setenv("WINHOST_FLEET", str(running.fleet_file))
        monkeypatch.setenv("WINHOST_STATE", str(tmp_path / "state"))
        assert run(["plan", "gpu-03", "--vm", "llm-01", "-o", str(tmp_path / "plan.json")]) == 0
        yield running


def command(lab: Lab) -> list[str]:
    return [sys.executable, "-m", "winhost", "apply", str(lab.folder / "plan.json"), *ACCEPT]


def ended(lab: Lab) -> Record:
    """As its journal tells it: nothing in flight, stopped with a reason and both ways."""
    path = journal(lab.folder)
    assert path is not None
    record = replay(path.stem, read_journal(path))
    assert record.in_flight is None
    assert record.stopped is not None
    assert record.stopped.next == (f"winhost resume {path.stem}", f"winhost rollback {path.stem}")
    return record


def assert_goes_on(lab: Lab, record: Record, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run(["runs"]) == 0
    assert record.stopped is not None
    assert record.stopped.why.partition(": ")[2].split("(")[0] in " ".join(capsys.readouterr().out.split())
    assert run(["resume", record.run, "--yes"]) == 0
    assert run(["verify", str(lab.folder / "plan.json")]) == 0


@pytest.mark.parametrize(
    ("number", "why"),
    [
        (signal.SIGTERM, "because it was told to end (SIGTERM)"),
        (signal.SIGHUP, "because its terminal was closed (SIGHUP)"),
        (signal.SIGINT, "as you asked"),
    ],
)
def test_a_signal_stops_between_steps(
    lab: Lab, number: signal.Signals, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    controller = subprocess.Popen(command(lab), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    no_step_ends = lab.hosts["gpu-03"].machine.mutex
    with no_step_ends:
        while (path := journal(lab.folder)) is None or path.read_bytes().count(b"\n") < 2:
            assert controller.poll() is None
            time.sleep(0.001)
        controller.send_signal(number)
        assert controller.stderr is not None
        while "Stopping after the step" not in controller.stderr.readline():
            assert controller.poll() is None
    _, told = controller.communicate(timeout=60)
    assert controller.returncode == 1
    assert "Traceback" not in told
    record = ended(lab)
    assert record.stopped is not None
    assert record.stopped.why == f"gpu-03: stopped after 1 change, {why}"
    assert_goes_on(lab, record, capsys)


@pytest.mark.parametrize("form", [(), ("--jsonl",)])
def test_a_reader_who_has_enough_of_it_ends_no_run_in_mid_step(
    lab: Lab, form: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    reading, writing = os.pipe()
    controller = subprocess.Popen([*command(lab), *form], stdout=writing, stderr=writing)
    os.close(writing)
    os.read(reading, 10)  # as `head -1` does
    os.close(reading)
    assert controller.wait(60) == 1
    record = ended(lab)
    assert record.stopped is not None
    assert "nobody takes its output any more (Broken pipe)" in record.stopped.why
    assert_goes_on(lab, record, capsys)


def test_a_terminal_that_is_closed_ends_no_run_in_mid_step(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    import pty

    child, main = pty.fork()
    if child == 0:  # the leader of a session, as a login shell is: the kernel hangs it up
        os.execv(sys.executable, command(lab))
    while journal(lab.folder) is None:
        assert os.read(main, 65536)
    os.close(main)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 1
    record = ended(lab)
    assert_goes_on(lab, record, capsys)


def test_under_nohup_a_hang_up_stays_ignored(lab: Lab) -> None:
    words = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *command(lab)]
    controller = subprocess.Popen(words, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while journal(lab.folder) is None:
        assert controller.poll() is None
        time.sleep(0.001)
    controller.send_signal(signal.SIGHUP)
    assert controller.wait(60) == 0
