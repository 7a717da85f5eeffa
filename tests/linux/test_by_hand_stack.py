"""The bundles of a plan for an endpoint end in the state of `apply`, and can be rolled back."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.engine.world import World
from tests.engine.wsl2_world import wsl2_world
from tests.hub.stand_in_hub import StandInHub
from tests.linux.by_hand import InLinux, OnOwnLinux, with_windows_done
from tests.linux.unpacked import unpack_linux
from tests.serving.one_plan import CONSENTS, KEY, hub, inside, join, windows
from tests.serving.stacks import request, stack_on
from tests.serving.test_day_two import made as driver_and_stack
from tests.serving.test_day_two import upgraded
from winhost.bundle.bundle_files import bundle
from winhost.lab.linux.serving import ServedEngines
from winhost.model.workload import ModelState

__all__ = ["hub"]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="run.py wants root, and folders of root's")


def texts(here: World) -> dict[str, str]:
    """Return the texts of all files but the agent's records, which have the name of the run and numbers of inodes."""
    return {path: text for path, text in inside(here).texts().items() if not path.startswith("/var/lib/winhost/")}


@pytest.mark.costly
def test_its_bundles_end_at_the_endpoint_where_apply_ends_and_go_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hub: StandInHub
) -> None:
    other = wsl2_world(tmp_path / "other")
    join(other, tmp_path, hub)
    assert other.apply(other.plan(), CONSENTS).holds
    here = wsl2_world(tmp_path / "store")
    join(here, tmp_path, hub)
    hand = InLinux(with_windows_done(here), tmp_path / "journals", monkeypatch)
    found, files = hand.linux_state(), texts(here)
    plan, bundles = hand.plan(unpack_linux(here.plan(), tmp_path / "reader")), []
    while list(plan.steps):
        made = unpack_linux(plan, tmp_path / f"linux-{len(bundles)}")
        bundles.append(made)
        done = hand.run(made, "apply", "--accept", ",".join(CONSENTS))
        assert (done.code, done.document.get("outcome")) == (0, "applied"), done.document
        assert hand.run(made, "verify").code == 0
        plan = hand.plan(made)
    assert inside(here).part(ServedEngines).serves()
    assert (here.state(), texts(here)) == (other.state(), texts(other))
    for made in reversed(bundles):
        done = hand.run(made, "rollback", "--accept", ",".join(CONSENTS))
        assert (done.document.get("outcome"), done.document.get("kept")) == ("rolled back", []), done.document
    assert (hand.linux_state(), texts(here)) == (found, files)


@pytest.mark.costly
def test_engines_that_take_turns_are_waited_for_after_a_bundle_replaced_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The endpoint was ready when the bundle was written, so no step waits for it."""
    here, _ = driver_and_stack(tmp_path / "store")
    hand = OnOwnLinux(here, tmp_path / "journals", monkeypatch)
    for asked in (request(), upgraded()):
        asleep = tuple(replace(each, state=ModelState.SLEEPING) for each in asked.workload.models)
        stack_on(here, replace(asked, workload=replace(asked.workload, models=asleep)))
        while list((plan := here.plan()).steps):  # the first one takes two bundles: it brings the keeper
            done = hand.run(unpack_linux(plan, tmp_path / "linux"), "apply", "--accept", ",".join(CONSENTS))
            assert (done.code, done.document.get("outcome")) == (0, "applied"), done.document
            resources = {step.resource for step in plan.steps}
    assert "ServingReady" not in resources
    assert "ServingReady" in {each["resource"] for each in done.document["checks"]}


@pytest.mark.parametrize("path", ["wsl2", "dda"])
def test_what_is_read_first_names_all_that_comes_and_no_key(tmp_path: Path, hub: StandInHub, path: str) -> None:
    here = windows(tmp_path, path)
    join(here, tmp_path, hub)
    files = bundle(here.plan())
    readme = files["README.md"].decode()
    for part in ("vLLM", "Files of chat", "Engine of chat", "winhost-gateway.service", "A completion of each model"):
        assert part in readme, part
    assert [name for name, content in files.items() if KEY.encode() in content] == []
