"""The bundles of a plan with a new VM set up its guest by hand as a run does: PowerShell on the host, run.py inside."""

import json
from functools import partial
from pathlib import Path

import pytest

from tests.engine.guest_world import guest_world
from tests.engine.new_vm_world import CONSENTS, NAME
from tests.linux.by_hand import InLinux
from tests.powershell.bundles import ByHand, a_person, twin, unpack
from winhost.model.facts import Facts
from winhost.resources.registry import LINUX

pytestmark = pytest.mark.real
SOURCE = {"vhdx": {"source": r"D:\images\noble.vhdx", "sha256": "2" * 64}}


def test_a_guest_is_set_up_by_hand_and_known_by_its_own_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Round after round, each planned from what the scripts of the one before it told."""
    there = guest_world(tmp_path)
    there.settings = {**there.settings, **SOURCE}
    with a_person(there.machine) as person:
        here = ByHand(person, twin(there.machine), tmp_path / "journals")
        found = here.state()
        there.machine = here.machine
        there.__post_init__()
        inside = InLinux(there, tmp_path / "inside", monkeypatch)  # type: ignore[arg-type]
        made: list[Path] = []
        on_windows: list[Path] = []
        for number in range(1, 10):
            facts: Facts = inside.facts(made[-1] / "linux") if there.guests.find_sshd() else there.facts()
            plan = there.plan_of(facts)
            if not list(plan.steps):
                break
            made.append(unpack(plan, tmp_path / f"{number}"))
            assert "PRIVATE KEY" not in (made[-1] / "plan.json").read_text("utf-8")
            if any(step.resource not in LINUX for step in plan.steps):
                on_windows.append(made[-1])
            done = here.apply(made[-1], accept=CONSENTS)
            assert done.said.get("outcome") in ("applied", "nothing to do"), done.output
            if any(step.resource in LINUX for step in plan.steps):
                result = inside.run(made[-1] / "linux", "apply")
                assert result.code == 0, result.document
                assert inside.run(made[-1] / "linux", "verify").code == 0
        assert len(here.machine.devices_in_guest(there.made.guid)) == 3
        kept = json.loads(here.machine.software.registry_values[f"seed {NAME}"])
        assert (kept["retired"], kept["host_keys"]) == (True, [there.guest.distro.host_key])
        assert there.guests.has_new_host_key(there.made)
        back = partial(here.rollback, accept=CONSENTS)
        for each in reversed(on_windows):
            assert back(each).said.get("outcome") == "rolled back", each.name
        assert here.state() == found
        assert not here.machine.software.registry_values
