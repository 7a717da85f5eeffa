"""One plan from Windows to an endpoint: over the guest or distro to what serves, in one run with one journal."""

from pathlib import Path

import pytest

from tests.hub.stand_in_hub import StandInHub
from tests.serving.one_plan import CONSENTS, hub, inside, join, lines_at_the_end, windows
from winhost.engine.planning import check_plan
from winhost.engine.verify import verify_plan
from winhost.lab.linux.serving import ServedEngines
from winhost.resources.host import HostFacts

__all__ = ["hub"]

PATHS = pytest.mark.parametrize("path", ["wsl2", "dda"])
STAYS = {"wsl2": {"Wsl"}, "dda": set()}  # winhost never downgrades WSL


@pytest.mark.costly
@PATHS
def test_it_is_one_run_from_windows_to_a_completion_and_back(tmp_path: Path, path: str, hub: StandInHub) -> None:
    here = windows(tmp_path, path)
    found = here.state()
    join(here, tmp_path, hub)
    plan = here.plan()
    assert {"EngineUnit", "ServingReady", "ContainerImage"} <= {each.resource for each in plan.deferred}
    outcome = here.apply(plan, CONSENTS)
    assert (outcome.outcome, outcome.holds, len(here.store.runs())) == ("applied", True, 1)
    assert inside(here).part(ServedEngines).serves()
    done = [event.step.resource for event in here.events if event.kind == "done" and event.step]
    assert done[-2:] == ["EngineUnit", "ServingReady"]
    said = "\n".join(lines_at_the_end(here, outcome))
    assert "Served:   chat, each" in said
    assert f"winhost open {here.host}" in said
    facts = HostFacts(here.facts(check_plan(plan).named))
    assert all(check.holds for check in verify_plan(check_plan(plan), facts))
    back = here.rollback(CONSENTS)
    assert back.outcome == "rolled back"
    now = here.state()
    assert {name for name in {*found, *now} if found.get(name) != now.get(name)} == STAYS[path]


@pytest.mark.costly
@PATHS
def test_planned_again_it_is_done(tmp_path: Path, path: str, hub: StandInHub) -> None:
    """Also by what the host says now, of GPUs that it gave away and of a WSL that runs."""
    here = windows(tmp_path, path)
    join(here, tmp_path, hub)
    assert here.apply(here.plan(), CONSENTS).holds
    join(here, tmp_path, hub)
    plan = here.plan()
    assert ([step.title for step in plan.steps], plan.deferred) == ([], ())
