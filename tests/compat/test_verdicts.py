"""What is said of whole hosts: tests/data/verdicts/*.yaml.

host: a shipped host file by name, or a delta {base, change}. select: GPUs (or all) and VM, as a user names them.
stated: versions that facts do not tell. say: for each path verdict, because (exactly), GPUs and vms (name to verdict),
says (codes that come up somewhere), risks, and offers (capability to its verdict, or to [verdict, *because]); ways, of
which the same is told as of paths (`wsl2/mirrored`); and the path that is recommended.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from packaging.version import Version

from tests.cases import read_cases
from tests.rows import each_row
from winhost.compat.assess import assess
from winhost.engine.plan_dda import choose_gpus, choose_vm
from winhost.hardware.host_gpus import is_compute_gpu
from winhost.lab.hostfile import expand, find, host_files
from winhost.model.path import PATHS, WINDOWS_VARIANTS
from winhost.model.reason import Assessment, PathVerdict, SubjectVerdict
from winhost.resources.host import HostFacts, Selection

FILES = sorted((Path(__file__).parents[1] / "data" / "verdicts").glob("*.yaml"))
CASES: dict[str, Any] = {path.stem: read_cases(path) for path in FILES}


def facts_of(host: str | Mapping[str, Any], folder: Path) -> HostFacts:
    if isinstance(host, str):
        return HostFacts(expand(find(host))[0])
    for known in host_files():
        shutil.copy(known, folder)
    delta = {"schema": "winhost.host/2", "origin": "synthetic", "about": "a case", **host}
    path = folder / "case.yaml"
    path.write_text(json.dumps(delta), encoding="utf-8")  # JSON is YAML, without aliases
    return HostFacts(expand(path)[0])


def named(subjects: tuple[SubjectVerdict, ...], wanted: Mapping[str, str]) -> dict[str, str]:
    return {name: s.verdict.value for name in wanted for s in subjects if s.name.startswith(name)}


def offered(variant: PathVerdict, wanted: Mapping[str, str | list[str]]) -> dict[str, str | list[str]]:
    """As much of each capability as the case tells."""
    found = {name: variant.offers(name) for name in wanted}
    return {
        name: found[name].verdict.value if isinstance(told, str) else [found[name].verdict.value, *found[name].because]
        for name, told in wanted.items()
    }


def said(path: PathVerdict, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """What the assessment says of everything that a case asks for."""
    codes = {reason.code for reason in path.every_reason}
    answers = {
        "verdict": path.verdict.value,
        "because": list(path.because),
        "gpus": named(path.gpus, wanted.get("gpus", {})),
        "vms": named(path.vms, wanted.get("vms", {})),
        "says": [code for code in wanted.get("says", ()) if code in codes],
        "risks": sorted({risk for reason in path.every_reason for risk in reason.risks}),
        "offers": offered(path, wanted.get("offers", {})),
    }
    return {key: answers[key] for key in wanted}


@each_row("name", CASES)
def test_the_host_is_judged(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    assert case.keys() <= {"host", "select", "stated", "say"}
    facts = facts_of(case["host"], tmp_path)
    stated = {version: Version(str(told)) for version, told in case.get("stated", {}).items()}
    assessment = assess(facts, selection(facts, case.get("select")), stated)
    say = case["say"]
    assert say.keys() <= {*PATHS, "ways", "recommended"}
    assert {name: answered(assessment, name, wanted) for name, wanted in say.items()} == say


def answered(assessment: Assessment, name: str, wanted: Any) -> Any:
    if name == "recommended":
        return assessment.recommended
    if name == "ways":
        assert wanted.keys() <= set(WINDOWS_VARIANTS)
        variants = {variant.path: variant for path in assessment.paths for variant in path.every_variant}
        return {variant: said(variants[variant], told) for variant, told in wanted.items()}
    return said(assessment.path(name), wanted)


def selection(facts: HostFacts, select: Mapping[str, Any] | None) -> Selection | None:
    if select is None:
        return None
    assert select.keys() <= {"gpus", "vm"}
    vm = choose_vm(facts, select["vm"]) if "vm" in select else None
    gpus = (
        tuple(filter(is_compute_gpu, facts.gpus))
        if select["gpus"] == "all"
        else choose_gpus(facts, tuple(select["gpus"]))
    )
    return Selection(gpus, vm)


def test_every_shipped_host_has_a_case() -> None:
    hosts = [case["host"] for case in CASES.values()]
    assert {path.stem for path in host_files()} <= {host for host in hosts if isinstance(host, str)}


@each_row("host", host_files(), ids=lambda path: path.stem)
def test_every_shipped_host_is_judged_whole(host: Path) -> None:
    assessment = assess(HostFacts(expand(host)[0]))
    assert [path.path for path in assessment.paths] == list(PATHS)
    assert [variant.path for path in assessment.paths for variant in path.every_variant] == list(WINDOWS_VARIANTS)
    assert assessment.origin == "synthetic"
