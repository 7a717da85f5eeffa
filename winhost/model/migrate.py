"""Version 1 of our files, read for ever: here its words become those of version 2, which alone is ever written.

What changed is names of fields and the names of two roles of steps; no meaning did. Everything behind this module knows
version 2 alone.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

At = tuple[str | None, ...]
"""A place in a document: keys from its root, and None for each position in a list."""

Loc = tuple[str | int, ...]

EACH = None  # any item of a list


def _under(place: At, fields: Mapping[At, str]) -> dict[At, str]:
    return {(*place, *at): name for at, name in fields.items()}


_DESIRED: Mapping[At, str] = {("noun",): "resource", ("want",): "desired"}
_NAMED: Mapping[At, str] = {("noun",): "resource"}
_PLAYBOOK: Mapping[At, str] = _under(("resources", EACH), _DESIRED)
_REQUEST: Mapping[At, str] = _under(("playbook",), _PLAYBOOK)
_STAGE: Mapping[At, str] = {
    ("wanted",): "desired",
    **_under(("wanted", EACH), _DESIRED),
    **_under(("steps", EACH), _DESIRED),
    **_under(("deferred", EACH), _NAMED),
}
_PLAN: Mapping[At, str] = {
    ("wish",): "request",
    **_under(("wish",), _REQUEST),
    **_under(("stages", EACH), _STAGE),
    ("unchecked", EACH, "nouns"): "resources",
}

# Kind of document → where a field has another name now, with its place in the words of version 1.
_RENAMED: Mapping[str, Mapping[At, str]] = {
    "facts": {("nouns",): "resources"},
    "host": {("nouns",): "resources"},
    "playbook": _PLAYBOOK,
    "plan": _PLAN,
    "journal": {
        ("noun",): "resource",
        ("wish",): "request",
        ("things",): "resources",
        **_under(("plan",), _PLAN),
        **_under(("stage",), _STAGE),
        **_under(("step",), _DESIRED),
        **_under(("wish",), _REQUEST),
        **_under(("things", EACH), _NAMED),
        **_under(("left", EACH), _NAMED),
        **_under(("resting", EACH), _NAMED),
        **_under(("users", EACH), _NAMED),
        **_under(("resting", EACH, "users", EACH), _NAMED),
    },
}

_ROLES = {"wish": "desired", "give-back": "restore"}
_EVENTS = {"given-back": "restored", "rested": "dependents"}
# Where a value has another name now.
_VALUES: Mapping[str, Mapping[At, Mapping[str, str]]] = {
    "facts": {},
    "host": {},
    "playbook": {},
    "plan": {("stages", EACH, "steps", EACH, "role"): _ROLES},
    "journal": {
        ("event",): _EVENTS,
        ("step", "role"): _ROLES,
        ("stage", "steps", EACH, "role"): _ROLES,
        ("plan", "stages", EACH, "steps", EACH, "role"): _ROLES,
    },
}
# Documents of ours that stand inside others.
_SCHEMAS: Mapping[str, tuple[At, ...]] = {
    "plan": (("wish", "playbook"),),
    "journal": (("plan",), ("plan", "wish", "playbook"), ("wish", "playbook")),
}


def kind_of_version_1(data: object) -> str | None:
    """`plan` of a document that says `winhost.plan/1`; None of all that needs no other words."""
    schema = data.get("schema") if isinstance(data, Mapping) else None
    if not isinstance(schema, str) or not schema.startswith("winhost.") or not schema.endswith("/1"):
        return None
    kind = schema[len("winhost.") : -len("/1")]
    return kind if kind in _RENAMED else None


def to_version_2(data: Any) -> Any:
    """The document in the words of version 2; what is no version 1 of ours comes back as it is."""
    kind = kind_of_version_1(data)
    return data if kind is None else renamed(data, kind)


def renamed(data: Any, kind: str) -> Any:
    """A document of version 1, or a line of a journal of version 1, in the words of version 2."""
    return _Words(kind).of(data, ())


def place_in_version_2(kind: str) -> Callable[[Loc], Loc]:
    """How a place in a document of version 1 is called in version 2."""
    words = _Words(kind)
    return lambda loc: tuple(words.loc(loc))


class _Words:
    """Renames field by field, and goes no deeper than something may have another name."""

    def __init__(self, kind: str) -> None:
        self._names = _RENAMED[kind]
        self._values = _VALUES[kind]
        self._schemas = ((), *_SCHEMAS.get(kind, ()))
        places = {*self._names, *self._values, *((*place, "schema") for place in self._schemas)}
        self._above = {place[:end] for place in places for end in range(len(place))}

    def of(self, data: Any, at: At) -> Any:
        if isinstance(data, dict) and at in self._above:
            return {self._name(key, at, data): self._value(value, (*at, key), at) for key, value in data.items()}
        if isinstance(data, list) and at in self._above:
            return [self.of(item, (*at, EACH)) for item in data]
        return data

    def loc(self, loc: Loc) -> Iterator[str | int]:
        at: At = ()
        for part in loc:
            at = (*at, EACH if isinstance(part, int) else part)
            yield part if isinstance(part, int) else self._names.get(at, part)

    def _name(self, key: str, at: At, data: Mapping[str, Any]) -> str:
        if (*at, key) in self._names:
            return self._names[(*at, key)]
        # A field that version 1 did not know stays one that nobody knows, also where its name means something now.
        return next((old for old in data if self._names.get((*at, old)) == key), key)

    def _value(self, value: Any, at: At, above: At) -> Any:
        if at[-1] == "schema" and above in self._schemas and isinstance(value, str) and value.endswith("/1"):
            return f"{value[:-1]}2"
        if at in self._values and isinstance(value, str):
            return self._values[at].get(value, value)
        return self.of(value, at)
