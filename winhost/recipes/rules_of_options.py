"""Rules on the arguments of vLLM: options and variables by version, their values, and the model."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from packaging.version import Version

from winhost.findings.finding import Observation, TextEdit
from winhost.model.catalogue_file import load_package_file
from winhost.model.errors import did_you_mean, did_you_mean_or_period
from winhost.model.once import once
from winhost.recipes.arguments import is_behind_image, option_shapes
from winhost.recipes.command_editor import replace_value
from winhost.recipes.recipe_case import RecipeCase
from winhost.recipes.recipe_model import Setting
from winhost.recipes.recipe_rows import UNKNOWN_VERSION
from winhost.recipes.spelling import CUTOFF, find_correction, suggest
from winhost.serving.vllm_options import knows, names, seen_versions, versions_with

Kind = Literal["engine", "env"]
_NOUNS: Mapping[Kind, str] = {"engine": "option", "env": "variable"}
_NUMBER_WITH_SUFFIX = re.compile(r"(\d+(?:\.\d+)?)([kmg])")
_LENGTHS = ("--max-model-len", "--max-num-batched-tokens", "--max-num-seqs")
_POWERS = "kmg"
_OMNI = "--omni"


@once
def renames() -> Mapping[str, Any]:
    """See renames.yaml."""
    return load_package_file(__package__, "renames.yaml")


def check_options(case: RecipeCase) -> Iterator[Observation]:
    """Report options that this version does not know."""
    if omni := case.engine.option(_OMNI):
        yield Observation("other-parser", omni.text.start)
        return
    for setting in case.engine.options:
        if is_behind_image(case.engine, setting) or "$" in setting.name:
            continue
        if setting.written.startswith("-") and not setting.name.startswith("--"):
            yield from _single_dash(setting)
        elif setting.name not in ("--help", "--version"):
            yield from _check_version("engine", setting, case)


def _single_dash(setting: Setting) -> Iterator[Observation]:
    name = f"-{setting.written}"
    if len(setting.written) > 2 and name.replace("_", "-") in names("engine"):
        at = setting.text.offsets
        edits = (TextEdit(at[0], at[0], "-"),) if at else ()
        yield Observation("single-dash", setting.text.start, {"written": setting.written, "name": name}, edits)
    elif setting.written != "-h":
        words = {"name": setting.written, "near": did_you_mean_or_period(setting.written, option_shapes().short)}
        yield Observation("unknown-option", setting.text.start, words)


def check_variables(case: RecipeCase) -> Iterator[Observation]:
    """Report variables of vLLM that this version does not read, and variables of NCCL that no version reads."""
    for setting in case.engine.variables:
        if (
            "$" in setting.name
            or setting.name.startswith("VLLM_OMNI_")
            or (setting.name.startswith("VLLM_") and case.engine.option(_OMNI))
        ):
            continue
        if setting.name.startswith("VLLM_") and setting.name not in renames()["also"]:
            yield from _check_version("env", setting, case)
        elif setting.name.startswith("NCCL_") and setting.name not in renames()["nccl"].split():
            known = renames()["nccl"].split()
            words = {"name": setting.name, "near": suggest(setting.name, known)}
            yield Observation(
                "nccl-unknown",
                setting.text.start,
                words,
                _correct_name(setting, find_correction(setting.name, known), case),
            )


def _correct_name(setting: Setting, name: str | None, case: RecipeCase) -> Sequence[TextEdit]:
    """Return an edit that corrects the name of a setting; none if the file has the correct name already."""
    if name is None or setting.text.value != setting.written or case.is_name_used(name, setting):
        return ()
    return replace_value(setting.text, name)


def _option_for(variable: str) -> str | None:
    """Return the option with the name of a variable: --served-model-name for VLLM_SERVED_MODEL_NAME, which does not
    exist.
    """
    option = "--" + variable.removeprefix("VLLM_").lower().replace("_", "-")
    return option if option in names("engine") else None


def _check_version(kind: Kind, setting: Setting, case: RecipeCase) -> Iterator[Observation]:
    version = case.version or seen_versions()[-1]
    known, having = knows(kind, setting.name, version), versions_with(kind, setting.name)
    doubt = "" if case.version else UNKNOWN_VERSION
    words = {"name": setting.name, "version": version}
    offset, noun = setting.text.start, _NOUNS[kind]
    if known or (known is None and case.version and case.version < seen_versions()[0]):
        return
    row, other = renames()[f"{noun}s"].get(setting.name), _find_other_negation(setting, version)
    if having and known is None:
        yield Observation("option-unsure", offset, words)
    elif case.version is None and not case.follows_newest and (having or (row and case.has_derived_image)):
        instead = row["instead"] if row else f"Write {other}." if other else "Remove it."
        last = having[-1] if having else f"one before {seen_versions()[0]}"
        yield Observation("gone-by-now", offset, {**words, "last": last, "instead": instead}, doubt=doubt)
    elif row and not (having and version < having[0]):
        idle = "anyway" in row and setting.value == row["anyway"]
        code = f"{noun}-idle" if idle else f"{noun}-renamed"
        yield Observation(code, offset, {**words, "instead": row["instead"]}, _mend_renamed(row, setting, case), doubt)
    elif other:
        words["instead"] = f"Write {other}."
        mended = () if case.is_name_used(other, setting) else replace_value(setting.text, other)
        yield Observation("option-renamed", offset, words, mended, doubt)
    elif not having:
        known_names = [*names(kind), *(renames()["also"] if kind == "env" else ())]
        name = find_correction(setting.name, known_names)
        edits = _correct_name(setting, name, case) if name and knows(kind, name, version) is not False else ()
        option = _option_for(setting.name) if kind == "env" else None
        near = f"; vLLM has the option {option} for this." if option else suggest(setting.name, known_names)
        slip = did_you_mean(setting.name, known_names, cutoff=CUTOFF)
        sure = slip or option or (kind == "engine" and not case.has_derived_image)
        unknown = f"unknown-{noun}" if sure and not case.is_variable_used(setting.name) else "not-of-vllm"
        yield Observation(unknown, offset, {"name": setting.name, "near": near}, edits)
    elif version < having[0]:
        yield Observation(f"{noun}-too-new", offset, {**words, "first": having[0]})
    else:
        yield Observation(
            f"{noun}-gone", offset, {**words, "last": having[-1]}, case.engine.editor.remove(setting), doubt
        )


def _mend_renamed(row: Mapping[str, Any], setting: Setting, case: RecipeCase) -> Sequence[TextEdit]:
    if row.get("keep"):
        return ()
    if new := row.get("to") or row.get("as"):
        taken = setting.value is not None and "as" in row
        return () if taken or case.is_name_used(new.partition("=")[0], setting) else replace_value(setting.text, new)
    return case.engine.editor.remove(setting)


def _find_other_negation(setting: Setting, version: Version) -> str | None:
    """Return the other form of a negated option that this version knows: `--disable-x` or `--no-enable-x`; else
    None.
    """
    for old, new in (("--no-enable-", "--disable-"), ("--no-disable-", "--enable-"), ("--disable-", "--no-enable-")):
        if setting.name.startswith(old) and knows("engine", other := new + setting.name.removeprefix(old), version):
            return other
    return None


def check_values(case: RecipeCase) -> Iterator[Observation]:
    """Report values that the parser refuses or misreads."""
    for setting in case.engine.options:
        value, offset = setting.value, setting.text.start
        if value is None:
            if setting.name in names("engine") and setting.name not in option_shapes().flags:
                yield Observation("no-value", offset, {"name": setting.name})
            continue
        if _is_placeholder(value) or "." in setting.written:
            continue
        if setting.name in option_shapes().flags:
            yield _flag_with_value(case, setting, value)
        elif value.startswith("{"):
            yield from _json(setting, value, offset)
        else:
            yield from _value(setting, value, offset)


def _flag_with_value(case: RecipeCase, setting: Setting, value: str) -> Observation:
    """Report a flag with a value, such as `--enforce-eager=true`, with an edit to the flag alone or its opposite."""
    word, opposite = setting.texts[0], setting.name.replace("--", "--no-", 1)
    edits: Sequence[TextEdit] = ()
    if value.lower() in ("true", "1", "yes", "on", ""):
        edits = replace_value(word, setting.written)
    elif value.lower() in ("false", "0", "no", "off"):
        edits = replace_value(word, opposite) if opposite in names("engine") else case.engine.editor.remove(setting)
    return Observation("flag-with-value", setting.text.start, {"name": setting.name, "value": value}, edits)


def _json(setting: Setting, value: str, offset: int) -> Iterator[Observation]:
    try:
        json.loads(re.sub(r"<[\w-]+>", "0", value))  # a placeholder of a page
    except ValueError as error:
        yield Observation(
            "bad-json", offset, {"name": setting.name, "value": value, "problem": str(error).partition(":")[0]}
        )
    except RecursionError:
        yield Observation(
            "bad-json", offset, {"name": setting.name, "value": value, "problem": "it is nested too deeply"}
        )


def _value(setting: Setting, value: str, offset: int) -> Iterator[Observation]:
    name, choices = setting.name, option_shapes().choices.get(setting.name)
    number = re.fullmatch(r"-?\d+", value) if name in option_shapes().whole else re.fullmatch(r"-?\d*\.?\d+", value)
    if (name in option_shapes().whole | option_shapes().number) and name not in _LENGTHS and not number:
        kind = "whole" if name in option_shapes().whole else "decimal"
        yield Observation("bad-number", offset, {"name": name, "value": value, "kind": kind})
    elif choices and value not in choices:
        words = {
            "name": name,
            "value": value,
            "near": did_you_mean_or_period(value, choices),
            "choices": ", ".join(choices),
        }
        yield Observation("bad-choice", offset, words)
    elif name == "--gpu-memory-utilization" and float(value) > 1:
        better = f"{float(value) / 100:g}" if 2 <= float(value) <= 100 else "0.9"
        yield Observation(
            "utilization-percent", offset, {"value": value, "better": better}, replace_value(setting.value_text, better)
        )
    elif name in _LENGTHS and (found := _NUMBER_WITH_SUFFIX.fullmatch(value)):
        power = _POWERS.index(found[2]) + 1
        lengths: dict[str, object] = {"name": name, "value": value, "small": int(float(found[1]) * 1000**power)}
        yield Observation("lower-case-k", offset, {**lengths, "large": int(float(found[1]) * 1024**power)})


def _is_placeholder(value: str) -> bool:
    """Tell whether a value is a variable or a placeholder, so that it is not known."""
    return "$" in value or value.startswith(("<", "{{", "%", "...", "\u2026"))


def check_stray_words(case: RecipeCase) -> Iterator[Observation]:
    """Report arguments that belong to no option."""
    if case.engine.entry == "twice":
        return
    before = {setting.texts[-1].end: setting for setting in case.engine.options if setting.value is None}
    for word in case.engine.strays:
        if _is_placeholder(word.value):
            continue
        flag = next((each.name for end, each in before.items() if 0 < word.start - end < 4), None)
        suffix = f" ({flag} takes none)" if flag else ""
        stray = Setting("", None, word, None, (word,), "")
        edits = case.engine.editor.remove(stray) if flag else ()
        yield Observation("stray-word", word.start, {"word": word.value, "flag": suffix}, edits)


def check_abbreviations(case: RecipeCase) -> Iterator[Observation]:
    """Report abbreviated names."""
    for setting in case.engine.options:
        written = setting.written.partition(".")[0].replace("_", "-")
        if written.startswith("--") and written != setting.name and setting.name.startswith(written):
            words = {"written": setting.written, "name": setting.name}
            yield Observation("abbreviated", setting.text.start, words, replace_value(setting.text, setting.name))


def check_repeated(case: RecipeCase) -> Iterator[Observation]:
    """Report options that are set twice, of which only the last takes effect."""
    if case.recipe.template:
        return  # they may be in different branches
    plain = [each for each in case.engine.options if "." not in each.written and each.written != "-O"]
    last = {setting.name: setting for setting in plain}  # -O is a level of its own in newer versions
    for setting in plain:
        counts = last[setting.name]
        if counts is not setting:
            words = {"name": setting.name, "line": case.source.position(counts.text.start)[0]}
            code = "same-twice" if counts.value == setting.value else "set-twice"
            yield Observation(code, setting.text.start, words, case.engine.editor.remove(setting))


def check_model(case: RecipeCase) -> Iterator[Observation]:
    """Check that exactly one model is named."""
    engine = case.engine
    if engine.entry == "twice" and engine.positions.get("again 0"):
        again = [word for name, word in engine.positions.items() if name.startswith("again ")]
        words = [Setting("", None, word, None, (word,), "") for word in again]
        edits = [edit for each in words for edit in engine.editor.remove(each)]
        yield Observation("serve-twice", again[0].start, {}, edits if len(edits) == len(words) else ())
    named = engine.option("--model") or engine.option("--config")  # vLLM itself moves --model to the front
    name = engine.option("--served-model-name")
    if name and not named and not engine.model_first and engine.entry in ("", "vllm serve"):
        yield Observation("model-not-first", name.text.start, doubt=case.other_source("--model"))
    elif engine.has_command and not named and engine.model is None and (engine.entry or not case.has_derived_image):
        yield Observation("no-model", engine.position.start, doubt=case.other_source("--model"))


def check_slips(case: RecipeCase) -> Iterator[Observation]:
    """Report text that a shell would misread."""
    yield from case.engine.slips


RULES = (
    check_slips,
    check_options,
    check_variables,
    check_values,
    check_stray_words,
    check_abbreviations,
    check_repeated,
    check_model,
)
