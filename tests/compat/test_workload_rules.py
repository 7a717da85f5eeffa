"""A workload's own wishes: tests/data/workloads/rules.yaml, and the time that a swap takes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cases import read_cases
from tests.compat.test_rules import HOSTS, OF_WORKLOADS, merged
from tests.rows import each_row
from winhost.compat.assess import assess
from winhost.compat.needs import Fit, fit_of, needs_of
from winhost.compat.swap import Swap, swaps
from winhost.compat.workload_rules import RELOADING_FORMATS, conflicts
from winhost.model.reason import Verdict
from winhost.model.units import GiB
from winhost.model.workload import Availability, LoadFormat, Workload
from winhost.model.workloadfile import load_workload
from winhost.resources.host import HostFacts

ROOT = Path(__file__).parents[2]
CASES: dict[str, Any] = read_cases(ROOT / "tests/data/workloads/rules.yaml")
OF_MEMORY = {
    f"gpu-memory.{code}" for code in ("does-not-fit", "fit-unknown", "may-fit", "room-unknown", "wsl-memory")
}  # test_needs.py


def example(name: str) -> Path:
    return ROOT / "examples/workloads" / f"{name}.yaml"


def workload_of(case: dict[str, Any], folder: Path) -> Workload:
    assert case.keys() <= {"workload", "change", "host", "variant", "says"}
    file = merged(read_cases(example(case["workload"])), case.get("change", {}))
    (folder / "workload.yaml").write_text(yaml.safe_dump(without_nulls(file)), encoding="utf-8")
    return load_workload(folder / "workload.yaml")


def without_nulls(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}


def fit(workload: Workload, host: str, name: str) -> Fit:
    judged = assess(HostFacts(HOSTS[host]), stated=workload.versions)
    (variant,) = (variant for path in judged.paths for variant in path.every_variant if variant.path == name)
    return fit_of(variant, needs_of(workload), workload)


@each_row("name", CASES)
def test_a_wish_is_judged_as_its_case_says(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    found = fit(workload_of(case, tmp_path), case["host"], case["variant"])
    assert {reason.code: reason.severity.value for reason in found.denied} == case["says"]
    assert found.verdict.rank >= Verdict.of(found.denied).rank


def test_every_code_about_workloads_has_a_case() -> None:
    codes = set(read_cases(OF_WORKLOADS))
    assert {code for case in CASES.values() for code in case["says"]} == codes - OF_MEMORY


def test_all_that_speaks_against_a_workload_is_said(tmp_path: Path) -> None:
    model = {"state": "sleeping", "sleep_level": 2, "load_format": "tensorizer"}
    case = {"workload": "kv-on-disk", "change": {"models": {"chat": model}, "exposure": "lan"}}
    denied = conflicts(workload_of(case, tmp_path), "wsl2/nat", None)
    codes = ["kv-write-through.with-sleep", "sharded-state.unconverted", "sleep-l2.cannot-reload", "wsl2.nat-exposed"]
    assert [reason.code for reason in denied] == codes


def test_no_loader_that_streams_to_one_rank_or_invents_weights_reloads_them() -> None:
    cannot = {"dummy", "sharded_state", "tensorizer", "ipc_cache", "modelexpress", "runai_streamer_sharded"}
    assert set(LoadFormat) - RELOADING_FORMATS == cannot


# ---- the time of a swap


def code_after_general(host: str, variant: str) -> Swap:
    sharing = load_workload(example("three-share-a-gpu"))
    budget = fit(sharing, host, variant).budget
    assert budget is not None
    pairs = {(swap.model, swap.after): swap for swap in swaps(sharing, budget)}
    assert len(pairs) == 3 + 6, "each alone, and after each other one"
    return pairs["code", "general"]


def test_a_swap_copies_the_one_down_and_the_other_up() -> None:
    swap = code_after_general("server2025-3gpu", "dda")
    assert swap.best == pytest.approx(15.231233024 / 55.6 + 16.060522496 / 55.5)
    pinned_first = 14.29 * GiB / 1e9 / 13.8  # GB/s
    assert swap.worst == pytest.approx(15.231233024 * 2.2 / 16.38 + 16.060522496 / pinned_first)
    in_wsl = code_after_general("win11-pro-2xl20-wddm", "wsl2/nat")
    assert in_wsl.best > swap.best
    assert in_wsl.worst > swap.worst


def test_more_time_makes_no_swap_worse() -> None:
    sharing = load_workload(example("three-share-a-gpu"))
    budget = fit(sharing, "server2025-3gpu", "dda").budget
    ranks = [
        Verdict.of(conflicts(replace(sharing, availability=Availability(swap_within=within)), "dda", budget)).rank
        for within in (1, 2, 5, 10, 20, 60, 600)
    ]
    assert ranks == sorted(ranks, reverse=True)
    assert ranks[-1] == Verdict.SUPPORTED.rank


def test_who_sleeps_on_a_gpu_of_its_own_waits_for_nobody() -> None:
    sharing = load_workload(example("three-share-a-gpu"))
    alone = replace(sharing, models=sharing.models[:1])
    budget = fit(alone, "server2025-3gpu", "dda").budget
    assert budget is not None
    assert [(swap.model, swap.after) for swap in swaps(alone, budget)] == [("general", None)]
