"""What the facts of a host do to the causes of a text."""

from typing import Any

from tests.house.tree import ROOT
from tests.rows import each_row
from tests.symptoms.pastes import read
from winhost.lab.hostfile import expand, find
from winhost.resources.factsfile import read_facts
from winhost.resources.host import HostFacts
from winhost.symptoms.diagnosis import CauseFinding, diagnose


def of_host(name: str) -> HostFacts:
    """A shipped host for the lab, or facts in a file."""
    return HostFacts(read_facts(ROOT / name) if name.endswith(".json") else expand(find(name))[0])


def named(causes: list[CauseFinding]) -> list[str]:
    return [f"@{cause.reason}" if cause.reason else cause.sentence for cause in causes]


@each_row("case", read("ruled.yaml"), ids=lambda case: f"{case['host']}-{case['text'][-24:]}")
def test_facts_rule_causes_in_and_out(case: dict[str, Any]) -> None:
    facts = of_host(case["host"])
    (found,) = diagnose([case["text"]], "text", facts).found
    standing = {each: [cause for cause in found.causes if cause.standing == each] for each in ("shown", "ruled-out")}
    left = [cause for cause in found.causes if cause.standing != "ruled-out"]
    assert (named(left) or [None])[0] == case["first"]
    assert named(standing["shown"]) == case.get("shown", [])
    assert named(standing["ruled-out"]) == case.get("out", [])
    assert all(cause.observed for each in standing.values() for cause in each)
    assert found.causes[-len(standing["ruled-out"]) :] == tuple(standing["ruled-out"]) or not standing["ruled-out"]
