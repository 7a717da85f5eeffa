"""Tests of the page of a Linux host: its machine, its verdict and its plan; hostile names stay text."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.render.pages import parsed
from winhost.cli.plan.options import default_request
from winhost.compat.evaluation import Requirements, evaluate
from winhost.compat.needs import Needs
from winhost.core.answers import Record, RemoteFault, Unknown
from winhost.engine.planning import make_plan
from winhost.model.facts import Facts
from winhost.render.report import ReadHost, render_report
from winhost.resources.factsfile import read_facts
from winhost.resources.host import HostFacts

FACTS = read_facts(Path(__file__).parents[2] / "examples/linux/ubuntu-2xl4-no-driver.json")
HOSTILE = '<script>alert("x")</script>\u202e\u2019'


def changed(resource: str, **properties: Any) -> Facts:
    answer = FACTS.resources[resource]
    assert isinstance(answer, tuple)
    records = tuple(Record({**each.state, **properties}, each.key) for each in answer)
    return replace(FACTS, resources={**FACTS.resources, resource: records})


def page_of(facts: Facts, *, plan: bool = True, brief: bool = False) -> str:
    made = make_plan(HostFacts(facts), default_request("linux")) if plan else None
    return "".join(render_report([ReadHost(facts, evaluate(facts, Requirements()), made)], Needs(), brief=brief))


def test_it_shows_the_machine_the_verdict_and_the_plan() -> None:
    text = parsed(page_of(FACTS)).text
    for part in (
        "Recommended: linux.",
        "1 NVIDIA L4",
        "24 GiB",
        "nouveau",
        "0000:21:00.0",
        "on metal, 128 GiB memory",
        "nvme1n1 3,576.98 GiB",
        "Stage 1, ends with a restart",
        "NVIDIA's driver",
        "linux.driver-comes",
        "What each option offers",
    ):
        assert part in text, part
    for part in ("Location path", "Displays", "Trade-offs"):
        assert part not in text, part


def test_the_brief_page_has_its_gpus_and_what_it_offers() -> None:
    text = parsed(page_of(FACTS, brief=True)).text
    assert "0000:21:00.0" in text
    assert "What linux offers: supported gpu-compute" in text


def test_what_could_not_be_read_is_said() -> None:
    unread = Unknown(RemoteFault("PermissionDenied", message="nobody may look"))
    facts = replace(FACTS, resources={**FACTS.resources, "LinuxGpu": unread})
    assert "nobody may look" in parsed(page_of(facts, plan=False)).text


@pytest.mark.parametrize("resource", ["LinuxGpu", "LinuxGpuDriver", "LinuxSystem", "LinuxDisk"])
def test_words_of_a_host_are_text(resource: str) -> None:
    properties = {
        "LinuxGpu": {"name": HOSTILE, "driver": HOSTILE},
        "LinuxGpuDriver": {"loaded": HOSTILE, "kind": HOSTILE, "installed": HOSTILE, "signer": HOSTILE},
        "LinuxSystem": {"version": HOSTILE, "virtualization": HOSTILE},
        "LinuxDisk": {"serial": HOSTILE, "model": HOSTILE},
    }
    html = page_of(changed(resource, **properties[resource]), plan=False)
    assert "<script" not in html
    assert "\u202e" not in html
