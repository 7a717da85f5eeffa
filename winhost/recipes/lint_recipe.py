"""A recipe in whatever form it is: linted, and mended as far as that can be done by itself."""

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
from winhost.recipes.lint_cdi import cdi_findings
from winhost.recipes.lint_docker_daemon import daemon_findings
from winhost.recipes.read_commands import FENCED, STARTS, read_commands, sleep_levels
from winhost.recipes.read_compose import read_compose
from winhost.recipes.read_config import is_config, read_config
from winhost.recipes.read_helm import VALUES, read_helm
from winhost.recipes.read_kubernetes import read_kubernetes
from winhost.recipes.read_units import read_environment, read_unit
from winhost.recipes.recipe_case import RecipeCase, RecipeTarget
from winhost.recipes.recipe_model import Recipe, RecipeForm
from winhost.recipes.recipe_rows import ROWS, by_rows
from winhost.recipes.recipe_text import SourceFile, apart
from winhost.recipes.rules_of_exposure import secrets_of
from winhost.recipes.yaml_nodes import NotYaml

_KUBERNETES = re.compile(r"^\s*(?:-\s+)?(?:apiVersion|kind):", re.MULTILINE)
_COMPOSE = re.compile(r"^services:[ \t]*\r?$", re.MULTILINE)
_UNIT = re.compile(r"^[ \t]*\[(?:Unit|Service|Container|Install)\][ \t]*\r?$", re.MULTILINE)
_VARIABLE = re.compile(r"^\s*(?:export\s+)?[A-Za-z_]\w*=", re.MULTILINE)


def form_of(text: str) -> RecipeForm | None:
    """Recognize the form of a text; None where nothing in it could start an engine."""
    text = text.removeprefix("\ufeff")
    if text.startswith("#!"):
        return RecipeForm.COMMAND if STARTS.search(text) else None
    around = FENCED.sub("", text)  # of a page: another form may stand between its fences
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
    RecipeForm.COMPOSE: lambda source: replace(read_compose(source.filled), template=source.is_template),
    RecipeForm.KUBERNETES: lambda source: replace(read_kubernetes(source.filled), template=source.is_template),
    RecipeForm.HELM: lambda source: replace(read_helm(source.filled), template=source.is_template),
    RecipeForm.SYSTEMD: read_unit,
    RecipeForm.QUADLET: read_unit,
    RecipeForm.ENVIRONMENT: read_environment,
    RecipeForm.CONFIG: read_config,
    RecipeForm.COMMAND: read_commands,
}


def read_recipe(source: SourceFile) -> Recipe | None:
    """The recipe in whatever form it is; None where there is nothing of one."""
    form = form_of(source.text)
    if form is None:
        return None
    try:
        return _READERS[form](source)
    except NotYaml as wrong:
        return Recipe(form, (), ((str(wrong), wrong.offset),))


RULES = (
    *(*rules_of_options.RULES, *rules_of_containers.RULES, *rules_of_exposure.RULES),
    *(*rules_of_pods_and_units.RULES, *rules_of_machines.RULES, by_rows),
)
# Of engines beside vLLM: what is true of each container with GPUs, each port, each key and each unit.
COMMON = (
    *(rules_of_options.slips, rules_of_containers.container_names, rules_of_containers.gpus, rules_of_containers.shm),
    *(rules_of_containers.visible_gpus, rules_of_containers.ports),
    *(*rules_of_exposure.RULES, rules_of_pods_and_units.sandbox, rules_of_pods_and_units.start_time, by_rows),
)
PREFIX = "serve"
ROUNDS = 7  # a mend can make room for another
Find = Callable[[SourceFile], list[Observation]]


@dataclass(frozen=True)
class LintedRecipe:
    """form: None for a text that is no recipe. versions: of vLLM, engine by engine, as far as known."""

    form: str | None
    versions: tuple[str | None, ...]
    findings: tuple[FileFinding, ...]
    mended: bytes
    secrets: tuple[str, ...] = ()


