"""What form a recipe has, by its text alone: names of files say little, and what is pasted has none."""

import re

from winhost.recipes.read_commands import STARTS, read_commands
from winhost.recipes.read_compose import read_compose
from winhost.recipes.read_kubernetes import read_kubernetes
from winhost.recipes.read_units import read_environment, read_unit
from winhost.recipes.recipe_model import Recipe, RecipeForm
from winhost.recipes.recipe_text import SourceFile
from winhost.recipes.yaml_nodes import NotYaml

_KUBERNETES = re.compile(r"^\s*(?:-\s+)?(?:apiVersion|kind):", re.MULTILINE)
_COMPOSE = re.compile(r"^services:[ \t]*\r?$", re.MULTILINE)
_UNIT = re.compile(r"^[ \t]*\[(?:Unit|Service|Container|Install)\][ \t]*\r?$", re.MULTILINE)
_VARIABLE = re.compile(r"^\s*(?:export\s+)?[A-Za-z_]\w*=", re.MULTILINE)


def form_of(text: str) -> RecipeForm | None:
    """None where it is nothing that could start an engine."""
    text = text.removeprefix("\ufeff")
    if text.startswith("#!"):
        return RecipeForm.COMMAND if STARTS.search(text) else None
    if _COMPOSE.search(text):
        return RecipeForm.COMPOSE
    if _KUBERNETES.search(text) and "spec:" in text:
        return RecipeForm.KUBERNETES
    if found := _UNIT.search(text):
        return RecipeForm.QUADLET if "[Container]" in text else RecipeForm.SYSTEMD if found else None
    if STARTS.search(text):
        return RecipeForm.COMMAND
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith(("#", ";"))]
    return RecipeForm.ENVIRONMENT if lines and all(map(_VARIABLE.match, lines)) else None


def read_recipe(source: SourceFile) -> Recipe | None:
    """The recipe in whatever form it is; None where there is nothing of one."""
    form = form_of(source.text)
    if form is None:
        return None
    try:
        match form:
            case RecipeForm.COMPOSE:
                return read_compose(source)
            case RecipeForm.KUBERNETES:
                return read_kubernetes(source)
            case RecipeForm.SYSTEMD | RecipeForm.QUADLET:
                return read_unit(source)
            case RecipeForm.ENVIRONMENT:
                return read_environment(source)
            case RecipeForm.COMMAND:
                return read_commands(source)
    except NotYaml as wrong:
        return Recipe(form, (), ((str(wrong), wrong.place),))
