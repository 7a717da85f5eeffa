"""What the first release wrote is read for ever: its files as they were, and its runs gone on with from any line."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.engine.world import World, world
from winhost.engine.journal import Journal, read_journal
from winhost.engine.planning import check_plan
from winhost.engine.run_state import replay
from winhost.lab.contract.agent_answers import AgentAnswers
from winhost.lab.hostfile import expand, find
from winhost.model.documents import read_document
from winhost.model.errors import UsageError
from winhost.model.facts import Facts
from winhost.model.fleetfile import load_fleet
from winhost.model.plan import Plan
from winhost.model.workloadfile import load_workload
from winhost.paths.playbook import read_playbook
from winhost.resources.host import HostFacts

V1 = Path(__file__).parents[1] / "data" / "v1"
JOURNALS = sorted(V1.glob("journals/*.jsonl"))
DDA = next(path for path in JOURNALS if path.stem.startswith("gpu-01"))


@pytest.mark.parametrize("host", ["gpu-01", "desk-01"])
def test_facts_and_plans_of_version_1_are_read(host: str) -> None:
    assert HostFacts(read_document(V1 / f"facts/{host}.json", Facts)).cards
    plan = read_document(V1 / f"plans/{host}.json", Plan)
    check_plan(plan)
    assert (plan.host, bool(plan.steps)) == (host, True)


def test_a_fleet_and_playbooks_of_version_1_are_read() -> None:
    assert {host.name for host in load_fleet(V1 / "fleet.yaml").hosts} == {"gpu-01", "desk-01"}
    assert [read_playbook(V1 / f"playbooks/{path}.yaml").path for path in ("dda", "wsl2")] == ["dda", "wsl2"]


def test_a_workload_of_version_1_is_read() -> None:
    assert load_workload(V1 / "workloads/three-share-a-card.yaml").models


ADDED = {"serial"}  # to examples of today, for what version 1 did not read


def states(facts: Facts) -> dict[str, Any]:
    """What a host is, without what was added since."""
    return {
        resource: [(r.key, {name: value for name, value in r.state.items() if name not in ADDED}) for r in answer]
        if isinstance(answer, tuple)
        else answer
        for resource, answer in facts.resources.items()
    }


@pytest.mark.parametrize("host", ["win11-pro-1gpu", "laptop-hybrid"])
def test_a_host_file_of_version_1_makes_the_host_that_it_made(host: str) -> None:
    (then, lab), (now, lab_now) = expand(V1 / f"hosts/{host}.yaml"), expand(find(host))
    assert (states(then), lab) == (states(now), lab_now)


def test_a_fault_of_a_file_of_version_1_is_told_at_its_line(tmp_path: Path) -> None:
    text = (V1 / "playbooks/dda.yaml").read_text(encoding="utf-8")
    line = next(number for number, line in enumerate(text.splitlines(), start=1) if "noun: VmMmio" in line)
    (tmp_path / "dda.yaml").write_text(text.replace("noun: VmMmio", "noun: Fan"), encoding="utf-8")
    with pytest.raises(UsageError) as raised:
        read_playbook(tmp_path / "dda.yaml")
    assert f"dda.yaml:{line}:" in raised.value.what


def test_what_version_1_did_not_know_is_not_known_in_it_now(tmp_path: Path) -> None:
    document = json.loads((V1 / "facts/gpu-01.json").read_text(encoding="utf-8"))
    (tmp_path / "facts.json").write_text(json.dumps({**document, "resources": {}}), encoding="utf-8")
    assert HostFacts(read_document(tmp_path / "facts.json", Facts)).cards
    text = (V1 / "playbooks/dda.yaml").read_text(encoding="utf-8")
    both = text.replace("- noun: VmMmio", "- noun: VmMmio\n    resource: Vm")
    (tmp_path / "dda.yaml").write_text(both, encoding="utf-8")
    with pytest.raises(UsageError, match="unknown key"):
        read_playbook(tmp_path / "dda.yaml")


@pytest.mark.parametrize("path", JOURNALS, ids=lambda path: path.stem)
def test_a_journal_of_version_1_is_read_to_its_end(path: Path) -> None:
    assert replay(path.stem, read_journal(path)).outcome == "rolled back"


def interrupted(folder: Path, lines: int) -> World:
    """A host on which a run of version 1 did what stands in so many lines of its journal, and the controller ended."""
    here = world(folder)
    text = DDA.read_text(encoding="utf-8").splitlines(keepends=True)[:lines]
    here.store.path(DDA.stem).write_text("".join(text), encoding="utf-8")
    begun: dict[str, Any] = {}
    for event in map(json.loads, text):
        if event["event"] == "begin":
            begun = event["step"]
        if event["event"] == "end":
            done(here, begun)
        if event["event"] == "restarted":
            here.machine.restart_computer()
            here.machine.settle()
    return here


def done(here: World, step: dict[str, Any]) -> None:
    """The change that the journal tells of, made of the host as the agent makes it."""
    how = {"accept": ["vm-turn-off", "force-dismount"], "within": 60}
    call = {"resource": step["noun"], "verb": "set", "key": step["key"], "expect": {}, "how": how}
    call["desired"] = step["want"]
    answered = json.loads(AgentAnswers(here.machine).invoke(json.dumps({"exclusive": True, "calls": [call]})))
    assert answered["answers"][0]["ok"], answered


def assert_version_1_is_never_written(journal: Path, lines: int) -> None:
    """What was there stays byte for byte; what follows says that it is version 2, and has its words."""
    old, new = DDA.read_text(encoding="utf-8").splitlines(), journal.read_text(encoding="utf-8").splitlines()
    assert new[:lines] == old[:lines]
    assert json.loads(new[lines])["schema"] == "winhost.journal/2"
    assert '"noun":' not in "".join(new[lines:])
    assert '"want":' not in "".join(new[lines:])


FORWARD = [
    number
    for number, line in enumerate(DDA.read_text(encoding="utf-8").splitlines(), start=1)
    if json.loads(line)["event"] in ("end", "stage")
]
FORWARD = FORWARD[: len(FORWARD) // 2]  # what follows is its way back


@pytest.mark.parametrize("lines", FORWARD[::3])
def test_a_run_of_version_1_is_gone_on_with_and_given_back(tmp_path: Path, lines: int) -> None:
    found = world(tmp_path / "untouched").state()
    here = interrupted(tmp_path / "here", lines)
    assert here.resume().outcome == "applied"
    assert here.rollback().outcome == "rolled back"
    assert here.state() == found
    assert_version_1_is_never_written(here.store.path(DDA.stem), lines)


@pytest.mark.parametrize("lines", FORWARD[1::3])
def test_a_run_of_version_1_is_given_back_from_where_it_stopped(tmp_path: Path, lines: int) -> None:
    found = world(tmp_path / "untouched").state()
    here = interrupted(tmp_path / "here", lines)
    assert here.rollback().outcome == "rolled back"
    assert here.state() == found


def test_a_full_disk_at_the_first_line_of_today_leaves_the_journal_one_of_version_1(tmp_path: Path) -> None:
    path = tmp_path / DDA.name
    path.write_bytes(DDA.read_bytes())
    old = [entry["event"] for entry in read_journal(path)]
    journal = Journal(path)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("os.write", lambda descriptor, line: 0)
        with pytest.raises(OSError, match="No space"):
            journal.write("accept", accepted=["restart"])
    journal.write("accept", accepted=["restart"])
    assert [entry["event"] for entry in read_journal(path)][len(old) :] == ["continued", "accept"]
