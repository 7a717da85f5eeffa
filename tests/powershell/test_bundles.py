"""A bundle by hand and `winhost apply` from the same start end in the same state: straight, abandoned, and back."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.engine.world import EVERY_CONSENT, PLAYBOOK, World, world
from tests.powershell.bundles import (
    RESTART,
    ByHand,
    Done,
    Moment,
    Person,
    WatchedCmdlets,
    a_person,
    broken,
    filmed,
    give_rights,
    listening,
    restart,
    twin,
    unpack,
)
from tests.powershell.twins import ENGINES_OWN, machine
from winhost.bundle.bundle_files import HEADS, SCRIPTS, SHARED, SUMS, sums
from winhost.cli import run
from winhost.connect.wire_errors import Drifted
from winhost.engine.failures import ConsentNeeded
from winhost.engine.journal import read_journal
from winhost.engine.planning import make_plan
from winhost.engine.rollback import preview, rollback
from winhost.engine.run_state import replay
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.virtual_machine import VirtualMachine
from winhost.lab.physics.windows_errors import CmdletError
from winhost.lab.powershell import loopback
from winhost.lab.powershell.calls.cmdlet_process import BoundParameters
from winhost.model.documents import plain, read_document
from winhost.model.facts import Facts
from winhost.model.plan import Plan, PlanRequest
from winhost.paths.path_request import parse_request
from winhost.resources.host import HostFacts

INSTALLED = "server2025-role-installed"
# One stage each: with the role, of another Windows, with names that look like code, cards half-way gone.
ONE_STAGE = (INSTALLED, "server2022-2gpu", "hostile-vm-names", "card-dismounted", "gpu-partitioned")
CARD_24GB = "PCIROOT(49)#PCI(0100)#PCI(0000)"
CARD_16GB = "PCIROOT(16)#PCI(0100)#PCI(0000)"
TORN = b'{"n":99,"at":"2026-'

OLD_JOURNALS = Path(__file__).parents[1] / "data" / "v1" / "bundle-journals"


@pytest.fixture(scope="module")
def person() -> Iterator[Person]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loopback, "CmdletProcess", WatchedCmdlets)
        with a_person(machine(INSTALLED)) as one:
            yield one


def plan_from(facts: Facts) -> Plan:
    return make_plan(HostFacts(facts), parse_request(PlanRequest("dda", PLAYBOOK, "llm-01")))


@dataclass
class Case:
    """A host with a bundle for it, and the same host for `apply`."""

    here: ByHand
    made: Path
    plan: Plan
    other: World


@pytest.fixture
def case(person: Person, tmp_path: Path) -> Callable[..., Case]:
    def make(host: str = INSTALLED, found: Callable[[Machine], None] = lambda _: None) -> Case:
        other = world(tmp_path / "store", host)
        found(other.machine)
        plan = other.plan(vm=next(iter(other.machine.vms)))
        here = ByHand(person, twin(other.machine), tmp_path / "journals")
        return Case(here, unpack(plan, tmp_path / "bundle"), plan, other)

    return make


# ---- the whole story: two stages with a restart between them, filmed line by line


@dataclass
class Story:
    """found → first bundle, restart, between → second bundle → made; and everything back. Each with its moments."""

    first: Path
    second: Path
    found: Any
    between: Any
    made: Any
    there: dict[str, list[Moment]]
    back: dict[str, list[Moment]]
    end: Any

    def bundle(self, stage: str) -> Path:
        return self.first if stage == "first" else self.second

    def goal(self, stage: str) -> Any:
        return self.between if stage == "first" else self.made

    def start(self, stage: str) -> Any:
        return self.found if stage == "first" else self.between


@pytest.fixture(scope="module")
def story(person: Person, tmp_path_factory: pytest.TempPathFactory) -> Story:
    folder = tmp_path_factory.mktemp("story")
    here = ByHand(person, machine("server2025-3gpu"), folder / "journals")
    found = here.state()
    reader = unpack(plan_from(here.machine.facts()), folder / "reader")
    first = unpack(plan_from(here.facts(reader)), folder / "first", watched=True)
    there: dict[str, list[Moment]] = {}
    back: dict[str, list[Moment]] = {}
    with filmed(here, folder / "there-first") as there["first"]:
        assert here.through(here.apply, first).said["outcome"] == "applied"
    between = here.state()
    second = unpack(plan_from(here.facts(reader)), folder / "second", watched=True)
    with filmed(here, folder / "there-second") as there["second"]:
        assert here.apply(second).said["outcome"] == "applied"
    made = here.state()
    with filmed(here, folder / "back-second") as back["second"]:
        assert here.rollback(second).said["outcome"] == "rolled back"
    with filmed(here, folder / "back-first") as back["first"]:
        assert here.through(here.rollback, first).said["outcome"] == "rolled back"
    return Story(first, second, found, between, made, there, back, here.state())


def moments(films: dict[str, list[Moment]], folder: Path) -> Iterator[tuple[str, ByHand, str]]:
    """Each moment as a host of its own: the stage, the host, and which moment it is."""
    for stage, film in films.items():
        for moment in film:
            yield stage, moment.here.copy(folder / stage / moment.name), moment.name


def test_two_bundles_end_where_one_apply_ends(story: Story, tmp_path: Path) -> None:
    other = world(tmp_path)
    assert other.state() == story.found
    assert other.apply(other.plan()).holds
    assert other.state() == story.made
    assert other.rollback().outcome == "rolled back"
    assert other.state() == story.end == story.found
    assert len(story.there["first"]) == 9
    assert len(story.there["second"]) > 30


def test_abandoned_at_any_line_and_run_again_it_ends_where_it_would_have_ended(story: Story, tmp_path: Path) -> None:
    for stage, here, name in moments(story.there, tmp_path):
        for journal in here.journals.glob("*.jsonl"):
            journal.write_bytes(journal.read_bytes() + TORN)  # a line that was being written
        assert here.through(here.apply, story.bundle(stage)).said["outcome"] == "applied", (stage, name)
        assert here.state() == story.goal(stage), (stage, name)


def test_abandoned_at_any_line_and_rolled_back_it_ends_where_it_began(story: Story, tmp_path: Path) -> None:
    for stage, here, name in moments(story.there, tmp_path):
        done = here.through(here.rollback, story.bundle(stage))
        if name.endswith("before-run"):
            assert (done.code, done.refused) == (2, "NeverBegun"), (stage, name)
        else:
            assert done.said["outcome"] == "rolled back", (stage, name)
        assert here.state() == story.start(stage), (stage, name)


def test_a_rollback_abandoned_at_any_line_and_run_again_ends_where_it_would_have_ended(
    story: Story, tmp_path: Path
) -> None:
    for stage, here, name in moments(story.back, tmp_path):
        done = here.through(here.rollback, story.bundle(stage))
        # What was abandoned after its last line has nothing left to undo.
        assert done.code == 0, (stage, name, done.output)
        assert here.state() == story.start(stage), (stage, name)


def test_the_first_bundle_is_not_rolled_back_from_under_the_second(story: Story) -> None:
    here = story.there["second"][-1].here
    made = here.state()
    refused = here.rollback(story.first)
    assert (refused.code, refused.refused) == (2, "LaterRun")
    assert here.state() == made


def test_a_bundle_of_version_1_that_was_applied_later_is_seen(story: Story) -> None:
    here = story.there["first"][-1].here
    old = OLD_JOURNALS / "20151c8dd75b7a82.20261122-161616-524.jsonl"
    later = here.journals / f"{old.name.split('.')[0]}.29991122-161616-524.jsonl"
    later.write_bytes(old.read_bytes())
    refused = here.rollback(story.first)
    later.unlink()
    assert (refused.code, refused.refused) == (2, "LaterRun")


def journals_of(here: ByHand, made: Path) -> list[Path]:
    """A journal is named by the sum of its plan."""
    return list(here.journals.glob(f"{sha256((made / 'plan.json').read_bytes()).hexdigest()[:16]}.*.jsonl"))


@pytest.mark.parametrize(
    ("moment", "old", "new"),
    [
        ("after-begin", b'"turn-off"', b'"shutdown"'),
        ("before-stage", b'"restart":false', b'"restart":true'),  # in the last line, which no other one follows
        ("before-stage", b'"hash":', b'"hsah":'),
        ("before-stage", b'"n":', b'"n" :'),
    ],
)
def test_an_edited_journal_is_refused_either_way(
    story: Story, tmp_path: Path, moment: str, old: bytes, new: bytes
) -> None:
    *_, last = (each for each in story.there["second"] if each.name.endswith(moment))
    here = last.here.copy(tmp_path / "journals")
    (journal,) = journals_of(here, story.second)
    before, _, after = journal.read_bytes().rpartition(old)
    journal.write_bytes(before + new + after)
    found = here.state()
    for script in (here.apply, here.rollback):
        refused = script(story.second)
        assert (refused.code, refused.refused) == (2, "Damaged")
    assert here.state() == found


@pytest.mark.parametrize("text", [b"", TORN])
def test_a_journal_without_a_whole_line_stands_in_nobodys_way(story: Story, tmp_path: Path, text: bytes) -> None:
    here = story.there["second"][0].here.copy(tmp_path / "journals")
    (never,) = (path for path in here.journals.glob("*.jsonl") if not path.read_bytes())
    never.write_bytes(text)
    found = here.state()
    refused = here.rollback(story.second)
    assert (refused.code, refused.refused) == (2, "NeverBegun")
    assert here.state() == found
    assert here.apply(story.second).said["outcome"] == "applied"
    assert here.rollback(story.second).said["outcome"] == "rolled back"
    assert here.through(here.rollback, story.first).said["outcome"] == "rolled back"
    assert here.state() == story.found
    assert never.read_bytes() == text


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_journal_that_an_editor_saved_otherwise_is_refused(story: Story, tmp_path: Path, encoding: str) -> None:
    here = story.there["second"][-1].here.copy(tmp_path / "journals")
    (journal,) = journals_of(here, story.second)
    saved = journal.read_text("ascii").encode(encoding)
    journal.write_bytes(saved)
    for script in (here.apply, here.rollback):
        assert script(story.second).refused == "Damaged"
    assert journal.read_bytes() == saved


def test_a_run_that_goes_back_is_not_gone_on_with(story: Story) -> None:
    here = story.back["second"][5].here
    found = here.state()
    refused = here.apply(story.second)
    assert (refused.code, refused.refused) == (2, "OneWay")
    assert here.state() == found


# ---- a VM's power that nobody asked for


def needing_only(facts: Facts) -> Plan:
    """A plan that moves the VM's power for its other steps alone."""
    resources = [desired for desired in PLAYBOOK["resources"] if desired["resource"] != "VmPower"]
    return make_plan(
        HostFacts(facts), parse_request(PlanRequest("dda", {**PLAYBOOK, "resources": resources}, "llm-01"))
    )


