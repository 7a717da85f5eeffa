"""Budgets of workloads: cases are data with numbers computed by hand, the properties hold for every workload."""

from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import read_cases
from tests.rows import each_row
from winhost.model.path import WINDOWS_VARIANTS, AvailableMemory
from winhost.model.units import GiB, MiB, parse_size
from winhost.model.workload import (
    DType,
    KvMirror,
    LoadFormat,
    Lora,
    Mirror,
    Model,
    ModelState,
    Needs,
    Parallel,
    Quantization,
    Shape,
    Video,
    Workload,
)
from winhost.model.workloadfile import load_workload
from winhost.sizing import placement
from winhost.sizing.budget import Budget, budget
from winhost.sizing.fit import advise_fit
from winhost.sizing.fit_changes import STEP, Fix, apply_changes
from winhost.sizing.memories import PACKED_LOADER, PINNED, SHARED_WITH_WINDOWS, wsl_default_ram
from winhost.sizing.placement import Claim, place_on_gpus

ROOT = Path(__file__).parents[2]
CASES = sorted((ROOT / "tests/data/workloads/budgets").glob("*.yaml"))

# --- Cases -----------------------------------------------------------------------------------------------------------

KEYS = {"says", "example", "file", "room", "say"}
SAYS = {"fits", "lines", "memories", "gpus", "homeless", "missing", "short", "fixes", "nearest", "shows", "unknown"}


def workload_of(case: dict[str, Any], folder: Path) -> Workload:
    if "example" in case:
        return load_workload(ROOT / f"examples/workloads/{case['example']}.yaml")
    path = folder / "workload.yaml"
    path.write_text(case["file"], encoding="utf-8")
    return load_workload(path)


def memory_of(case: dict[str, Any]) -> AvailableMemory:
    sizes = {key: parse_size(value) for key, value in case["room"].items() if key not in ("variant", "gpus")}
    gpus = tuple(map(parse_size, case["room"]["gpus"]))
    return AvailableMemory(variant=case["room"]["variant"], gpus=gpus, **sizes)


def lines_of(found: Budget) -> dict[str, int]:
    said = [(f"{line.where}/{line.model or '-'}/{line.what}", line.bytes) for line in found.lines]
    assert len(dict(said)) == len(said)
    return dict(said)


def check_budget(found: Budget, say: dict[str, Any]) -> None:
    assert found.fits is say["fits"]
    lines = lines_of(found)
    assert {key: lines.get(key) for key in say.get("lines", {})} == say.get("lines", {})
    for where, said in say.get("memories", {}).items():
        there = found.use_of(where)
        assert (there and {key: getattr(there, key) for key in said or {}}) == said
    placed = found.placement
    assert dict(placed.gpus) == {name: tuple(on) for name, on in say.get("gpus", dict(placed.gpus)).items()}
    assert placed.fits or not say["fits"]
    assert list(placed.homeless) == say.get("homeless", [])
    told = [f"{lack.model or '-'}: {lack.what}: {', '.join(lack.state)}" for lack in found.missing]
    assert told == say.get("missing", [])


@each_row("path", CASES, ids=lambda path: path.stem)
def test_a_budget_is_what_was_computed_by_hand(path: Path, tmp_path: Path) -> None:
    case = read_cases(path)
    assert case.keys() <= KEYS
    assert case["say"].keys() <= SAYS
    workload, available_memory = workload_of(case, tmp_path), memory_of(case)
    check_budget(budget(workload, available_memory), case["say"])
    would = advise_fit(workload, available_memory)
    if "short" in case["say"]:
        assert {short.where: short.bytes for short in would.short} == case["say"]["short"]
    assert [fix.text for fix in would.fixes] == case["say"].get("fixes", [])
    nearest = would.nearest
    said = {
        "nearest": nearest and nearest.text,
        "shows": list(nearest.shows) if nearest else [],
        "unknown": list(nearest.unknown) if nearest else [],
    }
    assert said == {**said, **{key: case["say"][key] for key in said if key in case["say"]}}


def test_wsl_gets_half_of_the_memory_unless_it_is_told_otherwise() -> None:
    assert wsl_default_ram(64 * GiB) == 32 * GiB


# --- Properties ------------------------------------------------------------------------------------------------------


