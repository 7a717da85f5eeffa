"""The words behind docker run, behind vllm serve, and of engines beside vLLM, as their parsers take them."""

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
    """An option of the container among those of vLLM, which does not have it."""
    if engine.form is not RecipeForm.COMMAND or not engine.in_container or setting.name in names("engine"):
        return False
    return setting.name in container_options().flags | container_options().valued or setting.written in (
        "-p",
        "-v",
        "-e",
    )


def read_container(words: Sequence[PlacedText], engine: RecipeEngine) -> list[PlacedText]:
    """Fills in the container; what is left are the words that run in it."""
    rest = list(words)
    engine.in_container = True
    while rest:
        word = rest.pop(0)
        if not word.value.startswith("-") or word.value == "-":
            engine.container.append(Setting.of(IMAGE, word, word, (word,), IMAGE))
            return rest
        _read_option(word, rest, engine)
    return []


def _read_option(word: PlacedText, rest: list[PlacedText], engine: RecipeEngine) -> None:
    written, equals, _ = word.value.partition("=")
    value = word.after("=") if equals else None
    texts: tuple[PlacedText, ...] = (word,)
    if not written.startswith("--") and len(written) > 2:
        written, value = _cluster(word)
    name = container_options().short.get(written, written)
    if value is None and rest and name not in container_options().flags and not is_flag_cluster(written):
        value = rest.pop(0)
        texts = (word, value)
    add_to(engine, Setting.of(name, word, value, texts, written))


def is_flag_cluster(written: str) -> bool:
    """`-it`"""
    return not written.startswith("--") and set(written[1:]) <= set("ditP")


def _cluster(word: PlacedText) -> tuple[str, PlacedText | None]:
    """`-it` is two flags, `-p8000:8000` an option with its value."""
    short = word.value[:2]
    if container_options().short.get(short) in container_options().flags:
        return word.value, None
    first = 3 if word.value[2:3] == "=" else 2
    return short, word.part(first)


def add_to(engine: RecipeEngine, setting: Setting) -> None:
    """A setting of a container; its environment is the engine's."""
    if setting.name == "--env" and setting.shown is not None:
        engine.variables.append(variable(setting.shown, setting.texts))
    else:
        engine.container.append(setting)


def variable(text: PlacedText, texts: tuple[PlacedText, ...]) -> Setting:
    """`NAME=VALUE`; a name alone has its value from elsewhere."""
    name, equals, _ = text.value.partition("=")
    shown = text.after("=") if equals else None
    return Setting.of(name, text.part(0, len(name)), shown, texts, name)


@dataclass(frozen=True)
class OptionShapes:
    """The values that options take: see knowledge/vllm_option_shapes.yaml."""

    flags: frozenset[str]
    several: frozenset[str]
    whole: frozenset[str]
    number: frozenset[str]
    short: Mapping[str, str]
    choices: Mapping[str, tuple[str, ...]]


@once
def shapes() -> OptionShapes:
    read = load_package_file("winhost.knowledge", "vllm_option_shapes.yaml")
    sets = {name: frozenset(read[name].split()) for name in ("flags", "several", "whole", "number")}
    return OptionShapes(**sets, short=read["short"], choices={k: tuple(v) for k, v in read["choices"].items()})


_NO_START = ("--help", "-h", "--version")
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
        engine.slips.append(Observation("unreadable", words[MOST].start, said))
    while rest:
        word = rest.pop(0)
        if word.value == "--" or not word.value:
            continue
        if not _is_option(word.value):
            _take(word, engine)
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


def _take(word: PlacedText, engine: RecipeEngine) -> None:
    if engine.model is None:
        engine.model, engine.leads = word, not engine.options
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


def kind_of(image: str) -> str | None:
    """The engine that an image starts by itself."""
    path = re.sub(r":[^/:]*$", "", image.partition("@")[0])
    names_of = {False: image_name(image), True: path}
    return next(
        (kind for kind, each in other_engines().items() if re.fullmatch(each.image, names_of["/" in each.image])), None
    )


def has_port(engine: RecipeEngine) -> bool:
    """Tell whether it serves a port; FFmpeg does not."""
    return engine.kind not in other_engines() or bool(other_engines()[engine.kind].port)


def other_started(words: Sequence[PlacedText]) -> tuple[str, int] | None:
    """The engine that these words start, and where its own begin."""
    values = [PurePosixPath(words[0].value).name, *(word.value for word in words[1:5])] if words else []
    skipped = 1 if values and re.fullmatch(r"python[\d.]*", values[0]) else 0
    for kind, each in other_engines().items():
        for start in each.starts:
            begins = start.split()
            behind = skipped + len(begins)
            if values[skipped:behind] == begins and not {*values[behind : behind + 1]} & {*each.apart, *_NO_START}:
                return kind, behind
    return None


def read_other(kind: str, words: Sequence[PlacedText], engine: RecipeEngine) -> None:
    """Fills in options, by their names in vLLM where it has the same; a word behind an option is its value."""
    engine.kind, engine.words, rest = kind, words, list(words)
    while rest:
        word = rest.pop(0)
        written, equals, _ = word.value.partition("=")
        if not written.startswith("-"):
            continue
        shown = word.after("=") if equals else rest.pop(0) if rest and not rest[0].value.startswith("-") else None
        name = other_engines()[kind].same.get(written, written)
        engine.options.append(Setting.of(name, word.part(0, len(written)), shown, (word,), written))
