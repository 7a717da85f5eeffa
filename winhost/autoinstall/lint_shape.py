"""Rules on the shape of a file, section by section. The installer checks the same before it does anything."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from winhost.autoinstall.autoinstall_file import (
    PLACEHOLDER,
    AutoinstallContext,
    Loc,
    bare,
    last_key,
    schema,
    storage_bytes,
)
from winhost.core.dataclass import dataclass
from winhost.findings.finding import Observation
from winhost.model.errors import did_you_mean_or_period

_KINDS: Mapping[str, tuple[str, Any]] = {
    "text": ("a text (quote what YAML reads as something else)", str),
    "whole": ("a whole number", int),
    "number": ("a number", int | float),
    "map": ("a mapping of keys to values", dict),
    "list": ("a list", list),
    "bool": ("true or false", bool),
    "null": ("empty", type(None)),
    "size": ("a size, as 512M, 1.5G, 50% or -1 (its unit is one letter: 512M, never 512MB)", int | str),
    "any": ("anything", object),
}


@dataclass(frozen=True)
class _Fault:
    """code: of the finding; subject: what the finding is about; near: a suggestion, or a period."""

    loc: Loc
    code: str
    subject: str
    near: str = "."


def check_shapes(context: AutoinstallContext) -> Iterator[Observation]:
    """Find shapes that stop the installer with `Malformed autoinstall`, or in its storage section."""
    if not context.file.section:
        return
    for fault in _faults(context.file.section, schema()["sections"], ()):
        section = f" (`Malformed autoinstall in '{fault.loc[0]}' section`)" if fault.loc else ""
        yield _observe(context, fault, section)
    for each in context.actions:
        if "type" not in each.data or each.type in schema()["actions"]:
            shape = schema()["actions"].get(each.type, {"id!": "text", "type!": "text"})
            yield from (
                _observe(context, fault, " at the storage section") for fault in _faults(each.data, shape, each.loc)
            )
        else:
            near = did_you_mean_or_period(each.type, schema()["actions"])
            yield context.observe((*each.loc, "type"), "unknown-type", id=each.id, type=each.type, near=near)


def _observe(context: AutoinstallContext, fault: _Fault, at: str) -> Observation:
    return context.observe(fault.loc, fault.code, key=last_key(fault.loc), word=fault.subject, near=fault.near, at=at)


def _faults(value: Any, shape: Any, loc: Loc) -> list[_Fault]:
    if isinstance(shape, list):
        same = [each for each in shape if each == value and isinstance(each, bool) == isinstance(value, bool)]
        known = (str(each).lower() if isinstance(each, bool) else str(each) for each in shape)
        return [] if same else [_Fault(loc, "malformed", f"one of {', '.join(known)}")]
    if isinstance(value, str) and PLACEHOLDER.fullmatch(value):
        return []
    if isinstance(shape, str):
        kinds = shape.split("|")
        expected = " or ".join(_KINDS[kind][0] for kind in kinds)
        return [] if any(_is(value, kind) for kind in kinds) else [_Fault(loc, "malformed", expected)]
    if "~" in shape:
        fits = isinstance(value, str) and re.fullmatch(shape["~"], value)
        return [] if fits else [_Fault(loc, "malformed", f"a text like {shape['~']}")]
    if "|" in shape:
        return _alternative_faults(value, shape["|"], loc)
    if "[]" in shape:
        if not isinstance(value, list):
            return [_Fault(loc, "malformed", "a list")]
        return [fault for at, item in enumerate(value) for fault in _faults(item, shape["[]"], (*loc, at))]
    return list(_mapping_faults(value, shape, loc))


def _is(value: Any, kind: str) -> bool:
    if kind == "any":
        return True
    if kind in ("whole", "number") and isinstance(value, float):
        return kind == "number" or value.is_integer()
    fits = isinstance(value, _KINDS[kind][1]) and isinstance(value, bool) == (kind == "bool")
    return fits and (kind != "size" or storage_bytes(value) is not None)


def _alternative_faults(value: Any, forms: list[Any], loc: Loc) -> list[_Fault]:
    def distance(faults: list[_Fault]) -> tuple[int, int]:
        return len(faults), -max((len(fault.loc) for fault in faults), default=0)

    by_distance = sorted((_faults(value, form, loc) for form in forms), key=distance)
    if by_distance[1:] and not by_distance[1]:
        return [_Fault(loc, "malformed", "in one of two forms, not in both")]
    return by_distance[0]


def _mapping_faults(value: Any, shape: Mapping[str, Any], loc: Loc) -> Iterator[_Fault]:
    if not isinstance(value, dict):
        yield _Fault(loc, "malformed", _KINDS["map"][0])
        return
    known = bare(shape)
    for written, inner in shape.items():
        key = written.rstrip("!?")
        if key in value and not (written.endswith("?") and value[key] is None):
            yield from _faults(value[key], inner, (*loc, key)) if key not in ("*", "=") else ()
        elif written.endswith("!"):
            yield _Fault(loc, "lacks-key", key)
    for other in value.keys() - known:
        if "*" in shape:
            yield from _faults(value[other], shape["*"], (*loc, str(other)))
        elif "=" in shape:
            yield _Fault((*loc, str(other)), "key-refused", str(other), did_you_mean_or_period(str(other), known))


def check_ids(context: AutoinstallContext) -> Iterator[Observation]:
    """Check that each entry has a unique id, and refers only to earlier entries."""
    every, seen = {each.data.get("id") for each in context.actions if isinstance(each.data.get("id"), str)}, set()
    for each in context.actions:
        for key in schema()["refs"].get(each.type, ()):
            named = each.data.get(key)
            for at, name in enumerate(named if isinstance(named, list) else [named]):
                if isinstance(name, str) and name not in seen:
                    loc = (*each.loc, key, at) if isinstance(named, list) else (*each.loc, key)
                    why = "comes later in the file" if name in every else "is not there"
                    yield context.observe(loc, "id-unknown", id=each.id, key=key, name=name, why=why)
        if each.id in seen:
            yield context.observe((*each.loc, "id"), "id-twice", id=each.id)
        seen.add(each.id)
