"""Configurations that people publish and run: no linter finds a defect in one of them."""

from collections import Counter
from typing import Any

from tests.cases import read_cases
from tests.rows import each_row
from tests.serving.situations import ROOT
from winhost.autoinstall.lint import lint_autoinstall
from winhost.model.reason import Category
from winhost.recipes.lint_recipe import lint_cdi, lint_recipe
from winhost.recipes.recipe_case import RecipeTarget
from winhost.wslconfig.rules import lint as lint_wslconfig

CASES = read_cases(ROOT / "tests/data/working.yaml")


def found(case: dict[str, Any]) -> list[Any]:
    data = case["text"].encode()
    match case["lint"]:
        case "serve":
            linted = lint_recipe(data, RecipeTarget())
            assert linted.form is not None
            return list(linted.findings)
        case "cdi":
            return list(lint_cdi(data, RecipeTarget()).findings)
        case "autoinstall":
            return list(lint_autoinstall(data))
    return list(lint_wslconfig(data))


@each_row("name", CASES)
def test_no_defect_is_found_in_what_works(name: str) -> None:
    defects = [each for each in found(CASES[name]) if each.severity.category is Category.DEFECT]
    assert [f"{each.line} {each.code}" for each in defects] == CASES[name].get("finds", []), defects


def test_there_are_as_many_of_each_kind_as_were_promised() -> None:
    kinds = Counter(case["lint"] for case in CASES.values() if "from" in case)
    assert sum(kinds.values()) >= 40
    assert min(kinds[each] for each in ("serve", "autoinstall", "wslconfig")) >= 5
