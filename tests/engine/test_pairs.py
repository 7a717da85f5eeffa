"""Two or three runs on one host, by one controller or two that do not know of each other, rolled back in any order.

Those that are partly rolled back are rolled back again, until none is: then the host is as it was found.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, permutations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.engine.crash import Abandoned
from tests.engine.two_machines import OURS
from tests.engine.world import EVERY_CONSENT, World, world
from tests.engine.wsl2_world import CONSENTS, playbook, wsl2_world
from tests.errors import raises, suppressed
from winhost.engine.rollback import rollback
from winhost.engine.run_context import Outcome
from winhost.engine.store import Store, user_and_computer
from winhost.lab.contract.agent_answers import MARKS_FILE, InjectedFault
from winhost.lab.physics.windows_errors import agent_error
from winhost.model.errors import WinhostError

GPUS = tuple(f"PCIROOT({root})#PCI(0100)#PCI(0000)" for root in ("16", "49", "7B"))
VMS = ("llm-01", "files-01")
HOSTS = ("server2025-3gpu", "server2025-role-installed")
AT_HOME = ("host-enabled", "host-disabled")
FEW = settings(max_examples=6, deadline=None, derandomize=True, phases=(Phase.explicit, Phase.generate), database=None)
MANY = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


@dataclass(frozen=True)
class RequestedRun:
    """One run of DDA. restart: the host restarts after it."""

    vm: str
    gpus: tuple[str, ...]
    power: str = "as-found"
    high: int | None = None
    restart: bool = False


@dataclass(frozen=True)
class Pair:
    """apart: two controllers, each with a state folder of its own, run them by turns; order: of the rollbacks."""

    host: str
    runs: tuple[RequestedRun, ...]
    apart: bool
    order: tuple[int, ...]


@dataclass
class Controllers:
    """One host with one or two that look after it. means: for each run, those of its controller."""

    here: World
    consents: tuple[str, ...]
    made: list[tuple[str, Any]] = field(default_factory=list)

    def back(self, number: int) -> Outcome:
        run, context = self.made[number]
        return rollback(run, self.consents, context)


def requests() -> st.SearchStrategy[RequestedRun]:
    return st.builds(
        RequestedRun,
        vm=st.sampled_from(VMS),
        gpus=st.lists(st.sampled_from(GPUS), min_size=1, max_size=2, unique=True).map(tuple),
        power=st.sampled_from(("as-found", "as-found", "running", "off")),
        high=st.sampled_from((None, None, 256 << 30)),
        restart=st.booleans(),
    )


def orders(runs: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.permutations(range(runs)).map(tuple)


@st.composite
def pairs(draw: st.DrawFn) -> Pair:
    apart, runs = draw(st.booleans()), draw(st.lists(requests(), min_size=2, max_size=3).map(tuple))
    return Pair(draw(st.sampled_from(HOSTS)), runs, apart, draw(orders(len(runs))))


def assert_role_stays_for_gpus(here: World) -> None:
    """Without it nobody could give them back."""
    away = [r.key for r in here.machine.instances("AssignableDevice") if r.state["assignment"] not in AT_HOME]
    assert here.machine.role == "installed" or not away


def take_back(both: Controllers, order: tuple[int, ...], look: Callable[[], None] = lambda: None) -> None:
    """In this order, and again those that are partly rolled back: each round ends at least one."""
    left = [number for number in order if number < len(both.made)]
    while left:
        partly = []
        for number in left:
            outcome = both.back(number)
            assert outcome.outcome in ("rolled back", "partly rolled back"), outcome
            assert outcome.holds == (outcome.outcome == "rolled back")
            assert bool(outcome.waiting) == (not outcome.holds)
            if outcome.waiting:
                assert f"winhost rollback {outcome.run}" in (outcome.next or "")
                partly.append(number)
            look()
        assert len(partly) < len(left), "they wait for each other"
        left = partly


def dda_pair(pair: Pair, folder: Path) -> None:
    here = world(folder / "0", pair.host)
    both, found = Controllers(here, EVERY_CONSENT), here.state()
    for number, requested in enumerate(pair.runs):
        here.store = Store(folder / str(number % 2 if pair.apart else 0))
        before = here.store.runs()
        with suppressed("Refused", "Unfinished"):  # perhaps in the middle: then it is taken back from there
            here.apply(here.plan(requested.vm, gpus=requested.gpus, power=requested.power, high=requested.high))
        if here.store.runs() != before:
            both.made.append((here.run, here.context))
        if requested.restart:
            here.machine.restart_computer()
            here.machine.wait_until_ready()
    take_back(both, pair.order, lambda: assert_role_stays_for_gpus(here))
    assert_as_found(both, found)


ISSUE = Pair(HOSTS[0], (RequestedRun("llm-01", GPUS[:1]), RequestedRun("llm-01", GPUS[1:2])), apart=False, order=(0, 1))
TWO_VMS = Pair(
    HOSTS[0], (RequestedRun("llm-01", GPUS[:1]), RequestedRun("files-01", GPUS[1:2])), apart=True, order=(0, 1)
)
BACKWARDS = Pair(
    HOSTS[0], (RequestedRun("llm-01", GPUS[:1]), RequestedRun("llm-01", GPUS[:2])), apart=True, order=(1, 0)
)
# The second run only stops the VM, and the role goes first: then no VM is left that could be started again.
STOPPED = Pair(
    HOSTS[0],
    (RequestedRun("llm-01", GPUS[1:2]), RequestedRun("llm-01", GPUS[1:2], power="off")),
    apart=False,
    order=(0, 1),
)


@pytest.mark.costly
@pytest.mark.parametrize(
    "pair",
    [ISSUE, TWO_VMS, BACKWARDS, STOPPED],
    ids=["the issue's", "two VMs", "the last one first", "one that only stops the VM"],
)
def test_two_runs_of_dda_go_back_to_what_was_found(tmp_path: Path, pair: Pair) -> None:
    dda_pair(pair, tmp_path)


def run_by(both: Controllers, folder: Path, controller: str, vm: str = "llm-01", **request: Any) -> None:
    """One more run of this controller, with a GPU for the VM."""
    both.here.store = Store(folder / controller)
    both.here.apply(both.here.plan(vm, **{"gpus": GPUS[:1], **request}))
    both.made.append((both.here.run, both.here.context))


def pair_of_high(folder: Path) -> tuple[Controllers, dict[str, Any]]:
    """The second run, of another controller, sets a property that the first one set."""
    here = world(folder / "host", HOSTS[1])
    both, found = Controllers(here, EVERY_CONSENT), here.state()
    run_by(both, folder, "one")
    run_by(both, folder, "two", high=256 << 30)
    return both, found


def test_rollback_waits_for_the_run_of_another_controller_and_prints_its_command(tmp_path: Path) -> None:
    both, found = pair_of_high(tmp_path)
    (first, _), (second, _) = both.made
    outcome = both.back(0)
    assert (outcome.outcome, outcome.holds) == ("partly rolled back", False)
    ((waiting,),) = (outcome.waiting,)
    assert (waiting.runs, [each.run for each in waiting.others]) == ((), [second])
    assert f"changed since by run {second} ({user_and_computer()})" in waiting.why
    assert (
        outcome.next == f"Roll back the remaining changes: as {user_and_computer()}: winhost rollback {second}, "
        f"then winhost rollback {first}"
    )
    assert both.back(0).waiting == outcome.waiting
    assert both.back(1).outcome == both.back(0).outcome == "rolled back"
    assert_as_found(both, found)


def test_what_a_person_changed_after_both_runs_is_kept_for_good(tmp_path: Path) -> None:
    both, _ = pair_of_high(tmp_path)
    here = both.here
    power, here.machine.vms[here.vm()].power = here.machine.vms[here.vm()].power, "off"
    here.machine.set_vm(here.vm(), high=96 << 30)
    here.machine.vms[here.vm()].power = power
    outcome = both.back(0)
    assert (outcome.outcome, outcome.waiting, len(outcome.kept)) == ("rolled back", (), 1)
    assert "high changed since by somebody else" in outcome.kept[0]
    assert both.back(1).outcome == "rolled back"
    assert here.machine.vms[here.vm()].high == 96 << 30
    assert here.machine.files.read(MARKS_FILE) is None


def test_a_property_that_another_run_set_as_it_was_found_waits_too(tmp_path: Path) -> None:
    here = world(tmp_path / "host", HOSTS[1])
    here.machine.vms[here.vm()].high = high = 96 << 30
    both, found = Controllers(here, EVERY_CONSENT), here.state()
    run_by(both, tmp_path, "one", high=256 << 30)
    run_by(both, tmp_path, "two", high=high)
    assert both.back(0).outcome == "partly rolled back"
    assert [both.back(number).outcome for number in (1, 0)] == ["rolled back"] * 2
    assert_as_found(both, found)


def test_the_runs_of_two_controllers_may_have_the_same_name(tmp_path: Path) -> None:
    here = world(tmp_path / "host", HOSTS[1])
    both, found = Controllers(here, EVERY_CONSENT), here.state()
    with patch.object(Store, "new_run", lambda store, host: f"{host}.20261127-101502"):
        run_by(both, tmp_path, "one")
        run_by(both, tmp_path, "two", high=256 << 30)
    assert len({run for run, _ in both.made}) == 1
    assert both.back(0).outcome == "partly rolled back"
    take_back(both, (0, 1))
    assert_as_found(both, found)


def test_a_change_that_the_host_refused_leaves_no_mark(tmp_path: Path) -> None:
    here = world(tmp_path, HOSTS[1])
    plan = here.plan("llm-01", gpus=GPUS[:1])
    fault = agent_error("Refused", "InvalidResult", "no")
    here.answers.faults.add(InjectedFault(plan.stages[0].steps[0].resource, "set", fault))
    with pytest.raises(WinhostError):
        here.apply(plan)
    assert here.machine.files.read(MARKS_FILE) is None


@pytest.mark.costly
@pytest.mark.parametrize("order", [*permutations(range(3))], ids=str)
def test_three_runs_of_two_controllers_set_one_property(tmp_path: Path, order: tuple[int, ...]) -> None:
    here = world(tmp_path / "host", HOSTS[1])
    both, found = Controllers(here, EVERY_CONSENT), here.state()
    for controller, high in (("one", 64 << 30), ("two", 256 << 30), ("one", 128 << 30)):
        run_by(both, tmp_path, controller, high=high)
    take_back(both, order)
    assert_as_found(both, found)


@pytest.mark.costly
def test_rollback_of_the_later_run_killed_anywhere_is_waited_for(tmp_path: Path) -> None:
    for moment in count():
        both, found = pair_of_high(tmp_path / str(moment))
        run, context = both.made[1]
        calls = count()

        def kill(when: str, entry: Any, calls: Iterator[int] = calls, moment: int = moment) -> None:
            if next(calls) == moment:
                raise Abandoned

        with suppress(Abandoned):
            rollback(run, both.consents, replace(context, journal_hook=kill))
            break
        take_back(both, (0, 1))
        assert_as_found(both, found)
    assert moment > 10


@pytest.mark.costly
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=str)
@pytest.mark.parametrize("resumed", [True, False], ids=["resumed", "left where it stopped"])
def test_the_later_run_stopped_after_each_step(tmp_path: Path, order: tuple[int, ...], *, resumed: bool) -> None:
    for steps in range(1, 5):
        here = world(tmp_path / f"host {steps}", HOSTS[1])
        both, found = Controllers(here, EVERY_CONSENT), here.state()
        run_by(both, tmp_path / str(steps), "one")
        here.store, here.events = Store(tmp_path / str(steps) / "two"), []
        here.stop = partial(_have_done, here, steps)
        with raises("Stopped"):
            here.apply(here.plan("llm-01", gpus=GPUS[:2], high=256 << 30))
        here.stop = lambda: False
        if resumed:
            assert here.resume().holds
        both.made.append((here.run, here.context))
        take_back(both, order)
        assert_as_found(both, found)


def _have_done(here: World, steps: int) -> bool:
    return sum(each.kind == "done" for each in here.events) >= steps


def assert_as_found(both: Controllers, found: dict[str, Any]) -> None:
    assert both.here.state() == found
    assert both.here.machine.files.read(MARKS_FILE) is None


@pytest.mark.costly
@FEW
@given(pairs())
def test_a_few_random_pairs_of_dda(pair: Pair) -> None:
    with TemporaryDirectory() as folder:
        dda_pair(pair, Path(folder))


@pytest.mark.crash
@MANY
@given(pairs())
def test_many_random_pairs_of_dda(pair: Pair) -> None:
    with TemporaryDirectory() as folder:
        dda_pair(pair, Path(folder))


# ---- WSL


@dataclass(frozen=True)
class WslPair:
    """settings: of each run, over those of the shipped playbook."""

    host: str
    settings: tuple[dict[str, Any], dict[str, Any]]
    apart: bool
    order: tuple[int, ...]


ANOTHER_PORT = {"access": {"key": OURS, "port": 2299}}
SECOND = {"distro": "second"}
CHOICES: tuple[dict[str, Any], ...] = ({}, ANOTHER_PORT, SECOND, {"network": "nat"}, SECOND | {"network": "nat"})
WSL_HOSTS = ("win11-pro-1gpu", "win11-hyperv-off-vbs-on")


def wsl_pairs() -> st.SearchStrategy[WslPair]:
    return st.builds(
        WslPair,
        host=st.sampled_from(WSL_HOSTS),
        settings=st.tuples(st.sampled_from(CHOICES), st.sampled_from(CHOICES)),
        apart=st.booleans(),
        order=orders(2),
    )


def wsl_pair(pair: WslPair, folder: Path) -> None:
    here = wsl2_world(folder / "0", pair.host)
    both, found = Controllers(here, CONSENTS), here.state()
    for number, chosen in enumerate(pair.settings):
        here.store, here.book = Store(folder / str(number if pair.apart else 0)), playbook(**chosen)
        before = here.store.runs()
        with suppress(WinhostError):  # such as a distro that cannot be reached beside another: then back from there
            here.apply(here.plan())
        if here.store.runs() != before:
            both.made.append((here.run, here.context))
    take_back(both, pair.order)
    now = here.state()
    assert {resource for resource in found if now[resource] != found[resource]} <= {"Wsl"}  # never downgraded


WSL_PAIRS = {
    "one distro on two ports": WslPair(WSL_HOSTS[0], ({}, ANOTHER_PORT), apart=True, order=(0, 1)),
    "two distros of one account": WslPair(WSL_HOSTS[1], ({}, SECOND), apart=False, order=(0, 1)),
    "another network": WslPair(WSL_HOSTS[1], ({}, {"network": "nat"}), apart=True, order=(0, 1)),
    "another network, with both journals": WslPair(WSL_HOSTS[1], ({}, {"network": "nat"}), apart=False, order=(0, 1)),
}


@pytest.mark.costly
@pytest.mark.parametrize("pair", WSL_PAIRS.values(), ids=WSL_PAIRS)
def test_two_runs_of_wsl_go_back_to_what_was_found(tmp_path: Path, pair: WslPair) -> None:
    wsl_pair(pair, tmp_path)


@pytest.mark.crash
@settings(MANY, max_examples=40)
@given(wsl_pairs())
def test_many_random_pairs_of_wsl(pair: WslPair) -> None:
    with TemporaryDirectory() as folder:
        wsl_pair(pair, Path(folder))
