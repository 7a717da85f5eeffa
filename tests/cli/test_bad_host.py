"""A host with bad answers does not affect the results, files and exit codes of other hosts."""

import re
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Line
from winhost.engine import host_session
from winhost.lab.lab_host import LabHost, LabRunspace
from winhost.lab.running_lab import Lab
from winhost.lab.wire.served_host import RemoteCommand

SAYS: dict[str, Callable[[], Iterable[object]]] = {
    "nothing": list,
    "a page": lambda: ["<html>"],
    "a number": lambda: [7],
    "an answer without a state": lambda: ['{"answers": [' + ",".join(['{"ok": true}'] * 200) + "]}"],
    "nesting without end": lambda: ["[" * 90_000],
}


class Bad(LabHost):
    """A host that sends this text instead of the agent's answer."""

    says: Callable[[], Iterable[object]]

    def open_runspace(self, user: str) -> LabRunspace:
        host = self

        class Saying(LabRunspace):
            def invoke(self, commands: Sequence[RemoteCommand], stop: threading.Event) -> Iterable[object]:
                return host.says()

        return Saying(self.answers)


@pytest.fixture
def bad(lab: Lab) -> Bad:
    """desk-01, whose endpoint takes the answer from here for each new session."""
    host = lab.hosts["desk-01"]
    host.__class__ = Bad
    assert isinstance(host, Bad)
    return host


@pytest.mark.costly
@pytest.mark.parametrize("says", SAYS.values(), ids=SAYS.keys())
def test_the_others_are_read_and_written_and_judged(line: Line, bad: Bad, says: Any) -> None:
    bad.says = says
    said = line("detect", "*", "-o", "facts")
    assert said.code == 1
    assert [path.name for path in Path("facts").iterdir()] == ["gpu-03.json"]
    assert "error: desk-01: " in said.err
    assert "error: gpu-03" not in said.err
    said = line("assess", "*", "--json")
    assert {result["host"]: "error" in result for result in said.results} == {"gpu-03": False, "desk-01": True}
    said = line("report", "*", "-o", "report.html")
    assert "1 host" in said.out


def test_the_others_are_changed(line: Line, bad: Bad) -> None:
    bad.says = lambda: ['{"answers": [7]}']
    assert line("plan", "gpu-03", "--path", "dda", "--vm", "llm-01", "-o", "one.json").code == 0
    text = Path("one.json").read_text()
    Path("two.json").write_text(text.replace('"gpu-03"', '"desk-01"'))
    said = line("apply", "one.json", "two.json", "--yes", "--accept", "vm-stop,vm-turn-off,restart,force-dismount")
    assert "error: desk-01: " in said.err
    assert "gpu-03: applied" in said.out
    assert said.code == 1


def test_a_fault_of_ours_is_one_hosts(line: Line, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    real = host_session.read_facts

    def failing(agent: Any, *named: Any, **how: Any) -> Any:
        if agent.host == "desk-01":
            raise KeyError("what-a-host-said")
        return real(agent, *named, **how)

    monkeypatch.setattr(host_session, "read_facts", failing)
    said = line("detect", "*", "-o", "facts")
    assert said.code == 1
    assert [path.name for path in Path("facts").iterdir()] == ["gpu-03.json"]
    assert "error: desk-01: winhost itself failed (KeyError at test_bad_host.py:" in said.err
    assert "what-a-host-said" not in said.err


def test_errors_of_several_hosts_begin_with_the_host(line: Line, lab: Lab) -> None:
    text = lab.fleet_file.read_text(encoding="utf-8")
    lab.fleet_file.write_text(re.sub(r"file:[^\"'\s,}]+", "env:LACKING", text), encoding="utf-8")
    said = line("detect", "*")
    assert [each.split()[1] for each in said.err.splitlines() if each.startswith("error: ")] == ["gpu-03:", "desk-01:"]


def test_the_error_of_the_only_host_does_not_begin_with_its_name(line: Line) -> None:
    facts = line.facts("win11-intel-arc-only")
    for words in (("plan", facts), ("plan", facts, "--path", "dda")):
        said = line(*words)
        assert said.code in (2, 3)
        assert not re.match(r"error: \S+: ", said.err), said.err
