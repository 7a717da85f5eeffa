"""Assess and plan in one process, without a command line around them, over every host that is shipped."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import process_time

from bench.measure import Case
from winhost.compat.assess import assess
from winhost.core.answers import MissingFact
from winhost.engine.planning import make_plan
from winhost.hardware import mmio
from winhost.lab.hostfile import expand_all
from winhost.model.documents import read_document, write_document
from winhost.model.errors import WinhostError
from winhost.model.facts import Facts
from winhost.model.plan import PlanRequest
from winhost.model.shipped import shipped
from winhost.paths.playbook import parse_request, read_playbook
from winhost.resources.host import HostFacts
from winhost.resources.registry import WINDOWS_STATES


@contextmanager
def judging(folder: Path) -> Iterator[Case]:
    """Verdicts alone, of facts that are typed already, in CPU time."""
    files = [_write(folder, name, facts) for name, (facts, _) in expand_all().items()]

    def parse() -> tuple[float, list[HostFacts]]:
        began = process_time()
        hosts = [_typed(HostFacts(read_document(file, Facts))) for file in files]
        return process_time() - began, hosts

    def work() -> float:
        _, hosts = parse()
        mmio.clear_caches()
        began = process_time()
        for host in hosts:
            assess(host)
        return process_time() - began

    yield Case(
        what=f"assess alone, {len(files)} hosts",
        against="parsing and validating their facts files",
        work=work,
        yardstick=lambda: parse()[0],
        aim=2.0,
        told=True,
    )


@contextmanager
def assessing(folder: Path) -> Iterator[Case]:
    """Judge as `winhost assess` does: every path's verdict, and the capabilities of the recommended one."""

    def judged(host: HostFacts) -> object:
        found = assess(host)
        return [tuple(path.capabilities) for path in found.paths if path.path == found.recommended]

    with _held_against_reading(folder, "assess and plan", judged, aim=3.0) as case:
        yield case


@contextmanager
def explaining(folder: Path) -> Iterator[Case]:
    """Judge as `winhost assess --json` does: every capability of every path."""

    def judged(host: HostFacts) -> object:
        return [tuple(variant.capabilities) for path in assess(host).paths for variant in path.every_variant]

    with _held_against_reading(folder, "assess everything and plan", judged) as case:
        yield case


@contextmanager
def _held_against_reading(
    folder: Path, what: str, judged: Callable[[HostFacts], object], aim: float | None = None
) -> Iterator[Case]:
    """Measure judging and planning, against reading the facts from their files, with every resource of them typed."""
    files = [_write(folder, name, facts) for name, (facts, _) in expand_all().items()]
    read = [read_document(file, Facts) for file in files]
    playbook = read_playbook(shipped("playbooks") / "dda.yaml").model_dump(by_alias=True, mode="json")

    def parse() -> None:
        for file in files:
            _typed(HostFacts(read_document(file, Facts)))

    def work() -> None:
        for facts in read:
            # A command judges once: layouts that an earlier turn remembered would flatter us.
            mmio.clear_caches()
            host = HostFacts(facts)
            judged(host)
            with suppress(WinhostError):  # refused, as most clients are
                make_plan(host, parse_request(PlanRequest("dda", playbook, _vm(host))))

    yield Case(
        what=f"{what}, {len(files)} hosts",
        against="parsing and validating their facts files",
        work=work,
        yardstick=parse,
        aim=aim,
    )


def _typed(host: HostFacts) -> HostFacts:
    for state in WINDOWS_STATES:
        with suppress(MissingFact):
            host.all(state)
    return host


def _write(folder: Path, name: str, facts: Facts) -> Path:
    file = folder / f"{name}.json"
    file.write_text(write_document(facts), encoding="utf-8")
    return file


def _vm(host: HostFacts) -> str | None:
    """The first, where VMs can be read."""
    with suppress(MissingFact):
        return next((vm.key["vm"] for vm in host.vms), None)
    return None
