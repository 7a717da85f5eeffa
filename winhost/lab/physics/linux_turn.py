"""The system that takes turns with Windows on a simulated machine: what its installer left, and whether it runs."""

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from winhost.core.dataclass import dataclass


@dataclass(frozen=True, repr=False)
class InstalledLinux:
    """private: its SSH host key, in OpenSSH's text; user, keys: who may log on."""

    hostname: str
    private: str
    user: str
    keys: tuple[str, ...]


def _fails() -> InstalledLinux | None:
    return None


@dataclass
class LinuxTurn:
    """installer: plays it, and gives what it installed, or None where it stops; starts: of the Linux so far."""

    installer: Callable[[], InstalledLinux | None] = field(default=_fails)
    installed: InstalledLinux | None = None
    runs: bool = False
    starts: int = 0

    def begins(self, entry: Mapping[str, Any]) -> bool:
        """Whether this entry starts it."""
        self.runs = self.installed is not None and str(entry["path"]).casefold().endswith("\\ubuntu\\shimx64.efi")
        self.starts += self.runs
        return self.runs
