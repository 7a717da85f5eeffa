"""Playbooks: which resources a path wants, in YAML. Values come from the path's decisions, order comes from needs."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from winhost.model.errors import did_you_mean
from winhost.model.facts import Json, MissingFact, Unavailable
from winhost.model.plan import Deferred, DesiredResource
from winhost.model.yamlfile import Finding, dotted, findings_of, load_placed
from winhost.paths.images import images
from winhost.paths.wsl2_settings import Settings
from winhost.resources.registry import RESOURCE_TYPES

REFERENCE = re.compile(r"\$\{([^{}]*)\}")
SETTABLE = sorted(name for name, noun in RESOURCE_TYPES.items() if noun.sets)


class NoSettings(BaseModel):
    """Of a path where options of `winhost plan` say everything."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True)
class Vocabulary:
    """What the playbook of a path may refer to. lists: for `for_each`, each with the parts of its items.

    named: settings that may be a name, and what the names stand for; options: what of a Wish says something to it;
    variant: the setting that its variants are values of.
    """

    decisions: tuple[str, ...]
    lists: Mapping[str, tuple[str, ...]]
    settings: type[BaseModel] = NoSettings
    named: Mapping[str, Mapping[str, Mapping[str, str]]] = field(default_factory=dict)
    options: frozenset[str] = frozenset()
    variant: str | None = None


_FUNCTION = ("location", "device", "name")
_STAGED = ("sha256", "name", "source", "title")
VOCABULARIES = {
    "dda": Vocabulary(
        ("vm.id", "vm.name", "mmio.low", "mmio.high", "mmio.why", "place.assigned", "place.dismounted", "power"),
        {"gpus": _FUNCTION, "companions": _FUNCTION},
        options=frozenset({"vm", "cards", "low", "high", "power"}),
    ),
    "wsl2": Vocabulary(
        (
            "network",
            "account",
            "administrator",
            "distro",
            *(f"image.{part}" for part in _STAGED),
            "wsl.version",
            "memory.why",
            *(f"config.{part}" for part in ("text", "encoding", "digest")),
            *(f"conf.{part}" for part in ("text", "network", "resolver")),
        ),
        {
            "packages": _STAGED,
            "invisible": _FUNCTION,
            "switches": ("name", "adapter"),
            "ways_in": ("port", "listen", "keys", "allowed", "who"),
            "forwards": ("port", "connect", "allowed", "who"),
            "openings": ("creator", "ports", "allowed", "who"),
            "sources": ("name", "title", "uri", "suite", "components", "key", "key_sha256"),
            "packages_inside": ("name", "version", "title"),
            "files": ("path", "text", "title", "why"),
            "units": ("name",),
            "specs": ("title",),
        },
        Settings,
        {"image": images()},
        variant="network",
    ),
}


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


def expand(playbook: Playbook, decisions: object) -> tuple[tuple[DesiredResource, ...], tuple[Deferred, ...]]:
    """What is wanted now, and what can only be said once something else is there.

    `decisions` is the path's; an attribute that raises MissingFact for an unavailable noun defers the entry.
    """
    wanted: list[DesiredResource] = []
    deferred: list[Deferred] = []
    for entry in playbook.resources:
        try:
            wanted += _each(entry, decisions)
        except MissingFact as missing:
            if not isinstance(missing.missing, Unavailable):
                raise
            title, why = (_as_far_as_known(text, decisions) for text in (entry.title, entry.why))
            deferred.append(
                Deferred(entry.noun, title, missing.missing.unavailable, why, RESOURCE_TYPES[entry.noun].asks)
            )
    return tuple(wanted), tuple(deferred)


class _Scope:
    """What a reference may name: the path's decisions, and `each`."""

    def __init__(self, decisions: object, each: object = None) -> None:
        self.decisions = decisions
        self.each = each


def _each(entry: PlaybookResource, decisions: object) -> list[DesiredResource]:
    return [
        DesiredResource(
            noun=entry.noun,
            key={name: str(_filled(value, scope)) for name, value in entry.key.items()},
            want={name: _filled(value, scope) for name, value in entry.want.items()},
            title=str(_filled(entry.title, scope)),
            why=str(_filled(entry.why, scope)),
        )
        for scope in _scopes(entry, decisions)
    ]


def _scopes(entry: PlaybookResource, decisions: object) -> Iterator[_Scope]:
    if entry.for_each is None:
        yield _Scope(decisions)
        return
    items: Iterable[Any] = _look_up(entry.for_each, _Scope(decisions))
    for item in items:
        yield _Scope(decisions, item)


def _filled(value: Json, scope: _Scope) -> Json:
    """A lone reference gives its value with its type; inside text it is written out."""
    if not isinstance(value, str):
        return value
    alone = REFERENCE.fullmatch(value)
    if alone:
        found = _look_up(alone[1], scope)
        return list(found) if isinstance(found, tuple) else found  # what a host answers is JSON
    return REFERENCE.sub(lambda match: str(_look_up(match[1], scope)), value)


def _as_far_as_known(text: str, decisions: object) -> str:
    """What a reference will say that cannot be decided yet is left open; of a list that waits, so is each of it."""

    def known(match: re.Match[str]) -> str:
        try:
            return "…" if match[1].strip().startswith("each.") else str(_look_up(match[1], _Scope(decisions)))
        except MissingFact:
            return "…"

    return REFERENCE.sub(known, text)


def _look_up(reference: str, scope: _Scope) -> Any:
    """Names joined by dots, nothing else: a playbook is data, not a program."""
    first, *rest = reference.strip().split(".")
    found: Any = scope.each if first == "each" else getattr(scope.decisions, _public(first, reference))
    for name in rest:
        found = found[name] if isinstance(found, Mapping) else getattr(found, _public(name, reference))
    return found


def _public(name: str, reference: str) -> str:
    if name.startswith("_"):
        raise AttributeError(f"${{{reference}}}: no such decision")
    return name
