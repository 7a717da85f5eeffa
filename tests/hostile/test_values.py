"""Hostile names go through the whole main job and come back unchanged, or are refused by name."""

import json
from pathlib import Path

import pytest

from tests.engine.world import World
from tests.errors import faults, raises
from tests.hostile.hosts import (
    EVERYTHING,
    HOST,
    called,
    names,
    unchanged,
    with_everything,
    with_refused,
    with_taken,
)
from winhost.core.answers import Unknown
from winhost.engine.failures import PlanRefused
from winhost.engine.planning import check_plan
from winhost.engine.store import Store
from winhost.engine.verify import verify_plan
from winhost.model.documents import read_document, write_document
from winhost.model.errors import UsageError, visible
from winhost.model.facts import Facts
from winhost.model.fleet import load_fleet
from winhost.model.plan import Plan
from winhost.resources.host import HostFacts


def world(value: str, folder: Path) -> World:
    return World(called(value), Store(folder / "state"), HOST)


def test_there_are_enough_of_them_and_no_two_are_the_same() -> None:
    assert len(set(EVERYTHING.values())) == len(EVERYTHING) >= 60
    assert {len(value) for value in EVERYTHING.values()} >= {0, 1, 255}


@pytest.mark.costly
@with_taken
def test_a_name_goes_through_the_whole_job_and_comes_back(value: str, tmp_path: Path) -> None:
    host = world(value, tmp_path)
    found = host.state()

    facts_file, plan_file = tmp_path / "facts.json", tmp_path / "plan.json"
    facts_file.write_text(write_document(host.facts()), encoding="utf-8")
    facts = read_document(facts_file, Facts)
    assert names(facts) == unchanged(value)

    made = host.plan(value)
    plan_file.write_text(write_document(made), encoding="utf-8")
    plan = read_document(plan_file, Plan)
    assert plan == made
    assert plan.request.vm == value

    assert host.apply(plan).outcome == "applied"
    applied = host.facts()
    assert names(applied) == unchanged(value)
    assert all(check.holds for check in verify_plan(check_plan(plan), HostFacts(applied)))

    assert host.rollback().outcome == "rolled back"
    assert host.state() == found


@with_refused
def test_half_a_character_is_refused_by_name(value: str, tmp_path: Path) -> None:
    host = world(value, tmp_path)
    facts = host.facts()
    vms = facts.answer("Vm")
    assert isinstance(vms, Unknown)
    assert "name" in vms.unknown.message
    assert visible(value) in vms.unknown.message
    with pytest.raises(PlanRefused) as refused:
        host.plan("files-01")
    assert "is not Unicode text" in "\n".join(refused.value.grounds.reasons)
    # All the rest is read, and can be written down.
    file = tmp_path / "facts.json"
    file.write_text(write_document(facts), encoding="utf-8")
    assert read_document(file, Facts) == facts


@with_refused
def test_a_file_with_half_a_character_is_refused(value: str, tmp_path: Path) -> None:
    file = tmp_path / "facts.json"
    document = json.loads(write_document(world("tame", tmp_path).facts()))
    document["resources"]["Session"][0]["state"]["user"] = value
    file.write_text(json.dumps(document), encoding="ascii")
    with raises("FileFaults", match=r"not JSON|Invalid JSON"):
        read_document(file, Facts)


@with_everything
def test_a_user_of_the_fleet_file_is_taken_as_it_is_or_refused_with_its_place(value: str, tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    transport = json.dumps({"user": value, "password": "env:SECRET"})
    file.write_text(f"schema: winhost.fleet/1\nhosts:\n  gpu-01:\n    transport: {transport}\n", encoding="ascii")
    try:
        (host,) = load_fleet(file).hosts
    except UsageError as refused:
        (fault,) = faults(refused)
        assert fault.startswith(f"{file}:4:")
        assert fault.isprintable()
        assert not value.isprintable() or value != value.strip() or not value
    else:
        assert host.transport.user == value
