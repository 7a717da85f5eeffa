"""The guest of a VM that winhost made: known before it first answers, set up, and rid of the disc that did it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.engine.crash import kill
from tests.engine.guest_world import OURS, STATIC, WINDOWS, GuestWorld, guest_world, with_image
from tests.engine.new_vm_world import CONSENTS, IMAGE, NAME
from tests.engine.test_new_vm import gives_back, goes_down_after
from tests.errors import raises
from winhost.cli.output import error_text
from winhost.connect.agent import Agent
from winhost.connect.host_keys import HostKeyRefused
from winhost.connect.ssh_logon import no_sshd_error
from winhost.connect.ways_in import GuestSilent
from winhost.engine.failures import PlanRefused, RunInterrupted
from winhost.engine.planning import check_plan
from winhost.engine.verify import verify_plan
from winhost.lab.physics.ssh_keys import public_line
from winhost.lab.physics.vm_creation import read_disc
from winhost.model.documents import plain
from winhost.model.fleet import LinuxHost
from winhost.resources.host import HostFacts
from winhost.resources.registry import LINUX


def order(here: GuestWorld) -> list[tuple[str, Any]]:
    """What the run did, with what it changed to where that is what counts."""
    steps = [event.step for event in here.events if event.kind == "step" and event.step]
    told = {"VmSeed": "stage", "VmPower": "state", "SshHostKey": "prepared"}
    return [(step.resource, step.desired.get(told.get(step.resource, ""))) for step in steps]


def test_a_guest_is_set_up_before_it_gets_the_gpus_and_goes_as_it_came(tmp_path: Path) -> None:
    here = guest_world(tmp_path, network=STATIC)
    found, plan, boot = here.state(), here.plan(), here.machine.boot
    assert here.apply(plan).holds
    assert [each for each in order(here) if each[0] not in ("VmMmio", "VmActions", "AssignableDevice")] == [
        ("StagedFile", None), ("VmDisk", None), ("OwnVm", None), ("VmSeed", "attached"), ("VmPower", "running"),
        ("LinuxFile", None), ("SshHostKey", True), ("VmSeed", None), ("SshHostKey", None), ("VmSeed", "retired"),
        ("LinuxFile", None), ("AptPackages", None), ("VmPower", "off"), ("VmPower", "running"),
    ]  # fmt: skip
    assert here.machine.boot == boot
    assert len(here.machine.devices_in_guest(here.made.guid)) == 3
    gpus = [record.state for record in here.guest.answers.linux.gpus()]
    assert [(gpu["device"], gpu["driver"]) for gpu in gpus] == [
        ("10de:2d04", "nvidia"),
        ("10de:2684", "nvidia"),
        ("10de:26b9", "nvidia"),
    ]
    assert here.guest.answers.linux.gpu_driver.kind == "open"
    assert (here.made.dvd_files, here.machine.files.rights) == ([""], {})
    assert {target.address for target in here.targets} == {"192.0.2.10"}
    assert {(target.user, target.sudo is not None) for target in here.targets} == {("winhost", True)}
    assert all(check.holds for check in verify_plan(check_plan(plan), HostFacts(here.facts())))
    assert list(here.plan().steps) == []
    gives_back(here, found)


def test_its_disk_is_made_of_the_image_that_the_plan_pins_and_of_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, image = with_image(tmp_path, monkeypatch)
    found, plan = here.state(), here.plan()
    right = image.read_bytes()
    image.write_bytes(right + b"!")
    with raises("NotThisImage"):
        here.apply(plan)
    assert (here.state(), here.store.runs()) == (found, ())
    image.write_bytes(right)
    assert here.apply(plan).holds
    assert {event.text.partition(":")[0] for event in here.events if event.kind == "preparing"} == {"making the disk"}
    gives_back(here, found)


def test_a_window_that_the_guest_finds_too_small_grows_by_what_its_kernel_says(tmp_path: Path) -> None:
    """The host shows less of this GPU than it asks for once it is in a guest."""
    where = "PCIROOT(7B)#PCI(0100)#PCI(0000)"
    here = guest_world(tmp_path, lab={"devices": {where: {"bars64": [112 << 30]}}})
    found, plan = here.state(), here.plan()
    assert here.apply(plan).holds
    changed = [event.step for event in here.events if event.kind == "step" and event.step]
    sizes = [step.desired["high"] >> 30 for step in changed if step.resource == "VmMmio"]
    assert sizes == [194, 242] == [194, here.made.high >> 30]
    assert len(here.machine.devices_in_guest(here.made.guid)) == 3
    assert list(here.plan().steps) == []
    gives_back(here, found)


def test_so_does_the_low_window(tmp_path: Path) -> None:
    where = "PCIROOT(7B)#PCI(0100)#PCI(0000)"
    here = guest_world(tmp_path, lab={"devices": {where: {"bars32": [1 << 30]}}})
    found, plan = here.state(), here.plan()
    assert here.apply(plan).holds
    changed = [event.step for event in here.events if event.kind == "step" and event.step]
    sizes = [step.desired["low"] >> 20 for step in changed if "low" in step.desired]
    assert sizes == [1024, here.made.low >> 20]
    assert here.made.low > 2 << 30
    assert len(here.machine.devices_in_guest(here.made.guid)) == 3
    assert list(here.plan().steps) == []
    gives_back(here, found)


def test_a_low_window_that_hyper_v_cannot_have_is_refused_with_the_number(tmp_path: Path) -> None:
    where = "PCIROOT(7B)#PCI(0100)#PCI(0000)"
    here = guest_world(tmp_path, lab={"devices": {where: {"bars32": [7 << 29]}}})
    found = here.state()
    with pytest.raises(PlanRefused) as refused:
        here.apply(here.plan())
    assert "need a low window of 5,138.75 MiB" in str(refused.value.meaning)
    assert "Hyper-V takes 3,584 MiB at most" in str(refused.value.meaning)
    gives_back(here, found)


def test_its_first_key_is_replaced_by_its_own_and_no_start_changes_that(tmp_path: Path) -> None:
    here = guest_world(tmp_path)
    here.apply(here.plan())
    disc = here.made.seeds_at_starts[0]
    assert disc is not None
    first, own = read_disc(disc).public_key, here.guest.distro.host_key
    assert here.targets[0].host_key == first
    assert here.machine.own_vms.stored_record("seed", NAME)["host_keys"] == [own] != [first]  # type: ignore[index]
    assert len(here.made.seeds_at_starts) == 2
    here.machine.turn_vm_off(here.made.guid)
    here.machine.start_vm(here.made.guid)
    assert here.guest.distro.host_key == own


def test_the_disc_is_for_that_vm_alone_while_it_is_there(tmp_path: Path) -> None:
    here = killed_before_contact(tmp_path)
    ((path, rights),) = here.machine.files.rights.items()
    assert path.endswith(rf"\winhost\{NAME}\seed.iso")
    assert rights.startswith("O:BAD:P(A;;FA;;;SY)(A;;FA;;;BA)(A;;FR;;;S-1-5-83-1-")
    disc = read_disc(here.machine.files.read(path) or b"")
    assert (disc.instance, disc.hostname, disc.user, list(disc.keys)) == (here.made.guid, NAME, "winhost", [OURS])


def test_a_disc_that_somebody_put_into_a_drive_of_it_stays_there(tmp_path: Path) -> None:
    theirs = "D:\\driver.iso"
    here = guest_world(tmp_path, lab={"new_vms": {"taken": [theirs], "discs": [theirs]}})
    found = here.state()
    assert here.apply(here.plan()).holds
    assert here.made.dvd_files == [theirs, ""]
    gives_back(here, found)
    assert here.machine.files.read(theirs) == b"somebody's"


def test_nothing_is_undone_in_a_guest_that_goes_away_and_that_is_said(tmp_path: Path) -> None:
    here = guest_world(tmp_path)
    found, plan = here.state(), here.plan()
    assert "restart" not in plan.possible_risks
    here.apply(plan)
    there = len(here.events)
    assert here.rollback(("vm-stop", "vm-turn-off", "force-dismount", "data")).outcome == "rolled back"
    back = here.events[there:]
    assert not {event.step.resource for event in back if event.step} & set(LINUX)
    (said,) = [event.text for event in back if event.kind == "note"]
    assert said.startswith("not undone, because it goes with its Linux: ")
    assert "NVIDIA's driver in the guest" in said
    assert here.state() == found


def killed_before_contact(folder: Path) -> GuestWorld:
    """The seed is in its drive, and the guest was not started."""
    here = guest_world(folder)
    plan = here.plan()
    kill(
        here,
        lambda: here.apply(plan, CONSENTS),
        lambda when, entry: (when, entry["event"], entry.get("resource")) == ("after", "end", "VmSeed"),
    )
    return here


def test_no_private_key_is_anywhere_but_on_the_disc(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    here = guest_world(tmp_path)
    secrets, write = [], here.machine.files.write

    def note(path: str, content: bytes) -> None:
        write(path, content)
        if b"PRIVATE KEY" in content and not path.endswith(".iso"):
            secrets.extend(content.decode("ascii").splitlines()[1:-1])

    here.machine.files.write = note  # type: ignore[method-assign]
    plan = here.plan()
    here.apply(plan)
    assert secrets
    kept = [path.read_text("utf-8") for path in (tmp_path / "state").rglob("*") if path.is_file()]
    told = [*kept, json.dumps(plain(plan)), json.dumps(plain(here.facts())), caplog.text, str(here.events)]
    told.append(str(here.machine.software.registry_values))
    assert not [secret for secret in secrets for text in told if secret in text]
    left = [here.machine.files.read(path) or b"" for path in here.machine.files.list_below("D:")]
    assert not [content for content in left if b"PRIVATE KEY" in content]


@pytest.mark.costly
def test_one_that_never_answers_ends_the_run_in_plain_words_and_goes(tmp_path: Path) -> None:
    here = guest_world(tmp_path, lab={"new_vms": {"disks": {IMAGE: {"linux": False}}}}, network=STATIC)
    found = here.state()
    with pytest.raises(RunInterrupted) as caught:
        here.apply(here.plan())
    assert isinstance(caught.value.__cause__, GuestSilent)
    assert f"gpu-03/{NAME} runs and did not answer in time" in caught.value.what
    assert f"\\\\.\\pipe\\{here.made.guid}" in str(caught.value.meaning)
    assert {event.text for event in here.events if event.kind == "waiting"} == {
        f"waiting for {NAME} to answer over SSH"
    }
    gives_back(here, found)


@pytest.mark.costly
def test_one_that_hangs_as_it_starts_with_its_gpus_goes_on_once_its_power_was_cycled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = guest_world(tmp_path, network=STATIC)
    found, plan, starts = here.state(), here.plan(), [0]
    start, enter = here.machine.start_vm, here._enter

    def start_counted(guid: str) -> None:
        starts[0] += 1
        start(guid)

    def enter_unless_hung(target: LinuxHost, program: str) -> Agent:
        if starts[0] == 2:  # the first time it had no GPUs yet
            raise no_sshd_error(target.name, "timed out")
        return enter(target, program)

    monkeypatch.setattr(here.machine, "start_vm", start_counted)
    monkeypatch.setattr(here, "_enter", enter_unless_hung)
    for go in (lambda: here.apply(plan), here.resume):
        with pytest.raises(RunInterrupted) as caught:
            go()
        assert isinstance(caught.value.__cause__, GuestSilent)
        by_hand = f"Get-VM -Id {here.made.guid} | Stop-VM -TurnOff -Passthru | Start-VM"
        assert str(caught.value.meaning).endswith(by_hand)
        assert f"winhost resume {here.run}" in error_text(caught.value)
    assert starts == [2], "nobody turns off what may only be slow"
    here.machine.turn_vm_off(here.made.guid)
    here.machine.start_vm(here.made.guid)
    assert here.resume().holds
    assert len([*here.guest.answers.linux.gpus()]) == 3
    gives_back(here, found)


def test_whoever_else_answers_at_its_address_is_told_nothing(tmp_path: Path) -> None:
    here = guest_world(tmp_path, network=STATIC)
    here.shows = b"somebody who has the address too"[:32]
    found = here.state()
    with pytest.raises(RunInterrupted) as caught:
        here.apply(here.plan())
    assert isinstance(caught.value.__cause__, HostKeyRefused)
    assert here.guest.answers.linux.read_file("/etc/cloud/cloud-init.disabled")["text"] is None
    gives_back(here, found)


def test_a_start_without_seed_and_with_cloud_init_would_make_it_another_machine(tmp_path: Path) -> None:
    """Why the order is as it is."""
    here = killed_before_contact(tmp_path)
    here.machine.start_vm(here.made.guid)
    first = here.guest.distro.host_key
    here.machine.turn_vm_off(here.made.guid)
    here.machine.set_vm_dvd_drive(here.made.guid, here.made.dvd_files[0], "")
    here.machine.start_vm(here.made.guid)
    assert here.guest.distro.host_key != first


CMDLETS = ("add_vm_dvd_drive", "set_vm_dvd_drive", "run_ssh_keygen", "start_vm")


@pytest.mark.costly
@pytest.mark.parametrize("cmdlet", CMDLETS)
def test_a_host_that_restarts_in_the_middle_has_the_guest_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cmdlet: str
) -> None:
    here = guest_world(tmp_path)
    found, plan = here.state(), here.plan()
    goes_down_after(here, monkeypatch, cmdlet)
    assert here.apply(plan).holds
    assert len(here.machine.devices_in_guest(here.made.guid)) == 3
    gives_back(here, found)


def test_a_host_without_ssh_keygen_ends_the_run_and_keeps_nothing(tmp_path: Path) -> None:
    here = guest_world(tmp_path, lab={"new_vms": {"ssh_keygen": False}})
    found = here.state()
    with pytest.raises(RunInterrupted, match="ssh-keygen"):
        here.apply(here.plan())
    gives_back(here, found)


def test_a_guest_whose_kernel_takes_no_devices_gets_none(tmp_path: Path) -> None:
    here = guest_world(tmp_path, lab={"new_vms": {"takes_devices": False}})
    found = here.state()
    with pytest.raises(RunInterrupted, match="no driver for assigned devices"):
        here.apply(here.plan())
    assert {record.state["assignment"] for record in here.machine.instances("AssignableDevice")} == {"host-enabled"}
    gives_back(here, found)


def test_behind_nat_it_is_entered_through_a_port_of_the_host(tmp_path: Path) -> None:
    here = guest_world(tmp_path)
    here.machine.network.switches = []
    found, consents = here.state(), (*CONSENTS, "network")
    assert here.apply(here.plan(), consents).holds
    assert {(target.address, target.port) for target in here.targets} == {(WINDOWS, 2222)}
    assert list(here.plan().steps) == []
    assert (here.rollback(consents).kept, here.state()) == ((), found)


def test_an_address_that_somebody_answers_at_ends_the_run_before_the_vm_starts(tmp_path: Path) -> None:
    here = guest_world(tmp_path, lab={"new_vms": {"others": {"192.0.2.10": True}}}, network=STATIC)
    found = here.state()
    with pytest.raises(RunInterrupted, match=r"has the address 192\.0\.2\.10 already"):
        here.apply(here.plan())
    assert here.made.power == "off"
    gives_back(here, found)


@pytest.mark.parametrize(
    ("guest", "says"),
    [
        ({"user": "root"}, "another user than root"),
        ({"user": "Admin"}, "lower-case letters"),
        ({"key": "-----BEGIN OPENSSH PRIVATE KEY-----"}, "private key"),
    ],
)
def test_what_no_guest_can_be_told_is_refused_when_it_is_asked_for(
    tmp_path: Path, guest: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=says) as refused:
        guest_world(tmp_path, **guest).plan()
    assert "OPENSSH" not in str(refused.value)


HOSTILE: Sequence[str] = ("x\nruncmd: [reboot]", "$(reboot)", "a'b", "\u2019", "\u202eab", "k" * 300)


@pytest.mark.parametrize("words", HOSTILE)
def test_hostile_words_are_no_user_of_a_guest(tmp_path: Path, words: str) -> None:
    with pytest.raises(ValueError, match="user"):
        guest_world(tmp_path, user=words).plan()


def test_keys_of_a_lab_are_what_they_say() -> None:
    from winhost.lab.physics.ssh_keys import private_text, seed_of

    assert public_line(seed_of(private_text(b"1" * 32))) == public_line(b"1" * 32)
