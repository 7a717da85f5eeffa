"""Playbooks: which resources a path wants, in YAML. Values come from the path's decisions, order comes from needs."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from winhost.model.errors import did_you_mean
from winhost.model.facts import Json
from winhost.model.yamlfile import Finding, dotted, findings_of, load_placed
from winhost.paths.vocabulary import VOCABULARIES, Vocabulary
from winhost.resources.registry import RESOURCE_TYPES

REFERENCE = re.compile(r"\$\{([^{}]*)\}")
SETTABLE = sorted(name for name, noun in RESOURCE_TYPES.items() if noun.sets)


class PlaybookResource(BaseModel):
    """One resource that the path wants, or one for each of a list."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    noun: str = Field(description="A noun that can be set.", json_schema_extra={"enum": [*SETTABLE]})
    title: str = Field(description="What it is, for the plan's table; may hold ${references}.")
    key: dict[str, str] = Field(default={}, description="Which instance; values may be ${references}.")
    want: dict[str, Json] = Field(description="The properties and the values they shall have.")
    why: str = Field(description="One sentence for the reader of the plan.")
    for_each: str | None = Field(default=None, description="A decision that is a list; each is `${each.…}`.")

    @model_validator(mode="after")
    def _fits_its_noun(self) -> "PlaybookResource":
        noun = RESOURCE_TYPES.get(self.noun)
        if noun is None or not noun.sets:
            raise ValueError(f"{self.noun} is not a noun that can be set; these can: {', '.join(SETTABLE)}")
        literal = {name: value for name, value in self.want.items() if not REFERENCE.search(str(value))}
        misfit = noun.misfit(self.key, self.want) or noun.wrong_value(literal)
        if misfit:
            raise ValueError(misfit)
        return self


class Playbook(BaseModel):
    """The file `playbooks/<path>.yaml`, or a copy of it with other values and more resources."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    schema_: Literal["winhost.playbook/1"] = Field(alias="schema")
    path: str = Field(description="The path whose decisions fill the references.")
    settings: dict[str, Json] = Field(default={}, description="What the path lets you decide; as plan --set does.")
    resources: list[PlaybookResource]


def read_playbook(path: Path) -> Playbook:
    """With names spelled out. Raises UsageError (FileFaults) with every fault of the file."""
    playbook = load_placed(path, Playbook, _faults).value
    return playbook.model_copy(update={"settings": spelled_out(playbook.path, playbook.settings)})


def spelled_out(path: str, settings: Mapping[str, Json]) -> dict[str, Json]:
    """The settings with what their names stand for: a plan holds that, and no later winhost means another by it.

    A name that is not known stays, for `faults_of` to tell.
    """
    named = VOCABULARIES[path].named if path in VOCABULARIES else {}
    return {
        name: dict(named[name][value]) if isinstance(value, str) and value in named.get(name, {}) else value
        for name, value in settings.items()
    }


def faults_of(content: Json) -> list[str]:
    """What is wrong with a playbook that travelled in a plan, each with its place."""
    try:
        found = _faults(Playbook.model_validate(content))
        return [f"{dotted(loc)}: {message}" for loc, message in found]
    except ValidationError as error:
        return [f"{dotted(loc)}: {message}" for loc, message in findings_of(error, content, Playbook)]


def _faults(playbook: Playbook) -> Iterator[Finding]:
    """Settings and references that the path does not know. A path without a vocabulary cannot be planned at all."""
    known = VOCABULARIES.get(playbook.path)
    if known is None:
        return
    yield from _wrong_settings(playbook.settings, known.settings)
    for number, entry in enumerate(playbook.resources):
        for loc, wrong in _wrong_in(entry, known):
            yield ("resources", number, *loc), wrong


def _wrong_settings(given: Mapping[str, Json], settings: type[BaseModel]) -> Iterator[Finding]:
    try:
        settings.model_validate(given)
    except ValidationError as error:
        for loc, message in findings_of(error, given, settings):
            yield ("settings", *loc), message


def _wrong_in(entry: PlaybookResource, known: Vocabulary) -> Iterator[tuple[tuple[str, ...], str]]:
    if entry.for_each is not None and entry.for_each not in known.lists:
        yield ("for_each",), f"should be one of: {', '.join(known.lists)}"
        return
    parts = known.lists[entry.for_each] if entry.for_each else ()
    words = (*known.decisions, *(f"each.{part}" for part in parts))
    for loc, text in _texts(entry):
        for reference in map(str.strip, REFERENCE.findall(text)):
            if reference not in words:
                near = did_you_mean(reference, words) or f"; there are: {', '.join(words)}"
                yield loc, f"${{{reference}}} is not decided here{near}"


def _texts(entry: PlaybookResource) -> Iterator[tuple[tuple[str, ...], str]]:
    yield from ((("key", name), value) for name, value in entry.key.items())
    yield from ((("want", name), value) for name, value in entry.want.items() if isinstance(value, str))
    yield from ((("title",), entry.title), (("why",), entry.why))
