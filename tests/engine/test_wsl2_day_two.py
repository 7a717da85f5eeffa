"""What changes after a WSL 2 host was made: `verify` names it, a new plan holds what repairs it and nothing else."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.engine.two_machines import OURS
from tests.engine.wsl2_world import ACCOUNT, DISTRO, Wsl2World, playbook, wsl2_world
from tests.errors import raises
from winhost.engine.failures import PlanRefused
from winhost.engine.journal import read_journal
from winhost.lab.physics.lab_section import AccountPhysics
from winhost.lab.physics.local_accounts import BATCH, DENY_BATCH, Account, script_path
from winhost.lab.physics.windows_accounts import config_path
from winhost.lab.physics.windows_firewall import ANY_ADDRESS

pytestmark = pytest.mark.costly  # many days after, one at a time

BRIDGED = {"host": "win11-two-networks", "bridge": {"switch": "lan", "adapter": "Ethernet 2"}}
A_WHILE = 30  # lab seconds


def wsl(here: Wsl2World, *arguments: str) -> None:
    """Somebody runs wsl.exe as the account."""
    assert here.machine.distros.wsl(ACCOUNT, arguments, b"")[0] == 0


def restart(here: Wsl2World) -> None:
    here.machine.restart_computer()
    here.machine.wait_until_ready()


def disable(here: Wsl2World, kind: str = "keep-alive") -> None:
    here.machine.accounts.disable_scheduled_task(f"{kind}-{ACCOUNT}")


def lose_script(here: Wsl2World) -> None:
    here.machine.files.remove(script_path(ACCOUNT))


def disable_and_restart(here: Wsl2World) -> None:
    disable(here)
    restart(here)


def lose_switch(here: Wsl2World) -> None:
    network = here.machine.network
    (switch,) = network.external_switches()
    network.remove_vm_switch(switch.guid)
    network.pass_time(A_WHILE)


def make_switch_anew(here: Wsl2World) -> None:
    """By somebody who undoes and repeats what winhost did; its own record knows the new one."""
    network = here.machine.network
    record = network.switch_records.find("lan")
    (switch,) = network.external_switches()
    assert record is not None
    adapter = network.adapters[str(switch.adapter_guid)]
    lose_switch(here)
    made = network.new_vm_switch("lan", str(adapter.state["name"]))
    network.switch_records.save({**record, "switch": made.guid})
    network.pass_time(A_WHILE)


def fall_back(here: Wsl2World) -> None:
    lab = here.machine.lab
    here.machine.lab = lab.model_copy(update={"wsl": lab.wsl.model_copy(update={"no_mirrored": True})})
    restart(here)
    here.machine.lab = lab


def lose_switch_and_restart(here: Wsl2World) -> None:
    lose_switch(here)
    restart(here)
    vm = here.machine.distros.sessions[ACCOUNT].vm
    assert vm is not None
    assert vm.mode == "none"


def update_wsl(here: Wsl2World) -> None:
    here.machine.software.wsl = "2.7.20.0"
    here.machine.distros.stop_everything()


def update_driver(here: Wsl2World) -> None:
    """By Windows Update, and nvidia-ctk is not asked again."""
    for device in here.machine.devices:
        if device.key["device"].startswith("VEN_10DE&"):
            device.enabled_state = {**device.enabled_state, "driver_version": "32.0.15.9999"}
    restart(here)
    here.inside.linux.catch_up()
    here.inside.linux.spec = "32.0.15.8157"


def back_to_tcc(here: Wsl2World) -> None:
    for device in here.machine.devices:
        if device.key["device"].startswith("VEN_10DE&"):
            device.enabled_state = {**device.enabled_state, "driver_model": "TCC"}
    here.machine.software.set_driver_model(next(iter(here.machine.software.driver_models())), 1)


def owner(here: Wsl2World) -> Account:
    account = here.machine.accounts.find(ACCOUNT)
    assert account is not None
    return account


def config(here: Wsl2World) -> str:
    return config_path(str(owner(here).profile))


def edit(change: Callable[[str], str]) -> Callable[[Wsl2World], None]:
    """Somebody's editor on .wslconfig."""

    def edited(here: Wsl2World) -> None:
        path = config(here)
        before = (here.machine.files.read(path) or b"").decode()
        here.machine.files.write(path, change(before).encode())

    return edited


def remove_config(here: Wsl2World) -> None:
    here.machine.files.remove(config(here))


def edit_start(here: Wsl2World) -> None:
    here.distro.conf_files["conf"] = "[boot]\nsystemd=false\n"


