"""The Linux part of a bundle ends in the state of `apply`, continues after a crash, and can be rolled back."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.engine.crash import Abandoned, line
from tests.engine.world import world
from tests.engine.wsl2_world import Wsl2World, wsl2_world
from tests.linux.by_hand import InLinux, LabAgent, at_each_line, with_windows_done
from tests.linux.unpacked import unpack_linux
from winhost.bundle import linux_bundle, linux_commands, linux_host, linux_run
from winhost.bundle.bundle_files import bundle, linux_sources, sums
from winhost.cli import run as main
from winhost.core.marks import MarkedRun, mark_of
from winhost.lab.linux.software import LabPackage
from winhost.model.documents import read_document, write_document
from winhost.model.facts import Facts
from winhost.model.plan import Plan
from winhost.resources.registry import RULES

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="run.py wants root, and folders of root's")


@pytest.fixture(scope="module")
def windows_done(tmp_path_factory: pytest.TempPathFactory) -> Wsl2World:
    return with_windows_done(wsl2_world(tmp_path_factory.mktemp("windows") / "store"))


@pytest.fixture
def hand(windows_done: Wsl2World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InLinux:
    return InLinux(windows_done.copy(tmp_path / "store"), tmp_path / "journals", monkeypatch)


@pytest.fixture
def plan(hand: InLinux, tmp_path: Path) -> Plan:
    """The plan of the first stage for Linux."""
    reader = unpack_linux(hand.here.plan(), tmp_path / "reader")
    return hand.plan(reader)


@pytest.fixture
def made(plan: Plan, tmp_path: Path) -> Path:
    return unpack_linux(plan, tmp_path / "linux")


def outcome(result: Any) -> str:
    return str(result.document.get("outcome", result.document.get("error")))


def test_what_it_reads_is_what_ssh_reads(hand: InLinux, made: Path) -> None:
    assert isinstance(found := hand.facts(made), Facts)
    assert found.resources == hand.here.facts().resources


@pytest.mark.costly
def test_all_bundles_end_where_apply_ends_and_go_back(hand: InLinux, plan: Plan, tmp_path: Path) -> None:
    other = wsl2_world(tmp_path / "other")
    other.apply(other.plan())
    found, bundles = hand.linux_state(), []
    while list(plan.steps):
        made = unpack_linux(plan, tmp_path / f"linux-{len(bundles)}")
        bundles.append(made)
        check = hand.run(made, "apply", "--check").document["steps"]
        assert [(s["resource"], s["desired"]) for s in check] == [(s.resource, s.desired) for s in plan.steps]
        assert hand.run(made, "verify").code == 4
        done = hand.run(made, "apply")
        assert (done.code, outcome(done), done.document["changed"]) == (0, "applied", len(check))
        assert hand.run(made, "verify").code == 0
        plan = hand.plan(made)
    assert len(bundles) == 2
    assert hand.here.state() == other.state()
    assert hand.run(bundles[0], "rollback").document["error"]["kind"] == "LaterRun"
    for made in reversed(bundles):
        done = hand.run(made, "rollback")
        assert (outcome(done), done.document["kept"]) == ("rolled back", [])
    assert hand.linux_state() == found


@dataclasses.dataclass
class Downloading(LabAgent):
    """An agent whose calls wait for some seconds of a clock."""

    clock: list[float]

    def answer_calls(self, request: dict[str, Any], wire: object) -> Any:
        self.WAITS.append("files")
        for second in range(9):
            self.clock[0] += 1
            self.WAITS[-1] = f"files: {second},000 of 16,400 MB"
        self.WAITS.pop()
        return super().answer_calls(request, wire)


def test_what_takes_long_says_how_far_it_is(
    hand: InLinux, made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [100.0]
    monkeypatch.setattr("winhost.bundle.linux_host.time.monotonic", lambda: clock[0])
    monkeypatch.setattr(linux_bundle, "load_agent", lambda text: Downloading(hand.here, (), clock))
    monkeypatch.setattr(linux_commands, "stop_after_step_on_signal", lambda run: None)
    given = linux_run.make_parser().parse_args(["apply", "--journals", str(hand.journals)])
    assert linux_commands.main(given, linux_run.open_files(str(made))).code == 0
    told = [each for each in capsys.readouterr().out.splitlines() if each.startswith("  files")]
    assert told[:3] == [f"  files: {second},000 of 16,400 MB" for second in (0, 5, 1)]


def test_the_agent_of_a_bundle_says_it_there() -> None:
    agent = linux_bundle.load_agent(linux_sources()["agent.py"])
    said: list[str] = []
    agent.WAITS = linux_host.WaitReports(said.append)
    with agent.waiting("model files"):
        agent.report_progress("model files: 1,000 of 16,400 MB, 10.0 MB/s, 24 min left")
    assert said == ["  model files: 1,000 of 16,400 MB, 10.0 MB/s, 24 min left"]


def killed(hand: InLinux, made: Path, command: str, number: int, when: str = "after") -> None:
    """Kill a run at this line of its journal."""
    at = line(number, when)

    def around(moment: str, entry: Any) -> None:
        if at(moment, entry):
            raise Abandoned

    with at_each_line(around), pytest.raises(Abandoned):
        hand.run(made, command)


def test_a_rollback_that_was_killed_is_not_turned_into_an_apply(hand: InLinux, made: Path) -> None:
    found = hand.linux_state()
    hand.run(made, "apply")
    killed(hand, made, "rollback", 6)
    assert hand.run(made, "apply").document["error"]["kind"] == "OneWay"
    assert outcome(hand.run(made, "rollback")) == "rolled back"
    assert hand.linux_state() == found


# ---- refusals: nothing is changed, nothing is begun


def refused(hand: InLinux, made: Path, command: str = "apply", *words: str) -> tuple[int, str]:
    before = hand.linux_state()
    result = hand.run(made, command, *words)
    assert hand.linux_state() == before
    return result.code, result.document["error"]["kind"]


@pytest.mark.costly
@pytest.mark.parametrize(
    "name", ["agent.py", "bundle.py", "core/__init__.py", "core/undo.py", "plan.json", "resources.json", "run.py"]
)
def test_a_file_that_is_not_as_it_was_made_stops_it(hand: InLinux, made: Path, name: str) -> None:
    text = (made / name).read_bytes()
    (made / name).write_bytes(text + b"\n")
    assert refused(hand, made) == (2, "Changed")
    (made / name).unlink()
    assert refused(hand, made, "verify") == (2, "Changed")
    (made / name).write_bytes(text)
    (made / "SHA256SUMS").write_text("0" * 64 + "  /etc/shadow\n")
    assert refused(hand, made) == (2, "Changed")


@pytest.mark.parametrize("place", [".", "core", "core/order.py", "plan.json", "SHA256SUMS"])
def test_a_folder_that_others_may_write_to_is_not_believed(hand: InLinux, made: Path, place: str) -> None:
    (made / place).chmod(0o777)
    assert refused(hand, made) == (2, "NotOurs")
    (made / place).chmod(0o755)
    os.chown(made / place, 65534, 65534)
    assert refused(hand, made, "facts", "-") == (2, "NotOurs")


def test_another_linux_is_refused(hand: InLinux, plan: Plan, tmp_path: Path) -> None:
    others = dataclasses.replace(plan, linux_key="ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOther")
    made = unpack_linux(others, tmp_path / "linux")
    for command in ("apply", "verify", "rollback"):
        assert refused(hand, made, command) == (2, "WrongHost")
    assert not hand.journals.exists()


def test_only_root_changes_anything(hand: InLinux, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert refused(hand, made) == (2, "NotRoot")


def test_drift_is_refused_with_each_difference(hand: InLinux, made: Path) -> None:
    path = "/etc/systemd/system/winhost-cdi.path"
    hand.here.inside.linux.write_file(path, {"text": "theirs", "link": None, "mode": "0644", "owner": "root:root"})
    before = hand.linux_state()
    result = hand.run(made, "apply")
    assert (result.code, result.document["error"]["kind"]) == (4, "Drifted")
    assert "text was none, is theirs" in result.document["error"]["meaning"]
    assert hand.linux_state() == before
    assert not list(hand.journals.glob("*.jsonl"))


def test_what_was_applied_needs_nothing_more(hand: InLinux, made: Path) -> None:
    hand.run(made, "apply")
    state = hand.linux_state()
    assert (outcome(hand.run(made, "apply")), hand.linux_state()) == ("nothing to do", state)
    assert len(list(hand.journals.glob("*.jsonl"))) == 1
    (result,) = hand.journals.glob("*.result.json")
    assert json.loads(result.read_text())["outcome"] == "applied"


def test_a_file_of_ones_own_is_asked_for_by_name(hand: InLinux, tmp_path: Path) -> None:
    path = "/etc/systemd/system/exporter.service"
    own = {"resource": "LinuxFile", "title": "Ours", "key": {"path": path}, "desired": {"text": "#\n"}, "why": "Ours."}
    hand.here.book = {**hand.here.book, "resources": [*hand.here.book["resources"], own]}
    made = unpack_linux(hand.here.plan(), tmp_path / "linux")
    assert outcome(hand.run(made, "apply")) == "applied"
    assert hand.here.inside.linux.read_file(path)["text"] == "#\n"
    assert outcome(hand.run(made, "apply")) == "nothing to do"
    assert outcome(hand.run(made, "rollback")) == "rolled back"
    assert hand.here.inside.linux.read_file(path)["text"] is None


def test_what_somebody_changed_since_is_kept_and_said(hand: InLinux, made: Path) -> None:
    hand.run(made, "apply")
    path = "/etc/systemd/system/winhost-cdi.path"
    theirs = {"text": "theirs", "link": None, "mode": "0644", "owner": "root:root"}
    hand.here.inside.linux.write_file(path, theirs)
    done = hand.run(made, "rollback")
    (kept,) = done.document["kept"]
    assert kept.endswith("kept: text changed since by somebody else")
    assert hand.here.inside.linux.read_file(path) == theirs


def read(hand: InLinux, resource: str) -> Any:
    return LabAgent(hand.here, ()).answer_calls(
        {"exclusive": False, "calls": [{"resource": resource, "verb": "get"}]}, None
    )


@pytest.mark.costly
@pytest.mark.parametrize("resource", ["LinuxFile", "AptSource", "DebianPackage", "SystemdUnit", "CdiSpec"])
def test_what_cannot_be_read_is_neither_kept_nor_given_back(
    hand: InLinux, plan: Plan, made: Path, resource: str
) -> None:
    found = hand.linux_state()
    hand.run(made, "apply")
    dependents = {rule.resource for each in plan.steps for rule in RULES[each.resource].dependents}
    titles = {step.title for step in plan.steps if step.resource == resource}
    assert titles or resource in dependents
    made_of_it = read(hand, resource)
    hand.hidden = (resource,)
    for number in range(2):
        done = hand.run(made, "rollback")
        assert (done.code, outcome(done), done.document["kept"]) == (1, "not all rolled back", [])
        told = done.document["missing"]
        assert titles <= {each["title"] for each in told} != set()
        assert all("Input/output error [5]" in each["why"] for each in told)
        assert done.document["next"] == [
            "Repair what could not be read, then continue the rollback: python3 -I run.py rollback"
        ]
        assert not number or done.document["changed"] == 0
    hand.hidden = ()
    assert read(hand, resource) == made_of_it
    done = hand.run(made, "rollback")
    assert (done.code, outcome(done), done.document["missing"]) == (0, "rolled back", [])
    assert hand.linux_state() == found


def test_there_is_nothing_to_roll_back_before_anything_was_done(hand: InLinux, made: Path) -> None:
    assert refused(hand, made, "rollback") == (2, "UnknownRun")
    killed(hand, made, "apply", 1, "before")
    assert refused(hand, made, "rollback") == (2, "NeverBegun")


def test_one_run_at_a_time(hand: InLinux, made: Path) -> None:
    held = []

    def try_another(_when: str, entry: Any) -> None:
        if entry["n"] == 2:
            held.append(hand.run(made, "rollback").document["error"]["kind"])

    with at_each_line(try_another):
        hand.run(made, "apply")
    assert held == ["Busy", "Busy"]


@pytest.mark.parametrize("there", ["open to all", "a link", "of another"])
def test_a_folder_of_journals_that_others_made_is_refused(hand: InLinux, made: Path, there: str) -> None:
    hand.journals.mkdir(mode=0o777 if there == "open to all" else 0o700)
    if there == "open to all":
        hand.journals.chmod(0o777)
    if there == "of another":
        os.chown(hand.journals, 65534, 65534)
    if there == "a link":
        hand.journals.rename(hand.journals.with_name("elsewhere"))
        hand.journals.symlink_to(hand.journals.with_name("elsewhere"))
    assert refused(hand, made)[0] == 1
    assert list(hand.journals.iterdir()) == []


@pytest.mark.costly
@pytest.mark.parametrize(("old", "new"), [(b'"0644"', b'"0666"'), (b'"hash":', b'"hsah":'), (b'"n":', b'"n" :')])
def test_an_edited_journal_is_refused_either_way(hand: InLinux, made: Path, old: bytes, new: bytes) -> None:
    killed(hand, made, "apply", 8)
    (journal,) = hand.journals.glob("*.jsonl")
    before, _, after = journal.read_bytes().rpartition(old)
    journal.write_bytes(before + new + after)
    for command in ("apply", "rollback"):
        assert refused(hand, made, command) == (2, "Damaged")


def test_a_torn_line_is_dropped(hand: InLinux, made: Path) -> None:
    killed(hand, made, "apply", 8)
    (journal,) = hand.journals.glob("*.jsonl")
    journal.write_bytes(journal.read_bytes() + b'{"n":99,"at":"2026-')
    assert outcome(hand.run(made, "apply")) == "applied"
    assert outcome(hand.run(made, "rollback")) == "rolled back"


# ---- the plan and the facts, as editors and other shells leave them


def with_plan(made: Path, text: bytes) -> Path:
    (made / "plan.json").write_bytes(text)
    (made / "SHA256SUMS").write_bytes(sums({name: (made / name).read_bytes() for name in linux_run.FILES}))
    return made


def test_a_plan_with_a_byte_order_mark_is_read(hand: InLinux, made: Path) -> None:
    assert hand.run(with_plan(made, b"\xef\xbb\xbf" + (made / "plan.json").read_bytes()), "verify").code == 4


@pytest.mark.parametrize(("text", "says"), [(b" \n", "is empty"), (b"{", "is no JSON"), (b"[]", "winhost.plan/3")])
def test_what_is_no_plan_is_said_plainly(hand: InLinux, made: Path, text: bytes, says: str) -> None:
    error = hand.run(with_plan(made, text), "apply").document["error"]
    assert (error["kind"], error["exit_code"]) == ("WrongDocument", 2)
    assert says in error["what"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_facts_are_added_to_in_whatever_encoding_a_shell_wrote_them(
    hand: InLinux, made: Path, tmp_path: Path, encoding: str
) -> None:
    hand.facts(made)
    file, whole = tmp_path / "told.json", tmp_path / "whole.json"
    file.write_bytes((tmp_path / "facts.json").read_text("utf-8").encode(encoding))
    assert hand.run(made, "facts", str(file), "-o", str(whole)).code == 0
    assert read_document(whole, Facts).resources == hand.here.facts().resources
    assert refused(hand, made, "facts", str(file), "-o", str(whole)) == (1, "Failure")


def test_facts_of_another_host_are_not_added_to(hand: InLinux, made: Path, tmp_path: Path) -> None:
    hand.facts(made)
    document = json.loads((tmp_path / "facts.json").read_text("utf-8"))
    document["resources"]["WslAccess"][0]["state"]["host_key"] = "ssh-ed25519 AAAAOther"
    other = tmp_path / "other.json"
    other.write_text(json.dumps(document))
    assert refused(hand, made, "facts", str(other)) == (2, "WrongHost")
    other.write_text("{}")
    assert refused(hand, made, "facts", str(other)) == (2, "WrongDocument")


# ---- as it is carried


def test_the_command_writes_a_folder_that_runs(
    hand: InLinux, plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, folder = tmp_path / "plan.json", tmp_path / "bundle"
    file.write_text(write_document(plan))
    assert main(["bundle", str(file), "-o", str(folder)]) == 0
    told = {line.split("  ")[1] for line in (folder / "SHA256SUMS").read_text().splitlines()}
    assert told == {str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file()} - {"SHA256SUMS"}
    assert {name for name in told if name.startswith("linux/")} == {
        f"linux/{name}" for name in ("SHA256SUMS", *linux_run.FILES)
    }
    assert hand.run(folder / "linux", "verify").code == 4
    readme = (folder / "README.md").read_text("utf-8")
    assert all(f"| {step.id} | {step.title} |" in readme for step in plan.steps)
    assert "python3 -I winhost-linux/run.py rollback" in readme


def test_a_plan_that_is_not_about_linux_brings_no_folder_for_it(tmp_path: Path) -> None:
    assert not [name for name in bundle(world(tmp_path).plan()) if name.startswith("linux/")]


def test_what_somebody_installed_since_leaves_the_run_partly_rolled_back_until_it_is_gone(
    hand: InLinux, made: Path
) -> None:
    found = hand.linux_state()
    hand.run(made, "apply")
    packages = hand.here.inside.linux.apt.packages
    packages["docker.io"] = LabPackage("28.2.2")
    done = hand.run(made, "rollback")
    assert (done.code, outcome(done)) == (1, "partly rolled back")
    assert [kept for kept in done.document["kept"] if "for docker.io, which came later" in kept]
    assert any("run.py rollback" in each for each in done.document["next"])
    assert hand.run(made, "apply").code == 0  # it blocks no other run
    del packages["docker.io"]
    while (done := hand.run(made, "rollback")).code == 0:
        assert outcome(done) == "rolled back"
    assert done.document["error"]["kind"] == "UnknownRun"
    assert hand.linux_state() == found


def test_what_a_later_run_changed_waits_for_its_rollback(hand: InLinux, plan: Plan, made: Path) -> None:
    found = hand.linux_state()
    step = next(step for step in plan.steps if step.resource == "LinuxFile" and step.before["text"] is None)
    hand.run(made, "apply")
    assert hand.here.inside.linux.marks
    later = dataclasses.replace(step, before={"text": step.desired["text"]}, desired={"text": "{}\n"})
    mark = mark_of(MarkedRun("gpu-01.20261127-101502", "another", "ana on laptop-7"), later)

    def change(before: object, desired: object, how: object) -> None:
        call = {"resource": step.resource, "verb": "set", "key": dict(step.key)}
        request = {"calls": [{**call, "desired": desired, "expect": before, "how": how}]}
        (answer,) = LabAgent(hand.here, ()).answer_calls(request, None)
        assert answer["ok"]

    change(later.before, later.desired, {"mark": mark})
    done = hand.run(made, "rollback")
    assert (done.code, outcome(done)) == (1, "partly rolled back")
    assert [kept for kept in done.document["kept"] if "since by run gpu-01.20261127-101502 (ana on laptop-7)" in kept]
    first = "as ana on laptop-7: winhost rollback gpu-01.20261127-101502"
    assert done.document["next"] == [f"Roll back the remaining changes: {first}, then python3 -I run.py rollback"]
    assert hand.here.inside.linux.marks[-1] == mark
    change(later.desired, later.before, {})  # as its rollback does
    linux = hand.here.inside.linux
    lines = "".join(f"{each}\n" for each in linux.marks if each != mark)
    linux.write_file("/var/lib/winhost/marks.txt", {"text": lines, "link": None, "mode": "0600", "owner": "root:root"})
    assert outcome(hand.run(made, "rollback")) == "rolled back"
    assert hand.linux_state() == found
    assert hand.here.inside.linux.marks == []


def test_what_somebody_changed_between_the_look_and_the_step_stays_theirs(hand: InLinux, made: Path) -> None:
    """The step is refused, so the run has nothing to undo."""
    path = "/etc/systemd/system/winhost-cdi.path"
    theirs = {"text": "theirs", "link": None, "mode": "0644", "owner": "root:root"}

    def change(when: str, entry: Any) -> None:
        if (when, entry["event"]) == ("after", "begin") and entry["step"]["key"] == {"path": path}:
            hand.here.inside.linux.write_file(path, theirs)

    with at_each_line(change):
        done = hand.run(made, "apply")
    assert (done.code, done.document["error"]["kind"]) == (4, "Drifted")
    done = hand.run(made, "rollback")
    assert [each.partition(": ")[2] for each in done.document["kept"]] == [
        "kept: text, mode, owner changed since by somebody else"
    ]
    assert hand.here.inside.linux.read_file(path) == theirs
