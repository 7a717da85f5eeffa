"""From which Windows on there is what our scripts ask with: the table, held to scripts, page and examples."""

import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from tests.cases import read_cases
from tests.resources.test_scripts import CMDLETS, bundle_scripts, calls, scripts
from winhost.lab.hostfile import expand_all
from winhost.resources import windows

TABLE: dict[str, Any] = read_cases(files(windows) / "since.yaml")
PAGE = (Path(__file__).parents[2] / "docs" / "facts.md").read_text("utf-8")
TUNNELED = "{3AB22E31-8264-4b4e-9AF5-A8D2D8E33E62} 47"
# Of PowerShell itself, 5.1 on every one of them.
ENGINES_OWN = "Microsoft.PowerShell."


def asked() -> Iterator[str]:
    """Every cmdlet of Windows, CIM class and device property in our scripts."""
    for script in (*scripts(), *bundle_scripts()):
        for call in calls(script):
            module = CMDLETS.get(call.name, {}).get("module", ENGINES_OWN)
            if not module.startswith(ENGINES_OWN) or module.endswith("LocalAccounts"):
                yield call.name
            if not call.named.get("ClassName", "$").startswith("$"):
                yield call.named["ClassName"]
        yield from re.findall(r"\$class = '(\w+)'", script.text)
        yield from re.findall(r"'(DEVPKEY_\w+|\{[0-9A-Fa-f-]{36}\} \d+)'", script.text)


@pytest.mark.costly
def test_the_table_has_all_that_is_asked_for_and_nothing_else() -> None:
    always = [name for names in TABLE["always"].values() for name in names]
    later = [name for entry in TABLE["later"] for name in entry["names"]]
    assert len({*always, *later}) == len(always) + len(later)
    assert {*always, *later} == set(asked())


@pytest.mark.parametrize("entry", TABLE["later"], ids=lambda entry: entry["names"][0])
def test_what_came_later_is_on_the_page(entry: dict[str, Any]) -> None:
    assert entry["sure"] in ("documented", "reported", "inferred")
    names = ", ".join(f"`{name}`" for name in entry["names"])
    assert f"| {names} | {entry['since']} | {entry['says']} | {entry['sure']}: {entry['from']} |" in PAGE


def test_the_examples_lack_what_their_windows_lacks() -> None:
    (since,) = (entry["since"] for entry in TABLE["later"] if TUNNELED in entry["names"])
    seen = 0
    for name, (facts, _) in expand_all().items():
        system: Any = facts.resources["OperatingSystem"]
        devices: Any = facts.resources.get("PciDevice")
        if system[0].state["product_type"] == 1 or system[0].state["build"] >= since:
            continue
        for device in devices:
            seen += 1
            assert "unknown" in (device.state["tunneled"] or {}), f"{name}: {device.key}"
    assert seen > 5
