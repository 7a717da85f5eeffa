"""Two bundles with a restart between them: as one apply, straight, abandoned at any line, and back."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.engine.world import world
from tests.powershell.bundle_cases import journals_of, left_open, person, plan_from
from tests.powershell.bundles import (
    RESTART,
    ByHand,
    Moment,
    Person,
    broken,
    filmed,
    restart,
    unpack,
)
from tests.powershell.twins import machine
from winhost.cli import run
from winhost.model.documents import read_document
from winhost.model.plan import Plan

__all__ = ["person"]


TORN = b'{"n":99,"at":"2026-'


@dataclass
class Story:
    """found → first bundle, restart, between → second bundle → made; and everything back. Each with its moments."""

    first: Path
    second: Path
    found: Any
    between: Any
    made: Any
    there: dict[str, list[Moment]]
    back: dict[str, list[Moment]]
    end: Any

    def bundle(self, stage: str) -> Path:
        return self.first if stage == "first" else self.second

    def goal(self, stage: str) -> Any:
        return self.between if stage == "first" else self.made

    def start(self, stage: str) -> Any:
        return self.found if stage == "first" else self.between


@pytest.fixture(scope="module")
def story(person: Person, tmp_path_factory: pytest.TempPathFactory) -> Story:
    folder = tmp_path_factory.mktemp("story")
    here = ByHand(person, machine("server2025-3gpu"), folder / "journals")
    found = here.state()
    reader = unpack(plan_from(here.machine.facts()), folder / "reader")
    first = unpack(plan_from(here.facts(reader)), folder / "first", watched=True)
    there: dict[str, list[Moment]] = {}
    back: dict[str, list[Moment]] = {}
    with filmed(here, folder / "there-first") as there["first"]:
        assert here.through(here.apply, first).said["outcome"] == "applied"
    between = here.state()
    second = unpack(plan_from(here.facts(reader)), folder / "second", watched=True)
    with filmed(here, folder / "there-second") as there["second"]:
        assert here.apply(second).said["outcome"] == "applied"
    made = here.state()
    with filmed(here, folder / "back-second") as back["second"]:
        assert here.rollback(second).said["outcome"] == "rolled back"
    with filmed(here, folder / "back-first") as back["first"]:
        assert here.through(here.rollback, first).said["outcome"] == "rolled back"
    return Story(first, second, found, between, made, there, back, here.state())


def moments(films: dict[str, list[Moment]], folder: Path) -> Iterator[tuple[str, ByHand, str]]:
    """Each moment as a host of its own: the stage, the host, and which moment it is."""
    for stage, film in films.items():
        for moment in film:
            yield stage, moment.here.copy(folder / stage / moment.name), moment.name


def test_two_bundles_end_where_one_apply_ends(story: Story, tmp_path: Path) -> None:
    other = world(tmp_path)
    assert other.state() == story.found
    assert other.apply(other.plan()).holds
    assert other.state() == story.made
    assert other.rollback().outcome == "rolled back"
    assert other.state() == story.end == story.found
    assert len(story.there["first"]) == 9
    assert len(story.there["second"]) > 30


def test_abandoned_at_any_line_and_run_again_it_ends_where_it_would_have_ended(story: Story, tmp_path: Path) -> None:
    for stage, here, name in moments(story.there, tmp_path):
        for journal in here.journals.glob("*.jsonl"):
            journal.write_bytes(journal.read_bytes() + TORN)  # a line that was being written
        assert here.through(here.apply, story.bundle(stage)).said["outcome"] == "applied", (stage, name)
        assert here.state() == story.goal(stage), (stage, name)


def test_abandoned_at_any_line_and_rolled_back_it_ends_where_it_began(story: Story, tmp_path: Path) -> None:
    for stage, here, name in moments(story.there, tmp_path):
        done = here.through(here.rollback, story.bundle(stage))
        if name.endswith("before-run"):
            assert (done.code, done.refused) == (2, "NeverBegun"), (stage, name)
        else:
            assert done.said["outcome"] == "rolled back", (stage, name)
        assert here.state() == story.start(stage), (stage, name)


def test_a_rollback_abandoned_at_any_line_and_run_again_ends_where_it_would_have_ended(
    story: Story, tmp_path: Path
) -> None:
    for stage, here, name in moments(story.back, tmp_path):
        done = here.through(here.rollback, story.bundle(stage))
        # What was abandoned after its last line has nothing left to undo.
        assert done.code == 0, (stage, name, done.output)
        assert here.state() == story.start(stage), (stage, name)


def test_the_first_bundle_is_not_rolled_back_from_under_the_second(story: Story) -> None:
    here = story.there["second"][-1].here
    made = here.state()
    refused = here.rollback(story.first)
    assert (refused.code, refused.refused) == (2, "LaterRun")
    assert here.state() == made


def test_a_journal_of_another_version_is_refused_by_name(story: Story) -> None:
    """Its lines could tell of a run that stands, so nothing is undone beside it."""
    here = story.there["first"][-1].here
    later = here.journals / "20151c8dd75b7a82.29991122-161616-524.jsonl"
    later.write_bytes(b'{"n":1,"event":"run","schema":"winhost.bundle-journal/1","noun":"Vm"}\n')
    refused = here.rollback(story.first)
    later.unlink()
    assert (refused.code, refused.refused) == (2, "OtherVersion")


@pytest.mark.parametrize(
    ("moment", "old", "new"),
    [
        ("after-begin", b'"turn-off"', b'"shutdown"'),
        ("before-stage", b'"restart":false', b'"restart":true'),  # in the last line, which no other one follows
        ("before-stage", b'"hash":', b'"hsah":'),
        ("before-stage", b'"n":', b'"n" :'),
    ],
)
def test_an_edited_journal_is_refused_either_way(
    story: Story, tmp_path: Path, moment: str, old: bytes, new: bytes
) -> None:
    *_, last = (each for each in story.there["second"] if each.name.endswith(moment))
    here = last.here.copy(tmp_path / "journals")
    (journal,) = journals_of(here, story.second)
    before, _, after = journal.read_bytes().rpartition(old)
    journal.write_bytes(before + new + after)
    found = here.state()
    for script in (here.apply, here.rollback):
        refused = script(story.second)
        assert (refused.code, refused.refused) == (2, "Damaged")
    assert here.state() == found


@pytest.mark.parametrize("text", [b"", TORN])
def test_a_journal_without_a_whole_line_stands_in_nobodys_way(story: Story, tmp_path: Path, text: bytes) -> None:
    here = story.there["second"][0].here.copy(tmp_path / "journals")
    (never,) = (path for path in here.journals.glob("*.jsonl") if not path.read_bytes())
    never.write_bytes(text)
    found = here.state()
    refused = here.rollback(story.second)
    assert (refused.code, refused.refused) == (2, "NeverBegun")
    assert here.state() == found
    assert here.apply(story.second).said["outcome"] == "applied"
    assert here.rollback(story.second).said["outcome"] == "rolled back"
    assert here.through(here.rollback, story.first).said["outcome"] == "rolled back"
    assert here.state() == story.found
    assert never.read_bytes() == text


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_journal_that_an_editor_saved_otherwise_is_refused(story: Story, tmp_path: Path, encoding: str) -> None:
    here = story.there["second"][-1].here.copy(tmp_path / "journals")
    (journal,) = journals_of(here, story.second)
    saved = journal.read_text("ascii").encode(encoding)
    journal.write_bytes(saved)
    for script in (here.apply, here.rollback):
        assert script(story.second).refused == "Damaged"
    assert journal.read_bytes() == saved


def test_a_run_that_goes_back_is_not_gone_on_with(story: Story) -> None:
    here = story.back["second"][5].here
    found = here.state()
    refused = here.apply(story.second)
    assert (refused.code, refused.refused) == (2, "OneWay")
    assert here.state() == found


# ---- the restart, and what the stages have to do with each other


def test_the_role_does_not_go_while_what_may_rest_on_it_cannot_be_read(story: Story, tmp_path: Path) -> None:
    here = story.back["first"][0].here.copy(tmp_path / "journals")
    with broken("Get-VMSwitch"):
        done = here.rollback(story.first)
    left_open(done, "external switches: no [OperationFailed]")
    assert [lacks["resource"] for lacks in done.said["missing"]] == ["HyperVRole"]
    assert here.state() == story.between
    assert here.through(here.rollback, story.first).said["outcome"] == "rolled back"
    assert here.state() == story.found


def test_a_restart_is_left_to_the_person(story: Story, tmp_path: Path) -> None:
    here = next(m.here for m in story.there["first"] if m.name.endswith("before-restarted"))
    here = here.copy(tmp_path / "journals")
    here.machine.boot -= 1  # it was not restarted after all
    done = here.apply(story.first, accept=["restart"])
    assert (done.code, here.machine.tasks) == (RESTART, {})
    assert done.said["next"] == [r"Restart this host, then go on: .\Apply.ps1 -Accept restart"]


def test_with_consent_it_goes_on_by_itself_once(person: Person, tmp_path: Path, story: Story) -> None:
    here = ByHand(person, machine("server2025-3gpu"), tmp_path / "journals")
    assert here.apply(story.first, "-ContinueAfterRestart", accept=["restart"]).code == RESTART
    here.machine.wait_until_ready()
    assert here.machine.boot == 2
    ((name, task),) = here.machine.tasks.items()
    assert task["Principal"] == "S-1-5-18 ServiceAccount Highest"
    (words,) = re.findall(r"powershell\.exe (-NoProfile .*)", task["Action"])
    (copied,) = re.findall(r'-File "([^"]+)"', words)
    assert Path(copied).parent == here.journals / name.removeprefix("winhost-")
    assert "-ContinueAfterRestart" not in words
    (given,) = re.findall(r'-File "[^"]+" (.*)', words)
    assert person.run(here.machine, Path(copied), given).code == 0
    assert here.machine.tasks == {}
    (result,) = here.journals.glob("*.result.json")
    assert json.loads(result.read_text())["outcome"] == "applied"
    assert here.state() == story.between
    assert here.apply(story.first).said["outcome"] == "nothing to do"  # the copy is there still, and no task at all


def test_nothing_is_read_before_windows_is_ready(person: Person, tmp_path: Path, story: Story) -> None:
    here = ByHand(person, machine("server2025-3gpu"), tmp_path / "journals")
    here.apply(story.first)
    restart(here.machine)
    here.machine._servicing = True
    late = here.apply(story.first)
    assert (late.code, late.refused) == (1, "NotReady")
    here.machine._servicing = False
    assert here.apply(story.first).said["outcome"] == "applied"


# ---- a host that winhost never reaches


def test_the_air_gapped_loop_closes(
    person: Person, story: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    here = ByHand(person, machine("server2025-3gpu"), tmp_path / "journals")
    for number in ("1", "2"):
        facts, plan, folder = (f"{name}-{number}" for name in ("facts", "plan", "bundle"))
        assert (
            person.run(here.machine, story.first / "Facts.ps1", "-Name", "away", "-OutFile", absolute(facts)).code == 0
        )
        assert run(["plan", "--facts", facts, "--vm", "llm-01", "-o", plan]) == 0
        assert run(["bundle", plan, "-o", folder]) == 0
        made = unpack(read_document(Path(folder, "plan.json"), Plan), tmp_path / f"made-{number}")
        assert (made / "plan.json").read_bytes() == Path(folder, "plan.json").read_bytes() == Path(plan).read_bytes()
        assert here.through(here.apply, made).said["host"] == "away"
    assert person.run(here.machine, story.first / "Facts.ps1", "-OutFile", absolute("end")).code == 0
    assert run(["verify", "plan-2", "--facts", "end"]) == 0
    assert run(["verify", "plan-2", "--facts", "facts-2"]) == 4
    assert here.state() == story.made


def absolute(name: str) -> str:
    return f"'{Path.cwd() / name}'"
