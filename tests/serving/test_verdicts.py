"""`assess` and `serve profile` say the same of one workload on one host; `models` asks `assess` (test_fitting.py)."""

from pathlib import Path

import pytest

from tests.rows import each_row
from tests.serving.situations import model, shipped, workload
from winhost.compat.assess import assess
from winhost.compat.needs import fit_paths, needs_of
from winhost.model.errors import RefusedError
from winhost.model.path import path_of
from winhost.model.reason import Verdict
from winhost.model.workload import KvMirror as Tiers
from winhost.model.workload import (
    Mirror,
    ModelState,
    Shape,
    Workload,
)
from winhost.model.workloadfile import load_workload
from winhost.serving.choice import PATHS_WITH_PROFILES, serving

ROOT = Path(__file__).parents[2]
SEVEN = {"parameters": 7_615_616_512, "shape": Shape(28, 4, 128, 3584, 152_064), "context": 8192, "sequences": 4}
HOSTS = ("win11-pro-1gpu", "server2025-2x4090")
WORKLOADS: dict[str, Workload] = {
    **{path.stem: load_workload(path) for path in sorted((ROOT / "examples/workloads").glob("*.yaml"))},
    "two that sleep": workload(
        *(model(name, state=ModelState.SLEEPING, dense=True, **SEVEN) for name in "ab"), vllm=None
    ),
    "one that sleeps, tiers, an old vLLM": workload(
        model("a", state=ModelState.SLEEPING, **SEVEN), vllm="0.23.0", kv_mirror=Tiers(Mirror.TIERS, 2**30)
    ),
    "35,000 tokens": workload(model("a", **{**SEVEN, "context": 35_000, "sequences": 1})),
    "more than the upper end": workload(model("a", **{**SEVEN, "context": 65_536, "sequences": 2})),
    "more than the lower end": workload(model("a", **{**SEVEN, "context": 524_288})),
}


@pytest.mark.costly
@each_row("host, name", [(host, name) for host in HOSTS for name in WORKLOADS])
def test_a_profile_is_refused_exactly_where_assess_finds_no_way(host: str, name: str) -> None:
    facts, wanted = shipped(host), WORKLOADS[name]
    for fit in fit_paths(assess(facts, stated=wanted.versions), needs_of(wanted), wanted):
        path = path_of(fit.variant)
        if path not in PATHS_WITH_PROFILES:
            continue
        try:
            serving(facts, wanted, path=path)
            refused = None
        except RefusedError as error:
            refused = error.code
        assert (fit.verdict is Verdict.UNSUPPORTED) is (refused is not None), (fit.variant, fit.verdict, refused)
