"""Assess and plan in one process, without a command line around them, over every host that is shipped."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bench.measure import Case
from winhost.compat.assess import assess, judge
from winhost.engine.planning import make_plan
from winhost.lab.hostfile import expand_all
from winhost.model.documents import read_document, write_document
from winhost.model.errors import WinhostError
from winhost.model.facts import Facts, MissingFact
from winhost.model.path import WAYS
from winhost.model.plan import Wish
from winhost.model.shipped import shipped
from winhost.paths import dda
from winhost.paths.playbook import read_playbook
from winhost.resources.host import HostFacts
from winhost.resources.windows import STATES


@contextmanager
def judging(folder: Path) -> Iterator[Case]:
    """Which ways work, and the plan."""
    with _held_against_reading(
        folder, "judge every way and plan", lambda host: [judge(host, way) for way in WAYS]
    ) as case:
        yield case


@contextmanager
def assessing(folder: Path) -> Iterator[Case]:
    """The same with what each way offers: 34 capabilities on each."""
    with _held_against_reading(folder, "assess and plan", assess) as case:
        yield case


@contextmanager
def _held_against_reading(folder: Path, what: str, judged: Callable[[HostFacts], object]) -> Iterator[Case]:
    """From facts to verdicts and plans, against getting the facts from their files, every noun of them typed."""
    files = [_write(folder, name, facts) for name, (facts, _) in expand_all().items()]
    read = [read_document(file, Facts) for file in files]
    playbook = read_playbook(shipped("playbooks") / "dda.yaml").model_dump(by_alias=True, mode="json")

    def parse() -> None:
        for file in files:
            parsed = HostFacts(read_document(file, Facts))
            for state in STATES:
                with suppress(MissingFact):
                    parsed.all(state)

    def work() -> None:
        for facts in read:
            # A command judges once: layouts that an earlier turn remembered would flatter us.
            dda.forget()
            host = HostFacts(facts)
            judged(host)
            with suppress(WinhostError):  # refused, as most clients are
                make_plan(host, Wish("dda", playbook, _vm(host)))

    yield Case(
        what=f"{what}, {len(files)} hosts",
        against="parsing and validating their facts files",
        work=work,
        yardstick=parse,
        aim=3.0,
    )


def _write(folder: Path, name: str, facts: Facts) -> Path:
    file = folder / f"{name}.json"
    file.write_text(write_document(facts), encoding="utf-8")
    return file


def _vm(host: HostFacts) -> str | None:
    """The first, where VMs can be read."""
    with suppress(MissingFact):
        return next((vm.key["vm"] for vm in host.vms), None)
    return None
