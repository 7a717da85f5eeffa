"""Rules on the words of vLLM itself: options and variables by version, their values, and the model."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from packaging.version import Version

from winhost.findings.finding import Observation, TextEdit
from winhost.model.catalogue_file import load_package_file
from winhost.model.errors import did_you_mean, did_you_mean_or_period
from winhost.model.once import once
from winhost.recipes.command_editor import replaced
from winhost.recipes.misspelt import CUTOFF, meant, suggested
from winhost.recipes.recipe_case import RecipeCase
from winhost.recipes.recipe_model import Setting
from winhost.recipes.recipe_rows import UNKNOWN_VERSION
from winhost.recipes.words import is_behind_image, shapes
from winhost.serving.vllm_options import knows, names, seen_versions, versions_with

Kind = Literal["engine", "env"]
_WORDS: Mapping[Kind, str] = {"engine": "option", "env": "variable"}
_HUMAN = re.compile(r"(\d+(?:\.\d+)?)([kmg])")
_LENGTHS = ("--max-model-len", "--max-num-batched-tokens", "--max-num-seqs")
_POWERS = "kmg"
_OMNI = "--omni"


@once
def renames() -> Mapping[str, Any]:
    """See renames.yaml."""
    return load_package_file(__package__, "renames.yaml")


def options(case: RecipeCase) -> Iterator[Observation]:
    """Options that this version does not know."""
    if omni := case.engine.option(_OMNI):
        yield Observation("other-parser", omni.text.start)
        return
    for setting in case.engine.options:
        if is_behind_image(case.engine, setting) or "$" in setting.name:
            continue
        if setting.written.startswith("-") and not setting.name.startswith("--"):
            yield from _single_dash(setting)
        elif setting.name not in ("--help", "--version"):
            yield from _by_version("engine", setting, case)


def _single_dash(setting: Setting) -> Iterator[Observation]:
    name = f"-{setting.written}"
    if len(setting.written) > 2 and name.replace("_", "-") in names("engine"):
        at = setting.text.at
        edits = (TextEdit(at[0], at[0], "-"),) if at else ()
        yield Observation("single-dash", setting.text.start, {"written": setting.written, "name": name}, edits)
    elif setting.written != "-h":
        words = {"name": setting.written, "near": did_you_mean_or_period(setting.written, shapes().short)}
        yield Observation("unknown-option", setting.text.start, words)


def variables(case: RecipeCase) -> Iterator[Observation]:
    """Variables of vLLM that this version does not read, and such of NCCL that no version does."""
    for setting in case.engine.variables:
        if (
            "$" in setting.name
            or setting.name.startswith("VLLM_OMNI_")
            or (setting.name.startswith("VLLM_") and case.engine.option(_OMNI))
        ):
            continue
        if setting.name.startswith("VLLM_") and setting.name not in renames()["also"]:
            yield from _by_version("env", setting, case)
        elif setting.name.startswith("NCCL_") and setting.name not in renames()["nccl"].split():
            known = renames()["nccl"].split()
            words = {"name": setting.name, "near": suggested(setting.name, known)}
            yield Observation(
                "nccl-unknown", setting.text.start, words, _corrected(setting, meant(setting.name, known), case)
            )


def _corrected(setting: Setting, name: str | None, case: RecipeCase) -> Sequence[TextEdit]:
    """This name instead of the written one, unless the file sets it already or writes something else there."""
    if name is None or setting.text.value != setting.written or case.uses(name, setting):
        return ()
    return replaced(setting.text, name)


def _option_for(variable: str) -> str | None:
    """VLLM_SERVED_MODEL_NAME is no variable, but --served-model-name is an option."""
    option = "--" + variable.removeprefix("VLLM_").lower().replace("_", "-")
    return option if option in names("engine") else None


def _by_version(kind: Kind, setting: Setting, case: RecipeCase) -> Iterator[Observation]:
    version = case.version or seen_versions()[-1]
    known, having = knows(kind, setting.name, version), versions_with(kind, setting.name)
    doubt = "" if case.version else UNKNOWN_VERSION
    words = {"name": setting.name, "version": version}
    offset, noun = setting.text.start, _WORDS[kind]
    if known or (known is None and case.version and case.version < seen_versions()[0]):
        return
    row, other = renames()[f"{noun}s"].get(setting.name), _other_negation(setting, version)
    if having and known is None:
        yield Observation("option-unsure", offset, words)
    elif case.version is None and not case.wants_newest and (having or (row and case.derived)):
        instead = row["instead"] if row else f"Write {other}." if other else "Remove it."
        last = having[-1] if having else f"one before {seen_versions()[0]}"
        yield Observation("gone-by-now", offset, {**words, "last": last, "instead": instead}, doubt=doubt)
    elif row and not (having and version < having[0]):
        idle = "anyway" in row and setting.value == row["anyway"]
        code = f"{noun}-idle" if idle else f"{noun}-renamed"
        yield Observation(code, offset, {**words, "instead": row["instead"]}, _renamed(row, setting, case), doubt)
    elif other:
        words["instead"] = f"Write {other}."
        mended = () if case.uses(other, setting) else replaced(setting.text, other)
        yield Observation("option-renamed", offset, words, mended, doubt)
    elif not having:
        known_names = [*names(kind), *(renames()["also"] if kind == "env" else ())]
        name = meant(setting.name, known_names)
        edits = _corrected(setting, name, case) if name and knows(kind, name, version) is not False else ()
        option = _option_for(setting.name) if kind == "env" else None
        near = f"; vLLM has the option {option} for this." if option else suggested(setting.name, known_names)
        slip = did_you_mean(setting.name, known_names, cutoff=CUTOFF)
        sure = slip or option or (kind == "engine" and not case.derived)
        unknown = f"unknown-{noun}" if sure and not case.reads(setting.name) else "not-of-vllm"
        yield Observation(unknown, offset, {"name": setting.name, "near": near}, edits)
    elif version < having[0]:
        yield Observation(f"{noun}-too-new", offset, {**words, "first": having[0]})
    else:
        yield Observation(
            f"{noun}-gone", offset, {**words, "last": having[-1]}, case.engine.editor.remove(setting), doubt
        )


def _renamed(row: Mapping[str, Any], setting: Setting, case: RecipeCase) -> Sequence[TextEdit]:
    if row.get("keep"):
        return ()
    if new := row.get("to") or row.get("as"):
        taken = setting.value is not None and "as" in row
        return () if taken or case.uses(new.partition("=")[0], setting) else replaced(setting.text, new)
    return case.engine.editor.remove(setting)


def _other_negation(setting: Setting, version: Version) -> str | None:
    """0.33 writes `--disable-x` for `--no-enable-x`; versions before know that alone."""
    for old, new in (("--no-enable-", "--disable-"), ("--no-disable-", "--enable-"), ("--disable-", "--no-enable-")):
        if setting.name.startswith(old) and knows("engine", other := new + setting.name.removeprefix(old), version):
            return other
    return None


def values(case: RecipeCase) -> Iterator[Observation]:
    """Values that the parser refuses, or takes for something else."""
    for setting in case.engine.options:
        value, offset = setting.value, setting.text.start
        if value is None:
            if setting.name in names("engine") and setting.name not in shapes().flags:
                yield Observation("no-value", offset, {"name": setting.name})
            continue
        if _is_open(value) or "." in setting.written:
            continue
        if setting.name in shapes().flags:
            yield _flag_with_value(case, setting, value)
        elif value.startswith("{"):
            yield from _json(setting, value, offset)
        else:
            yield from _value(setting, value, offset)


def _flag_with_value(case: RecipeCase, setting: Setting, value: str) -> Observation:
    """`--enforce-eager=true`: without the value, or its opposite."""
    word, opposite = setting.texts[0], setting.name.replace("--", "--no-", 1)
    edits: Sequence[TextEdit] = ()
    if value.lower() in ("true", "1", "yes", "on", ""):
        edits = replaced(word, setting.written)
    elif value.lower() in ("false", "0", "no", "off"):
        edits = replaced(word, opposite) if opposite in names("engine") else case.engine.editor.remove(setting)
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
    name, choices = setting.name, shapes().choices.get(setting.name)
    number = re.fullmatch(r"-?\d+", value) if name in shapes().whole else re.fullmatch(r"-?\d*\.?\d+", value)
    if (name in shapes().whole | shapes().number) and name not in _LENGTHS and not number:
        kind = "whole" if name in shapes().whole else "decimal"
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
            "utilization-percent", offset, {"value": value, "better": better}, replaced(setting.shown, better)
        )
    elif name in _LENGTHS and (found := _HUMAN.fullmatch(value)):
        power = _POWERS.index(found[2]) + 1
        lengths: dict[str, object] = {"name": name, "value": value, "small": int(float(found[1]) * 1000**power)}
        yield Observation("lower-case-k", offset, {**lengths, "large": int(float(found[1]) * 1024**power)})


def _is_open(value: str) -> bool:
    """A variable or a placeholder, of which only the shell knows the value."""
    return "$" in value or value.startswith(("<", "{{", "%", "...", "\u2026"))


def strays(case: RecipeCase) -> Iterator[Observation]:
    """Words that belong to nothing."""
    if case.engine.entered == "twice":
        return
    before = {setting.texts[-1].end: setting for setting in case.engine.options if setting.value is None}
    for word in case.engine.strays:
        if _is_open(word.value):
            continue
        flag = next((each.name for end, each in before.items() if 0 < word.start - end < 4), None)
        said = f" ({flag} takes none)" if flag else ""
        gone = Setting("", None, word, None, (word,), "")
        edits = case.engine.editor.remove(gone) if flag else ()
        yield Observation("stray-word", word.start, {"word": word.value, "flag": said}, edits)


def abbreviations(case: RecipeCase) -> Iterator[Observation]:
    """Names that are not written whole."""
    for setting in case.engine.options:
        written = setting.written.partition(".")[0].replace("_", "-")
        if written.startswith("--") and written != setting.name and setting.name.startswith(written):
            words = {"written": setting.written, "name": setting.name}
            yield Observation("abbreviated", setting.text.start, words, replaced(setting.text, setting.name))


def repeated(case: RecipeCase) -> Iterator[Observation]:
    """Options that are given twice, where one counts."""
    if case.recipe.template:
        return  # they may be of two branches
    plain = [each for each in case.engine.options if "." not in each.written and each.written != "-O"]
    last = {setting.name: setting for setting in plain}  # -O is a level of its own in newer versions
    for setting in plain:
        counts = last[setting.name]
        if counts is not setting:
            words = {"name": setting.name, "line": case.source.position(counts.text.start)[0]}
            code = "same-twice" if counts.value == setting.value else "set-twice"
            yield Observation(code, setting.text.start, words, case.engine.editor.remove(setting))


def model(case: RecipeCase) -> Iterator[Observation]:
    """A model is named, once."""
    engine = case.engine
    if engine.entered == "twice" and engine.places.get("again 0"):
        again = [word for name, word in engine.places.items() if name.startswith("again ")]
        words = [Setting("", None, word, None, (word,), "") for word in again]
        edits = [edit for each in words for edit in engine.editor.remove(each)]
        yield Observation("serve-twice", again[0].start, {}, edits if len(edits) == len(words) else ())
    told = engine.option("--model") or engine.option("--config")  # vLLM itself moves --model to the front
    name = engine.option("--served-model-name")
    if name and not told and not engine.leads and engine.entered in ("", "vllm serve"):
        yield Observation("model-not-first", name.text.start, doubt=case.elsewhere("--model"))
    elif engine.known and not told and engine.model is None and (engine.entered or not case.derived):
        yield Observation("no-model", engine.at.start, doubt=case.elsewhere("--model"))


def slips(case: RecipeCase) -> Iterator[Observation]:
    """Report text that a shell would read in another way than it is meant."""
    yield from case.engine.slips


RULES = (slips, options, variables, values, strays, abbreviations, repeated, model)
