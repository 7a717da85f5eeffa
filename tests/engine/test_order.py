"""Order comes from needs: whatever order a playbook has, the steps come out the same and each need holds."""

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.world import world
from winhost.core.conditions import needs_of
from winhost.core.order import steps_for
from winhost.core.steps import Change, DesiredResource, Step
from winhost.model.facts import Facts
from winhost.resources.registry import WINDOWS, host_answers


@pytest.fixture(scope="module")
def desired(tmp_path_factory: pytest.TempPathFactory) -> tuple[tuple[DesiredResource, ...], Facts]:
    here = world(tmp_path_factory.mktemp("world"), "server2025-role-installed")
    return here.plan().stages[0].desired, here.facts()


def play(steps: tuple[Step, ...]) -> None:
    """Follow the steps and see that each need holds when its step runs."""
    power: dict[str, str] = {}
    for step in steps:
        for need in needs_of(WINDOWS[step.resource].needs, Change(step.key, step.before, step.desired)):
            assert power.get(need.key["vm"]) == need.desired["state"], step.title
        if step.resource == "VmPower":
            power[step.key["vm"]] = step.desired["state"]


@given(seed=st.integers(), keep=st.integers(min_value=1, max_value=2**16 - 1))
def test_order_does_not_depend_on_the_playbook(
    desired: tuple[tuple[DesiredResource, ...], Facts], seed: int, keep: int
) -> None:
    all_of_them, facts = desired
    some = [goal for number, goal in enumerate(all_of_them) if keep >> number & 1]
    shuffled = list(some)
    random.Random(seed).shuffle(shuffled)
    steps = steps_for(some, host_answers(facts))
    assert steps_for(shuffled, host_answers(facts)) == steps
    play(steps)
    play(steps_for(some, host_answers(facts), backwards=True))


def test_devices_come_after_the_settings_that_they_need(desired: tuple[tuple[DesiredResource, ...], Facts]) -> None:
    resources = [step.resource for step in steps_for(desired[0], host_answers(desired[1]))]
    assert resources.index("AssignableDevice") > max(
        resources.index("VmMmio"), resources.index("VmActions"), resources.index("VmMemory")
    )


def test_going_back_takes_devices_first(desired: tuple[tuple[DesiredResource, ...], Facts]) -> None:
    resources = [step.resource for step in steps_for(desired[0], host_answers(desired[1]), backwards=True)]
    assert resources.index("AssignableDevice") < resources.index("VmMmio")


def test_a_wish_for_off_needs_no_give_back(tmp_path: Path) -> None:
    here = world(tmp_path, "server2025-role-installed")
    steps = here.plan(power="off").stages[0].steps
    assert [step.desired["state"] for step in steps if step.resource == "VmPower"] == ["off"]
    here.apply(here.plan(power="off"))
    assert here.machine.vms[here.vm()].power == "off"
