"""A recipe linted, and mended as far as that can be done by itself."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from winhost.recipes import (
    rules_of_containers,
    rules_of_exposure,
    rules_of_machines,
    rules_of_options,
    rules_of_pods_and_units,
)
from winhost.recipes.read_recipe import read_recipe
from winhost.recipes.recipe_case import RecipeCase, RecipeTarget
from winhost.recipes.recipe_findings import Found, RecipeFinding, told
from winhost.recipes.recipe_model import Form, Recipe
from winhost.recipes.recipe_rows import by_rows
from winhost.recipes.recipe_text import SourceFile, apart
from winhost.recipes.rules_of_exposure import secrets_of

RULES = (
    *(*rules_of_options.RULES, *rules_of_containers.RULES, *rules_of_exposure.RULES),
    *(*rules_of_pods_and_units.RULES, *rules_of_machines.RULES, by_rows),
)
PREFIX = "serve"
ROUNDS = 6  # a mend can make room for another


@dataclass(frozen=True)
class LintedRecipe:
    """form: how the recipe is written; None where it is none. versions: of vLLM, engine by engine, as far as known."""

    form: Form | None
    engines: int
    versions: tuple[str | None, ...]
    findings: tuple[RecipeFinding, ...]
    mended: bytes
    secrets: bool


def lint_recipe(data: bytes, target: RecipeTarget, *, mend: bool = False) -> LintedRecipe:
    """All findings, by line and column. mend: with the recipe in `mended` as --fix writes it, else as it was."""
    source = SourceFile.of(data)
    recipe = read_recipe(source)
    if recipe is None:
        return LintedRecipe(None, 0, (), (), data, False)
    found = list(_found(recipe, source, target))
    cases = [RecipeCase(engine, recipe, target, source) for engine in recipe.engines]
    return LintedRecipe(
        form=recipe.form,
        engines=len(recipe.engines),
        versions=tuple(str(case.version) if case.version else None for case in cases),
        findings=tuple(_told(recipe, source, found)),
        mended=_mended(data, target) if mend else data,
        secrets=any(secrets_of(engine) for engine in recipe.engines),
    )


def _found(recipe: Recipe, source: SourceFile, target: RecipeTarget) -> Iterator[tuple[str, Found]]:
    """With the engine that it is about; what several engines share is told once, and what is in doubt is not mended."""
    seen: set[tuple[str, int]] = set()
    for problem, place in recipe.unread:
        yield "", Found("unreadable", place, {"problem": problem})
    for engine in recipe.engines:
        case = RecipeCase(engine, recipe, target, source)
        for rule in RULES:
            for each in rule(case):
                if (each.code, each.place) not in seen:
                    seen.add((each.code, each.place))
                    yield engine.where, replace(each, edits=()) if each.doubt else each


def _told(recipe: Recipe, source: SourceFile, found: list[tuple[str, Found]]) -> list[RecipeFinding]:
    secrets = [secret for engine in recipe.engines for secret in secrets_of(engine)]
    every = [told(each, PREFIX, where, source.position(each.place), secrets) for where, each in found]
    return sorted(every, key=lambda each: (each.line, each.column, each.code))


def _mended(data: bytes, target: RecipeTarget) -> bytes:
    for _ in range(ROUNDS):
        source = SourceFile.of(data)
        recipe = read_recipe(source)
        if recipe is None:
            return data
        edits, _fits = apart(each.edits for _, each in _found(recipe, source, target) if each.edits)
        new = source.edited(edits)
        if new == data:
            return data
        data = new
    return data
