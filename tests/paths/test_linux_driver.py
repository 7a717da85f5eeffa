"""The driver is chosen by PCI ids, before the GPUs are there."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.errors import raises
from winhost.core.answers import Record
from winhost.hardware.gpus import OpenModules, find_model
from winhost.model.facts import Facts
from winhost.paths.linux import choose_driver, has_fabric_manager, refuse_mixed_gpus, select_driver
from winhost.resources.factsfile import read_facts
from winhost.resources.host import HostFacts

OPEN = "linux-modules-nvidia-580-server-open-generic nvidia-headless-no-dkms-580-server-open nvidia-utils-580-server"
CLOSED = OPEN.replace("-open", "")
SETS = ("docker.io", OPEN, CLOSED)
L40S, V100, BLACKWELL, NOBODY_KNOWS = "10de:26b9", "10de:1db4", "10de:2bb5", "10de:ffff"
H100 = "10de:2330"


def test_the_catalogue_says_what_each_takes() -> None:
    found = [gpu.open_modules if (gpu := find_model(device)) else None for device in (L40S, V100, BLACKWELL)]
    assert found == [OpenModules.POSSIBLE, OpenModules.IMPOSSIBLE, OpenModules.NEEDED]


@pytest.mark.parametrize(
    ("devices", "packages"),
    [((L40S,), OPEN), ((BLACKWELL, L40S), OPEN), ((V100,), CLOSED), ((V100, L40S), CLOSED), ((NOBODY_KNOWS,), OPEN)],
)
def test_one_set_of_packages_drives_them_all(devices: tuple[str, ...], packages: str) -> None:
    choice = choose_driver(devices, SETS)
    assert (choice.packages, choice.open) == (packages, packages is OPEN)
    assert choice.unverified == tuple(device for device in devices if device == NOBODY_KNOWS)


def test_a_board_with_nvswitches_gets_the_fabric_manager_where_a_source_has_it() -> None:
    with_it = [each.replace(" ", " nvidia-fabricmanager-580 ", 1) for each in (OPEN, CLOSED)]
    assert choose_driver((H100,), (*with_it, *SETS)).packages == with_it[0]
    assert choose_driver((V100,), (*with_it, *SETS)).packages == with_it[1]
    assert [has_fabric_manager(each) for each in (*with_it, *SETS)] == [True, True, False, False, False]


def test_gpus_that_no_driver_drives_together_are_refused_before_there_is_a_linux() -> None:
    refuse_mixed_gpus((BLACKWELL, L40S))
    refuse_mixed_gpus((V100, L40S))
    with raises("NoDriver", match="open modules only"):
        refuse_mixed_gpus((BLACKWELL, V100))


def test_windows_names_of_devices_do_as_well() -> None:
    assert choose_driver(["VEN_10DE&DEV_1DB4&SUBSYS_121410DE&REV_A1"], SETS).packages == CLOSED


@pytest.mark.parametrize(
    ("devices", "sets"), [((V100, BLACKWELL), SETS), ((L40S,), ("docker.io", CLOSED)), ((L40S,), ())]
)
def test_what_no_driver_drives_is_refused(devices: tuple[str, ...], sets: tuple[str, ...]) -> None:
    with raises("NoDriver"):
        choose_driver(devices, sets)


FACTS = read_facts(Path(__file__).parents[2] / "examples/linux/ubuntu-2xl4-no-driver.json")


def with_states(resource: str, change: Callable[[Record], Mapping[str, Any]], facts: Facts = FACTS) -> Facts:
    answer = facts.resources[resource]
    assert isinstance(answer, tuple)
    found = tuple(Record({**each.state, **change(each)}, each.key) for each in answer)
    return replace(facts, resources={**facts.resources, resource: found})


def installed(*sets: str) -> Facts:
    return with_states("AptPackages", lambda each: {"installed": each.key["packages"] in sets})


def test_a_linux_without_a_driver_gets_the_one_that_its_gpus_take() -> None:
    chosen = select_driver(HostFacts(FACTS))
    assert chosen is not None
    assert chosen.packages == OPEN
    assert 'Package-Blacklist {\n    "linux-(generic|' in chosen.text


def test_what_is_there_of_winhost_stays_wanted_and_what_is_of_others_is_left_alone() -> None:
    runs = {"loaded": "580.95.05", "installed": "580.95.05"}
    ours = with_states("LinuxGpuDriver", lambda each: {**runs, "packages": [OPEN.split()[0]]}, installed(OPEN))
    assert (chosen := select_driver(HostFacts(ours)))
    assert chosen.packages == OPEN
    for theirs in (runs, {"packages": ["nvidia-driver-550"]}, {"installed": "550.54"}):
        assert select_driver(HostFacts(with_states("LinuxGpuDriver", lambda each, t=theirs: t))) is None  # type: ignore[misc]
    unfit = with_states("LinuxGpuDriver", lambda each: {"packages": [CLOSED.split()[0]]}, installed(CLOSED))
    assert select_driver(HostFacts(unfit)) is None


def test_a_set_that_no_source_has_is_none() -> None:
    waiting = with_states("AptPackages", lambda each: {"to_add": {"unavailable": "AptSource"}})
    with raises("NoDriver"):
        select_driver(HostFacts(waiting))
