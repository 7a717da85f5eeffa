"""The progress of an installation, from the reports of the installer's webhook. Anybody on the network can send such
reports: they are shown, and decide nothing.
"""

import json
from dataclasses import field
from enum import StrEnum

from winhost.core.dataclass import dataclass
from winhost.model.errors import visible

_LONGEST = 200


class InstallPhase(StrEnum):
    """The phases in their order."""

    WAITING = "waiting"
    STARTED = "started"
    COMPARED = "compared"
    PARTITIONED = "partitioning"
    COPIED = "copying"
    CONFIGURED = "configuring"
    FINISHED = "finishing"
    RESTARTING = "restarting"


# What an event's name or description has, by the phase that it begins; the first that fits.
_SIGNS = (
    (InstallPhase.RESTARTING, ("subiquity/shutdown",)),
    (InstallPhase.FINISHED, ("subiquity/late", "/postinstall", "final system configuration")),
    (InstallPhase.CONFIGURED, ("curthooks", "configuring installed system", "/install/configure")),
    (InstallPhase.COPIED, ("extract", "/acquiring")),
    (InstallPhase.PARTITIONED, ("partitioning", "block-meta", "block_meta")),
    (InstallPhase.COMPARED, ("winhost/guard",)),
)
_ORDER = list(InstallPhase)


@dataclass(frozen=True)
class InstallEvent:
    """One event: its name, what it is about, whether it begins or ends, and how it ended."""

    name: str
    description: str
    begins: bool
    failed: bool


def parsed_event(data: bytes) -> InstallEvent | None:
    """Parse an event of the installer; None for any other data."""
    try:
        told = json.loads(data)
    except ValueError:
        return None
    if not isinstance(told, dict) or not isinstance(told.get("name"), str):
        return None
    name, description = (visible(str(told.get(key, ""))[:_LONGEST]) for key in ("name", "description"))
    failed = str(told.get("result", "")).upper() in ("FAIL", "FAILED")
    return InstallEvent(name, description, told.get("event_type") == "start", failed)


@dataclass
class InstallProgress:
    """phase: the furthest that was heard of; failure: what the installer or the guard said of it."""

    phase: InstallPhase = InstallPhase.WAITING
    failure: str | None = None
    heard: int = field(default=0)

    def hear(self, event: InstallEvent) -> bool:
        """Take in an event; true where the installation is further, or has failed."""
        self.heard += 1
        before = (self.phase, self.failure)
        self.phase = max(self.phase, _phase(event), key=_ORDER.index)
        # Events around one that failed repeat it, with less to say.
        if event.failed and self.failure is None:
            self.failure = event.description or event.name
        return (self.phase, self.failure) != before


def _phase(event: InstallEvent) -> InstallPhase:
    words = f"{event.name} {event.description}".lower()
    found = next((phase for phase, signs in _SIGNS if any(sign in words for sign in signs)), InstallPhase.STARTED)
    return InstallPhase.STARTED if event.failed and found is InstallPhase.COMPARED else found
