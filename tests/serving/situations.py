"""Hosts and workloads for tests of profiles."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from packaging.version import Version

from winhost.lab.hostfile import expand, find, host_files
from winhost.model.units import GiB
from winhost.model.workload import (
    Model,
    Shape,
    Workload,
)
from winhost.model.workloadfile import load_workload
from winhost.resources.factsfile import read_facts
from winhost.resources.host import HostFacts

ROOT = Path(__file__).parents[2]


@cache
def shipped(name: str) -> HostFacts:
    return HostFacts(expand(find(name))[0])


@cache
def linux(name: str, virtualization: str = "none") -> HostFacts:
    """A Linux of its own."""
    facts = read_facts(ROOT / f"examples/linux/{name}.json")
    (system,) = facts.resources["LinuxSystem"]  # type: ignore[misc]
    told = replace(system, state={**system.state, "virtualization": virtualization})
    return HostFacts(replace(facts, resources={**facts.resources, "LinuxSystem": (told,)}))


def host_of(case: Mapping[str, Any], folder: Path) -> HostFacts:
    if "linux" in case:
        return linux(*case["linux"])
    if isinstance(case["host"], str):
        return shipped(case["host"])
    for known in host_files():
        shutil.copy(known, folder)
    delta = {"schema": "winhost.host/2", "origin": "synthetic", "about": "a case", **case["host"]}
    path = folder / "case.yaml"
    path.write_text(json.dumps(delta), encoding="utf-8")  # JSON is YAML, without aliases
    return HostFacts(expand(path)[0])


def workload_of(case: Mapping[str, Any], folder: Path) -> Workload:
    versions = {name: Version(version) for name, version in case.get("versions", {}).items()}
    if "example" in case:
        example = load_workload(ROOT / f"examples/workloads/{case['example']}.yaml")
        return replace(example, versions={**example.versions, **versions})
    keys = ("models", "versions", "needs", "availability", "kv_mirror")
    path = folder / "workload.yaml"
    written = {"schema": "winhost.workload/1", **{key: case[key] for key in keys if key in case}}
    path.write_text(json.dumps(written), encoding="utf-8")
    return load_workload(path)


def model(name: str = "chat", **changed: Any) -> Model:
    """A small one, of which everything is known."""
    plain = Model(name, name, parameters=10**9, shape=Shape(28, 4, 128), context=4096)
    return replace(plain, **changed)


def workload(*models: Model, vllm: str | None = "0.33.0", **changed: Any) -> Workload:
    return Workload(models, versions={"vllm": Version(vllm)} if vllm else {}, **changed)


TWO_GPUS, ONE_GPU = "win11-pro-2xl20-wddm", "win11-pro-1gpu"
EIGHT_GPUS = 8 * [48 * GiB]
