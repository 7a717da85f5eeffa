"""Output to a pipe without a reader, a full disk, a closed stream, an old code page, and a terminal."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Line
from tests.cli.process import UNHURRIED
from tests.processes import PATIENCE_S, started
from winhost.cli.output import say
from winhost.cli.tables import table
from winhost.cli.terminal import PIPE_CLOSED
from winhost.cli.watch import Watch
from winhost.engine.progress import ProgressEvent
from winhost.model.documents import read_document
from winhost.model.plan import Plan

pytestmark = pytest.mark.real

posix = pytest.mark.skipif(os.name == "nt", reason="Windows has no /dev/full and no pseudo terminal")
old_pages = pytest.mark.parametrize("page", ["cp1252", "cp850"])


@pytest.fixture
def facts(line: Line) -> Path:
    return line.facts("server2025-role-installed")


def winhost(*words: object, stdout: Any = subprocess.PIPE, **variables: str) -> subprocess.CompletedProcess[bytes]:
    command = [*UNHURRIED, *map(str, words)]
    variables = {**os.environ, "PYTHONUTF8": "0", **variables}
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, env=variables, timeout=PATIENCE_S)


# ---- nobody reads, nothing takes it


@pytest.mark.parametrize(
    ("words", "unbuffered"),
    [
        (("--help",), ""),
        (("lab", "list"), "1"),
        (("explain", "--list", "--json"), ""),
        (("runs",), "1"),
        (("assess", "--facts", "FACTS"), ""),
        (("assess", "--facts", "FACTS"), "1"),
    ],
)
def test_a_reader_who_has_enough_ends_us_quietly(facts: Path, words: tuple[str, ...], unbuffered: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as nobody:
        done = winhost(
            *(word.replace("FACTS", str(facts)) for word in words), stdout=nobody, PYTHONUNBUFFERED=unbuffered
        )
    assert (done.returncode, done.stderr) == (PIPE_CLOSED, b"")


def test_a_reader_who_reads_all_hears_the_verdict(facts: Path) -> None:
    assert winhost("assess", "--facts", facts, "--path", "dda").returncode == 0


@posix
@pytest.mark.parametrize(
    ("words", "unbuffered"), [(("lab", "list"), ""), (("lab", "list"), "1"), (("runs",), ""), (("runs", "--json"), "1")]
)
def test_a_full_disk_is_one_sentence(line: Line, words: tuple[str, ...], unbuffered: str) -> None:
    with Path("/dev/full").open("wb") as full:
        done = winhost(*words, stdout=full, PYTHONUNBUFFERED=unbuffered)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [b"error: the operating system refused: No space left on device"]


@posix
def test_a_closed_stdout_is_nobody_who_wants_to_hear(facts: Path) -> None:
    for form in ((), ("--json",)):
        words = ["assess", "--facts", str(facts), *form]
        done = subprocess.run(
            ["sh", "-c", 'exec "$@" >&-', "sh", *UNHURRIED, *words], capture_output=True, timeout=PATIENCE_S
        )
        assert (done.returncode, done.stderr) == (0, b"")


@posix
@pytest.mark.parametrize("words", [("up",), ("chat",), ("explain",), ("lint", "serve", "-"), ("down",)])
def test_a_closed_stdin_is_nobody_who_answers(line: Line, words: tuple[str, ...]) -> None:
    command = ["sh", "-c", 'exec "$@" <&-', "sh", *UNHURRIED, *words]
    closed = subprocess.run(command, capture_output=True, timeout=PATIENCE_S)
    empty = subprocess.run([*UNHURRIED, *words], stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE_S)
    assert (closed.returncode, closed.stdout, closed.stderr) == (empty.returncode, empty.stdout, empty.stderr)
    assert b"Traceback" not in closed.stderr


# ---- old code pages


@old_pages
def test_an_old_code_page_gets_words_for_what_it_lacks(facts: Path, page: str, tmp_path: Path) -> None:
    for words in (
        ("assess",),
        ("plan", "--vm", "llm-01", "-o", tmp_path / "plan.json"),
        ("verify", tmp_path / "plan.json", "--details"),
    ):
        done = winhost(*words, "--facts", facts, PYTHONIOENCODING=page)
        assert done.stderr == b""
        assert "\\u" not in done.stdout.decode(page)
    assert "+ " in done.stdout.decode(page)  # a tick, in ASCII
    assert "host-enabled -> assigned" in winhost(
        "plan", "--vm", "llm-01", "--facts", facts, PYTHONIOENCODING=page
    ).stdout.decode(page)


@old_pages
def test_what_else_a_code_page_lacks_is_written_as_its_escape(line: Line, page: str) -> None:
    done = winhost("explain", "日本", PYTHONIOENCODING=page)
    assert done.returncode == 2
    assert b"\\u65e5\\u672c" in done.stderr


@old_pages
def test_a_document_reads_the_same_from_every_code_page(facts: Path, page: str) -> None:
    words = ("assess", "--facts", facts, "--json")  # a plan says when it was made
    old, new = winhost(*words, PYTHONIOENCODING=page), winhost(*words, PYTHONIOENCODING="utf-8")
    assert old.stdout.isascii()
    assert json.loads(old.stdout) == json.loads(new.stdout)
    (wrong,) = json.loads(winhost("diff", "ü", "ü", "--json", PYTHONIOENCODING=page).stdout)["results"]
    assert wrong["error"]["what"].startswith("ü:")


# ---- terminals


def on_terminal(columns: int, *words: object, **variables: str) -> str:
    """Return what a terminal with this number of columns gets."""
    import pty

    main, ours = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns), **variables}
    command = [*UNHURRIED, *map(str, words)]
    with started(command, stdout=ours, stderr=ours, stdin=ours, env=environment):
        os.close(ours)
        got = b""
        while chunk := _chunk(main):
            got += chunk
    os.close(main)
    return got.decode().replace("\r\n", "\n")


def _chunk(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # the other end is closed
        return b""


@posix
@pytest.mark.parametrize("no_color", ["", "1"])
def test_no_color_means_no_escape_at_all(facts: Path, no_color: str) -> None:
    shown = on_terminal(200, "assess", "--facts", facts, NO_COLOR=no_color)
    assert ("\x1b[" in shown) == (no_color == "")


@posix
@pytest.mark.parametrize(
    ("variables", "coloured"),
    [
        ({"TERM": "dumb"}, False),
        ({"TERM": "dumb", "FORCE_COLOR": "1"}, True),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
    ],
)
def test_a_dumb_terminal_is_plain_and_whoever_wants_no_colour_has_the_last_word(
    facts: Path, variables: dict[str, str], coloured: bool
) -> None:
    shown = on_terminal(200, "assess", "--facts", facts, **variables)
    assert ("\x1b[" in shown) == coloured


@pytest.mark.parametrize(
    ("variables", "coloured"), [({}, False), ({"FORCE_COLOR": "1"}, True), ({"FORCE_COLOR": ""}, False)]
)
def test_a_pipe_gets_colours_only_where_they_are_asked_for(
    facts: Path, variables: dict[str, str], coloured: bool
) -> None:
    shown = winhost("assess", "--facts", facts, **variables).stdout
    assert (b"\x1b[" in shown) == coloured
    assert (b"\x1b[32msupported" in shown) == coloured  # in the table, which another library draws
    assert b"\x1b" not in winhost("assess", "--facts", facts, "--json", **variables).stdout


@posix
@pytest.mark.parametrize("columns", [80, 200])
def test_a_terminal_of_any_width_breaks_no_word(facts: Path, columns: int) -> None:
    plain = winhost("assess", "--facts", facts, "--explain", PYTHONIOENCODING="utf-8").stdout.decode()
    for words in (("assess", "--explain"), ("plan", "--vm", "llm-01")):
        shown = on_terminal(columns, *words, "--facts", facts, NO_COLOR="1")
        lines = [each for each in shown.splitlines() if not each.startswith("  winhost ")]  # which are copied whole
        assert max(map(len, lines)) <= columns
    assert "AcsCompatibleUpHierarchy" in plain
    shown = on_terminal(columns, "assess", "--explain", "--facts", facts, NO_COLOR="1")
    body, rest = plain.split("\n\n", 1)[1], shown.split("\n\n", 1)[1]
    assert rest.split() == body.split()


def narrow(monkeypatch: pytest.MonkeyPatch, columns: int = 20) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)


def test_prose_keeps_its_indent_in_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow(monkeypatch)
    say("  a cat sat on the mat and slept", hang=2)
    assert capsys.readouterr().out == "  a cat sat on the\n    mat and slept\n"


def test_a_command_at_the_end_of_a_sentence_can_be_copied_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow(monkeypatch)
    command = "winhost resume gpu-01.20261121-101502 --accept vm-stop"
    say(f"  Go on: {command}", hang=2)
    assert capsys.readouterr().out == f"  Go on:\n    {command}\n"


ADDRESS = "https://example.test/a/long/address/of/something"


@pytest.mark.parametrize("columns", [20, 40])
def test_where_a_table_is_too_narrow_for_a_word_its_rows_are_paragraphs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    narrow(monkeypatch, columns)
    table(("vm", "state", "source"), [("database", "", ADDRESS)])
    out = capsys.readouterr().out
    assert out.startswith(" vm database\n")
    assert ADDRESS in out
    assert "state" not in out  # it has none


def test_a_cell_breaks_between_words(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    narrow(monkeypatch)
    table(("vm", "id"), [("a b c d e f g", "8d1f3c52-6a")])
    rows = [row.split() for row in capsys.readouterr().out.splitlines()[2:]]
    assert [word for row in rows for word in row] == ["a", "b", "8d1f3c52-6a", "c", "d", "e", "f", "g"]


def test_no_row_ends_with_blanks(facts: Path) -> None:
    for variables in ({}, {"FORCE_COLOR": "1"}):
        rows = winhost("assess", "--facts", facts, PYTHONIOENCODING="utf-8", **variables).stdout.decode().split("\n")
        assert [row for row in rows if re.search(r" (\x1b\[\d*m)*$", row)] == []


def test_one_long_cell_takes_no_room_from_the_short_ones(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow(monkeypatch, 60)
    table(("name", "windows", "state"), [("very long " * 30, "128 MiB / 512 MiB", "not yet")])
    out = capsys.readouterr().out
    assert "128 MiB / 512 MiB" in out
    assert "not yet" in out


def test_a_file_gets_every_word_whole(capsys: pytest.CaptureFixture[str]) -> None:
    table(("vm", "id"), [("n" * 255, "8d1f3c52-6a2e-4b7d-9c41-0e5f7a6b2d10")])
    assert f" {'n' * 255}   8d1f3c52-6a2e-4b7d-9c41-0e5f7a6b2d10\n" in capsys.readouterr().out


@posix
def test_a_command_to_copy_stands_whole_in_a_line(facts: Path, tmp_path: Path) -> None:
    file = tmp_path / "a-plan-with-quite-a-long-name.json"
    shown = on_terminal(60, "plan", "--vm", "llm-01", "--facts", facts, "-o", file, NO_COLOR="1")
    accept = ",".join(read_document(file, Plan).risks)
    assert f"\n  winhost apply {file} --accept {accept}\n" in shown


def test_of_a_file_that_is_sent_a_line_for_each_tenth_stays() -> None:
    lines: list[str] = []
    told = Watch(lines.append)
    for _ in range(2):  # files
        for percent in range(101):
            told(ProgressEvent("gpu-01", "sending", f"sent {percent}", percent=percent))
    assert [line.split()[-1] for line in lines] == [str(tenth) for tenth in range(10, 101, 10)] * 2
