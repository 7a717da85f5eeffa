"""The words behind `docker run` and `podman run`: the container, its image, and what runs in it."""

from collections.abc import Mapping, Sequence
from importlib.resources import files

from winhost.core.dataclass import dataclass
from winhost.model.catalogue_file import load_catalogue
from winhost.model.once import once
from winhost.recipes.recipe_model import RecipeEngine, RecipeForm, Setting
from winhost.recipes.recipe_text import PlacedText
from winhost.serving.vllm_options import names

IMAGE = "image"
TOOLS = ("docker", "podman", "nerdctl", "wslc")


def image_name(image: str) -> str:
    """Without its registry, tag and digest."""
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
    read = load_catalogue(files(__package__).joinpath("container_options.yaml"))
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
    if value is None and rest and name not in container_options().flags and not _is_flag_cluster(written):
        value = rest.pop(0)
        texts = (word, value)
    add_to(engine, Setting.of(name, word, value, texts, written))


def _is_flag_cluster(written: str) -> bool:
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
