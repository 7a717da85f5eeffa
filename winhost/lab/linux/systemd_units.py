"""The units of a simulated Linux. Source: systemctl(1)."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import field

from winhost.core.answers import Json
from winhost.core.dataclass import dataclass
from winhost.lab.linux.linux_errors import program_failed
from winhost.lab.physics.windows_errors import CmdletError
from winhost.lab.physics.wsl_session import Distro

SSH = "ssh.service"
CDI = "winhost-cdi.service"


@dataclass
class Unit:
    enabled: str
    active: bool = False
    failed: bool = False


@dataclass
class Systemd:
    """texts: of the unit files that somebody wrote; generate: what the unit of the CDI spec runs; false: it did not;
    can_run: whether the program of a unit finds what it needs.
    """

    distro: Distro
    texts: Callable[[], Mapping[str, str]]
    generate: Callable[[], bool]
    can_run: Callable[[str], bool]
    units: dict[str, Unit] = field(default_factory=dict)
    written: dict[str, Unit] = field(default_factory=dict)
    """Units of files that somebody wrote, not of a package."""

    def __post_init__(self) -> None:
        self.units |= {
            "systemd-networkd.service": Unit("disabled"),
            "systemd-networkd-wait-online.service": Unit("disabled"),
            "systemd-resolved.service": Unit("enabled", active=True),
        }

    def reload(self) -> None:
        """Forget units whose files are gone."""
        texts = self.texts()
        for name in [name for name in self.written if name not in texts]:
            del self.written[name]

    def loaded(self) -> list[str]:
        """Units that systemd can read: of packages, and those that somebody wrote."""
        return sorted({*self.units, *self.texts(), *([SSH] if self.distro.sshd else [])})

    def find(self, name: str) -> Unit:
        """One of those that are loaded."""
        if name in self.units:
            return self.units[name]
        installs = "[Install]" in self.texts().get(name, "")
        return self.written.setdefault(name, Unit("disabled" if installs else "static"))

    def state(self, name: str) -> dict[str, Json]:
        if name not in self.loaded():
            waits = {"unavailable": "LinuxFile" if name.startswith("winhost-") else "DebianPackage"}
            return {"loaded": False, "enabled": waits, "active": waits, "failed": False}
        unit = self.find(name)
        if name == SSH:
            enabled = "enabled" if self.distro.enabled else "disabled"
            return {"loaded": True, "enabled": enabled, "active": self.distro.listens, "failed": False}
        masked = unit.enabled == "masked"
        return {"loaded": not masked, "enabled": unit.enabled, "active": unit.active, "failed": unit.failed}

    def enable(self, name: str, desired: str) -> None:
        """systemctl mask, unmask, enable, disable. Raises CmdletError."""
        if name not in self.loaded() and desired in ("enabled", "disabled", "masked"):
            raise program_failed("systemctl", f"Failed: Unit file {name} does not exist.")
        if name == SSH:
            self.distro.enabled = desired == "enabled"
            return
        unit = self.find(name)
        if unit.enabled == "masked" and desired != "masked":
            unit.enabled = "disabled"
        if desired == "masked" or (desired in ("enabled", "disabled") and unit.enabled != "static"):
            unit.enabled = desired

    def start(self, name: str) -> None:
        """Raises CmdletError."""
        if not self.state(name)["loaded"]:
            raise program_failed("systemctl", f"Failed to start {name}: Unit {name} not found.", 5)
        if name == SSH:
            self.distro.enabled = True
            return
        if not self.can_run(name):
            self.find(name).failed = True
            raise program_failed(
                "systemctl", f"Job for {name} failed because the control process exited with error code."
            )
        if name != CDI or self.generate():  # conditions that are not met are no failure
            self.find(name).active = True

    def stop(self, name: str) -> None:
        """Raises CmdletError."""
        if not self.state(name)["loaded"]:
            raise program_failed("systemctl", f"Failed to stop {name}: Unit {name} not loaded.", 5)
        if name == SSH:
            self.distro.enabled = False
        self.find(name).active = False

    def restart_all(self) -> None:
        """A start of the machine starts what is enabled."""
        for name in self.loaded():
            unit = self.find(name)
            unit.active, unit.failed = False, False
            if unit.enabled == "enabled":
                with suppress(CmdletError):
                    self.start(name)