def lint_recipe(data: bytes, target: RecipeTarget, *, mend: bool = False) -> LintedRecipe:
    """All findings, by line and column. mend: with the recipe in `mended` as --fix writes it, and with what shows only
    in that, else as it was.
    """
    source = SourceFile.of(data)
    recipe = read_recipe(source)
    if recipe is None:
        return LintedRecipe(None, (), (), data)
    secrets = tuple(secret for engine in recipe.engines for secret in secrets_of(engine))
    cases = [RecipeCase(engine, recipe, target, source) for engine in recipe.engines]
    findings, mended = _mended(data, partial(_in_recipe, target=target), PREFIX, secrets, ROUNDS if mend else 1)
    versions = tuple(str(case.version) if case.version else None for case in cases)
    return LintedRecipe(recipe.form, versions, findings, mended, secrets)


def lint_docker_daemon(data: bytes, target: RecipeTarget, *, mend: bool = False) -> LintedRecipe:
    """All findings in a daemon.json, as `lint_recipe` has them of a recipe."""
    find = partial(daemon_findings, target=target)
    findings, mended = _mended(data, find, "docker-daemon", (), ROUNDS if mend else 1, mark=True)
    return LintedRecipe("daemon.json", (), findings, mended)


def lint_cdi(data: bytes, target: RecipeTarget) -> LintedRecipe:
    """All findings in a specification of CDI, which is never mended but written anew."""
    findings, _ = _mended(data, partial(cdi_findings, target=target), "cdi", (), 1)
    return LintedRecipe("cdi", (), findings, data)


def _in_recipe(source: SourceFile, target: RecipeTarget) -> list[Observation]:
    """A finding that several engines share is reported once, and a doubtful one is not fixed."""
    recipe = read_recipe(source)
    if recipe is None:
        return []
    once: dict[tuple[str, int | Position], Observation] = {}
    for engine in recipe.engines:
        case = RecipeCase(engine, recipe, target, source)
        for each in run_rules(RULES if case.other is None else COMMON, case):
            lacks, elsewhere = each.position == engine.at.start, engine.partial or recipe.template
            if not (lacks and elsewhere):
                unmended = each.doubt or recipe.template or recipe.form is RecipeForm.CONFIG  # its keys have no dashes
                edits = () if unmended else each.edits
                once.setdefault((each.code, each.position), replace(each, edits=edits, subject=engine.where))
    return [*_in_whole(recipe, source), *once.values()]


def _in_whole(recipe: Recipe, source: SourceFile) -> Iterator[Observation]:
    """Find what is true of the file, and of none of its engines."""
    for problem, offset in recipe.unread:
        yield Observation("a-template" if "{{" in source.text else "unreadable", offset, {"problem": problem})
    if not recipe.template:  # of a template, they may be of two branches
        yield from recipe.slips
    else:
        yield Observation("template-values", max(source.text.find("{{"), 0))
    for offset, level in sleep_levels(source.text):
        yield Observation("level-not-read", offset, {"level": level})


# --- Mending, and what was found in the course of it ----------------------------------------------------------------


def _mended(
    data: bytes, find: Find, prefix: str, secrets: Sequence[str], most: int, *, mark: bool = False
) -> tuple[tuple[FileFinding, ...], bytes]:
    """The findings of a file, and the file as it is after so many rounds at most, in all but the last of which what can
    be mended is.
    """
    rounds: list[list[FileFinding]] = []
    while True:
        source = SourceFile.of(data, mark=mark)
        found = find(source)
        rounds.append(to_findings(ROWS, prefix, found, source.position, secrets))
        new = source.edited(apart([each.edits for each in found if each.edits]))
        if new == data or len(rounds) == most:
            return _over(rounds), data
        data = new


def _over(rounds: Sequence[Sequence[FileFinding]]) -> tuple[FileFinding, ...]:
    """Merge the findings of all rounds: a fix can bring up further ones, as a corrected `--tensor-parallel-size` then
    needs /dev/shm. Findings that are gone in the last round are fixed.
    """
    every, seen = list(rounds[0]), {each.sentence for each in rounds[0]}
    for before, after in pairwise(rounds):
        stays = Counter((each.code, each.subject) for each in before if not each.fixed)
        for each in after:
            stays[each.code, each.subject] -= 1
            if each.sentence not in seen and stays[each.code, each.subject] < 0:
                seen.add(each.sentence)
                every.append(each)
    if len(rounds) > 1:
        left = {(each.code, each.subject) for each in rounds[-1]}
        every = [replace(each, fixed=each.fixed or (each.code, each.subject) not in left) for each in every]
    return tuple(sorted(every, key=lambda each: (each.line, each.column, each.code)))
