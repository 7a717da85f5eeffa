"""A host with a bundle for it, and the person who runs its scripts."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.engine.world import PLAYBOOK, World, world
from tests.powershell.bundles import (
    ByHand,
    Done,
    Person,
    WatchedCmdlets,
    a_person,
    twin,
    unpack,
)
from tests.powershell.twins import machine
from winhost.engine.planning import make_plan
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.powershell import powershell_engine
from winhost.model.documents import plain
from winhost.model.facts import Facts
from winhost.model.plan import Plan, PlanRequest
from winhost.paths.playbook import parse_request
from winhost.resources.host import HostFacts

INSTALLED = "server2025-role-installed"


@pytest.fixture(scope="module")
def person() -> Iterator[Person]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(powershell_engine, "CmdletProcess", WatchedCmdlets)
        with a_person(machine(INSTALLED)) as one:
            yield one


def plan_from(facts: Facts) -> Plan:
    return make_plan(HostFacts(facts), parse_request(PlanRequest("dda", PLAYBOOK, "llm-01")))


@dataclass
class Case:
    """A host with a bundle for it, and the same host for `apply`."""

    here: ByHand
    made: Path
    plan: Plan
    other: World


@pytest.fixture
def case(person: Person, tmp_path: Path) -> Callable[..., Case]:
    def make(host: str = INSTALLED, found: Callable[[Machine], None] = lambda _: None) -> Case:
        other = world(tmp_path / "store", host)
        found(other.machine)
        plan = other.plan(vm=next(iter(other.machine.vms)))
        here = ByHand(person, twin(other.machine), tmp_path / "journals")
        return Case(here, unpack(plan, tmp_path / "bundle"), plan, other)

    return make


def journals_of(here: ByHand, made: Path) -> list[Path]:
    """A journal is named by the sum of its plan."""
    return list(here.journals.glob(f"{sha256((made / 'plan.json').read_bytes()).hexdigest()[:16]}.*.jsonl"))


def as_compared(steps: Any) -> list[dict[str, Any]]:
    names = ("resource", "key", "role", "before", "desired", "title", "risks")
    return [{name: step[name] for name in names} for step in plain(steps)]


def left_open(done: Done, says: str) -> None:
    """It changed nothing, kept nothing, and says what is missing and the next command."""
    assert (done.code, done.said["outcome"], done.said["kept"]) == (1, "not all rolled back", [])
    assert all(says in lacks["why"] for lacks in done.said["missing"])
    assert [line.rpartition(" ")[2] for line in done.said["next"]] == [r".\Rollback.ps1"]
