"""Rules that are rows of findings.yaml: what to look for, on which targets, and what to write instead.

`find` has one of
  env, option, boxed   a name or several: the setting stands there (boxed: of the container, by docker's option)
  lacks, lacks_boxed   a name or several: none of them is set
  at                   true: it is about the engine itself
and with it any of
  is, is_not           its value is one of these, or none of these
  like, unlike         its value matches an expression, or does not
  is_on                whether a switch is on
  with, without        other options and variables that are set, or none of which is
  wsl, container, detached   whether it runs in WSL, in a container, in the background
  form                 one of these forms
  vllm, wsl_version, tensor, cards, replicas, gpus   a range: `>=0.24, <0.30`
  architecture         of a GPU of the host
What is not known makes a condition false. A vLLM of unknown version is taken for the newest; the finding is unverified.

`mend` has one of set (a value), swap (a part of a value), remove, rename, option, env, boxed.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from packaging.version import Version

from winhost.recipes.command_editor import replaced
from winhost.recipes.recipe_case import RecipeCase
from winhost.recipes.recipe_findings import FindingRow, Found, rows
from winhost.recipes.recipe_model import Setting
from winhost.recipes.recipe_text import TextEdit
from winhost.serving.vllm_options import seen_versions
from winhost.serving.when import COMPARE, bounds

UNKNOWN_VERSION = "the version of vLLM"


def by_rows(case: RecipeCase) -> Iterator[Found]:
    """What the rows find in an engine."""
    for row in rows().values():
        if row.find:
            yield from _by_row(row, case)


def _by_row(row: FindingRow, case: RecipeCase) -> Iterator[Found]:
    if not all(_MEETS[name](case, row.find[name]) for name in row.find.keys() & _MEETS.keys()):
        return
    doubt = ""
    if "vllm" in row.find:
        doubt = UNKNOWN_VERSION if case.version is None else ""
        if not _within(case.version or seen_versions()[-1], row.find["vllm"]):
            return
    for setting in _found(row.find, case):
        if setting is None and not case.engine.known:
            continue
        lacking = next(iter(_names(row.find, "lacks")), "")
        doubt = doubt or (case.elsewhere(lacking) if lacking else "")
        place = setting.text.start if setting else case.engine.at.start
        words = {"name": setting.name, "value": setting.value or ""} if setting else {}
        yield Found(row.code, place, words, _edits(row.mend, setting, case), doubt)


def _found(find: Mapping[str, Any], case: RecipeCase) -> list[Setting | None]:
    """The settings that a row is about; None for one that lacks."""
    engine = case.engine
    if find.get("at"):
        return [None]
    if names := _names(find, "lacks"):
        return [] if any(engine.option(name) or engine.variable(name) for name in names) else [None]
    if names := _names(find, "lacks_boxed"):
        return [] if any(engine.boxed(name) for name in names) else [None]
    sources = (("env", engine.variables), ("option", engine.options), ("boxed", engine.container))
    found = [each for key, settings in sources for each in settings if each.name in _names(find, key)]
    return [each for each in found if _fits(find, each)]


def _names(find: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = find.get(key, ())
    return (value,) if isinstance(value, str) else tuple(value)


def _fits(find: Mapping[str, Any], setting: Setting) -> bool:
    value = setting.value or ""
    checks: tuple[tuple[str, Callable[[Any], bool]], ...] = (
        ("is", lambda words: value in words),
        ("is_not", lambda words: value not in words),
        ("like", lambda pattern: re.search(pattern, value) is not None),
        ("unlike", lambda pattern: bool(value) and re.search(pattern, value) is None),
        ("is_on", lambda wanted: setting.is_on is wanted),
    )
    return all(check(find[name]) for name, check in checks if name in find)


def _within(version: Version, wanted: str) -> bool:
    return all(COMPARE[sign](version, bound) for sign, bound in bounds(wanted))


def _counts(number: int, wanted: str) -> bool:
    return _within(Version(str(number)), wanted)


def _sets(case: RecipeCase, name: str) -> bool:
    found = case.engine.option(name) or case.engine.variable(name)
    return found is not None


_MEETS: Mapping[str, Callable[[RecipeCase, Any], bool]] = {
    "with": lambda case, names: all(_sets(case, name) for name in names),
    "without": lambda case, names: not any(_sets(case, name) for name in names),
    "wsl": lambda case, wanted: case.wsl is wanted,
    "container": lambda case, wanted: case.engine.in_container is wanted,
    "detached": lambda case, _: case.engine.form != "command" or case.engine.boxed("--detach") is not None,
    "form": lambda case, forms: case.engine.form in forms,
    "tensor": lambda case, wanted: _counts(case.engine.number("--tensor-parallel-size"), wanted),
    "cards": lambda case, wanted: _counts(case.engine.cards, wanted),
    "replicas": lambda case, wanted: _counts(case.engine.number("--data-parallel-size"), wanted),
    "gpus": lambda case, wanted: case.target.cards is not None and _counts(len(case.target.cards), wanted),
    "wsl_version": lambda case, wanted: (
        case.target.wsl_version is not None and _within(case.target.wsl_version, wanted)
    ),
    "architecture": lambda case, names: any(gpu.architecture in names for gpu in case.target.gpus or ()),
}


def _edits(mend: Mapping[str, Any], setting: Setting | None, case: RecipeCase) -> Sequence[TextEdit]:
    editor = case.engine.editor
    if "option" in mend:
        return editor.add_option(mend["option"])
    if "env" in mend:
        return editor.add_variable(*mend["env"])
    if setting is None:
        return ()
    if "set" in mend:
        return replaced(setting.shown, mend["set"])
    if "swap" in mend:
        old, new = mend["swap"]
        return replaced(setting.shown, (setting.value or "").replace(old, new))
    if "rename" in mend:
        whole = setting.text.value == setting.name and not case.uses(mend["rename"], setting)
        return replaced(setting.text, mend["rename"]) if whole else ()
    return editor.remove(setting) if mend.get("remove") else ()


KEYS = {
    *_MEETS,
    "env",
    "option",
    "boxed",
    "lacks",
    "lacks_boxed",
    "at",
    "is",
    "is_not",
    "like",
    "unlike",
    "is_on",
    "vllm",
}
