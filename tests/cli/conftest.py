"""A lab, and a command line that runs in this process."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.hub.stand_in_hub import StandInHub
from winhost.cli import run, watch
from winhost.cli.groups import COMMAND_CODES, exit_codes
from winhost.lab.hostfile import expand, find
from winhost.lab.running_lab import Lab
from winhost.model.documents import write_document


@dataclass
class Said:
    """The output and the exit code of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def results(self) -> Any:
        """The results of the document that --json prints."""
        return self.json["results"]

    @property
    def result(self) -> Any:
        """The only result."""
        (result,) = self.results
        return result


@dataclass
class Line:
    """Runs commands in this process."""

    folder: Path
    capture: pytest.CaptureFixture[str]

    def __call__(self, *words: object) -> Said:
        self.capture.readouterr()
        told = [str(word) for word in words]
        code = run(told)
        assert code in exit_codes(
            next((name for name in (" ".join(told[:2]), *told[:1]) if name in COMMAND_CODES), "others")
        ), told
        out, err = self.capture.readouterr()
        return Said(code, out, err)

    def facts(self, host_file: str) -> Path:
        """Write a facts file of a shipped host and return its path."""
        path = self.folder / f"{host_file}.json"
        path.write_text(write_document(expand(find(host_file))[0]), encoding="utf-8")
        return path


@pytest.fixture
def line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Line:
    monkeypatch.setenv("WINHOST_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("WINHOST_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("WINHOST_FLEET", raising=False)
    monkeypatch.setattr(watch, "SILENCE_S", 3600)  # progress would come among what is compared, on a slow machine
    monkeypatch.chdir(tmp_path)
    return Line(tmp_path, capsys)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """A lab with gpu-03, which has the Hyper-V role, and desk-01; its fleet.yaml is in the current folder."""
    hosts = [find("server2025-role-installed"), find("win11-pro-1gpu")]
    with Lab(hosts, tmp_path, scale=0.001) as running:
        yield running


@pytest.fixture
def hub() -> Iterator[StandInHub]:
    """A hub with the model that the test plans serve."""
    from tests.serving.one_plan import hub_of_model  # which most tests do without

    with hub_of_model() as found:
        yield found


@pytest.fixture
def linux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A simulated Linux that can serve, with Alice's API key in the environment."""
    from tests.serving.one_plan import KEY  # which most tests do without

    monkeypatch.setenv("ALICE", KEY)
    with Lab([Path(__file__).parents[2] / "examples/linux/ubuntu-2xh100.json"], tmp_path, scale=0.001) as lab:
        (found,) = lab.linux_hosts.values()
        yield found.linux
