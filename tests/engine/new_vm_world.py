"""A simulated Hyper-V on which winhost makes the VM that gets the GPUs."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from tests.engine.world import EVERY_CONSENT, PLAYBOOK, World
from winhost.engine.planning import make_plan
from winhost.engine.store import Store
from winhost.lab.hostfile import expand, find
from winhost.lab.physics.lab_section import LabClock, LabSection
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.virtual_machine import VirtualMachine
from winhost.model.facts import Facts
from winhost.model.plan import Plan, PlanRequest
from winhost.paths.playbook import PathRequest, parse_request
from winhost.resources.host import HostFacts

NAME = "llm-02"
CONTENT = b"as good as a VHDX to a simulated host"
IMAGE = sha256(CONTENT).hexdigest()
NEW_VM: Mapping[str, Any] = {
    "name": NAME,
    "cpus": 8,
    "memory": "32 GiB",
    "disk": "100 GiB",
    "vhdx": {"source": "./noble.vhdx", "sha256": IMAGE},
}
CONSENTS = (*EVERY_CONSENT, "data")


@dataclass
class NewVmWorld(World):
    """settings: of the new VM; joined: a playbook with more, in place of the shipped one with these."""

    back: Sequence[str] | None = CONSENTS
    settings: Mapping[str, Any] = field(default_factory=lambda: NEW_VM)
    joined: Mapping[str, Any] | None = None

    def plan(self, vm: str | None = None, **request: Any) -> Plan:
        asked = self.request(vm, **request)
        return make_plan(HostFacts(self.facts(asked.playbook.named)), asked)

    def plan_of(self, facts: Facts, vm: str | None = None, **request: Any) -> Plan:
        return make_plan(HostFacts(facts), self.request(vm, **request))

    def request(self, vm: str | None = None, **more: Any) -> PathRequest:
        book = dict(copy.deepcopy(PLAYBOOK) if self.joined is None else self.joined)
        if self.joined is None:
            book["settings"] = {"new_vm": dict(self.settings)}
        return parse_request(PlanRequest("dda", book, vm, **more))

    def state(self) -> dict[str, Any]:
        """Also what no resource tells: winhost's records and files, and what is told of a VM without its mark."""
        self.machine.wait_until_ready()
        files = sorted(path for path in self.machine.files.list_below("D:") if "winhost" in path)
        record = {
            name: value for name, value in self.machine.software.registry_values.items() if not name.startswith("vm ")
        }
        return {**super().state(), "files": files, "record": record}

    @property
    def made(self) -> VirtualMachine:
        return next(vm for vm in self.machine.vms.values() if vm.name == NAME)


def new_vm_world(
    folder: Path, host: str = "server2025-role-installed", lab: Mapping[str, Any] | None = None, **settings: Any
) -> NewVmWorld:
    """With the image beside the plan."""
    facts, section = expand(find(host))
    machine = Machine(facts, LabSection.model_validate({**section.model_dump(), **(lab or {})}), LabClock(0))
    beside = folder / "beside"
    beside.mkdir(parents=True, exist_ok=True)
    (beside / "noble.vhdx").write_bytes(CONTENT)
    return NewVmWorld(machine, Store(folder / "state"), facts.host, folder=beside, settings={**NEW_VM, **settings})
