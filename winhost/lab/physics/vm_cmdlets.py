"""VMs of a simulated Windows: how Hyper-V changes, starts and stops them, and what keeps one from starting.

What it rests on: Microsoft's "Plan for" and "Deploy graphics devices using DDA", and public reports of what fails
where.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any

from winhost.lab.physics.cmdlet_host import as_cmdlet
from winhost.lab.physics.device_cmdlets import DeviceCmdlets
from winhost.lab.physics.guest_mmio import window_end
from winhost.lab.physics.host_state import known_or
from winhost.lab.physics.lab_section import GuestPhysics
from winhost.lab.physics.virtual_machine import Assignment, VirtualMachine
from winhost.model.units import MiB
from winhost.resources.windows.operating_system import OsFamily

SERVER_2025 = 26100

_COMMON_WIDTH = 46  # physical address bits of most servers
_MMIO_STEP = 2 * MiB
_PAGE = 4096
_LOW_LEAST, _LOW_MOST = 128 * MiB, 3584 * MiB
# Of Set-VM: in which field of a VM each parameter is kept, which it takes of a VM that is off, what fits them.
_KEPT_AS = {
    "low_memory_mapped_io_space": "low",
    "high_memory_mapped_io_space": "high",
    "guest_controlled_cache_types": "cache",
    "automatic_stop_action": "stop_action",
    "automatic_start_action": "start_action",
    "checkpoint_type": "checkpoint_type",
    "automatic_checkpoints_enabled": "automatic_checkpoints",
    "automatic_start_delay": "start_delay",
    "notes": "notes",
}
_COLD = {"low_memory_mapped_io_space", "high_memory_mapped_io_space"}
_COLD |= {"guest_controlled_cache_types", "automatic_stop_action"}
_FITTING: Mapping[str, Callable[[Any], bool]] = {
    "low_memory_mapped_io_space": lambda size: _LOW_LEAST <= size <= _LOW_MOST and size % _MMIO_STEP == 0,
    "high_memory_mapped_io_space": lambda size: size > 0 and size % _MMIO_STEP == 0,
    "automatic_stop_action": ("turn-off", "save", "shut-down").__contains__,
    "automatic_start_action": ("nothing", "start-if-running", "start").__contains__,
    "checkpoint_type": ("disabled", "production", "production-only", "standard").__contains__,
}
_GATED = (OsFamily.CLIENT, OsFamily.MULTI_SESSION)  # where the product type was altered, reports say that it starts
_STOP_VM_SECONDS = 300.0


class VmCmdlets(DeviceCmdlets):
    """Cmdlets of module Hyper-V for VMs."""

    # ---- found, or refused

    def _vm(self, guid: str, cmdlet: str) -> VirtualMachine:
        if not self.manages_vms:
            raise self.fail("no-module", cmdlet)
        if guid not in self.vms:
            raise self.fail("vm-unknown", cmdlet, vm=guid)
        return self.vms[guid]

    def _vm_in(self, powers: tuple[str, ...], guid: str, cmdlet: str) -> VirtualMachine:
        vm = self._vm(guid, cmdlet)
        if vm.power not in powers:
            raise self.fail("vm-not-off", cmdlet, vm=vm.name)
        return vm

    def _require(self, allowed: bool, cmdlet: str, parameter: str, value: object) -> None:
        if not allowed:
            raise self.fail("bad-parameter", cmdlet, parameter=parameter, value=value)

    # ---- settings and power

    @as_cmdlet("Set-VM")
    def set_vm(self, /, guid: str, **settings: Any) -> None:
        """settings: by its parameters in snake case; sizes in bytes, words as resources say them. All or nothing."""
        vm = self._vm(guid, "Set-VM")
        if set(settings) & _COLD:
            vm = self._vm_in(("off",), guid, "Set-VM")
        for name, value in settings.items():
            fits = _FITTING.get(name, lambda value: True)
            self._require(fits(value), "Set-VM", "".join(map(str.capitalize, name.split("_"))), value)
        if settings.get("automatic_stop_action") == "save" and vm.assignments:
            raise self.fail("save-with-device", "Set-VM", vm=vm.name)
        for name, value in settings.items():
            setattr(vm, _KEPT_AS[name], value)

    @as_cmdlet("Set-VMMemory")
    def set_vm_memory(self, guid: str, *, dynamic_memory_enabled: bool) -> None:
        """Static or dynamic."""
        self._vm_in(("off",), guid, "Set-VMMemory").dynamic_memory = dynamic_memory_enabled

    @as_cmdlet("Start-VM")
    def start_vm(self, guid: str) -> None:
        """From off or saved; Windows only warns where it runs already."""
        vm = self._vm(guid, "Start-VM")
        if vm.power == "running":
            return
        self._power_on(self._vm_in(("off", "saved"), guid, "Start-VM"))

    def _power_on(self, vm: VirtualMachine) -> None:
        """Raises CmdletError."""
        if not self._hypervisor:
            raise self.fail("no-hypervisor", "Start-VM", vm=vm.name)
        self._check_address_range(vm)
        if vm.assignments:
            self._check_devices(vm)
        if vm.startup > self._free_memory():
            raise self.fail("out-of-memory", "Start-VM", vm=vm.name)
        vm.power = "running"

    def _check_address_range(self, vm: VirtualMachine) -> None:
        width = self.lab.address_width or known_or(self._first("Firmware"), "address_width", _COMMON_WIDTH)
        limit = 1 << int(width)
        end = window_end(vm.high)
        if end > limit:
            raise self.fail("window-above-address-range", "Start-VM", vm=vm.name, end=end - _PAGE, limit=limit)

    def _check_devices(self, vm: VirtualMachine) -> None:
        port = f"{vm.guid.upper()}\\{len(vm.assignments)}"
        if vm.dynamic_memory:
            raise self.fail("dynamic-memory", "Start-VM", vm=vm.name)
        if vm.known_or("partitions", 0):
            raise self.fail("partition-and-device", "Start-VM", vm=vm.name)
        claims = [claim for claim in vm.assignments if claim.location not in self.other_devices]
        present = [self._present(claim) for claim in claims]
        if None in present:
            raise self.fail("element-not-found", "Start-VM", vm=vm.name, port=port)
        forced = any(d is not None and d.forced for d in present)
        if self._gated() or not self._remaps_dma() or (forced and self._policy_forbids_forced()):
            raise self.fail("pci-express-port", "Start-VM", vm=vm.name, port=port)

    def _gated(self) -> bool:
        """Client Windows lets a device be dismounted and assigned; the hypervisor refuses it when the VM starts."""
        return self._system is not None and self._system.family in _GATED

    def _policy_forbids_forced(self) -> bool:
        policy = self._first("DeviceAssignmentPolicy")
        return any(known_or(policy, name, 0) for name in ("require_secure", "require_supported"))

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
                raise self.fail("guest-silent", "Stop-VM", vm=self.vms[guid].name)
            self.guest_stopped(guid)

    @as_cmdlet("Stop-VM")
    def turn_vm_off(self, guid: str) -> None:
        """Stop-VM -TurnOff: as if its power failed."""
        self._vm_in(("running", "paused", "off"), guid, "Stop-VM").power = "off"

    @as_cmdlet("Stop-VM")
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
        answers = vm.power == "running" and guest.answers and not (vm.assignments and vm.known_or("nested", False))
        return guest.shutdown_seconds if answers else float("inf")

    @as_cmdlet("Save-VM")
    def save_vm(self, guid: str) -> None:
        """To disk."""
        vm = self._vm_in(("running", "paused"), guid, "Save-VM")
        if vm.assignments:
            raise self.fail("save-with-device", "Save-VM", vm=vm.name)
        vm.power = "saved"

    @as_cmdlet("Suspend-VM")
    def suspend_vm(self, guid: str) -> None:
        """Pause it."""
        self._vm_in(("running",), guid, "Suspend-VM").power = "paused"

    @as_cmdlet("Resume-VM")
    def resume_vm(self, guid: str) -> None:
        """From paused."""
        self._vm_in(("paused",), guid, "Resume-VM").power = "running"

    # ---- devices of a VM

    @as_cmdlet("Add-VMAssignableDevice")
    def add_vm_assignable_device(self, guid: str, location: str) -> None:
        """Only what was dismounted, and to one VM only."""
        cmdlet = "Add-VMAssignableDevice"
        vm = self._vm_in(("off",), guid, cmdlet)
        for error, hinders in (
            ("has-checkpoints", vm.known_or("checkpoints", 0)),
            ("action-save", vm.stop_action == "save"),
            ("clustered-too-early", vm.known_or("clustered", False) and self._build() < SERVER_2025),
        ):
            if hinders:
                raise self.fail(error, cmdlet, vm=vm.name)
        found = self._host_device(location, cmdlet, dismounted=True)
        if any(other.has(location) for other in self.vms.values()):
            raise self.fail("device-in-use", cmdlet, location=location)
        vm.assignments.append(Assignment(location, found.instance))

    @as_cmdlet("Remove-VMAssignableDevice")
    def remove_vm_assignable_device(self, guid: str, location: str) -> None:
        """Also what is no longer there."""
        cmdlet = "Remove-VMAssignableDevice"
        vm = self._vm_in(("off",), guid, cmdlet)
        if not vm.has(location):
            raise self.fail("device-not-on-server", cmdlet)
        vm.assignments = [claim for claim in vm.assignments if claim.location != location]

    def _build(self) -> int:
        return self._system.build if self._system else SERVER_2025