def take_right(here: Wsl2World) -> None:
    """By a policy that was set once and is not any more, or by hand."""
    here.machine.accounts.rights[BATCH] = []


def take_right_and_restart(here: Wsl2World) -> None:
    take_right(here)
    restart(here)


def change_password(here: Wsl2World) -> None:
    here.machine.accounts.set_local_user(owner(here).sid, "Somebody's own, 1")


def change_password_and_restart(here: Wsl2World) -> None:
    change_password(here)
    restart(here)


def change_password_and_take_right(here: Wsl2World) -> None:
    change_password(here)
    take_right(here)


def take_keys(here: Wsl2World) -> None:
    here.distro.keys.clear()


def switch_platform_off(here: Wsl2World) -> None:
    here.machine.disable_windows_optional_feature("VirtualMachinePlatform")
    restart(here)


def open_sshd(here: Wsl2World) -> None:
    here.distro.allowed = None


@dataclass(frozen=True)
class Day:
    """differ: what verify names; repair: the steps of a new plan, with what they change; later: of those, how many can
    be told only in a later stage; stays: it differs for good.
    """

    change: Callable[[Wsl2World], None]
    differ: set[tuple[str, str]]
    repair: list[tuple[str, set[str]]]
    settings: dict[str, Any] = field(default_factory=dict)
    later: int = 0
    stays: set[tuple[str, str]] = field(default_factory=set)


STOPPED = {("WslDistro", "running"), ("WslAccess", "active")}
STARTED = [("WslDistro", {"running"}), ("WslAccess", {"active"})]
CUT = {("WslVm", "mode"), ("WslAccess", "active")}
MENDED = [("WslVm", {"mode"}), ("WslAccess", {"active"})]
DAYS = {
    "the driver of Windows was updated": Day(update_driver, {("CdiSpec", "fresh")}, [("CdiSpec", {"fresh"})]),
    "the switch is gone": Day(
        lose_switch,
        {("ExternalSwitch", "adapter"), *CUT},
        [("ExternalSwitch", {"adapter"}), *MENDED],
        BRIDGED,
    ),
    "the switch is gone and wsl started without": Day(
        lose_switch_and_restart,
        {("ExternalSwitch", "adapter"), *CUT},
        [("ExternalSwitch", {"adapter"}), *MENDED],
        BRIDGED,
    ),
    "the switch was made again under a vm that runs": Day(make_switch_anew, CUT, MENDED, BRIDGED),
    "mirrored fell back to nat for once": Day(fall_back, {("WslVm", "mode")}, [("WslVm", {"mode"})]),
    "the task that keeps it alive was disabled": Day(
        disable, {("AccountTasks", "keep_alive")}, [("AccountTasks", {"keep_alive"})]
    ),
    "and windows restarted": Day(
        disable_and_restart,
        {("AccountTasks", "keep_alive"), *STOPPED},
        [("AccountTasks", {"keep_alive"}), *STARTED],
    ),
    "the task is gone": Day(
        lambda here: here.machine.accounts.unregister_scheduled_task(f"keep-alive-{ACCOUNT}"),
        {("AccountTasks", "keep_alive"), ("AccountTasks", "distro")},
        [("AccountTasks", {"keep_alive", "distro"})],
    ),
    "the task for jobs was disabled": Day(
        lambda here: disable(here, "jobs"), {("AccountTasks", "jobs")}, [("AccountTasks", {"jobs"})]
    ),
    "the script of the task for jobs is gone": Day(
        lose_script, {("AccountTasks", "jobs")}, [("AccountTasks", {"jobs"})]
    ),
    "another winhost wrote the script of the task for jobs": Day(
        lambda here: here.machine.files.write(script_path(ACCOUNT), b"# of an older one\n"),
        {("AccountTasks", "jobs")},
        [("AccountTasks", {"jobs"})],
    ),
    "wsl was updated": Day(
        update_wsl,
        {("Wsl", "version"), ("Wsl", "package"), *STOPPED},
        STARTED,
        stays={("Wsl", "version"), ("Wsl", "package")},
    ),
    "our keys of .wslconfig were changed": Day(
        edit(lambda text: "# theirs\n" + text.replace("memory=32768MB", "memory=8GB") + "[experimental]\nx=1\n"),
        {("WslConfig", "text"), ("WslVm", "config")},
        [("WslConfig", {"text"}), ("WslVm", {"config"})],
    ),
    "keys of theirs came to .wslconfig": Day(
        edit(lambda text: text + "[experimental]\nsparseVhd=true\n"), {("WslVm", "config")}, [("WslVm", {"config"})]
    ),
    ".wslconfig was removed": Day(
        remove_config,
        {("WslConfig", "text"), ("WslConfig", "encoding"), ("WslVm", "config")},
        [("WslConfig", {"text", "encoding"}), ("WslVm", {"config"})],
    ),
    "the distro was terminated": Day(lambda here: wsl(here, "--terminate", DISTRO), STOPPED, STARTED),
    "wsl was shut down": Day(lambda here: wsl(here, "--shutdown"), STOPPED, STARTED),
    "/etc/wsl.conf was edited": Day(edit_start, {("WslConf", "conf")}, [("WslConf", {"conf"})]),
    "the right to run tasks was taken": Day(take_right, {("AccountRight", "granted")}, [("AccountRight", {"granted"})]),
    "the right to run tasks was taken and windows restarted": Day(
        take_right_and_restart,
        {("AccountRight", "granted")},
        [("AccountRight", {"granted"}), *STARTED],
        later=2,
    ),
    "the account got another password": Day(
        change_password, {("AccountTasks", "logon")}, [("AccountTasks", {"logon"})]
    ),
    "the account got another password and windows restarted": Day(
        change_password_and_restart,
        {("AccountTasks", "logon")},
        [("AccountTasks", {"logon"}), *STARTED],
        later=2,
    ),
    "the account got another password and lost its right": Day(
        change_password_and_take_right,
        {("AccountTasks", "logon"), ("AccountRight", "granted")},
        [("AccountRight", {"granted"}), ("AccountTasks", {"logon"})],
    ),
    "our key was taken out of the distro": Day(
        take_keys, {("WslAccess", "authorized")}, [("WslAccess", {"authorized"})]
    ),
    "the feature that it runs on was switched off": Day(
        switch_platform_off,
        {("VirtualMachinePlatform", "feature")},
        [("VirtualMachinePlatform", {"feature"}), *STARTED],
        later=2,
    ),
    "the port was closed": Day(
        lambda here: here.machine.network.vm_rules.clear(),
        {("HyperVFirewall", "ports"), ("HyperVFirewall", "allowed")},
        [("HyperVFirewall", {"ports", "allowed"})],
    ),
    "the port was opened to everybody": Day(
        lambda here: here.machine.network.vm_rules.update({2222: [ANY_ADDRESS]}),
        {("HyperVFirewall", "allowed")},
        [("HyperVFirewall", {"allowed"})],
    ),
    "sshd was opened to everybody": Day(open_sshd, {("WslAccess", "allowed")}, [("WslAccess", {"allowed"})], BRIDGED),
}


