"""Ubuntu installed beside Windows by a run: up to it, on in it, and back from it to where Windows was before."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.engine.ubuntu_world import UbuntuWorld, ubuntu_world
from winhost.engine import installing
from winhost.engine.failures import ConsentNeeded, RunInterrupted
from winhost.engine.planning import check_plan
from winhost.engine.run import apply
from winhost.lab.physics.disks import Disks
from winhost.lab.physics.firmware import FirmwarePart
from winhost.lab.physics.installer import TICKET
from winhost.model.reason import Refusal
from winhost.paths.new_ubuntu import NewUbuntu, UbuntuDecisions
from winhost.resources.host import HostFacts


@pytest.fixture(autouse=True)
def last_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINHOST_LAST_GROUP", "888888")


def assert_gives_back(here: UbuntuWorld, found: dict[str, Any], at: object) -> None:
    outcome = here.rollback()
    assert (outcome.outcome, outcome.kept) == ("rolled back", ()), at
    assert here.state() == found, at


def titles(here: UbuntuWorld, kind: str) -> list[str]:
    return [event.text for event in here.events if event.kind == kind]


def test_a_run_ends_in_ubuntu_with_its_driver_and_back_in_windows_as_it_was(tmp_path: Path) -> None:
    here = ubuntu_world(tmp_path)
    found = here.state()
    outcome = here.apply(here.plan())
    assert outcome.holds
    assert here.runs_linux
    facts = here.facts()
    assert facts.host == here.host
    shown = facts.resources["ShownGpus"]
    assert isinstance(shown, tuple)
    assert shown[0].state["count"] == 1
    boot = here.machine.part(FirmwarePart).boot
    assert boot["order"][0] == "0000", "Windows stays first"
    assert_gives_back(here, found, "straight")
    assert here.memory.answers() == {}
    assert "not undone, because it goes with its Linux" in titles(here, "note")[-1]


def test_on_a_disk_of_its_own_it_starts_from_there_and_goes_back_without_a_trace(tmp_path: Path) -> None:
    here = ubuntu_world(tmp_path, "win11-second-disk", linux="auto")
    found = here.state()
    assert here.apply(here.plan()).holds
    assert here.runs_linux
    boot = here.machine.part(FirmwarePart).boot
    ubuntu = next(each for each in boot["entries"] if "ubuntu" in str(each["path"]))
    made = here.machine.own_vms.stored_record("partition", "efi")
    assert made is not None
    assert (boot["order"][0], ubuntu["partition"]) == ("0000", made["partition"])
    again = [step.title for stage in here.plan().stages for step in stage.steps]
    assert again == [], "an installed Ubuntu is not installed again"
    assert_gives_back(here, found, "a disk of its own")


SECOND_ESP = """
  Partition:
    - add:
        key: {partition: 8e4c1d7a-0009-4a5c-9d6e-7f8091a2b3c4}
        state:
          {disk: 8e4c1d7a-1a2b-4a5c-9d6e-7f8091a2b3c4, number: 9, offset: 1907000 MiB, size: 100 MiB,
           type: c12a7328-f81f-11d2-ba4b-00a0c93ec93b, letter: null, boot: false, system: false, hidden: false,
           no_letter: true}
"""
ESP_ON_A_THIRD_DISK = """
  Disk:
    - {match: {boot: true}, set: {system: false}}
    - add:
        key: {disk: eui.0025385A21C0B9F7}
        state:
          {model: Small, bus: SATA, size: 500107862016, style: GPT, guid: ae4c1d7a-2b3f-4a5c-9d6e-7f8091a2b3c4,
           number: 2, boot: false, system: true}
  Partition:
    - {match: {system: true}, set: {disk: ae4c1d7a-2b3f-4a5c-9d6e-7f8091a2b3c4}}
