"""The whole plan of WSL 2: to a Linux that runs containers and back to the very state found, crashes included."""

from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.engine.two_machines import OURS
from tests.engine.wsl2_world import ACCOUNT, BOOK, CONSENTS, DATA, Wsl2World, wsl2_world
from tests.errors import raises
from winhost.connect.wire_errors import NotAvailable
from winhost.lab.physics.lab_section import AdapterPhysics, ImagePhysics, WslPhysics
from winhost.lab.physics.local_accounts import BATCH
from winhost.lab.physics.wsl_exe import Distro
from winhost.model.errors import WinhostError
from winhost.paths.wsl2 import host_networks
from winhost.resources.host import HostFacts

TWO = "win11-two-networks"
MANAGED = "3d9f5a72-c14b-4e80-b6a5-0f7e2c91d846"
STATIC = {"address": "10.30.0.50/24", "gateway": "10.30.0.1", "dns": ["10.30.0.1"]}


@dataclass(frozen=True)
class Case:
    """begins: resources of the first steps, in their order; mode: of the network that it ends with.

    stays: resources that a rollback leaves as they are by now.
    """

    host: str
    mode: str
    begins: tuple[str, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    unverified: bool = False
    stays: tuple[str, ...] = ("Wsl",)

    def world(self, folder: Path) -> Wsl2World:
        here = wsl2_world(folder, self.host, unverified=self.unverified, **self.settings)
        here.folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, content in BESIDE.items():
            (folder / name).write_bytes(content)
        return here


BESIDE = {"wsl.2.7.14.0.x64.msi": b"an MSI", "ubuntu.wsl": b"an image"}  # what lies beside every plan


def beside(name: str) -> dict[str, str]:
    return {"source": f"./{name}", "sha256": sha256(BESIDE[name]).hexdigest()}


ACCOUNTS = ("Wsl", "AccountRight", "AccountTasks")
COMMON = ("StagedFile", "StagedFile", "LocalAccount")
CASES = {
    "pro": Case("win11-pro-1gpu", "mirrored", (*COMMON, "HyperVFirewall", *ACCOUNTS)),
    "home behind nat": Case("win11-home-1gpu", "nat", (*COMMON, "PortForward", *ACCOUNTS), {"network": "nat"}),
    "bridged over a free adapter": Case(
        TWO, "bridged", (*COMMON, "ExternalSwitch", *ACCOUNTS), {"bridge": {"switch": "lan", "adapter": "Ethernet 2"}}
    ),
    "bridged over the wire itself": Case(
        TWO,
        "bridged",
        (*COMMON, "ExternalSwitch", *ACCOUNTS),
        {"network": "bridged", "bridge": {"switch": "lan", "adapter": MANAGED, **STATIC}},
    ),
    "GPUs in tcc": Case(
        "win11-pro-2xl20-tcc",
        "mirrored",
        ("GpuDriverModel", "GpuDriverModel", *COMMON, "HyperVFirewall", *ACCOUNTS),
        unverified=True,
    ),
    "nothing there": Case(
        "win11-hyperv-off-vbs-on",
        "mirrored",
        ("VirtualMachinePlatform", *COMMON, "HyperVFirewall", *ACCOUNTS),
        stays=(),
    ),
    "from files beside the plan": Case(
        "win11-pro-1gpu",
        "mirrored",
        (*COMMON, "HyperVFirewall", *ACCOUNTS),
        {
            "wsl": {"version": "2.7.14", **beside("wsl.2.7.14.0.x64.msi")},
            "image": beside("ubuntu.wsl"),
        },
    ),
    "nothing there, bridged": Case(
        "win11-hyperv-off-vbs-on",
        "bridged",
        ("HyperVRole", "VirtualMachinePlatform", *COMMON, *ACCOUNTS),
        {"bridge": {"switch": "lan", "adapter": "Ethernet"}},
        stays=(),
    ),
}
NO_DOWNGRADE = "WSL itself: kept: winhost never downgrades WSL"
NAMED = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def assert_gives_back(here: Wsl2World, found: dict[str, Any], stays: tuple[str, ...], at: object = "") -> None:
    outcome = here.rollback()
    assert outcome.outcome == "rolled back", at
    assert [kept for kept in outcome.kept if kept != NO_DOWNGRADE] == [], at
    now = here.state()
    assert {resource: now[resource] for resource in found if resource not in stays} == {
        resource: state for resource, state in found.items() if resource not in stays
    }, at


# ---- there and back


@pytest.mark.costly
@NAMED
def test_it_is_planned_applied_in_stages_verified_and_given_back(tmp_path: Path, case: Case) -> None:
    here = case.world(tmp_path)
    found, plan = here.state(), here.plan()
    assert tuple(step.resource for step in plan.steps) == case.begins
    assert {waits.resource for waits in plan.deferred} >= {"WslConfig", "WslDistro", "WslAccess", "DebianPackage"}
    outcome = here.apply(plan)
    assert (outcome.outcome, outcome.holds) == ("applied", True)
    assert here.differing(plan) == []
    vm = here.machine.distros.sessions[ACCOUNT].vm
    assert vm is not None
    assert vm.mode == case.mode
    assert here.inside.linux.systemd.state("docker.service")["active"] is True
    assert {target.port for target in here.targets} == {22 if case.mode == "bridged" else 2222}
    assert_gives_back(here, found, case.stays)


@pytest.mark.costly
@NAMED
def test_what_was_applied_needs_nothing_more(tmp_path: Path, case: Case) -> None:
    here = case.world(tmp_path)
    here.apply(here.plan())
    made, again = here.state(), here.plan()
    assert (list(again.steps), again.deferred) == ([], ())
    outcome = here.apply(again)
    assert (outcome.outcome, outcome.changed, outcome.holds) == ("nothing to do", 0, True)
    assert here.state() == made
    assert len(here.store.runs()) == 1


@pytest.mark.costly
@NAMED
def test_after_a_restart_it_runs_again_with_nobody_logged_on(tmp_path: Path, case: Case) -> None:
    here = case.world(tmp_path)
    plan = here.plan()
    here.apply(plan)
    here.machine.restart_computer()
    here.machine.wait_until_ready()
    assert here.differing(plan) == []


def test_what_was_given_back_can_be_made_again(tmp_path: Path) -> None:
    here = wsl2_world(tmp_path)
    here.apply(here.plan())
    here.rollback()
    found = here.state()
    assert here.apply(here.plan()).holds
    assert here.differing(here.plan()) == []
    assert_gives_back(here, found, ())


MODES = {"home behind nat": "NotThere", "pro": "NotThere", "bridged over the wire itself": "KeyRefused"}


@pytest.mark.parametrize(("name", "refusal"), MODES.items())
def test_only_the_networks_that_the_plan_names_come_in_whatever_the_mode(
    tmp_path: Path, name: str, refusal: str
) -> None:
    here = CASES[name].world(tmp_path)
    plan = here.plan()
    own = host_networks(HostFacts(here.facts()))
    assert own
    told = f"{', '.join(own)} (the host's own; others: --set access.allow="
    assert any(told in desired.why for desired in (*plan.steps, *plan.deferred))
    here.apply(plan)
    here.open().get("LinuxSystem", {})
    here.machine.network.controllers = ["203.0.113.7"]
    with raises(refusal):
        here.open().get("LinuxSystem", {})


def test_a_network_that_is_named_comes_in_and_the_hosts_own_does_not(tmp_path: Path) -> None:
    bridge = {"switch": "lan", "adapter": "Ethernet 2"}
    here = wsl2_world(tmp_path, TWO, bridge=bridge, access={"key": OURS, "allow": ["10.99.0.0/16", "10.30.0.9/32"]})
    assert here.apply(here.plan()).holds
    assert here.distro.allowed == ["10.99.0.0/16", "10.30.0.9/32"]
    here.machine.network.controllers = ["10.99.1.1"]
    here.open().get("LinuxSystem", {})
    here.machine.network.controllers = ["10.30.0.10"]
    with raises("KeyRefused"):
        here.open().get("LinuxSystem", {})


def test_the_hosts_networks_are_the_same_over_a_switch(tmp_path: Path) -> None:
    here = CASES["bridged over the wire itself"].world(tmp_path)
    before = host_networks(HostFacts(here.facts()))
    here.apply(here.plan())
    assert host_networks(HostFacts(here.facts())) == before == ("10.30.0.0/24", "10.40.0.0/24")


def test_without_a_key_the_plan_ends_with_the_distro(tmp_path: Path) -> None:
    here = wsl2_world(tmp_path, access={})
    found, plan = here.state(), here.plan()
    assert not {"WslAccess", "HyperVFirewall", "AptSource"} & {
        desired.resource for desired in (*plan.steps, *plan.deferred)
    }
    assert here.apply(plan).holds
    assert (here.distro.running, here.distro.is_listening) == (True, False)
    assert_gives_back(here, found, ("Wsl",))


def test_the_distro_is_exported_before_it_goes_unless_its_data_may(tmp_path: Path) -> None:
    exports = {}
    for name, consents in {"kept": CONSENTS, "gone": (*CONSENTS, "data")}.items():
        here = wsl2_world(tmp_path / name)
        here.apply(here.plan())
        here.rollback(consents)
        exports[name] = list(here.machine.files.list_below(f"{DATA}\\exports"))
    assert exports == {"kept": [f"{DATA}\\exports\\winhost\\winhost-1.tar"], "gone": []}


def test_an_import_that_fails_leaves_nothing_behind_once_it_is_given_back(tmp_path: Path) -> None:
    here = wsl2_world(tmp_path)
    found = here.state()
    broken = WslPhysics(images={BOOK["settings"]["image"]["sha256"]: ImagePhysics(broken=True)})
    here.machine.lab = here.machine.lab.model_copy(update={"wsl": broken})
    with raises("StepFailed"):
        here.apply(here.plan())
    assert_gives_back(here, found, ("Wsl",))


@pytest.mark.parametrize("back", [False, True])
def test_a_right_that_is_lost_in_the_middle_names_the_ways_on_and_back(tmp_path: Path, back: bool) -> None:
    here = wsl2_world(tmp_path)
    rights, lost = here.machine.accounts.rights, list[str]()
    if back:
        here.apply(here.plan())

    def lose() -> bool:
        done = [event.step.resource for event in here.events if event.kind == "done" and event.step]
        if not lost and done and done[-1] == ("WslConf" if back else "WslConfig"):
            lost.extend(rights[BATCH])
            rights[BATCH] = []
        return False

    here.stop = lose
    with raises("StepFailed") as failed:
        here.rollback() if back else here.apply(here.plan())
    assert isinstance(failed.value.__cause__, NotAvailable)
    assert failed.value.__cause__.needs == "AccountRight"
    assert here.run in (failed.value.hint or "")
    assert ("winhost resume" in (failed.value.hint or "")) is not back
    rights[BATCH] = lost
    assert here.rollback().outcome == "rolled back" if back else here.resume().holds


def test_a_distro_of_theirs_keeps_the_account_its_right_and_its_tasks(tmp_path: Path) -> None:
    here = wsl2_world(tmp_path)
    here.apply(here.plan())
    theirs = Distro("Theirs", "C:\\Theirs")
    here.machine.distros.sessions[ACCOUNT].distros["theirs"] = theirs
    here.machine.files.write("C:\\Users\\winhost\\Theirs\\ext4.vhdx", b"")
    outcome = here.rollback()
    since = "kept: for Theirs, which came later; undo that, then do this again"
    for title in ("Account winhost", "Right of winhost to run tasks", "Tasks of winhost"):
        assert f"{title}: {since}" in outcome.kept
    assert list(here.machine.distros.sessions[ACCOUNT].distros.values()) == [theirs]
    tasks = {record.key["account"]: record.state for record in here.machine.instances("AccountTasks")}
    assert (tasks[ACCOUNT]["jobs"], tasks[ACCOUNT]["keep_alive"]) == ("ready", "ready")
    here.machine.distros.sessions[ACCOUNT].distros.clear()
    here.machine.files.remove("C:\\Users\\winhost\\Theirs\\ext4.vhdx")
    here.rollback()
    assert here.machine.accounts.find(ACCOUNT) is None


def test_a_distro_that_nobody_can_list_is_not_taken_for_somebody_elses(tmp_path: Path) -> None:
    here = wsl2_world(tmp_path)
    here.apply(here.plan())
    accounts, task = here.machine.accounts, f"jobs-{ACCOUNT}"
    accounts.disable_scheduled_task(task)
    for _ in range(2):
        outcome = here.rollback()
        assert (outcome.outcome, outcome.kept) == ("not all rolled back", (NO_DOWNGRADE,))
        missing = {lacks.resource: lacks.why for lacks in outcome.missing}
        assert missing["WslDistro"] == "the distro cannot be read before the task that runs WSL is there"
        for resource in ("LocalAccount", "AccountRight", "WslConfig"):
            assert missing[resource] == missing["WslDistro"]
    accounts.enable_scheduled_task(task)
    outcome = here.rollback()
    assert (outcome.outcome, outcome.kept) == ("rolled back", (NO_DOWNGRADE,))
    assert accounts.find(ACCOUNT) is None


def test_what_somebody_changed_in_the_distro_goes_with_it(tmp_path: Path) -> None:
    here = wsl2_world(tmp_path)
    found = here.state()
    here.apply(here.plan())
    here.distro.conf_files["conf"] = "[boot]\nsystemd=false\n"
    assert_gives_back(here, found, ("Wsl",))


def test_a_windows_that_cannot_mirror_stops_the_run_at_the_vm_and_not_at_a_closed_door(tmp_path: Path) -> None:
    here = wsl2_world(tmp_path)
    found = here.state()
    here.machine.lab = here.machine.lab.model_copy(update={"wsl": WslPhysics(no_mirrored=True)})
    with pytest.raises(WinhostError) as caught:
        here.apply(here.plan())
    assert "The VM of winhost" in caught.value.what
    assert_gives_back(here, found, ("Wsl",))


def test_a_switch_that_nobody_could_come_back_over_is_undone_by_the_host(tmp_path: Path) -> None:
    here = wsl2_world(tmp_path, TWO, bridge={"switch": "lan", "adapter": MANAGED})
    physics = {"adapters": {MANAGED: AdapterPhysics(comes_back=False)}}
    here.machine.lab = here.machine.lab.model_copy(update=physics)
    before = here.machine.comparable_state()["NetworkAdapter"]
    with raises("OutOfReach"):
        here.apply(here.plan())
    here.machine.network.pass_time(1000)
    assert here.machine.comparable_state()["NetworkAdapter"] == before
