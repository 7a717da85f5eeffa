"""WSL 2 by hand: two bundles do what a run does as far as Windows goes, and give it back; Linux is beyond them."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.engine.wsl2_world import ACCOUNT, CONSENTS, DISTRO, Wsl2World, wsl2_world
from tests.powershell.bundles import ByHand, Done, Person, WatchedCmdlets, a_person, filmed, unpack
from tests.powershell.test_bundles import as_compared
from tests.powershell.twins import machine
from winhost.engine.failures import Stopped
from winhost.engine.planning import make_plan
from winhost.lab import loopback
from winhost.lab.machine import Machine
from winhost.model.plan import Plan, Wish
from winhost.render.bundle import BeyondWindows, bundle
from winhost.resources.host import HostFacts

HOST = "win11-pro-1gpu"
FIRST = ["StagedFile", "StagedFile", "LocalAccount", "HyperVFirewall", "Wsl", "AccountRight", "AccountTasks"]
SECOND = ["WslConfig", "WslVm", "WslDistro", "WslConf", "WslAccess"]


@pytest.fixture(scope="module")
def person() -> Iterator[Person]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loopback, "Cmdlets", WatchedCmdlets)
        with a_person(machine(HOST)) as one:
            yield one


class Wsl2ByHand(ByHand):
    """Somebody without any way in: all that is known of the host is what Facts.ps1 says."""

    def plan(self, reader: Path, book: Any) -> Plan:
        return make_plan(HostFacts(self.facts(reader)), Wish("wsl2", book))

    def there(self, made: Path) -> Done:
        return self.through(partial(self.apply, accept=CONSENTS), made)

    def back(self, made: Path) -> Done:
        return self.through(partial(self.rollback, accept=CONSENTS), made)

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
    with pytest.raises(Stopped):
        other.apply(other.plan())
    other.stop = lambda: False
    return other


def at_hand(person: Person, folder: Path) -> tuple[Wsl2ByHand, Path, Any]:
    """A host that nobody touched yet, a bundle to read it with, and what is wished for."""
    other = wsl2_world(folder / "other", HOST)
    return Wsl2ByHand(person, other.machine, folder / "journals"), unpack(other.plan(), folder / "reader"), other.book


def but(noun: str, state: Any) -> dict[str, Any]:
    return {name: found for name, found in state.items() if name != noun}


def terminate(on: Machine) -> None:
    assert on.distros.wsl(ACCOUNT, ("--terminate", DISTRO), b"")[0] == 0
    on.settle()


def test_two_bundles_end_where_apply_leaves_windows_and_go_back(person: Person, tmp_path: Path) -> None:
    other = by_run(tmp_path / "store")
    here, reader, book = at_hand(person, tmp_path)
    states, bundles = [here.state()], []
    for name, nouns in (("first", FIRST), ("second", SECOND)):
        plan = here.plan(reader, book)
        assert [step.noun for step in plan.steps] == nouns
        bundles.append(unpack(plan, tmp_path / name))
        assert as_compared(here.apply(bundles[-1], "-WhatIf").said["steps"]) == as_compared(plan.stages[0].steps)
        done = here.there(bundles[-1]).said
        assert (done["outcome"], done["changed"]) == ("applied", len(nouns))
        states.append(here.state())
    assert here.state() == other.machine.settled_state()
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
    assert here.state() == other.machine.settled_state()


def test_what_is_left_then_is_of_linux_and_no_bundle(person: Person, tmp_path: Path) -> None:
    here, reader, book = at_hand(person, tmp_path)
    first, second = here.made(reader, book)
    readmes = [(made / "README.md").read_text("utf-8") for made in (first, second)]
    assert ["**This is not all.**" in readme for readme in readmes] == [True, False]
    assert all("**Its Linux is in no bundle.**" in readme for readme in readmes)
    assert "of its Linux" in here.there(second).said["next"][-1]
    with pytest.raises(BeyondWindows, match=r"AptSource.* of its Linux"):
        bundle(here.plan(reader, book))


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


def edit(on: Machine) -> None:
    """Somebody changes the start of the distro, and opens another port to it."""
    on.distros.sessions[ACCOUNT].distros[DISTRO].put["conf"] = "[boot]\nsystemd=false\n"
    on.network.vm_rules.append(8000)


def test_what_went_with_the_distro_is_not_told_as_kept(person: Person, tmp_path: Path) -> None:
    other = by_run(tmp_path / "store")
    here, reader, book = at_hand(person, tmp_path)
    bundles = here.made(reader, book)
    for on in (here.machine, other.machine):
        edit(on)
    assert here.state() == other.machine.settled_state()
    kept = [sentence for made in reversed(bundles) for sentence in here.back(made).said["kept"]]
    assert "Hyper-V firewall of WSL: kept: ports changed since by somebody else" in kept
    assert sorted(kept) == sorted(other.rollback(CONSENTS).kept)
    assert here.state() == other.machine.settled_state()


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
    assert {record.key["source"][:2] for record in here.machine.there("StagedFile")} == {"./"}
    assert here.back(made).said["outcome"] == "rolled back"
    assert but("Wsl", here.state()) == but("Wsl", found)


def test_what_was_sent_in_part_before_is_not_put_back(person: Person, tmp_path: Path) -> None:
    here, reader, book = at_hand(person, tmp_path)
    book["settings"]["wsl"]["source"] = "./wsl.2.7.14.0.x64.msi"
    key = {"sha256": book["settings"]["wsl"]["sha256"], "name": "wsl.2.7.14.0.x64.msi"}
    here.machine.software.write_registry(f"part {key['sha256']}-{key['name']}", "./wsl.2.7.14.0.x64.msi")
    part = f"{here.machine.software.path_of(key['sha256'], key['name'])}.part"
    here.machine.files.write(part, b"a")
    made = unpack(here.plan(reader, book), tmp_path / "made")
    assert here.there(made).said["outcome"] == "applied"
    assert here.back(made).said["outcome"] == "rolled back"
    assert here.machine.there("StagedFile") == ()
    assert not [name for name in here.machine.software.record if name.startswith(("part ", "file "))]