"""


@pytest.mark.parametrize("change", [SECOND_ESP, ESP_ON_A_THIRD_DISK], ids=["two on its disk", "on a third disk"])
def test_the_efi_partition_of_windows_is_the_one_that_it_started_from(tmp_path: Path, change: str) -> None:
    file = tmp_path / "host.yaml"
    head = "schema: winhost.host/2\norigin: synthetic\nabout: changed\nbase: win11-second-disk\nchange:"
    file.write_text(head + change)
    here = ubuntu_world(tmp_path, str(file), linux="auto")
    found = here.state()
    assert here.apply(here.plan()).holds
    assert here.runs_linux
    assert_gives_back(here, found, "another layout")


def test_it_asks_for_what_it_risks_before_anything_changes(tmp_path: Path) -> None:
    here = ubuntu_world(tmp_path)
    made, found = here.plan(), here.state()
    assert set(made.risks) | set(made.possible_risks) >= {"data", "restart", "network"}
    with pytest.raises(ConsentNeeded):
        here.apply(made, ())
    assert here.state() == found


def test_neither_key_nor_token_is_in_the_plan_or_the_journal(tmp_path: Path) -> None:
    here = ubuntu_world(tmp_path)
    staging: list[bytes | None] = []
    play = here.machine.dual_boot.installer

    def watched() -> Any:
        record = here.machine.own_vms.stored_record("partition", "staging")
        staging.append(here.machine.part(Disks).read_file(str(record and record["partition"]), TICKET))
        return play()

    here.machine.dual_boot.installer = watched
    here.apply(here.plan())
    ((ticket,), installed) = staging, here.machine.dual_boot.installed
    assert ticket is not None
    assert installed is not None
    token = ticket.decode().partition('"url": "')[2].partition('"')[0].rpartition("/")[2]
    texts = [path.read_text("utf-8", "replace") for path in (tmp_path / "state").rglob("*") if path.is_file()]
    private = installed.private_key.splitlines()[1]
    assert len(token) > 30
    assert not [text for text in texts if token in text or private in text]


@pytest.mark.costly
@pytest.mark.parametrize(
    "physics",
    [
        {"meddles": ("boot\\grub\\grub.cfg",)},
        {"meddles": ("winhost\\guard.py",)},
        {"meddles": ("winhost\\fetch.json",)},
        {"meddles": ("autoinstall.yaml",)},
        {"stays_writable": True},
    ],
)
def test_what_somebody_put_onto_the_partition_of_the_installer_is_never_started(
    tmp_path: Path, physics: dict[str, Any]
) -> None:
    here = ubuntu_world(tmp_path)
    found, disks = here.state(), here.machine.part(Disks)
    boot = here.machine.instances("Boot")[0].state["boot_id"]
    disks.physics = disks.physics.model_copy(update=physics)
    with pytest.raises(RunInterrupted) as stopped:
        here.apply(here.plan())
    assert stopped.value.code == "NotSealed"
    assert [label for label, _ in stopped.value.next_steps] == ["Roll back"]
    assert here.machine.instances("Boot")[0].state["boot_id"] == boot, "it was not restarted"
    assert here.machine.dual_boot.installed is None
    assert_gives_back(here, found, "written to")
    assert disks.read_only == set()


def test_a_rollback_starts_no_installer_whose_settings_could_not_be_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = ubuntu_world(tmp_path)
    found = here.state()

    def refused(*_: Any, **__: Any) -> Any:
        raise OSError(99, "Cannot assign requested address")

    monkeypatch.setattr(installing, "receive_progress", refused)
    with pytest.raises(RunInterrupted) as stopped:
        here.apply(here.plan())
    assert stopped.value.code == "NotOffered"
    assert_gives_back(here, found, "not offered")


def test_the_partition_of_the_installer_cannot_be_written_to_once_it_is_used(tmp_path: Path) -> None:
    here = ubuntu_world(tmp_path)
    disks, play, seen = here.machine.part(Disks), here.machine.dual_boot.installer, list[bool]()

    def watched() -> Any:
        record = here.machine.own_vms.stored_record("partition", "staging")
        seen.append(disks.is_writable(str(record and record["partition"])))
        return play()

    here.machine.dual_boot.installer = watched
    here.apply(here.plan())
    assert seen == [False]


def test_a_disk_that_changed_since_stops_the_installer_and_windows_comes_back(tmp_path: Path) -> None:
    here = ubuntu_world(tmp_path)
    found = here.state()
    play, disks = here.machine.dual_boot.installer, here.machine.part(Disks)

    def another() -> Any:
        target = next(guid for guid, (_, label) in disks.labels.items() if label.startswith("WINHOST-"))
        disks.labels[target] = ("NTFS", "somebody's")
        return play()

    here.machine.dual_boot.installer = another
    with pytest.raises(RunInterrupted) as stopped:
        here.apply(here.plan())
    assert (stopped.value.code, here.runs_linux) == ("NotInstalled", False)
    here.machine.dual_boot.installer = play
    assert_gives_back(here, found, "stopped")


def test_an_installation_that_failed_is_tried_again(tmp_path: Path) -> None:
    here = ubuntu_world(tmp_path)
    play, tries = here.machine.dual_boot.installer, [0]

    def second() -> Any:
        tries[0] += 1
        return play() if tries[0] > 1 else None

    here.machine.dual_boot.installer = second
    with pytest.raises(RunInterrupted):
        here.apply(here.plan())
    assert here.resume().holds
    assert (tries, here.runs_linux) == ([2], True)


def test_an_older_ubuntu_in_the_firmware_is_not_taken_for_the_new_one(tmp_path: Path) -> None:
    here = ubuntu_world(tmp_path, "win11-free-space", keys=None)
    found = here.state()
    assert here.apply(here.plan()).holds
    assert here.runs_linux
    assert_gives_back(here, found, "older")


def test_who_started_windows_since_gets_ubuntu_back_by_the_same_plan(tmp_path: Path) -> None:
    here = ubuntu_world(tmp_path)
    plan = here.plan()
    here.apply(plan)
    here.machine.restart()
    assert not here.runs_linux
    again = here.plan()
    assert [step.resource for step in again.steps] == ["RunningSystem"]
    assert apply(check_plan(again), ("restart",), here.context).holds
    assert here.runs_linux
    assert here.machine.dual_boot.starts == 3, "installed, with its driver, and now"


def test_a_rollback_from_windows_needs_no_restart(tmp_path: Path) -> None:
    here = ubuntu_world(tmp_path)
    found = here.state()
    here.apply(here.plan())
    here.machine.restart()
    assert not here.runs_linux
    boots = here.machine.boot
    outcome = here.rollback(("data",))
    assert (outcome.outcome, here.machine.boot) == ("rolled back", boots)
    assert here.state() == found


def test_of_two_linuxes_in_the_firmware_the_new_one_is_started(tmp_path: Path) -> None:
    here = ubuntu_world(tmp_path)
    other = {
        "entry": "0001",
        "description": "debian",
        "active": True,
        "partition": "another",
        "path": "\\EFI\\debian\\shimx64.efi",
    }
    boot = here.machine.part(FirmwarePart).boot
    boot["entries"], boot["order"] = [*boot["entries"], other], [*boot["order"], "0001"]
    here.apply(here.plan())
    here.machine.restart()
    assert not here.runs_linux
    (running,) = here.machine.instances("RunningSystem")
    assert running.state["linux"] not in (None, "0001")


def test_one_that_nobody_could_log_on_to_is_refused(tmp_path: Path) -> None:
    here = ubuntu_world(tmp_path)
    facts = HostFacts(here.facts(here.request().playbook.named))
    asked = NewUbuntu.model_validate({**here.settings["system"], "key": None})
    with pytest.raises(Refusal, match="it has no password"):
        UbuntuDecisions(facts, asked, None).install_plan()


def test_which_card_it_is_reached_by_is_asked_where_nobody_can_tell(tmp_path: Path) -> None:
    here = ubuntu_world(tmp_path)
    asked = here.request(system={**here.settings["system"], "mac": "auto"})
    facts = here.facts(asked.playbook.named)
    adapters = facts.resources["NetworkAdapter"]
    assert isinstance(adapters, tuple)
    none = tuple(replace(each, state={**each.state, "management": False}) for each in adapters)
    with pytest.raises(Refusal, match="0 Ethernet cards"):
        UbuntuDecisions(
            HostFacts(replace(facts, resources={**facts.resources, "NetworkAdapter": none})),
            NewUbuntu.model_validate(here.settings["system"]),
            None,
        ).install_plan()
