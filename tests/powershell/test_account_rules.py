"""A bundle takes accounts, tasks and configurations back by the same rules as the engine."""

import json
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from tests.powershell.twins import Scripts, scripts
from winhost.bundle import bundle_files
from winhost.core.answers import Record, Unavailable
from winhost.core.dependents import dependents_of
from winhost.core.undo import Keep, find_undo
from winhost.model.facts import Facts
from winhost.resources.registry import RULES, host_answers
from winhost.resources.shared import NO_PROFILE
from winhost.resources.windows.windows_scripts import agent_text

# What each property may be before, after and now.
VALUES: dict[str, dict[str, tuple[Any, ...]]] = {
    "LocalAccount": {"there": (False, True), "administrator": (False, True)},
    "AccountTasks": {"keep_alive": ("absent", "ready", "disabled"), "distro": (None, "Ubuntu-24.04")},
    "WslConfig": {"text": (None, "ours", "theirs"), "encoding": (None, "utf-8")},
}
BESIDE: dict[str, list[dict[str, Any]]] = {
    "LocalAccount": [{"ours": True}, {"ours": False}],
    "AccountTasks": [{}],
    "WslConfig": [{}, {"text": NO_PROFILE, "encoding": NO_PROFILE}],
}


@pytest.fixture(scope="module")
def engine() -> Iterator[Scripts]:
    with scripts() as running:
        text = bundle_files.scripts()["Winhost.ps1"].decode("ascii").replace(agent_text(), "")
        rules = text[text.index("# ==== ") :]
        running.run(rules)
        yield running


def cases(resource: str) -> Iterator[dict[str, Any]]:
    names = list(VALUES[resource])
    every = [dict(zip(names, values, strict=True)) for values in product(*VALUES[resource].values())]
    for changed in (names, names[:1], names[1:]):
        for before, after, now, beside in product(every, every, every, BESIDE[resource]):
            if all(before[name] != after[name] for name in changed):
                yield {
                    "resource": resource,
                    "changed": changed,
                    "before": before,
                    "after": after,
                    "now": {**now, **beside},
                }


def by_the_engine(case: dict[str, Any]) -> dict[str, Any]:
    before = {name: case["before"][name] for name in case["changed"]}
    undo = find_undo(RULES[case["resource"]], before, case["after"], case["now"])
    if isinstance(undo, Keep):
        return {"keep": undo.reason, "desired": dict(undo.still_restored), "missing": ""}
    return {"keep": "", "desired": dict(undo), "missing": ""}


ASK = """
$answers = @(foreach ($case in (ConvertFrom-Json -InputObject $args[0])) {
    $after = @{}
    foreach ($property in $case.after.PSObject.Properties) { $after[$property.Name] = $property.Value }
    $touched = @{
        resource = $case.resource; changed = @($case.changed); before = $case.before; after = $after; transitional = @()
    }
    Find-WinhostUndo $touched $case.now
})
ConvertTo-Json -InputObject $answers -Depth 5 -Compress
"""


@pytest.mark.parametrize("resource", VALUES)
def test_the_bundle_undoes_what_the_engine_undoes(engine: Scripts, resource: str) -> None:
    asked = list(cases(resource))
    engine.run(f"function Find-Undone {{{ASK}}}")
    quoted = json.dumps(asked).replace("'", "''")
    (answer,) = engine.run(f"Find-Undone '{quoted}'")
    assert [by_the_engine(case) for case in asked] == json.loads(answer)


KEYS = [{"account": "winhost", "distro": "Ubuntu-24.04"}, {"account": "other", "distro": "Debian"}]
WHAT_IS_READ: list[dict[str, Any]] = [
    {"ok": True, "instances": [{"key": key, "state": {}} for key in KEYS]},
    {"ok": True, "instances": []},
    {"ok": False, "unavailable": "AccountTasks"},
]
ASK_USERS = """
$facts = @{}
foreach ($property in (ConvertFrom-Json -InputObject $args[0]).PSObject.Properties) {
    $facts[$property.Name] = $property.Value
}
$found = @(Find-WinhostDependents 'WslConfig' ([pscustomobject]@{ account = 'Winhost' }) $facts)
$found = @(foreach ($user in $found) { [ordered]@{ resource = $user.resource; key = $user.key } })
ConvertTo-Json -InputObject $found -Depth 5 -Compress
"""


@pytest.mark.parametrize("distros", WHAT_IS_READ)
@pytest.mark.parametrize("disks", [0, 2, None])
def test_the_bundle_knows_the_distros_of_an_account(engine: Scripts, distros: Any, disks: int | None) -> None:
    account = {"key": {"account": "winhost"}, "state": {"distros": disks}}
    read = {"WslDistro": distros, "LocalAccount": {"ok": True, "instances": [account]}}
    engine.run(f"function Find-Users {{{ASK_USERS}}}")
    (answer,) = engine.run(f"Find-Users '{json.dumps(read)}'")
    resources: dict[str, Any] = {
        resource: tuple(Record(each["state"], each["key"]) for each in said["instances"])
        if said["ok"]
        else Unavailable(said["unavailable"])
        for resource, said in read.items()
    }
    facts = Facts("h", "synthetic", "", "", resources)
    users = [user for _, user in dependents_of("WslConfig", {"account": "Winhost"}, host_answers(facts)).values()]
    assert json.loads(answer) == [{"resource": user.resource, "key": dict(user.key)} for user in users]
