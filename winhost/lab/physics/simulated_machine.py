"""A simulated Windows host: puts its parts together, and restarts it.

The methods of a machine and its parts are cmdlets in snake case. They change its state or raise CmdletError, as Windows
would; resources read that state in the form of the facts.
"""

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import field
from functools import partial
from typing import Any, TypeVar

from winhost.core.answers import Json
from winhost.core.dataclass import dataclass
from winhost.lab.physics.disks import Disks
from winhost.lab.physics.firmware import FirmwarePart
from winhost.lab.physics.host_nats import HostNats
from winhost.lab.physics.installer import InstallerPart
from winhost.lab.physics.lab_section import LabClock, LabSection
from winhost.lab.physics.own_vms import OwnVms
from winhost.lab.physics.parts import Part, as_cmdlet
from winhost.lab.physics.virtual_machine import FIELDS
from winhost.lab.physics.vm_cmdlets import FeatureCmdlets
from winhost.lab.physics.vm_creation import VmCreation
from winhost.lab.physics.windows_accounts import Accounts, YieldWatchers
from winhost.lab.physics.windows_errors import CmdletError
from winhost.lab.physics.windows_files import Files
from winhost.lab.physics.windows_network import Network
from winhost.lab.physics.windows_power import Power
from winhost.lab.physics.windows_software import PENDING, Curl, Software
from winhost.lab.physics.wsl_distros import Distros
from winhost.model.facts import Facts


@dataclass(frozen=True, repr=False)
class InstalledLinux:
    """The Linux that an installer made. private_key: its SSH host key as OpenSSH text; user, keys: who may log on."""

    hostname: str
    private_key: str
    user: str
    keys: tuple[str, ...]


@dataclass
class DualBoot:
    """The Linux beside Windows. installer: runs the installer, and returns the installed Linux, or None if it stops."""

    installer: Callable[[], InstalledLinux | None] = field(default=lambda: None)
    installed: InstalledLinux | None = None
    runs: bool = False
    starts: int = 0

    def starts_from(self, entry: Mapping[str, Any]) -> bool:
        """Note whether this boot entry starts the installed Linux, count the start, and return whether it does."""
        self.runs = self.installed is not None and str(entry["path"]).casefold().endswith("\\ubuntu\\shimx64.efi")
        self.starts += self.runs
        return self.runs


P = TypeVar("P")
NewPart = TypeVar("NewPart", bound=Part)
INSTALLER = "winhost-installer"  # the name of the installer's boot entry
_ACCESS_DENIED, _SHUTTING_DOWN = 5, 1115  # exit codes of shutdown.exe


