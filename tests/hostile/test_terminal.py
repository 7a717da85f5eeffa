"""Whatever a host or a file says, a terminal shows it: it cannot move the cursor, hide text or begin a line."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Line, line
from tests.engine.world import PLAYBOOK, World
from tests.hostile.hosts import HOST, TAKEN, called, with_everything, with_taken
from winhost.cli.change.running import show_outcome
from winhost.cli.envelope import print_json
from winhost.cli.look.detect import show_facts
from winhost.cli.output import error_text
from winhost.cli.plan.show import PlannedHost, show_planned
from winhost.cli.tables import table
from winhost.cli.watch import show_progress
from winhost.engine.planning import check_plan, make_plan
from winhost.engine.progress import ProgressEvent
from winhost.engine.run_context import Outcome
from winhost.engine.store import Store
from winhost.engine.verify import verify_plan
from winhost.model.documents import plain, read_document, write_document
from winhost.model.errors import NotOnHost, WinhostError, visible, visible_json
from winhost.model.facts import Facts
from winhost.model.plan import Plan, PlanRequest
from winhost.paths.playbook import parse_request
from winhost.resources.host import HostFacts

__all__ = ["line"]

MARK = "\x1b]0;\x9bA\u202eB\r\nwinhost: C\u2028D\x07"
"""Everything at once: a title, a control of eight bits, a reversal, line ends of two kinds, and a false line."""


def assert_plain(text: str) -> None:
    """Nothing but what can be seen, in lines; and no line from its left edge that a value has begun."""
    for each in text.split("\n"):
        assert each.isprintable(), ascii(each)
        assert not each.startswith("winhost: C"), each


# ---- each name, in what is shown of a host


@pytest.mark.costly
@with_taken
def test_facts_verdicts_plan_progress_and_outcome_show_a_name_and_obey_none_of_it(value: str, line: Line) -> None:
    facts = HostFacts(called(value).facts())
    Path("facts.json").write_text(write_document(facts.document), encoding="utf-8")
    for words in (("assess", "--explain"), ("plan", "--vm", value)):
        said = line(*words, "--facts", "facts.json")
        assert_plain(said.out + said.err)
        # A table folds what is too long for it, between words.
        assert all(word in said.out for word in visible(value)[:40].split())

    plan = make_plan(facts, parse_request(PlanRequest("dda", PLAYBOOK, value)))
    show_facts(facts.document)
    show_outcome(Outcome("run", HOST, "differs", 0, tuple(verify_plan(check_plan(plan), facts)), (f"kept of {value}",)))
    told = show_progress()
    for step in plan.steps:
        for kind in ("step", "done"):
            told(ProgressEvent(HOST, kind, step.title, step, 1, 2))
    told(ProgressEvent(HOST, "failed", value))
    for text in line.capture.readouterr():
        assert_plain(text)
        assert visible(value)[:40].strip() in text


# ---- every text of a document at once


def marked(value: Any, name: str = "") -> Any:
    """A document whose free texts end in MARK. What is a word of ours stays, or nothing could be read."""
    if isinstance(value, dict):
        return {key: each if key in OURS else marked(each, key) for key, each in value.items()}
    if isinstance(value, list):
        return [marked(each, name) for each in value]
    return value + MARK if isinstance(value, str) and name not in WORDS else value


WORDS = {
    "schema", "origin", "machine_id", "vm", "location", "device", "role", "resource", "path", "power", "risks", "asks",
    "may_need", "place", "kind", "security_properties", "installation_type", "valid_counts", "until", "playbook",
    "edition_id", "architecture", "devices", "read_at", "facts_read_at", "winhost",
    "address", "peers",
}  # fmt: skip


OURS = {"playbook", "desired"}  # a plan is read only where what it wants is possible


@pytest.fixture
def files(line: Line) -> tuple[Path, Path]:
    """Facts and a plan in which every free text is hostile."""
    facts = line.facts("server2025-role-installed")
    assert line("plan", "--facts", facts, "--vm", "llm-01", "-o", "plan.json").code == 0
    written = []
    for name in (facts, Path("plan.json")):
        document = marked(json.loads(Path(name).read_text("utf-8")))
        written.append(Path(f"marked-{Path(name).name}"))
        written[-1].write_text(json.dumps(document), encoding="ascii")
    return written[0], written[1]


def test_commands_on_hostile_files_show_them_and_obey_none_of_it(line: Line, files: tuple[Path, Path]) -> None:
    facts, plan = files
    saw = 0
    for words, codes in (
        (("assess", "--facts", facts, "--explain"), {0, 3}),
        (("plan", "--facts", facts, "--vm", "llm-01" + MARK, "--allow-unverified"), {0, 3}),
        (("plan", "--facts", facts, "--path", "dda"), {2}),
        (("plan", "--facts", facts, "--vm", "llm-1" + MARK), {2}),
        (("plan", "--facts", facts, "--vm", "llm-01", "--gpu", MARK), {2}),
        (("verify", plan, "--facts", facts), {0, 4}),
        (("apply", plan, "--yes"), {2}),
        (("detect", MARK), {2}),
        (("runs", MARK), {2}),
        (("explain", MARK), {1}),
        (("explain", f"{MARK} 0x80070569"), {0}),
        (("explain", "0x80370102", "--facts", facts), {0}),
        (("assess", "--facts", MARK), {2}),
        (("assess", "--facts", facts, "--path", MARK), {2}),
        (("schema", MARK), {2}),
        ((MARK,), {2}),
    ):
        said = line(*words)
        assert said.code in codes, (words, said)
        assert_plain(said.out)
        assert_plain(said.err)
        saw += visible(MARK)[:10] in said.out + said.err
    assert saw >= 12


def test_what_is_shown_of_marked_documents_is_plain(line: Line, files: tuple[Path, Path]) -> None:
    show_facts(read_document(files[0], Facts), Path("/x" + MARK))
    plan = read_document(files[1], Plan)
    show_planned(PlannedHost(plan.host, "dda", None, None, "/x" + MARK, plan), details=False, wide=False)
    shown = line.capture.readouterr().out
    assert_plain(shown)
    # Nearly every line has a text from the files, or the marks did not get where they should.
    assert shown.count("C\\u2028D") > 20


# ---- runs


def test_the_list_of_runs_shows_names_and_obeys_none_of_them(line: Line) -> None:
    store = Store()
    for number, value in enumerate([MARK, TAKEN["escape-sequence"], TAKEN["carriage-return"]]):
        world = World(called(value), store, HOST)
        world.apply(world.plan(value))
        # A journal that somebody else has put there.
        (store.folder / "runs" / f"{number}\x1b]0;\u202e.20260101-000000.jsonl").write_bytes(b"{}\n")
    assert_plain(line("runs").out)
    for run in store.runs():
        said = line("runs", run)
        assert_plain(said.out + said.err)


# ---- errors and tables


# All that an error can say, hostile.
ODD = WinhostError(
    "Odd",
    what=f"it is {MARK}",
    meaning=f"first\nsecond \x1b[2J{TAKEN['control-of-eight-bits']}",
    hint=f"look at {TAKEN['right-to-left-override']}",
)


def test_an_error_is_as_many_lines_as_it_has_and_no_more() -> None:
    text = error_text(ODD)
    assert_plain(text)
    assert len(text.split("\n")) == 4


@with_everything
def test_a_vm_that_is_not_there_is_named_in_one_line(value: str) -> None:
    error = NotOnHost("gpu-01", "VM", value, {"guid": "llm-01"})
    assert_plain(error_text(error))
    assert f"no VM '{visible(value)}'" in error_text(error)


def test_a_table_has_a_row_for_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    table(("a", "b"), [("x", MARK), (MARK, "y")])
    shown = capsys.readouterr().out
    assert_plain(shown)
    assert len(shown.splitlines()) == 4


# ---- JSON


@with_everything
def test_a_document_is_plain_and_reads_back_as_it_was(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    document = {"name": value, "Größe": [value, 1, None]}
    print_json(document, indent=2)
    print_json(document)
    shown = capsys.readouterr().out
    assert_plain(shown)
    whole, lines = shown[: shown.rindex("\n", 0, -1)], shown.splitlines()
    assert json.loads(whole) == json.loads(lines[-1]) == document
    assert "Größe" in shown
    assert json.loads(write_document(document)) == json.loads(visible_json(plain(document))) == document