def mostly(value: st.SearchStrategy[Any], other: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """So that much of what is drawn can be computed and fits."""
    return st.integers(0, 5).flatmap(lambda n: other if n == 5 else value)


NOT_SAID = st.none()
MODELS = st.builds(
    Model,
    name=st.just("?"),
    id=st.just("org/model"),
    parameters=st.integers(5 * 10**8, 14 * 10**9),
    dtype=st.sampled_from([DType.BFLOAT16, DType.FLOAT16]),
    quantization=mostly(NOT_SAID, st.sampled_from(Quantization)),
    shape=mostly(
        st.builds(
            Shape,
            layers=st.integers(8, 40),
            kv_heads=st.sampled_from([2, 4, 8]),
            head_dim=mostly(st.sampled_from([64, 128]), NOT_SAID),
            hidden=st.just(2048),
            vocabulary=mostly(st.just(64_000), NOT_SAID),
        ),
        st.just(Shape()),
    ),
    context=mostly(st.integers(1, 16384), NOT_SAID),
    sequences=st.integers(1, 16),
    kv=mostly(NOT_SAID, st.integers(1, 4 * GiB)),
    activations=mostly(NOT_SAID, st.integers(1, 2 * GiB)),
    memory=mostly(NOT_SAID, st.integers(1, 30 * GiB)),
    state=st.sampled_from(ModelState),
    chosen_level=st.sampled_from([1, 2]),
    parallel=st.builds(Parallel, tensor=mostly(st.just(1), st.just(2)), data=mostly(st.just(1), st.just(2))),
    lora=mostly(NOT_SAID, st.builds(Lora, st.integers(1, 4), st.integers(1, GiB))),
)
WORKLOADS = st.builds(
    Workload,
    models=st.lists(MODELS, min_size=1, max_size=3).map(
        lambda models: tuple(replace(model, name=f"m{i}") for i, model in enumerate(models))
    ),
    needs=mostly(st.just(Needs()), st.just(Needs(must=("pinned-memory",)))),
    keep_windows_usable=st.booleans(),
    kv_mirror=mostly(NOT_SAID, st.builds(KvMirror, st.sampled_from(Mirror), st.integers(1, 10 * GiB))),
    video=mostly(NOT_SAID, st.builds(Video, st.integers(1, 4), mostly(st.integers(1, GiB), NOT_SAID))),
)
SIZES = mostly(st.integers(64, 256), st.integers(1, 64)).map(lambda n: n * GiB)
ROOMS = st.builds(
    AvailableMemory,
    variant=st.sampled_from(WINDOWS_VARIANTS),
    gpus=st.lists(st.sampled_from([12 * GiB, 24 * GiB, 36 * GiB]), max_size=3).map(tuple),
    ram=SIZES,
    host_ram=SIZES.map(lambda size: size * 2),
    shm=mostly(SIZES, NOT_SAID),
    pinned=mostly(SIZES, NOT_SAID),
)

RANK = {True: 2, None: 1, False: 0}


def sizes_of(found: Budget) -> dict[str, tuple[int, int]]:
    return {memory.where: (memory.used, memory.least) for memory in found.memories}


@given(WORKLOADS, ROOMS)
def test_what_is_used_is_the_sum_of_the_lines(workload: Workload, available_memory: AvailableMemory) -> None:
    found = budget(workload, available_memory)
    for there in found.memories:
        lines = [line for line in found.lines if line.where == there.where]
        assert there.used == sum(line.bytes for line in lines)
        assert there.least == sum(line.least for line in lines)
        assert there.capacity is None or there.margin == there.capacity - there.used
    assert {line.where for line in found.lines} <= {there.where for there in found.memories}
    assert all(0 <= line.least <= line.bytes for line in found.lines)


@given(WORKLOADS, ROOMS)
def test_shared_memory_is_counted_in_ram_as_much_as_in_its_own_place(
    workload: Workload, available_memory: AvailableMemory
) -> None:
    found = budget(workload, available_memory)
    there = found.use_of("shm")
    assert lines_of(found).get("ram/-/shared memory", 0) == (there.used if there else 0)


@given(WORKLOADS, ROOMS)
def test_it_fits_only_where_nothing_is_missing_and_every_place_has_room(
    workload: Workload, available_memory: AvailableMemory
) -> None:
    found = budget(workload, available_memory)
    assert RANK[found.may_fit] >= RANK[found.fits]
    if found.fits:
        assert found.missing == ()
        assert found.placement.fits
        assert all(there.capacity is not None and there.used <= there.capacity for there in found.memories)


@given(WORKLOADS, ROOMS, st.integers(0, 64 * GiB))
def test_more_memory_never_makes_it_worse(workload: Workload, available_memory: AvailableMemory, more: int) -> None:
    # What the target gets comes from the machine, so the machine has as much more.
    larger = replace(
        available_memory,
        ram=available_memory.ram + more,
        host_ram=available_memory.host_ram + more,
        shm=None if available_memory.shm is None else available_memory.shm + more,
        pinned=None if available_memory.pinned is None else available_memory.pinned + more,
    )
    assert RANK[budget(workload, larger).fits] >= RANK[budget(workload, available_memory).fits]


@given(WORKLOADS, ROOMS, st.lists(st.integers(0, 32 * GiB), min_size=3, max_size=3), st.booleans())
def test_larger_and_more_gpus_never_make_it_worse(
    workload: Workload, available_memory: AvailableMemory, more: list[int], another: bool
) -> None:
    larger = [gpu + added for gpu, added in zip(available_memory.gpus, more, strict=False)]
    gpus = (*larger, 24 * GiB) if another else tuple(larger)
    # Under WSL the machine must have as much memory as its GPUs.
    host_ram = (
        available_memory.host_ram + sum(gpus)
        if available_memory.path in SHARED_WITH_WINDOWS
        else available_memory.host_ram
    )
    better = budget(workload, replace(available_memory, gpus=gpus, host_ram=host_ram))
    assert RANK[better.fits] >= RANK[budget(workload, available_memory).fits]


def test_engines_of_one_model_share_no_gpu() -> None:
    claims = [Claim("a", 1, 10, apart="a"), Claim("b", 1, 30), Claim("a-standby", 1, 10, apart="a")]
    found = place_on_gpus(claims, [100, 100])
    assert found.fits
    assert {*found.gpus["a"]}.isdisjoint(found.gpus["a-standby"])
    full = place_on_gpus(claims, [100])  # there is room for all of them, on one GPU
    assert (full.fits, full.homeless) == (False, ("a-standby",))
    short = place_on_gpus([*claims, Claim("c", 1, 200)], [100, 100])
    assert {*short.gpus["a"]}.isdisjoint(short.gpus["a-standby"])


def test_what_is_suspended_leaves_its_gpu_to_the_others() -> None:
    names = "abcdefgh"
    one = Model("a", "a", memory=60 * GiB, state=ModelState.SLEEPING, sleep_level=2)
    memory = AvailableMemory("bare-metal", (80 * GiB,), 256 * GiB, 256 * GiB)
    asleep = budget(Workload(tuple(replace(one, name=name) for name in names)), memory)
    suspended = budget(Workload(tuple(replace(one, name=name, suspend=True) for name in names)), memory)
    assert (asleep.fits, suspended.fits) == (False, True)
    place = suspended.use_of("gpu0")
    assert place is not None
    assert place.used == 60 * GiB + len(names) * 4 * MiB


@given(WORKLOADS, ROOMS, st.randoms(use_true_random=False))
def test_the_order_of_gpus_and_models_does_not_matter(
    workload: Workload, available_memory: AvailableMemory, random: Any
) -> None:
    gpus, models = list(available_memory.gpus), list(workload.models)
    random.shuffle(gpus)
    random.shuffle(models)
    one = budget(workload, available_memory)
    other = budget(replace(workload, models=tuple(models)), replace(available_memory, gpus=tuple(gpus)))
    assert one.fits is other.fits
    assert {where: used for where, used in sizes_of(one).items() if not where.startswith("gpu")} == {
        where: used for where, used in sizes_of(other).items() if not where.startswith("gpu")
    }
    if one.placement.fits:
        assert sorted(used for where, used in sizes_of(one).items() if where.startswith("gpu")) == sorted(
            used for where, used in sizes_of(other).items() if where.startswith("gpu")
        )


@given(WORKLOADS, ROOMS)
def test_every_fix_makes_it_fit_and_takes_something_that_is_not_there(
    workload: Workload, available_memory: AvailableMemory
) -> None:
    would, now = advise_fit(workload, available_memory), budget(workload, available_memory)
    assert now.fits is not True or not would.fixes
    for fix in would.fixes:
        after = budget(*apply_changes(workload, available_memory, fix.changes))
        assert after.fits is True or (now.fits is False and after.fits is None and fix.unknown)
        assert bool(fix.unknown) is (after.fits is None)
        assert all(change.was != change.to for change in fix.changes)
    assert list(would.fixes) == sorted(would.fixes, key=lambda fix: fix.tier)
    assert would.nearest in (*would.fixes[:1], None)


@given(WORKLOADS, ROOMS)
def test_a_step_more_than_the_nearest_fit_does_not_fit(workload: Workload, available_memory: AvailableMemory) -> None:
    nearest = advise_fit(workload, available_memory).nearest
    for at, change in enumerate(nearest.changes if nearest else ()):
        if nearest and change.kind in STEP and int(change.to) + STEP[change.kind] < int(change.was or 0):
            more = replace(change, to=int(change.to) + STEP[change.kind])
            one_more = Fix((*nearest.changes[:at], more, *nearest.changes[at + 1 :]))
            assert budget(*apply_changes(workload, available_memory, one_more.changes)).fits is False


@given(WORKLOADS, ROOMS)
def test_what_is_not_known_silences_no_fix(workload: Workload, available_memory: AvailableMemory) -> None:
    """What is not stated takes nothing away from what can be said of the rest."""
    silent, told = replace(available_memory, pinned=None), replace(available_memory, pinned=1 << 50)
    if budget(workload, silent).fits is False:
        fixes = advise_fit(workload, silent).fixes
        assert bool(fixes) is bool(advise_fit(workload, told).fixes)
        assert all(fix.unknown for fix in fixes if budget(*apply_changes(workload, silent, fix.changes)).fits is None)


@given(ROOMS)
def test_one_sequence_more_than_a_fix_allows_does_not_fit(available_memory: AvailableMemory) -> None:
    chat = Model("chat", "org/chat", 8 * 10**9, shape=Shape(32, 8, 128), context=4096, sequences=64)
    for fix in advise_fit(Workload((chat,)), available_memory).fixes:
        (first, *others) = fix.changes
        if first.kind == "sequences" and first.to != 63 and "context" not in {change.kind for change in others}:
            one_more = Fix((replace(first, to=int(first.to) + 1), *others))
            assert budget(*apply_changes(Workload((chat,)), available_memory, one_more.changes)).fits is not True


@given(WORKLOADS, st.lists(st.sampled_from([8 * GiB, 24 * GiB]), min_size=1, max_size=3))
def test_under_wsl_backups_are_pinned_only_where_that_must_be(workload: Workload, gpus: list[int]) -> None:
    available_memory = AvailableMemory("wsl2/nat", tuple(gpus), 64 * GiB, 128 * GiB)
    pinned = [
        line
        for line in budget(workload, available_memory).lines
        if line.where == PINNED and line.what == "sleep backup"
    ]
    assert not pinned or "pinned-memory" in workload.needs.must


# --- Placing ---------------------------------------------------------------------------------------------------------

CLAIMS = st.lists(st.tuples(st.integers(1, 2), st.integers(0, 9), st.integers(0, 9)), max_size=4).map(
    lambda drawn: [Claim(f"c{i}", gpus, fixed, turn) for i, (gpus, fixed, turn) in enumerate(drawn)]
)


def load(gpu: int, claims: list[Claim], gpus: dict[str, tuple[int, ...]]) -> int:
    here = [claim for claim in claims if gpu in gpus[claim.name]]
    return sum(claim.fixed for claim in here) + max((claim.turn for claim in here), default=0)


def some_placement_fits(claims: list[Claim], capacities: list[int]) -> bool:
    """Every way, one after the other, without any thought."""
    variants = product(*(combinations(range(len(capacities)), claim.gpus) for claim in claims))
    named = ({claim.name: on for claim, on in zip(claims, variant, strict=True)} for variant in variants)
    return any(
        all(load(i, claims, variant) <= available_memory for i, available_memory in enumerate(capacities))
        for variant in named
    )


@given(CLAIMS, st.lists(st.integers(0, 20), max_size=3))
def test_a_placement_is_found_exactly_where_there_is_one(claims: list[Claim], capacities: list[int]) -> None:
    found = place_on_gpus(claims, capacities)
    assert found.fits is some_placement_fits(claims, capacities)
    assert found.proven
    assert all(len(set(found.gpus[claim.name])) == claim.gpus for claim in claims if claim.name in found.gpus)
    if found.fits:
        assert all(
            load(i, claims, dict(found.gpus)) <= available_memory for i, available_memory in enumerate(capacities)
        )


def test_a_search_that_gives_up_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "TRIES", 3)
    claims = [Claim(f"c{i}", 1, 5) for i in range(5)]
    found = place_on_gpus(claims, [9, 9, 9, 9])
    assert not found.fits
    assert not found.proven
    assert found.gpus.keys() == {claim.name for claim in claims}
    workload = Workload(tuple(Model(f"m{i}", "org/model", memory=10 * GiB) for i in range(5)))
    judged = budget(workload, AvailableMemory("bare-metal", (16 * GiB,) * 4, 128 * GiB, 128 * GiB))
    assert judged.fits is None


