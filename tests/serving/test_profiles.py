"""What holds of every line of every profile, and for every workload."""

import re
from dataclasses import replace
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from tests.errors import suppressed
from tests.rows import each_row
from tests.serving.situations import EIGHT_GPUS, ONE_GPU, TWO_GPUS, linux, model, shipped, workload
from winhost.compat.capabilities.nccl import NO_CUSTOM_ALL_REDUCE, WINDOWS_DRIVER_ENV
from winhost.compat.swap import START_SECONDS
from winhost.engine.plan_wsl2 import Wsl2Planner
from winhost.findings.condition import find_mistake, matches
from winhost.knowledge import catalogue
from winhost.model.path import AvailableMemory
from winhost.model.plan import PlanRequest
from winhost.model.reason import Severity
from winhost.model.shipped import shipped as folder
from winhost.model.units import GiB, MiB
from winhost.model.workload import (
    Availability,
    Body,
    KvMirror,
    Lora,
    Mirror,
    Model,
    ModelState,
    Needs,
    Parallel,
    Quantization,
    Workload,
)
from winhost.paths.playbook import parse_request, read_playbook
from winhost.serving import profile_lines
from winhost.serving.choice import Served, serving
from winhost.serving.computed import COMPUTED, shared_memory
from winhost.serving.engine_names import slug
from winhost.serving.profile import BASES, NAMES, profile, profile_without_sleep
from winhost.serving.profile_lines import ProfileLine
from winhost.serving.vllm_options import changed_default, knows, seen_versions
from winhost.serving.when import VALUES
from winhost.sizing.budget import budget
from winhost.sizing.engines import engine

PLAIN, NO_SLEEP = "wsl2", "wsl2-no-sleep"
ROWS = [(name, row) for name in NAMES for row in profile(name).rows]
CAUSES = [cause for base in BASES for cause in profile(profile_without_sleep(base)).chosen]
REFERENCES = {row.value for _, row in ROWS if "$" in str(row.value)}

# --- The data --------------------------------------------------------------------------------------------------------


@each_row(("name", "row"), ROWS, ids=lambda value: getattr(value, "name", value))
def test_a_line_has_its_reason_and_evidence(name: str, row: Any) -> None:
    assert row.why.endswith(".")
    assert row.evidence
    assert set(row.evidence) <= catalogue.evidence().keys()
    assert set(row.must_know) <= row.when.keys()


@each_row("written", [*(row for _, row in ROWS), *CAUSES], ids=lambda written: written.why)
def test_a_condition_asks_for_what_there_is(written: Any) -> None:
    assert find_mistake(written.when, VALUES.__contains__) is None


def test_a_cause_has_its_reason_and_evidence_and_is_of_a_model_that_sleeps() -> None:
    for cause in CAUSES:
        assert cause.why.endswith(".")
        assert set(cause.evidence) <= catalogue.evidence().keys()
        assert cause.when["sleeps"] is True


def test_all_that_is_computed_or_asked_is_used() -> None:
    assert {f"${{{name}}}" for name in COMPUTED} == REFERENCES
    asked = {name for written in (*(row for _, row in ROWS), *CAUSES) for name in written.when}
    assert VALUES.keys() - asked == {"cuda", "driver"}  # for lines to come, as docs/profiles.md tells


@pytest.mark.parametrize("base", BASES)
def test_the_fallback_says_only_what_it_changes(base: str) -> None:
    plain, fallback = profile(base).rows, profile(profile_without_sleep(base)).rows
    gone = [row for row in plain if row not in fallback]
    assert {row.name for row in gone} >= {"--enable-sleep-mode", "VLLM_SERVER_DEV_MODE"}
    assert all(row.when == {"sleeps": True} for row in gone)
    assert all("sleeps" in row.when for row in fallback if row not in plain)


# --- Options ---------------------------------------------------------------------------------------------------------

VLLM_S_OWN = [(name, row) for name, row in ROWS if row.kind == "engine" or row.name.startswith("VLLM_")]


