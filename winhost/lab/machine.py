"""A simulated Windows host: the one place that knows how Windows behaves when it is asked to change.

Its methods are cmdlets in snake case. They change its state or raise CmdletError, as Windows would; what is read back
is in the form of the facts' nouns. What it rests on: Microsoft's "Plan for" and "Deploy graphics devices using DDA",
and public reports of what fails where.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from winhost.lab.accounts import Accounts
from winhost.lab.clock import LabClock
from winhost.lab.devices import Device
from winhost.lab.distros import Distros
from winhost.lab.errors import CmdletError
from winhost.lab.files import Files
from winhost.lab.guest import window_end
from winhost.lab.network import Network
from winhost.lab.section import GuestPhysics, LabSection
from winhost.lab.software import PENDING, Software
from winhost.lab.state import HostState, told
from winhost.lab.vms import Assignment, VirtualMachine
from winhost.model.facts import Facts
from winhost.model.units import MiB
from winhost.resources.windows.operating_system import OsFamily

P = ParamSpec("P")
R = TypeVar("R")

ROLE, TOOLS = "Hyper-V", "Hyper-V-PowerShell"  # names of the Windows features
CLIENT_ROLE, CLIENT_TOOLS = "Microsoft-Hyper-V-All", "Microsoft-Hyper-V-Management-PowerShell"  # the same on a client
PLATFORM = "VirtualMachinePlatform"
SERVER_2025 = 26100

_COMMON_WIDTH = 46  # physical address bits of most servers
_MMIO_STEP = 2 * MiB
_PAGE = 4096
_LOW_LEAST, _LOW_MOST = 128 * MiB, 3584 * MiB
_ASSIGNABLE_TYPES = (2, 3, 4)  # PCIe endpoint, legacy endpoint, root-complex endpoint
_GATED = (OsFamily.CLIENT, OsFamily.MULTI_SESSION)  # where the product type was altered, reports say that it starts
_ACCESS_DENIED, _SHUTTING_DOWN = 5, 1115  # exit codes of shutdown.exe
_SERVICING = "servicing"
_REASONS = (_SERVICING, "windows-update", "server-manager", "file-rename", "computer-rename")  # of PendingReboot
_STOP_VM_SECONDS = 300.0
_ADMINISTRATORS_MODULES = ("Hyper-V", "ServerManager", "Dism", "BitLocker")

# Lab seconds that cmdlets take; the others take next to none.
_SECONDS = {
    "Install-WindowsFeature": 60.0,
    "Uninstall-WindowsFeature": 30.0,
    "Enable-WindowsOptionalFeature": 60.0,
    "Disable-WindowsOptionalFeature": 30.0,
    "Copy-WinhostSource": 30.0,
    "msiexec.exe": 30.0,
    "nvidia-smi.exe": 1.0,
    "Start-VM": 3.0,
    "Save-VM": 10.0,
    "Disable-PnpDevice": 2.0,
    "Enable-PnpDevice": 3.0,
    "Dismount-VMHostAssignableDevice": 2.0,
    "Mount-VMHostAssignableDevice": 3.0,
}


class HostDown(Exception):
    """The host went down while this was running: there will be no answer."""


def _cmdlet(name: str) -> Callable[[Callable[Concatenate["Machine", P], R]], Callable[Concatenate["Machine", P], R]]:
    """Runs as the cmdlet `name`: needs an administrator, takes its time, and then the machine for itself."""

    def make(method: Callable[Concatenate["Machine", P], R]) -> Callable[Concatenate["Machine", P], R]:
        @wraps(method)
        def run(self: "Machine", /, *args: P.args, **kwargs: P.kwargs) -> R:
            with self.at_work(name):
                return method(self, *args, **kwargs)

        return run

    return make


class Machine(HostState):
    """A simulated Windows host with its cmdlets."""

    def __init__(self, facts: Facts, lab: LabSection | None = None, clock: LabClock | None = None) -> None:
        super().__init__(facts, lab, clock)
        self.mutex = threading.RLock()  # Global\winhost: of whoever sets something through the agent
        self.tasks: dict[str, Mapping[str, str]] = {}  # scheduled tasks: name to what each part of it says
        self._up = True
        self._ready = threading.Event()
        self._ready.set()
        self._restart: threading.Thread | None = None
        self._ends_with_boot: list[Callable[[], None]] = []
        self.files = Files()
        self.accounts = Accounts(self, self._given)
        self.parts.append(self.accounts)
        self.software = Software(self, self._given)
        self.parts.append(self.software)
        self.network = Network(self)
        self.parts.append(self.network)
        self.distros = Distros(self, self._given)
        self.parts.insert(0, self.distros)  # a task that starts with Windows finds none of them running
        # What starts it otherwise, as virtualization-based security does, is none of our business.
        self._hypervisor_anyway = self._hypervisor and not self._wants_hypervisor()

    def accepting(self) -> bool:
        """False while it restarts: nobody listens."""
        return self._up

    def settle(self, seconds: float = 60.0) -> None:
        """Wait, so many real seconds at most, until no restart is under way. Raises TimeoutError."""
        if not self._ready.wait(seconds):
            raise TimeoutError(f"{self.name} is still restarting")

    def when_down(self, call: Callable[[], None]) -> None:
        """Have this called, once, when the host goes down: whatever runs on it ends there."""
        self._ends_with_boot.append(call)

    # ---- how cmdlets run

    @contextmanager
    def reading(self, cmdlet: str, module: str) -> Iterator[None]:
        """The machine at rest for a cmdlet that changes nothing and may be asked of whoever may see its answer.

        Raises CmdletError, HostDown.
        """
        with self._lock:
            self._check_up(self.boot)
            if not self.has_module(module):
                raise self._error("no-module", cmdlet)
            if module in _ADMINISTRATORS_MODULES and not self.lab.administrator:
                raise self.denied(cmdlet)
            yield

    def fail(self, name: str, cmdlet: str, **words: object) -> CmdletError:
        """The error `name` of the catalogue, in the language of this host."""
        return self._error(name, cmdlet, **words)

    @contextmanager
    def at_work(self, cmdlet: str) -> Iterator[None]:
        """A cmdlet or a program that changes something: it needs an administrator and takes its time, and then has the
        machine for itself. Raises CmdletError, HostDown.
        """
        boot = self.boot
        if not self.lab.administrator:
            raise self.denied(cmdlet)
        self.clock.sleep(self.lab.seconds.get(cmdlet, _SECONDS.get(cmdlet, 0.0)))
        with self._lock:
            self._check_up(boot)
            yield

    def _check_up(self, boot: int) -> None:
        if not self._up or self.boot != boot:
            raise HostDown

    def _vm(self, guid: str, cmdlet: str) -> VirtualMachine:
        if not self.manages_vms:
            raise self._error("no-module", cmdlet)
        if guid not in self.vms:
            raise self._error("vm-unknown", cmdlet, vm=guid)
        return self.vms[guid]

    def _vm_in(self, powers: tuple[str, ...], guid: str, cmdlet: str) -> VirtualMachine:
        vm = self._vm(guid, cmdlet)
        if vm.power not in powers:
            raise self._error("vm-not-off", cmdlet, vm=vm.name)
        return vm

    def _require(self, allowed: bool, cmdlet: str, parameter: str, value: object) -> None:
        if not allowed:
            raise self._error("bad-parameter", cmdlet, parameter=parameter, value=value)

    # ---- VMs

    @_cmdlet("Set-VM")
    def set_vm(
        self,
        guid: str,
        *,
        low_memory_mapped_io_space: int | None = None,
        high_memory_mapped_io_space: int | None = None,
        guest_controlled_cache_types: bool | None = None,
        automatic_stop_action: str | None = None,
        automatic_start_action: str | None = None,
        checkpoint_type: str | None = None,
        automatic_checkpoints_enabled: bool | None = None,
    ) -> None:
        """Sizes in bytes; actions and types in the words of the nouns. All or nothing."""
        cold = (
            low_memory_mapped_io_space,
            high_memory_mapped_io_space,
            guest_controlled_cache_types,
            automatic_stop_action,
        )
        vm = self._vm(guid, "Set-VM")
        if any(value is not None for value in cold):
            vm = self._vm_in(("off",), guid, "Set-VM")
        self._check_windows(low_memory_mapped_io_space, high_memory_mapped_io_space)
        self._check_words(vm, automatic_stop_action, automatic_start_action, checkpoint_type)
        for name, value in (
            ("low", low_memory_mapped_io_space),
            ("high", high_memory_mapped_io_space),
            ("cache", guest_controlled_cache_types),
            ("stop_action", automatic_stop_action),
            ("start_action", automatic_start_action),
            ("checkpoint_type", checkpoint_type),
            ("automatic_checkpoints", automatic_checkpoints_enabled),
        ):
            if value is not None:
                setattr(vm, name, value)

    def _check_windows(self, low: int | None, high: int | None) -> None:
        if low is not None:
            fits = _LOW_LEAST <= low <= _LOW_MOST and low % _MMIO_STEP == 0
            self._require(fits, "Set-VM", "LowMemoryMappedIoSpace", low)
        if high is not None:
            self._require(high > 0 and high % _MMIO_STEP == 0, "Set-VM", "HighMemoryMappedIoSpace", high)

    def _check_words(self, vm: VirtualMachine, stop: str | None, start: str | None, kind: str | None) -> None:
        for parameter, word, words in (
            ("AutomaticStopAction", stop, ("turn-off", "save", "shut-down")),
            ("AutomaticStartAction", start, ("nothing", "start-if-running", "start")),
            ("CheckpointType", kind, ("disabled", "production", "production-only", "standard")),
        ):
            self._require(word is None or word in words, "Set-VM", parameter, word)
        if stop == "save" and vm.assignments:
            raise self._error("save-with-device", "Set-VM", vm=vm.name)

    @_cmdlet("Set-VMMemory")
    def set_vm_memory(self, guid: str, *, dynamic_memory_enabled: bool) -> None:
        """Static or dynamic."""
        self._vm_in(("off",), guid, "Set-VMMemory").dynamic_memory = dynamic_memory_enabled

    @_cmdlet("Start-VM")
    def start_vm(self, guid: str) -> None:
        """From off or saved; Windows only warns where it runs already."""
        vm = self._vm(guid, "Start-VM")
        if vm.power == "running":
            return
        self._power_on(self._vm_in(("off", "saved"), guid, "Start-VM"))

    def _power_on(self, vm: VirtualMachine) -> None:
        """Raises CmdletError."""
        if not self._hypervisor:
            raise self._error("no-hypervisor", "Start-VM", vm=vm.name)
        self._check_address_range(vm)
        if vm.assignments:
            self._check_devices(vm)
        if vm.startup > self._free_memory():
            raise self._error("out-of-memory", "Start-VM", vm=vm.name)
        vm.power = "running"

    def _check_address_range(self, vm: VirtualMachine) -> None:
        width = self.lab.address_width or told(self._first("Firmware"), "address_width", _COMMON_WIDTH)
        limit = 1 << int(width)
        end = window_end(vm.high)
        if end > limit:
            raise self._error("window-above-address-range", "Start-VM", vm=vm.name, end=end - _PAGE, limit=limit)

    def _check_devices(self, vm: VirtualMachine) -> None:
        port = f"{vm.guid.upper()}\\{len(vm.assignments)}"
        if vm.dynamic_memory:
            raise self._error("dynamic-memory", "Start-VM", vm=vm.name)
        if vm.says("partitions", 0):
            raise self._error("partition-and-device", "Start-VM", vm=vm.name)
        present = [self._present(claim) for claim in vm.assignments]
        if None in present:
            raise self._error("element-not-found", "Start-VM", vm=vm.name, port=port)
        forced = any(d is not None and d.forced for d in present)
        if self._gated() or not self._remaps_dma() or (forced and self._policy_forbids_forced()):
            raise self._error("pci-express-port", "Start-VM", vm=vm.name, port=port)

    def _gated(self) -> bool:
        """Client Windows lets a device be dismounted and assigned; the hypervisor refuses it when the VM starts."""
        return self._system is not None and self._system.family in _GATED

    def _policy_forbids_forced(self) -> bool:
        policy = self._first("DeviceAssignmentPolicy")
        return any(told(policy, name, 0) for name in ("require_secure", "require_supported"))

    def stop_vm(
        self,
        guid: str,
        *,
        turn_off: bool = False,
        within: float = _STOP_VM_SECONDS,
        stop: threading.Event | None = None,
    ) -> None:
        """Ask the guest and wait for it, `within` lab seconds at most, or turn it off at once.

        The guest goes on without whoever asked: a set `stop` only ends the waiting.
        """
        boot = self.boot
        if turn_off:
            self.turn_vm_off(guid)
            return
        needed = self.ask_guest_to_stop(guid)
        self.clock.sleep(min(needed, within), stop)
        with self._lock:
            self._check_up(boot)
            if needed > within:
                raise self._error("guest-silent", "Stop-VM", vm=self.vms[guid].name)
            self.guest_stopped(guid)

    @_cmdlet("Stop-VM")
    def turn_vm_off(self, guid: str) -> None:
        """Stop-VM -TurnOff: as if its power failed."""
        self._vm_in(("running", "paused", "off"), guid, "Stop-VM").power = "off"

    @_cmdlet("Stop-VM")
    def ask_guest_to_stop(self, guid: str) -> float:
        """Stop-VM -AsJob: the lab seconds that its guest takes; infinite where it does not answer."""
        vm = self._vm_in(("running", "paused", "off"), guid, "Stop-VM")
        return 0.0 if vm.power == "off" else self._shutdown_seconds(vm)

    def guest_stopped(self, guid: str) -> None:
        """The guest has done what it was asked for, unless its VM was stopped otherwise meanwhile."""
        with self._lock:
            if self.vms[guid].power == "running":
                self.vms[guid].power = "off"

    def _shutdown_seconds(self, vm: VirtualMachine) -> float:
        """Infinite where the guest does not answer."""
        guest = self.lab.guests.get(vm.guid, GuestPhysics())
        answers = vm.power == "running" and guest.answers and not (vm.assignments and vm.says("nested", False))
        return guest.shutdown_seconds if answers else float("inf")

    @_cmdlet("Save-VM")
    def save_vm(self, guid: str) -> None:
        """To disk."""
        vm = self._vm_in(("running", "paused"), guid, "Save-VM")
        if vm.assignments:
            raise self._error("save-with-device", "Save-VM", vm=vm.name)
        vm.power = "saved"

    @_cmdlet("Suspend-VM")
    def suspend_vm(self, guid: str) -> None:
        """Pause it."""
        self._vm_in(("running",), guid, "Suspend-VM").power = "paused"

    @_cmdlet("Resume-VM")
    def resume_vm(self, guid: str) -> None:
        """From paused."""
        self._vm_in(("paused",), guid, "Resume-VM").power = "running"

    # ---- devices

    @_cmdlet("Disable-PnpDevice")
    def disable_pnp_device(self, instance: str) -> None:
        """By its instance id of the moment."""
        found = self._pnp(instance, "Disable-PnpDevice")
        if found.physics.in_use or found.dismounted:
            raise self._error("pnp-failed", "Disable-PnpDevice")
        found.enabled = False

    @_cmdlet("Enable-PnpDevice")
    def enable_pnp_device(self, instance: str) -> None:
        """By its instance id of the moment."""
        found = self._pnp(instance, "Enable-PnpDevice")
        if found.dismounted:
            raise self._error("pnp-failed", "Enable-PnpDevice")
        found.enabled = True

    def _pnp(self, instance: str, cmdlet: str) -> Device:
        for each in self.devices:
            if each.instance.casefold() == instance.casefold():
                return each
        raise self._error("pnp-not-found", cmdlet, instance=instance)

    @_cmdlet("Dismount-VMHostAssignableDevice")
    def dismount_vm_host_assignable_device(self, location: str, *, force: bool = False) -> None:
        """`force` waives ACS and the manufacturer's mitigation driver, nothing else."""
        cmdlet = "Dismount-VMHostAssignableDevice"
        found = self._host_device(location, cmdlet, dismounted=False)
        if found.enabled or self._partitioned(found):
            raise self._error("device-in-use", cmdlet, location=location)
        if not found.says("pcie_control", True):
            raise self._error("no-pcie-control", cmdlet)
        if _cannot_be_given(found):
            raise self._error("not-assignable", cmdlet, location=location)
        if not force and not found.says("acs", None):
            raise self._error("no-acs", cmdlet)
        if not force and not found.physics.mitigation_driver:
            raise self._error("no-mitigation", cmdlet)
        found.dismounted, found.forced = True, force

    @_cmdlet("Mount-VMHostAssignableDevice")
    def mount_vm_host_assignable_device(self, location: str) -> None:
        """It comes back under another instance id, disabled if it was. A VM that claims it is left with nothing."""
        cmdlet = "Mount-VMHostAssignableDevice"
        found = self._host_device(location, cmdlet, dismounted=True)
        if any(vm.has(location) and vm.power != "off" for vm in self.vms.values()):
            raise self._error("device-in-use", cmdlet, location=location)
        found.dismounted, found.forced = False, False
        found.numbered += 1

    def _host_device(self, location: str, cmdlet: str, *, dismounted: bool) -> Device:
        if not self.manages_vms:
            raise self._error("no-module", cmdlet)
        for each in self.devices:
            if each.location == location and each.dismounted is dismounted:
                return each
        raise self._error("device-not-on-server", cmdlet)

    def _partitioned(self, found: Device) -> bool:
        """A GPU that was split is no device to give away. Client Windows knows one count, meaning that it is whole."""
        interface = found.instance.replace("\\", "#").casefold()
        states = [r.state for r in self._given.get("PartitionableGpu", ()) if interface in r.key["gpu"].casefold()]
        return any(state["used"] or state["partitions"] > min(state["valid_counts"]) for state in states)

    @_cmdlet("Add-VMAssignableDevice")
    def add_vm_assignable_device(self, guid: str, location: str) -> None:
        """Only what was dismounted, and to one VM only."""
        cmdlet = "Add-VMAssignableDevice"
        vm = self._vm_in(("off",), guid, cmdlet)
        for error, hinders in (
            ("has-checkpoints", vm.says("checkpoints", 0)),
            ("action-save", vm.stop_action == "save"),
            ("clustered-too-early", vm.says("clustered", False) and self._build() < SERVER_2025),
        ):
            if hinders:
                raise self._error(error, cmdlet, vm=vm.name)
        found = self._host_device(location, cmdlet, dismounted=True)
        if any(other.has(location) for other in self.vms.values()):
            raise self._error("device-in-use", cmdlet, location=location)
        vm.assignments.append(Assignment(location, found.instance))

    @_cmdlet("Remove-VMAssignableDevice")
    def remove_vm_assignable_device(self, guid: str, location: str) -> None:
        """Also what is no longer there."""
        cmdlet = "Remove-VMAssignableDevice"
        vm = self._vm_in(("off",), guid, cmdlet)
        if not vm.has(location):
            raise self._error("device-not-on-server", cmdlet)
        vm.assignments = [claim for claim in vm.assignments if claim.location != location]

    def _build(self) -> int:
        return self._system.build if self._system else SERVER_2025

    # ---- the role

    @_cmdlet("Install-WindowsFeature")
    def install_windows_feature(self, *names: str) -> bool:
        """Whether a restart is needed."""
        self._check_features("Install-WindowsFeature")
        if ROLE in names and not self._virtualization:
            raise self._error("no-virtualization", "Install-WindowsFeature")
        gone = [name for name, state in ((ROLE, self._role), (TOOLS, self._tools)) if state == "removed"]
        if set(gone) & set(names):
            raise self._error("feature-files-gone", "Install-WindowsFeature")
        if TOOLS in names:
            self._tools = "installed"
        if ROLE in names:
            self._role = {"available": "install-pending", "uninstall-pending": "installed"}.get(self._role, self._role)
        return self._await_restart()

    @_cmdlet("Uninstall-WindowsFeature")
    def uninstall_windows_feature(self, *names: str) -> bool:
        """Whether a restart is needed. VM definitions stay on disk."""
        self._check_features("Uninstall-WindowsFeature")
        if TOOLS in names:
            self._tools = {"removed": "removed"}.get(self._tools, "available")
        if ROLE in names:
            self._role = {"installed": "uninstall-pending", "install-pending": "available"}.get(self._role, self._role)
        return self._await_restart()

    def _check_features(self, cmdlet: str) -> None:
        if self.is_client:
            raise self._error("no-module", cmdlet)

    def _await_restart(self) -> bool:
        pending = self._role in PENDING or self.software.platform in PENDING
        self._reasons = [reason for reason in self._reasons if reason != _SERVICING]
        if pending:
            self.await_restart(_SERVICING)
        return pending

    def await_restart(self, reason: str) -> None:
        """Something takes effect with the next restart only."""
        self._reasons = [known for known in _REASONS if known in (reason, *self._reasons)]

    @property
    def optional_features(self) -> Mapping[str, str]:
        """Those that Windows lists, in the words of noun HyperVRole; an edition that lacks one does not list it."""
        clients = {CLIENT_ROLE: self._role, CLIENT_TOOLS: self._tools} if self.is_client else {}
        every = {"TelnetClient": "available", PLATFORM: self.software.platform, **clients}
        return {name: state for name, state in every.items() if state != "removed"}

    @_cmdlet("Enable-WindowsOptionalFeature")
    def enable_windows_optional_feature(self, *names: str) -> bool:
        """Whether a restart is needed. The tools come with Hyper-V as a whole."""
        self._check_optional(names, "Enable-WindowsOptionalFeature")
        coming = {"available": "install-pending", "uninstall-pending": "installed"}
        if PLATFORM in names:
            self.software.platform = coming.get(self.software.platform, self.software.platform)
        if CLIENT_ROLE in names:
            self._role = coming.get(self._role, self._role)
        if CLIENT_ROLE in names or CLIENT_TOOLS in names:
            self._tools = "installed"
        return self._await_restart()

    @_cmdlet("Disable-WindowsOptionalFeature")
    def disable_windows_optional_feature(self, *names: str) -> bool:
        """Whether a restart is needed. Hyper-V as a whole takes its tools with it; VM definitions stay on disk."""
        self._check_optional(names, "Disable-WindowsOptionalFeature")
        going = {"installed": "uninstall-pending", "install-pending": "available"}
        if PLATFORM in names:
            self.software.platform = going.get(self.software.platform, self.software.platform)
        if CLIENT_ROLE in names:
            self._role = going.get(self._role, self._role)
        if CLIENT_ROLE in names or CLIENT_TOOLS in names:
            self._tools = "available"
        return self._await_restart()

    def _check_optional(self, names: tuple[str, ...], cmdlet: str) -> None:
        for name in names:
            if name not in self.optional_features:
                raise self._error("feature-unknown", cmdlet, feature=name)

    @property
    def runs_wsl(self) -> bool:
        """Whether the VM of WSL can be made."""
        return self._hypervisor and self.software.has_platform

    def _wants_hypervisor(self) -> bool:
        return self._service_there or self.software.has_platform

    # ---- restart

    @_cmdlet("Restart-Computer")
    def restart_computer(self) -> None:
        """In two lab seconds, so that this still gets its answer."""
        if self._restart is not None:
            raise self._error("shutdown-in-progress", "Restart-Computer")
        self._ready.clear()
        # A daemon: a controller that ends does not wait for a lab host to come up.
        self._restart = threading.Thread(target=self._go_down_and_up, name=f"restart of {self.name}", daemon=True)
        self._restart.start()

    def run_shutdown(self) -> tuple[int, str]:
        """shutdown.exe /r: its exit code and what it prints of an error."""
        try:
            self.restart_computer()
        except CmdletError as error:
            return (_ACCESS_DENIED if error.category == "PermissionDenied" else _SHUTTING_DOWN), error.message
        return 0, ""

    def _go_down_and_up(self) -> None:
        self.clock.sleep(self.lab.restart_delay)
        with self._lock:
            self._up = False
            self._stop_all()
            ending, self._ends_with_boot = self._ends_with_boot, []
        for end in ending:
            end()
        self.clock.sleep(self.lab.reboot_seconds)
        with self._lock:
            changed = self._come_up()
        self.clock.sleep(self.lab.logon_seconds)
        self._logon_ready = True
        self.clock.sleep(self.lab.servicing_seconds if changed else 0.0)
        with self._lock:
            self._servicing = False
            self._restart = None
            self._ready.set()

    def _come_up(self) -> bool:
        """Whether Windows has changes to finish."""
        changed = any([self._role in PENDING, *(part.restarted() for part in self.parts)])
        self._role = PENDING.get(self._role, self._role)
        if changed:
            self._hypervisor = self._hypervisor_anyway or (self._wants_hypervisor() and self._virtualization)
        self._reasons = []
        if self.lab.renumbers_on_restart:
            for each in self.devices:
                each.numbered += 1
        self._logon_ready, self._servicing = False, changed
        self.boot += 1
        self._start_all()
        self._up = True
        return changed

    def _stop_all(self) -> None:
        for vm in self.vms.values():
            vm.was_running = vm.power == "running"
            if vm.power in ("running", "paused"):
                vm.power = "saved" if vm.stop_action == "save" and not vm.assignments else "off"

    def _start_all(self) -> None:
        if not self._service_there:
            return
        for vm in self.vms.values():
            wanted = vm.start_action == "start" or (vm.start_action == "start-if-running" and vm.was_running)
            # A VM that cannot start says so in the event log, and to nobody else.
            with suppress(CmdletError):
                if wanted and vm.power != "running":
                    self._power_on(vm)


def _cannot_be_given(found: Device) -> bool:
    known_type = found.says("device_type", _ASSIGNABLE_TYPES[0]) in _ASSIGNABLE_TYPES
    return bool(found.says("rmrr", False) or found.says("line_interrupts_only", False) or not known_type)
