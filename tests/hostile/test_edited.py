"""Files that somebody edited: each is read, or refused with an error of ours, and nothing of it moves a cursor.

Every example is made from its number alone: `one(target, number)` says it again.
"""

import contextlib
import io
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.cases import read_cases
from tests.engine.world import world
from tests.hostile.edited import edited, file, spoiled
from winhost.cli import run
from winhost.engine.journal import Journal, read_journal
from winhost.engine.store import Store
from winhost.lab.hostfile import expand, find, host_files
from winhost.model.documents import plain, write_document
from winhost.model.errors import Exit, WinhostError
from winhost.model.shipped import shipped

Make = Callable[[Random, Path], list[str]]
"""Writes an edited file of some kind, and gives a command that reads it."""

OURS = {int(code) for code in Exit}


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WINHOST_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("WINHOST_FLEET", raising=False)
    monkeypatch.setattr("os.fsync", lambda descriptor: None)  # thousands of journals, none of which is worth the wait


def said(words: list[str]) -> tuple[int, str]:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
        code = run(words)
    stream.flush()
    return code, stream.buffer.getvalue().decode()  # type: ignore[attr-defined]


def assert_harmless(words: list[str]) -> None:
    code, text = said(words)
    assert code in OURS, (code, text)
    written = [path.read_text("utf-8") for path in Path("made").rglob("*") if path.suffix in (".html", ".md")]
    for each in (text, *written):
        for line in each.split("\n"):
            assert line.isprintable(), ascii(line)
            assert not line.startswith("winhost: C"), line


# ---- what there is to edit


@cache
def facts() -> list[Any]:
    names = ("server2025-role-installed", "win11-pro-1gpu", "server2025-3gpu", "server2022-wsl")
    return [plain(expand(find(name))[0]) for name in names]


@cache
def plans() -> list[Any]:
    made = []
    for host, words in (
        ("server2025-role-installed", ("--path", "dda", "--vm", "llm-01")),
        ("win11-pro-1gpu", ("--path", "wsl2", "--allow-unverified")),
        ("server2025-3gpu", ("--path", "dda", "--vm", "llm-01")),
    ):
        Path("f.json").write_text(write_document(expand(find(host))[0]))
        code, text = said(["plan", "--facts", "f.json", *words, "-o", "p.json"])
        assert code == 0, text
        made.append(json.loads(Path("p.json").read_text()))
    return made


@cache
def written(folder: str) -> list[Any]:
    paths = host_files() if folder == "hosts" else sorted((shipped("examples") / folder).glob("*.yaml"))
    return [read_cases(path) for path in paths]


@cache
def fleet() -> Any:
    return read_cases(shipped("examples") / "fleet.yaml")


OF_EACH_LINE = {"n", "at", "previous", "hash"}


@cache
def entries() -> list[Any]:
    """Return the journal entries of a run that was applied and rolled back."""
    with TemporaryDirectory() as folder:
        here = world(Path(folder) / "state", "server2025-role-installed")
        here.apply(here.plan())
        here.rollback()
        return [dict(entry) for entry in read_journal(here.store.path(here.run))]


@cache
def playbooks() -> list[Any]:
    return [read_cases(shipped("playbooks") / f"{path}.yaml") for path in ("dda", "wsl2")]


# ---- commands on edited files


def edited_facts(random: Random, folder: Path) -> list[str]:
    document = random.choice(facts())
    (folder / "edited.json").write_bytes(file(document, random))
    return random.choice(
        (
            ["assess", "--facts", "edited.json", "--json"],
            ["assess", "--facts", "edited.json", "--explain"],
            ["assess", "--facts", "edited.json", "--need", "sleep-l1"],
            ["report", "edited.json", "-o", "made/report.html"],
            ["plan", "--facts", "edited.json", "--path", "dda", "--vm", "llm-01", "--allow-unverified"],
            ["plan", "--facts", "edited.json", "--path", "wsl2", "--allow-unverified"],
            ["diff", "edited.json", "facts.json", "--all"],
            ["lint", "wslconfig", "ini", "--facts", "edited.json"],
            ["serve", "profile", "--target", "edited.json", "--workload", "workload.yaml"],
            ["verify", "plan.json", "--facts", "edited.json"],
        )
    )


