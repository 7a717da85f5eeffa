"""The rules of distros that a bundle has in PowerShell say what those of the engine say."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.powershell.twins import Scripts, scripts
from winhost.bundle import bundle_files
from winhost.core.conditions import consents_of
from winhost.core.steps import Change
from winhost.core.undo import Keep, find_undo
from winhost.resources.registry import RULES, WINDOWS
from winhost.resources.windows.distros import NO_CONF, NO_DISTRO

IMAGE = "9b2f7730dc68227dd04a9f3e5eab86ad85caf556b8606ad94f1f29ff5c4fd3f5"
MADE = {"installed": True, "running": True, "image": IMAGE, "folder": "C:\\x", "others": 0}
VM = {"running": True, "config": IMAGE, "mode": "nat"}
CONF = {"conf": "ours", "network": None, "resolver": None}
# As the engine of a bundle holds some of what is JSON here.
TABLE = """
function ConvertTo-Table {
    param($Given)
    $table = [ordered]@{}
    foreach ($each in $Given.PSObject.Properties) {
        $table[$each.Name] = $each.Value
    }
    $table
}
"""


@pytest.fixture(scope="module")
def engine() -> Iterator[Scripts]:
    text = bundle_files.scripts()["Winhost.ps1"].decode("ascii")
    chapters = text[text.index("# ==== 1.") :]
    with scripts() as running:
        running.run(chapters)
        running.run(TABLE)
        yield running


def ask(engine: Scripts, expression: str, **given: Any) -> Any:
    """Return the output of an expression as JSON. Its inputs are passed as variables."""
    assigned = [f"${name} = ConvertFrom-Json -InputObject '{json.dumps(value)}'" for name, value in given.items()]
    (answer,) = engine.run("\n".join([*assigned, f"ConvertTo-Json -Compress -Depth 5 -InputObject {expression}"]))
    return json.loads(answer)


UNDO: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "a distro that was made": ("WslDistro", dict(NO_DISTRO), MADE, MADE),
    "that stopped since": ("WslDistro", dict(NO_DISTRO), MADE, {**MADE, "running": False}),
    "that is gone": ("WslDistro", dict(NO_DISTRO), MADE, dict(NO_DISTRO)),
    "that is another's": ("WslDistro", dict(NO_DISTRO), MADE, {**MADE, "image": None}),
    "one that was only started": ("WslDistro", {**MADE, "running": False}, MADE, MADE),
    "a vm that runs": ("WslVm", {**VM, "config": None}, VM, VM),
    "a vm that does not": ("WslVm", {**VM, "config": None}, VM, {**VM, "running": False}),
    "files": ("WslConf", dict(NO_CONF), CONF, CONF),
}


@pytest.mark.parametrize("name", UNDO)
def test_what_is_taken_back_is_the_same(engine: Scripts, name: str) -> None:
    resource, before, after, now = UNDO[name]
    changed = [each for each in WINDOWS[resource].sets if before[each] != after[each]]
    ours = find_undo(RULES[resource], {each: before[each] for each in changed}, after, now)
    expected = (ours.reason, dict(ours.still_restored)) if isinstance(ours, Keep) else ("", dict(ours))
    touched = {
        "resource": resource,
        "key": {},
        "before": before,
        "after": after,
        "changed": changed,
        "transitional": [],
    }
    expression = "$touched.after = ConvertTo-Table $touched.after; Find-WinhostUndo $touched $now"
    said = ask(engine, f"$({expression})", touched=touched, now=now)
    assert (said["keep"], said["desired"]) == expected


CHANGES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "an import": ("WslDistro", {"installed": False, "running": False}, {"installed": True, "running": True}),
    "a stop": ("WslDistro", {"running": True}, {"running": False}),
    "a removal of what does not run": ("WslDistro", {"installed": True}, {"installed": False}),
    "a configuration": ("WslVm", {"config": None}, {"config": IMAGE}),
    "another configuration": ("WslVm", {"config": "x"}, {"config": IMAGE}),
    "the first files": ("WslConf", {"conf": None, "network": None}, {"conf": "x", "network": "x"}),
    "other files": ("WslConf", {"conf": "x", "network": None}, {"conf": "y", "network": "x"}),
    "a way in": ("WslAccess", {"port": None}, {"port": 22}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_consents_are_the_same(engine: Scripts, name: str) -> None:
    resource, before, desired = CHANGES[name]
    ours = list(consents_of(WINDOWS[resource].risks, Change({}, before, desired)))
    change = "@{ before = (ConvertTo-Table $before); desired = (ConvertTo-Table $desired) }"
    goal = f"[pscustomobject]@{{ resource = '{resource}'; key = [pscustomobject]@{{}} }}"
    expression = f"@(Find-WinhostConsents ({goal}) {change})"
    assert ask(engine, expression, before=before, desired=desired) == ours
