"""The words behind `vllm serve`, as vLLM's parser takes them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from typing import Any

from winhost.core.dataclass import dataclass
from winhost.model.catalogue_file import load_catalogue
from winhost.model.once import once
from winhost.recipes.recipe_model import RecipeEngine, Setting
from winhost.recipes.recipe_text import PlacedText
from winhost.recipes.shell_words import Slip
from winhost.serving.vllm_options import names


@dataclass(frozen=True)
class OptionShapes:
    """What options take: see knowledge/vllm_option_shapes.yaml."""

    flags: frozenset[str]
    several: frozenset[str]
    whole: frozenset[str]
    number: frozenset[str]
    short: Mapping[str, str]
    choices: Mapping[str, tuple[str, ...]]


@once
def shapes() -> OptionShapes:
    read: dict[str, Any] = load_catalogue(files("winhost.knowledge").joinpath("vllm_option_shapes.yaml"))
    sets = {name: frozenset(read[name].split()) for name in ("flags", "several", "whole", "number")}
    return OptionShapes(**sets, short=read["short"], choices={k: tuple(v) for k, v in read["choices"].items()})


MOST = 500  # words of a command; vLLM has about 320 options


def full_name(written: str) -> str:
    """`--tensor-parallel-size` of `-tp`, `--tensor_parallel_size` or an abbreviation that has one meaning."""
    head, dot, _ = written.partition(".")
    if dot:
        return full_name(head)  # `--eplb-config.window_size` is one entry of it
    if not written.startswith("--"):
        return shapes().short.get(written, written)
    name = written.replace("_", "-")
    known = names("engine")
    if name in known:
        return name
    begun = [each for each in known if each.startswith(name) and not each.startswith("--no-")]
    return begun[0] if len(begun) == 1 else name


def read_engine(words: Sequence[PlacedText], engine: RecipeEngine) -> None:
    """Fills in options, model and what is neither."""
    rest = list(words[:MOST])
    if len(words) > MOST:
        said = {"problem": f"it has more than {MOST} words"}
        engine.slips.append(Slip("unreadable", words[MOST].start, words=said))
    while rest:
        word = rest.pop(0)
        if word.value == "--" or not word.value:
            continue
        if not _is_option(word.value):
            _place(word, engine)
            continue
        written, equals, _ = word.value.partition("=")
        written, inner = _glued(written)
        name = full_name(written)
        if equals or inner:
            value = word.after("=") if equals else word.part(len(written))
            engine.options.append(Setting.of(name, word.part(0, len(written)), value, (word,), written))
        else:
            taken = _taken(name, rest)
            found = Setting.of(name, word, taken[0] if taken else None, (word, *taken), written)
            several = " ".join(each.value for each in taken)
            engine.options.append(replace(found, value=several) if len(taken) > 1 else found)


def _is_option(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and not _is_number(word)


def _is_number(word: str) -> bool:
    return word.lstrip("-").replace(".", "", 1).isdigit()


def _glued(written: str) -> tuple[str, str]:
    """`-O3` and `-tp2`: a short name with its value."""
    if written.startswith("--") or written in shapes().short:
        return written, ""
    found = [short for short in shapes().short if written.startswith(short) and written[len(short) :].isdigit()]
    return (found[0], written[len(found[0]) :]) if found else (written, "")


def _taken(name: str, rest: list[PlacedText]) -> list[PlacedText]:
    """The words that an option takes from those that follow."""
    if name in shapes().flags or not rest or _is_option(rest[0].value):
        return []
    taken = [rest.pop(0)]
    while name in shapes().several and rest and not _is_option(rest[0].value):
        taken.append(rest.pop(0))
    return taken


def _place(word: PlacedText, engine: RecipeEngine) -> None:
    if engine.model is None:
        engine.model, engine.leads = word, not engine.options
    else:
        engine.strays.append(word)
