"""Playbooks: which resources a path wants, in YAML. Values come from the path's decisions, order comes from needs."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from winhost.model.facts import Json, MissingFact, Unavailable
from winhost.model.plan import Deferred, Wanted
from winhost.model.yamlfile import load
from winhost.resources.windows import NOUNS

REFERENCE = re.compile(r"\$\{([^{}]+)\}")


class Entry(BaseModel):
    """One resource that the path wants, or one for each of a list."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    noun: str = Field(description="A noun that can be set, as `winhost schema facts` lists them.")
    title: str = Field(description="What it is, for the plan's table; may hold ${references}.")
    key: dict[str, str] = Field(default={}, description="Which instance; values may be ${references}.")
    want: dict[str, Json] = Field(description="The properties and the values they shall have.")
    why: str = Field(description="One sentence for the reader of the plan.")
    for_each: str | None = Field(default=None, description="A decision that is a list; each is `${each.…}`.")

    @model_validator(mode="after")
    def _fits_its_noun(self) -> "Entry":
        noun = NOUNS.get(self.noun)
        if noun is None or not noun.sets:
            settable = ", ".join(sorted(name for name, known in NOUNS.items() if known.sets))
            raise ValueError(f"{self.noun} is not a noun that can be set; these can: {settable}")
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
    resources: list[Entry]


def read_playbook(path: Path) -> Playbook:
    """Raises FileFaults with every fault of the file."""
    return load(path, Playbook)


def expand(playbook: Playbook, decisions: object) -> tuple[tuple[Wanted, ...], tuple[Deferred, ...]]:
    """What is wanted now, and what can only be said once something else is there.

    `decisions` is the path's; an attribute that raises MissingFact for an unavailable noun defers the entry.
    """
    wanted: list[Wanted] = []
    deferred: list[Deferred] = []
    for entry in playbook.resources:
        try:
            wanted += _each(entry, decisions)
        except MissingFact as missing:
            if not isinstance(missing.missing, Unavailable):
                raise
            why = REFERENCE.sub("…", entry.why)  # what a reference will say is not known yet
            deferred.append(Deferred(entry.noun, missing.missing.unavailable, why, NOUNS[entry.noun].asks))
    return tuple(wanted), tuple(deferred)


class _Scope:
    """What a reference may name: the path's decisions, and `each`."""

    def __init__(self, decisions: object, each: object = None) -> None:
        self.decisions = decisions
        self.each = each


def _each(entry: Entry, decisions: object) -> list[Wanted]:
    return [
        Wanted(
            noun=entry.noun,
            key={name: str(_filled(value, scope)) for name, value in entry.key.items()},
            want={name: _filled(value, scope) for name, value in entry.want.items()},
            title=str(_filled(entry.title, scope)),
            why=str(_filled(entry.why, scope)),
        )
        for scope in _scopes(entry, decisions)
    ]


def _scopes(entry: Entry, decisions: object) -> Iterator[_Scope]:
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
        return _look_up(alone[1], scope)
    return REFERENCE.sub(lambda match: str(_look_up(match[1], scope)), value)


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
