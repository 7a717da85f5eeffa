"""A recipe linted, and mended as far as that can be done by itself."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from winhost.recipes import (
    rules_of_containers,
    rules_of_exposure,
    rules_of_machines,
    rules_of_options,
    rules_of_pods_and_units,
)
from winhost.recipes.lint_cdi import cdi_findings
from winhost.recipes.lint_docker_daemon import daemon_findings
from winhost.recipes.read_recipe import read_recipe
from winhost.recipes.recipe_case import RecipeCase, RecipeTarget
from winhost.recipes.recipe_findings import Found, RecipeFinding, told
from winhost.recipes.recipe_model import Recipe
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

    form: str | None
    versions: tuple[str | None, ...]
    findings: tuple[RecipeFinding, ...]
    mended: bytes
    secrets: tuple[str, ...] = ()


def lint_recipe(data: bytes, target: RecipeTarget, *, mend: bool = False) -> LintedRecipe:
    """All findings, by line and column. mend: with the recipe in `mended` as --fix writes it, else as it was."""
    source = SourceFile.of(data)
    recipe = read_recipe(source)
    if recipe is None:
        return LintedRecipe(None, (), (), data)
    secrets = tuple(secret for engine in recipe.engines for secret in secrets_of(engine))
    cases = [RecipeCase(engine, recipe, target, source) for engine in recipe.engines]
    return LintedRecipe(
        form=recipe.form,
        versions=tuple(str(case.version) if case.version else None for case in cases),
        findings=_told(source, list(_found(recipe, source, target)), PREFIX, secrets),
        mended=_mended(data, partial(_in_recipe, target=target)) if mend else data,
        secrets=secrets,
    )


def lint_docker_daemon(data: bytes, target: RecipeTarget, *, mend: bool = False) -> LintedRecipe:
    """The same of a daemon.json."""

    def found(source: SourceFile) -> list[tuple[str, Found]]:
        return [("", each) for each in daemon_findings(source, target.path)]

    source = SourceFile.of(data, mark=True)
    mended = _mended(data, found, mark=True) if mend else data
    return LintedRecipe("daemon.json", (), _told(source, found(source), "docker-daemon", ()), mended)


def lint_cdi(data: bytes, target: RecipeTarget) -> LintedRecipe:
    """The same of a specification of CDI, which is never mended but written anew."""
    source = SourceFile.of(data)
    found = [("", each) for each in cdi_findings(source, target)]
    return LintedRecipe("cdi", (), _told(source, found, "cdi", ()), data)


def _in_recipe(source: SourceFile, target: RecipeTarget) -> list[tuple[str, Found]]:
    recipe = read_recipe(source)
    return list(_found(recipe, source, target)) if recipe else []


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


def _told(
    source: SourceFile, found: list[tuple[str, Found]], prefix: str, secrets: Sequence[str]
) -> tuple[RecipeFinding, ...]:
    every = [told(each, prefix, where, source.position(each.place), secrets) for where, each in found]
    return tuple(sorted(every, key=lambda each: (each.line, each.column, each.code)))


def _mended(data: bytes, find: Callable[[SourceFile], list[tuple[str, Found]]], *, mark: bool = False) -> bytes:
    for _ in range(ROUNDS):
        source = SourceFile.of(data, mark=mark)
        new = source.edited(apart([each.edits for _, each in find(source) if each.edits]))
        if new == data:
            return data
        data = new
    return data
