"""By hand on a Linux of its own: the same bundle over a restart, and the same way back."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from tests.engine.linux_world import LinuxWorld, linux_world
from tests.linux.by_hand import Killed, at_each_line
from tests.linux.unpacked import unpack_linux
from winhost.bundle import linux_commands, linux_journal, linux_run
from winhost.bundle.bundle_files import bundle
from winhost.engine.planning import make_plan
from winhost.model.facts import Facts
from winhost.model.plan import Plan
from winhost.paths.path_request import parse_request
from winhost.resources.host import HostFacts

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="run.py wants root, and folders of root's")
ACCEPT = ("--accept", "restart")


class OwnAgent:
    """What agent.py is on a real machine."""

    BOOT = "LinuxBoot"

    def __init__(self, here: LinuxWorld, machine_id: str) -> None:
        self.ONCE: dict[str, Any] = {}
        self._here, self._machine_id = here, machine_id

    def content(self, path: str) -> bytes:
        assert path == linux_run.MACHINE_ID
        return f"{self._machine_id}\n".encode()

    def answers(self, request: dict[str, Any], _wire: object) -> Any:
        return json.loads(self._here.answers.invoke(json.dumps(request)))["answers"]


class ByHand:
    """A person at the machine."""

    def __init__(self, here: LinuxWorld, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.here, self.folder, self._patch = here, folder, patch
        self.machine_id = HostFacts(here.facts()).machine_id

    def unpack(self, plan: Plan, name: str = "one") -> Path:
        return unpack_linux(plan, self.folder / name)

    def run(self, made: Path, command: str, *words: str) -> linux_run.Result:
        self._patch.setattr(linux_run, "load", lambda text: OwnAgent(self.here, self.machine_id))
        self._patch.setattr(linux_journal, "stop_gently", lambda run: None)
        if command in ("apply", "rollback"):
            words = (*words, "--journals", str(self.folder / "journals"))
        given = linux_run.words().parse_args([command, "--json", *words])
        return linux_run.result_of(lambda: linux_commands.main(given, linux_run.open_files(str(made))))

    def restart(self) -> None:
        self.here.machine.restart_computer()
        self.here.machine.settle()


@pytest.fixture
def hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ByHand:
    return ByHand(linux_world(tmp_path / "store", "ubuntu-2xl4-no-driver"), tmp_path, monkeypatch)


def test_it_ends_over_a_restart_where_apply_ends_and_goes_back(hand: ByHand, tmp_path: Path) -> None:
    other = linux_world(tmp_path / "other", "ubuntu-2xl4-no-driver")
    assert other.apply(other.plan()).holds
    found, plan = hand.here.state(), hand.here.plan()
    first = hand.unpack(plan)
    assert hand.run(first, "apply").document["error"]["kind"] == "ConsentNeeded"
    asked = hand.run(first, "apply", *ACCEPT)
    assert (asked.code, asked.document["outcome"]) == (75, "restart needed")
    assert asked.document["next"] == [
        "Restart this machine (systemctl reboot), then: python3 -I run.py apply --accept restart"
    ]
    assert hand.run(first, "apply", *ACCEPT).code == 75, "it did not restart yet"
    hand.restart()
    done = hand.run(first, "apply", *ACCEPT)
    assert (done.code, done.document["outcome"]) == (0, "applied")
    assert hand.run(first, "verify").code == 0
    facts = TypeAdapter(Facts).validate_python(hand.run(first, "facts").document)
    assert facts.resources == hand.here.facts().resources
    later = make_plan(HostFacts(facts), parse_request(plan.request))
    assert hand.run(hand.unpack(later, "two"), "apply").code == 0
    assert hand.here.state() == other.state()
    back = hand.run(first, "rollback", *ACCEPT)
    assert (back.code, back.document["outcome"]) == (75, "restart needed")
    hand.restart()
    assert hand.run(first, "rollback", *ACCEPT).document["outcome"] == "rolled back"
    assert hand.here.state() == found


def kill(hand: ByHand, made: Path, command: str, line: int, when: str) -> None:
    """It dies before or after this line of its journal; it must come so far."""

    def die(number: int, at: str) -> None:
        if (number, at) == (line, when):
            raise Killed

    with at_each_line(die), pytest.raises(Killed):
        hand.run(made, command, *ACCEPT)


def test_killed_around_the_restart_it_asks_for_it_again(hand: ByHand) -> None:
    made, found = hand.unpack(hand.here.plan()), hand.here.state()
    steps = len(list(hand.here.plan().steps))
    for line, when in ((2 * steps + 1, "before"), (2 * steps + 1, "after"), (2 * steps + 2, "before")):
        kill(hand, made, "apply", line, when)
        assert hand.run(made, "apply", *ACCEPT).code == 75, (line, when)
        hand.restart()
        assert hand.run(made, "apply", *ACCEPT).code == 0
        kill(hand, made, "rollback", 2 * steps + 1, when)
        assert hand.run(made, "rollback", *ACCEPT).code == 75, when
        hand.restart()
        assert hand.run(made, "rollback", *ACCEPT).code == 0
        assert hand.here.state() == found


def test_another_machine_is_refused(hand: ByHand) -> None:
    made = hand.unpack(hand.here.plan())
    hand.machine_id = "0" * 32
    for command in ("apply", "verify", "facts"):
        assert hand.run(made, command).document["error"]["kind"] == "WrongHost"
    assert hand.run(made, "facts", "facts.json").document["error"]["kind"] == "WrongUsage"


def test_its_bundle_has_nothing_of_windows_and_a_readme_of_its_own(hand: ByHand) -> None:
    files = bundle(hand.here.plan())
    assert {name for name in files if not name.startswith("linux/")} == {"README.md"}
    readme = files["README.md"].decode()
    assert "run.py apply --accept restart" in readme
    assert hand.machine_id in readme
    for word in ("Windows", "PowerShell", ".ps1", "WSL"):
        assert word not in readme.replace("THIS-FOLDER", ""), word