# --- Evidence --------------------------------------------------------------------------------------------------------


FILES = [path for path in sorted((ROOT / "winhost/knowledge").rglob("*.yaml")) if "evidence" in str(path)]
EVIDENCE = {path: read_cases(path).keys() for path in FILES}


def cited(found: Budget) -> set[str]:
    return {key for row in (*found.lines, *found.memories) for key in row.evidence}


@given(WORKLOADS, ROOMS)
def test_every_line_and_every_place_cites_evidence_that_exists(
    workload: Workload, available_memory: AvailableMemory
) -> None:
    found = budget(workload, available_memory)
    assert cited(found) <= set().union(*EVIDENCE.values())
    assert all(line.evidence for line in found.lines if line.estimate)


def test_no_evidence_of_the_arithmetic_is_there_for_nothing(tmp_path: Path) -> None:
    cases = [read_cases(path) for path in CASES]
    used = {key for case in cases for key in cited(budget(workload_of(case, tmp_path), memory_of(case)))}
    (ours,) = (keys for keys in EVIDENCE.values() if "quantized-formats" in keys)
    assert ours <= used


# --- The documentation -----------------------------------------------------------------------------------------------


def rows_of_the_example(columns: int) -> list[list[str]]:
    text = (ROOT / "docs/workloads.md").read_text(encoding="utf-8").partition("## An example")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in text.splitlines() if row.startswith("|")]
    return [row for row in rows if len(row) == columns and row[-1][0] in "0123456789"]


