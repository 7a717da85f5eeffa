"""Lints a recipe of any form, a daemon.json or a CDI specification, and mends what can be mended automatically."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

from winhost.core.dataclass import dataclass
from winhost.findings.finding import FileFinding, Observation, Position, run_rules, to_findings
from winhost.recipes import (
    rules_of_containers,
    rules_of_exposure,
    rules_of_machines,
    rules_of_options,
    rules_of_pods_and_units,
)
from winhost.recipes.lint_cdi import find_in_cdi
from winhost.recipes.lint_docker_daemon import find_in_daemon
from winhost.recipes.read_commands import FENCED, STARTS, read_commands, sleep_levels
from winhost.recipes.read_compose import read_compose
from winhost.recipes.read_config import is_config, read_config
from winhost.recipes.read_helm import VALUES, read_helm
from winhost.recipes.read_kubernetes import read_kubernetes
from winhost.recipes.read_units import read_environment, read_unit
from winhost.recipes.recipe_case import RecipeCase, RecipeTarget
from winhost.recipes.recipe_model import Recipe, RecipeForm
from winhost.recipes.recipe_rows import ROWS, apply_rows
from winhost.recipes.recipe_text import SourceFile, drop_overlapping
from winhost.recipes.rules_of_exposure import secrets_of
from winhost.recipes.yaml_nodes import NotYaml

_KUBERNETES = re.compile(r"^\s*(?:-\s+)?(?:apiVersion|kind):", re.MULTILINE)
_COMPOSE = re.compile(r"^services:[ \t]*\r?$", re.MULTILINE)
_UNIT = re.compile(r"^[ \t]*\[(?:Unit|Service|Container|Install)\][ \t]*\r?$", re.MULTILINE)
_VARIABLE = re.compile(r"^\s*(?:export\s+)?[A-Za-z_]\w*=", re.MULTILINE)


def form_of(text: str) -> RecipeForm | None:
    """Recognize the form of a text; None if nothing in it could start an engine."""
    text = text.removeprefix("\ufeff")
    if text.startswith("#!"):
        return RecipeForm.COMMAND if STARTS.search(text) else None
    around = FENCED.sub("", text)  # another form may be in the fenced blocks of a page
    if _COMPOSE.search(around):
        return RecipeForm.COMPOSE
    if _KUBERNETES.search(around) and "spec:" in around:
        return RecipeForm.KUBERNETES
    if VALUES.search(around):
        return RecipeForm.HELM
    if found := _UNIT.search(around):
        return RecipeForm.QUADLET if "[Container]" in text else RecipeForm.SYSTEMD if found else None
    if is_config(text):
        return RecipeForm.CONFIG
    if STARTS.search(text):
        return RecipeForm.COMMAND
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith(("#", ";"))]
    return RecipeForm.ENVIRONMENT if lines and all(map(_VARIABLE.match, lines)) else None


_READERS: Mapping[RecipeForm, Callable[[SourceFile], Recipe]] = {
    RecipeForm.COMPOSE: lambda source: replace(read_compose(source.without_tags), template=source.is_template),
    RecipeForm.KUBERNETES: lambda source: replace(read_kubernetes(source.without_tags), template=source.is_template),
    RecipeForm.HELM: lambda source: replace(read_helm(source.without_tags), template=source.is_template),
    RecipeForm.SYSTEMD: read_unit,
    RecipeForm.QUADLET: read_unit,
    RecipeForm.ENVIRONMENT: read_environment,
    RecipeForm.CONFIG: read_config,
    RecipeForm.COMMAND: read_commands,
}


def read_recipe(source: SourceFile) -> Recipe | None:
    """Read a recipe of any form; None if the text is no recipe."""
    form = form_of(source.text)
    if form is None:
        return None
    try:
        return _READERS[form](source)
    except NotYaml as wrong:
        return Recipe(form, (), ((str(wrong), wrong.offset),))


RULES = (
    *(*rules_of_options.RULES, *rules_of_containers.RULES, *rules_of_exposure.RULES),
    *(*rules_of_pods_and_units.RULES, *rules_of_machines.RULES, apply_rows),
)
# The rules for engines other than vLLM: about containers with GPUs, ports, keys and units.
COMMON_RULES = (
    *(
        rules_of_options.check_slips,
        rules_of_containers.check_container_options,
        rules_of_containers.check_gpus,
        rules_of_containers.check_shm,
    ),
    *(rules_of_containers.check_visible_gpus, rules_of_containers.check_ports),
    *(
        *rules_of_exposure.RULES,
        rules_of_pods_and_units.check_sandbox,
        rules_of_pods_and_units.check_start_time,
        apply_rows,
    ),
)
PREFIX = "serve"
MAX_ROUNDS = 7  # an edit may make another one possible
Find = Callable[[SourceFile], list[Observation]]


@dataclass(frozen=True)
class LintedRecipe:
    """The result of a lint. form: None for a text that is no recipe; versions: of vLLM by engine, None if unknown."""

    form: str | None
    versions: tuple[str | None, ...]
    findings: tuple[FileFinding, ...]
    mended: bytes
    secrets: tuple[str, ...] = ()


def lint_recipe(data: bytes, target: RecipeTarget, *, mend: bool = False) -> LintedRecipe:
    """Return all findings in a recipe, by line and column. mend: also mend the recipe as --fix does, and include
    findings that only the mended recipe has.
    """
    source = SourceFile.decode(data)
    recipe = read_recipe(source)
    if recipe is None:
        return LintedRecipe(None, (), (), data)
    secrets = tuple(secret for engine in recipe.engines for secret in secrets_of(engine))
    cases = [RecipeCase(engine, recipe, target, source) for engine in recipe.engines]
    findings, mended = _lint_and_mend(
        data, partial(_find_in_recipe, target=target), PREFIX, secrets, MAX_ROUNDS if mend else 1
    )
    versions = tuple(str(case.version) if case.version else None for case in cases)
    return LintedRecipe(recipe.form, versions, findings, mended, secrets)


def lint_docker_daemon(data: bytes, target: RecipeTarget, *, mend: bool = False) -> LintedRecipe:
    """Return all findings in a daemon.json, like `lint_recipe`."""
    find = partial(find_in_daemon, target=target)
    findings, mended = _lint_and_mend(data, find, "docker-daemon", (), MAX_ROUNDS if mend else 1, mark=True)
    return LintedRecipe("daemon.json", (), findings, mended)


def lint_cdi(data: bytes, target: RecipeTarget) -> LintedRecipe:
    """Return all findings in a CDI specification. Specifications are generated again, not mended."""
    findings, _ = _lint_and_mend(data, partial(find_in_cdi, target=target), "cdi", (), 1)
    return LintedRecipe("cdi", (), findings, data)


def _find_in_recipe(source: SourceFile, target: RecipeTarget) -> list[Observation]:
    """Return the observations in a recipe. One that several engines share is reported once, and a doubtful one has no
    edits.
    """
    recipe = read_recipe(source)
    if recipe is None:
        return []
    once: dict[tuple[str, int | Position], Observation] = {}
    for engine in recipe.engines:
        case = RecipeCase(engine, recipe, target, source)
        for each in run_rules(RULES if case.other_engine is None else COMMON_RULES, case):
            is_about_missing, incomplete = each.position == engine.position.start, engine.partial or recipe.template
            if not (is_about_missing and incomplete):
                unmended = each.doubt or recipe.template or recipe.form is RecipeForm.CONFIG  # its keys have no dashes
                edits = () if unmended else each.edits
                once.setdefault((each.code, each.position), replace(each, edits=edits, subject=engine.label))
    return [*_find_in_file(recipe, source), *once.values()]


def _find_in_file(recipe: Recipe, source: SourceFile) -> Iterator[Observation]:
    """Yield the observations about the file as a whole."""
    for problem, offset in recipe.unread:
        yield Observation("a-template" if "{{" in source.text else "unreadable", offset, {"problem": problem})
    if not recipe.template:  # in a template they may be in different branches
        yield from recipe.slips
    else:
        yield Observation("template-values", max(source.text.find("{{"), 0))
    for offset, level in sleep_levels(source.text):
        yield Observation("level-not-read", offset, {"level": level})


# --- Mending in rounds, and the findings of all rounds ---------------------------------------------------------------


def _lint_and_mend(
    data: bytes, find: Find, prefix: str, secrets: Sequence[str], most: int, *, mark: bool = False
) -> tuple[tuple[FileFinding, ...], bytes]:
    """Lint a file and apply its edits in rounds, until there are no edits or the maximum is reached. The last round
    only lints. Return the findings of all rounds, and the file.
    """
    rounds: list[list[FileFinding]] = []
    while True:
        source = SourceFile.decode(data, mark=mark)
        found = find(source)
        rounds.append(to_findings(ROWS, prefix, found, source.position, secrets))
        new = source.edited(drop_overlapping([each.edits for each in found if each.edits]))
        if new == data or len(rounds) == most:
            return _merge_rounds(rounds), data
        data = new


def _merge_rounds(rounds: Sequence[Sequence[FileFinding]]) -> tuple[FileFinding, ...]:
    """Merge the findings of all rounds: a fix can bring up further ones, as a corrected `--tensor-parallel-size` then
    needs /dev/shm. Findings that are gone in the last round are fixed.
    """
    every, seen = list(rounds[0]), {each.sentence for each in rounds[0]}
    for before, after in pairwise(rounds):
        unfixed = Counter((each.code, each.subject) for each in before if not each.fixed)
        for each in after:
            unfixed[each.code, each.subject] -= 1
            if each.sentence not in seen and unfixed[each.code, each.subject] < 0:
                seen.add(each.sentence)
                every.append(each)
    if len(rounds) > 1:
        remaining = {(each.code, each.subject) for each in rounds[-1]}
        every = [replace(each, fixed=each.fixed or (each.code, each.subject) not in remaining) for each in every]
    return tuple(sorted(every, key=lambda each: (each.line, each.column, each.code)))
