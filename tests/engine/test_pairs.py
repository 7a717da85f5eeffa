"""Two or three runs on one host, by one controller or two that do not know of each other, rolled back in any order.

Those that are partly rolled back are rolled back again, until none is: then the host is as it was found.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.engine.two_machines import OURS
from tests.engine.world import EVERY_CONSENT, World, world
from tests.engine.wsl2_world import CONSENTS, playbook, wsl2_world
from tests.errors import suppressed
from winhost.engine.rollback import rollback
from winhost.engine.run_context import Outcome
from winhost.engine.store import Store
from winhost.model.errors import WinhostError

CARDS = tuple(f"PCIROOT({root})#PCI(0100)#PCI(0000)" for root in ("16", "49", "7B"))
VMS = ("llm-01", "files-01")
HOSTS = ("server2025-3gpu", "server2025-role-installed")
AT_HOME = ("host-enabled", "host-disabled")
FEW = settings(max_examples=6, deadline=None, derandomize=True, phases=(Phase.explicit, Phase.generate), database=None)
MANY = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


@dataclass(frozen=True)
class RequestedRun:
    """One run of DDA. restart: the host restarts after it."""

    vm: str
    cards: tuple[str, ...]
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
        cards=st.lists(st.sampled_from(CARDS), min_size=1, max_size=2, unique=True).map(tuple),
        power=st.sampled_from(("as-found", "as-found", "running", "off")),
        high=st.sampled_from((None, None, 256 << 30)),
        restart=st.booleans(),
    )


def orders(runs: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.permutations(range(runs)).map(tuple)


@st.composite
def pairs(draw: st.DrawFn) -> Pair:
    apart, runs = draw(st.booleans()), draw(st.lists(requests(), min_size=2, max_size=3).map(tuple))
    if apart:
        # A property that both set and nothing depends on: for the first controller, somebody changed it.
        runs = tuple(replace(each, power="as-found", high=None) for each in runs)
    return Pair(draw(st.sampled_from(HOSTS)), runs, apart, draw(orders(len(runs))))


def assert_role_stays_for_cards(here: World) -> None:
    """Without it nobody could give them back."""
    away = [r.key for r in here.machine.instances("AssignableDevice") if r.state["place"] not in AT_HOME]
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
            here.apply(here.plan(requested.vm, cards=requested.cards, power=requested.power, high=requested.high))
        if here.store.runs() != before:
            both.made.append((here.run, here.context))
        if requested.restart:
            here.machine.restart_computer()
            here.machine.settle()
    take_back(both, pair.order, lambda: assert_role_stays_for_cards(here))
    assert here.state() == found


ISSUE = Pair(
    HOSTS[0], (RequestedRun("llm-01", CARDS[:1]), RequestedRun("llm-01", CARDS[1:2])), apart=False, order=(0, 1)
)
TWO_VMS = Pair(
    HOSTS[0], (RequestedRun("llm-01", CARDS[:1]), RequestedRun("files-01", CARDS[1:2])), apart=True, order=(0, 1)
)
BACKWARDS = Pair(
    HOSTS[0], (RequestedRun("llm-01", CARDS[:1]), RequestedRun("llm-01", CARDS[:2])), apart=True, order=(1, 0)
)
# The second run only stops the VM, and the role goes first: then no VM is left that could be started again.
STOPPED = Pair(
    HOSTS[0],
    (RequestedRun("llm-01", CARDS[1:2]), RequestedRun("llm-01", CARDS[1:2], power="off")),
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


def test_a_property_that_another_controller_set_goes_back_by_the_command_that_is_printed(tmp_path: Path) -> None:
    here = world(tmp_path / "one", HOSTS[1])
    both, found = Controllers(here, EVERY_CONSENT), here.state()
    for name, high in (("one", None), ("two", 256 << 30)):
        here.store = Store(tmp_path / name)
        here.apply(here.plan("llm-01", cards=CARDS[:1], high=high))
        both.made.append((here.run, here.context))
    outcome = both.back(0)
    assert (outcome.outcome, outcome.holds, outcome.waiting) == ("rolled back", True, ())
    assert outcome.next is not None
    assert outcome.next.endswith(f"roll back its run there, then here again: winhost rollback {both.made[0][0]}")
    assert both.back(1).kept == both.back(0).kept == ()
    assert here.state() == found


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