@each_row(("name", "row"), VLLM_S_OWN, ids=lambda value: getattr(value, "name", value))
def test_every_version_that_a_line_is_for_knows_its_word(name: str, row: Any) -> None:
    """Of those that were asked; one that it does not know ends vLLM at its start."""
    wanted = row.when.get("vllm", ">=0")
    claimed = [v for v in seen_versions() if matches(v, wanted)]
    assert claimed
    assert [v for v in claimed if not knows(row.kind, row.name, v)] == []


def test_the_options_tell_versions_apart() -> None:
    having = [v for v in seen_versions() if knows("engine", "--shutdown-timeout", v)]
    assert having == list(seen_versions())[3:]
    assert not any(knows("engine", "--no-such-option", v) for v in seen_versions())


def test_what_no_parser_was_asked_of_is_not_guessed() -> None:
    assert knows("engine", "--shutdown-timeout", Version("0.18.0")) is None  # 0.17.0 has it not, 0.18.1 has it
    assert knows("engine", "--uds", Version("0.10.0")) is None
    assert knows("engine", "--uds", Version("0.25.0")) is True
    assert knows("engine", "--uds", Version("0.40.0")) is True


@pytest.mark.parametrize(
    ("version", "says"),
    [
        ("0.19.0", "vLLM's own default here is 0.9, 0.92 from 0.20.0 on"),
        ("0.33.0", "vLLM's own default here is 0.92 since 0.20.0, 0.9 before"),
    ],
)
def test_a_default_that_changed_is_told(version: str, says: str) -> None:
    assert changed_default("--gpu-memory-utilization", Version(version)) == says
    (line,) = [
        each for each in _first(workload(model(), vllm=version)).lines if each.name == "--gpu-memory-utilization"
    ]
    assert line.default == says
    assert changed_default("--uds", Version(version)) is None


@pytest.mark.costly
@pytest.mark.parametrize("version", [str(version) for version in seen_versions()])
@pytest.mark.parametrize("state", ModelState)
@pytest.mark.parametrize("host", [TWO_GPUS, "server2025-4xh200", "ubuntu-2xh100"])
def test_nothing_is_passed_that_a_version_does_not_know(host: str, state: ModelState, version: str) -> None:
    wanted = workload(model(parallel=Parallel(2), state=state, lora=Lora(2, 100 * MiB)), vllm=version)
    served = serving(shipped(host) if host != "ubuntu-2xh100" else linux(host), wanted).models[0]
    own = [line for line in served.lines if line.kind == "engine" or line.name.startswith("VLLM_")]
    assert len(own) > 5
    assert [line.name for line in own if not knows(line.kind, line.name, Version(version))] == []  # type: ignore[arg-type]


def test_the_severity_of_a_line_says_whether_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = workload(model(parallel=Parallel(2)), vllm=None)
    untold, told = _first(wanted), _first(workload(model(parallel=Parallel(2))))
    of = {line.name: (line.reason.severity, line.is_omitted) for line in (*untold.lines, *untold.left_out)}
    assert of["NCCL_P2P_DISABLE"] == (Severity.NOTE, False)
    assert of["VLLM_ALLREDUCE_USE_FLASHINFER"] == (Severity.UNVERIFIED, False)
    assert of["--shutdown-timeout"] == (Severity.DEGRADED, True)
    assert {line.reason.severity for line in told.lines} == {Severity.NOTE}
    monkeypatch.setattr(profile_lines, "knows", lambda kind, name, _: name != "--uds")
    (line,) = _first(workload(model())).left_out
    assert (line.name, line.reason.severity) == ("--uds", Severity.UNSUPPORTED)
    assert line.doubt == "this version of vLLM does not know it"


# --- Versions --------------------------------------------------------------------------------------------------------

VERSIONS = (*(f"0.{minor}.0" for minor in range(10, 40)), "0.30.0rc1")
SITUATIONS = {
    "resident": [model()],
    "sleeping": [model(state=ModelState.SLEEPING)],
    "over two GPUs": [model(parallel=Parallel(2))],
    "adapters": [model(lora=Lora(2, 100 * MiB))],
}


