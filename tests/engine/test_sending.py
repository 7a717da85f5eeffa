"""A file beside the plan gets to the host whole or not at all, however often the way there is cut."""

from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.engine.crash import kill
from tests.engine.sending_world import CONTENT, KEY, NAME, PIECES, Sent, nothing, part_of, sent, small_pieces
from tests.engine.world import QUICK
from tests.errors import raises
from tests.rows import each_row
from winhost.connect.wire_errors import SessionDropped, TimedOut
from winhost.core.steps import Step
from winhost.engine import uploads
from winhost.lab.contract.agent_answers import InjectedFault
from winhost.lab.physics.windows_errors import agent_error


@pytest.fixture(autouse=True)
def _small_pieces() -> Iterator[None]:
    with small_pieces():
        yield


@pytest.fixture
def here(tmp_path: Path) -> Sent:
    return sent(tmp_path)


def assert_gives_back(here: Sent, found: dict[str, Any], at: object = "") -> None:
    outcome = here.rollback()
    assert (outcome.outcome, outcome.kept) == ("rolled back", ()), at
    assert here.state() == found, at


def test_it_is_sent_used_verified_and_taken_away_again(here: Sent) -> None:
    found = here.state()
    assert here.apply(here.plan()).holds
    assert here.pieces == PIECES
    assert here.files == [part_of(here).removesuffix(".part")]
    assert here.state()["Wsl"][0]["state"]["package"] == KEY["sha256"]
    assert [event.percent for event in here.events if event.kind == "sending"] == [0, 17, 34, 51, 68, 85, 100]
    again = here.plan()
    assert list(again.steps) == []
    assert_gives_back(here, found)


def test_what_is_not_sent_is_not_looked_for(here: Sent) -> None:
    here.apply(here.plan())
    (here.folder / NAME).unlink()
    assert here.apply(here.plan()).outcome == "nothing to do"
    assert here.rollback().holds


# ---- before anything is changed

WRONG = {
    "missing": (lambda file: file.unlink(), "is not there"),
    "a folder": (lambda file: (file.unlink(), file.mkdir()), "is not there, or is no file"),
    "another": (lambda file: file.write_bytes(CONTENT[:-1]), sha256(CONTENT[:-1]).hexdigest()),
}


@pytest.mark.parametrize(("spoil", "said"), WRONG.values(), ids=WRONG)
def test_another_file_is_refused_before_anything_is_changed(
    here: Sent, spoil: Callable[[Path], Any], said: str
) -> None:
    found, plan = here.state(), here.plan()
    spoil(here.folder / NAME)
    with raises("NotBeside") as refused:
        here.apply(plan)
    assert said in refused.value.what
    assert here.state() == found
    assert here.store.runs() == ()


@each_row(
    "name",
    [
        "",
        "..",
        "../wsl.msi",
        "a/b",
        "a\\b",
        "C:\\wsl.msi",
        "/etc/passwd",
        "nul",
        "COM1.msi",
        "wsl.msi.",
        "a\n",
        "x" * 101,
    ],
)
def test_a_hostile_name_is_no_file_beside_the_plan(tmp_path: Path, name: str) -> None:
    key = {**KEY, "source": f"./{name}"}
    step = Step("1", "StagedFile", key, "desired", {"present": False}, {"present": True}, "It", "")
    with raises("NotBeside", match="is no plain name"):
        uploads.check([step], uploads.find_in_folder(tmp_path))


def test_a_name_with_folders_on_the_host_or_an_address_is_not_sent_from_here() -> None:
    for source in ("https://a.example/./wsl.msi", "C:\\a\\./wsl.msi"):
        step = Step(
            "1", "StagedFile", {**KEY, "source": source}, "desired", {"present": False}, {"present": True}, "It", ""
        )
        assert uploads.attachment_of(step) is None


def test_to_take_a_file_away_needs_none() -> None:
    step = Step("1", "StagedFile", KEY, "undo", {"present": True}, {"present": False}, "It", "")
    assert uploads.attachment_of(step) is None


# ---- cut on the way


@pytest.mark.parametrize("after", [False, True], ids=["before the host had it", "after"])
@pytest.mark.parametrize("kind", [SessionDropped, TimedOut])
def test_a_lost_answer_costs_at_most_its_piece(here: Sent, kind: type[SessionDropped | TimedOut], after: bool) -> None:
    here.lose(kind, 0, 3, 5, after=after)
    assert here.apply(here.plan()).holds
    assert here.pieces == PIECES + (0 if after else 3)
    assert len([event for event in here.events if "asking how much arrived" in event.text]) == 3


def test_a_piece_that_is_lost_twice_is_left_to_whoever_resumes(here: Sent) -> None:
    found = here.state()
    here.lose(SessionDropped, 3, 4, after=False)
    with raises("OutOfReach"):
        here.apply(here.plan())
    assert here.state()["StagedFile"] == [{"key": KEY, "state": {"present": None}}]
    assert here.resume().holds
    assert here.pieces == PIECES + 2
    assert_gives_back(here, found)


