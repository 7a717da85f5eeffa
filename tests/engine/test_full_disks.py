"""A disk that a playbook would have formatted is refused by the plan where facts show that it is not empty."""

from pathlib import Path
from typing import Any

import pytest

from tests.engine.linux_world import LinuxWorld, linux_world
from winhost.engine.failures import PlanRefused

EMPTY, SYSTEM = "nvme1n1", "nvme0n1"
UUID = "5f0e2d7a-9d1c-4b8e-8f3a-1c2d3e4f5a6b"


def wanting(folder: Path, disk: str, **desired: Any) -> LinuxWorld:
    here = linux_world(folder)
    (key,) = [dict(each.key) for each in here.facts().resources["DataDisk"] if each.state["disk"] == disk]  # type: ignore[union-attr]
    made = {"resource": "DataDisk", "title": "The disk of the models", "key": key, "desired": desired, "why": "Room."}
    here.resources = [made]
    return here


def test_an_empty_one_is_planned(tmp_path: Path) -> None:
    plan = wanting(tmp_path, EMPTY, filesystem="ext4", label="models", uuid=UUID).plan()
    assert [(step.resource, step.risks) for step in plan.steps] == [("DataDisk", ("data",))]


def test_a_full_one_is_refused_with_what_is_on_it(tmp_path: Path) -> None:
    with pytest.raises(PlanRefused) as refused:
        wanting(tmp_path, SYSTEM, filesystem="ext4", label="models", uuid=UUID).plan()
    assert "nvme0n1 is not empty: nvme0n1: partition table gpt; " in str(refused.value.meaning)
    assert "winhost explain disk.not-empty" in str(refused.value.hint)


def test_what_holds_what_is_wanted_needs_nothing(tmp_path: Path) -> None:
    here = wanting(tmp_path, EMPTY, filesystem="ext4", label="models", uuid=UUID)
    assert here.apply(here.plan(), ("data",)).holds
    assert list(here.plan().steps) == []