def begun_in(journal: Path) -> list[dict[str, Any]]:
    entries = [json.loads(line) for line in journal.read_text("ascii").splitlines()]
    return [entry["step"] for entry in entries if entry["event"] == "begin"]


def test_what_was_moved_for_others_is_given_back_by_whoever_goes_on(person: Person, tmp_path: Path) -> None:
    other = world(tmp_path / "store", INSTALLED)
    found = other.state()
    plan = needing_only(other.facts())
    here = ByHand(person, twin(other.machine), tmp_path / "journals")
    made = unpack(plan, tmp_path / "bundle", watched=True)
    with filmed(here, tmp_path / "there") as there:
        assert here.apply(made).said["outcome"] == "applied"
    other.apply(plan)
    assert here.state() == other.state()
    assert here.machine.vms[other.vm()].power == "running"
    for moment in there:
        assert moment.here.apply(made).said["outcome"] == "applied", moment.name
        assert moment.here.state() == other.state(), moment.name
        begun = [step for journal in moment.here.journals.glob("*.jsonl") for step in begun_in(journal)]
        assert {step["role"] for step in begun if step["resource"] == "VmPower"} == {"need", "restore"}, moment.name
        assert moment.here.rollback(made).said["outcome"] == "rolled back", moment.name
        assert moment.here.state() == found, moment.name