@pytest.mark.costly
@pytest.mark.parametrize("must", [(), ("pinned-memory",)], ids=["", "pinned"])
@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("name", [PLAIN, NO_SLEEP])
def test_a_newer_version_brings_no_line_back(name: str, situation: str, must: tuple[str, ...]) -> None:
    if situation == "sleeping" and must:
        name = NO_SLEEP  # what must have pinned memory does not sleep in WSL
    rounds = []
    for version in sorted(VERSIONS, key=Version):
        wanted = workload(*SITUATIONS[situation], vllm=version, needs=Needs(must))
        with suppressed("UnsafeSleep", "NoProfile"):  # before 0.17 sleep, and before 0.24 pinned memory
            rounds.append({(line.name, line.value) for line in _first(wanted, name).lines})
    assert len(rounds) > 10
    for line in set().union(*rounds):
        there = [here for here, _ in groupby(line in present for present in rounds)]
        assert there.count(True) == 1, line


def _first(wanted: Workload, name: str | None = None) -> Served:
    return serving(shipped(TWO_GPUS), wanted, name).models[0]


@pytest.mark.parametrize("name", NAMES)
def test_an_engine_fetches_media_from_hosts_that_the_workload_names_alone(name: str) -> None:
    state = ModelState.RESIDENT if name in map(profile_without_sleep, BASES) else ModelState.SLEEPING
    named = Body(media=("images.example.org", "media.example.org:9000"))
    for body, words in (
        (Body(), ("--allowed-media-domains=media.invalid",)),
        (named, ("--allowed-media-domains", "images.example.org", "media.example.org")),
    ):
        host = shipped("server2025-4xh200" if name.startswith("dda") else TWO_GPUS)
        lines = serving(host, workload(model(body=body, state=state)), name).models[0].lines
        assert [line.arguments for line in lines if line.name == "--allowed-media-domains"] == [words]
        assert [line.text for line in lines if "REDIRECT" in line.name] == ["VLLM_MEDIA_URL_ALLOW_REDIRECTS=0"]


def test_between_gpus_the_profile_sets_what_assess_names() -> None:
    lines = {line.name: line.value for line in _first(workload(model(parallel=Parallel(2)))).lines}
    assert WINDOWS_DRIVER_ENV.items() <= lines.items()
    assert NO_CUSTOM_ALL_REDUCE in lines


# --- Sizes -----------------------------------------------------------------------------------------------------------


def shm_of(each: Model, staging: int = 0) -> int:
    mirror = KvMirror(Mirror.TIERS, staging) if staging else None
    taken = budget(
        workload(each, kv_mirror=mirror), AvailableMemory("wsl2/nat", tuple(EIGHT_GPUS), 256 * GiB, 512 * GiB)
    )
    return shared_memory(each, taken)[0]


@given(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]), st.integers(0, 200), st.integers(0, 200))
def test_shm_grows_with_gpus_and_tiers_and_never_shrinks(tensor: int, data: int, tier: int, more: int) -> None:
    small = shm_of(model(parallel=Parallel(tensor, data=data)), tier * GiB)
    assert small >= max(8 * GiB, tier * GiB)
    assert small % (8 * GiB) == 0
    assert shm_of(model(parallel=Parallel(tensor, data=data)), (tier + more) * GiB) >= small
    assert shm_of(model(parallel=Parallel(2 * tensor, data=data)), tier * GiB) >= small
    assert shm_of(model(parallel=Parallel(tensor, data=2 * data)), tier * GiB) >= small


def test_shm_shows_its_arithmetic() -> None:
    (line,) = [line for line in _first(workload(model(parallel=Parallel(2)))).lines if line.name == "shm"]
    assert (line.value, line.text) == (16 * GiB, "--shm-size=16g")
    assert [
        part
        for part in ("0.65 GiB message queues", "0.50 GiB NCCL", "8.00 GiB margin", "= 9.15 GiB")
        if part not in str(line.how)
    ] == []


