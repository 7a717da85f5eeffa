"""Whose turn it is, as the gateway's metrics say."""

from collections.abc import Collection

from winhost.core.dataclass import dataclass
from winhost.model.served import Sample

_STATE = "turn:"
AT_REST = ("down", "asleep", "suspended", "waking", "falling-asleep")
"""States in which a model does not answer now, and does when its turn comes."""


@dataclass(frozen=True)
class TurnStatus:
    """state: as the gateway has it; waiting: requests that wait for the turn; move_seconds: how long the engine took to
    wake or start the last time, and move_at: when it had, in seconds since 1970. None where it has not been moved since
    the gateway began.
    """

    state: str
    waiting: int
    move_seconds: float | None
    move_at: float | None


def turn_of(model: str, metrics: Collection[Sample]) -> TurnStatus | None:
    """None where the model takes no turns."""
    found = {each.name: each.value for each in metrics if each.model == model}
    state = next((name.removeprefix(_STATE) for name in found if name.startswith(_STATE)), None)
    if state is None:
        return None
    return TurnStatus(state, int(found.get("turn_waiting", 0)), found.get("move_seconds"), found.get("move_at"))
