"""The task of an external switch, in a real PowerShell of its own, ends as the lab says it does."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cases import read_cases
from tests.powershell.twins import Scripts, machine, scripts
from winhost.lab.physics.own_switches import COMMIT, FOLDER, TASK
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.powershell.calls.cmdlet_process import seams
from winhost.lab.powershell.powershell_engine import Loopback, PowerShellEngine

CASES = read_cases(Path(__file__).parents[1] / "data" / "powershell" / "switch_task.yaml")
NAME, SECONDS = "bridge", 90
LONG = 600  # lab seconds in which every task ends


@pytest.fixture(scope="module")
def engine() -> Iterator[Scripts]:
    with scripts() as running:
        yield running


class Case:
    """A host in the moment in which its task begins."""

    def __init__(self, case: dict[str, Any]) -> None:
        given = dict(case)
        self.machine = machine(given.pop("host"), **given.pop("lab", {}))
        self.network = self.machine.network
        name = given.pop("adapter")
        self.adapter = next(each for each in self.network.adapters.values() if each.state["name"] == name)
        self.adapter.routes = [(to, by) for to, by in given.pop("routes", [])]
        self.adapter.metric = given.pop("metric", None)
        self.adapter.addresses.extend(given.pop("addresses", []))
        self.adapter.state["dns"] = [*self.adapter.state["dns"], *given.pop("dns", [])]
        starting = given.pop("starting", 0)
        self.phase, self.says = given.pop("phase"), given.pop("says", "")
        make = not given.pop("first", False)
        if not make:
            self._begin(make=True, begun=False, comes_back=True)
            self.network.start()
            self.network.pass_time(LONG)
        self._begin(make=make, begun=given.pop("begun", False), comes_back=given.pop("comes_back", False))
        self.network.ready_at = self.network.now + starting
        assert given == {}, "a key that this harness does not know"

    def _begin(self, *, make: bool, begun: bool, comes_back: bool) -> None:
        known = self.network.switch_records.find(NAME)
        switch = known["switch"] if known else ""
        record = {"name": NAME, "adapter": self.adapter.guid, "make": make, "seconds": SECONDS, "switch": switch}
        began = {"begun": begun, "told": False, "phase": "pending", "detail": None}
        self.network.switch_records.save({**record, **began})
        self.network.previous_adapter = None
        for path in (COMMIT, f"{FOLDER}\\snapshot.json"):
            self.machine.files.remove(path)
        if comes_back:
            self.network.switch_records.commit(NAME)
        self.machine.tasks[TASK] = {}

    def left(self) -> dict[str, Any]:
        """All that the task may have changed, shown or not."""
        ends = {a.guid: (dict(a.state), a.routes, a.metric, a.switch_vlan) for a in self.network.adapters.values()}
        return {
            "resources": self.machine.snapshot(),
            "ends": ends,
            "switches": self.network.switches,
            "records": self.network.switch_records.read_records(),
            "tasks": dict(self.machine.tasks),
        }


def in_a_process_of_its_own(text: str, on: Machine) -> None:
    """Without the agent: what the task runs is all that it has. Its helpers are the lab's, which need its classes."""
    with Loopback(on) as loopback:
        engine = PowerShellEngine(loopback)
        try:
            engine.ask({"script": seams().partition("\nfunction ")[0]})
            engine.ask({"script": text})
        finally:
            engine.close()


@pytest.mark.parametrize("name", CASES)
def test_the_task_ends_as_the_lab_says(engine: Scripts, name: str) -> None:
    ours, theirs = Case(CASES[name]), Case(CASES[name])
    before = ours.left()
    ours.network.start()
    ours.network.pass_time(LONG)
    (text,) = engine.run("Join-WinhostSwitchScript")
    in_a_process_of_its_own(text, theirs.machine)
    theirs.network.pass_time(LONG)
    found = theirs.left()
    assert found == ours.left()
    record = theirs.network.switch_records.find(NAME)
    assert (record["phase"] if record else "none") == ours.phase
    assert ours.says in str(record and record["detail"])
    assert found["tasks"] == {}
    if ours.phase == "undone":
        assert found["ends"] == before["ends"]


def test_records_that_are_just_being_replaced_are_not_taken_for_none(engine: Scripts) -> None:
    case = Case(next(iter(CASES.values())))
    engine.use(case.machine)
    case.machine.files.write("C:\\ProgramData\\winhost\\switch\\log.json", b'{"lines": []}')
    # In the gap of a replacement the file is not there: here twice.
    engine.run("""
        $script:LabGap = 2
        ${function:Read-LabBytes} = ${function:Read-WinhostBytes}
        function Read-WinhostBytes {
            param([string]$Path)
            if ($Path -like '*switches.json' -and $script:LabGap -gt 0) {
                $script:LabGap--
                return
            }
            Read-LabBytes $Path
        }
    """)
    try:
        assert engine.run("(Find-WinhostSwitchRecord @(Read-WinhostSwitchRecords) 'bridge').phase") == ["pending"]
        assert engine.run("$script:LabGap") == ["0"]
        case.machine.files.remove_folder("C:\\ProgramData\\winhost")
        assert engine.run("@(Read-WinhostSwitchRecords).Count") == ["0"]
    finally:
        engine.run("${function:Read-WinhostBytes} = ${function:Read-LabBytes}")


@pytest.mark.parametrize("error", ["System.IO.IOException", "System.UnauthorizedAccessException"])
def test_a_file_that_is_in_the_way_for_a_moment_is_tried_again(engine: Scripts, error: str) -> None:
    """Windows says one or the other of a file that is just being replaced."""
    case = Case(next(iter(CASES.values())))
    engine.use(case.machine)
    for name, call, told in (
        ("Read-WinhostJson", "(Read-WinhostSwitchFile 'log.json').lines", "a line"),
        ("Write-WinhostFile", "Write-WinhostSwitchFile 'log.json' @{ lines = @() }; $script:LabBusy", "0"),
    ):
        engine.run(f"""
            $script:LabBusy = 2
            ${{function:Kept-Function}} = ${{function:{name}}}
            function {name} {{
                if ($script:LabBusy -gt 0) {{
                    $script:LabBusy--
                    throw (New-Object -TypeName {error} -ArgumentList 'busy')
                }}
                @{{ lines = 'a line' }}
            }}
        """)
        try:
            assert engine.run(call)[-1:] == [told]
        finally:
            engine.run(f"${{function:{name}}} = ${{function:Kept-Function}}")
