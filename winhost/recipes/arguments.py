"""Parses the arguments of docker run, vllm serve and other engines like their own parsers."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from winhost.core.dataclass import dataclass
from winhost.findings.finding import Observation
from winhost.model.catalogue_file import load_package_file
from winhost.model.once import once
from winhost.recipes.recipe_model import RecipeEngine, RecipeForm, Setting
from winhost.recipes.recipe_text import PlacedText
from winhost.serving.vllm_options import names

IMAGE = "image"
TOOLS = ("docker", "podman", "nerdctl", "wslc")


def image_name(image: str) -> str:
    """Strip registry, tag and digest."""
    return image.partition("@")[0].rpartition("/")[2].partition(":")[0]


@dataclass(frozen=True)
class ContainerOptions:
    """See container_options.yaml."""

    flags: frozenset[str]
    valued: frozenset[str]
    short: Mapping[str, str]
    quadlet: frozenset[str]


@once
def container_options() -> ContainerOptions:
    read = load_package_file(__package__, "container_options.yaml")
    flags, valued, quadlet = (frozenset(read[key].split()) for key in ("flags", "valued", "quadlet"))
    return ContainerOptions(flags, valued, read["short"], quadlet)


def is_behind_image(engine: RecipeEngine, setting: Setting) -> bool:
    """Tell whether an option of the container is among the arguments of vLLM, which does not have it."""
    if engine.form is not RecipeForm.COMMAND or not engine.in_container or setting.name in names("engine"):
        return False
    return setting.name in container_options().flags | container_options().valued or setting.written in (
        "-p",
        "-v",
        "-e",
    )


def read_container(words: Sequence[PlacedText], engine: RecipeEngine) -> list[PlacedText]:
    """Read the container's settings into the engine. Return the remaining words, which run in the container."""
    rest = list(words)
    engine.in_container = True
    while rest:
        word = rest.pop(0)
        if not word.value.startswith("-") or word.value == "-":
            engine.container.append(Setting.parse(IMAGE, word, word, (word,), IMAGE))
            return rest
        _read_option(word, rest, engine)
    return []


def _read_option(word: PlacedText, rest: list[PlacedText], engine: RecipeEngine) -> None:
    written, equals, _ = word.value.partition("=")
    value = word.part_after("=") if equals else None
    texts: tuple[PlacedText, ...] = (word,)
    if not written.startswith("--") and len(written) > 2:
        written, value = _split_cluster(word)
    name = container_options().short.get(written, written)
    if value is None and rest and name not in container_options().flags and not is_flag_cluster(written):
        value = rest.pop(0)
        texts = (word, value)
    add_setting(engine, Setting.parse(name, word, value, texts, written))


def is_flag_cluster(written: str) -> bool:
    """Tell whether an option is a cluster of flags, such as `-it`."""
    return not written.startswith("--") and set(written[1:]) <= set("ditP")


def _split_cluster(word: PlacedText) -> tuple[str, PlacedText | None]:
    """Split a cluster: `-it` is two flags, `-p8000:8000` an option with its value."""
    short = word.value[:2]
    if container_options().short.get(short) in container_options().flags:
        return word.value, None
    first = 3 if word.value[2:3] == "=" else 2
    return short, word.part(first)


def add_setting(engine: RecipeEngine, setting: Setting) -> None:
    """Add a setting of a container. Its environment variables are those of the engine."""
    if setting.name == "--env" and setting.value_text is not None:
        engine.variables.append(parse_variable(setting.value_text, setting.texts))
    else:
        engine.container.append(setting)


def parse_variable(text: PlacedText, texts: tuple[PlacedText, ...]) -> Setting:
    """Parse `NAME=VALUE`; the value of a name alone comes from elsewhere."""
    name, equals, _ = text.value.partition("=")
    shown = text.part_after("=") if equals else None
    return Setting.parse(name, text.part(0, len(name)), shown, texts, name)


@dataclass(frozen=True)
class OptionShapes:
    """The kinds of values that options take: see knowledge/vllm_option_shapes.yaml."""

    flags: frozenset[str]
    several: frozenset[str]
    whole: frozenset[str]
    number: frozenset[str]
    short: Mapping[str, str]
    choices: Mapping[str, tuple[str, ...]]


@once
def option_shapes() -> OptionShapes:
    read = load_package_file("winhost.knowledge", "vllm_option_shapes.yaml")
    sets = {name: frozenset(read[name].split()) for name in ("flags", "several", "whole", "number")}
    return OptionShapes(**sets, short=read["short"], choices={k: tuple(v) for k, v in read["choices"].items()})


_INFO_OPTIONS = ("--help", "-h", "--version")
MAX_WORDS = 500  # words of a command; vLLM has about 320 options


def full_name(written: str) -> str:
    """Return the full name of an option: `--tensor-parallel-size` for `-tp`, `--tensor_parallel_size` or an unambiguous
    abbreviation.
    """
    head, dot, _ = written.partition(".")
    if dot:
        return full_name(head)  # `--eplb-config.window_size` is one entry of --eplb-config
    if not written.startswith("--"):
        return option_shapes().short.get(written, written)
    name = written.replace("_", "-")
    known = names("engine")
    if name in known:
        return name
    candidates = [each for each in known if each.startswith(name) and not each.startswith("--no-")]
    return candidates[0] if len(candidates) == 1 else name


