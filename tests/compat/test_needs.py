"""What is wanted against what ways offer: needs, and the memory of a workload."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.compat.test_rules import HOSTS
from winhost.compat.assess import assess
from winhost.compat.needs import Fit, Needs, UnknownCapability, check, fits, needs_of, wanted
from winhost.model.reason import Verdict
from winhost.model.workload import LoadFormat, Workload
from winhost.model.workloadfile import load_workload
from winhost.resources.host import HostFacts

EXAMPLES = Path(__file__).parents[2] / "examples" / "workloads"
ONE_7B = load_workload(EXAMPLES / "one-7b-on-24gb.yaml")
SHARING = load_workload(EXAMPLES / "three-share-a-card.yaml")
ANY = Needs()
WIDE = load_workload(EXAMPLES / "70b-awq-on-2x48gb.yaml")


def fit(host: str, way: str, needs: Needs = ANY, workload: Workload | None = None) -> Fit:
    judged = assess(HostFacts(HOSTS[host]), stated=workload.versions if workload else None)
    return next(fit for fit in fits(judged, needs, workload) if fit.way == way)


def test_the_best_fit_comes_first_and_each_path_once() -> None:
    found = fits(assess(HostFacts(HOSTS["server2025-role-installed"])), Needs())
    assert [fit.verdict.rank for fit in found] == sorted(fit.verdict.rank for fit in found)
    assert len({fit.way.partition("/")[0] for fit in found}) == len(found)
    assert found[0].way == "dda"


def test_a_need_that_is_not_offered_rules_a_way_out() -> None:
    assert fit("win11-pro-1gpu", "wsl2/bridged").verdict is not Verdict.UNSUPPORTED
    without = fit("win11-pro-1gpu", "wsl2/bridged", Needs(must=("nvlink",)))
    assert without.verdict is Verdict.UNSUPPORTED
    assert [offered.capability for offered in without.lacking] == ["nvlink"]


def test_what_would_be_welcome_changes_no_verdict() -> None:
    plain, wishing = (fit("win11-pro-1gpu", "wsl2/bridged", Needs(nice=nice)) for nice in ((), ("nvlink",)))
    assert plain.verdict is wishing.verdict
    assert [offered.capability for offered in wishing.missed] == ["nvlink"]


def test_a_mistyped_need_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownCapability, match="did you mean 'nvlink'"):
        check(["nvlnk"])


def test_models_imply_what_they_need() -> None:
    assert {"sleep-l1", "gpu-compute", "gpu-memory"} <= set(needs_of(SHARING).must)
    assert {"tensor-parallel", "multi-gpu"} <= set(needs_of(WIDE).must)
    copies = replace(SHARING, models=tuple(replace(model, data=2) for model in SHARING.models))
    assert {"data-parallel", "sleep-data-parallel"} <= set(needs_of(copies).must)
    streamed = replace(ONE_7B, models=tuple(replace(m, load_format=LoadFormat.RUNAI_STREAMER) for m in ONE_7B.models))
    assert "streaming-loaders" in needs_of(streamed).must
    assert wanted(("nvlink",), ONE_7B).must[0] == "nvlink"
    assert wanted((), None) == Needs()


def test_a_workload_that_fits_adds_no_doubt() -> None:
    found = fit("server2025-role-installed", "dda", ANY, ONE_7B)
    assert found.budget is not None
    assert found.budget.fits
    assert (found.lacking, found.short) == ((), None)
    assert found.verdict is Verdict.SUPPORTED


def test_a_workload_that_does_not_fit_rules_the_way_out_and_says_what_would() -> None:
    found = fit("win11-pro-1gpu", "bare-metal", ANY, WIDE)
    assert found.verdict is Verdict.UNSUPPORTED
    assert [reason.code for offered in found.lacking for reason in offered.reasons] == ["gpu-memory.does-not-fit"]
    assert found.short is not None
    assert found.short.fixes


def test_what_is_not_stated_leaves_the_way_unverified() -> None:
    vague = replace(ONE_7B, models=tuple(replace(model, attention=None, kv=None) for model in ONE_7B.models))
    found = fit("server2025-role-installed", "dda", ANY, vague)
    assert found.verdict is Verdict.UNVERIFIED
    assert [reason.code for offered in found.lacking for reason in offered.reasons] == ["gpu-memory.fit-unknown"]


def test_where_the_memory_of_a_way_is_not_known_nothing_is_promised() -> None:
    found = fit("server2025-role-installed", "gpu-p", ANY, ONE_7B)
    assert "gpu-memory.room-unknown" in {reason.code for offered in found.lacking for reason in offered.reasons}
    assert found.budget is None
