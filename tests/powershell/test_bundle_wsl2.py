"""WSL 2 by hand: two bundles do what a run does as far as Windows goes, and give it back; then they lead to Linux."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.engine.test_wsl2 import CASES as NETWORKS
from tests.engine.test_wsl2 import MANAGED, Case
from tests.engine.wsl2_world import ACCOUNT, CONSENTS, DISTRO, Wsl2World, wsl2_world
from tests.errors import raises
from tests.powershell.bundle_cases import as_compared, left_open
from tests.powershell.bundles import ByHand, Done, Person, WatchedCmdlets, a_person, filmed, restart, unpack
from tests.powershell.twins import machine
from winhost.engine.planning import make_plan
from winhost.lab.physics.local_accounts import script_path
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.windows_firewall import ANY_ADDRESS
from winhost.lab.powershell import powershell_engine
from winhost.model.plan import Plan, PlanRequest
from winhost.paths.playbook import parse_request
from winhost.resources.host import HostFacts

HOST = "win11-pro-1gpu"
FIRST = ["StagedFile", "StagedFile", "LocalAccount", "HyperVFirewall", "Wsl", "AccountRight", "AccountTasks"]
SECOND = ["WslConfig", "WslVm", "WslDistro", "WslConf", "WslAccess"]


@pytest.fixture(scope="module")
def person() -> Iterator[Person]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(powershell_engine, "CmdletProcess", WatchedCmdlets)
        with a_person(machine(HOST)) as one:
            yield one


class Wsl2ByHand(ByHand):
    """Somebody without any way in: all that is known of the host is what Facts.ps1 says."""

    def plan(self, reader: Path, book: Any) -> Plan:
        return make_plan(HostFacts(self.facts(reader)), parse_request(PlanRequest("wsl2", book)))

    def there(self, made: Path) -> Done:
        return self.keeping(partial(self.apply, accept=CONSENTS), made)

    def back(self, made: Path) -> Done:
        return self.keeping(partial(self.rollback, accept=CONSENTS), made)

    def keeping(self, script: Callable[..., Done], made: Path) -> Done:
        """Saying that a switch is to stay where the script asks, as its readme tells."""
        done = self.through(script, made)
        if done.code == 1 and done.refused == "NotKept":
            assert done.said["error"]["hint"].endswith(" -Keep")
            return self.through(lambda bundle: script(bundle, "-Keep"), made)
        return done

    def made(self, reader: Path, book: Any) -> list[Path]:
        """Both bundles, applied."""
        bundles = []
        for name in ("first", "second"):
            bundles.append(unpack(self.plan(reader, book), reader.with_name(name)))
            assert self.there(bundles[-1]).said["outcome"] == "applied"
        return bundles


def by_run(folder: Path) -> Wsl2World:
    """The same host by `apply`, which was stopped before its Linux."""
    other = wsl2_world(folder, HOST)
    other.stop = lambda: any(event.text.startswith("stage 3:") for event in other.events)
    with raises("Stopped"):
        other.apply(other.plan())
    other.stop = lambda: False
    return other


def at_hand(person: Person, folder: Path) -> tuple[Wsl2ByHand, Path, Any]:
    """A host that nobody touched yet, a bundle to read it with, and what is asked for."""
    other = wsl2_world(folder / "other", HOST)
    return Wsl2ByHand(person, other.machine, folder / "journals"), unpack(other.plan(), folder / "reader"), other.book


def but(resource: str, state: Any) -> dict[str, Any]:
    return {name: found for name, found in state.items() if name != resource}


def terminate(on: Machine) -> None:
    assert on.distros.wsl(ACCOUNT, ("--terminate", DISTRO), b"")[0] == 0
    on.wait_until_ready()


def test_two_bundles_end_where_apply_leaves_windows_and_go_back(person: Person, tmp_path: Path) -> None:
    other = by_run(tmp_path / "store")
    here, reader, book = at_hand(person, tmp_path)
    states, bundles = [here.state()], []
    for name, resources in (("first", FIRST), ("second", SECOND)):
        plan = here.plan(reader, book)
        assert [step.resource for step in plan.steps] == resources
        bundles.append(unpack(plan, tmp_path / name))
        assert as_compared(here.apply(bundles[-1], "-WhatIf").said["steps"]) == as_compared(plan.stages[0].steps)
        done = here.there(bundles[-1]).said
        assert (done["outcome"], done["changed"]) == ("applied", len(resources))
        states.append(here.state())
    assert here.state() == other.machine.comparable_state()
    assert here.verify(bundles[1]).code == 0
    assert here.back(bundles[0]).refused == "LaterRun"
    second = here.back(bundles[1]).said
    assert (second["outcome"], second["kept"]) == ("rolled back", [])
    # The account stays for now, and with it what its VM was last ended for.
    assert but("WslVm", here.state()) == but("WslVm", states[1])
    first = here.back(bundles[0]).said
    assert (first["outcome"], first["kept"]) == ("rolled back", ["WSL itself: kept: winhost never downgrades WSL"])
    assert but("Wsl", here.state()) == but("Wsl", states[0])
    assert sorted(first["kept"]) == sorted(other.rollback(CONSENTS).kept)
    assert here.state() == other.machine.comparable_state()


def test_what_is_left_then_is_of_linux(person: Person, tmp_path: Path) -> None:
    other = by_run(tmp_path / "store")
    here, reader, book = at_hand(person, tmp_path)
    first, second = here.made(reader, book)
    assert "once SSH access to Linux is open, `run.py facts` there" in (second / "README.md").read_text("utf-8")
    assert ["run.py facts" in here.there(made).said["next"][-1] for made in (first, second)] == [False, True]
    third = unpack(other.plan(), tmp_path / "third")
    made = here.state()
    assert "python3 -I linux/run.py apply" in here.there(third).said["next"][-1]
    assert here.verify(third).code == 0
    assert here.state() == made
    (third / "linux" / "plan.json").write_bytes(b"")
    assert here.verify(third).refused == "Changed"


def test_a_distro_that_was_terminated_is_started_by_a_bundle_and_lets_in(person: Person, tmp_path: Path) -> None:
    here, reader, book = at_hand(person, tmp_path)
    _, second = here.made(reader, book)
    made = here.state()
    terminate(here.machine)
    found = here.state()
    assert here.verify(second).code == 4
    repair = unpack(here.plan(reader, book), tmp_path / "repair")
    done = here.there(repair).said
    assert (done["outcome"], done["changed"]) == ("applied", 2)
    assert here.state() == made
    assert here.verify(second).code == 0
    assert here.back(repair).said["outcome"] == "rolled back"
    assert here.state() == found


def test_tasks_that_could_not_work_are_mended_by_a_bundle_for_good(person: Person, tmp_path: Path) -> None:
    here, reader, book = at_hand(person, tmp_path)
    here.made(reader, book)
    account = here.machine.accounts.find(ACCOUNT)
    assert account is not None
    here.machine.accounts.set_local_user(account.sid, "Somebody's own, 1")
    here.machine.files.write(script_path(ACCOUNT), b"# of an older one\n")
    plan = here.plan(reader, book)
    assert [(step.resource, dict(step.before)) for step in plan.steps] == [
        ("AccountTasks", {"jobs": "stale", "logon": "refused"})
    ]
    repair = unpack(plan, tmp_path / "repair")
    assert here.there(repair).said["outcome"] == "applied"
    made = here.state()
    back = here.back(repair).said
    kept = "Tasks of winhost: kept: they log on again and they run jobs again"
    assert (back["outcome"], back["kept"]) == ("rolled back", [kept])
    assert here.state() == made


def edit(on: Machine) -> None:
    """Somebody changes the start of the distro, and opens another port to it."""
    on.distros.sessions[ACCOUNT].distros[DISTRO].conf_files["conf"] = "[boot]\nsystemd=false\n"
    on.network.vm_rules[8000] = [ANY_ADDRESS]


def test_what_went_with_the_distro_is_not_told_as_kept(person: Person, tmp_path: Path) -> None:
    other = by_run(tmp_path / "store")
    here, reader, book = at_hand(person, tmp_path)
    bundles = here.made(reader, book)
    for on in (here.machine, other.machine):
        edit(on)
    assert here.state() == other.machine.comparable_state()
    kept = [sentence for made in reversed(bundles) for sentence in here.back(made).said["kept"]]
    assert "Hyper-V firewall of WSL: kept: ports changed since by somebody else" in kept
    assert sorted(kept) == sorted(other.rollback(CONSENTS).kept)
    assert here.state() == other.machine.comparable_state()


def test_a_distro_that_cannot_be_read_is_neither_kept_nor_taken_away(person: Person, tmp_path: Path) -> None:
    here, reader, book = at_hand(person, tmp_path)
    found = here.state()
    first, second = here.made(reader, book)
    accounts, task = here.machine.accounts, f"jobs-{ACCOUNT}"
    accounts.disable_scheduled_task(task)
    made = here.state()
    for _ in range(2):
        done = here.back(second)
        left_open(done, "the task that runs WSL has to be there first")
        assert {"WslDistro", "WslConf", "WslAccess"} <= {lacks["resource"] for lacks in done.said["missing"]}
        assert here.state() == made
    accounts.enable_scheduled_task(task)
    for bundle in (second, first):
        assert here.back(bundle).said["outcome"] == "rolled back"
    assert but("Wsl", here.state()) == but("Wsl", found)


EVERY = 7  # of the moments of a run one is tried


def test_abandoned_in_the_middle_it_is_gone_on_with_and_given_back(person: Person, tmp_path: Path) -> None:
    here, reader, book = at_hand(person, tmp_path)
    for name in ("first", "second"):
        found, made = here.state(), unpack(here.plan(reader, book), tmp_path / name, watched=True)
        with filmed(here, tmp_path / f"there-{name}") as moments:
            assert here.there(made).said["outcome"] == "applied"
        for moment in moments[EVERY - 1 :: EVERY]:
            there = Wsl2ByHand(person, moment.here.machine, moment.here.journals)
            assert there.there(made).said["outcome"] == "applied", moment.name
            assert there.state() == here.state(), moment.name
            assert there.back(made).said["outcome"] == "rolled back", moment.name
            stays = "Wsl" if name == "first" else "WslVm"
            assert but(stays, there.state()) == but(stays, found), moment.name


# ---- other networks, and hosts that restart on the way


CASES = {
    name: case for name, case in NETWORKS.items() if case.mode != "mirrored" or case.host == "win11-hyperv-off-vbs-on"
}


@dataclass(frozen=True)
class Twin:
    """The same host twice: by hand and for `apply`. bundles: those of Windows, in their order."""

    here: Wsl2ByHand
    reader: Path
    other: Wsl2World

    def windows_only(self) -> Plan | None:
        """What is to be done next, if that is of Windows."""
        plan = self.here.plan(self.reader, self.other.book)
        return plan if list(plan.steps) else None


def twins(person: Person, folder: Path, case: Case) -> Twin:
    mine, other = case.world(folder / "mine"), case.world(folder / "other")
    here = Wsl2ByHand(person, mine.machine, folder / "journals")
    return Twin(here, unpack(mine.plan(), folder / "reader"), other)


def stopped_before_stage(other: Wsl2World, number: int) -> None:
    other.stop = lambda: any(event.text.startswith(f"stage {number}:") for event in other.events)
    with raises("Stopped"):
        other.apply(other.plan())
    other.stop = lambda: False


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_on_any_network_bundles_end_where_apply_leaves_windows_and_go_back(
    person: Person, tmp_path: Path, case: Case
) -> None:
    it = twins(person, tmp_path, case)
    found, bundles = it.here.state(), list[Path]()
    while plan := it.windows_only():
        bundles.append(unpack(plan, tmp_path / f"bundle-{len(bundles)}"))
        done = it.here.there(bundles[-1])
        assert done.code == 0, done.output
        assert it.here.verify(bundles[-1]).code == 0
    stopped_before_stage(it.other, len(bundles) + 1)
    assert it.here.state() == it.other.machine.comparable_state()
    kept = []
    for made in reversed(bundles):
        done = it.here.back(made)
        assert done.code == 0, done.output
        assert done.said["outcome"] == "rolled back"
        kept += done.said["kept"]
    outcome = it.other.rollback(CONSENTS)
    assert sorted(kept) == sorted(outcome.kept)
    assert it.here.state() == it.other.machine.comparable_state()
    now = it.here.state()
    assert {n: s for n, s in now.items() if n not in case.stays} == {
        n: s for n, s in found.items() if n not in case.stays
    }


@pytest.mark.parametrize("name", ["bridged over the wire itself", "home behind nat", "nothing there, bridged"])
def test_on_other_networks_abandoned_it_is_gone_on_with_and_given_back(
    person: Person, tmp_path: Path, name: str
) -> None:
    case = NETWORKS[name]
    it, number = twins(person, tmp_path, case), 0
    while plan := it.windows_only():
        found, made = it.here.state(), unpack(plan, tmp_path / f"bundle-{number}", watched=True)
        with filmed(it.here, tmp_path / f"there-{number}") as moments:
            assert it.here.there(made).said["outcome"] == "applied"
        for moment in moments[EVERY - 1 :: EVERY]:
            there = Wsl2ByHand(person, moment.here.machine, moment.here.journals)
            assert there.there(made).said["outcome"] == "applied", moment.name
            assert there.state() == it.here.state(), moment.name
            assert there.back(made).said["outcome"] == "rolled back", moment.name
            stays = {"Wsl", "WslVm"} - ({"Wsl"} if case.stays == () else set())
            assert {n: s for n, s in there.state().items() if n not in stays} == {
                n: s for n, s in found.items() if n not in stays
            }, moment.name
        number += 1


# ---- a switch over the very adapter that the host is managed through


@dataclass(frozen=True)
class AtTheSwitch:
    """A bundle that stopped at its switch, which stands; found: as the host was before it."""

    here: Wsl2ByHand
    made: Path
    found: Any

    def apply(self, *words: str) -> Done:
        return self.here.apply(self.made, *words, accept=CONSENTS)

    def rollback(self, *words: str) -> Done:
        return self.here.rollback(self.made, *words, accept=CONSENTS)

    def switches(self) -> list[str]:
        return [str(each.state["name"]) for each in self.here.machine.network.external_switches()]

    def adapters(self) -> Any:
        return self.here.state()["NetworkAdapter"]


@pytest.fixture
def at_the_switch(person: Person, tmp_path: Path) -> AtTheSwitch:
    it = twins(person, tmp_path, NETWORKS["bridged over the wire itself"])
    found, plan = it.here.state(), it.windows_only()
    assert plan is not None
    made = unpack(plan, tmp_path / "bundle", watched=True)
    done = it.here.apply(made, "-Keep", accept=CONSENTS)  # what does not stand yet it does not keep
    assert (done.code, done.refused) == (1, "NotKept")
    at = AtTheSwitch(it.here, made, found)
    assert at.switches() == ["lan"]
    return at


def test_the_readme_says_what_moves_and_how_it_is_kept(at_the_switch: AtTheSwitch) -> None:
    readme = (at_the_switch.made / "README.md").read_text("utf-8")
    assert MANAGED in readme
    assert re.search(r"^\.\\Apply\.ps1 -Accept \S*network\S* -Keep$", readme, re.M)


def test_the_same_again_does_not_keep_it(at_the_switch: AtTheSwitch) -> None:
    done = at_the_switch.apply()
    assert (done.code, done.refused) == (1, "NotKept")
    assert done.said["error"]["hint"] == ".\\Apply.ps1 -Accept restart,network,vm-stop,headless -Keep"
    at_the_switch.here.machine.network.pass_time(1000)
    assert at_the_switch.switches() == []
    assert at_the_switch.adapters() == at_the_switch.found["NetworkAdapter"]


def test_kept_too_late_it_is_told_and_tried_again(at_the_switch: AtTheSwitch) -> None:
    at_the_switch.here.machine.network.pass_time(1000)
    told = at_the_switch.apply("-Keep").said["error"]
    assert told["kind"] == "StepFailed"
    assert "Nobody came back within 300 s" in told["what"]
    assert at_the_switch.apply("-Keep").refused == "NotKept"
    assert at_the_switch.apply("-Keep").said["outcome"] == "applied"


def test_a_restart_meanwhile_is_as_if_nobody_kept_it(at_the_switch: AtTheSwitch) -> None:
    restart(at_the_switch.here.machine)
    at_the_switch.here.machine.network.pass_time(100)
    assert at_the_switch.switches() == []
    assert "The host restarted" in at_the_switch.apply("-Keep").said["error"]["what"]


def test_going_back_waits_for_what_nobody_kept(at_the_switch: AtTheSwitch) -> None:
    done = at_the_switch.rollback()
    assert (done.said["outcome"], done.said["kept"]) == ("rolled back", [])
    assert at_the_switch.switches() == []
    differs = {
        resource for resource, state in at_the_switch.here.state().items() if state != at_the_switch.found[resource]
    }
    assert differs <= {"ExternalSwitch"}  # the host's own account of it


def test_a_removal_that_nobody_keeps_is_undone_and_can_be_tried_again(at_the_switch: AtTheSwitch) -> None:
    assert at_the_switch.apply("-Keep").said["outcome"] == "applied"
    assert at_the_switch.rollback().refused == "NotKept"
    assert at_the_switch.switches() == []
    assert at_the_switch.rollback().refused == "NotKept"
    at_the_switch.here.machine.network.pass_time(1000)
    assert at_the_switch.switches() == ["lan"]
    assert "Nobody came back" in at_the_switch.rollback("-Keep").said["error"]["what"]
    assert at_the_switch.rollback().refused == "NotKept"
    done = at_the_switch.rollback("-Keep")
    assert (done.said["outcome"], at_the_switch.switches()) == ("rolled back", [])
    assert at_the_switch.adapters() == at_the_switch.found["NetworkAdapter"]


@pytest.mark.parametrize("way", ["apply", "rollback"])
def test_a_script_that_died_while_the_switch_waited_is_gone_on_with(at_the_switch: AtTheSwitch, way: str) -> None:
    (journal,) = at_the_switch.here.journals.glob("*.jsonl")
    *lines, last = journal.read_bytes().splitlines(keepends=True)
    assert b'"event":"failed"' in last
    journal.write_bytes(b"".join(lines))
    assert at_the_switch.switches() == ["lan"]
    if way == "apply":
        assert at_the_switch.apply("-Keep").said["outcome"] == "applied"
    else:
        assert at_the_switch.rollback().said["outcome"] == "rolled back"
        assert at_the_switch.adapters() == at_the_switch.found["NetworkAdapter"]


def test_somebody_at_the_console_is_told_what_moves_and_what_to_type(person: Person, tmp_path: Path) -> None:
    it = twins(person, tmp_path, NETWORKS["bridged over the wire itself"])
    plan = it.windows_only()
    assert plan is not None
    adapter = it.here.machine.network.adapters[MANAGED]
    addresses = [f"{each['address']}/{each['prefix']}" for each in adapter.addresses]
    moved = f"{adapter.state['name']} ({', '.join(addresses)})"
    made = unpack(plan, tmp_path / "alone", alone=True)
    words = ("-JournalFolder", str(tmp_path / "journals"), "-Accept", ",".join(CONSENTS))
    done = person.alone(it.here.machine, made / "Apply.ps1", *words)
    assert done.code == 1
    lines = [line.strip() for line in done.output.splitlines()]
    assert f"{moved}: what it has goes over to another interface." in lines
    assert lines[-1] == f".\\Apply.ps1 -Accept {','.join(CONSENTS)} -Keep"
    person.alone(it.here.machine, made / "Apply.ps1", *words, "-Keep")
    gone = person.alone(it.here.machine, made / "Rollback.ps1", *words)
    # They are with the host's port on the switch by then; the adapter below has none, and nothing to tell.
    told = [line.strip() for line in gone.output.splitlines() if "what it has goes over" in line]
    assert [line.partition(" (")[2].partition("): ")[0].rpartition("(")[2] for line in told] == [", ".join(addresses)]


# ---- files beside the scripts


def test_files_that_a_plan_sends_lie_beside_the_scripts_there(person: Person, tmp_path: Path) -> None:
    here, reader, book = at_hand(person, tmp_path)
    found = here.state()
    book["settings"]["wsl"]["source"] = "./wsl.2.7.14.0.x64.msi"
    book["settings"]["image"]["source"] = "./ubuntu.wsl"
    made = unpack(here.plan(reader, book), tmp_path / "made")
    readme = (made / "README.md").read_text("utf-8")
    for file in (book["settings"]["wsl"], book["settings"]["image"]):
        assert f"- {file['source'][2:]}: `{file['sha256']}`" in readme
    assert here.there(made).said["outcome"] == "applied"
    assert {record.key["source"][:2] for record in here.machine.instances("StagedFile")} == {"./"}
    assert here.back(made).said["outcome"] == "rolled back"
    assert but("Wsl", here.state()) == but("Wsl", found)


def test_what_was_sent_in_part_before_is_not_put_back(person: Person, tmp_path: Path) -> None:
    here, reader, book = at_hand(person, tmp_path)
    book["settings"]["wsl"]["source"] = "./wsl.2.7.14.0.x64.msi"
    key = {"sha256": book["settings"]["wsl"]["sha256"], "name": "wsl.2.7.14.0.x64.msi"}
    here.machine.software.write_registry(f"part {key['sha256']}-{key['name']}", "./wsl.2.7.14.0.x64.msi")
    part = f"{here.machine.software.file_path(key['sha256'], key['name'])}.part"
    here.machine.files.write(part, b"a")
    made = unpack(here.plan(reader, book), tmp_path / "made")
    assert here.there(made).said["outcome"] == "applied"
    assert here.back(made).said["outcome"] == "rolled back"
    assert here.machine.instances("StagedFile") == ()
    assert not [name for name in here.machine.software.registry_values if name.startswith(("part ", "file "))]
