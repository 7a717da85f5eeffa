"""The time that winhost waits for a machine."""

from winhost.core.dataclass import dataclass


@dataclass(frozen=True)
class Patience:
    """The waiting times in seconds: back-off from `first` to `longest` with jitter, and one deadline over all of it."""

    deadline: float = 1800
    first: float = 1
    longest: float = 12
