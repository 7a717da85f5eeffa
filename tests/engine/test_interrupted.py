"""Signals at any moment: whatever a run is at, its journal can be read, and it goes back to what was found."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.cli.process import journal
from tests.engine.test_killed import ACCEPT
from tests.engine.world import World, world
from tests.errors import raises, suppressed
from tests.processes import started
from winhost.cli import run
from winhost.cli.change.running import stop_requests
from winhost.engine.failures import RunInterrupted
from winhost.engine.journal import Journal, read_journal
from winhost.engine.run_state import replay
from winhost.lab.contract.agent_answers import AgentAnswers, InjectedFault
from winhost.lab.hostfile import find
from winhost.lab.physics import windows_errors
from winhost.lab.running_lab import Lab

# What a run is between two answers of its host: its loop, its journal, and how signals reach both.
WATCHED = tuple(
    f"{os.sep}{room}{os.sep}{name}.py"
    for room, names in {
        "engine": ("host_session", "journal", "open_run", "rollback", "run", "run_state", "run_steps", "store"),
        "core": ("changes", "journal_lines", "loop", "marks"),
        "cli": ("running",),
    }.items()
    for name in names
)
ENDS = [name for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name)]


def quietly() -> bool:
    return False


@contextmanager
def heard(here: World) -> Iterator[None]:
    """As a command does it."""
    with stop_requests() as stop, suppress(KeyboardInterrupt), suppressed("Stopped", "CutShort", "Halted"):
        here.stop, here.interruptible = stop, stop.interruptible
        yield
    here.stop, here.interruptible = quietly, nullcontext


def send(*names: str) -> None:
    for name in names:
        signal.raise_signal(signal.Signals[name])


def assert_goes_back(here: World, found: dict[str, Any]) -> None:
    for name in here.store.runs():
        record = replay(name, read_journal(here.store.path(name)))
        assert record.stopped is not None or record.outcome is not None
        if not record.unchanged or record.going_back:
            assert here.rollback().outcome == "rolled back"
    assert here.state() == found


@pytest.mark.costly
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("at", [1, 2, 9])
def test_two_ctrl_c_while_a_line_is_written_make_one_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, back: bool
) -> None:
    here = world(tmp_path, "server2025-role-installed")
    found = here.state()
    plan = here.plan()
    if back:
        here.apply(plan)
    fsync, left = os.fsync, [at]

    def interrupted(descriptor: int) -> None:
        fsync(descriptor)
        left[0] -= 1
        if left[0] == 0:  # on the disk, and nobody knows that yet
            send("SIGINT", "SIGINT")

    with monkeypatch.context() as patched, heard(here):
        patched.setattr("os.fsync", interrupted)
        here.rollback() if back else here.apply(plan)
    assert left[0] <= 0
    assert_goes_back(here, found)


def test_two_ctrl_c_in_a_step_cut_it_short_and_the_journal_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = world(tmp_path, "server2025-role-installed")
    found, plan, invoke = here.state(), here.plan(), AgentAnswers.invoke

    def interrupted(answers: AgentAnswers, request: str) -> str:
        if here.store.runs():
            send("SIGINT", "SIGINT", "SIGINT")
        return invoke(answers, request)

    with monkeypatch.context() as patched, heard(here):
        patched.setattr(AgentAnswers, "invoke", interrupted)
        here.apply(plan)
    last = read_journal(here.store.path(here.run))
    assert "in the middle of a step" in next(entry["why"] for entry in last if entry["event"] == "stopped")
    assert_goes_back(here, found)


def test_two_ctrl_c_while_a_step_is_refused_leave_the_end_of_the_run_as_it_is(tmp_path: Path) -> None:
    """The run has changed nothing, so its marks go: that asks the host once more, which the second Ctrl-C refuses."""
    here = world(tmp_path, "server2025-role-installed")
    found, plan = here.state(), here.plan()
    refused = InjectedFault(
        next(plan.steps).resource, "set", windows_errors.agent_error("No", "InvalidOperation", "no")
    )
    here.answers.faults.add(refused)

    def interrupted(when: str, entry: Any) -> None:
        if (when, entry["event"]) == ("after", "failed"):
            send("SIGINT", "SIGINT")

    here.around = interrupted
    with heard(here), raises("StepFailed"):
        here.apply(plan)
    assert [entry["event"] for entry in read_journal(here.store.path(here.run))][-2:] == ["stopped", "outcome"]
    assert here.state() == found


def test_a_line_that_this_run_does_not_know_of_is_followed_by_none(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    one, other = Journal(path), Journal(path)
    one.write("begin")
    with pytest.raises(OSError, match="ends otherwise"):
        other.write("begin")
    assert len(read_journal(path)) == 1


def test_ctrl_c_while_a_run_is_only_looked_at_leaves_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from winhost.engine.rollback import preview_on_host

    here = world(tmp_path, "server2025-role-installed")
    plan = here.plan()
    here.stop = lambda: any(event.kind == "done" for event in here.events)
    with raises("Stopped"):
        here.apply(plan)
    before = here.store.path(here.run).read_bytes()

    def interrupted(answers: AgentAnswers, request: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(AgentAnswers, "invoke", interrupted)
    with pytest.raises(
        (KeyboardInterrupt, RunInterrupted), check=lambda it: getattr(it, "code", "CutShort") == "CutShort"
    ):
        preview_on_host(here.run, here.context)
    assert here.store.path(here.run).read_bytes() == before


# ---- at any line of the engine


@contextmanager
def at_line(number: int, send: Callable[[], None]) -> Iterator[list[int]]:
    """Call `send` before this line of the engine, counted from 1. Yields the count so far."""
    count = [0]

    def line(frame: FrameType, event: str, arg: object) -> Any:
        if event == "line":
            count[0] += 1
            if count[0] == number:
                send()
        return line

    def call(frame: FrameType, event: str, arg: object) -> Any:
        return line if frame.f_code.co_filename.endswith(WATCHED) else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        yield count
    finally:
        sys.settrace(before)


@pytest.mark.crash
@pytest.mark.parametrize("command", ["apply", "resume", "rollback"])
@pytest.mark.parametrize("seed", range(20))
def test_signals_at_any_line_of_the_engine(tmp_path: Path, command: str, seed: int) -> None:
    chance = random.Random(f"{command} {seed}")
    file = ("server2025-role-installed", "server2025-3gpu")[seed % 2]  # the second restarts
    most = lines_of(tmp_path / "whole", file, command)
    for number in range(8):
        here, found, go = about_to(tmp_path / str(number), file, command)
        names = chance.choice([("SIGINT", "SIGINT"), (*chance.choices(ENDS, k=2), "SIGINT")])
        with heard(here), at_line(chance.randint(1, most), lambda names=names: send(*names)):  # type: ignore[misc]
            go()
        assert_goes_back(here, found)


def lines_of(folder: Path, file: str, command: str) -> int:
    here, _, go = about_to(folder, file, command)
    with heard(here), at_line(0, lambda: None) as count:
        go()
    return count[0]


def about_to(folder: Path, file: str, command: str) -> tuple[World, dict[str, Any], Callable[[], object]]:
    """A host, its state as found, and what is to be done."""
    here = world(folder, file)
    found, plan = here.state(), here.plan()
    if command == "apply":
        return here, found, lambda: here.apply(plan)
    if command == "resume":
        here.stop = lambda: sum(event.kind == "done" for event in here.events) >= 2
        with raises("Stopped"):
            here.apply(plan)
        here.stop = quietly
        return here, found, here.resume
    here.apply(plan)
    return here, found, here.rollback


# ---- over the wire


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    with Lab([find("server2025-role-installed")], tmp_path, scale=0.001) as running:
        monkeypatch.setenv("WINHOST_FLEET", str(running.fleet_file))
        monkeypatch.setenv("WINHOST_STATE", str(tmp_path / "state"))
        assert run(["plan", "gpu-03", "--vm", "llm-01", "-o", str(tmp_path / "plan.json")]) == 0
        yield running


@pytest.mark.crash
@pytest.mark.skipif(os.name != "posix", reason="a process cannot be sent Ctrl-C elsewhere")
@pytest.mark.parametrize("seed", range(20))
def test_signals_at_any_time_to_a_process(lab: Lab, seed: int) -> None:
    chance = random.Random(seed)
    machine = lab.hosts["gpu-03"].machine
    found = machine.comparable_state()
    words = [sys.executable, "-m", "winhost", "apply", str(lab.folder / "plan.json"), *ACCEPT]
    with started(words, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as controller:
        begin = chance.randint(0, 25)
        while controller.poll() is None and lines_in(journal(lab.folder)) < begin:
            time.sleep(0.001)
        for name in (chance.choice(["SIGINT", "SIGINT", "SIGTERM", "SIGHUP"]), "SIGINT", "SIGINT"):
            time.sleep(chance.choice([0, 0.001, 0.01, 0.05]) * chance.random())
            controller.send_signal(signal.Signals[name])
    path = journal(lab.folder)
    if path is not None:
        record = replay(path.stem, read_journal(path))
        assert record.stopped is not None or record.outcome is not None
        assert run(["runs", path.stem]) == 0
        assert record.unchanged or run(["rollback", path.stem, *ACCEPT]) == 0
    machine.wait_until_ready()
    assert machine.comparable_state() == found


def lines_in(path: Path | None) -> int:
    return path.read_bytes().count(b"\n") if path else 0
