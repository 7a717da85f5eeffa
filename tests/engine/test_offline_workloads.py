"""A workload is planned from facts alone: what a Linux tells only when it is asked by name waits for a reading."""

from pathlib import Path

import pytest

from tests.engine.linux_world import EXAMPLES, LinuxWorld, linux_world
from tests.rows import each_row
from tests.serving.stacks import FILES, IMAGE, KEY, request, stack_on
from winhost.cli.plan.options import RequestBuilder
from winhost.cli.plan.stack import PlannedStack
from winhost.cli.plan.stack_options import StackOptions
from winhost.cli.plan.stack_parts import StackParts
from winhost.core.answers import identity
from winhost.engine.detect import read_facts
from winhost.engine.planning import check_plan, make_plan
from winhost.engine.verify import verify_plan
from winhost.lab.hostfile import expand, host_files
from winhost.model.errors import WinhostError
from winhost.model.facts import Facts
from winhost.model.plan import Plan
from winhost.resources.factsfile import read_facts as facts_of_file
from winhost.resources.host import HostFacts
from winhost.resources.shared import READING

WORKLOADS = sorted((EXAMPLES.parent / "workloads").glob("*.yaml"))
LINUXES = sorted(EXAMPLES.glob("*.json"))
PUBLIC = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f me"
NEW_VM = {
    "name": "llm", "cpus": "4", "memory": "64GiB", "disk": "200GiB", "guest.key": PUBLIC, "vhdx.source": "C:\\x.vhdx",
    "vhdx.sha256": "ab" * 32,
}  # fmt: skip
SETTINGS = {
    "linux": (),
    "wsl2": (f"access.key={PUBLIC}",),
    "dda": tuple(f"new_vm.{name}={value}" for name, value in NEW_VM.items()),
}


@pytest.fixture(autouse=True)
def _no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StackParts, "files", property(lambda parts: {m.name: FILES for m in parts.workload.models}))
    monkeypatch.setattr(StackParts, "key_lines", lambda parts, host: (KEY,))
    monkeypatch.setenv("ALICE", "key-of-alice-that-nobody-guesses")


def planned(facts: Facts, workload: Path, path: str) -> Plan | WinhostError:
    """As `winhost plan FACTS --path PATH --workload FILE --allow-unverified`; or the error."""
    said = {"api_key": ("alice=env:ALICE",), "digest": IMAGE.pinned.partition("@")[2], "plain_http": True}
    joining = PlannedStack(StackOptions(workload=workload, allow=("10.20.0.0/16",), **said))
    joining.check()
    asked = RequestBuilder(path, settings=SETTINGS[path], allow_unverified=True).request(path)
    try:
        request, _ = joining.add_to_request(HostFacts(facts), asked)
        return make_plan(HostFacts(facts), request)
    except WinhostError as error:
        return error


def cases(hosts: list[Path], *paths: str) -> list[tuple[Path, Path, str]]:
    return [(host, workload, path) for host in hosts for workload in WORKLOADS for path in paths]


def name(value: object) -> str:
    return value.stem if isinstance(value, Path) else str(value)


@each_row(("host", "workload", "path"), cases(LINUXES, "linux"), ids=name)
def test_each_example_is_planned_from_the_facts_of_each_linux(host: Path, workload: Path, path: str) -> None:
    made = planned(facts_of_file(host), workload, path)
    if isinstance(made, WinhostError):
        assert made.code == "NoProfile"  # that Linux has no video codec, or too few GPUs
    else:
        assert {each.until for each in made.deferred if each.resource == "EngineUnit"} == {READING}


@pytest.mark.costly
@pytest.mark.parametrize("path", ["wsl2", "dda"])
@pytest.mark.parametrize("host", host_files(), ids=name)
def test_each_example_is_planned_from_the_facts_of_each_windows(host: Path, path: str) -> None:
    for workload in WORKLOADS:
        made = planned(expand(host)[0], workload, path)
        if isinstance(made, WinhostError):
            assert made.code in ("NoProfile", "NetworkUnknown", "Refused"), workload
            assert made.hint, workload
        else:
            assert made.deferred, workload


@pytest.fixture
def here(tmp_path: Path) -> LinuxWorld:
    made = linux_world(tmp_path)
    stack_on(made, request())
    return made


def unasked(here: LinuxWorld) -> Plan:
    """From facts that were read before anybody named anything."""
    asked = check_plan(here.plan()).request
    return make_plan(HostFacts(read_facts(here.open())), asked)


@pytest.mark.costly
def test_a_plan_from_facts_without_names_does_the_same_as_one_of_the_host(here: LinuxWorld) -> None:
    before, plan, live = here.state(), unasked(here), here.plan()
    first = {identity(step.resource, step.key) for step in plan.steps}
    assert first < {identity(step.resource, step.key) for step in live.steps}
    assert here.apply(plan).holds
    named = HostFacts(read_facts(here.open(), check_plan(plan).named))
    assert all(each.holds for each in verify_plan(check_plan(live), named))
    assert here.apply(live).changed == 0
    assert here.rollback().outcome == "rolled back"
    assert here.state() == before


def test_verify_says_of_facts_without_names_that_they_do_not_tell(here: LinuxWorld) -> None:
    plan = unasked(here)
    here.apply(plan)
    checks = verify_plan(check_plan(plan), HostFacts(read_facts(here.open())))
    assert "could not be read (these facts do not hold it)" in {each.found for each in checks if not each.holds}