def made(folder: Path, *, host: str = "win11-pro-1gpu", **settings: Any) -> Wsl2World:
    return wsl2_world(folder, host, **settings)


def entries(here: Wsl2World) -> list[Any]:
    """Of the last run."""
    return list(read_journal(here.store.existing_journal(here.store.runs_of(here.host)[-1])))


def named(here: Wsl2World, plan: Any) -> set[tuple[str, str]]:
    return {(check.resource, check.property) for check in here.differing(plan)}


@pytest.mark.parametrize("day", DAYS.values(), ids=DAYS)
def test_it_is_named_and_a_new_plan_repairs_exactly_that(tmp_path: Path, day: Day) -> None:
    here = made(tmp_path, **day.settings)
    plan = here.plan()
    here.apply(plan)
    day.change(here)
    assert named(here, plan) == day.differ
    again = here.plan()
    assert [(step.resource, set(step.desired)) for step in again.steps] == day.repair[: len(day.repair) - day.later]
    outcome = here.apply(again)
    done = [entry["step"] for entry in entries(here) if entry["event"] == "begin"]
    assert [(step["resource"], set(step["desired"])) for step in done] == day.repair
    assert (outcome.outcome, outcome.changed) == ("applied", len(day.repair))
    assert (named(here, plan), named(here, again)) == (day.stays, set())
    assert here.distro.is_listening
    vm = here.machine.distros.sessions[ACCOUNT].vm
    assert vm is not None
    assert vm.mode == ("bridged" if day.settings else "mirrored")
    assert list(here.plan().steps) == []


def test_what_others_wrote_into_wslconfig_is_kept_to_the_byte(tmp_path: Path) -> None:
    here = made(tmp_path)
    here.apply(here.plan())
    path = config(here)
    ours = here.machine.files.read(path)
    assert ours is not None
    DAYS["our keys of .wslconfig were changed"].change(here)
    here.apply(here.plan())
    assert here.machine.files.read(path) == b"# theirs\n" + ours + b"[experimental]\nx=1\n"


