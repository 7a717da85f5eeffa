"""Refusals of a bundle, which change nothing and start nothing."""

import json
import os
import subprocess
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.engine.world import EVERY_CONSENT
from tests.powershell.bundle_cases import INSTALLED, Case, case, person
from tests.powershell.bundles import (
    ByHand,
    Person,
    give_rights,
)
from tests.powershell.conftest import BUSY_S
from tests.powershell.twins import machine
from winhost.bundle.bundle_files import HEADS, SCRIPTS, SHARED, SUMS, scripts, sums
from winhost.connect.wire_errors import Drifted
from winhost.engine.failures import ConsentNeeded
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.powershell.powershell_engine import find_engine

__all__ = ["case", "person"]


def refuse(it: Case, done: Any, code: int, kind: str, found: Any) -> None:
    assert (done.code, done.refused) == (code, kind)
    assert it.here.state() == found
    assert not list(it.here.journals.glob("*.jsonl"))


def test_nothing_is_begun_without_each_consent(case: Callable[..., Case]) -> None:
    it = case()
    found = it.here.state()
    done = it.here.apply(it.made, accept=["vm-stop"])
    refuse(it, done, 2, "ConsentNeeded", found)
    with pytest.raises(ConsentNeeded) as needed:
        it.other.apply(it.plan, ["vm-stop"])
    assert done.said["error"]["meaning"] == needed.value.meaning
    assert done.said["error"]["hint"].endswith("-Accept vm-stop,force-dismount")


def test_consents_for_going_there_are_none_for_going_back(case: Callable[..., Case]) -> None:
    it = case()
    it.here.apply(it.made)
    made = it.here.state()
    assert it.here.rollback(it.made, accept=[]).refused == "ConsentNeeded"
    assert it.here.state() == made
    assert it.here.apply(it.made).said["outcome"] == "nothing to do"


def test_a_word_that_is_no_consent_is_refused(case: Callable[..., Case]) -> None:
    it = case()
    refuse(it, it.here.apply(it.made, accept=["vm-stopp"]), 2, "UnknownRisk", it.here.state())


def test_drift_is_refused_with_each_difference(case: Callable[..., Case]) -> None:
    it = case()
    for host in (it.here.machine, it.other.machine):
        vm = it.other.vm()
        host.stop_vm(vm, timeout=300)
        host.set_vm(vm, checkpoint_type="standard", low=256 << 20)
    done = it.here.apply(it.made)
    refuse(it, done, 4, "Drifted", it.here.state())
    with pytest.raises(Drifted) as drift:
        it.other.apply(it.plan)
    said = [line.split(" was ")[0] for line in done.said["error"]["meaning"].splitlines()]
    assert sorted(said) == sorted(drift.value.differences)
    assert it.here.apply(it.made, "-WhatIf").code == 4


def test_what_no_step_shows_is_not_changed(case: Callable[..., Case]) -> None:
    """The automatic actions stood as wanted when the plan was made, so no step of it is about them."""

    def act(machine: Machine, stop: str) -> None:
        for vm in machine.vms:
            machine.stop_vm(vm, timeout=300)
            machine.set_vm(vm, stop_action=stop, start_action="start")

    it = case(found=lambda machine: act(machine, "turn-off"))
    for host in (it.here.machine, it.other.machine):
        act(host, "save")
    done = it.here.apply(it.made)
    refuse(it, done, 4, "Drifted", it.here.state())
    with pytest.raises(Drifted) as drift:
        it.other.apply(it.plan)
    said = [line.split(" was ")[0] for line in done.said["error"]["meaning"].splitlines()]
    assert sorted(said) == sorted(drift.value.differences) == ["Automatic actions of llm-01: stop"]


def test_a_vm_that_was_started_since_is_not_stopped(case: Callable[..., Case]) -> None:
    """The plan saw it off, so no step of it says that it is shut down."""

    def stop(machine: Machine) -> None:
        for vm in machine.vms:
            machine.stop_vm(vm, timeout=300)

    it = case(found=stop)
    assert "need" not in {step.role for step in it.plan.steps}
    it.here.machine.start_vm(it.other.vm())
    done = it.here.apply(it.made)
    refuse(it, done, 4, "Drifted", it.here.state())
    assert done.said["error"]["meaning"].endswith(": state was off, is running")