def killed(folder: Path, piece: int) -> Sent:
    """After the host had this piece."""
    here = sent(folder)
    plan = here.plan()
    kill(here, lambda: here.apply(plan), lambda when, entry: (entry.get("piece"), when) == (piece, "after"))
    return here


def test_the_journal_knows_where_the_files_lie(tmp_path: Path) -> None:
    here = killed(tmp_path, 3)
    here.folder = tmp_path / "elsewhere"
    assert here.resume().holds


def test_who_goes_on_without_the_file_is_told_where_it_should_lie(tmp_path: Path) -> None:
    here = killed(tmp_path, 3)
    (here.folder / NAME).rename(tmp_path / "moved")
    with raises("Halted") as halted:
        here.resume()
    assert str(here.folder / NAME) in halted.value.what
    assert halted.value.exit_code == 1
    assert f"winhost resume {here.run}" in halted.value.hint
    (tmp_path / "moved").rename(here.folder / NAME)
    assert here.resume().holds


def test_to_stop_does_not_wait_for_the_whole_file(here: Sent) -> None:
    found = here.state()
    here.stop = lambda: here.pieces == 3
    with raises("Stopped"):
        here.apply(here.plan())
    assert here.machine.files.length(part_of(here)) == 3 * 512
    here.stop = lambda: False
    assert here.resume().holds
    assert here.pieces == PIECES
    assert_gives_back(here, found)


# ---- what the host has of it

LEFT = {
    "its beginning": (CONTENT[:1100], 4),
    "all of it": (CONTENT, 0),
    "a beginning with an error": (CONTENT[:600] + bytes([CONTENT[600] ^ 1]), PIECES),
    "more than it": (CONTENT + b"?", PIECES),
    "nothing": (b"", PIECES),
}


@pytest.mark.parametrize(("left", "pieces"), LEFT.values(), ids=LEFT)
def test_what_lies_there_is_used_only_if_it_is_a_beginning(here: Sent, left: bytes, pieces: int) -> None:
    here.machine.software.write_registry(f"part {KEY['sha256']}-{NAME}", KEY["source"])
    here.machine.files.append(part_of(here), left, restart=True)
    assert here.apply(here.plan()).holds
    assert here.pieces == pieces
    assert here.rollback().holds
    assert here.state()["StagedFile"] == []
    assert here.files == []


def test_a_host_that_loses_pieces_ends_the_step(here: Sent) -> None:
    found = here.state()

    def take_away(number: int) -> None:
        here.machine.files.remove(part_of(here))

    here.before = take_away
    with raises("StepFailed", match="0 bytes were received"):
        here.apply(here.plan())
    here.before = nothing
    assert_gives_back(here, found)


def test_a_disk_that_gets_full_ends_the_step_and_what_came_stays_for_who_goes_on(here: Sent) -> None:
    found = here.state()
    full = agent_error("Full", "WriteError", "There is not enough space on the disk.")

    def fill(number: int) -> None:
        if number == 2:
            here.answers.faults.add(InjectedFault("StagedFile", "send", full))

    here.before = fill
    with raises("StepFailed", match="not enough space"):
        here.apply(here.plan())
    assert here.resume().holds
    assert here.pieces == PIECES + 1
    assert_gives_back(here, found)


def test_a_file_that_changes_while_it_is_sent_is_not_used(here: Sent) -> None:
    def change(number: int) -> None:
        if number == 2:
            (here.folder / NAME).write_bytes(b"?" * len(CONTENT))

    here.before = change
    with raises("StepFailed", match=KEY["sha256"]):
        here.apply(here.plan())
    assert here.files == []
    here.before = nothing
    (here.folder / NAME).write_bytes(CONTENT)
    assert here.resume().holds


def test_a_file_that_gets_shorter_while_it_is_sent_is_told(here: Sent) -> None:
    found = here.state()

    def cut(number: int) -> None:
        (here.folder / NAME).write_bytes(CONTENT[:512])

    here.after = cut
    with raises("Halted", match="got shorter"):
        here.apply(here.plan())
    assert_gives_back(here, found)


def test_somebody_s_file_of_before_the_run_is_drift(here: Sent) -> None:
    plan = here.plan()
    here.machine.software.write_registry(f"part {KEY['sha256']}-{NAME}", KEY["source"])
    here.machine.files.append(part_of(here), CONTENT[:9], restart=True)
    with pytest.raises(Exception, match="present"):
        here.apply(plan)
    assert here.pieces == 0


def test_patience_is_of_each_loss_and_not_of_the_whole(here: Sent) -> None:
    here.lose(SessionDropped, *range(0, 2 * PIECES, 2), after=False)
    assert here.apply(here.plan()).holds
    assert here.pieces == 2 * PIECES
    assert QUICK.deadline < 60
