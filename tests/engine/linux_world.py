"""A simulated Linux of its own with a controller's store, without a wire between them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.engine.world import World
from winhost.connect.agent import Agent
from winhost.engine.planning import make_plan
from winhost.engine.store import Store
from winhost.lab.hostfile import expand
from winhost.lab.linux.linuxes import LinuxHost
from winhost.lab.physics.lab_section import LabClock, LabSection
from winhost.model.facts import Facts
from winhost.model.plan import Plan, PlanRequest
from winhost.model.shipped import shipped
from winhost.paths.playbook import parse_request, read_playbook
from winhost.resources.host import HostFacts
from winhost.resources.registry import LINUX
from winhost.resources.shape import check_records

EXAMPLES = Path(__file__).parents[2] / "examples/linux"
CONSENTS = ("restart", "packages", "containers")


class LinuxWorld(World):
    """settings: of the next plans."""

    own: LinuxHost
    settings: Mapping[str, Any]
    resources: Sequence[Any] | None = None

    def open(self) -> Agent:
        wire = super().open().wire
        return Agent(wire, 60, check_records, "linux")

    def plan(self, vm: str | None = None, **request: Any) -> Plan:
        book = read_playbook(shipped("playbooks") / "linux.yaml").model_dump(by_alias=True, mode="json")
        book["settings"] |= self.settings
        if self.resources is not None:
            book["resources"] = self.resources
        asked = parse_request(PlanRequest("linux", book, **request))
        return make_plan(HostFacts(self.facts(asked.playbook.named)), asked)

    def state(self) -> dict[str, Any]:
        """What is to be as it was, once everything was given back."""
        self.machine.wait_until_ready()
        read = self.open().read([each for each in LINUX if each != "LinuxBoot"])
        return {name: answer if isinstance(answer, tuple) else str(answer) for name, answer in read.items()}


def linux_world(folder: Path, example: str = "ubuntu-2xh100", **settings: Any) -> LinuxWorld:
    return world_of(*expand(EXAMPLES / f"{example}.json"), folder, **settings)


def world_of(facts: Facts, section: LabSection, folder: Path, **settings: Any) -> LinuxWorld:
    own = LinuxHost(facts, section, LabClock(0))
    here = LinuxWorld(own.machine, Store(folder), facts.host)
    here.own, here.settings, here.answers = own, settings, own.answers  # type: ignore[assignment]
    return here
