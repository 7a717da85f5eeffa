"""Rollback of accounts, tasks and configurations, and their allowed values."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest

from tests.rows import each_row
from winhost.core.answers import Json, Key, MissingFact, Record, RemoteFault, Unavailable, Unknown
from winhost.core.conditions import irreversible_reason
from winhost.core.dependents import dependents_by_rule
from winhost.core.steps import Change
from winhost.core.undo import Keep, Undo, find_undo
from winhost.model.facts import Answer, Facts
from winhost.resources.registry import RULES, WINDOWS, host_answers
from winhost.resources.shared import DISTROS_OF_ACCOUNT, NO_PROFILE

TASKS = RULES["AccountTasks"]
MADE = {"there": True, "ours": True, "administrator": True, "distros": 0}
ABSENT = {"there": False, "administrator": False}


@pytest.mark.parametrize(
    ("before", "now", "undo"),
    [
        (ABSENT, MADE, {"there": False}),
        (ABSENT, MADE | {"ours": False}, Keep("it is not the account that winhost made any more")),
        (ABSENT, MADE | {"there": False, "administrator": False}, {}),
        ({"administrator": False}, MADE, {"administrator": False}),
        ({"administrator": False}, MADE | {"administrator": False}, {}),
        ({"there": False}, MADE | {"administrator": False}, {"there": False}),
    ],
)
def test_an_account_goes_only_with_nothing_in_it(before: Any, now: Any, undo: Undo) -> None:
    assert find_undo(RULES["LocalAccount"], before, MADE, now) == undo


@pytest.mark.parametrize("now", ["ready", "disabled", "absent"])
def test_our_tasks_go_back_whatever_they_became(now: str) -> None:
    before: Mapping[str, Json] = {"keep_alive": "absent", "distro": None}
    after = {"keep_alive": "ready", "distro": "Ubuntu-24.04"}
    desired = {} if now == "absent" else before
    distro = None if now == "absent" else "Ubuntu-24.04"
    assert find_undo(TASKS, before, after, {"keep_alive": now, "distro": distro}) == desired


def test_nobody_gives_an_account_the_password_back_that_somebody_gave_it() -> None:
    before: Mapping[str, Json] = {"keep_alive": "disabled", "logon": "refused"}
    after: Mapping[str, Json] = {"keep_alive": "ready", "logon": "password"}
    assert find_undo(TASKS, before, after, after) == Keep("they log on again", {"keep_alive": "disabled"})
    assert find_undo(TASKS, before, after, before) == {}
    rules = WINDOWS["AccountTasks"].irreversible
    assert irreversible_reason(rules, Change({}, before, after)) == "nobody knows the password that the account had"
    assert irreversible_reason(rules, Change({}, {"logon": None}, {"logon": "password"})) is None


def test_nobody_gives_tasks_back_what_kept_them_from_working() -> None:
    before: Mapping[str, Json] = {"jobs": "stale", "logon": "refused"}
    after: Mapping[str, Json] = {"jobs": "ready", "logon": "password"}
    assert find_undo(TASKS, before, after, after) == Keep("they log on again and they run jobs again", {})
    assert find_undo(
        RULES["AccountTasks"], {"jobs": "stale", "distro": None}, after, {"jobs": "ready", "distro": "x"}
    ) == Keep("they run jobs again", {"distro": None})
    rules = WINDOWS["AccountTasks"].irreversible
    assert irreversible_reason(rules, Change({}, {"jobs": "stale"}, after)) == "the script that was there is not kept"


@pytest.mark.parametrize(
    ("now", "undo"),
    [
        ({"text": "ours", "encoding": "utf-8"}, {"text": None, "encoding": None}),
        ({"text": None, "encoding": None}, {}),
        ({"text": NO_PROFILE, "encoding": NO_PROFILE}, {}),
        ({"text": "theirs", "encoding": "utf-8"}, Keep("text changed since by somebody else")),
        ({"text": "ours", "encoding": "utf-16le"}, Keep("encoding changed since by somebody else")),
    ],
)
def test_a_configuration_goes_back_as_a_whole_or_not_at_all(now: Mapping[str, Json], undo: Undo) -> None:
    before, after = {"text": None, "encoding": None}, {"text": "ours", "encoding": "utf-8"}
    assert find_undo(RULES["WslConfig"], before, after, now) == undo


@each_row(
    ("resource", "desired", "fits"),
    [
        ("LocalAccount", {"there": True, "administrator": False}, True),
        ("LocalAccount", {"there": 1}, False),
        ("LocalAccount", {"there": None}, False),
        ("AccountRight", {"granted": "yes"}, False),
        ("AccountTasks", {"jobs": "ready", "keep_alive": "ready", "distro": "Ubuntu-24.04", "logon": "s4u"}, True),
        ("AccountTasks", {"jobs": "absent", "keep_alive": "absent", "distro": None, "logon": None}, True),
        ("AccountTasks", {"jobs": "running"}, False),
        ("AccountTasks", {"jobs": None}, False),
        ("AccountTasks", {"distro": "Ubuntu 24.04"}, False),
        ("AccountTasks", {"distro": "-u"}, False),
        ("AccountTasks", {"distro": "Ubuntu\n"}, False),
        ("AccountTasks", {"distro": "x" * 65}, False),
        ("AccountTasks", {"logon": "interactive"}, False),
        ("WslConfig", {"text": "", "encoding": "utf-16le"}, True),
        ("WslConfig", {"text": None, "encoding": None}, True),
        ("WslConfig", {"text": b"[wsl2]"}, False),
        ("WslConfig", {"encoding": "utf-16"}, False),
    ],
)
def test_a_wish_is_checked_before_a_host_is_asked(resource: str, desired: dict[str, Any], fits: bool) -> None:
    assert (WINDOWS[resource].check_values(desired) is None) is fits


def test_what_is_absent_has_each_property() -> None:
    for resource in ("LocalAccount", "AccountRight", "AccountTasks", "WslConfig"):
        assert set(WINDOWS[resource].absent or {}) == set(WINDOWS[resource].state.__annotations__)


def test_the_account_comes_before_what_rests_on_it() -> None:
    order = ["LocalAccount", "AccountRight", "AccountTasks", "WslConfig"]
    for first, then in pairwise(order):
        assert first in WINDOWS[then].after


HERE = Record({"installed": True}, {"account": "winhost", "distro": "Ubuntu-24.04"})
ELSEWHERE = Record({"installed": True}, {"account": "other", "distro": "Debian"})


def facts(distros: Answer, disks: int | None = 0) -> Facts:
    account = Record({"distros": disks}, {"account": "winhost"})
    return Facts("h", "synthetic", "", "", {"WslDistro": distros, "LocalAccount": (account,)})


@pytest.mark.parametrize("resource", ["LocalAccount", "AccountRight", "AccountTasks", "WslConfig"])
def test_what_rests_on_an_account_are_its_distros(resource: str) -> None:
    assert DISTROS_OF_ACCOUNT in WINDOWS[resource].dependents

    def users(asked: Facts) -> list[tuple[str, Key]]:
        return [
            (user.resource, user.key)
            for user in dependents_by_rule(DISTROS_OF_ACCOUNT, {"account": "Winhost"}, host_answers(asked))
        ]

    assert users(facts((HERE, ELSEWHERE))) == [("WslDistro", HERE.key)]
    assert users(facts((ELSEWHERE,))) == []
    assert users(facts(Unavailable("AccountTasks"))) == []
    assert users(facts(Unavailable("AccountTasks"), 2)) == [("WslDistro", {"account": "winhost", "distro": ""})]
    with pytest.raises(MissingFact):
        users(facts(Unknown(RemoteFault("", "", (), "", ""))))