memory = st.integers(2 * GiB, 12 * GiB)
residents = st.lists(memory, max_size=3)


@pytest.mark.costly
@given(residents, residents)
def test_shares_of_a_gpu_leave_room_for_all_of_them(resident: list[int], asleep: list[int]) -> None:
    models = [model(f"r{i}", memory=size) for i, size in enumerate(resident)]
    models += [model(f"s{i}", memory=size, state=ModelState.SLEEPING) for i, size in enumerate(asleep)]
    served: tuple[Served, ...] = ()
    with suppressed("NoProfile"):
        served = serving(shipped(ONE_GPU), workload(*models)).models if models else ()
    if not served:
        return
    if any(line.reason.lacks for one in served for line in one.lines if line.name == "--gpu-memory-utilization"):
        return  # only the lower ends fit
    vram = 24564 * MiB
    stopped = {one.model for one in served if one.profile == NO_SLEEP}
    rested = [replace(each, chosen_level=0) if each.name in stopped else each for each in models]
    outside = {each.name: sum(part.bytes for part in engine(each).outside) for each in rested}
    share = {one.model: float(_value(one, "--gpu-memory-utilization")) * vram * 0.98 for one in served}
    taken = {name: size + outside[name] for name, size in share.items()}
    stays = {each.name: 0 if each.name in stopped else outside[each.name] for each in models if each.sleeps}
    awake = max((taken[name] - size for name, size in stays.items()), default=0)
    assert sum(taken[each.name] for each in models if not each.sleeps) + sum(stays.values()) + awake <= 0.94 * vram + 1
    assert all(taken[each.name] >= (each.memory or 0) - vram / 1000 for each in models)


def _value(served: Served, name: str) -> str:
    (value,) = [line.value for line in served.lines if line.name == name]
    assert isinstance(value, str)
    return value


# --- Whatever the workload -------------------------------------------------------------------------------------------

models = st.builds(
    model,
    state=st.sampled_from(ModelState),
    chosen_level=st.sampled_from([1, 2]),
    parallel=st.builds(Parallel, st.sampled_from([1, 2])),
    quantization=st.sampled_from([None, Quantization.FP8]),
    weights=st.just(2 * GiB),
    lora=st.sampled_from([None, Lora(2, 100 * MiB)]),
)
vllm = st.sampled_from([None, "0.16.0", "0.23.0", "0.29.0", "0.33.0", "0.40.0"])


@given(models, vllm, st.sampled_from([None, NO_SLEEP]))
def test_an_engine_has_no_port_and_no_network(each: Model, version: str | None, name: str | None) -> None:
    served = _first(workload(each, vllm=version), name)
    assert (_value(served, "--uds"), _value(served, "network")) == (served.socket, "none")
    assert {line.name for line in served.lines}.isdisjoint({"--host", "--port", "--publish"})
    names = {line.name for line in served.lines}
    assert (
        ("VLLM_SERVER_DEV_MODE" in names)
        == ("--enable-sleep-mode" in names)
        == (each.sleeps and served.profile == PLAIN)
    )


@given(models, vllm)
def test_each_setting_is_there_once_and_a_cause_chose_the_fallback(each: Model, version: str | None) -> None:
    served = _first(workload(each, vllm=version))
    settings_of = [(line.name, line.value) for line in served.lines if line.kind != "note"]
    assert len(settings_of) == len(set(settings_of))
    assert len({line.name for line in served.lines if line.kind in ("env", "engine")}) == sum(
        line.kind in ("env", "engine") for line in served.lines
    )
    assert (served.profile == NO_SLEEP) == bool(served.because)
    assert all("$" not in line.text for line in served.lines)


