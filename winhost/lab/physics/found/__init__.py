"""Parts of a simulated host that are found by their files: the physics of one resource each."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.resources import files

from winhost.core.answers import Record
from winhost.lab.physics.parts import Host, Part
from winhost.model.once import once


def found_parts(host: Host, initial: Mapping[str, Sequence[Record]]) -> list[Part]:
    """One part from the function `part` of each module here. given: the instances that the host begins with."""
    return [import_module(name).part(host, initial) for name in _modules()]


@once
def _modules() -> tuple[str, ...]:
    names = sorted(entry.name for entry in files(__package__).iterdir() if entry.name.endswith(".py"))
    return tuple(f"{__package__}.{name.removesuffix('.py')}" for name in names if name != "__init__.py")