def test_the_consents_are_those_of_the_steps_in_the_plan(case: Callable[..., Case]) -> None:
    it = case()
    plan = json.loads((it.made / "plan.json").read_text("utf-8"))
    plan["stages"][0]["steps"][-1]["risks"].append("data")
    made = with_plan(it.made, json.dumps(plan).encode())
    done = it.here.apply(made)
    refuse(it, done, 2, "ConsentNeeded", it.here.state())
    assert done.said["error"]["hint"].endswith(",data")
    assert it.here.apply(made, accept=[*EVERY_CONSENT, "data"]).said["outcome"] == "applied"


def test_another_machine_is_refused(case: Callable[..., Case], person: Person, tmp_path: Path) -> None:
    it = case()
    it.here = ByHand(person, machine("server2022-2gpu"), tmp_path / "others")
    found = it.here.state()
    refuse(it, it.here.apply(it.made), 2, "WrongHost", found)
    assert not it.here.journals.exists()
    assert it.here.verify(it.made).refused == "WrongHost"


def test_only_an_administrator_changes_anything(case: Callable[..., Case], person: Person, tmp_path: Path) -> None:
    it = case()
    it.here = ByHand(person, machine(INSTALLED, administrator=False), tmp_path / "others")
    refuse(it, it.here.apply(it.made), 2, "NotAdministrator", it.here.state())
    assert not it.here.journals.exists()


def test_one_run_at_a_time(case: Callable[..., Case], person: Person) -> None:
    it = case()
    it.here.journals.mkdir()
    give_rights(it.here.journals)
    person.hold(it.here.journals / "lock")
    refuse(it, it.here.apply(it.made), 1, "Busy", it.here.state())


def test_there_is_nothing_to_roll_back_before_anything_was_done(case: Callable[..., Case]) -> None:
    it = case()
    refuse(it, it.here.rollback(it.made), 2, "UnknownRun", it.here.state())


@pytest.mark.parametrize("name", ["plan.json", "Apply.ps1", "Winhost.ps1", "README.md"])
def test_a_file_that_is_not_as_it_was_made_stops_every_script(case: Callable[..., Case], name: str) -> None:
    it = case()
    found = it.here.state()
    (it.made / name).write_bytes((it.made / name).read_bytes() + b"\n")
    for done in (it.here.apply(it.made), it.here.rollback(it.made), it.here.verify(it.made)):
        refuse(it, done, 2, "Changed", found)
        assert name in done.said["error"]["what"]
    (it.made / "SHA256SUMS").unlink()
    refuse(it, it.here.apply(it.made), 2, "Changed", found)


def test_a_shared_part_that_was_changed_never_runs(case: Callable[..., Case], person: Person, tmp_path: Path) -> None:
    it = case()
    shared, trace = it.made / SHARED, tmp_path / "it-ran"
    shared.write_bytes(f"[System.IO.File]::WriteAllText('{trace}', '')\n".encode() + shared.read_bytes())
    for name in HEADS:
        assert person.run(it.here.machine, it.made / name).code == 2, name
    shared.unlink()
    refuse(it, it.here.apply(it.made), 2, "Changed", it.here.state())
    assert not trace.exists()


def test_a_shared_part_that_is_missing_is_told_also_where_a_profile_is_strict(tmp_path: Path) -> None:
    """Facts.ps1 has no -Json, and a variable that was never set is an error there."""
    (tmp_path / "Facts.ps1").write_bytes(scripts()["Facts.ps1"])
    strict = f"Set-StrictMode -Version Latest; & '{tmp_path}/Facts.ps1'"
    command = [find_engine(), "-NoLogo", "-NoProfile", "-NonInteractive", "-Command", strict]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=BUSY_S)
    assert done.stderr.startswith("error: Winhost.ps1 is not as SHA256SUMS says"), done.stderr
    assert "cannot be retrieved" not in done.stdout + done.stderr