def test_a_driver_that_was_updated_is_looked_up_by_the_distros_own_start(tmp_path: Path) -> None:
    here = made(tmp_path)
    plan = here.plan()
    here.apply(plan)
    old = here.inside.linux.spec
    update_driver(here)
    restart(here)
    assert named(here, plan) == set()
    assert here.inside.linux.spec not in (old, None)


def test_somebody_who_is_logged_on_is_named_beside_all_else_and_nothing_is_repaired_until_they_left(
    tmp_path: Path,
) -> None:
    here = made(tmp_path)
    plan = here.plan()
    here.apply(plan)
    disable(here)
    account = here.machine.accounts.find(ACCOUNT)
    assert account is not None
    account.sessions = 1
    found = {(check.resource, check.title): check.found for check in here.differing(plan)}
    assert found["AccountTasks", "Tasks of winhost"] == "disabled"
    assert "A user is logged on as winhost" in found["", "Path wsl2"]
    with pytest.raises(PlanRefused) as caught:
        here.plan()
    assert caught.value.grounds.codes == ("wsl.account-logged-on",)
    account.sessions = 0
    assert here.apply(here.plan()).holds
    assert here.differing(plan) == []


def test_a_right_that_a_policy_takes_again_and_again_is_named_and_the_repair_says_that_it_did_not_take(
    tmp_path: Path,
) -> None:
    here = made(tmp_path)
    plan = here.plan()
    here.apply(plan)
    take_right(here)
    by_policy = AccountPhysics(rights_by_policy=(BATCH,))
    here.machine.lab = here.machine.lab.model_copy(update={"accounts": by_policy})
    assert named(here, plan) == {("AccountRight", "granted")}
    with raises("NotTaken", match="granted"):
        here.apply(here.plan())


def refused(here: Wsl2World) -> PlanRefused:
    with pytest.raises(PlanRefused) as caught:
        here.plan()
    return caught.value


def test_a_right_that_a_policy_denies_is_named_and_no_repair_is_promised(tmp_path: Path) -> None:
    here = made(tmp_path)
    plan = here.plan()
    here.apply(plan)
    here.machine.accounts.rights[DENY_BATCH].append(owner(here).sid)
    (found,) = here.differing(plan)
    assert "A policy denies it" in str(found.found)
    assert refused(here).grounds.codes == ("wsl.batch-denied",)


def test_an_account_that_was_disabled_is_named_and_whoever_did_it_has_to_enable_it(tmp_path: Path) -> None:
    here = made(tmp_path)
    plan = here.plan()
    here.apply(plan)
    owner(here).enabled = False
    restart(here)
    (found,) = here.differing(plan)
    assert "Enable-LocalUser -Name winhost" in str(found.found)
    assert refused(here).grounds.codes == ("wsl.account-disabled",)
    owner(here).enabled = True
    here.apply(here.plan())
    assert named(here, plan) == set()


def test_of_an_account_that_was_deleted_it_is_said_what_went_with_it_and_another_one_can_begin_anew(
    tmp_path: Path,
) -> None:
    here = made(tmp_path)
    plan = here.plan()
    here.apply(plan)
    here.machine.accounts.remove_local_user(owner(here).sid)
    restart(here)
    assert named(here, plan) == {("LocalAccount", "there"), ("AccountRight", "granted"), ("", "verdict")}
    said = refused(here)
    assert said.grounds.codes == ("wsl.account-gone",)
    assert "%ProgramData%\\winhost\\distros\\winhost" in said.meaning
    assert "--set account=NAME" in said.meaning
    here.book = playbook(account="winhost-2")
    assert here.apply(here.plan()).holds
    assert here.machine.distros.sessions["winhost-2"].distros[DISTRO].is_listening


def test_a_gpu_that_went_back_to_tcc_is_named_and_set_again(tmp_path: Path) -> None:
    here = made(tmp_path, host="win11-pro-2xl20-mcdm", access={"key": OURS})
    here.unverified = True
    plan = here.plan()
    here.apply(plan)
    back_to_tcc(here)
    assert {resource for resource, _ in named(here, plan)} >= {"GpuDriverModel"}
    again = here.plan()
    assert {step.resource for step in again.steps} == {"GpuDriverModel"}
    assert here.apply(again).holds
    assert named(here, plan) == set()


def test_a_repair_that_was_rolled_back_leaves_what_was_found(tmp_path: Path) -> None:
    here = made(tmp_path)
    here.apply(here.plan())
    wsl(here, "--terminate", DISTRO)
    found = here.machine.comparable_state()
    here.apply(here.plan())
    here.rollback()
    assert here.machine.comparable_state() == found
