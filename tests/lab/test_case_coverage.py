"""Every resource meets every kind of case that can happen to it, among those in which scripts and lab are compared."""

from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.cases import read_cases
from tests.powershell.cases import CASES, WORLDS, read
from tests.powershell.twins import contract, hosts, machine
from tests.rows import each_row
from winhost.lab.physics.windows_errors import agent_error
from winhost.resources.registry import WINDOWS

DATA = Path(__file__).parents[1] / "data" / "lab"
SETTABLE = {name: resource for name, resource in WINDOWS.items() if resource.sets}
OF_EVERY_SET = {"changed", "as it was", "drift", "refused by name", "wrong state", "denied"}
# What cannot happen, and why.
NEVER = {
    "VmCheckpoints": {"wrong state"},  # its cmdlet takes them from a VM in any state
    "HyperVFirewall": {"wrong state"},  # so does its own
}
_ELEVATION = "0x800702E4"  # by which DISM says so
FOR_ADMINISTRATORS = {"HyperVRole", "VirtualMachinePlatform", "StagedFile", "BitLocker"}
FOR_ADMINISTRATORS |= {name for name, resource in WINDOWS.items() if resource.requires}


def kind(answer: dict[str, Any]) -> str:
    """What sort of thing happened."""
    if answer["ok"]:
        return "changed" if answer["before"] != answer["after"] else "as it was"
    if "error" not in answer:
        return "drift" if "drift" in answer else "unavailable"
    error = answer["error"]
    named = {"Winhost.NotFound": "not there", "Winhost.BadRequest": "refused by name", "Winhost.Skipped": "skipped"}
    if error["category"] == "PermissionDenied" or _ELEVATION in error["hresults"]:
        return "denied"
    return named.get(error["code"], "wrong state")


def sets() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Every set of every case in every world, with its answer."""
    for name in CASES:
        for world in WORLDS:
            case = read(name)
            host = case.machine(world)
            alone = False  # of what the script leaves after a call that the lab was not asked, it has nothing here
            for said, (batch, asked) in zip(case.say, case.settled(host), strict=False):
                answers = [*zip(asked, contract(host, *asked) if asked else (), strict=True)]
                answers += [(call, _said(said)) for call in batch if call not in asked]
                alone = alone or len(asked) < len(batch)
                if alone and said == "drift":
                    answers = [(call, _said(said)) for call in batch]
                yield from ((call, answer) for call, answer in answers if call["verb"] == "set")


def _said(said: str) -> dict[str, Any]:
    """The answer of the script alone, as its case has it."""
    if said == "drift":
        return {"ok": False, "drift": {}}
    return {"ok": False, "error": agent_error(said.removeprefix("Winhost."), "", "").as_json()}


@cache
def answered() -> tuple[tuple[dict[str, Any], dict[str, Any]], ...]:
    return tuple(sets())


@cache
def kinds() -> dict[str, set[str]]:
    """Of each resource, and of each of its properties that were wanted."""
    found: dict[str, set[str]] = defaultdict(set)
    for call, answer in answered():
        for what in (call["resource"], *(f"{call['resource']}.{name}" for name in call.get("desired", ()))):
            found[what].add(kind(answer))
    return found


@cache
def met() -> set[str]:
    """The errors that a case meets, in a script or in the physics of the lab."""
    errors = [answer["error"] for _, answer in answered() if "error" in answer]
    found = {f"{error['cmdlet']} {error['hresults'][-1]}" for error in errors if error["cmdlet"]}
    found |= {error["code"].split(",")[0] for error in errors}
    fails = [case["fails"] for case in read_cases(DATA / "physics.yaml").values() if "fails" in case]
    return found | {f"{each['cmdlet']} {each['hresult']}" for each in fails}


@pytest.mark.costly
@each_row("name", read_cases(DATA / "rehearsed.yaml"))
def test_a_rehearsal_shows_what_it_must(name: str) -> None:
    assert name in met()


@each_row("name", SETTABLE)
def test_every_kind_of_set_happens_to_every_resource_that_can_be_set(name: str) -> None:
    resource = SETTABLE[name]
    desired = (
        OF_EVERY_SET
        | ({"not there"} if resource.key and resource.absent is None else set())
        | ({"unavailable"} if resource.requires else set())
    )
    assert desired - NEVER.get(name, set()) - kinds()[name] == set()
    assert NEVER.get(name, set()) & kinds()[name] == set(), "it can happen after all"


@each_row("name", [f"{name}.{each}" for name, resource in SETTABLE.items() for each in resource.sets])
def test_every_property_that_can_be_set_is_changed(name: str) -> None:
    assert "changed" in kinds()[name]


@each_row("name", sorted(FOR_ADMINISTRATORS))
def test_every_resource_that_is_not_for_everybody_is_read_by_somebody_who_may_not(name: str) -> None:
    ask = {"resource": name, "verb": "get"}
    answers = (str(contract(machine(host, administrator=False), ask)) for host in hosts())  # the first will do
    assert any("PermissionDenied" in answer or _ELEVATION in answer for answer in answers)
