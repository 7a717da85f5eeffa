"""Allowed values of a distro, the consents that changes require, and rollback."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.rows import each_row
from winhost.core.conditions import consents_of
from winhost.core.steps import Change
from winhost.core.undo import Keep, find_undo
from winhost.resources.registry import RULES, WINDOWS
from winhost.resources.windows.distros import NO_ACCESS, NO_CONF, NO_DISTRO

OURS = "9b2f7730dc68227dd04a9f3e5eab86ad85caf556b8606ad94f1f29ff5c4fd3f5"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBQmLs1Q0m2Y8gRZ0nT9vJwqK4cE7hX5uPdFbVt6SyaA controller"
MADE = {"installed": True, "running": True, "image": OURS, "folder": "C:\\x", "others": 0}
OPEN = {
    "user": "root",
    "port": 22,
    "listen": "192.0.2.7",
    "allowed": ["192.0.2.0/24"],
    "host_key": "x",
    "authorized": [KEY],
    "active": True,
}


def undone(
    resource: str, before: Mapping[str, Any], after: Mapping[str, Any], now: Mapping[str, Any] | None = None
) -> Any:
    changed = {name: before[name] for name in WINDOWS[resource].sets if before[name] != after[name]}
    return find_undo(RULES[resource], changed, after, after if now is None else now)


# ---- undo


def test_a_distro_that_was_made_goes_as_a_whole() -> None:
    assert undone("WslDistro", NO_DISTRO, MADE) == {"installed": False, "image": None, "running": False}
    stopped = {**MADE, "running": False}
    assert undone("WslDistro", NO_DISTRO, MADE, stopped) == {"installed": False, "image": None}


def test_one_that_is_gone_needs_nothing() -> None:
    assert undone("WslDistro", NO_DISTRO, MADE, NO_DISTRO) == {}


@pytest.mark.parametrize("image", [None, "0" * 64])
def test_one_that_is_another_by_now_stays(image: str | None) -> None:
    assert isinstance(undone("WslDistro", NO_DISTRO, MADE, {**MADE, "image": image}), Keep)


def test_one_that_was_there_before_only_stops_again() -> None:
    assert undone("WslDistro", {**MADE, "running": False}, MADE) == {"running": False}


def test_a_vm_is_left_to_read_the_file_that_was_put_back() -> None:
    vm = {"running": True, "config": "1" * 64, "mode": "nat"}
    assert isinstance(undone("WslVm", {**vm, "config": None}, vm), Keep)
    assert undone("WslVm", {**vm, "config": None}, {**vm, "running": False}) == {}


def test_files_go_back_one_by_one_and_what_others_changed_stays() -> None:
    after = {"conf": "ours", "network": "ours", "resolver": None}
    assert undone("WslConf", NO_CONF, after) == {"conf": None, "network": None}
    kept = undone("WslConf", NO_CONF, after, {**after, "network": "theirs"})
    assert (isinstance(kept, Keep), kept.still_restored) == (True, {"conf": None})


def test_a_way_in_goes_whole_or_not_at_all() -> None:
    assert undone("WslAccess", NO_ACCESS, OPEN) == {
        "port": None,
        "listen": None,
        "allowed": None,
        "authorized": [],
        "active": False,
    }
    kept = undone("WslAccess", NO_ACCESS, OPEN, {**OPEN, "authorized": [KEY, KEY]})
    assert (isinstance(kept, Keep), dict(kept.still_restored)) == (True, {})


# ---- what is asked for


RISKS: dict[str, tuple[str, dict[str, Any], dict[str, Any], set[str], set[str]]] = {
    "an import": ("WslDistro", {"installed": False, "image": None}, {"installed": True, "image": OURS}, set(), set()),
    "a start": ("WslDistro", {"running": False}, {"running": True}, set(), set()),
    "a stop": ("WslDistro", {"running": True}, {"running": False}, {"vm-stop"}, set()),
    "a removal": ("WslDistro", {"installed": True}, {"installed": False}, {"vm-stop"}, {"data"}),
    "a removal of what runs": (
        "WslDistro", {"installed": True, "running": True}, {"installed": False, "running": False},
        {"vm-stop"}, {"data"},
    ),
    "a configuration": ("WslVm", {"config": None}, {"config": OURS}, set(), {"vm-stop"}),
    "another configuration": ("WslVm", {"config": "x"}, {"config": OURS}, {"vm-stop"}, {"vm-stop"}),
    "the first files": ("WslConf", {"conf": None}, {"conf": "x"}, set(), set()),
    "other files": ("WslConf", {"conf": "x"}, {"conf": "y"}, {"vm-stop"}, set()),
    "a way in": ("WslAccess", {"port": None}, {"port": 22}, {"network"}, set()),
}  # fmt: skip


@each_row("name", RISKS)
def test_consents_are_asked_for_what_ends_or_opens_something(name: str) -> None:
    resource, before, desired, risks, may_need = RISKS[name]
    change = Change({}, before, desired)
    assert set(consents_of(WINDOWS[resource].risks, change)) == risks
    assert set(consents_of(WINDOWS[resource].may_need, change)) == may_need
    assert risks | may_need <= set(WINDOWS[resource].asks)


# ---- what may be wanted


FITS: dict[str, list[dict[str, Any]]] = {
    "WslDistro": [{"installed": True, "image": OURS, "running": False}, {"image": None}],
    "WslVm": [{"config": OURS, "mode": "mirrored"}, {"config": None, "mode": None}],
    "WslConf": [{"conf": "[boot]\nsystemd=true\n", "network": None, "resolver": ""}],
    "WslAccess": [
        {"port": 22, "listen": "192.0.2.7", "authorized": [KEY], "active": True},
        {"allowed": ["192.0.2.0/24", "192.0.2.9/32", "2001:db8::/32"]},
        {"allowed": None},
        {"port": None, "listen": "2001:db8::7", "authorized": [], "active": False},
    ],
}
UNFIT: dict[str, list[dict[str, Any]]] = {
    "WslDistro": [{"installed": "yes"}, {"image": "latest"}, {"image": OURS.upper()}, {"running": 1}],
    "WslVm": [{"config": "x"}, {"config": 1}, {"mode": "none"}, {"mode": "Nat"}],
    "WslConf": [{"conf": "a\0b"}, {"conf": 1}, {"network": ["x"]}],
    "WslAccess": [
        {"port": 0}, {"port": 65536}, {"port": "22"}, {"port": True}, {"listen": "127.1"}, {"listen": "::FFFF"},
        {"listen": 1}, {"allowed": []}, {"allowed": ["192.0.2.7/24"]}, {"allowed": ["192.0.2.0"]},
        {"allowed": ["192.0.2.0/33"]}, {"allowed": ["2001:DB8::/32"]}, {"allowed": ["2001:db8::1/32"]},
        {"allowed": ["fe80::%1/128"]}, {"allowed": ["192.0.2.0/24 *"]}, {"allowed": "192.0.2.0/24"},
        {"authorized": None}, {"authorized": KEY}, {"authorized": [f"{KEY}\n{KEY}"]},
        {"authorized": ['command="reboot" ssh-ed25519 AAAA']}, {"authorized": ["ssh-dss AAAA"]}, {"active": 1},
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("resource", "desired"), [(resource, desired) for resource, wants in FITS.items() for desired in wants]
)
def test_what_fits_may_be_wanted(resource: str, desired: dict[str, Any]) -> None:
    assert WINDOWS[resource].check_values(desired) is None


@each_row(("resource", "desired"), [(resource, desired) for resource, wants in UNFIT.items() for desired in wants])
def test_what_does_not_fit_is_refused_before_a_host_is_asked(resource: str, desired: dict[str, Any]) -> None:
    assert WINDOWS[resource].check_values(desired) is not None


@pytest.mark.parametrize("resource", FITS)
def test_what_is_not_there_yet_has_the_shape_of_what_is(resource: str) -> None:
    assert set(WINDOWS[resource].absent or {}) == set(WINDOWS[resource].state.__annotations__)
