"""What is asked of a simulated host by one `set`."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field

from winhost.core.answers import Json, Key
from winhost.core.dataclass import dataclass
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.windows_errors import CmdletError


@dataclass(frozen=True)
class SetCall:
    """One `set`: what is wanted of which instance, and how. within: lab seconds that it may take; secret: what its
    secret reference stands for.
    """

    key: Key
    desired: Mapping[str, Json]
    accept: frozenset[str]
    within: float
    stop: threading.Event
    warnings: list[str] = field(default_factory=list)
    secret: str = field(default="", repr=False)

    @contextmanager
    def or_warn(self, what: str) -> Iterator[None]:
        """What fails in this is a warning, and the change goes on."""
        try:
            yield
        except CmdletError as error:
            self.warnings.append(f"{what}: {error.message}")


SetOnHost = Callable[[Machine, SetCall], bool | None]
"""Changes the host; tells whether that takes a restart. Raises CmdletError and NotYet."""

UploadToHost = Callable[[Machine, Key, Mapping[str, Json] | None], Mapping[str, Json]]
"""Takes a piece, or none; tells how much was received. Raises CmdletError."""
