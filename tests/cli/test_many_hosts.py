"""Many hosts are read one by one: an unusable one does not affect the others, and none is kept in memory."""

import signal
import sys
import threading
import time
import traceback
import weakref
from pathlib import Path

from tests.cli.conftest import Line
from tests.processes import PATIENCE_S
from winhost.cli.look.assess import evaluate_each
from winhost.cli.options import HostsAndFacts
from winhost.cli.snapshots import read_snapshots
from winhost.cli.watch import Watch
from winhost.compat.evaluation import Requirements
from winhost.engine.many import run_all, run_streaming

UNSEEN = Watch(lambda text: None)


def test_a_broken_facts_file_loses_nothing_of_the_others(line: Line) -> None:
    good, wrong = line.facts("server2025-3gpu"), line.facts("win11-pro-1gpu")
    wrong.write_text(wrong.read_text().replace('"sku": ', '"sku": "x", "was": '))
    Path("torn.json").write_text("{")
    said = line("assess", "--facts", "torn.json", "--facts", wrong, "--facts", good, "--json")
    assert said.code == 2
    torn, shapeless, judged = said.results
    assert (torn["host"], torn["error"]["exit_code"]) == ("torn.json", 2)
    assert shapeless["error"]["exit_code"] == 2
    assert judged["options"]
    said = line("report", "torn.json", wrong, good, "-o", "report.html")
    assert said.code == 2
    assert "1 host" in said.out
    page = Path("report.html").read_text(encoding="utf-8")
    assert page.count('<article class="host"') == 1
    assert page.count("Could not be read:") == 2
    said = line("report", "torn.json", "-o", "report.html")
    assert (said.code, said.out) == (2, "")
    assert Path("report.html").read_text(encoding="utf-8") == page, "a page without hosts replaced it"


def test_a_folder_that_takes_no_facts_is_the_error_of_each_host(line: Line, lab: object) -> None:
    Path("facts").touch()
    said = line("detect", "*", "-o", "facts/below", "--json")
    assert said.code == 2
    assert [result["error"]["kind"] for result in said.results] == ["UnusablePlace"] * 2


def test_nothing_is_kept_of_a_host_that_was_judged(line: Line) -> None:
    files = [line.facts("win11-pro-1gpu")] * 3
    gone = []
    for read, evaluation in evaluate_each(
        read_snapshots(HostsAndFacts((), tuple(files)), UNSEEN), Requirements(), UNSEEN
    ):
        assert all(ref() is None for ref in gone[:-1])
        assert read.facts is not None
        assert evaluation is not None
        gone += [weakref.ref(read.facts)]
        del read, evaluation


def test_a_slow_host_lets_only_so_many_others_go_ahead() -> None:
    begun: list[int] = []
    results = run_streaming(range(100), lambda work: begun.append(work) or work, at_once=2, ahead=5)
    assert next(results).value == 0
    assert len(begun) <= 7
    results.close()  # type: ignore[attr-defined]
    assert len(begun) <= 7


def main_thread_is_in() -> set[str]:
    """Tell whether the main thread is in one of these functions."""
    main = threading.main_thread().ident
    assert main is not None
    return {frame.name for frame in traceback.extract_stack(sys._current_frames()[main])}


def test_a_signal_is_heard_while_hosts_are_waited_for_even_if_it_ends_no_wait() -> None:
    """A signal may arrive just before the main thread begins to wait; here another thread receives it."""
    heard = threading.Event()

    def interrupted(number: int) -> bool:
        if number == 0:
            while not {"_in_threads", "wait"} <= main_thread_is_in() or "submit" in main_thread_is_in():
                time.sleep(0.01)
            signal.raise_signal(signal.SIGINT)
        return heard.wait(PATIENCE_S)

    before = signal.signal(signal.SIGINT, lambda number, frame: heard.set())
    try:
        assert [done.value for done in run_all([0, 1], interrupted)] == [True, True]
    finally:
        signal.signal(signal.SIGINT, before)
