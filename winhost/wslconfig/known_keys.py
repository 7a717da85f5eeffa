"""The keys of the two files: what they are, and which WSL knows them."""

from collections.abc import Iterator, Mapping
from dataclasses import field
from importlib.resources import files
from typing import Any

from winhost.core.dataclass import dataclass
from winhost.model.catalogue_file import load_catalogue
from winhost.model.once import once
from winhost.wslconfig.format import WSLCONF, WSLCONFIG, Dialect

Id = tuple[str, str]
"""Section and key in lower case."""


@dataclass(frozen=True)
class Key:
    """A key of the table; see known_keys.yaml for what each field means."""

    section: str
    name: str
    type: str
    default: str = ""
    values: tuple[str, ...] = ()
    since: str | None = None
    since_doubt: str = ""
    told_from: str = "2.5.8"
    values_since: Mapping[str, str] = field(default_factory=dict)
    alias: str | None = None
    policy: str | None = None
    allowed: tuple[object, ...] = ("", 0, False)
    modes: tuple[str, ...] = ()
    needs: str | None = None
    idle_when: Mapping[str, object] = field(default_factory=dict)
    beware: Mapping[object, str] = field(default_factory=dict)
    note: str = ""

    @property
    def id(self) -> Id:
        """As WSL compares it."""
        return self.section.lower(), self.name.lower()

    def __str__(self) -> str:
        return f"{self.section}.{self.name}"


def key_of(dialect: Dialect, line: Id) -> Key | None:
    """The key that a line sets, also by its older name; None for one that WSL does not know."""
    return _table(dialect.name).get(line)


def keys_of(dialect: Dialect) -> list[Key]:
    """All keys of a file, each once."""
    return list({str(key): key for key in _table(dialect.name).values()}.values())


def sections_of(dialect: Dialect) -> list[str]:
    """The names of its sections."""
    return list(_book()[dialect.name])


def other(dialect: Dialect) -> Dialect:
    """The other of the two files, to which a misplaced key may belong."""
    return WSLCONF if dialect.windows else WSLCONFIG


@once
def _table(file: str) -> Mapping[Id, Key]:
    keys = {key.id: key for key in _rows(file)}
    return {name: keys[_id(key.alias)] if key.alias else key for name, key in keys.items()}


def _rows(file: str) -> Iterator[Key]:
    for section, rows in _book()[file].items():
        for key, row in rows.items():
            facts: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in row.items()}
            yield Key(section, key, **facts)


def _id(dotted: str) -> Id:
    section, _, name = dotted.lower().partition(".")
    return section, name


@once
def _book() -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    book: Mapping[str, Mapping[str, Mapping[str, Any]]] = load_catalogue(files(__package__).joinpath("known_keys.yaml"))
    return book
