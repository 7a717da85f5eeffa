"""The bundle of a plan with a new VM makes it by hand as a run does, gives it the GPUs, and takes it back whole."""

from functools import partial
from pathlib import Path

from tests.engine.new_vm_world import CONSENTS, new_vm_world
from tests.engine.world import EVERY_CONSENT
from tests.powershell.bundles import ByHand, a_person, twin, unpack

SOURCE = {"vhdx": {"source": r"D:\images\noble.vhdx", "sha256": "2" * 64}}


def test_it_is_made_by_hand_and_taken_back_without_a_trace(tmp_path: Path) -> None:
    other = new_vm_world(tmp_path / "other", **SOURCE)
    with a_person(other.machine) as person:
        here = ByHand(person, twin(other.machine), tmp_path / "journals")
        found, first = here.state(), other.plan()
        made = unpack(first, tmp_path / "first")
        done = here.apply(made, accept=EVERY_CONSENT)
        assert done.said["outcome"] == "applied", done.output
        # What had to wait for the VM is planned from facts that its own script wrote.
        seen = new_vm_world(tmp_path / "seen", **SOURCE)
        seen.machine = here.machine
        seen.__post_init__()
        second = seen.plan()
        assert [step.resource for step in second.steps][-1] == "VmPower"
        gpus = unpack(second, tmp_path / "second")
        done = here.apply(gpus, accept=EVERY_CONSENT)
        assert done.said.get("outcome") == "applied", done.output
        assert other.apply(first).holds
        assert here.state() == other.machine.comparable_state()
        back = partial(here.rollback, accept=CONSENTS)
        done = back(gpus)
        assert done.said.get("outcome") == "rolled back", done.output
        refused = here.rollback(made, accept=EVERY_CONSENT)
        assert refused.code != 0
        ended = back(made).said
        assert (ended["outcome"], ended["kept"]) == ("rolled back", [])
        assert here.state() == found
        assert not here.machine.software.registry_values