def edited_plan(random: Random, folder: Path) -> list[str]:
    (folder / "edited.json").write_bytes(file(random.choice(plans()), random))
    return random.choice(
        (
            ["verify", "edited.json", "--facts", "facts.json"],
            ["bundle", "edited.json", "-o", f"made/{random.getrandbits(60):x}"],
            ["apply", "edited.json", "--yes", "--fleet", "closed.yaml", "--accept", "vm-stop,restart,force-dismount"],
        )
    )


def edited_host_file(random: Random, folder: Path) -> list[str]:
    (folder / "host.yaml").write_bytes(file(random.choice(written("hosts")), random))
    return ["host", "host.yaml"]


def edited_fleet(random: Random, folder: Path) -> list[str]:
    (folder / "fleet.yaml").write_bytes(file(fleet(), random))
    return ["detect", "no-such-host", "--fleet", "fleet.yaml"]


def edited_workload(random: Random, folder: Path) -> list[str]:
    (folder / "edited.yaml").write_bytes(file(random.choice(written("workloads")), random))
    return random.choice(
        (
            ["assess", "--facts", "facts.json", "--workload", "edited.yaml"],
            ["report", "facts.json", "--workload", "edited.yaml", "-o", "made/report.html"],
            ["serve", "profile", "--target", "facts.json", "--workload", "edited.yaml"],
        )
    )


def edited_playbook(random: Random, folder: Path) -> list[str]:
    document = random.choice(playbooks())
    (folder / "playbook.yaml").write_bytes(file(document, random))
    how = ["--vm", "llm-01"] if document["path"] == "dda" else ["--path", "wsl2"]
    return ["plan", "--facts", "facts.json", "--playbook", "playbook.yaml", "--allow-unverified", *how]


def edited_journal(random: Random, folder: Path) -> list[str]:
    """Return an edited journal with valid hashes."""
    name = "gpu-03.20260101-000000"
    path = Store().path(name)
    path.unlink(missing_ok=True)
    if random.random() < 0.1:
        path.write_bytes(spoiled("".join(f"{json.dumps(entry)}\n" for entry in entries()), random))
    else:
        journal = Journal(path)
        for entry in edited(entries(), random):
            if isinstance(entry, dict):
                journal.write(**({"event": "x"} | {k: v for k, v in entry.items() if k not in OF_EACH_LINE}))
    return random.choice(
        (
            ["runs"],
            ["runs", name],
            ["resume", name, "--yes", "--fleet", "closed.yaml"],
            ["rollback", name, "--yes", "--fleet", "closed.yaml", "--accept", "vm-stop,restart,force-dismount"],
        )
    )


TARGETS: dict[str, Make] = {
    "facts": edited_facts,
    "plan": edited_plan,
    "host file": edited_host_file,
    "fleet": edited_fleet,
    "workload": edited_workload,
    "playbook": edited_playbook,
    "journal": edited_journal,
}


def one(target: str, number: int) -> None:
    """One example: the same for the same number."""
    random = Random(f"{target} {number}")
    words = TARGETS[target](random, Path())
    if words[0] == "host":
        with contextlib.suppress(WinhostError):
            expand(Path(words[1]))
    else:
        assert_harmless(words)


def surroundings() -> None:
    """Write the files that commands read in addition to the edited one."""
    Path("made").mkdir(exist_ok=True)
    Path("facts.json").write_text(json.dumps(facts()[0]))
    Path("plan.json").write_text(json.dumps(plans()[0]))
    Path("workload.yaml").write_text((shipped("examples") / "workloads" / "one-7b-on-24gb.yaml").read_text("utf-8"))
    Path("ini").write_text("[wsl2]\nmemory=8GB\n")
    Path("closed.yaml").write_text("schema: winhost.fleet/1\nhosts: {nobody: {}}\n")


@pytest.mark.costly
@pytest.mark.parametrize("target", TARGETS)
def test_an_edited_file_is_read_or_refused(target: str) -> None:
    surroundings()
    for number in range(40):
        one(target, number)


@pytest.mark.real
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("target", TARGETS)
def test_thousands_of_edited_files_are_read_or_refused(target: str) -> None:
    surroundings()
    for number in range(40, 2_000):
        one(target, number)
