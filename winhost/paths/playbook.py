"""Playbooks: the desired resources of a path, in YAML, with references to the path's decisions."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from winhost.core.answers import Id, Json, identity
from winhost.core.dataclass import dataclass
from winhost.model.catalogue_file import load_catalogue
from winhost.model.errors import MAX_LISTED_FAULTS, did_you_mean
from winhost.model.once import once
from winhost.model.plan import PlanRequest
from winhost.model.shipped import shipped
from winhost.model.written import Closed
from winhost.model.yamlfile import Mistake, dotted, load_with_positions, mistakes_of
from winhost.paths.vocabulary import VOCABULARIES, NoSettings, Vocabulary
from winhost.resources.registry import RESOURCE_TYPES

REFERENCE = re.compile(r"\$\{([^{}]*)\}")


@once
def settable_resources() -> tuple[str, ...]:
    """Return the resources that can be set, in alphabetical order."""
    return tuple(sorted(name for name, resource in RESOURCE_TYPES.items() if resource.sets))


class PlaybookResource(Closed):
    """A desired resource, or one for each item of a list."""

    resource: str = Field(json_schema_extra=lambda schema: schema.update(enum=[*settable_resources()]))
    """A resource that can be set."""
    title: str
    """The title in the plan's table; may hold ${references}."""
    key: dict[str, str] = Field(default={})
    """The key of the instance; values may be ${references}."""
    desired: dict[str, Json]
    """The properties and the values they shall have."""
    why: str
    """One sentence for the reader of the plan."""
    for_each: str | None = None
    """A decision that is a list; each is `${each.…}`."""

    @model_validator(mode="after")
    def _fits_its_resource_type(self) -> "PlaybookResource":
        resource = RESOURCE_TYPES.get(self.resource)
        if resource is None or not resource.sets:
            raise ValueError(
                f"{self.resource} is not a resource that can be set; these can: {', '.join(settable_resources())}"
            )
        literal = {name: value for name, value in self.desired.items() if not REFERENCE.search(str(value))}
        misfit = resource.check_names(self.key, self.desired) or resource.check_values(literal)
        if misfit:
            raise ValueError(misfit)
        return self


class Playbook(Closed):
    """The file `playbooks/<path>.yaml`, or a copy of it with other values and more resources."""

    model_config = ConfigDict(populate_by_name=True)

    schema_: Literal["winhost.playbook/2"] = Field(alias="schema")
    path: str
    """The path whose decisions fill the references."""
    settings: dict[str, Json] = Field(default={})
    """The settings of the path, as for plan --set."""
    resources: list[PlaybookResource]

    @cached_property
    def parsed_settings(self) -> BaseModel:
        """The settings as typed objects; NoSettings where the path cannot be planned. Raises ValidationError."""
        known = VOCABULARIES.get(self.path)
        return known.settings.model_validate(self.settings) if known else NoSettings()

    @property
    def named(self) -> frozenset[Id]:
        """The resources that it names itself, independent of the host."""
        keys = ((each.resource, each.key) for each in self.resources)
        return frozenset(identity(*each) for each in keys if not REFERENCE.search(" ".join(each[1].values())))

    @property
    def content(self) -> dict[str, Any]:
        """The content in the form that a plan holds."""
        return self.model_dump(by_alias=True, mode="json")

    def with_settings(self, settings: Mapping[str, Json]) -> "Playbook":
        """Replace the settings. Raises WrongPlaybook."""
        changed = Playbook(schema=self.schema_, path=self.path, settings=dict(settings), resources=self.resources)
        if faults := [*_settings_faults(changed)] or [*_missing_entries(changed)]:
            raise WrongPlaybook(faults)
        return changed


class WrongPlaybook(ValueError):
    """The faults of a playbook that came without a file, each with its location."""

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        self.mistakes = tuple(islice(mistakes, MAX_LISTED_FAULTS))
        super().__init__("; ".join(f"{dotted(loc)}: {message}" for loc, message in self.mistakes))


def read_playbook(path: Path) -> Playbook:
    """Read a playbook and spell out the names in its settings. Raises UsageError (FileFaults) with every fault of the
    file.
    """
    playbook = _shipped(path) or load_with_positions(path, Playbook, _faults).value
    return playbook.model_copy(update={"settings": expand_names(playbook.path, playbook.settings)})


def _shipped(path: Path) -> Playbook | None:
    """Read a playbook that winhost ships. It has no faults to point at, so the positions of its words are not read."""
    if path != shipped("playbooks") / path.name:
        return None
    try:
        playbook = Playbook.model_validate(shipped_playbook(path.stem))
    except ValidationError:
        return None
    return None if any(_faults(playbook)) else playbook


