"""A file as one WSL on one machine would read it: what the rules ask."""

from collections.abc import Mapping
from functools import cached_property

from packaging.version import Version

from winhost.core.dataclass import dataclass
from winhost.findings.finding import Finding, Found, Rows
from winhost.wslconfig.format import ConfigFile, ConfigLine, Dialect
from winhost.wslconfig.host_limits import HostLimits
from winhost.wslconfig.key_values import Value
from winhost.wslconfig.known_keys import Key
from winhost.wslconfig.values_in_effect import counted, valid

ROWS = Rows(__package__)


def finding(dialect: Dialect, code: str, position: tuple[int, int], /, **words: object) -> Finding:
    """A finding at this line and column."""
    return ROWS.tell(dialect.name, Found(code, 0, words), position)


@dataclass(frozen=True)
class LintContext:
    """version: None where it is not known; host: the machine whose WSL reads it; start: the first two bytes."""

    file: ConfigFile
    version: Version | None
    host: HostLimits
    start: bytes = b""

    @property
    def forbidden(self) -> frozenset[str]:
        """The WSL policies that are 0 on the machine."""
        return self.host.forbidden

    @cached_property
    def keys(self) -> list[tuple[Key, ConfigLine]]:
        """Each key with the line that counts."""
        return counted(self.file)

    @cached_property
    def values(self) -> Mapping[str, Value | None]:
        """By section.key; None where WSL keeps its default."""
        return {str(key): valid(key, line) for key, line in self.keys}

    def line(self, name: str) -> ConfigLine | None:
        """The line that counts for section.key."""
        return next((line for key, line in self.keys if str(key) == name), None)

    @property
    def mode(self) -> str:
        """The network mode that the file sets; WSL defaults to NAT."""
        return str(self.values.get("wsl2.networkingMode") or "nat")

    def found(self, line: ConfigLine, code: str, **words: object) -> Finding:
        """A finding at this line."""
        return finding(self.file.dialect, code, line.position, **words)
