"""Order comes from needs: whatever order a playbook has, the steps come out the same and each need holds."""

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.world import world
from winhost.engine.order import steps_for
from winhost.model.facts import Facts
from winhost.model.plan import DesiredResource, Step
from winhost.resources.base import Change
from winhost.resources.registry import WINDOWS


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> tuple[tuple[DesiredResource, ...], Facts]:
    here = world(tmp_path_factory.mktemp("world"), "server2025-role-installed")
    return here.plan().stages[0].wanted, here.facts()


def play(steps: tuple[Step, ...]) -> None:
    """Follow the steps and see that each need holds when its step runs."""
    power: dict[str, str] = {}
    for step in steps:
        for need in WINDOWS[step.noun].needs(Change(step.key, step.before, step.want)):
            assert power.get(need.key["vm"]) == need.want["state"], step.title
        if step.noun == "VmPower":
            power[step.key["vm"]] = step.want["state"]


@given(seed=st.integers(), keep=st.integers(min_value=1, max_value=2**16 - 1))
def test_order_does_not_depend_on_the_playbook(
    wanted: tuple[tuple[DesiredResource, ...], Facts], seed: int, keep: int
) -> None:
    all_of_them, facts = wanted
    some = [wish for number, wish in enumerate(all_of_them) if keep >> number & 1]
    shuffled = list(some)
    random.Random(seed).shuffle(shuffled)
    steps = steps_for(some, facts)
    assert steps_for(shuffled, facts) == steps
    play(steps)
    play(steps_for(some, facts, backwards=True))


def test_devices_come_after_the_settings_that_they_need(wanted: tuple[tuple[DesiredResource, ...], Facts]) -> None:
    nouns = [step.noun for step in steps_for(*wanted)]
    assert nouns.index("AssignableDevice") > max(
        nouns.index("VmMmio"), nouns.index("VmActions"), nouns.index("VmMemory")
    )


def test_going_back_takes_devices_first(wanted: tuple[tuple[DesiredResource, ...], Facts]) -> None:
    nouns = [step.noun for step in steps_for(*wanted, backwards=True)]
    assert nouns.index("AssignableDevice") < nouns.index("VmMmio")


def test_a_wish_for_off_needs_no_give_back(tmp_path: Path) -> None:
    here = world(tmp_path, "server2025-role-installed")
    steps = here.plan(power="off").stages[0].steps
    assert [step.want["state"] for step in steps if step.noun == "VmPower"] == ["off"]
    here.apply(here.plan(power="off"))
    assert here.machine.vms[here.vm()].power == "off"
