"""Every rule of a Linux of its own, with the least change that brings it up (tests/data/linux_rules.yaml)."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.errors import raises
from winhost.compat.assess import assess
from winhost.compat.evaluation import Requirements, evaluate
from winhost.compat.needs import Needs
from winhost.compat.rule import RULES
from winhost.core.answers import Record, Unavailable
from winhost.engine.choosing import recommended
from winhost.knowledge import catalogue
from winhost.lab.hostfile import expand, find
from winhost.model.facts import Facts
from winhost.model.path import PATHS_OF_LINUX
from winhost.resources.factsfile import read_facts
from winhost.resources.host import HostFacts
from winhost.resources.registry import RULES_OF_LINUX, host_answers, is_linux

ROOT = Path(__file__).parents[2]
FACTS = read_facts(ROOT / "examples/linux/ubuntu-2xh100.json")
CASES: dict[str, Any] = yaml.safe_load((ROOT / "tests/data/linux_rules.yaml").read_text(encoding="utf-8"))


def changed(change: dict[str, Any]) -> Facts:
    resources = dict(FACTS.resources)
    for resource, edit in change.items():
        answer = resources[resource]
        assert isinstance(answer, tuple)
        resources[resource] = tuple(Record({**r.state, **edit}, r.key) for r in answer) if edit else ()
    return replace(FACTS, resources=resources)


def test_the_host_of_the_cases_is_supported_and_nothing_is_said_of_windows() -> None:
    found = assess(HostFacts(FACTS))
    assert [(each.path, each.verdict.value, each.because) for each in found.paths] == [("linux", "supported", ())]
    assert found.recommended == "linux"
    assert recommended(HostFacts(FACTS)).variant == "linux"


@pytest.mark.parametrize("code", CASES)
def test_a_rule_finds_what_it_is_for(code: str) -> None:
    (found,) = assess(HostFacts(changed(CASES[code]["change"]))).paths
    assert code in {reason.code for reason in found.reasons}
    assert found.verdict.value == CASES[code]["verdict"]


def test_every_rule_has_a_case() -> None:
    rules = [rule for rule in RULES if rule.path in PATHS_OF_LINUX]
    assert len(rules) == len([code for code in CASES if code != "linux.unknown"])
    assert {code for code in catalogue.own_entries() if code.startswith("linux.")} <= CASES.keys()


def test_what_cannot_serve_is_not_recommended() -> None:
    with raises("NotChosen"):
        recommended(HostFacts(changed({"LinuxGpu": []})))


def test_what_windows_hosts_have_is_refused_in_a_sentence() -> None:
    for asked in (Requirements(path="wsl2"), Requirements(needs=Needs(("gpu-p2p",)))):
        with raises("OtherSystem", match="llm-01 is a Linux of its own"):
            evaluate(FACTS, asked)
    windows, _ = expand(find("server2025-3gpu"))
    with raises("OtherSystem", match="is a Windows host"):
        evaluate(windows, Requirements(path="linux"))


def test_nothing_of_linux_waits_for_windows_on_a_machine_of_its_own() -> None:
    assert is_linux(FACTS)
    host = host_answers(replace(FACTS, resources={"LinuxSystem": FACTS.resources["LinuxSystem"]}))
    assert host.rules is RULES_OF_LINUX
    assert not isinstance(host.answer("DebianPackage"), Unavailable)
    assert {(rules.requires, rules.within) for rules in RULES_OF_LINUX.values() if rules.name.startswith("Linux")} == {
        ("", None)
    }
