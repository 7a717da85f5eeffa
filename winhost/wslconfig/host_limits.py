"""What of a host decides what its WSL makes of a .wslconfig."""

from collections.abc import Mapping
from dataclasses import field

from packaging.version import Version

from winhost.core.dataclass import dataclass
from winhost.model.units import Bytes


@dataclass(frozen=True)
class HostLimits:
    """None where it is not known. version: of WSL; in_box: it is the one that Windows brings, which has none;
    forbidden: the WSL policies that are 0; no_modes: network modes that this host cannot have, each with why;
    switches: the kind of each by its name; processors: logical ones; vram: of all GPUs that WSL can use; drives:
    letters; unknown: what could not be read.
    """

    version: Version | None = None
    in_box: bool | None = None
    forbidden: frozenset[str] = frozenset()
    no_modes: Mapping[str, str] = field(default_factory=dict)
    switches: Mapping[str, str] | None = None
    memory: Bytes | None = None
    processors: int | None = None
    vram: Bytes | None = None
    drives: frozenset[str] | None = None
    unknown: tuple[str, ...] = ()


NOTHING_KNOWN = HostLimits()