def test_a_vm_that_was_given_back_and_stopped_by_somebody_since_stays_off(person: Person, tmp_path: Path) -> None:
    here = ByHand(person, machine(INSTALLED), tmp_path / "journals")
    made = unpack(needing_only(here.machine.facts()), tmp_path / "bundle", watched=True)
    with filmed(here, tmp_path / "there") as there:
        here.apply(made)
    (ended,) = (moment.here for moment in there if moment.name.endswith("before-stage"))
    (vm,) = (vm for vm in ended.machine.vms.values() if vm.name == "llm-01")
    ended.machine.stop_vm(vm.guid, within=300)
    assert ended.apply(made).said["changed"] == 0
    assert vm.power == "off"


# ---- a process of its own, and its death


def test_a_killed_process_is_followed_by_one_that_goes_on(person: Person, tmp_path: Path) -> None:
    other = world(tmp_path / "store", INSTALLED)
    plan = other.plan()
    host = twin(other.machine)
    made = unpack(plan, tmp_path / "bundle", watched=True, alone=True)
    words = ("-JournalFolder", str(tmp_path / "journals"), "-Accept", "vm-stop,force-dismount")
    assert person.alone(host, made / "Apply.ps1", *words, kill_at="end").code not in (0, 1, 2, 4)
    assert other.machine.settled_state() != host.settled_state()
    done = person.alone(host, made / "Apply.ps1", *words)
    assert done.code == 0, done.output
    assert f"applied, changes: {len(list(plan.steps)) - 1}" in done.output
    other.apply(plan)
    assert other.state() == host.settled_state()


