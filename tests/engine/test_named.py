"""What a Linux does not list by itself is asked for by name, where a plan names it: there, back and later."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.engine.linux_world import LinuxWorld, linux_world
from tests.engine.world import DirectWire
from tests.errors import raises
from winhost.core.answers import Unavailable, identity
from winhost.engine.detect import read_facts
from winhost.engine.planning import check_plan
from winhost.engine.verify import verify_plan
from winhost.paths.playbook import Playbook
from winhost.resources.host import HostFacts
from winhost.resources.registry import host_answers

PATH = "/etc/systemd/system/exporter.service"
TEXT = "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\n\n[Install]\nWantedBy=multi-user.target\n"
FILE = {
    "resource": "LinuxFile",
    "title": "Its unit",
    "key": {"path": PATH},
    "desired": {"text": TEXT, "mode": "0644", "owner": "root:root"},
    "why": "For the test.",
}
UNIT = {
    "resource": "SystemdUnit",
    "title": "The exporter",
    "key": {"unit": "exporter.service"},
    "desired": {"enabled": "enabled", "active": True},
    "why": "For the test.",
}
FORBIDDEN = {**FILE, "key": {"path": "/etc/shadow"}}
OTHER = {"text": TEXT.replace("true", "false"), "link": None, "mode": "0640", "owner": "root:root"}


@pytest.fixture
def here(tmp_path: Path) -> LinuxWorld:
    return wanting(tmp_path, FILE, UNIT)


def wanting(folder: Path, *resources: dict[str, Any]) -> LinuxWorld:
    made = linux_world(folder)
    made.resources = resources
    return made


def found(here: LinuxWorld) -> dict[str, Any]:
    return {"text": here.own.linux.read_file(PATH)["text"], "unit": here.own.linux.systemd.state("exporter.service")}


def test_what_is_named_is_planned_applied_verified_and_given_back(here: LinuxWorld) -> None:
    plan, before = here.plan(), found(here)
    assert [step.title for step in plan.steps] == ["Its unit"]
    assert here.apply(plan).holds
    assert found(here)["text"] == TEXT
    assert here.apply(here.plan()).changed == 0
    named = read_facts(here.open(), check_plan(plan).named)
    assert all(each.holds for each in verify_plan(check_plan(plan), HostFacts(named)))
    assert here.rollback().outcome == "rolled back"
    assert found(here) == before


def test_what_was_there_before_is_what_it_goes_back_to(here: LinuxWorld) -> None:
    here.own.linux.write_file(PATH, dict(OTHER))
    plan = here.plan()
    assert plan.stages[0].steps[0].before == {name: OTHER[name] for name in ("text", "mode")}
    here.apply(plan)
    here.rollback()
    assert here.own.linux.read_file(PATH) == OTHER


def test_what_may_not_be_read_is_refused_in_the_words_of_the_host(tmp_path: Path) -> None:
    with raises("Refused") as refused:
        wanting(tmp_path, FORBIDDEN).plan()
    assert "/etc/shadow is not among the files that winhost writes" in str(refused.value.meaning)


def test_only_what_is_named_by_itself_is_asked_for() -> None:
    resources = [FILE, {**UNIT, "key": {"unit": "${each.name}"}}]
    book = Playbook.model_validate({"schema": "winhost.playbook/2", "path": "linux", "resources": resources})
    assert book.named == {identity("LinuxFile", {"path": PATH})}


def test_what_is_listed_or_cannot_be_read_at_all_is_not_asked_for_again(here: LinuxWorld) -> None:
    facts = replace(here.facts(), resources={**here.facts().resources, "Sysctl": Unavailable("LinuxBoot")})
    listed = identity("LinuxFile", {"path": "/etc/wsl.conf"})
    unread, unknown = identity("Sysctl", {"name": "vm.overcommit_memory"}), identity("NoSuchThing", {})
    more = identity("LinuxFile", {"path": PATH})
    assert host_answers(facts).unlisted([listed, unread, unknown, more, more]) == (more,)


def test_all_of_it_is_read_in_one_round_trip(here: LinuxWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    here.apply(plan := here.plan())
    asked = asked_by(monkeypatch)
    assert here.apply(plan).changed == 0
    assert len(asked) == 1
    read_facts(here.open())
    assert len(asked) == 2


def asked_by(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The requests of all sessions from now on."""
    asked: list[str] = []
    invoke = DirectWire.invoke

    def noted(wire: DirectWire, request: str, within: float) -> str:
        asked.append(request)
        return invoke(wire, request, within)

    monkeypatch.setattr(DirectWire, "invoke", noted)
    return asked