@pytest.mark.costly
@given(st.lists(st.from_regex(r"[a-z][a-z0-9._-]{0,20}", fullmatch=True), min_size=3, max_size=3, unique=True))
def test_renaming_models_changes_nothing(names: list[str]) -> None:
    def lines(*called: str) -> list[Any]:
        sizes, states = (9 * GiB, 7 * GiB, 5 * GiB), (ModelState.RESIDENT, ModelState.SLEEPING, ModelState.SLEEPING)
        made = [
            model(n, id="m", memory=size, state=state) for n, size, state in zip(called, sizes, states, strict=True)
        ]
        served = serving(shipped(TWO_GPUS), workload(*made)).models
        return [
            (
                *(one.profile, one.gpus, [cause.code for cause in one.because], one.lost),
                *((line.name, _plain(line, one), line.reason.lacks) for line in one.lines),
            )
            for one in served
        ]

    assert lines(*names) == lines("a", "b", "c")


def _plain(line: ProfileLine, served: Served) -> str:
    """Without the name that places are called by."""
    return re.sub(rf"/{slug(served.model)}(?=[:/]|$)", "/NAME", line.text)


# --- What is lost ----------------------------------------------------------------------------------------------------


def test_what_is_lost_is_computed_from_weights_and_speed() -> None:
    asleep = model(weights=24 * 10**9, state=ModelState.SLEEPING)
    found = serving(shipped(TWO_GPUS), workload(asleep, availability=Availability(swap_within=60)), NO_SLEEP, 1200)
    lost = found.models[0].lost
    assert lost is not None
    assert lost.reading == pytest.approx(20)  # 24 GB at 1.2 GB/s
    assert lost.waking is not None
    assert lost.waking[0] == pytest.approx(24 / (14.29 * GiB / 1e9 / 2.59))  # from pageable memory, as it was measured
    assert lost.least == START_SECONDS[0]
    assert lost.kept is True
    assert set(lost.evidence) <= catalogue.evidence().keys()


def test_a_start_takes_no_less_than_reading() -> None:
    asleep = model(weights=24 * 10**9, state=ModelState.SLEEPING)
    found = serving(shipped(TWO_GPUS), workload(asleep, availability=Availability(swap_within=60)), NO_SLEEP, 100)
    lost = found.models[0].lost
    assert lost is not None
    assert (lost.least, lost.kept) == (pytest.approx(240), False)


def test_nothing_is_lost_by_what_was_not_to_sleep() -> None:
    assert _first(workload(model()), NO_SLEEP).lost is None


def test_every_reference_is_well_formed() -> None:
    assert all(re.fullmatch(r"\$\{[a-z.]+\}", reference) for reference in REFERENCES)


def test_the_mode_that_wsl_runs_in_now_is_the_one_that_is_told() -> None:
    found = serving(shipped("win11-wsl-served"), workload(model("chat")))
    assert (found.variant, found.chosen) == ("wsl2/nat", "the networking mode that WSL runs in now")


@pytest.mark.parametrize("host", [ONE_GPU, "win11-home-1gpu", "win11-policy-fixes-nat", "win10-pro-1gpu"])
def test_before_anything_runs_the_mode_is_that_of_a_plan_without_settings(host: str) -> None:
    facts = shipped(host)
    found = serving(facts, workload(model("chat")))
    playbook = read_playbook(folder("playbooks") / "wsl2.yaml").model_dump(by_alias=True, mode="json")
    assert found.variant == Wsl2Planner(facts, parse_request(PlanRequest("wsl2", playbook))).verdict.path
    assert (
        found.chosen
        == "the networking mode that winhost plan takes by itself, as WSL is here now; another: --set network=…"
    )


@pytest.mark.parametrize(
    ("host", "variant", "told"),
    [
        ("win11-home-1gpu", "wsl2/nat", "--set network=nat"),
        (ONE_GPU, "wsl2/bridged", "--set network=bridged --set bridge.switch=NAME"),
    ],
)
def test_a_mode_that_a_plan_does_not_take_by_itself_is_told_with_how_to_plan_it(
    host: str, variant: str, told: str
) -> None:
    found = serving(shipped(host), workload(model("chat"), needs=Needs(("criu",))))
    assert found.variant == variant
    assert found.chosen == f"wsl2/mirrored cannot carry this workload here; winhost plan takes this with {told}"