def test_how_it_ended_is_said_where_it_cannot_be_kept(case: Callable[..., Case], tmp_path: Path) -> None:
    it = case()
    made = unpack(it.plan, tmp_path / "watched", watched=True)

    def stand_in_the_way(given: BoundParameters) -> None:
        Path(given["journal"]).with_suffix(".result.json").mkdir(exist_ok=True)

    with listening(stand_in_the_way):
        assert it.here.apply(made).said["outcome"] == "applied"


# ---- the same steps as the engine


def as_compared(steps: Any) -> list[dict[str, Any]]:
    names = ("resource", "key", "role", "before", "desired", "title", "risks")
    return [{name: step[name] for name in names} for step in plain(steps)]


@pytest.mark.parametrize("host", ONE_STAGE)
def test_the_steps_are_those_of_the_engine_there_and_back(case: Callable[..., Case], host: str) -> None:
    it = case(host)
    here, other = it.here, it.other
    found = here.machine.snapshot()
    assert as_compared(here.apply(it.made, "-WhatIf").said["steps"]) == as_compared(it.plan.stages[0].steps)
    assert here.machine.snapshot() == found
    assert not here.journals.exists()
    assert here.apply(it.made).said["changed"] == other.apply(it.plan).changed > 0
    assert here.state() == other.state()
    undo, _ = preview(replay(other.run, read_journal(other.store.path(other.run))), other.facts())
    made = here.machine.snapshot()
    assert as_compared(here.rollback(it.made, "-WhatIf").said["steps"]) == as_compared(undo)
    assert here.machine.snapshot() == made
    assert here.rollback(it.made).said["outcome"] == other.rollback().outcome == "rolled back"
    assert here.state() == other.state()


