"""A simulated Windows host: the one module that knows how Windows behaves when it is asked to change.

Its methods are cmdlets in snake case. They change its state or raise CmdletError, as Windows would; what is read back
is in the form of the facts' resources. Here it is put together, and restarted.
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
    """The Linux that an installer left. private: its SSH host key, in OpenSSH's text; user, keys: who may log on."""

    hostname: str
    private_key: str
    user: str
    keys: tuple[str, ...]


@dataclass
class DualBoot:
    """The Linux that takes turns with Windows. installer: plays the installer, and returns what that installed, or None
    where it stops; starts: the number of its starts.
    """

    installer: Callable[[], InstalledLinux | None] = field(default=lambda: None)
    installed: InstalledLinux | None = None
    runs: bool = False
    starts: int = 0

    def starts_from(self, entry: Mapping[str, Any]) -> bool:
        """Tell whether this boot entry starts the installed Linux, and count the start."""
        self.runs = self.installed is not None and str(entry["path"]).casefold().endswith("\\ubuntu\\shimx64.efi")
        self.starts += self.runs
        return self.runs


P = TypeVar("P")
NewPart = TypeVar("NewPart", bound=Part)
INSTALLER = "winhost-installer"  # what the boot entry of a played installer is called
_ACCESS_DENIED, _SHUTTING_DOWN = 5, 1115  # exit codes of shutdown.exe


class Machine(VmCreation, FeatureCmdlets):
    """A simulated Windows host with its cmdlets."""

    def __init__(self, facts: Facts, lab: LabSection | None = None, clock: LabClock | None = None) -> None:
        super().__init__(facts, lab, clock)
        self.mutex = threading.RLock()  # Global\winhost: of whoever sets something through the agent
        self.tasks: dict[str, Mapping[str, str]] = {}  # scheduled tasks: name to what each part of it says
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
        self.parts.insert(0, self.distros)  # a task that starts with Windows finds none of them running
        self.changes |= {
            **dict.fromkeys(("HyperVRole", "VirtualMachinePlatform"), self.set_features),
            "AssignableDevice": self.set_assignment,
            "VmPower": self.set_vm_power,
            **{resource: partial(self.set_vm_resource, resource) for resource in FIELDS},
        }
        for part in self.parts:
            self.changes |= part.changes()
        # Something else starts it, as virtualization-based security does.
        self._hypervisor_always = self._hypervisor and not self._needs_hypervisor()

    def _add_part(self, kind: type[NewPart]) -> NewPart:
        part = kind(self)
        self.parts.append(part)
        return part

    def part(self, kind: type[P]) -> P:
        """The one part of this kind."""
        return next(each for each in self.parts if isinstance(each, kind))

    def comparable_state(self) -> dict[str, Json]:
        """The state with the files of EFI system partitions, which no resource tells."""
        return {**super().comparable_state(), "files of EFI partitions": self.part(Disks).efi_files()}

    def wait_until_ready(self, seconds: float = 60.0) -> None:
        """Wait, so many real seconds at most, until no restart is under way. Raises TimeoutError."""
        if not self._ready.wait(seconds):
            raise TimeoutError(f"{self.name} is still restarting")

    @property
    def ready(self) -> bool:
        """Tell whether it is up and its services have started."""
        return self._up and self._logon_ready

    def on_shutdown(self, callback: Callable[[], None]) -> None:
        """Call this once when the host goes down."""
        self._shutdown_callbacks.append(callback)

    # ---- restart

    @as_cmdlet("Restart-Computer")
    def restart_computer(self) -> bool:
        """Restart after two lab seconds, so that this call still gets its answer."""
        return self.restart()

    def restart(self) -> bool:
        """Restart the system that runs; False where a restart is under way already. Raises HostDown."""
        with self._lock:
            self.check_session()
            if self._restart is not None:
                return False
            self._ready.clear()
            # A daemon: a controller that ends does not wait for a lab host to come up.
            self._restart = threading.Thread(target=self._run_restart, name=f"restart of {self.name}", daemon=True)
            self._restart.start()
            return True

    def run_shutdown(self) -> tuple[int, str]:
        """shutdown.exe /r: its exit code and what it prints of an error."""
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
        """Start what the firmware chooses, and tell whether that is the Linux. An installer restarts the machine at its
        end, and the firmware chooses again.
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
        """Start Windows, and tell whether it has changes to finish."""
        changed = any([self.role in PENDING, *(part.on_restart() for part in self.parts)])
        self.role = PENDING.get(self.role, self.role)
        if changed:
            self._hypervisor = self._hypervisor_always or (self._needs_hypervisor() and self._virtualization)
        self._reasons = []
        self._logon_ready, self._servicing = False, changed
        self.boot += 1
        for vm in self.vms.values() if self.service_runs else ():
            starts_by_itself = vm.start_action == "start" or (vm.start_action == "start-if-running" and vm.was_running)
            # A VM that cannot start says so in the event log, and to nobody else.
            with suppress(CmdletError):
                if starts_by_itself and vm.power != "running":
                    self._power_on(vm)
        self._up = True
        return changed