def test_the_numbers_of_the_documented_example_are_those_that_are_computed() -> None:
    workload = load_workload(ROOT / "examples/workloads/three-share-a-gpu.yaml")
    found = budget(workload, AvailableMemory("dda", (46068 * MiB,), 96 * GiB, 128 * GiB, 48 * GiB, 96 * GiB))
    lines = [
        [line.where, line.model or "-", line.what, f"{line.bytes:,}", f"{line.least:,}"]
        for line in found.lines
        if line.where in ("gpu0", "ram")
    ]
    memories = [
        [there.where, f"{there.capacity:,}", f"{there.used:,}", f"{there.margin:,}"]
        for there in found.memories
        if there.where != "pinned"
    ]
    assert rows_of_the_example(5) == lines
    assert rows_of_the_example(4) == memories


def test_the_pinned_buffers_of_the_loader_of_packed_weights_are_counted_for_each_gpu() -> None:
    room = AvailableMemory(variant="dda", gpus=(48 * GiB,) * 2, ram=64 * GiB, host_ram=128 * GiB, shm=GiB, pinned=GiB)
    plain = Model("chat", "chat", parameters=10**9, shape=Shape(28, 4, 128), context=4096, parallel=Parallel(tensor=2))
    found = {}
    for form in (LoadFormat.AUTO, LoadFormat.PACKED):
        lines = budget(Workload((replace(plain, load_format=form),)), room).lines
        found[form] = {(each.what, each.where): each.bytes for each in lines}
    more = found[LoadFormat.PACKED].items() - found[LoadFormat.AUTO].items()
    assert {(what, size) for (what, _), size in more} == {("packed loader", 2 * PACKED_LOADER)}
    assert len(more) == 2, "in memory, and of what may be pinned"
