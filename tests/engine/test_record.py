"""What a journal tells is believed only where a run can have written it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.world import world
from tests.errors import raises
from tests.rows import each_row
from winhost.core.journal_lines import RawEvent
from winhost.engine.journal import Journal, read_journal
from winhost.engine.run_state import RunNeverBegan, replay

Entries = list[dict[str, Any]]


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> list[RawEvent]:
    here = world(tmp_path_factory.mktemp("world"), "server2025-role-installed")
    here.apply(here.plan())
    return read_journal(here.store.path(here.run))


def forged(path: Path, entries: Entries) -> list[RawEvent]:
    """The same with hashes that are right, as somebody who knows how writes it."""
    journal = Journal(path)
    for entry in entries:
        journal.write(**{name: value for name, value in entry.items() if name not in ("n", "at", "previous", "hash")})
    return read_journal(path)


def changed(line: int, **fields: Any) -> Callable[[Entries], Entries]:
    return lambda entries: [*entries[: line - 1], {**entries[line - 1], **fields}, *entries[line:]]


def in_step(**fields: Any) -> Callable[[Entries], Entries]:
    return lambda entries: changed(2, step={**entries[1]["step"], **fields})(entries)


@each_row(
    ("forge", "line", "why"),
    [
        (changed(3, event="ended"), 3, "ended"),
        (changed(3, event=["end"]), 3, "event"),
        (changed(3, after="off"), 3, "after"),
        (changed(1, plan={"host": "gpu-03"}), 1, "plan.machine_id"),
        (changed(1, accepted=None), 1, "accepted"),
        (lambda lines: changed(1, plan={**lines[0]["plan"], "stages": []})(lines), 1, "no stage"),
        (lambda lines: lines[1:], 1, "does not begin with the plan"),
        (lambda lines: [lines[0], *lines], 2, "a second beginning"),
        (lambda lines: [lines[0], *lines[2:]], 2, "ends what was not begun"),
        (in_step(resource="Format-Volume"), 2, "no resource Format-Volume"),
        (in_step(desired={"letter": "C"}), 2, "cannot set letter"),
        (in_step(before={}), 2, "what it began from"),
        (changed(2, found={}), 2, "what it began from"),
        (changed(2, found=None), 2, "found"),
        (
            changed(25, event="dependents", resources=[{"resource": "StagedFile", "key": {}, "users": []}]),
            25,
            "not begun",
        ),
        (changed(25, event="restored", resources=[{"resource": "StagedFile", "key": {}}]), 25, "not begun"),
        (changed(26, outcome="perhaps"), 26, "outcome"),
    ],
)
def test_a_line_that_no_run_has_written_is_damage(
    tmp_path: Path, entries: list[RawEvent], forge: Callable[[Entries], Entries], line: int, why: str
) -> None:
    lines = forged(tmp_path / "j.jsonl", forge([dict(entry) for entry in entries]))
    with raises("Damaged") as damaged:
        replay("gpu-03.20261121-101502", lines)
    assert f":{line}: the journal is damaged: " in damaged.value.what
    assert why in damaged.value.what


def test_what_a_run_has_written_is_no_damage(tmp_path: Path, entries: list[RawEvent]) -> None:
    assert replay("r", forged(tmp_path / "j.jsonl", [dict(entry) for entry in entries])).outcome == "applied"


def test_a_journal_without_a_line_was_begun_and_did_nothing() -> None:
    with pytest.raises(RunNeverBegan) as never:
        replay("gpu-03.20261121-101502", [])
    assert "nothing was changed" in never.value.meaning
