"""What is found in recipes as people publish them, and what is written instead: tests/data/recipes."""

from typing import Any

import pytest
from packaging.version import Version

from tests.cases import read_cases
from tests.serving.situations import ROOT, shipped
from winhost.compat.target import Target
from winhost.recipes.lint_recipe import LintedRecipe, lint_cdi, lint_docker_daemon, lint_recipe
from winhost.recipes.recipe_case import RecipeTarget

FOLDER = ROOT / "tests/data/recipes"
KEYS = {"text", "path", "vllm", "host", "finds", "notes", "mended", "hides"}
CASES: dict[str, Any] = {
    f"{file.stem}: {name}": case for file in sorted(FOLDER.glob("*.yaml")) for name, case in read_cases(file).items()
}


def target_of(case: dict[str, Any]) -> RecipeTarget:
    stated = Version(str(case["vllm"])) if "vllm" in case else None
    path = case.get("path")
    on = Target(shipped(case["host"]), path or "wsl2") if "host" in case else None
    return RecipeTarget(path, stated, on)


def linted(name: str, data: bytes, target: RecipeTarget) -> LintedRecipe:
    if name.startswith("daemon:"):
        return lint_docker_daemon(data, target, mend=True)
    return lint_cdi(data, target) if name.startswith("cdi:") else lint_recipe(data, target, mend=True)


@pytest.mark.parametrize("name", CASES)
def test_a_recipe(name: str) -> None:
    case = CASES[name]
    assert case.keys() <= KEYS
    found = linted(name, case["text"].encode(), target_of(case))
    more = [f"{each.line} {each.code.partition('.')[2]}" for each in found.findings if each.severity != "note"]
    assert more == case["finds"]
    assert {*case.get("notes", ())} <= {each.code for each in found.findings if each.severity == "note"}
    if "mended" in case:
        assert found.mended.decode() == case["mended"]
    if "hides" in case:
        assert case["hides"] not in str(found.findings)


def test_there_are_as_many_as_were_promised() -> None:
    assert sum(not name.startswith(("daemon:", "cdi:")) for name in CASES) >= 60


@pytest.mark.parametrize("name", CASES)
def test_what_is_mended_stays_mended(name: str) -> None:
    """Another round finds nothing that it would change, and nothing new to find."""
    target = target_of(CASES[name])
    first = linted(name, CASES[name]["text"].encode(), target)
    second = linted(name, first.mended, target)
    assert second.mended == first.mended
    assert not [each for each in second.findings if each.fixed]
    assert {each.code for each in second.findings} <= {each.code for each in first.findings}
