"""What of the catalogue is offered for a host: for each example host, and what holds for every host."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.rows import each_row
from winhost.compat.assess import assess
from winhost.compat.needs import fit_without_advice, needs_of
from winhost.hub.catalogue import Entry, catalogue_of, shipped_document
from winhost.lab.hostfile import expand, find
from winhost.model.facts import Facts
from winhost.model.reason import Verdict
from winhost.model.shipped import example_hosts
from winhost.model.units import GiB
from winhost.model.workload import Quantization
from winhost.model.workloadfile import load_workload
from winhost.resources.host import HostFacts
from winhost.serving.fitting import (
    CONTEXTS,
    SEQUENCES,
    Candidate,
    ServingVariant,
    find_candidates,
    serving_variants,
    size_class,
    weight_bytes,
    workload_of,
)

ENTRIES = catalogue_of(shipped_document()).entries
FIRST: Mapping[str, str] = yaml.safe_load((Path(__file__).parents[1] / "data/fitting.yaml").read_text("utf-8"))
CHOICES = sorted({choice: host for host, choice in FIRST.items()}.values())


@cache
def facts_of(host: str) -> Facts:
    return expand(find(host))[0]


@cache
def offered(host: str) -> tuple[Candidate, ...]:
    return tuple(find_candidates(facts_of(host), entries=ENTRIES))


def summary(found: tuple[Candidate, ...]) -> str:
    if not found:
        return "none"
    best = found[0]
    gpus = f" on {best.gpus} GPUs" if best.gpus > 1 else ""
    return f"{best.entry.id} by {best.variant}, {best.context} x {best.sequences}{gpus}, {best.verdict}"


@pytest.mark.parametrize(
    "hosts",
    [pytest.param(CHOICES, id="one for each choice"), pytest.param(list(FIRST), id="every", marks=pytest.mark.costly)],
)
def test_the_choice_on_every_example_host(hosts: list[str]) -> None:
    """One table: a change of the order, the catalogue or a rule shows here on which hosts it matters."""
    assert {host: summary(offered(host)) for host in hosts} == {host: FIRST[host] for host in hosts}
    assert FIRST.keys() == set(example_hosts())


@pytest.mark.costly
@each_row("host", CHOICES)
def test_nothing_is_offered_that_the_judge_refuses(host: str) -> None:
    variants = {each.path: each for each in assess(HostFacts(facts_of(host))).every_variant}
    for each in offered(host):
        judged = fit_without_advice(variants[each.variant], needs_of(each.workload), each.workload)
        assert judged.verdict is each.verdict is not Verdict.UNSUPPORTED
        assert judged.budget is not None
        assert judged.budget.fits is not False if each.sure else judged.budget.may_fit is not False
        assert each.memory == max(memory.used for memory in judged.budget.memories if memory.gpu is not None)
        assert each.context <= each.entry.longest
        assert each.context in CONTEXTS or each.context == each.entry.longest
        assert each.entry.splits_over(each.gpus)


@cache
def serving_variant(host: str) -> ServingVariant:
    return next(serving_variants(facts_of(host)))


@cache
def with_memory(host: str, gib: int, gpus: int) -> ServingVariant:
    """The same way, with so much memory on each of so many GPUs, and with enough in the machine."""
    ram = 4000 * GiB
    memory = replace(
        serving_variant(host).memory, gpus=(gib * GiB,) * gpus, ram=ram, host_ram=2 * ram, shm=ram, pinned=ram
    )
    return ServingVariant(
        HostFacts(facts_of(host)), replace(serving_variant(host).variant, available_memory=memory), memory
    )


ROOM = st.integers(4, 69)  # from 70 GiB on vLLM batches more, which takes more


@pytest.mark.costly
@given(st.sampled_from(["win11-pro-1gpu", "server2025-2xh100", "server2025-8gpu"]), ROOM, ROOM, st.integers(1, 8))
def test_more_memory_never_yields_a_smaller_best(host: str, one: int, other: int, gpus: int) -> None:
    less, more = (best_class(with_memory(host, gib, gpus)) for gib in sorted((one, other)))
    assert less <= more


def best_class(serving_variant: ServingVariant) -> int:
    """Of the largest that is possible with the usual context; the rest is not tried."""
    largest_first = sorted(ENTRIES, key=lambda entry: -size_class(entry.parameters))
    found = (serving_variant.candidate(entry) for entry in largest_first)
    return next((size_class(each.entry.parameters) for each in found if each.possible and each.roomy), -99)


@given(st.sampled_from(ENTRIES), ROOM, ROOM)
def test_more_memory_never_takes_a_model_or_its_context_away(entry: Entry, one: int, other: int) -> None:
    less, more = (with_memory("server2025-8gpu", gib, 1).candidate(entry) for gib in sorted((one, other)))
    if less.possible:
        assert more.possible
        assert (more.roomy, more.context) >= (less.roomy, less.context)


def test_gated_models_come_last_without_a_token() -> None:
    found = offered("server2025-2xh100")
    gated = [each.entry.gated for each in found]
    assert any(gated)
    assert gated == sorted(gated)
    assert not found[0].entry.gated
    with_token = find_candidates(facts_of("server2025-2xh100"), entries=ENTRIES, token=True)
    assert [each.entry.gated for each in with_token] != gated
    assert {each.entry.id for each in with_token} == {each.entry.id for each in found}


def test_a_gated_model_is_never_the_only_choice_without_saying_so() -> None:
    gated = tuple(entry for entry in ENTRIES if entry.gated)
    found = find_candidates(facts_of("server2025-2xh100"), entries=gated)
    assert found
    assert all(each.entry.gated for each in found)


def test_the_order_is_as_it_is_documented() -> None:
    found = find_candidates(facts_of("server2025-2xh100"), entries=ENTRIES)
    keys = [
        (each.entry.gated, not each.sure, each.verdict.rank, not each.roomy, -size_class(each.entry.parameters))
        for each in found
    ]
    assert keys == sorted(keys)
    within = [
        each for each in found if each.sure and (each.entry.gated, each.verdict.rank, each.roomy) == (False, 0, True)
    ]
    dates = [each.entry.released for each in within if size_class(each.entry.parameters) == 3]
    assert dates == sorted(dates, reverse=True)


@each_row(
    "parameters, there",
    [
        (2_600_000_000, 0),
        (5_100_000_000, 1),
        (9_990_000_000, 1),
        (14_000_000_000, 2),
        (20_900_000_000, 3),
        (39_000_000_000, 3),
    ],
)
def test_a_size_class_doubles(parameters: int, there: int) -> None:
    assert size_class(parameters) == there


def test_gpus_without_kernels_for_a_quantization_are_not_given_it() -> None:
    """An A100 computes no FP8; an H100 does."""
    for host, there in (("server2022-a100-mig", False), ("server2025-2xh100", True)):
        found = {each.entry.quantization for each in offered(host)}
        assert (Quantization.FP8 in found, Quantization.AWQ in found) == (there, True)
    everything = find_candidates(facts_of("server2022-a100-mig"), entries=ENTRIES, everything=True)
    assert len(everything) == len(ENTRIES)
    assert "fp8 needs compute capability 8.9" in {each.lacks for each in everything}


def test_what_does_not_fit_follows_with_its_reason() -> None:
    found = find_candidates(facts_of("win11-pro-1gpu"), entries=ENTRIES, everything=True)
    possible = [each.possible for each in found]
    assert possible == sorted(possible, reverse=True)
    last = next(each for each in found if each.entry.id == "MiniMaxAI/MiniMax-M2.5")
    assert (last.verdict, last.because, last.lacks) == (Verdict.UNSUPPORTED, ("gpu-memory.does-not-fit",), "memory")


def test_a_path_that_is_asked_for_is_the_only_one() -> None:
    found = find_candidates(facts_of("win11-pro-1gpu"), "wsl2/nat", entries=ENTRIES)
    assert {each.variant for each in found} == {"wsl2/nat"}
    assert find_candidates(facts_of("win11-pro-1gpu"), "dda", entries=ENTRIES) == []


def test_a_large_model_takes_as_few_gpus_as_have_room() -> None:
    entry = next(each for each in ENTRIES if each.id == "Qwen/Qwen2.5-72B-Instruct")
    one = ServingVariant(
        HostFacts(facts_of("server2025-4xh200")),
        serving_variant("server2025-4xh200").variant,
        serving_variant("server2025-4xh200").memory,
    )
    assert one.candidate(entry).gpus == 2
    assert one.candidate(next(each for each in ENTRIES if each.id == "Qwen/Qwen3-8B")).gpus == 1


@each_row("host", ["win11-pro-1gpu", "server2025-2x4090"])
def test_the_workload_file_of_a_candidate_is_that_workload(host: str, tmp_path: Path) -> None:
    best = offered(host)[0]
    file = tmp_path / "workload.yaml"
    file.write_text(best.workload_text("b" * 40), encoding="utf-8")
    read = load_workload(file)
    assert yaml.safe_load(best.workload_text("b" * 40)) == best.workload_document("b" * 40)
    planned = replace(best.workload.models[0], revision="b" * 40)
    assert read.models[0] == (replace(planned, parameters=None) if planned.weights else planned)
    assert read.needs == best.workload.needs


def test_a_download_is_of_all_files_once_they_are_known() -> None:
    best = offered("win11-pro-1gpu")[0]
    assert best.download == weight_bytes(best.entry)
    assert replace(best, entry=replace(best.entry, download=5)).download == 5


def test_sequences_are_four_or_one() -> None:
    assert {each.sequences for host in CHOICES for each in offered(host)} <= {1, SEQUENCES}
    assert all(workload_of(each.model) == each.workload for each in offered("laptop-hybrid"))
