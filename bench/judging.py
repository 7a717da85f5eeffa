"""Assess and plan in one process, without a command line around them."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bench.host import VM, write_facts
from bench.measure import Case
from winhost.compat.assess import assess
from winhost.engine.planning import make_plan
from winhost.model.documents import read_document
from winhost.model.facts import Facts, MissingFact
from winhost.model.plan import Wish
from winhost.model.shipped import shipped
from winhost.paths import allocation
from winhost.paths.playbook import read_playbook
from winhost.resources.host import HostFacts
from winhost.resources.windows import STATES


@contextmanager
def judging(folder: Path) -> Iterator[Case]:
    """From facts to verdicts and a plan, against getting the facts from their file, every noun of them typed."""
    file = write_facts(folder)
    facts = read_document(file, Facts)
    playbook = read_playbook(shipped("playbooks") / "dda.yaml").model_dump(by_alias=True, mode="json")
    wish = Wish("dda", playbook, VM)

    def parse() -> None:
        parsed = HostFacts(read_document(file, Facts))
        for state in STATES:
            with suppress(MissingFact):
                parsed.all(state)

    def judge() -> None:
        # A command judges once: layouts that an earlier turn remembered would flatter us.
        allocation.forget()
        host = HostFacts(facts)
        assess(host)
        make_plan(host, wish)

    yield Case(
        what="assess and plan",
        against="parsing and validating the facts file",
        work=judge,
        yardstick=parse,
        aim=3.0,
        calls=5,
    )