@once
def shipped_playbook(path: str) -> Any:
    """Return the data of the playbook that is part of winhost."""
    return load_catalogue(shipped("playbooks") / f"{path}.yaml")


def expand_names(path: str, settings: Mapping[str, Json]) -> dict[str, Json]:
    """Replace names in the settings by their values, so that a plan does not depend on the meaning of a name.

    Unknown names are kept, and refused when the settings are parsed.
    """
    named = VOCABULARIES[path].named if path in VOCABULARIES else {}
    return {
        name: dict(named[name][value]) if isinstance(value, str) and value in named.get(name, {}) else value
        for name, value in settings.items()
    }


def parse_playbook(content: Json) -> Playbook:
    """Parse the playbook of a plan. Raises WrongPlaybook."""
    try:
        playbook = Playbook.model_validate(content)
    except ValidationError as error:
        raise WrongPlaybook(mistakes_of(error, content, Playbook)) from None
    if faults := [*_faults(playbook)]:
        raise WrongPlaybook(faults)
    return playbook


def _faults(playbook: Playbook) -> Iterator[Mistake]:
    """Yield faulty settings, unknown references and missing entries. A path without a vocabulary cannot be planned."""
    known = VOCABULARIES.get(playbook.path)
    if known is None:
        return
    wrong_settings = [*_settings_faults(playbook)]
    yield from wrong_settings
    if not wrong_settings:
        yield from _missing_entries(playbook)
    for number, entry in enumerate(playbook.resources):
        for loc, wrong in _entry_faults(entry, known):
            yield ("resources", number, *loc), wrong
    used = {entry.for_each for entry in playbook.resources}
    there = [each for each in known.together if each in used]
    left_out = [each for each in known.together if each not in used]
    if there and left_out:
        yield ("resources",), f"{there[0]} needs entries for {', '.join(left_out)} as well, or the run stops half-way"


def _missing_entries(playbook: Playbook) -> Iterator[Mistake]:
    """Yield valid settings for which the playbook has no entries, so that they would have no effect."""
    used = {entry.for_each for entry in playbook.resources}
    for setting, lists in VOCABULARIES[playbook.path].asked_for.items():
        parts = setting.split(".")
        value: Any = playbook.parsed_settings
        for part in parts:
            value = getattr(value, part, None)
        missing = [each for each in lists if each not in used]
        if value and missing:
            yield ("settings", *parts), f"needs entries for {', '.join(missing)}, which this playbook lacks"


def _settings_faults(playbook: Playbook) -> Iterator[Mistake]:
    try:
        _ = playbook.parsed_settings
    except ValidationError as error:
        for loc, message in mistakes_of(error, playbook.settings, VOCABULARIES[playbook.path].settings):
            yield ("settings", *loc), message


def _entry_faults(entry: PlaybookResource, known: Vocabulary) -> Iterator[tuple[tuple[str, ...], str]]:
    if entry.for_each is not None and entry.for_each not in known.lists:
        yield ("for_each",), f"should be one of: {', '.join(known.lists)}"
        return
    parts = known.lists[entry.for_each] if entry.for_each else ()
    words = (*known.decisions, *(f"each.{part}" for part in parts))
    texts: list[tuple[tuple[str, ...], str]] = [(("title",), entry.title), (("why",), entry.why)]
    texts += [(("key", name), value) for name, value in entry.key.items()]
    texts += [(("desired", name), value) for name, value in entry.desired.items() if isinstance(value, str)]
    for loc, text in texts:
        for reference in map(str.strip, REFERENCE.findall(text)):
            if reference not in words:
                near = did_you_mean(reference, words) or f"; there are: {', '.join(words)}"
                yield loc, f"${{{reference}}} is not decided here{near}"


@dataclass(frozen=True)
class PathRequest:
    """A plan request with its playbook and settings as objects. document: the same as plans and journals hold it."""

    document: PlanRequest
    playbook: Playbook

    @property
    def path(self) -> str:
        return self.document.path

    def with_options(self, **values: Any) -> "PathRequest":
        """Replace fields of PlanRequest; the playbook stays."""
        return replace(self, document=replace(self.document, **values))

    def with_playbook(self, playbook: Playbook) -> "PathRequest":
        return PathRequest(replace(self.document, playbook=playbook.content), playbook)

    def with_settings(self, **changed: Json) -> "PathRequest":
        """Replace these settings of the path; others stay. Raises WrongPlaybook."""
        return self.with_playbook(self.playbook.with_settings({**self.playbook.settings, **changed}))


def parse_request(document: PlanRequest) -> PathRequest:
    """Parse the request of a plan or journal. Raises WrongPlaybook."""
    return PathRequest(document, parse_playbook(document.playbook))
