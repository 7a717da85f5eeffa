"""Requirements are compared with what paths offer: capabilities, and the memory of a workload."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version

from tests.compat.test_rules import HOSTS
from tests.errors import raises
from winhost.compat.assess import assess
from winhost.compat.evaluation import Requirements as WishOf
from winhost.compat.evaluation import evaluate
from winhost.compat.needs import Fit, Needs, check_capabilities, find_nearest, fit_of, fit_paths, merge_needs, needs_of
from winhost.model.facts import Facts
from winhost.model.reason import Verdict
from winhost.model.workload import (
    LoadFormat,
    Model,
    ModelState,
    Parallel,
    Quantization,
    Shape,
    Workload,
)
from winhost.model.workloadfile import load_workload
from winhost.resources.host import HostFacts
from winhost.sizing.fit_changes import apply_changes

EXAMPLES = Path(__file__).parents[2] / "examples" / "workloads"
ONE_7B = load_workload(EXAMPLES / "one-7b-on-24gb.yaml")
SHARING = load_workload(EXAMPLES / "three-share-a-gpu.yaml")
ANY = Needs()
WIDE = load_workload(EXAMPLES / "70b-awq-on-2x48gb.yaml")


def fit(host: str, variant: str, needs: Needs = ANY, workload: Workload | None = None) -> Fit:
    judged = assess(HostFacts(HOSTS[host]), stated=workload.versions if workload else None)
    return next(fit for fit in fit_paths(judged, needs, workload) if fit.variant == variant)


def test_the_best_fit_comes_first_and_each_path_once() -> None:
    found = fit_paths(assess(HostFacts(HOSTS["server2025-role-installed"])), Needs())
    assert [fit.verdict.rank for fit in found] == sorted(fit.verdict.rank for fit in found)
    assert len({fit.variant.partition("/")[0] for fit in found}) == len(found)
    assert found[0].variant == "dda"


def test_a_need_that_is_not_offered_rules_a_way_out() -> None:
    assert fit("win11-pro-1gpu", "wsl2/mirrored").verdict is not Verdict.UNSUPPORTED
    without = fit("win11-pro-1gpu", "wsl2/mirrored", Needs(must=("nvlink",)))
    assert without.verdict is Verdict.UNSUPPORTED
    assert [offered.capability for offered in without.lacking] == ["nvlink"]


def test_what_would_be_welcome_changes_no_verdict() -> None:
    plain, wishing = (fit("win11-pro-1gpu", "wsl2/mirrored", Needs(nice=nice)) for nice in ((), ("nvlink",)))
    assert plain.verdict is wishing.verdict
    assert [offered.capability for offered in wishing.missed] == ["nvlink"]


def test_a_mistyped_need_is_answered_with_the_nearest() -> None:
    with raises("UnknownCapability", match="did you mean 'nvlink'"):
        check_capabilities(["nvlnk"])


def test_models_imply_what_they_need() -> None:
    assert {"sleep-l1", "gpu-compute", "gpu-memory"} <= set(needs_of(SHARING).must)
    open_ = replace(SHARING, needs=Needs())
    assert ("sleep-l1" in needs_of(open_).must, needs_of(open_).nice) == (False, ("sleep-l1",))
    assert {"tensor-parallel", "multi-gpu"} <= set(needs_of(WIDE).must)
    copies = replace(SHARING, models=tuple(replace(model, parallel=Parallel(data=2)) for model in SHARING.models))
    assert {"data-parallel", "sleep-data-parallel"} <= set(needs_of(copies).must)
    streamed = replace(ONE_7B, models=tuple(replace(m, load_format=LoadFormat.RUNAI_STREAMER) for m in ONE_7B.models))
    assert "streaming-loaders" in needs_of(streamed).must
    assert merge_needs(("nvlink",), ONE_7B).must[0] == "nvlink"
    assert merge_needs((), None) == Needs()


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


def test_what_fits_by_the_lower_ends_alone_is_unverified_and_names_what_decides() -> None:
    long = replace(ONE_7B, models=tuple(replace(each, context=65_536, sequences=2) for each in ONE_7B.models))
    found = fit("win11-pro-1gpu", "bare-metal", ANY, long)
    (reason,) = [each for offered in found.lacking for each in offered.reasons if each.code == "gpu-memory.may-fit"]
    assert found.verdict is Verdict.UNVERIFIED
    assert reason.observed == (
        "gpu0: 18.50 to 25.11 GiB of 23.27 to 23.99 GiB; what decides is chat: KV cache, 3.50 to 7.00 GiB"
    )


def test_wsl_is_judged_with_the_memory_that_a_plan_would_give_it() -> None:
    short = replace(ONE_7B.models[0], state=ModelState.SLEEPING, context=4096, sequences=1)
    sleeping = tuple(replace(short, name=name) for name in "ab")
    found = fit("win11-pro-1gpu", "wsl2/mirrored", ANY, Workload(sleeping))
    assert found.verdict is Verdict.DEGRADED
    (reason,) = [each for offered in found.lacking for each in offered.reasons if each.code == "gpu-memory.wsl-memory"]
    assert reason.observed == "43.37 GiB of memory, and WSL gets 32.00 GiB by itself"


# ---- the nearest workload that would do

CLIENT = {
    "caption": "Microsoft Windows 11 Pro",
    "product_type": 1,
    "sku": 48,
    "edition_id": "Professional",
    "installation_type": "Client",
    "product_options": "WinNT",
}


def two_4090_on_windows_11() -> Facts:
    facts = HOSTS["server2025-2x4090"]
    (system,) = facts.resources["OperatingSystem"]
    return replace(
        facts, resources={**facts.resources, "OperatingSystem": (replace(system, state={**system.state, **CLIENT}),)}
    )


AWQ_32B = Workload(
    models=(
        Model(
            name="chat",
            id="Qwen/Qwen2.5-32B-Instruct-AWQ",
            parameters=32_800_000_000,
            quantization=Quantization.AWQ,
            shape=Shape(64, 8, 128, hidden=5120, vocabulary=152_064),
            context=16_384,
            sequences=4,
            parallel=Parallel(2),
        ),
    )
)


def test_a_workload_that_is_a_little_too_large_is_told_how_much_and_nothing_is_to_be_bought_first() -> None:
    answer = evaluate(two_4090_on_windows_11(), WishOf(needs_of(AWQ_32B), "wsl2", AWQ_32B))
    assert answer.nearest is not None
    (change,) = answer.nearest.fix.changes
    assert (change.kind, change.was, change.to) == ("context", 16_384, 14_336)
    assert "gpu0, gpu1: 20.87 GiB of 20.87 GiB" in answer.nearest.fix.shows
    assert answer.nearest.fix.unknown == ("what may be pinned under WSL",)
    assert answer.nearest.verdict is Verdict.UNVERIFIED
    wsl = next(fit for fit in answer.fits if fit.variant.startswith("wsl2"))
    assert wsl.short is not None
    assert wsl.short.fixes[0] == wsl.short.nearest == answer.nearest.fix
    assert [fix.tier for fix in wsl.short.fixes] == sorted(fix.tier for fix in wsl.short.fixes)


def test_what_fits_needs_no_smaller_workload() -> None:
    three = replace(AWQ_32B, models=(replace(AWQ_32B.models[0], sequences=3),))
    assert evaluate(two_4090_on_windows_11(), WishOf(needs_of(three), "wsl2", three)).nearest is None


MODELS = st.builds(
    Model,
    name=st.just("?"),
    id=st.just("org/model"),
    parameters=st.integers(4 * 10**9, 40 * 10**9),
    quantization=st.sampled_from([None, Quantization.AWQ]),
    shape=st.builds(Shape, st.integers(20, 64), st.sampled_from([4, 8]), st.just(128), st.just(4096), st.just(64_000)),
    context=st.sampled_from([4096, 16_384, 65_536]),
    sequences=st.integers(1, 24),
    state=st.sampled_from(ModelState),
    parallel=st.builds(Parallel, st.sampled_from([1, 2])),
)
WORKLOADS = st.lists(MODELS, min_size=1, max_size=2).map(
    lambda models: Workload(
        tuple(replace(model, name=f"m{i}") for i, model in enumerate(models)), versions={"vllm": Version("0.33.0")}
    )
)


@pytest.mark.costly
@settings(deadline=None, max_examples=12)
@given(WORKLOADS, st.sampled_from(["win11-pro-2xl20-wddm", "server2025-2x4090", "win11-pro-1gpu"]))
def test_the_nearest_workload_gets_the_verdict_that_it_is_promised(workload: Workload, host: str) -> None:
    judged = assess(HostFacts(HOSTS[host]), stated=workload.versions)
    variants = {variant.path: variant for path in judged.paths for variant in path.every_variant}
    best = fit_paths(judged, needs_of(workload), workload)[0]
    found = find_nearest(variants.values(), needs_of(workload), workload, best)
    if found is None:
        return
    room = variants[found.variant].available_memory
    assert room is not None
    after, then = apply_changes(workload, room, found.fix.changes)
    fit = fit_of(replace(variants[found.variant], available_memory=then), needs_of(after), after)
    assert fit.verdict is found.verdict is not Verdict.UNSUPPORTED
    assert fit.budget is not None
    assert fit.budget.fits is True or found.fix.unknown
    assert found.verdict.rank <= best.verdict.rank


def test_what_is_not_stated_leaves_the_way_unverified() -> None:
    vague = replace(ONE_7B, models=tuple(replace(model, shape=Shape(), kv=None) for model in ONE_7B.models))
    found = fit("server2025-role-installed", "dda", ANY, vague)
    assert found.verdict is Verdict.UNVERIFIED
    assert [reason.code for offered in found.lacking for reason in offered.reasons] == ["gpu-memory.fit-unknown"]


def test_where_the_memory_of_a_way_is_not_known_nothing_is_promised() -> None:
    found = fit("server2025-role-installed", "gpu-p", ANY, ONE_7B)
    assert "gpu-memory.room-unknown" in {reason.code for offered in found.lacking for reason in offered.reasons}
    assert found.budget is None


def test_what_is_said_of_engines_over_several_gpus_is_for_workloads_with_one() -> None:
    needs = Needs(("cuda-checkpoint",))
    for workload, said in ((ONE_7B, False), (WIDE, True), (None, True)):
        lacking = fit("server2025-2x4090", "dda", needs, workload).lacking
        codes = {reason.code for offered in lacking for reason in offered.reasons}
        assert ("cuda-checkpoint.several-gpus" in codes) is said
