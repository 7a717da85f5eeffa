"""Situations that people had: tests/data/situations/*.yaml.

source: the thread or page where such a machine stands, or whose numbers decide. host: a shipped host file, change: what
differs, as in a host file. GPU: {id, name, vram} in the place of the host's NVIDIA GPUs. select: GPUs and VM, stated:
versions that facts do not tell, as in tests/data/verdicts. say: by path or way its verdict, what it says of all codes
asked for (says), and what it must not say (never).
"""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from packaging.version import Version

from tests.cases import read_cases
from tests.compat.test_verdicts import selection
from tests.rows import each_row
from winhost.compat.assess import assess
from winhost.core.answers import Record
from winhost.lab.hostfile import expand
from winhost.model.facts import Facts
from winhost.model.reason import PathVerdict
from winhost.resources.host import HostFacts

FILES = sorted((Path(__file__).parents[1] / "data" / "situations").glob("*.yaml"))
CASES: dict[str, Any] = {f"{path.stem}: {name}": case for path in FILES for name, case in read_cases(path).items()}
KEYS = {"source", "host", "change", "gpu", "select", "stated", "say"}
THREAD = re.compile(r"\S+ #\d+|\S+ PR \d+|https://|Microsoft, \"|NVIDIA, \"|wheel \d|\S+\.(?:admx|c|cs)\b")


def facts_of(case: Mapping[str, Any], folder: Path) -> HostFacts:
    delta = {"schema": "winhost.host/2", "origin": "synthetic", "about": "a case", "base": case["host"]}
    path = folder / "case.yaml"
    path.write_text(json.dumps({**delta, "change": case.get("change", {})}), encoding="utf-8")  # JSON is YAML
    facts = expand(path)[0]
    return HostFacts(with_gpu(facts, case["gpu"]) if "gpu" in case else facts)


def with_gpu(facts: Facts, gpu: Mapping[str, Any]) -> Facts:
    """Another GPU in the place of each of NVIDIA's."""
    changed = {}
    for resource in ("PciDevice", "GpuDriverModel", "AssignableDevice"):
        answer = facts.answer(resource)
        if isinstance(answer, tuple):
            changed[resource] = tuple(replaced(record, gpu, answer) for record in answer)
    return replace(facts, resources={**facts.resources, **changed})


def replaced(record: Record, gpu: Mapping[str, Any], answer: tuple[Record, ...]) -> Record:
    """Sound and USB of the board stay as they are."""
    device = record.key["device"]
    if not device.startswith("VEN_10DE") or not record.key["location"].endswith("#PCI(0000)"):
        return record
    key = {**record.key, "device": f"{gpu['id']}&SUBSYS_00000000"}
    state = dict(record.state)
    if "instance" in state:
        state.update(name=gpu["name"], vram=gpu["vram"] * 2**30, instance=f"PCI\\{key['device']}&REV_A1\\4&1")
    return Record(state, key)


@each_row("name", CASES)
def test_a_situation_is_judged(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    facts = facts_of(case, tmp_path)
    stated = {version: Version(str(told)) for version, told in case.get("stated", {}).items()}
    judged = assess(facts, selection(facts, case.get("select")), stated)
    found = {each.path: each for each in (*judged.every_variant, *judged.paths)}
    assert {way: said(found[way], told) for way, told in case["say"].items()} == case["say"]


def said(way: PathVerdict, told: Mapping[str, Any]) -> dict[str, Any]:
    codes = {reason.code for reason in way.every_reason}
    codes |= {reason.code for offered in way.capabilities for reason in offered.reasons}
    answers: dict[str, Any] = {
        "verdict": way.verdict.value,
        "says": [code for code in told.get("says", ()) if code in codes],
        "never": [code for code in told.get("never", ()) if code not in codes],
    }
    return {key: answers[key] for key in told}


@each_row("name", CASES)
def test_a_situation_names_its_source(name: str) -> None:
    case = CASES[name]
    assert case.keys() <= KEYS
    assert THREAD.search(case["source"]), case["source"]


def test_there_are_as_many_as_were_promised() -> None:
    assert len(CASES) >= 60
