"""Engines beside vLLM: known by their image or their command, and read as far as rules on containers go."""

import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Any

from winhost.core.dataclass import dataclass
from winhost.model.catalogue_file import load_catalogue
from winhost.model.once import once
from winhost.recipes.container_words import image_name
from winhost.recipes.recipe_model import RecipeEngine, Setting
from winhost.recipes.recipe_text import PlacedText


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
    key_from: tuple[str, ...]
    same: Mapping[str, str]
    keeps: str


@once
def other_engines() -> Mapping[str, OtherEngine]:
    read: Mapping[str, Mapping[str, Any]] = load_catalogue(files(__package__).joinpath("engines.yaml"))
    return {name: OtherEngine(**row) for name, row in read.items()}


def kind_of(image: str) -> str | None:
    """The engine in an image."""
    return next((kind for kind, each in other_engines().items() if re.fullmatch(each.image, image_name(image))), None)


def has_port(engine: RecipeEngine) -> bool:
    """Whether it serves others; FFmpeg does not, and outside of a container there is nothing to say of it."""
    return engine.kind not in other_engines() or bool(other_engines()[engine.kind].port)


def began(words: Sequence[PlacedText]) -> tuple[str, int] | None:
    """The engine that these words start, and where its own begin."""
    values = [PurePosixPath(words[0].value).name, *(word.value for word in words[1:3])] if words else []
    skipped = 1 if values and re.fullmatch(r"python[\d.]*", values[0]) else 0
    for kind, each in other_engines().items():
        for start in each.starts:
            begins = start.split()
            if values[skipped : skipped + len(begins)] == begins:
                return kind, skipped + len(begins)
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
