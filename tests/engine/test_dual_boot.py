"""What Windows does for an Ubuntu beside it: planned from facts, applied, gone on with, and given back to the byte."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from tests.engine.world import World, world
from tests.errors import raises
from winhost.autoinstall.facts_manifest import manifest_of_facts, windows_esp_of
from winhost.autoinstall.manifest import DiskManifest, PartitionRole
from winhost.engine.failures import ConsentNeeded, PlanRefused, RunInterrupted
from winhost.engine.planning import make_plan
from winhost.lab.physics.disks import Disks
from winhost.lab.physics.firmware import FirmwarePart
from winhost.lab.physics.lab_section import LabSection
from winhost.model.documents import plain
from winhost.model.plan import Plan, PlanRequest
from winhost.model.reason import Refusal
from winhost.model.shipped import shipped
from winhost.model.units import GiB, MiB
from winhost.paths.playbook import parse_request, read_playbook
from winhost.resources.host import HostFacts

PLAYBOOK = read_playbook(shipped("playbooks") / "dual-boot.yaml").model_dump(by_alias=True, mode="json")
TYPED = {"keys": {"by": "typed", "last_group": "env:WINHOST_LAST_GROUP"}}
STAGED = {"staging": "8GiB", "linux": "200GiB"}
DATA = ("data",)
SECOND_DISK = "8e4c1d7a-2b3f-4a5c-9d6e-7f8091a2b3c4"
PASSWORD = "111111-222222-333333-444444-555555-666666-777777-888888"


def plan(here: World, **settings: Any) -> Plan:
    playbook = {**PLAYBOOK, "settings": {**PLAYBOOK["settings"], **settings}}
    request = PlanRequest("dual-boot", playbook, None, allow_unverified=True)
    return make_plan(HostFacts(here.facts()), parse_request(request))


@pytest.fixture(autouse=True)
def last_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINHOST_LAST_GROUP", "888888")


def assert_gives_back(here: World, found: dict[str, Any], at: object) -> None:
    outcome = here.rollback(DATA)
    assert (outcome.outcome, outcome.kept) == ("rolled back", ()), at
    assert here.state() == found, at


def steps(made: Plan) -> list[tuple[str, dict[str, Any]]]:
    return [(step.resource, dict(step.desired)) for step in made.stages[0].steps]


def test_keys_come_first_then_space_and_then_what_is_made_in_it(tmp_path: Path) -> None:
    here = world(tmp_path, "win11-pro-1gpu")
    made = plan(here, **TYPED, **STAGED)
    order = [resource for resource, _ in steps(made)]
    # Copying the EFI partition can fail, and nothing was made smaller then.
    assert (order[0], set(order[1:4])) == ("KeyEscrow", {"BitLocker", "FastStartup", "EfiBackup"})
    assert order[4:] == ["Partition", "OwnPartition", "OwnPartition"]
    assert made.risks == DATA
    assert [later.resource for later in made.stages[0].deferred] == ["OwnBootEntry"]
    (shrunk,) = [desired for resource, desired in steps(made) if resource == "Partition"]
    windows = next(r for r in here.machine.instances("Partition") if r.state["boot"])
    assert windows.state["size"] - shrunk["size"] >= 208 * GiB
    linux, staging = [desired for resource, desired in steps(made) if resource == "OwnPartition"]
    assert linux["offset"] == windows.state["offset"] + shrunk["size"]
    assert (linux["size"], staging["offset"]) == (200 * GiB, linux["offset"] + linux["size"])


def test_where_space_is_free_windows_stays_as_large_as_it_is(tmp_path: Path) -> None:
    here = world(tmp_path, "win11-free-space")
    made = plan(here)
    assert [resource for resource, _ in steps(made)] == ["FastStartup", "EfiBackup", "OwnPartition"]
    (linux,) = [desired for resource, desired in steps(made) if resource == "OwnPartition"]
    assert linux["offset"] == 117 * MiB + 900 * GiB


def test_an_empty_disk_is_taken_whole_and_that_of_windows_stays(tmp_path: Path) -> None:
    here = world(tmp_path, "win11-second-disk")
    found, made = here.state(), plan(here, **TYPED, staging="8GiB")
    assert "Partition" not in [resource for resource, _ in steps(made)]
    wanted = {str(step.key["name"]): dict(step.desired) for step in made.stages[0].steps if "made" in step.desired}
    assert {each["disk"] for each in wanted.values()} == {SECOND_DISK}
    efi, linux, staging = (wanted[name] for name in ("efi", "linux", "staging"))
    assert (efi["offset"], efi["size"]) == (16 * MiB, GiB)
    assert linux["offset"] == efi["offset"] + efi["size"]
    assert staging["offset"] == linux["offset"] + linux["size"]
    assert 2_000_398_934_016 - (staging["offset"] + staging["size"]) < 3 * MiB
    assert here.apply(made, DATA).holds
    facts = HostFacts(here.facts())
    assert manifest_of_facts(facts).with_role(PartitionRole.ESP).size == GiB
    assert manifest_of_facts(facts).with_role(PartitionRole.ESP).guid != windows_esp_of(facts)
    assert {each.key["partition"] for each in here.machine.instances("EfiBackup") if each.state["kept"]} == {
        windows_esp_of(facts)
    }
    assert steps(plan(here, **TYPED, staging="8GiB")) == [], "what is there is what is wanted"
    assert_gives_back(here, found, "second disk")


def test_what_was_begun_on_a_disk_of_its_own_is_gone_on_with_there(tmp_path: Path) -> None:
    here = world(tmp_path, "win11-second-disk")
    first = plan(here, **TYPED)
    (efi,) = [step for step in first.stages[0].steps if step.key == {"name": "efi"}]
    here.connector.open().set("OwnPartition", efi.key, efi.desired, {}, {"accept": ["data"]})
    (again,) = [dict(step.desired) for step in plan(here, **TYPED).stages[0].steps if "made" in step.desired]
    assert again["offset"] == efi.desired["offset"] + efi.desired["size"]
    assert again["disk"] == SECOND_DISK
    # Killed before Windows made it, it is known by its record alone.
    here.machine.part(Disks).remove_partition(str(here.machine.own_vms.stored_record("partition", "efi")["partition"]))
    partitions = [step for step in plan(here, **TYPED).stages[0].steps if step.resource == "OwnPartition"]
    assert [(step.key["name"], step.desired["made"]) for step in partitions] == [("efi", True), ("linux", True)]
    assert partitions[1].desired["offset"] == again["offset"]


def test_what_was_begun_on_another_disk_is_no_part_of_one_beside_windows(tmp_path: Path) -> None:
    here, _ = begun(tmp_path)
    made = plan(here, **TYPED, disk="windows")
    assert [step.key["name"] for step in made.stages[0].steps if "made" in step.desired] == ["linux"]
    assert here.apply(made, DATA).holds
    assert steps(plan(here, **TYPED, disk="windows")) == []


def test_a_full_efi_partition_of_windows_is_no_matter_where_ubuntu_has_its_own(tmp_path: Path) -> None:
    """Also not in the middle: once it has, that disk is not empty any more."""
    here = full_esp(tmp_path)
    found = here.state()
    assert here.apply(plan(here, **TYPED, staging="8GiB"), DATA).holds
    assert_gives_back(here, found, "full")


def test_beside_windows_it_is_refused_for_what_an_empty_disk_would_mend(tmp_path: Path) -> None:
    assert refusal(full_esp(tmp_path), disk="windows") == "disk.windows-unfit"


def full_esp(folder: Path) -> World:
    esp = "key: {partition: 8e4c1d7a-0001-4a5c-9d6e-7f8091a2b3c4}, state: {free: 12 MiB, file_system: FAT32}"
    return changed(folder, f"EfiVolume: [{{add: {{{esp}}}}}]")


def changed(folder: Path, change: str) -> World:
    """The host with an empty second disk, but for this."""
    file = folder / "changed.yaml"
    head = "schema: winhost.host/2\norigin: synthetic\nabout: changed\nbase: win11-second-disk\n"
    file.write_text(f"{head}change: {{{change}}}\n")
    return world(folder, str(file))


def refusal(here: World, **settings: Any) -> str:
    with pytest.raises(PlanRefused) as caught:
        plan(here, **TYPED, **settings)
    assert isinstance(caught.value.__cause__, Refusal)
    return caught.value.__cause__.code


@pytest.mark.parametrize(
    "state", ["health: unhealthy", "health: warning", "bus: Fibre Channel", "bus: Virtual", "size: 70 GiB"]
)
def test_a_disk_that_is_not_healthy_plain_and_large_is_not_taken(tmp_path: Path, state: str) -> None:
    here = changed(tmp_path, f"Disk: [{{match: {{boot: false}}, set: {{{state}}}}}]")
    (linux,) = [desired for resource, desired in steps(plan(here, **TYPED)) if resource == "OwnPartition"]
    assert linux["disk"] != SECOND_DISK
    assert refusal(here, disk=SECOND_DISK) == "disk.not-empty"


def test_an_installers_partition_that_is_planned_too_late_has_no_room(tmp_path: Path) -> None:
    here = world(tmp_path, "win11-second-disk")
    assert here.apply(plan(here, **TYPED, linux="200GiB"), DATA).holds
    (staging,) = [
        step for step in plan(here, **TYPED, staging="8GiB").stages[0].steps if step.key == {"name": "staging"}
    ]
    assert staging.desired["disk"] == SECOND_DISK
    other = world(tmp_path / "other", "win11-second-disk")
    assert other.apply(plan(other, **TYPED), DATA).holds
    assert refusal(other, staging="8GiB") == "disk.too-large"


def test_what_somebody_put_behind_a_begun_efi_partition_stays(tmp_path: Path) -> None:
    here, efi = begun(tmp_path)
    behind = efi.desired["offset"] + efi.desired["size"]
    here.machine.part(Disks).new_partition(SECOND_DISK, behind, 100 * GiB)
    assert refusal(here) == "disk.too-large"


def test_a_begun_efi_partition_is_not_moved_to_another_disk(tmp_path: Path) -> None:
    third = "9e4c1d7a-2b3f-4a5c-9d6e-7f8091a2b3c4"
    state = f"model: Third, bus: NVMe, size: 1 TiB, style: GPT, guid: {third}, number: 2, boot: false, system: false"
    here, _ = begun(tmp_path, f"Disk: [{{add: {{key: {{disk: eui.3}}, state: {{{state}}}}}}}]", disk=SECOND_DISK)
    assert refusal(here, disk=third) == "disk.not-empty"


def begun(folder: Path, change: str = "", **settings: Any) -> tuple[World, Any]:
    here = changed(folder, change) if change else world(folder, "win11-second-disk")
    (efi,) = [step for step in plan(here, **TYPED, **settings).stages[0].steps if step.key == {"name": "efi"}]
    here.connector.open().set("OwnPartition", efi.key, efi.desired, {}, {"accept": ["data"]})
    return here, efi


@pytest.mark.parametrize(
    ("host", "disk", "code"),
    [
        ("win11-dual-boot-bitlocker", "auto", "disk.no-table"),
        ("win11-second-disk", "00000000-2b3f-4a5c-9d6e-7f8091a2b3c4", "disk.not-there"),
        ("win11-free-space", "5f1b7c02-3d4e-4a6b-8c9d-0e1f2a3b4c5d", "disk.not-empty"),
    ],
)
def test_a_disk_that_it_cannot_have_is_refused(tmp_path: Path, host: str, disk: str, code: str) -> None:
    assert refusal(world(tmp_path, host), disk=disk) == code


def test_beside_windows_where_that_is_asked_for(tmp_path: Path) -> None:
    made = plan(world(tmp_path, "win11-second-disk"), **TYPED, disk="windows")
    (linux,) = [desired for resource, desired in steps(made) if resource == "OwnPartition"]
    assert linux["disk"] != SECOND_DISK
    (why,) = [step.why for step in made.stages[0].steps if step.resource == "OwnPartition"]
    assert "Samsung SSD 990 PRO 2TB (the disk of Windows)" in why, "the other one is of the same model"


def test_a_disk_of_its_own_can_be_too_small_for_what_is_asked(tmp_path: Path) -> None:
    with pytest.raises(PlanRefused):
        plan(world(tmp_path, "win11-second-disk"), **TYPED, linux="4TiB")


def test_it_is_applied_and_given_back_without_a_trace(tmp_path: Path) -> None:
    here = world(tmp_path, "win11-pro-1gpu")
    found = here.state()
    outcome = here.apply(plan(here, **TYPED, **STAGED), DATA)
    assert outcome.holds
    disks, firmware = here.machine.part(Disks), here.machine.part(FirmwarePart)
    assert firmware.boot["order"] == ["0000", "0010"], "Windows is first"
    assert disks.volumes["C:"]["suspended"] == 1
    assert sorted(file_system for file_system, _ in disks.labels.values()) == ["FAT32", "NTFS"]
    assert_gives_back(here, found, "applied")


def test_nothing_is_written_without_the_consent_for_data(tmp_path: Path) -> None:
    here = world(tmp_path, "win11-free-space")
    found, made = here.state(), plan(here)
    with pytest.raises(ConsentNeeded):
        here.apply(made, ())
    assert here.state() == found


def test_a_host_with_bitlocker_says_how_its_key_is_proven(tmp_path: Path) -> None:
    here = world(tmp_path, "win11-pro-1gpu")
    with raises("Refused") as refused:
        plan(here)
    assert isinstance(refused.value, PlanRefused)
    assert "keys.by" in str(refused.value.meaning) + str(refused.value.grounds)


def test_who_does_not_know_the_key_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = world(tmp_path, "win11-pro-1gpu")
    found, made = here.state(), plan(here, **TYPED)
    monkeypatch.setenv("WINHOST_LAST_GROUP", "123456")
    with pytest.raises(RunInterrupted, match="last six digits"):
        here.apply(made, DATA)
    assert here.state() == found


def test_a_partition_larger_than_what_there_is_is_refused(tmp_path: Path) -> None:
    here = world(tmp_path, "win11-pro-1gpu")
    with raises("Refused") as refused:
        plan(here, **TYPED, linux="3000GiB")
    assert "3,000 GiB" in str(refused.value.meaning)


def test_a_shrink_that_stops_early_ends_the_run_and_goes_back(tmp_path: Path) -> None:
    here = world(tmp_path, "win11-pro-1gpu")
    found, made = here.state(), plan(here, **TYPED, linux="200GiB")
    windows = next(r for r in here.machine.instances("Partition") if r.state["boot"])
    disks = here.machine.part(Disks)
    disks.physics = disks.physics.model_copy(update={"stops_at": windows.state["size"] - 50 * GiB})
    with pytest.raises(RunInterrupted, match="capacity"):
        here.apply(made, DATA)
    now = next(r for r in here.machine.instances("Partition") if r.state["boot"])
    assert now.state["size"] == windows.state["size"] - 50 * GiB, "it got so far"
    assert_gives_back(here, found, "stopped early")


def test_what_opens_a_volume_is_in_no_file_and_no_event(tmp_path: Path) -> None:
    here = world(tmp_path, "win11-pro-1gpu")
    facts, made = here.facts(), plan(here, **TYPED)
    here.apply(made, DATA)
    told = [path.read_text("utf-8") for path in tmp_path.rglob("*") if path.is_file()]
    told += [str(facts), json.dumps(made, default=str), *map(str, here.events)]
    assert not [text for text in told if "888888" in text or PASSWORD in text]


def test_a_restart_between_them_uses_up_a_suspension_and_nothing_else(tmp_path: Path) -> None:
    here = world(tmp_path, "win11-pro-1gpu")
    found = here.state()
    assert here.apply(plan(here, **TYPED), DATA).holds
    for part in here.machine.parts:
        part.on_restart()
    assert here.machine.part(Disks).volumes["C:"]["protection"] == "on"
    assert_gives_back(here, found, "restarted")


def test_what_an_installer_left_on_the_efi_partition_goes_with_a_rollback(tmp_path: Path) -> None:
    here = world(tmp_path, "win11-pro-1gpu")
    found = here.state()
    assert here.apply(plan(here, **TYPED), DATA).holds
    disks = here.machine.part(Disks)
    disks.physics = disks.physics.model_copy(update={"installs": True})
    disks.on_restart()
    (copied,) = here.machine.instances("EfiBackup")
    assert copied.state["changed"] == ["EFI\\Boot\\bootx64.efi"]
    assert copied.state["added"] == ["EFI\\BOOT\\fbx64.efi", "EFI\\ubuntu\\grubx64.efi"]
    assert_gives_back(here, found, "installed")


def test_the_manifest_for_the_installer_has_every_partition_and_one_target(tmp_path: Path) -> None:
    here = world(tmp_path, "win11-pro-1gpu")
    with raises("NotPrepared"):
        manifest_of_facts(HostFacts(here.facts()))
    assert here.apply(plan(here, **TYPED, **STAGED), DATA).holds
    manifest = manifest_of_facts(HostFacts(here.facts()))
    listed = here.machine.instances("Partition")
    assert {each.guid for each in manifest.partitions} == {record.key["partition"] for record in listed}
    assert [str(each.role) for each in manifest.partitions] == [
        *("esp", "msr", "windows", "target", "staging", "recovery")
    ]
    assert manifest.label == here.machine.part(Disks).labels[manifest.with_role(PartitionRole.TARGET).guid][1]
    assert manifest.with_role(PartitionRole.WINDOWS).filesystem == "BitLocker"
    assert TypeAdapter(DiskManifest).validate_python(plain(manifest)) == manifest


def test_firmware_that_forgets_ends_the_run(tmp_path: Path) -> None:
    here = world(tmp_path, "win11-free-space")
    found, made = here.state(), plan(here, **STAGED)
    here.machine.lab = LabSection.model_validate(here.machine.lab.model_dump() | {"found": {}})
    firmware = here.machine.part(FirmwarePart)
    firmware.physics = firmware.physics.model_copy(update={"forgets": True})
    with pytest.raises(RunInterrupted, match="firmware"):
        here.apply(made, DATA)
    firmware.physics = firmware.physics.model_copy(update={"forgets": False})
    assert_gives_back(here, found, "forgotten")
