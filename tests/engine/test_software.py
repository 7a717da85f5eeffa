"""Feature, file, WSL and driver model in one run: applied with its restart, kept where they must be, and given back."""

from pathlib import Path
from typing import Any

import pytest

from tests.engine.world import PLAYBOOK, World, world
from tests.errors import raises
from winhost.engine.failures import ConsentNeeded
from winhost.engine.planning import make_plan
from winhost.lab.physics.lab_section import LabSection
from winhost.model.plan import Plan, PlanRequest
from winhost.paths.playbook import parse_request
from winhost.resources.host import HostFacts

MSI = "db084e536279a59e90a26ec598d8aa8a4dff8309f41d078fd06242953ac1ebcd"
SOURCE = "https://github.com/microsoft/WSL/releases/download/2.7.14/wsl.2.7.14.0.x64.msi"
FILE = {"sha256": MSI, "name": "wsl.2.7.14.0.x64.msi", "source": SOURCE}
GPU = {"location": "PCIROOT(7B)#PCI(0100)#PCI(0000)", "device": "VEN_10DE&DEV_26B9&SUBSYS_185110DE"}


def entry(resource: str, key: dict[str, str], **desired: Any) -> dict[str, Any]:
    return {"resource": resource, "title": resource, "key": key, "desired": desired, "why": "It is wanted."}


RESOURCES = [  # not in the order in which it has to happen
    entry("Wsl", {}, version="2.7.14.0", package=MSI),
    entry("StagedFile", FILE, present=True),
    entry("GpuDriverModel", GPU, pending="MCDM"),
    entry("VirtualMachinePlatform", {}, feature="installed"),
]


def plan(here: World) -> Plan:
    return make_plan(
        HostFacts(here.facts()), parse_request(PlanRequest("dda", {**PLAYBOOK, "resources": RESOURCES}, "llm-01"))
    )


def physics(here: World, **lab: Any) -> None:
    here.machine.lab = LabSection.model_validate(here.machine.lab.model_dump() | lab)


@pytest.fixture
def here(tmp_path: Path) -> World:
    return world(tmp_path, "server2025-role-installed")


def test_it_comes_in_order_with_one_restart_and_goes_without_a_trace(here: World) -> None:
    before, made = here.state(), plan(here)
    order = [step.resource for step in made.stages[0].steps]
    assert set(order) == {entry["resource"] for entry in RESOURCES}
    assert order.index("Wsl") > max(order.index("StagedFile"), order.index("VirtualMachinePlatform"))
    assert made.risks == ("restart",)
    assert made.possible_risks == ("headless",)
    assert [step.irreversible for step in made.stages[0].steps] == [None] * 4

    assert here.apply(made).holds
    after = here.state()
    assert here.machine.boot == 2
    assert after["VirtualMachinePlatform"][0]["state"] == {"feature": "installed"}
    assert after["Wsl"][0]["state"] == {"present": True, "version": "2.7.14.0", "package": MSI}
    assert {"key": GPU, "state": {"current": "MCDM", "pending": "MCDM"}} in after["GpuDriverModel"]

    outcome = here.rollback()
    assert (outcome.holds, outcome.kept) == (True, ())
    assert here.state() == before


def test_nothing_is_begun_without_the_consent_to_restart(here: World) -> None:
    before, made = here.state(), plan(here)
    with pytest.raises(ConsentNeeded):
        here.apply(made, ())
    assert here.state() == before


def test_an_installer_that_is_busy_is_waited_for_and_the_run_goes_on(here: World) -> None:
    physics(here, sources={SOURCE: {"msiexec": (1618,)}})
    with raises("StepFailed", match="Another installation is in progress"):
        here.apply(plan(here))
    assert here.resume().holds
    assert here.state()["Wsl"][0]["state"]["version"] == "2.7.14.0"


def test_a_file_with_another_sum_ends_the_run_and_is_not_there(here: World) -> None:
    before = here.state()
    physics(here, sources={SOURCE: {"sha256": "0" * 64}})
    with raises("StepFailed", match="0000"):
        here.apply(plan(here))
    assert here.state()["StagedFile"] == []
    assert here.rollback().holds
    assert here.state() == before


def test_an_upgrade_says_that_it_stays_and_stays(tmp_path: Path) -> None:
    here = world(tmp_path, "server2025-role-installed")
    here.machine.software.wsl = "2.6.1.0"
    made = plan(here)
    (wsl,) = [step for step in made.stages[0].steps if step.resource == "Wsl"]
    assert "never downgrades" in str(wsl.irreversible)
    assert here.apply(made).holds
    outcome = here.rollback()
    assert outcome.kept == ("Wsl: kept: winhost never downgrades WSL",)
    left = here.state()
    assert left["Wsl"][0]["state"]["version"] == "2.7.14.0"
    assert left["VirtualMachinePlatform"][0]["state"] == {"feature": "available"}
    assert left["StagedFile"] == []


def test_wsl_that_updated_itself_meanwhile_is_somebody_else_s(here: World) -> None:
    assert here.apply(plan(here)).holds
    here.machine.software.wsl = "2.8.1.0"
    assert set(here.rollback().kept) == {
        "Wsl: kept: version changed since by somebody else",
        "VirtualMachinePlatform: kept: for Wsl, which came later; undo that, then do this again",
    }
    left = here.state()
    assert left["Wsl"][0]["state"]["version"] == "2.8.1.0"
    assert left["VirtualMachinePlatform"][0]["state"] == {"feature": "installed"}
