"""winhost does not contradict itself: over the hosts that we ship, the example workloads and versions of vLLM.

What one part recommends, another must not condemn: commands and lint, remedies and rules, plans and verdicts, windows
and what a simulated guest does with them.
"""

from dataclasses import replace
from functools import cache
from itertools import permutations, product

import pytest
from packaging.version import Version

from tests.compat.test_remedies import JUDGED
from tests.engine.test_default_plans import HOSTS, error_of, host, plan
from tests.serving.situations import ROOT
from winhost.compat import remedy
from winhost.compat.assess import assess
from winhost.compat.stated import Stated, versions_after
from winhost.compat.target import Target
from winhost.core.answers import MissingFact
from winhost.engine.planning import PLANNERS
from winhost.hardware.bars import BarSource, MmioRefused, gpu_bars
from winhost.hardware.host_gpus import catalogue_entry
from winhost.hardware.mmio import mmio_windows
from winhost.hardware.processors import address_width
from winhost.knowledge import catalogue
from winhost.knowledge.versions import known_range
from winhost.lab.physics.virtual_machine import GuestBars, allocate_bars, window_end
from winhost.model.errors import WinhostError
from winhost.model.path import path_of
from winhost.model.reason import Finding, Verdict
from winhost.model.workload import Workload
from winhost.model.workloadfile import load_workload
from winhost.recipes.lint_recipe import lint_recipe
from winhost.recipes.recipe_case import RecipeTarget
from winhost.resources.host import HostFacts, Selection
from winhost.serving.choice import serving
from winhost.serving.containers import command

EXAMPLES = sorted(path.stem for path in (ROOT / "examples/workloads").glob("*.yaml"))
OF_VLLM = ("0.16.0", "0.24.0", "0.28.0", "0.33.0")
KNOWN = {"vllm": "vLLM", "wsl": "WSL"}  # as the table of versions names them
MENDED_BY_PLAN = {"wsl2.version-not-told", "wsl2.older-than-known"}  # it installs WSL
BY_EXAMPLE = {f"{name}, {example}": (name, example) for name, example in product(HOSTS, EXAMPLES)}


@cache
def example_of(name: str) -> Workload:
    return load_workload(ROOT / f"examples/workloads/{name}.yaml")


# --- Commands and lint ---------------------------------------------------------------------------------------------


@pytest.mark.costly
@pytest.mark.parametrize("case", BY_EXAMPLE.values(), ids=BY_EXAMPLE)
def test_no_command_that_is_recommended_is_found_wrong(case: tuple[str, str]) -> None:
    name, example = case
    for version in OF_VLLM:
        stated = {**example_of(example).versions, "vllm": Version(version)}
        assert condemned(host(name), replace(example_of(example), versions=stated)) == [], version


def condemned(facts: HostFacts, workload: Workload) -> list[str]:
    """What lint finds in the commands for the workload on this host, but for notes."""
    try:
        found = serving(facts, workload)
    except WinhostError:
        return []  # no profile serves it here, and why is told
    path = path_of(found.variant)
    on = RecipeTarget(path, Version(found.vllm) if found.vllm else None, Target(facts, path, workload.versions))
    linted = [
        lint_recipe(" ".join(command(served.model, served.spec, found.vllm)).encode(), on) for served in found.models
    ]
    return [f"{each.code}: {each.sentence}" for one in linted for each in one.findings if each.severity != "note"]


# --- Remedies and rules --------------------------------------------------------------------------------------------


@pytest.mark.costly
@pytest.mark.parametrize("name", HOSTS)
def test_no_remedy_leads_where_nothing_helps(name: str) -> None:
    """What stands in the way after a remedy, and did not before, has a remedy of its own, and not the one just done."""
    facts, stated = host(name), dict[str, Version]()
    before = blocking(facts, stated)
    offered = {remedy_id(reason) for _, reason in said(facts, stated)} & JUDGED.keys()
    for key in sorted(filter(None, offered)):
        mend = JUDGED[key]
        now = blocking(HostFacts(remedy.apply_remedies(facts.document, [mend])), versions_after(stated, [mend]))
        for (variant, code), reason in now.items():
            if (variant, code) not in before and variant in {
                each for each, of in said(facts, stated) if remedy_id(of) == key
            }:
                assert remedy_id(reason), (key, variant, code, reason.observed)
                assert remedy_id(reason) != key, (key, variant, code)


def remedy_id(reason: Finding) -> str | None:
    return reason.remedy.id if reason.remedy else None


def said(facts: HostFacts, stated: Stated) -> list[tuple[str, Finding]]:
    every = assess(facts, stated=stated).every_variant
    return [(each.path, reason) for each in every for reason in each.every_reason]


def blocking(facts: HostFacts, stated: Stated) -> dict[tuple[str, str], Finding]:
    """What makes a variant impossible, by variant and code."""
    every = assess(facts, stated=stated).every_variant
    return {
        (each.path, reason.code): reason
        for each in every
        for reason in each.every_reason
        if reason.severity.rank == Verdict.UNSUPPORTED.rank and reason.code in each.because
    }


# --- Plans and verdicts --------------------------------------------------------------------------------------------


@pytest.mark.costly
@pytest.mark.parametrize("name", HOSTS)
def test_a_plan_repeats_what_makes_its_path_less_than_supported(name: str) -> None:
    facts = host(name)
    for verdict in assess(facts).paths:
        if verdict.path not in PLANNERS or error_of(facts, verdict.path):
            continue
        made = plan(facts, verdict.path)
        (taken,) = [each for each in assess(facts).every_variant if each.path == made.variant] or [verdict]
        told = " ".join(made.notes) + " ".join(each.title + each.until for each in made.stages[0].deferred)
        of_host = [reason.code for reason in taken.reasons if reason.code in taken.because]
        of_host = [code for code in of_host if code not in MENDED_BY_PLAN]
        assert [code for code in of_host if code not in told] == [], made.notes


# --- Windows, catalogue, and the guest -----------------------------------------------------------------------------


@pytest.mark.costly
@pytest.mark.parametrize("name", HOSTS)
def test_a_simulated_guest_fits_its_gpus_into_the_windows_that_we_choose(name: str) -> None:
    facts = host(name)
    try:
        gpus = facts.gpus
        chosen = mmio_windows(facts, Selection(tuple(gpus)))
        width = address_width(facts)
    except (MissingFact, MmioRefused):
        return
    known = [gpu_bars(gpu) for gpu in gpus]
    seen = [GuestBars(each.bars64, each.bars32) for each in known]
    for order in list(permutations(seen))[:720]:
        assert all(allocate_bars(order, chosen.low.size, chosen.high.size))
    if width is not None:
        assert window_end(chosen.high.size) <= 2**width


@pytest.mark.costly
@pytest.mark.parametrize("name", HOSTS)
def test_what_a_host_shows_of_a_gpu_agrees_with_the_catalogue(name: str) -> None:
    """A surveyed BAR is never larger than what the catalogue says is the largest."""
    try:
        gpus = host(name).gpus
    except MissingFact:
        return
    for gpu in gpus:
        model, seen = catalogue_entry(gpu), gpu_bars(gpu)
        if model and model.bars and seen.source is BarSource.SURVEYED:
            assert seen.aperture <= max(model.bars.wide), gpu


@pytest.mark.parametrize("key", [key for key, mend in catalogue.remedies().items() if mend.stated])
def test_no_remedy_leads_to_a_version_that_nobody_knows(key: str) -> None:
    for what, version in catalogue.remedies()[key].stated.items():
        if what in KNOWN:
            least, most = known_range(KNOWN[what])
            assert least <= Version(version) <= most
