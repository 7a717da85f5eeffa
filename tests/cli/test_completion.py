"""Completion with the tab key, requested as a shell does."""

from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import BashComplete

from tests.cli.conftest import Line
from winhost.cli import winhost
from winhost.knowledge import catalogue
from winhost.knowledge.lint_codes import lint_codes
from winhost.model.capabilities import CAPABILITIES
from winhost.model.path import EVERY_PATH, WINDOWS_VARIANTS
from winhost.model.plan import RISKS
from winhost.model.shipped import example_hosts
from winhost.serving.profile import explained
from winhost.symptoms.table import symptoms

FLEET = """
schema: winhost.fleet/1
hosts:
  gpu-01: {address: 127.0.0.1, groups: [dda, lab]}
  gpu-02: {address: 127.0.0.1, groups: [lab]}
  desk-01: {address: 127.0.0.1}
"""


def offered(*words: object) -> list[str]:
    """Return the offers for the last word, which is being typed; FILES if the shell is to offer paths."""
    *before, typed = map(str, words)
    items: list[Any] = BashComplete(winhost, {}, "winhost", "_WINHOST_COMPLETE").get_completions(before, typed)
    return ["FILES" if item.type == "file" else item.value for item in items]


@pytest.fixture
def fleet(line: Line) -> Path:
    path = line.folder / "fleet.yaml"
    path.write_text(FLEET)
    return path


@pytest.fixture
def runs(line: Line) -> None:
    folder = line.folder / "state" / "runs"
    folder.mkdir(parents=True)
    for name in ("gpu-01.20261121-101502", "desk-01.20261122-101502"):
        (folder / f"{name}.jsonl").write_text("")


@pytest.mark.usefixtures("fleet")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("detect", ""), ["gpu-01", "gpu-02", "desk-01", "@dda", "@lab"]),
        (("assess", "g"), ["gpu-01", "gpu-02", "FILES"]),
        (("detect", "gpu-01", "g"), ["gpu-02"]),
        (("detect", "@"), ["@dda", "@lab"]),
        (("plan", "d"), ["desk-01", "FILES"]),
        (("report", "d"), ["desk-01", "FILES"]),
    ],
)
def test_hosts_and_groups_of_the_fleet_are_offered(words: tuple[str, ...], expected: list[str]) -> None:
    assert offered(*words) == expected


def test_hosts_of_the_fleet_that_is_named(fleet: Path) -> None:
    other = fleet.rename(fleet.with_name("other.yaml"))
    assert offered("detect", "--fleet", other, "gpu-02", "") == ["gpu-01", "desk-01", "@dda", "@lab"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hosts: [gpu-01]",
        "hosts: {gpu-01: 7, 8: {}}",
        "hosts: {gpu-01: {groups: 7}, 'a b': {}, '$(id)': {groups: ['x;y']}}",
        "{" * 100_000,
        "a: [",
        "a: \0",
        "a: !!python/object:os.system x",
    ],
)
def test_a_fleet_file_with_faults_offers_what_it_can_and_says_nothing(line: Line, text: str) -> None:
    (line.folder / "fleet.yaml").write_text(text)
    assert set(offered("detect", "")) <= {"gpu-01"}


def test_without_a_fleet_nothing_is_offered(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(line.folder))
    assert offered("detect", "") == []
    assert offered("rollback", "") == []


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize("command", ["resume", "rollback", "runs"])
def test_runs_are_offered_the_newest_first(command: str) -> None:
    assert offered(command, "") == ["desk-01.20261122-101502", "gpu-01.20261121-101502"]
    assert offered(command, "g") == ["gpu-01.20261121-101502"]


@pytest.mark.parametrize("command", ["assess", "plan"])
def test_every_path_is_offered(command: str) -> None:
    assert set(offered(command, "--path", "")) == {*EVERY_PATH, *WINDOWS_VARIANTS}


@pytest.mark.parametrize("command", ["assess", "report"])
def test_capabilities_are_offered_behind_each_comma(command: str) -> None:
    assert offered(command, "--need", "") == list(CAPABILITIES)
    assert offered(command, "--need", "nvlink,gpu-p") == ["nvlink,gpu-p2p"]
    assert "nvlink" not in offered(command, "--need", "nvlink", "--need", "")


@pytest.mark.parametrize("command", ["apply", "resume", "rollback"])
def test_consents_are_offered_behind_each_comma(command: str) -> None:
    assert offered(command, "--accept", "") == list(RISKS)
    assert offered(command, "--accept", "vm-stop,re") == ["vm-stop,restart"]
    assert "vm-stop,vm-stop" not in offered(command, "--accept", "vm-stop,")


def test_codes_remedies_and_lab_hosts_are_offered() -> None:
    assert set(offered("explain", "")) == {*catalogue.entries(), *symptoms(), *lint_codes(), *explained()}
    assert offered("explain", "dda.client-s") == ["dda.client-sku"]
    assert offered("explain", "wslconf.unr") == ["wslconf.unread"]
    assert offered("explain", "profile.loa") == ["profile.loader"]
    assert set(offered("assess", "--what-if", "")) == set(catalogue.remedies())
    assert offered("lab", "up", "") == [*example_hosts(), "FILES"]
    assert offered("lab", "up", "arm") == ["FILES"]


@pytest.mark.parametrize("words", [("asess", ""), ("lab", "lst", ""), ("explain", "x", "y", "")])
def test_a_mistyped_line_offers_nothing(words: tuple[str, ...]) -> None:
    assert isinstance(offered(*words), list)