def read_vllm_arguments(words: Sequence[PlacedText], engine: RecipeEngine) -> None:
    """Read the arguments of vLLM into the engine: options, model, and stray words."""
    rest = list(words[:MAX_WORDS])
    if len(words) > MAX_WORDS:
        problem = {"problem": f"it has more than {MAX_WORDS} words"}
        engine.slips.append(Observation("unreadable", words[MAX_WORDS].start, problem))
    while rest:
        word = rest.pop(0)
        if word.value == "--" or not word.value:
            continue
        if not _is_option(word.value):
            _add_positional(word, engine)
            continue
        written, equals, _ = word.value.partition("=")
        written, inner = _split_short_option(written)
        name = full_name(written)
        if equals or inner:
            value = word.part_after("=") if equals else word.part(len(written))
            engine.options.append(Setting.parse(name, word.part(0, len(written)), value, (word,), written))
        else:
            taken = _take_values(name, rest)
            found = Setting.parse(name, word, taken[0] if taken else None, (word, *taken), written)
            several = " ".join(each.value for each in taken)
            engine.options.append(replace(found, value=several) if len(taken) > 1 else found)


def _is_option(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and not _is_number(word)


def _is_number(word: str) -> bool:
    return word.lstrip("-").replace(".", "", 1).isdigit()


def _split_short_option(written: str) -> tuple[str, str]:
    """Split a short name from a value that follows it directly: `-O3`, `-tp2`."""
    if written.startswith("--") or written in option_shapes().short:
        return written, ""
    found = [short for short in option_shapes().short if written.startswith(short) and written[len(short) :].isdigit()]
    return (found[0], written[len(found[0]) :]) if found else (written, "")


def _take_values(name: str, rest: list[PlacedText]) -> list[PlacedText]:
    """Remove the values of an option from the following words, and return them."""
    if name in option_shapes().flags or not rest or _is_option(rest[0].value):
        return []
    taken = [rest.pop(0)]
    while name in option_shapes().several and rest and not _is_option(rest[0].value):
        taken.append(rest.pop(0))
    return taken


def _add_positional(word: PlacedText, engine: RecipeEngine) -> None:
    if engine.model is None:
        engine.model, engine.model_first = word, not engine.options
    else:
        engine.strays.append(word)


@dataclass(frozen=True)
class OtherEngine:
    """See engines.yaml."""

    title: str
    image: str
    cuda: str
    starts: tuple[str, ...]
    port: int
    local: bool
    port_from: tuple[str, ...]
    host_from: tuple[str, ...]
    key_from: tuple[str, ...]
    same: Mapping[str, str]
    keeps: str
    apart: tuple[str, ...] = ()


@once
def other_engines() -> Mapping[str, OtherEngine]:
    return {name: OtherEngine(**row) for name, row in load_package_file(__package__, "engines.yaml").items()}


def engine_of_image(image: str) -> str | None:
    """Return the engine that an image starts by itself; None if it is not known."""
    path = re.sub(r":[^/:]*$", "", image.partition("@")[0])
    names_of = {False: image_name(image), True: path}
    return next(
        (kind for kind, each in other_engines().items() if re.fullmatch(each.image, names_of["/" in each.image])), None
    )


def has_port(engine: RecipeEngine) -> bool:
    """Tell whether an engine serves a port; FFmpeg does not."""
    return engine.kind not in other_engines() or bool(other_engines()[engine.kind].port)


def find_other_engine(words: Sequence[PlacedText]) -> tuple[str, int] | None:
    """Return the engine other than vLLM that these words start, and the index of its first argument; None for any other
    command.
    """
    values = [PurePosixPath(words[0].value).name, *(word.value for word in words[1:5])] if words else []
    skipped = 1 if values and re.fullmatch(r"python[\d.]*", values[0]) else 0
    for kind, each in other_engines().items():
        for start in each.starts:
            begins = start.split()
            behind = skipped + len(begins)
            if values[skipped:behind] == begins and not {*values[behind : behind + 1]} & {*each.apart, *_INFO_OPTIONS}:
                return kind, behind
    return None


def read_other_engine(kind: str, words: Sequence[PlacedText], engine: RecipeEngine) -> None:
    """Read the options of another engine, under vLLM's names where it has the same option. A word after an option is
    its value.
    """
    engine.kind, engine.words, rest = kind, words, list(words)
    while rest:
        word = rest.pop(0)
        written, equals, _ = word.value.partition("=")
        if not written.startswith("-"):
            continue
        shown = word.part_after("=") if equals else rest.pop(0) if rest and not rest[0].value.startswith("-") else None
        name = other_engines()[kind].same.get(written, written)
        engine.options.append(Setting.parse(name, word.part(0, len(written)), shown, (word,), written))
