"""The driver is chosen by PCI ids, before the GPUs are there."""

import pytest

from tests.errors import raises
from winhost.hardware.gpus import OpenModules, known
from winhost.paths.linux_driver import UNATTENDED_FILE, choose_driver
from winhost.resources.registry import RESOURCE_TYPES

OPEN = "linux-modules-nvidia-580-server-open-generic nvidia-headless-no-dkms-580-server-open nvidia-utils-580-server"
CLOSED = OPEN.replace("-open", "")
SETS = ("docker.io", OPEN, CLOSED)
L40S, V100, BLACKWELL, NOBODY_KNOWS = "10de:26b9", "10de:1db4", "10de:2bb5", "10de:ffff"


def test_the_catalogue_says_what_each_takes() -> None:
    found = [card.open_modules if (card := known(device)) else None for device in (L40S, V100, BLACKWELL)]
    assert found == [OpenModules.POSSIBLE, OpenModules.IMPOSSIBLE, OpenModules.NEEDED]


@pytest.mark.parametrize(
    ("devices", "packages"),
    [((L40S,), OPEN), ((BLACKWELL, L40S), OPEN), ((V100,), CLOSED), ((V100, L40S), CLOSED), ((NOBODY_KNOWS,), OPEN)],
)
def test_one_set_of_packages_drives_them_all(devices: tuple[str, ...], packages: str) -> None:
    choice = choose_driver(devices, SETS)
    assert (choice.packages, choice.open) == (packages, packages is OPEN)
    assert choice.unverified == tuple(device for device in devices if device == NOBODY_KNOWS)


def test_windows_names_of_devices_do_as_well() -> None:
    assert choose_driver(["VEN_10DE&DEV_1DB4&SUBSYS_121410DE&REV_A1"], SETS).packages == CLOSED


@pytest.mark.parametrize(
    ("devices", "sets"), [((V100, BLACKWELL), SETS), ((L40S,), ("docker.io", CLOSED)), ((L40S,), ())]
)
def test_what_no_driver_drives_is_refused(devices: tuple[str, ...], sets: tuple[str, ...]) -> None:
    with raises("NoDriver"):
        choose_driver(devices, sets)


def test_what_it_wants_can_be_wanted() -> None:
    wanted = choose_driver([L40S], SETS).desired
    assert {each.resource: dict(each.key) for each in wanted} == {
        "LinuxFile": {"path": UNATTENDED_FILE},
        "AptPackages": {"packages": OPEN},
    }
    for each in wanted:
        declared = RESOURCE_TYPES[each.resource]
        assert declared.misfit(each.key, each.desired) is None
        assert declared.wrong_value(each.desired) is None
