"""What the facts of a host do to the causes of a text."""

from typing import Any

from packaging.version import Version

from tests.house.tree import ROOT
from tests.rows import each_row
from tests.symptoms.pastes import read
from winhost.findings.condition import meets, say
from winhost.lab.hostfile import expand, find
from winhost.resources.factsfile import read_facts
from winhost.resources.host import HostFacts
from winhost.symptoms.diagnosis import CauseFinding, diagnosis


def of_host(name: str) -> HostFacts:
    """A shipped host for the lab, or facts in a file."""
    return HostFacts(read_facts(ROOT / name) if name.endswith(".json") else expand(find(name))[0])


def named(causes: list[CauseFinding]) -> list[str]:
    return [f"@{cause.reason}" if cause.reason else cause.sentence for cause in causes]


@each_row("case", read("ruled.yaml"), ids=lambda case: f"{case['host']}-{case['text'][-24:]}")
def test_facts_rule_causes_in_and_out(case: dict[str, Any]) -> None:
    facts = of_host(case["host"])
    (found,) = diagnosis([case["text"]], "text", facts).found
    standing = {each: [cause for cause in found.causes if cause.standing == each] for each in ("shown", "ruled-out")}
    left = [cause for cause in found.causes if cause.standing != "ruled-out"]
    assert (named(left) or [None])[0] == case["first"]
    assert named(standing["shown"]) == case.get("shown", [])
    assert named(standing["ruled-out"]) == case.get("out", [])
    assert all(cause.observed for each in standing.values() for cause in each)
    assert found.causes[-len(standing["ruled-out"]) :] == tuple(standing["ruled-out"]) or not standing["ruled-out"]


@each_row(
    ("value", "wanted", "holds"),
    [
        (26100, ">=22621, <26101", True),
        (26100, "<22000", False),
        ("2.7.14", ">=2.0", True),
        ("not a version", ">=2.0", False),
        (0.8, ">=0.75, <=9", True),
        (0.8, "<2.7.14", True),
        (None, ">=1", False),
        (None, None, True),
        (True, True, True),
        (1, True, False),
        ("TCC", ["WDDM", "TCC"], True),
        (Version("1"), "<2", True),
        ("open", {"not": "closed"}, True),
        ("closed", {"not": ["closed", "gone"]}, False),
        ("a-b", {"like": "a.b"}, True),
        ("", {"unlike": "a"}, False),
        ("a-b", {"contains": ["c", "a-"]}, True),
        ("a-b", {"contains": "c"}, False),
        ("b", {"unlike": "a"}, True),
        ((1, 3), {"has": 3}, True),
        ((1, 3), {"has": [2, 3], "lacks": 1}, False),
        ((), {"lacks": 3}, True),
        (None, {"has": 3}, False),
        ((), [], True),
        ((1,), {"not": []}, True),
    ],
)
def test_a_fact_fits_a_value_one_of_several_or_a_range(value: object, wanted: object, holds: bool) -> None:
    assert meets(value, wanted) is holds


@each_row(
    ("sentence", "said"),
    [
        ("{gone} of {bytes:size}", "None of 512 MiB"),
        ("{gone:nobody}, {none:nothing}, {two:none}", "nobody, nothing, a, b"),
        ("{two:count} of {two:none}; {bytes:about}", "2 of a, b; 0.5 GiB"),
    ],
)
def test_a_sentence_names_answers(sentence: str, said: str) -> None:
    assert say(sentence, {"gone": None, "none": (), "two": ("a", "b"), "bytes": 512 << 20}) == said
