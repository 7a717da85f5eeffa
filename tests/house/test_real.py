"""`make real` runs its parts side by side, says of each whether it ran, and leaves none out that had to run."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.house.tree import ROOT
from tests.processes import started
from tests.real.__main__ import Result, main, read, unchanged
from tests.real.inputs import Tree, Unknown, changed_since
from tests.real.jobs import Ended, Job, SideBySide
from tests.real.parts import PARTS, Part

pytestmark = pytest.mark.skipif(os.name != "posix", reason="make real is for POSIX")
SUITES = "<testsuites><testsuite>{}</testsuite></testsuites>"
GOOD, BAD = "<testcase/>", "<testcase><failure/></testcase>"
LEFT_OUT = '<testcase><skipped message="no browser"/></testcase>'
LONG_S = 1000


@pytest.mark.parametrize(
    ("cases", "code", "required", "verdict"),
    [
        ([GOOD, GOOD], 0, True, "ran"),
        ([GOOD, BAD], 1, False, "FAILED"),
        ([GOOD], 2, False, "FAILED"),
        ([], 5, False, "FAILED"),
        ([GOOD], -9, False, "FAILED"),
        ([GOOD], None, False, "FAILED: it did not end within 14400 s"),
        ([GOOD, LEFT_OUT], 0, True, "FAILED: skipped, and required here"),
        ([LEFT_OUT], 0, True, "FAILED: skipped, and required here"),
        ([GOOD, LEFT_OUT], 0, False, "ran in part"),
        ([LEFT_OUT], 0, False, "skipped"),
    ],
)
def test_a_part_ran_or_says_that_it_did_not(
    cases: list[str], code: int | None, required: bool, verdict: str, tmp_path: Path
) -> None:
    report = tmp_path / "report.xml"
    report.write_text(SUITES.format("".join(cases)))
    assert read(report, Ended(code, 1, 1)).verdict(required) == verdict


def test_a_part_without_a_report_failed(tmp_path: Path) -> None:
    assert read(tmp_path / "none", Ended(-11, 1, 1)).verdict(required=False) == "FAILED"


def test_why_is_said_once(tmp_path: Path) -> None:
    report, ended = tmp_path / "report.xml", Ended(0, 1.0, 1.0)
    report.write_text(SUITES.format(LEFT_OUT * 3))
    assert read(report, ended) == Result(0, 0, 3, ended, ("no browser",))


def test_its_tests_are_there() -> None:
    for part in PARTS.values():
        assert [test for test in part.tests if not (ROOT / test).exists()] == []


# ---- side by side


def script(name: str, code: str, lane: str = "computes", size: int = 1) -> Job:
    return Job(name, [sys.executable, "-c", textwrap.dedent(code)], lane, size)


def meets(mine: Path, other: Path, *words: str) -> str:
    """A program that ends only if the other one runs beside it, and then says these words."""
    return f"""
        import pathlib, time
        pathlib.Path({str(mine)!r}).touch()
        while not pathlib.Path({str(other)!r}).exists(): time.sleep(0.01)
        for word in {words!r}: print(word)
    """


def test_what_waits_runs_beside_what_computes_and_output_stays_whole(tmp_path: Path) -> None:
    said: list[str] = []
    one, two = tmp_path / "one", tmp_path / "two"
    jobs = [
        script("one", meets(one, two, "a", "b")),
        script("two", meets(two, one, "c", "d"), lane="waits"),
        script("three", "print('e')"),
    ]
    ended = SideBySide({"computes": 1, "waits": 1}, LONG_S, said.append).run(jobs)
    assert {name: each.code for name, each in ended.items()} == {"one": 0, "two": 0, "three": 0}
    assert all(each.cpu_s > 0 for each in ended.values())
    assert said[:2] == ["== one begins", "== two begins"]
    assert [line for line in said if line.startswith("a\nb\n== one ended after ")]
    assert [line for line in said if line.startswith("c\nd\n== two ended after ")]
    place = next(number for number, line in enumerate(said) if "== one ended" in line)
    assert said.index("== three begins") > place


def test_no_more_run_at_once_than_their_lane_holds(tmp_path: Path) -> None:
    """Each of them fails if more than two processors are taken while it runs."""
    code = f"""
        import pathlib, os, time
        folder = pathlib.Path({str(tmp_path)!r})
        for _ in range(SIZE): (folder / f"{{os.getpid()}}.{{_}}").touch()
        time.sleep(0.3)
        most = len(list(folder.iterdir()))
        for _ in range(SIZE): (folder / f"{{os.getpid()}}.{{_}}").unlink()
        assert most <= 2, most
    """
    sizes = {"small": 1, "other": 1, "whole": 2, "more": 1}
    jobs = [script(name, code.replace("SIZE", str(size)), size=size) for name, size in sizes.items()]
    ended = SideBySide({"computes": 2}, LONG_S, lambda text: None).run(jobs)
    assert {each.code for each in ended.values()} == {0}
    assert list(ended) != ["whole"]


def test_what_is_larger_than_its_lane_runs_all_the_same() -> None:
    ended = SideBySide({"computes": 1}, LONG_S, lambda text: None).run([script("large", "pass", size=8)])
    assert ended["large"].code == 0


def test_one_that_dies_leaves_the_others_alone() -> None:
    killed = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    jobs = [script("killed", killed), script("failed", "raise SystemExit(3)"), script("good", "pass")]
    ended = SideBySide({"computes": 1}, LONG_S, lambda text: None).run(jobs)
    assert {name: each.code for name, each in ended.items()} == {"killed": -9, "failed": 3, "good": 0}


def test_what_hangs_is_ended_with_its_children_and_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = tmp_path / "child"
    hangs = f"""
        import pathlib, subprocess, sys
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
        pathlib.Path({str(tmp_path / "pid")!r}).write_text(str(child.pid))
        pathlib.Path({str(tmp_path / "pid")!r}).rename({str(child)!r})
        child.wait()
    """
    # The limit is over as soon as the child runs: a slow machine takes longer, and nothing else changes.
    clock = SimpleNamespace(sleep=time.sleep, monotonic=lambda: time.monotonic() + LONG_S * child.exists())
    monkeypatch.setattr("tests.real.jobs.time", clock)
    ended = SideBySide({"computes": 1}, LONG_S, lambda text: None).run([script("hangs", hangs), script("good", "pass")])
    assert (ended["hangs"].code, ended["good"].code) == (None, 0)
    assert ends(int(child.read_text()))


def ends(pid: int) -> bool:
    for _ in range(3000):
        stat = Path(f"/proc/{pid}/stat")
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.1)
    return False


def test_silence_is_broken() -> None:
    said: list[str] = []
    jobs = [script("slow", "import time; time.sleep(1)"), script("next", "pass")]
    SideBySide({"computes": 1}, LONG_S, said.append, silent_s=0.3).run(jobs)
    assert re.search(r"   running: slow for \d+ s; 1 to come", "\n".join(said))


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_and_lets_them_put_things_back(tmp_path: Path, number: signal.Signals) -> None:
    code = f"""
        import os, pathlib, time
        folder = pathlib.Path({str(tmp_path)!r})
        pid = str(os.getpid())
        try:
            (folder / f"{{pid}}.ready").touch()
            time.sleep(1000)
        finally:
            (folder / f"{{pid}}.back").touch()
    """
    controller = f"""
        import signal, sys
        signal.signal(signal.SIGINT, signal.default_int_handler)
        from tests.real.jobs import Job, SideBySide
        jobs = [Job(name, [sys.executable, "-c", {textwrap.dedent(code)!r}], "any") for name in "ab"]
        SideBySide({{"any": 2}}, 1000).run(jobs)
    """
    with started([sys.executable, "-c", textwrap.dedent(controller)], cwd=ROOT) as process:
        while len(ready := list(tmp_path.glob("*.ready"))) < 2:
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
    assert process.returncode
    assert len(list(tmp_path.glob("*.back"))) == 2
    assert all(ends(int(path.stem)) for path in ready)


# ---- what changed

TREE = {
    "pyproject.toml": "",
    "docs/page.md": "",
    "examples/a.yaml": "",
    "winhost/__init__.py": "",
    "winhost/__main__.py": "from winhost.cli import main\n",
    "winhost/cli/__init__.py": "from winhost.model import plain\n",
    "winhost/cli/words.yaml": "",
    "winhost/model/plain.py": "",
    "winhost/images/disk.py": "from winhost.model import plain\n",
    "winhost/images/table.yaml": "",
    "winhost/lab/host.py": "open(shipped('examples'))\n",
    "tests/__init__.py": "",
    "tests/conftest.py": "LONG = ('tests/lab/test_host.py',)\n",
    "tests/data/images/cases.yaml": "",
    "tests/data/lab/cases.yaml": "",
    "tests/images/conftest.py": "",
    "tests/images/made.py": "",
    "tests/images/sample.bin": "",
    "tests/images/test_disk.py": (
        'from tests.images.made import x\nfrom winhost.images import disk\nROOT / "tests" / "data/images/cases.yaml"\n'
    ),
    "tests/images/test_other.py": "from winhost.lab import host\n",
    "tests/lab/test_host.py": "from winhost.lab import host\nfrom tests.house.tree import ROOT\n",
    "tests/house/tree.py": 'HOUSE = ROOT / "winhost"\n',
    "tests/cli/test_started.py": 'run([sys.executable, "-m", "winhost", "demo"])\n',
}
FILES = {
    "disk": ["tests/images/test_disk.py"],
    "host": ["tests/lab/test_host.py"],
    "started": ["tests/cli"],
    "all": ["tests"],
}
FAKE = {name: Part(files, {}, lambda: True) for name, files in FILES.items()}


def git(root: Path, *words: str) -> str:
    who = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *who, *words], cwd=root, capture_output=True, text=True, timeout=300, check=True)
    return done.stdout.strip()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    root.mkdir()
    for name, text in TREE.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    git(root, "init", "--quiet", "--initial-branch=main")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message=first")
    return root


def commit(root: Path, name: str, text: str | None) -> None:
    path = root / name
    if text is None:
        path.unlink()
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message=next")


@pytest.mark.parametrize(
    ("changed", "run"),
    [
        ("docs/page.md", set()),
        ("pyproject.toml", {"disk", "host", "started", "all"}),
        ("tests/conftest.py", {"disk", "host", "started", "all"}),
        ("winhost/images/disk.py", {"disk", "all"}),
        ("winhost/images/table.yaml", {"disk", "all"}),
        ("winhost/images/loaded_by_name.py", {"disk", "all"}),
        ("winhost/model/plain.py", {"disk", "started", "all"}),
        ("winhost/cli/words.yaml", {"started", "all"}),
        ("winhost/lab/host.py", {"host", "all"}),
        ("examples/b.yaml", {"host", "all"}),
        ("tests/data/images/cases.yaml", {"disk", "all"}),
        ("tests/data/lab/cases.yaml", {"all"}),
        ("tests/images/conftest.py", {"disk", "all"}),
        ("tests/images/made.py", {"disk", "all"}),
        ("tests/images/sample.bin", {"disk", "all"}),
        ("tests/images/test_other.py", {"all"}),
        ("tests/cli/test_new.py", {"started", "all"}),
    ],
)
def test_a_part_runs_if_something_changed_that_it_reads(tree: Path, changed: str, run: set[str]) -> None:
    commit(tree, changed, "# another\n")
    assert set(FAKE) - unchanged(FAKE, "HEAD~1", tree) == run


def test_what_is_not_committed_counts(tree: Path) -> None:
    commit(tree, "docs/page.md", "another")
    (tree / "winhost/lab/host.py").write_text("# another\n")
    assert unchanged(FAKE, "HEAD~1", tree) == {"disk", "started"}
    git(tree, "checkout", "--quiet", ".")
    (tree / "winhost/images/new.py").touch()
    assert unchanged(FAKE, "HEAD~1", tree) == {"host", "started"}


def test_what_is_gone_counts_where_its_neighbours_do(tree: Path) -> None:
    commit(tree, "winhost/model/gone/inner.py", "")
    commit(tree, "winhost/model/gone/inner.py", None)
    commit(tree, "docs/page.md", "another")
    assert unchanged(FAKE, "HEAD~1", tree) == {"disk", "host", "started", "all"}
    assert changed_since("HEAD~3", tree) == {"docs/page.md"}
    assert unchanged(FAKE, "HEAD~2", tree) == {"host"}


def test_all_run_where_the_base_cannot_be_compared(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert unchanged(FAKE, "", tree) == set()
    git(tree, "checkout", "--quiet", "-b", "beside")
    commit(tree, "docs/page.md", "beside")
    git(tree, "checkout", "--quiet", "main")
    commit(tree, "docs/page.md", "another")
    git(tree, "clone", "--quiet", "--depth=1", "--no-local", f"file://{tree}", "shallow")
    for base, root in (("0" * 40, tree), ("beside", tree), ("main", tree), ("HEAD~1", tree / "shallow")):
        assert unchanged(FAKE, base, root) == set()
        assert f"Every part runs, because it is unknown what changed since {base}: " in capsys.readouterr().out
    (tree / "shallow").rename(tree.with_name("elsewhere"))
    assert unchanged(FAKE, "HEAD~1", tree) == set(FAKE)


def test_all_run_where_there_is_no_git(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tree))
    with pytest.raises(Unknown, match="git"):
        changed_since("HEAD~1", tree)


@pytest.mark.costly
def test_of_this_tree_a_part_reads_what_its_tests_import() -> None:
    tree = Tree(ROOT)
    gateway, images, agent = (tree.inputs(PARTS[name].tests) for name in ("gateway", "images", "agent"))
    assert gateway.has("winhost/gateway/keeper.py")
    assert gateway.has("tests/data/gateway/targets.yaml")
    assert not gateway.has("winhost/compat/assess.py")
    assert images.has("tests/data/images/seeds.yaml")
    assert not images.has("winhost/lab/physics/windows_accounts.py")
    assert agent.has("winhost/agent/linux_agent.py")
    assert agent.has("winhost/resources/linux/apt_source/script.py")


def test_an_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["agnet"])
    assert "agnet" in capsys.readouterr().err
