"""What files become: cases in tests/data/imports/cases.yaml."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.cases import read_cases
from tests.imports.brought import DATA, imported
from tests.rows import each_row
from winhost.compat.assess import assess
from winhost.core.answers import Record
from winhost.model.errors import UsageError
from winhost.model.facts import Facts
from winhost.resources.host import HostFacts

CASES: Mapping[str, Any] = read_cases(DATA / "cases.yaml")
KEYS = {"files", "host", "facts", "gpus", "silent", "paths", "refused", "each", "says", "never"}


@each_row("case", CASES.values(), ids=CASES)
def test_files_become_facts(case: Mapping[str, Any]) -> None:
    assert set(case) <= KEYS
    files = [DATA / name for name in case["files"]]
    if "refused" in case:
        with pytest.raises(UsageError) as refused:
            imported(files, case.get("host"))
        assert case["refused"] in refused.value.what
        return
    facts = imported(files, case.get("host"))
    check_facts(facts, case.get("facts", {}))
    check_facts(facts, case.get("each", {}), of_each=True)
    check_gpus(facts, case.get("gpus"), case.get("silent", {}))
    judged = assess(HostFacts(facts))
    assert {path: str(judged.path(path).verdict) for path in case.get("paths", {})} == case.get("paths", {})
    said = {reason.code for path in judged.paths for reason in path.every_reason}
    said |= {reason.code for path in judged.paths for offered in path.capabilities for reason in offered.reasons}
    assert said >= set(case.get("says", ()))
    assert not said & set(case.get("never", ()))


def check_facts(facts: Facts, desired: Mapping[str, Any], *, of_each: bool = False) -> None:
    for place, value in desired.items():
        resource, _, name = place.partition(".")
        assert [record.state[name] for record in records(facts, resource)] == (value if of_each else [value]), place


def check_gpus(facts: Facts, desired: list[Mapping[str, Any]] | None, silent: Mapping[str, str]) -> None:
    if desired is None:
        return
    found = records(facts, "PciDevice")
    assert [record.key["location"] for record in found] == [gpu["location"] for gpu in desired]
    for record, gpu in zip(found, desired, strict=True):
        known = {**record.state, **record.key}
        assert {name: known[name] for name in gpu} == gpu
    for name, why in silent.items():
        assert why in found[0].state[name]["unknown"]["message"]


def records(facts: Facts, resource: str) -> tuple[Record, ...]:
    answer = facts.answer(resource)
    assert isinstance(answer, tuple), answer
    return answer
