"""Hosts whose VM, switch, path and user have a hostile name."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.rows import each_row
from winhost.core.answers import Record
from winhost.lab.hostfile import expand, find
from winhost.lab.physics.lab_section import LabClock, LabSection
from winhost.lab.physics.simulated_machine import Machine
from winhost.model.facts import Answer, Facts

HOST = "gpu-03"
VM = "8d1f3c52-6a2e-4b7d-9c41-0e5f7a6b2d10"


def _read() -> tuple[dict[str, str], dict[str, str]]:
    """Values that are taken, and values that are refused, by the name of their case."""
    data = yaml.safe_load((Path(__file__).parents[1] / "data" / "powershell" / "hostile.yaml").read_text("utf-8"))
    taken: dict[str, str] = {}
    refused: dict[str, str] = {}
    for name, case in data.items():
        assert set(case) <= {"value", "refused"}, f"{name}: a key that this harness does not know"
        (refused if case.get("refused") else taken)[name] = case["value"]
    return taken, refused


TAKEN, REFUSED = _read()
EVERYTHING = TAKEN | REFUSED

with_taken = each_row("value", TAKEN.values(), ids=TAKEN)
with_refused = each_row("value", REFUSED.values(), ids=REFUSED)
with_everything = each_row("value", EVERYTHING.values(), ids=EVERYTHING)


@cache
def _as_shipped() -> tuple[Facts, LabSection]:
    return expand(find("server2025-role-installed"))


def called(value: str) -> Machine:
    """A host with the role and the VM that gets the GPUs, on which everything that can have a name has this one."""
    facts, section = _as_shipped()
    (switch,) = _records(facts, "VmSwitch")
    (gpu, *gpus) = _records(facts, "PartitionableGpu")
    (session,) = _records(facts, "Session")
    resources: dict[str, Answer] = {
        "Vm": tuple(_with(vm, name=value) if vm.key["vm"] == VM else vm for vm in _records(facts, "Vm")),
        # A switch without an adapter tells of none, not of one without a name.
        "VmSwitch": (_with(switch, name=value, adapter=value or None),),
        "PartitionableGpu": (Record(gpu.state, {"gpu": value}), *gpus),
        "Session": (_with(session, user=value),),
    }
    return Machine(replace(facts, resources={**facts.resources, **resources}), section, LabClock(0))


def names(facts: Facts) -> list[Any]:
    """The same values, as they came back: of VM, switch, its adapter, path and user."""
    (vm,) = (vm for vm in _records(facts, "Vm") if vm.key["vm"] == VM)
    (switch,) = _records(facts, "VmSwitch")
    (session,) = _records(facts, "Session")
    (gpu, *_) = _records(facts, "PartitionableGpu")
    return [vm.state["name"], switch.state["name"], switch.state["adapter"], gpu.key["gpu"], session.state["user"]]


def unchanged(value: str) -> list[Any]:
    """Return what `names` is expected to report for a value."""
    return [value, value, value or None, value, value]


def _records(facts: Facts, resource: str) -> tuple[Record, ...]:
    answer = facts.resources[resource]
    assert isinstance(answer, tuple)
    return answer


def _with(record: Record, **state: Any) -> Record:
    changed: Mapping[str, Any] = {**record.state, **state}
    return Record(changed, record.key)