class Machine(VmCreation, FeatureCmdlets):
    """A simulated Windows host with its cmdlets."""

    def __init__(self, facts: Facts, lab: LabSection | None = None, clock: LabClock | None = None) -> None:
        super().__init__(facts, lab, clock)
        self.mutex = threading.RLock()  # Global\winhost, which the agent holds while it changes something
        self.tasks: dict[str, Mapping[str, str]] = {}  # scheduled tasks: name to a text for each part of the task
        self._ready = threading.Event()
        self._ready.set()
        self._restart: threading.Thread | None = None
        self.dual_boot = DualBoot()
        self._shutdown_callbacks: list[Callable[[], None]] = []
        self.files = Files()
        self.accounts = self._add_part(Accounts)
        self._add_part(YieldWatchers)
        self.software = self._add_part(Software)
        self.network = self._add_part(Network)
        self.nats = self._add_part(HostNats)
        self.own_vms = self._add_part(OwnVms)
        for kind in (Curl, Disks, FirmwarePart, InstallerPart, Power):
            self._add_part(kind)
        self.distros = Distros(self)
        self.parts.insert(0, self.distros)  # restarted first: tasks that start with Windows find no distro running
        self.changes |= {
            **dict.fromkeys(("HyperVRole", "VirtualMachinePlatform"), self.set_features),
            "AssignableDevice": self.set_assignment,
            "VmPower": self.set_vm_power,
            **{resource: partial(self.set_vm_resource, resource) for resource in FIELDS},
        }
        for part in self.parts:
            self.changes |= part.changes()
        # Without these features something else starts the hypervisor, such as virtualization-based security.
        self._hypervisor_always = self._hypervisor and not self._needs_hypervisor()

    def _add_part(self, kind: type[NewPart]) -> NewPart:
        part = kind(self)
        self.parts.append(part)
        return part

    def part(self, kind: type[P]) -> P:
        """Return the part of this class."""
        return next(each for each in self.parts if isinstance(each, kind))

    def comparable_state(self) -> dict[str, Json]:
        """Return the comparable state with the files of EFI system partitions, which no resource shows."""
        return {**super().comparable_state(), "files of EFI partitions": self.part(Disks).efi_files()}

    def wait_until_ready(self, seconds: float = 60.0) -> None:
        """Wait until no restart is in progress, for at most `seconds` real seconds. Raises TimeoutError."""
        if not self._ready.wait(seconds):
            raise TimeoutError(f"{self.name} is still restarting")

    @property
    def ready(self) -> bool:
        """Whether it is up and its services have started."""
        return self._up and self._logon_ready

    def on_shutdown(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, when the host goes down next."""
        self._shutdown_callbacks.append(callback)

    # ---- restart

    @as_cmdlet("Restart-Computer")
    def restart_computer(self) -> bool:
        """Restart after a delay, so that this call still gets its answer."""
        return self.restart()

    def restart(self) -> bool:
        """Restart the running system. Return False if a restart is in progress already. Raises HostDown."""
        with self._lock:
            self.check_session()
            if self._restart is not None:
                return False
            self._ready.clear()
            # A daemon thread: a controller that exits does not wait until a lab host has restarted.
            self._restart = threading.Thread(target=self._run_restart, name=f"restart of {self.name}", daemon=True)
            self._restart.start()
            return True

    def run_shutdown(self) -> tuple[int, str]:
        """Run shutdown.exe /r; return its exit code and error text."""
        try:
            return (0, "") if self.restart_computer() else (_SHUTTING_DOWN, "A system shutdown is in progress.")
        except CmdletError as error:
            return _ACCESS_DENIED, error.message

    def _run_restart(self) -> None:
        self.clock.sleep(self.lab.restart_delay)
        with self._lock:
            self._up = self.dual_boot.runs = False
            for vm in self.vms.values():
                vm.was_running = vm.power == "running"
                if vm.power in ("running", "paused"):
                    vm.power = "saved" if vm.stop_action == "save" and not vm.assignments else "off"
            callbacks, self._shutdown_callbacks = self._shutdown_callbacks, []
        for callback in callbacks:
            callback()
        self.clock.sleep(self.lab.reboot_seconds)
        if self._starts_linux():
            return
        with self._lock:
            changed = self._start_windows()
        self.clock.sleep(self.lab.logon_seconds)
        self._logon_ready = True
        self.clock.sleep(self.lab.servicing_seconds if changed else 0.0)
        with self._lock:
            self._servicing = False
            self._restart = None
            self._ready.set()

    def _starts_linux(self) -> bool:
        """Start the system that the firmware chooses, and tell whether it is the Linux.

        The installer restarts the machine when it is done; then the firmware chooses again.
        """
        firmware = self.part(FirmwarePart)
        entry = firmware.choose_entry()
        if entry is not None and entry["description"] == INSTALLER:
            self.dual_boot.installed = self.dual_boot.installer() or self.dual_boot.installed
            self.clock.sleep(self.lab.reboot_seconds)
            entry = firmware.choose_entry()
        with self._lock:
            if entry is None or not self.dual_boot.starts_from(entry):
                return False
            self._restart = None
            self._ready.set()
            return True

    def _start_windows(self) -> bool:
        """Start Windows, and tell whether it has to finish changes of features."""
        changed = any([self.role in PENDING, *(part.on_restart() for part in self.parts)])
        self.role = PENDING.get(self.role, self.role)
        if changed:
            self._hypervisor = self._hypervisor_always or (self._needs_hypervisor() and self._virtualization)
        self._reasons = []
        self._logon_ready, self._servicing = False, changed
        self.boot += 1
        for vm in self.vms.values() if self.service_runs else ():
            starts_by_itself = vm.start_action == "start" or (vm.start_action == "start-if-running" and vm.was_running)
            # A failed automatic start is only written to the event log.
            with suppress(CmdletError):
                if starts_by_itself and vm.power != "running":
                    self._power_on(vm)
        self._up = True
        return changed