@pytest.mark.parametrize("host", [*ONE_STAGE, "server2025-3gpu", "win11-pro-1gpu", "not-administrator"])
def test_facts_are_what_the_wire_reads(person: Person, case: Callable[..., Case], tmp_path: Path, host: str) -> None:
    any_bundle = case().made
    here = ByHand(person, machine(host), tmp_path / "unused")
    found, wire = here.facts(any_bundle), here.machine.facts()
    assert (found.schema, found.origin) == (wire.schema, "synthetic")
    read, expected = comparable(found), comparable(wire)
    assert list(found.resources) == [resource for resource in found.resources if resource in expected]
    assert {resource: read[resource] for resource in wire.resources} == expected


def comparable(facts: Facts) -> dict[str, Any]:
    """Without an order of instances, and without what is the engine's own."""
    resources = plain(facts.resources)
    for resource, answer in resources.items():
        if isinstance(answer, list):
            for each in answer:
                each["state"] |= dict.fromkeys(ENGINES_OWN.get(resource, ()), "its own")
            answer.sort(key=lambda each: json.dumps(each["key"], sort_keys=True))
    return dict(resources)


# ---- refusals: nothing is changed, nothing is begun


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
        host.stop_vm(vm, within=300)
        host.set_vm(vm, checkpoint_type="standard", low_memory_mapped_io_space=256 << 20)
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
            machine.stop_vm(vm, within=300)
            machine.set_vm(vm, automatic_stop_action=stop, automatic_start_action="start")

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
            machine.stop_vm(vm, within=300)

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


def test_a_folder_with_brackets_in_its_name_is_one_like_any_other(case: Callable[..., Case]) -> None:
    it = case()
    assert it.here.verify(it.made.rename(it.made.with_name("bundle [1]"))).code == 4


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
    ("text", "says"), [(b"", "is empty"), (b" \r\n", "is empty"), (b"{", "is no JSON"), (b"[]", "winhost.plan/2")]
)
def test_what_is_no_plan_is_said_plainly(case: Callable[..., Case], text: bytes, says: str) -> None:
    it = case()
    done = it.here.apply(with_plan(it.made, text))
    refuse(it, done, 2, "WrongDocument", it.here.state())
    assert f"plan.json {says}" in done.said["error"]["what"].replace("has the schema , not ", "")


# ---- in the middle, afterwards, and in a week


def test_a_guest_that_does_not_stop_is_turned_off_only_with_its_own_consent(case: Callable[..., Case]) -> None:
    it = case("guest-does-not-answer")
    done = it.here.apply(it.made, "-GuestDeadline", "5", accept=["vm-stop", "force-dismount", "restart"])
    assert (done.code, done.refused) == (1, "StepFailed")
    assert "Winhost.GuestDidNotStop" in done.said["error"]["what"]
    assert it.here.apply(it.made, "-GuestDeadline", "5").said["outcome"] == "applied"
    it.other.apply(it.plan)
    assert it.here.state() == it.other.state()


def test_what_somebody_changed_since_is_kept_and_said(case: Callable[..., Case]) -> None:
    it = case()
    it.here.apply(it.made)
    it.other.apply(it.plan)
    for host in (it.here.machine, it.other.machine):
        vm: VirtualMachine = host.vms[it.other.vm()]
        vm.stop_action = "shut-down"
    done, outcome = it.here.rollback(it.made).said, it.other.rollback()
    assert done["kept"] == list(outcome.kept) != []
    assert it.here.state() == it.other.state()


