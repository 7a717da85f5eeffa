"""Rules that are rows of findings.yaml: which settings they are about, when they apply, and what to write instead.

docs/conditions.md describes `find`, `when` and `mend`. If the version of vLLM is not known, the newest is assumed and
the finding is unverified.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from winhost.core.answers import NOT_READ, MissingFact
from winhost.findings.condition import matches, matching_rows
from winhost.findings.finding import Observation, Row, TextEdit, rows_of
from winhost.recipes.arguments import IMAGE
from winhost.recipes.command_editor import replace_value
from winhost.recipes.recipe_case import RecipeCase
from winhost.recipes.recipe_model import Setting
from winhost.serving.vllm_options import seen_versions

ROWS = rows_of(__package__)
UNKNOWN_VERSION = "the version of vLLM"
SELECTORS = ("env", "option", "boxed", "lacks", "lacks_boxed", "at", "value", "switched")
FILE_KEYS = {"key", "each"}  # of a row about daemon.json
MENDS = ("set", "swap", "remove", "rename", "option", "env")


def apply_rows(case: RecipeCase) -> Iterator[Observation]:
    """Yield the findings of all rows for an engine."""
    about = (
        row
        for row in ROWS.values()
        if row.find and not FILE_KEYS & row.find.keys() and (case.other_engine is None or _is_common(row))
    )
    for row, _ in matching_rows(about, partial(_ask, case), "nothing"):
        yield from _apply_row(row, case)


def _is_common(row: Row) -> bool:
    """Tell whether a row is about the container, NVIDIA's variables or the unit, so that it applies to every engine."""
    asked = (*row.when, *_names(row.find, "env"), *_names(row.find, "option"), *_names(row.find, "lacks"))
    return "engine" in row.when or not (
        row.find.get("at")
        or any(name.startswith(("--", "VLLM_", "PYTORCH_", "vllm", "HF_", "HUGGING")) for name in asked)
    )


def _apply_row(row: Row, case: RecipeCase) -> Iterator[Observation]:
    unsure = UNKNOWN_VERSION if "vllm" in row.when and case.version is None else ""
    for setting in _matching_settings(row.find, case):
        if setting is None and not case.engine.has_command:
            continue
        missing = next(iter(_names(row.find, "lacks")), "")
        doubt = unsure or (case.other_source(missing) if missing else "")
        offset = setting.text.start if setting else case.engine.position.start
        words = {"name": setting.name, "value": setting.display_value, "kind": _kind(case)} if setting else {}
        yield Observation(row.code, offset, words, _edits(row.mend, setting, case), doubt)


def is_question(question: str) -> bool:
    """Tell whether a recipe can answer this: one of QUESTIONS, or an option or variable being set."""
    return question in QUESTIONS or question.startswith("--") or question.isupper()


def _ask(case: RecipeCase, question: str) -> tuple[Any, ...]:
    if question in QUESTIONS:
        return QUESTIONS[question](case)
    found = case.engine.option(question) or case.engine.variable(question)
    return (found is not None,)


def _kind(case: RecipeCase) -> str:
    """Return the kind of the Kubernetes object, such as `Deployment`."""
    return case.engine.label.partition(" ")[0]


def _require(value: Any, what: str) -> Any:
    if value is None:
        raise MissingFact(what, NOT_READ)
    return value


QUESTIONS: Mapping[str, Callable[[RecipeCase], tuple[Any, ...]]] = {
    "wsl": lambda case: (_require(case.wsl, "whether it runs in WSL"),),
    "container": lambda case: (case.engine.in_container,),
    "known": lambda case: (case.engine.has_command,),
    "detached": lambda case: (case.engine.form != "command" or case.engine.container_setting("--detach") is not None,),
    "engine": lambda case: (case.engine.kind,),
    "image": lambda case: ((image.value or "") if (image := case.engine.container_setting(IMAGE)) else "",),
    "reached_without_key": lambda case: (case.exposure is not None and not case.has_key,),
    "own_entrypoint": lambda case: (
        "entrypoint" in case.engine.positions or case.engine.container_setting("--entrypoint") is not None,
    ),
    "nvidia": lambda case: (not case.on_other_platform,),
    "written": lambda case: (" ".join(word.value for word in case.engine.words),),
    "form": lambda case: (case.engine.form.value,),
    "kind": lambda case: (_kind(case),),
    "oneshot": lambda case: (any(each.value == "oneshot" for each in case.engine.container_settings("Type")),),
    "vllm": lambda case: (case.version or seen_versions()[-1],),
    "tensor": lambda case: (case.engine.number("--tensor-parallel-size"),),
    "engine_gpus": lambda case: (case.engine.gpus,),
    "replicas": lambda case: (case.engine.number("--data-parallel-size"),),
    "gpus": lambda case: (len(_require(case.target.gpus, "the GPUs")),),
    "wsl_version": lambda case: (_require(case.target.wsl_version, "the version of WSL"),),
    "architecture": lambda case: tuple(gpu.architecture for gpu in _require(case.target.models, "the GPUs")),
}


def _matching_settings(find: Mapping[str, Any], case: RecipeCase) -> list[Setting | None]:
    """Return the settings that a row is about; None stands for a missing one."""
    engine = case.engine
    if find.get("at"):
        return [None]
    if names := _names(find, "lacks"):
        return [] if any(engine.option(name) or engine.variable(name) for name in names) else [None]
    if names := _names(find, "lacks_boxed"):
        return [] if any(engine.container_setting(name) for name in names) else [None]
    sources = (("env", engine.variables), ("option", engine.options), ("boxed", engine.container))
    found = [each for key, settings in sources for each in settings if each.name in _names(find, key)]
    return [each for each in found if _value_matches(find, each)]


def _names(find: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = find.get(key, ())
    return (value,) if isinstance(value, str) else tuple(value)


def _value_matches(find: Mapping[str, Any], setting: Setting) -> bool:
    if "value" in find and not matches(setting.value or "", find["value"]):
        return False
    if "$" in (setting.value or ""):  # its value is unknown, so that only the written text can match
        wanted = find.get("value")
        return "switched" not in find and not (isinstance(wanted, Mapping) and {"unlike", "not"} & wanted.keys())
    return "switched" not in find or setting.is_on is find["switched"]


def _edits(mend: Mapping[str, Any], setting: Setting | None, case: RecipeCase) -> Sequence[TextEdit]:
    editor = case.engine.editor
    if "option" in mend:
        return editor.add_option(mend["option"])
    if "env" in mend:
        return editor.add_variable(*mend["env"])
    if setting is None:
        return ()
    if "set" in mend:
        return replace_value(setting.value_text, mend["set"])
    if "swap" in mend:
        old, new = mend["swap"]
        return replace_value(setting.value_text, (setting.value or "").replace(old, new))
    if "rename" in mend:
        whole = setting.text.value == setting.name and not case.is_name_used(mend["rename"], setting)
        return replace_value(setting.text, mend["rename"]) if whole else ()
    return editor.remove(setting) if mend.get("remove") else ()
