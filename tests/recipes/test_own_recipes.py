"""Recipes that winhost writes have no findings of its own lint, on the target that they were written for."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from tests.cases import read_cases
from tests.cluster import clusters
from tests.serving.situations import ROOT, host_of, linux, workload_of
from tests.serving.stacks import IMAGE
from tests.serving.test_compose_project import asked, made
from winhost.cluster.rendering import stream
from winhost.compat.target import Target
from winhost.model.errors import WinhostError
from winhost.model.path import path_of
from winhost.model.workload import Workload
from winhost.recipes.lint_recipe import LintedRecipe, lint_recipe
from winhost.recipes.recipe_case import RecipeTarget
from winhost.resources.host import HostFacts
from winhost.serving.choice import Serving, serving
from winhost.serving.containers import command
from winhost.serving.engine_files import ServedEngine

CASES: dict[str, Any] = read_cases(ROOT / "tests/data/profiles/cases.yaml")


def more_than_notes(linted: LintedRecipe) -> list[str]:
    assert linted.versions, "no engine was found"
    return [f"{each.code}: {each.sentence}" for each in linted.findings if each.severity != "note"]


def target_of(facts: HostFacts, workload: Workload, found: Serving) -> RecipeTarget:
    path = path_of(found.variant)
    return RecipeTarget(path, Version(found.vllm) if found.vllm else None, Target(facts, path, workload.versions))


def texts(found: Serving) -> Iterator[str]:
    """Each model in every form in which winhost starts it."""
    for served in found.models:
        yield " ".join(command(served.model, served.spec, found.vllm))
        for by in ("docker", "podman", "compose", "/opt/vllm/bin/vllm"):
            engine = ServedEngine(served, by, None if by.startswith("/") else IMAGE.pinned)
            yield engine.unit if by != "compose" else engine.files["compose.yaml"]


@pytest.mark.costly
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_profile_is_clean(case: dict[str, Any], tmp_path: Path) -> None:
    facts, workload = host_of(case, tmp_path), workload_of(case, tmp_path)
    try:
        found = serving(facts, workload, case.get("named"), path=case.get("path"))
    except WinhostError:
        return  # no profile serves it
    for text in texts(found):
        assert more_than_notes(lint_recipe(text.encode(), target_of(facts, workload, found))) == [], text


def test_a_compose_project_is_clean() -> None:
    facts = linux("ubuntu-2xh100")
    text = made(asked("chat", "coder"), facts).text
    assert more_than_notes(lint_recipe(text.encode(), RecipeTarget("linux", None, Target(facts, "linux")))) == []


@pytest.mark.costly
@pytest.mark.parametrize("on", ["metal", "wsl"])
def test_manifests_are_clean(on: str) -> None:
    text = stream(clusters.made(on=on))
    assert more_than_notes(lint_recipe(text.encode(), RecipeTarget("wsl2" if on == "wsl" else "linux"))) == []
