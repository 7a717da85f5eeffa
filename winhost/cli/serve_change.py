"""The answer of `winhost serve up` and `down`: the outcome for each unit."""

from typing import Literal, TypeAlias

from winhost.cli.output import say
from winhost.core.dataclass import dataclass

# As it is now; `already` where it was so before.
Outcome: TypeAlias = Literal["serving", "already-serving", "taking-turns", "stopped", "already-stopped"]


@dataclass(frozen=True)
class ChangedUnit:
    """source: a model, or `gateway`; seconds: that it took; enabled: it starts with the machine."""

    source: str
    unit: str
    outcome: Outcome
    seconds: float
    enabled: bool


@dataclass(frozen=True)
class ServingChange:
    """url: where the gateway listens, as the machine itself reaches it."""

    host: str
    url: str
    units: tuple[ChangedUnit, ...]


def show_change(found: ServingChange) -> None:
    for each in found.units:
        took = f" after {each.seconds:.0f} s" if each.outcome in ("serving", "stopped") else ""
        say(f"{found.host}: {each.source}: {each.outcome.replace('-', ' ')}{took}", hang=2)
