"""A bundle on a Linux without Windows, applied and rolled back over a restart."""

import os
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from tests.engine.linux_world import linux_world
from tests.linux.by_hand import OnOwnLinux
from tests.linux.unpacked import unpack_linux
from winhost.bundle.bundle_files import bundle
from winhost.engine.planning import make_plan
from winhost.model.facts import Facts
from winhost.paths.playbook import parse_request
from winhost.resources.host import HostFacts

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="run.py wants root, and folders of root's")
ACCEPT = ("--accept", "restart")


@pytest.fixture
def hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OnOwnLinux:
    return OnOwnLinux(linux_world(tmp_path / "store", "ubuntu-2xl4-no-driver"), tmp_path / "journals", monkeypatch)


def test_it_ends_over_a_restart_where_apply_ends_and_goes_back(hand: OnOwnLinux, tmp_path: Path) -> None:
    other = linux_world(tmp_path / "other", "ubuntu-2xl4-no-driver")
    assert other.apply(other.plan()).holds
    found, plan = hand.here.state(), hand.here.plan()
    first = unpack_linux(plan, tmp_path / "one")
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
    assert hand.run(unpack_linux(later, tmp_path / "two"), "apply").code == 0
    assert hand.here.state() == other.state()
    back = hand.run(first, "rollback", *ACCEPT)
    assert (back.code, back.document["outcome"]) == (75, "restart needed")
    hand.restart()
    assert hand.run(first, "rollback", *ACCEPT).document["outcome"] == "rolled back"
    assert hand.here.state() == found


def test_another_machine_is_refused(hand: OnOwnLinux, tmp_path: Path) -> None:
    made = unpack_linux(hand.here.plan(), tmp_path / "one")
    hand.machine_id = "0" * 32
    for command in ("apply", "verify", "facts"):
        assert hand.run(made, command).document["error"]["kind"] == "WrongHost"
    assert hand.run(made, "facts", "facts.json").document["error"]["kind"] == "WrongUsage"


def test_its_bundle_has_nothing_of_windows_and_a_readme_of_its_own(hand: OnOwnLinux) -> None:
    files = bundle(hand.here.plan())
    assert {name for name in files if not name.startswith("linux/")} == {"README.md"}
    readme = files["README.md"].decode()
    assert "run.py apply --accept restart" in readme
    assert hand.machine_id in readme
    for word in ("Windows", "PowerShell", ".ps1", "WSL"):
        assert word not in readme.replace("THIS-FOLDER", ""), word
