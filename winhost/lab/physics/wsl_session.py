"""The state of WSL for an account of a simulated Windows: its distros, the VM that they share, and what made
them so.
"""

import re
from collections.abc import Callable
from dataclasses import field
from hashlib import sha256

from winhost.core.dataclass import dataclass
from winhost.lab.physics.ssh_keys import public_line
from winhost.model.units import MiB
from winhost.resources.windows.wsl_conf import NO_CONF

_IMPORTED = 1400 * MiB  # of an Ubuntu: the simulator's own number


@dataclass
class Distro:
    """image: the hash of what it was made of, None where that is not known. put: files that winhost wrote; holds:
    bytes of what came into it since it was imported.
    """

    name: str
    folder: str
    image: str | None = None
    running: bool = False
    systemd: bool = False
    put: dict[str, str | None] = field(default_factory=lambda: dict.fromkeys(NO_CONF))
    desired: str = ""
    sshd: bool = False
    port: int | None = None
    listen: str | None = None
    allowed: list[str] | None = None
    keys: list[str] = field(default_factory=list)
    enabled: bool = False
    starts: int = 0
    own_seed: bytes | None = None
    holds: Callable[[], int] = int

    def length(self) -> int:
        """The length of its disk, which never shrinks by itself."""
        return _IMPORTED + self.holds()

    @property
    def seed(self) -> bytes:
        """The seed of its host key: the same each time, so that answers compare; or the one that it was given or made
        since.
        """
        return self.own_seed or sha256(self.name.encode()).digest()

    @property
    def host_key(self) -> str:
        return public_line(self.seed)

    @property
    def listens(self) -> bool:
        return self.running and self.systemd and self.enabled


@dataclass
class UtilityVm:
    """config: the text of .wslconfig that it was made with; mode: of its network; switch: that it is bridged to."""

    config: str | None
    mode: str
    switch: str | None = None

    @property
    def keeps_distros(self) -> bool:
        """True without an idle timeout: then a distro goes on without users."""
        return _number(self.config, "general", "instanceIdleTimeout", 15000) < 0

    @property
    def keeps_itself(self) -> bool:
        """It goes on without a distro."""
        return _number(self.config, "wsl2", "vmIdleTimeout", 60000) < 0


@dataclass
class WslSession:
    """The WSL of an account. interactive: the account that came first was logged on, and takes the VM along when it
    leaves.
    """

    distros: dict[str, Distro] = field(default_factory=dict)
    vm: UtilityVm | None = None
    interactive: bool = False

    def find(self, name: str) -> Distro | None:
        return self.distros.get(name.casefold())

    @property
    def running(self) -> list[Distro]:
        return [distro for distro in self.distros.values() if distro.running]


def setting_of(config: str | None, section: str, key: str, otherwise: str) -> str:
    """Read a value of a WSL file as WSL does, except for syntax that nobody writes into a lab. The first line counts,
    and case does not matter.
    """
    here = ""
    for line in (config or "").splitlines():
        text = line.partition("#")[0].strip()
        if found := re.fullmatch(r"\[(\w+)\]", text):
            here = found[1].casefold()
        name, equals, value = (part.strip() for part in text.partition("="))
        if equals and (here, name.casefold()) == (section, key.casefold()):
            return value.strip('"')
    return otherwise


def _number(config: str | None, section: str, key: str, otherwise: int) -> int:
    text = setting_of(config, section, key, "")
    return int(text) if re.fullmatch("-?[0-9]+", text) else otherwise
