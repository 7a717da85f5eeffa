"""winhost bundle creates a complete folder or none."""

import json
import os
import stat
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from tests.cli.conftest import Line, Said
from winhost.bundle.bundle_files import SCRIPTS

EVERY = {*SCRIPTS, "plan.json", "README.md", "SHA256SUMS"}


@pytest.fixture
def plan(line: Line) -> Path:
    facts = line.facts("server2025-role-installed")
    assert line("plan", "--facts", facts, "--vm", "llm-01", "-o", "plan.json").code == 0
    return Path("plan.json")


def command(folder: Path, text: str) -> str:
    """Return a signing command as a user types it: this Python with a script."""
    script = folder / "sign it.py"
    script.write_text(text)
    return f'"{sys.executable}" "{script}"'


def sums_hold(folder: Path) -> bool:
    rows = [row.split("  ") for row in (folder / "SHA256SUMS").read_text().splitlines()]
    assert {name for _, name in rows} == {path.name for path in folder.iterdir()} - {"SHA256SUMS"}
    return all(sha256((folder / name).read_bytes()).hexdigest() == digest for digest, name in rows)


def refused(said: Said, code: int, *words: str) -> None:
    assert said.code == code
    for word in words:
        assert word in said.err
    left = {path.name for path in Path.cwd().iterdir()}
    assert not any(name.startswith(".bundle-") or name == "made" for name in left)


def test_a_bundle_is_a_folder_with_its_sums(line: Line, plan: Path) -> None:
    said = line("bundle", plan, "-o", "deep/made")
    made = Path("deep/made")
    assert said.code == 0
    assert {path.name for path in made.iterdir()} == EVERY
    assert sums_hold(made)
    assert sha256((made / "SHA256SUMS").read_bytes()).hexdigest() in said.out
    assert (made / "plan.json").read_bytes() == plan.read_bytes()
    assert list(Path("deep").iterdir()) == [made]


@pytest.mark.skipif(os.name != "posix", reason="modes of POSIX")
@pytest.mark.parametrize(("umask", "most"), [(0o000, 0o755), (0o002, 0o755), (0o077, 0o700)])
def test_nobody_else_may_write_what_is_made(line: Line, umask: int, most: int) -> None:
    facts = line.facts("server2025-role-installed")
    before = os.umask(umask)
    try:
        assert line("plan", "--facts", facts, "--vm", "llm-01", "-o", "plans/").code == 0
        os.umask(umask)
        assert line("plan", "--facts", facts, "--vm", "llm-01", "-o", "plan.json").code == 0
        os.umask(umask)
        assert line("bundle", "plan.json", "-o", "deep/made").code == 0
    finally:
        os.umask(before)
    written = [Path("plan.json"), Path("deep"), *Path("deep").rglob("*"), *Path().glob("plans*")]
    assert {str(each) for each in written if stat.S_IMODE(each.stat().st_mode) & ~most} == set()


def test_the_same_plan_makes_the_same_bundle_to_the_byte(line: Line, plan: Path) -> None:
    for name in ("one", "two"):
        assert line("bundle", plan, "-o", name).code == 0
    assert all((Path("one") / name).read_bytes() == (Path("two") / name).read_bytes() for name in EVERY)


def test_it_can_be_told_as_a_document(line: Line, plan: Path) -> None:
    Path("made").mkdir()  # an empty folder may be there already
    said = line("bundle", plan, "-o", "made", "--json").result
    assert (said["folder"], set(said["files"])) == ("made", EVERY)
    assert said["sha256sums"] == sha256(Path("made/SHA256SUMS").read_bytes()).hexdigest()


def test_without_a_plan_it_only_reads(line: Line) -> None:
    assert line("bundle", "-o", "made").code == 0
    assert {path.name for path in Path("made").iterdir()} == {"Facts.ps1", "Winhost.ps1", "README.md", "SHA256SUMS"}
    assert sums_hold(Path("made"))
    assert "winhost plan --facts facts.json" in Path("made/README.md").read_text()


@pytest.mark.parametrize("there", ["file", "folder"])
def test_what_is_there_already_is_left_alone(line: Line, plan: Path, there: str) -> None:
    theirs = Path("theirs")
    if there == "folder":
        theirs.mkdir()
        theirs = theirs / "note"
    theirs.write_text("theirs")
    refused(line("bundle", plan, "-o", "theirs"), 2, "theirs is there already", "-o")
    assert theirs.read_text() == "theirs"


def test_wrong_plans_are_refused_as_everywhere(line: Line, plan: Path) -> None:
    refused(line("bundle", "no-such.json", "-o", "made"), 2, "no-such.json")
    refused(line("bundle", line.facts("server2025-3gpu"), "-o", "made"), 2, "winhost.plan/3")
    document = json.loads(plan.read_text())
    document["stages"][0]["desired"][0]["resource"] = "Fan"
    plan.write_text(json.dumps(document))
    refused(line("bundle", plan, "-o", "made"), 2, "there is no resource Fan")


# ---- signing


def test_scripts_are_signed_before_they_are_summed(line: Line, plan: Path) -> None:
    sign = command(line.folder, "import sys; open(sys.argv[1], 'a').write('# SIG ' + sys.argv[1][-9:] + chr(10))")
    assert line("bundle", plan, "-o", "made", "--sign-with", sign).code == 0
    for name in SCRIPTS:
        assert (Path("made") / name).read_text().splitlines()[-1].startswith("# SIG ")
    assert sums_hold(Path("made"))
    assert (Path("made") / "plan.json").read_bytes() == plan.read_bytes()


def test_what_the_signing_command_says_is_told_and_nothing_is_made(line: Line, plan: Path) -> None:
    sign = command(line.folder, "import sys; print('no \x1b[31m certificate', file=sys.stderr); sys.exit(7)")
    said = line("bundle", plan, "-o", "made", "--sign-with", sign)
    refused(said, 1, "Apply.ps1 was not signed", "no \\x1b[31m certificate")


def test_a_signing_command_that_says_nothing_is_told_by_its_exit_code(line: Line, plan: Path) -> None:
    sign = command(line.folder, "raise SystemExit(7)")
    refused(line("bundle", plan, "-o", "made", "--sign-with", sign), 1, "exit 7")


def test_a_signing_command_that_is_not_there_is_named(line: Line, plan: Path) -> None:
    refused(line("bundle", plan, "-o", "made", "--sign-with", "no-such-signtool /a"), 1, "no-such-signtool failed")


@pytest.mark.parametrize("nothing", ["", "  ", 'signtool "half'])
def test_a_signing_command_that_is_none_is_wrong_usage(line: Line, plan: Path, nothing: str) -> None:
    refused(line("bundle", plan, "-o", "made", "--sign-with", nothing), 2, "--sign-with")