def test_a_folder_with_brackets_in_its_name_is_one_like_any_other(
    case: Callable[..., Case], person: Person, tmp_path: Path
) -> None:
    it = case()
    made = it.made.rename(it.made.with_name("bundle [1]"))
    # What the first one's name fits as a pattern, and Windows PowerShell would run in its place.
    other = made.with_name("bundle 1")
    other.mkdir()
    (other / SHARED).write_text("exit 77\n", "ascii")
    assert it.here.verify(made).code == 4
    # The person's own folder is as before, and what a parameter names lies there.
    stands = tmp_path / "stands.ps1"
    facts = f"& '{made}/Facts.ps1' -OutFile facts.json"
    stands.write_text(f"Push-Location -LiteralPath '{tmp_path}'\n{facts}\nPop-Location\n", "ascii")
    person.run(it.here.machine, stands)
    assert (tmp_path / "facts.json").is_file()


def test_a_prompt_stays_where_it_was_if_the_shared_part_may_not_run(
    case: Callable[..., Case], person: Person, tmp_path: Path
) -> None:
    it = case()
    blocked = b"throw 'blocked'\n"
    (it.made / SHARED).write_bytes(blocked)
    (it.made / "SHA256SUMS").write_text(f"{sha256(blocked).hexdigest()}  {SHARED}\n", "ascii")
    stands, stood = tmp_path / "stands.ps1", tmp_path / "stood"
    started = f"try {{ & '{it.made}/Verify.ps1' }}\ncatch {{ [System.IO.File]::WriteAllText('{stood}', $PWD.Path) }}\n"
    stands.write_text(f"Push-Location -LiteralPath '{tmp_path}'\n{started}Pop-Location\n", "ascii")
    person.run(it.here.machine, stands)
    assert stood.read_text() == str(tmp_path)


@pytest.mark.skipif(os.name == "nt", reason="there a folder stays while a process is in it")
def test_a_prompt_whose_folder_is_gone_is_told_so(case: Callable[..., Case], person: Person, tmp_path: Path) -> None:
    it = case()
    gone, stands = tmp_path / "gone", tmp_path / "stands.ps1"
    gone.mkdir()
    removed = f"[System.IO.Directory]::Delete('{gone}')"
    stands.write_text(
        f"Push-Location -LiteralPath '{gone}'\n{removed}\n& '{it.made}/Verify.ps1' -Json\nSet-Location -LiteralPath /\n"
    )
    done = person.run(it.here.machine, stands)
    assert (done.code, done.refused) == (2, "NoFolder")


@pytest.mark.parametrize(
    "words", [("-Acept", "restart"), ("restart",), ("-GuestDeadline", "soon"), ("-GuestDeadline", "86401")]
)
def test_what_is_misspelt_is_wrong_usage(case: Callable[..., Case], words: tuple[str, ...]) -> None:
    it = case()
    refuse(it, it.here.apply(it.made, *words), 2, "Usage", it.here.state())
    assert it.here.rollback(it.made, *words).refused == "Usage"


def test_scripts_that_only_look_tell_wrong_usage_too(case: Callable[..., Case], person: Person) -> None:
    it = case()
    for name in ("Verify.ps1", "Facts.ps1"):
        assert person.run(it.here.machine, it.made / name, "-Jsom").code == 2


def with_plan(made: Path, text: bytes) -> Path:
    """The bundle with another plan, and the sums of that."""
    (made / "plan.json").write_bytes(text)
    names = (*SCRIPTS, "plan.json", "README.md")
    (made / SUMS).write_bytes(sums({name: (made / name).read_bytes() for name in names}))
    return made


def test_a_plan_with_a_byte_order_mark_is_read(case: Callable[..., Case]) -> None:
    it = case()
    made = with_plan(it.made, b"\xef\xbb\xbf" + (it.made / "plan.json").read_bytes())
    assert it.here.apply(made).said["outcome"] == "applied"
    assert it.here.verify(made).code == 0


@pytest.mark.parametrize(
    ("text", "says"), [(b"", "is empty"), (b" \r\n", "is empty"), (b"{", "is no JSON"), (b"[]", "winhost.plan/3")]
)
def test_what_is_no_plan_is_said_plainly(case: Callable[..., Case], text: bytes, says: str) -> None:
    it = case()
    done = it.here.apply(with_plan(it.made, text))
    refuse(it, done, 2, "WrongDocument", it.here.state())
    assert f"plan.json {says}" in done.said["error"]["what"].replace("has the schema , not ", "")