def test_what_somebody_changed_stays_and_the_rest_goes_back(case: Callable[..., Case], tmp_path: Path) -> None:
    it = case()
    vm = it.other.vm()
    made = unpack(it.plan, tmp_path / "watched", watched=True)
    found = it.here.machine.vms[vm]
    low, cache = found.low, found.cache
    it.here.apply(made)
    it.other.apply(it.plan)
    for host in (it.here.machine, it.other.machine):
        assert (host.vms[vm].low, host.vms[vm].cache) != (low, cache)
        host.stop_vm(vm, within=300)
        host.set_vm(vm, high_memory_mapped_io_space=256 << 30)
        host.start_vm(vm)
    undo, _ = preview(replay(it.other.run, read_journal(it.other.store.path(it.other.run))), it.other.facts())
    assert as_compared(it.here.rollback(made, "-WhatIf").said["steps"]) == as_compared(undo)
    with filmed(it.here, tmp_path / "back") as back:
        done = it.here.rollback(made).said
    outcome = it.other.rollback()
    assert (done["outcome"], done["kept"]) == (outcome.outcome, list(outcome.kept))
    assert done["kept"] == ["MMIO windows of llm-01: kept: high changed since by somebody else"]
    assert it.here.state() == it.other.state()
    for moment in back:  # what was not ours does not become ours by being read on the way
        again = moment.here.rollback(made).said
        assert (again["outcome"], again["kept"]) == (outcome.outcome, done["kept"]), moment.name
        assert moment.here.state() == it.other.state(), moment.name


def left_open(done: Done, says: str) -> None:
    """It changed nothing, kept nothing, and says what is missing and the next command."""
    assert (done.code, done.said["outcome"], done.said["kept"]) == (1, "not all rolled back", [])
    assert all(says in lacks["why"] for lacks in done.said["missing"])
    assert [line.rpartition(" ")[2] for line in done.said["next"]] == [r".\Rollback.ps1"]


@pytest.mark.parametrize(
    ("role", "cmdlet", "says"),
    [
        ("available", "", "the Hyper-V role has to be there first"),
        ("installed", "Get-VMAssignableDevice", "devices that can be assigned: no [OperationFailed]"),
    ],
    ids=["the role is away", "devices"],
)
def test_what_cannot_be_read_is_neither_kept_nor_rolled_back(
    case: Callable[..., Case], role: str, cmdlet: str, says: str
) -> None:
    it = case()
    found = it.here.state()
    it.here.apply(it.made)
    it.other.apply(it.plan)
    for host in (it.here.machine, it.other.machine):
        host._role = host._tools = role
    if cmdlet:
        it.other.machine.refusals["AssignableDevice"] = lambda: CmdletError(cmdlet, "ReadError", "", (), "no")
    with broken(cmdlet):
        for _ in range(2):
            done, outcome = it.here.rollback(it.made), it.other.rollback()
            left_open(done, says)
            missing = [(lacks["title"], lacks["resource"], lacks["key"]) for lacks in done.said["missing"]]
            assert sorted(missing, key=str) == sorted(((m.title, m.resource, m.key) for m in outcome.missing), key=str)
            assert it.here.state() == it.other.state()
    it.here.machine._role = it.here.machine._tools = "installed"
    done = it.here.rollback(it.made)
    assert (done.code, done.said["outcome"], done.said["missing"]) == (0, "rolled back", [])
    assert it.here.state() == found


def test_the_role_does_not_go_while_what_may_rest_on_it_cannot_be_read(story: Story, tmp_path: Path) -> None:
    here = story.back["first"][0].here.copy(tmp_path / "journals")
    with broken("Get-VMSwitch"):
        done = here.rollback(story.first)
    left_open(done, "external switches: no [OperationFailed]")
    assert [lacks["resource"] for lacks in done.said["missing"]] == ["HyperVRole"]
    assert here.state() == story.between
    assert here.through(here.rollback, story.first).said["outcome"] == "rolled back"
    assert here.state() == story.found


