"""winhost up and down: from a machine to a completion and back, in one command each."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.conftest import Line
from tests.cli.process import kill_winhost
from tests.cli.up_desk import IMAGE, Desk, desk, fleet_of, hub_of_all, without_keys
from winhost.cli import this_machine
from winhost.lab.hostfile import find
from winhost.lab.linux.serving_answers import STAND_IN
from winhost.lab.running_lab import Lab
from winhost.model.fleet import Host, Ssh

LINUX = Path(__file__).parents[2] / "examples/linux/ubuntu-2xh100.json"
BEST = "openai/gpt-oss-20b"
AGREED = ("--yes", "--accept", "restart,network")
SAID = f'from this computer: "{STAND_IN}"'


@pytest.fixture
def here(line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """This machine is a desktop with one GPU, and nobody wrote a file."""
    with desk(tmp_path, monkeypatch) as found:
        monkeypatch.setattr("socket.gethostname", lambda: "My-Desk.example.com")
        _reach_distro(found, monkeypatch)
        yield found


def _reach_distro(found: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulated distro listens at another port than it says."""
    real, port = this_machine.this_machine, found.lab.linuxes[found.name].port

    def reached() -> Host:
        host = real()
        assert isinstance(host, Host)
        return replace(host, ssh=Ssh(address="127.0.0.1", port=port))

    monkeypatch.setattr(this_machine, "this_machine", reached)


def run_of(line: Line) -> str:
    (run,) = [each["run"] for each in line("runs", "--json").results if each["state"] != "rolled back"]
    return str(run)


@pytest.mark.costly
def test_a_desktop_without_any_file_serves_and_is_given_back(line: Line, here: Desk) -> None:
    before = here.state()
    said = line("up", *AGREED, *here.serves)
    assert said.code == 0, said.err
    assert SAID in said.err
    assert not Path("fleet.yaml").exists()
    assert f"my-desk   can serve {BEST} by wsl2/mirrored" in said.out.replace("my-desk ", "my-desk ")
    assert "winhost chat" in said.out
    assert "winhost down" in said.out.splitlines()[-1]
    run = run_of(line)
    plan = line.folder / "state/up" / run / "plan.json"
    assert line("verify", plan).code == 0
    assert str(plan.with_name("workload.yaml")) in plan.read_text("utf-8")
    changes = len(here.calls)
    again = line("up", *here.serves)
    assert (again.code, "served already" in again.out) == (0, True), again.err
    assert not [words for words in here.calls[changes:] if "set" in words]
    other = line("up", "org/model", *here.serves)
    assert (other.code, "winhost down my-desk" in other.err) == (2, True)
    asked = line("down")
    assert asked.code == 2
    assert "Distro winhost goes. It is exported first" in asked.out
    command = re.search(r"without questions: winhost (.*)", asked.err)
    assert command
    assert command[1] == "down --yes --accept vm-stop,network"
    gone = line(*command[1].split())
    assert gone.code == 0, gone.err
    assert (here.state() == before, _differs(before, here.state())) == (False, {"Wsl"})
    nothing = line("down")
    assert (nothing.code, "nothing of winhost up stands there" in nothing.out) == (0, True)
    assert not list((line.folder / "state/up").glob("*/missing"))


def _differs(before: str, after: str) -> set[str]:
    import json

    one, other = json.loads(before), json.loads(after)
    return {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}