def test_a_vm_that_has_a_card_now_is_called_by_its_name(case: Callable[..., Case]) -> None:
    it = case()
    it.here.apply(it.made)
    it.other.apply(it.plan)
    machine = it.other.machine
    (vm,) = (vm for vm in machine.vms.values() if vm.guid != it.other.vm())
    for each in machine.vms:
        machine.stop_vm(each, within=300)
    card = {"location": CARD_16GB, "device": "VEN_10DE&DEV_2D04&SUBSYS_53521462"}
    it.other.open().set("AssignableDevice", card, {"place": f"assigned:{vm.guid}"}, {}, {"accept": ["force-dismount"]})
    it.here.machine = twin(machine)
    done, outcome = it.here.rollback(it.made), it.other.rollback()
    assert done.said["kept"] == list(outcome.kept)
    assert [sentence for sentence in outcome.kept if sentence.endswith(f": kept: VM {vm.name} has it now")]


@pytest.fixture
def two_plans(person: Person, tmp_path: Path) -> tuple[World, list[tuple[ByHand, Path]]]:
    """Two plans for one VM, the second one of more cards, applied by people who do not know of each other."""
    other = world(tmp_path / "store", INSTALLED)
    host = twin(other.machine)
    made = []
    for name, cards in (("one", (CARD_24GB,)), ("two", (CARD_24GB, CARD_16GB))):
        plan = other.plan(cards=cards)
        here, bundle = ByHand(person, host, tmp_path / name), unpack(plan, tmp_path / f"bundle-{name}")
        assert here.apply(bundle).said["outcome"] == other.apply(plan).outcome == "applied"
        made.append((here, bundle))
    return other, made


@pytest.mark.parametrize("order", [[1, 0], [0, 1, 0]], ids=["in reverse order", "in their own order"])
def test_two_plans_on_one_vm_go_back(two_plans: tuple[World, list[tuple[ByHand, Path]]], order: list[int]) -> None:
    other, made = two_plans
    runs = other.store.runs()
    for turn, number in enumerate(order):
        here, bundle = made[number]
        done, outcome = here.rollback(bundle), rollback(runs[number], EVERY_CONSENT, other.context)
        assert (done.said["outcome"], done.said["kept"]) == (outcome.outcome, list(outcome.kept))
        assert bool(outcome.kept) == (order[turn:] == [0, 1, 0])
        assert here.state() == other.state()
    assert other.state() == machine(INSTALLED).settled_state()
    assert [here.rollback(bundle).refused for here, bundle in made] == ["UnknownRun"] * 2


def test_the_settings_stay_for_a_card_that_was_given_by_hand(case: Callable[..., Case]) -> None:
    it = case()
    plan = it.other.plan(cards=(CARD_24GB,))
    made = unpack(plan, it.made.parent / "one-card")
    it.here.apply(made)
    it.other.apply(plan)
    assert it.here.state() == it.other.state()
    vm = it.other.vm()
    card = {"location": CARD_16GB, "device": "VEN_10DE&DEV_2D04&SUBSYS_53521462"}
    it.other.machine.stop_vm(vm, within=300)
    it.other.open().set("AssignableDevice", card, {"place": f"assigned:{vm}"}, {}, {"accept": ["force-dismount"]})
    it.other.machine.start_vm(vm)
    it.here.machine = twin(it.other.machine)
    done, outcome = it.here.rollback(made), it.other.rollback()
    assert done.said["kept"] == list(outcome.kept)
    assert [sentence for sentence in outcome.kept if f"for {CARD_16GB}, which came since" in sentence]
    assert it.here.state() == it.other.state()


def test_a_second_apply_changes_nothing_and_verify_agrees(case: Callable[..., Case]) -> None:
    it = case()
    assert it.here.verify(it.made).code == 4
    it.here.apply(it.made)
    journals = sorted(it.here.journals.iterdir())
    again = it.here.apply(it.made)
    assert (again.code, again.said["outcome"], again.said["changed"]) == (0, "nothing to do", 0)
    assert sorted(it.here.journals.iterdir()) == journals
    verified = it.here.verify(it.made)
    assert (verified.code, verified.said["holds"]) == (0, True)
    assert all(check["holds"] for check in verified.said["checks"])


def test_an_earlier_run_of_the_same_plan_is_named_when_the_later_one_is_undone(case: Callable[..., Case]) -> None:
    it = case()
    found = it.here.state()
    it.here.apply(it.made)
    it.here.machine.vms[it.other.vm()].cache = False
    assert it.here.apply(it.made).said["changed"] == 3
    assert "once more" in " ".join(it.here.rollback(it.made).said["next"])
    assert it.here.rollback(it.made).said["next"] == []
    assert it.here.state() == found


def test_a_restart_is_left_to_the_person(story: Story, tmp_path: Path) -> None:
    here = next(m.here for m in story.there["first"] if m.name.endswith("before-restarted"))
    here = here.copy(tmp_path / "journals")
    here.machine.boot -= 1  # it was not restarted after all
    done = here.apply(story.first, accept=["restart"])
    assert (done.code, here.machine.tasks) == (RESTART, {})
    assert done.said["next"] == [r"Restart this host, then go on: .\Apply.ps1 -Accept restart"]


def test_with_consent_it_goes_on_by_itself_once(person: Person, tmp_path: Path, story: Story) -> None:
    here = ByHand(person, machine("server2025-3gpu"), tmp_path / "journals")
    assert here.apply(story.first, "-ContinueAfterRestart", accept=["restart"]).code == RESTART
    here.machine.settle()
    assert here.machine.boot == 2
    ((name, task),) = here.machine.tasks.items()
    assert task["Principal"] == "S-1-5-18 ServiceAccount Highest"
    (words,) = re.findall(r"powershell\.exe (-NoProfile .*)", task["Action"])
    (copied,) = re.findall(r'-File "([^"]+)"', words)
    assert Path(copied).parent == here.journals / name.removeprefix("winhost-")
    assert "-ContinueAfterRestart" not in words
    (given,) = re.findall(r'-File "[^"]+" (.*)', words)
    assert person.run(here.machine, Path(copied), given).code == 0
    assert here.machine.tasks == {}
    (result,) = here.journals.glob("*.result.json")
    assert json.loads(result.read_text())["outcome"] == "applied"
    assert here.state() == story.between
    assert here.apply(story.first).said["outcome"] == "nothing to do"  # the copy is there still, and no task at all


def test_nothing_is_read_before_windows_is_ready(person: Person, tmp_path: Path, story: Story) -> None:
    here = ByHand(person, machine("server2025-3gpu"), tmp_path / "journals")
    here.apply(story.first)
    restart(here.machine)
    here.machine._servicing = True
    late = here.apply(story.first)
    assert (late.code, late.refused) == (1, "NotReady")
    here.machine._servicing = False
    assert here.apply(story.first).said["outcome"] == "applied"


# ---- a host that winhost never reaches


def test_the_air_gapped_loop_closes(
    person: Person, story: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    here = ByHand(person, machine("server2025-3gpu"), tmp_path / "journals")
    for number in ("1", "2"):
        facts, plan, folder = (f"{name}-{number}" for name in ("facts", "plan", "bundle"))
        assert (
            person.run(here.machine, story.first / "Facts.ps1", "-Name", "away", "-OutFile", absolute(facts)).code == 0
        )
        assert run(["plan", "--facts", facts, "--vm", "llm-01", "-o", plan]) == 0
        assert run(["bundle", plan, "-o", folder]) == 0
        made = unpack(read_document(Path(folder, "plan.json"), Plan), tmp_path / f"made-{number}")
        assert (made / "plan.json").read_bytes() == Path(folder, "plan.json").read_bytes() == Path(plan).read_bytes()
        assert here.through(here.apply, made).said["host"] == "away"
    assert person.run(here.machine, story.first / "Facts.ps1", "-OutFile", absolute("end")).code == 0
    assert run(["verify", "plan-2", "--facts", "end"]) == 0
    assert run(["verify", "plan-2", "--facts", "facts-2"]) == 4
    assert here.state() == story.made


def absolute(name: str) -> str:
    return f"'{Path.cwd() / name}'"
