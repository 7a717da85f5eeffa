"""Cmdlets of a simulated Windows for features, devices and VMs, and the conditions under which they fail.

Sources: Microsoft's "Plan for" and "Deploy graphics devices using DDA", and public reports of failures.
"""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from winhost.lab.physics.host_state import HostState
from winhost.lab.physics.lab_section import GuestPhysics
from winhost.lab.physics.parts import SetCall, as_cmdlet
from winhost.lab.physics.virtual_machine import (
    FIELDS,
    SETTINGS,
    Assignment,
    Device,
    VirtualMachine,
    get_known,
    window_end,
)
from winhost.lab.physics.windows_errors import CmdletError, not_found_error, refuse_if
from winhost.lab.physics.windows_software import PENDING, Software
from winhost.resources.windows.read_only import OsFamily
from winhost.resources.windows.vms import DISABLED, DISMOUNTED, ENABLED, assigned_vm

ROLE, TOOLS = "Hyper-V", "Hyper-V-PowerShell"  # names of the Windows features
CLIENT_ROLE, CLIENT_TOOLS = "Microsoft-Hyper-V", "Microsoft-Hyper-V-Management-PowerShell"  # the same on a client
CLIENT_ALL = "Microsoft-Hyper-V-All"  # the parent of both
PLATFORM = "VirtualMachinePlatform"

# State transitions of a feature that needs a restart to be installed or removed.
_INSTALL_STATES = {"available": "install-pending", "uninstall-pending": "installed"}
_REMOVE_STATES = {"installed": "uninstall-pending", "install-pending": "available"}
_SERVICING = "servicing"
_REASONS = (_SERVICING, "windows-update", "server-manager", "file-rename", "computer-rename")  # of PendingReboot


class FeatureCmdlets(HostState):
    """Cmdlets of ServerManager and DISM."""

    software: Software

    @as_cmdlet("Install-WindowsFeature")
    def install_windows_feature(self, *names: str) -> bool:
        """Return True if a restart is needed."""
        self._check_server("Install-WindowsFeature")
        if ROLE in names and not self._virtualization:
            raise self.windows_error("no-virtualization", "Install-WindowsFeature")
        removed = [name for name, state in ((ROLE, self.role), (TOOLS, self.tools)) if state == "removed"]
        if set(removed) & set(names):
            raise self.windows_error("feature-files-gone", "Install-WindowsFeature")
        return self._change_features(names, _INSTALL_STATES)

    @as_cmdlet("Uninstall-WindowsFeature")
    def uninstall_windows_feature(self, *names: str) -> bool:
        """Return True if a restart is needed. VM definitions stay on disk."""
        self._check_server("Uninstall-WindowsFeature")
        return self._change_features(names, _REMOVE_STATES)

    def _check_server(self, cmdlet: str) -> None:
        if self.is_client:
            raise self.windows_error("no-module", cmdlet)

    def _change_features(self, names: Sequence[str], transitions: Mapping[str, str]) -> bool:
        """Return True if a restart is needed.

        On a client, installing Hyper-V installs the tools, and removing the parent feature removes both.
        """
        if PLATFORM in names:
            self.software.platform = transitions.get(self.software.platform, self.software.platform)
        if {ROLE, CLIENT_ROLE, CLIENT_ALL} & set(names):
            self.role = transitions.get(self.role, self.role)
        changed_tools = {TOOLS, CLIENT_TOOLS, CLIENT_ALL} & set(names) or (
            CLIENT_ROLE in names and transitions is _INSTALL_STATES
        )
        if changed_tools and (transitions is _INSTALL_STATES or self.tools != "removed"):
            self.tools = "installed" if transitions is _INSTALL_STATES else "available"
        self._reasons = [reason for reason in self._reasons if reason != _SERVICING]
        pending = self.role in PENDING or self.software.platform in PENDING
        if pending:
            self.require_restart(_SERVICING)
        return pending

    def require_restart(self, reason: str) -> None:
        """Add a reason for a pending restart."""
        self._reasons = [known for known in _REASONS if known in (reason, *self._reasons)]

    @property
    def optional_features(self) -> Mapping[str, str]:
        """The optional features that this edition has, each with its state as in resource HyperVRole."""
        combined_state = self.tools if self.role == "available" else self.role
        client_features = (
            {CLIENT_ALL: combined_state, CLIENT_ROLE: self.role, CLIENT_TOOLS: self.tools} if self.is_client else {}
        )
        features = {"TelnetClient": "available", PLATFORM: self.software.platform, **client_features}
        return {name: state for name, state in features.items() if state != "removed"}

    @as_cmdlet("Enable-WindowsOptionalFeature")
    def enable_windows_optional_feature(self, *names: str) -> bool:
        """Return True if a restart is needed."""
        return self._change_features(names, _INSTALL_STATES)

    @as_cmdlet("Disable-WindowsOptionalFeature")
    def disable_windows_optional_feature(self, *names: str) -> bool:
        """Return True if a restart is needed. VM definitions stay on disk."""
        return self._change_features(names, _REMOVE_STATES)

    # ---- as resources

    def set_features(self, call: SetCall) -> bool:
        """Apply a set of HyperVRole or VirtualMachinePlatform. Return True if a restart is needed."""
        install, remove = self.install_windows_feature, self.uninstall_windows_feature
        names = {"role": ROLE, "tools": TOOLS}
        if self.is_client or "feature" in call.desired:
            names = {"role": CLIENT_ROLE, "tools": CLIENT_TOOLS, "feature": PLATFORM}
            install, remove = self.enable_windows_optional_feature, self.disable_windows_optional_feature
            for name in sorted(names[each] for each in call.desired):
                refuse_if(name not in self.optional_features, "FeatureNotHere", name=name)
        installed_names = sorted(names[each] for each, state in call.desired.items() if state == "installed")
        removed_names = sorted(names[each] for each, state in call.desired.items() if state == "available")
        restart = bool(installed_names) and install(*installed_names)
        return (bool(removed_names) and remove(*removed_names)) or restart

    @property
    def runs_wsl(self) -> bool:
        """Whether WSL can create its VM."""
        return self._hypervisor and self.software.has_platform

    def _needs_hypervisor(self) -> bool:
        return self.service_runs or self.software.has_platform


_ASSIGNABLE_TYPES = (2, 3, 4)  # PCIe endpoint, legacy endpoint, root-complex endpoint


SERVER_2025 = 26100

_COMMON_WIDTH = 46  # physical address bits of most servers
_PAGE = 4096
TURN_OFF, FORCE = "vm-turn-off", "force-dismount"  # consents
# By reports, VMs start where only the product type was altered to look like a server.
_UNSUPPORTED_FAMILIES = (OsFamily.CLIENT, OsFamily.MULTI_SESSION)


class VmCmdlets(HostState):
    """Cmdlets of PnpDevice, and of Hyper-V for devices of the host and for VMs."""

    @as_cmdlet("Disable-PnpDevice", instance="InstanceId[]")
    def disable_pnp_device(self, instance: str) -> None:
        """Disable a device by its present instance id."""
        device = self._find_pnp_device(instance, "Disable-PnpDevice")
        if device.physics.in_use or device.dismounted:
            raise self.windows_error("pnp-failed", "Disable-PnpDevice")
        device.enabled = False

    @as_cmdlet("Enable-PnpDevice", instance="InstanceId[]")
    def enable_pnp_device(self, instance: str) -> None:
        """Enable a device by its present instance id."""
        device = self._find_pnp_device(instance, "Enable-PnpDevice")
        if device.dismounted:
            raise self.windows_error("pnp-failed", "Enable-PnpDevice")
        device.enabled = True

    def _find_pnp_device(self, instance: str, cmdlet: str) -> Device:
        for each in self.devices:
            if each.instance.casefold() == instance.casefold():
                return each
        raise self.windows_error("pnp-not-found", cmdlet, instance=instance)

    @as_cmdlet("Dismount-VMHostAssignableDevice", location="LocationPath", force="Force")
    def dismount_vm_host_assignable_device(self, location: str, *, force: bool = False) -> None:
        """Dismount a device. `force` only skips the checks for ACS and the manufacturer's mitigation driver."""
        cmdlet = "Dismount-VMHostAssignableDevice"
        device = self._find_host_device(location, cmdlet, dismounted=False)
        if device.enabled or self._is_partitioned(device):
            raise self.windows_error("device-in-use", cmdlet, location=location)
        if not device.get_known("pcie_control", True):
            raise self.windows_error("no-pcie-control", cmdlet)
        is_assignable_type = device.get_known("device_type", _ASSIGNABLE_TYPES[0]) in _ASSIGNABLE_TYPES
        if device.get_known("rmrr", False) or device.get_known("line_interrupts_only", False) or not is_assignable_type:
            raise self.windows_error("not-assignable", cmdlet, location=location)
        if not force and not device.get_known("acs", None):
            raise self.windows_error("no-acs", cmdlet)
        if not force and not device.physics.mitigation_driver:
            raise self.windows_error("no-mitigation", cmdlet)
        device.dismounted, device.forced = True, force

    @as_cmdlet("Mount-VMHostAssignableDevice", location="LocationPath")
    def mount_vm_host_assignable_device(self, location: str) -> None:
        """Mount a device, which gets a new instance id. A VM that claims it can no longer use it."""
        cmdlet = "Mount-VMHostAssignableDevice"
        device = self._find_host_device(location, cmdlet, dismounted=True)
        if any(vm.has_device(location) and vm.power != "off" for vm in self.vms.values()):
            raise self.windows_error("device-in-use", cmdlet, location=location)
        device.dismounted, device.forced = False, False
        device.renumberings += 1

    def _find_host_device(self, location: str, cmdlet: str, *, dismounted: bool) -> Device:
        if not self.manages_vms:
            raise self.windows_error("no-module", cmdlet)
        for each in self.devices:
            if each.location == location and each.dismounted is dismounted:
                return each
        raise self.windows_error("device-not-on-server", cmdlet)

    def _is_partitioned(self, device: Device) -> bool:
        """Tell whether a GPU was partitioned. On a client, the only valid count means that it was not."""
        interface = device.instance.replace("\\", "#").casefold()
        states = [r.state for r in self.initial.get("PartitionableGpu", ()) if interface in r.key["gpu"].casefold()]
        return any(state["used"] or state["partitions"] > min(state["valid_counts"]) for state in states)

    # ---- lookups and checks

    def _find_vm(self, guid: str, cmdlet: str) -> VirtualMachine:
        if not self.manages_vms:
            raise self.windows_error("no-module", cmdlet)
        if guid not in self.vms:
            raise self.windows_error("vm-unknown", cmdlet, vm=guid)
        return self.vms[guid]

    def _find_vm_in_state(self, powers: tuple[str, ...], guid: str, cmdlet: str) -> VirtualMachine:
        vm = self._find_vm(guid, cmdlet)
        if vm.power not in powers:
            raise self.windows_error("vm-not-off", cmdlet, vm=vm.name)
        return vm

    def _require(self, allowed: bool, cmdlet: str, parameter: str, value: object) -> None:
        if not allowed:
            raise self.windows_error("bad-parameter", cmdlet, parameter=parameter, value=value)

    # ---- settings and power

    def set_vm(self, /, guid: str, **settings: Any) -> None:
        """Set fields of a VM with the cmdlets of SETTINGS. Each cmdlet sets all its fields, or none."""
        for cmdlet in dict.fromkeys(SETTINGS[name].cmdlet for name in settings):
            with self.changing(cmdlet):
                self._set_by_cmdlet(cmdlet, guid, {n: v for n, v in settings.items() if SETTINGS[n].cmdlet == cmdlet})

    def _set_by_cmdlet(self, cmdlet: str, guid: str, settings: Mapping[str, Any]) -> None:
        vm = self._find_vm(guid, cmdlet)
        if any(SETTINGS[name].cold for name in settings):
            vm = self._find_vm_in_state(("off",), guid, cmdlet)
        threads = sum(int(each.state["threads"]) for each in self.instances("Processor"))
        for name, value in settings.items():
            fits = SETTINGS[name].allows(value) and (name != "cpus" or value <= threads)
            self._require(fits, cmdlet, SETTINGS[name].parameter, value)
        if settings.get("stop_action") == "save" and vm.assignments:
            raise self.windows_error("save-with-device", cmdlet, vm=vm.name)
        for name, value in settings.items():
            setattr(vm, name, value)
        if self.lab.new_vms.loses_com_port:
            vm.com1 = None

    def set_vm_resource(self, resource: str, call: SetCall) -> None:
        """Apply a set of VmMmio, VmActions, VmCheckpoints or VmMemory, one property after another."""
        for name, field in FIELDS[resource].items():
            if name in call.desired:
                self.set_vm(call.key["vm"], **{field: call.desired[name]})

    @as_cmdlet("Start-VM", guid="VM[].Id")
    def start_vm(self, guid: str) -> None:
        """Start a VM that is off or saved. Windows only warns if it is running."""
        vm = self._find_vm(guid, "Start-VM")
        if vm.power == "running":
            return
        self._power_on(self._find_vm_in_state(("off", "saved"), guid, "Start-VM"))

    def _power_on(self, vm: VirtualMachine) -> None:
        """Start a VM. Raises CmdletError if it cannot start."""
        if not self._hypervisor:
            raise self.windows_error("no-hypervisor", "Start-VM", vm=vm.name)
        width = self.lab.address_width or get_known(self._first_state("Firmware"), "address_width", _COMMON_WIDTH)
        end, limit = window_end(vm.high), 1 << int(width)
        if end > limit:
            raise self.windows_error("window-above-address-range", "Start-VM", vm=vm.name, end=end - _PAGE, limit=limit)
        if vm.assignments:
            self._check_assignments(vm)
        if vm.startup > self._free_memory():
            raise self.windows_error("out-of-memory", "Start-VM", vm=vm.name)
        vm.power = "running"

    def _check_assignments(self, vm: VirtualMachine) -> None:
        port = f"{vm.guid.upper()}\\{len(vm.assignments)}"
        if vm.dynamic_memory:
            raise self.windows_error("dynamic-memory", "Start-VM", vm=vm.name)
        if vm.get_known("partitions", 0):
            raise self.windows_error("partition-and-device", "Start-VM", vm=vm.name)
        claims = [claim for claim in vm.assignments if claim.location not in self.non_gpu_devices]
        devices = [self._find_claimed(claim) for claim in claims]
        if None in devices:
            raise self.windows_error("element-not-found", "Start-VM", vm=vm.name, port=port)
        was_forced = any(d is not None and d.forced for d in devices)
        # On a client a device can be dismounted and assigned, but the hypervisor refuses to start the VM.
        is_unsupported = self._system is not None and self._system.family in _UNSUPPORTED_FAMILIES
        policy = self._first_state("DeviceAssignmentPolicy")
        is_forbidden = any(get_known(policy, name, 0) for name in ("require_secure", "require_supported"))
        if is_unsupported or not self._remaps_dma() or (was_forced and is_forbidden):
            raise self.windows_error("pci-express-port", "Start-VM", vm=vm.name, port=port)

    def set_vm_power(self, call: SetCall) -> None:
        """Apply a set of VmPower."""
        guid = call.key["vm"]
        power = self.vms[guid].power
        match call.desired["state"]:
            case "off":
                if not self.stop_vm(guid, timeout=call.timeout, stop=call.stop):
                    refuse_if(TURN_OFF not in call.accept, "GuestDidNotStop", within=call.timeout)
                    self.turn_vm_off(guid)
            case "running" if power == "paused":
                self.resume_vm(guid)
            case "running":
                self.start_vm(guid)
            case "saved":
                self.save_vm(guid)
            case "paused":
                self.suspend_vm(guid)

    def stop_vm(self, guid: str, *, timeout: float = 300.0, stop: threading.Event | None = None) -> bool:
        """Ask the guest to shut down, wait for at most `timeout` lab seconds, and tell whether it has.

        Setting `stop` ends the waiting, but not the shutdown of the guest.
        """
        boot = self.boot
        duration = self.ask_guest_to_stop(guid)
        self.clock.sleep(min(duration, timeout), stop)
        with self._lock:
            self._check_up(boot)
            if duration <= timeout:
                self.guest_stopped(guid)
        return duration <= timeout

    @as_cmdlet("Stop-VM")
    def turn_vm_off(self, guid: str) -> None:
        """Stop-VM -TurnOff: cut the power of a VM."""
        self._find_vm_in_state(("running", "paused", "off"), guid, "Stop-VM").power = "off"

    @as_cmdlet("Stop-VM")
    def ask_guest_to_stop(self, guid: str) -> float:
        """Stop-VM -AsJob: return how many lab seconds the guest takes to shut down; infinite if it does not respond."""
        vm = self._find_vm_in_state(("running", "paused", "off"), guid, "Stop-VM")
        guest = self.lab.guests.get(guid, GuestPhysics())
        answers = vm.power == "running" and guest.answers
        return 0.0 if vm.power == "off" else guest.shutdown_seconds if answers else float("inf")

    def guest_stopped(self, guid: str) -> None:
        """Turn off a VM whose guest has shut down, unless it is no longer running."""
        with self._lock:
            if self.vms[guid].power == "running":
                self.vms[guid].power = "off"

    @as_cmdlet("Save-VM", guid="VM[].Id")
    def save_vm(self, guid: str) -> None:
        vm = self._find_vm_in_state(("running", "paused"), guid, "Save-VM")
        if vm.assignments:
            raise self.windows_error("save-with-device", "Save-VM", vm=vm.name)
        vm.power = "saved"

    @as_cmdlet("Suspend-VM", guid="VM[].Id")
    def suspend_vm(self, guid: str) -> None:
        """Pause a VM."""
        self._find_vm_in_state(("running",), guid, "Suspend-VM").power = "paused"

    @as_cmdlet("Resume-VM", guid="VM[].Id")
    def resume_vm(self, guid: str) -> None:
        self._find_vm_in_state(("paused",), guid, "Resume-VM").power = "running"

    # ---- devices of a VM

    @as_cmdlet("Add-VMAssignableDevice", guid="VM[].Id", location="LocationPath")
    def add_vm_assignable_device(self, guid: str, location: str) -> None:
        """Assign a dismounted device to a VM."""
        cmdlet, build = "Add-VMAssignableDevice", self._system.build if self._system else SERVER_2025
        vm = self._find_vm_in_state(("off",), guid, cmdlet)
        for error, applies in (
            ("has-checkpoints", vm.get_known("checkpoints", 0)),
            ("action-save", vm.stop_action == "save"),
            ("clustered-too-early", vm.get_known("clustered", False) and build < SERVER_2025),
        ):
            if applies:
                raise self.windows_error(error, cmdlet, vm=vm.name)
        device = self._find_host_device(location, cmdlet, dismounted=True)
        if any(other.has_device(location) for other in self.vms.values()):
            raise self.windows_error("device-in-use", cmdlet, location=location)
        vm.assignments.append(Assignment(location, device.instance))

    @as_cmdlet(
        "Remove-VMAssignableDevice", guid="VMAssignableDevice[].VMId", location="VMAssignableDevice[].LocationPath"
    )
    def remove_vm_assignable_device(self, guid: str, location: str) -> None:
        """Remove a device from a VM, even if the device no longer exists."""
        cmdlet = "Remove-VMAssignableDevice"
        vm = self._find_vm_in_state(("off",), guid, cmdlet)
        if not vm.has_device(location):
            raise self.windows_error("device-not-on-server", cmdlet)
        vm.assignments = [claim for claim in vm.assignments if claim.location != location]

    def set_assignment(self, call: SetCall) -> None:
        """Apply a set of AssignableDevice: enabled or disabled on the host, dismounted, or assigned to a VM."""
        assignment, location = str(call.desired["assignment"]), call.key["location"]
        vm = assigned_vm(assignment)
        if vm is not None and vm not in self.vms:
            raise not_found_error(f"There is no VM {vm}.")
        others = [each.guid for each in self.vms.values() if each.has_device(location) and each.guid != vm]
        for guid in others:
            self.remove_vm_assignable_device(guid, location)
        device = next((each for each in self.devices if dict(each.key) == dict(call.key)), None)
        if device is None and assignment == DISMOUNTED and all(each.location != location for each in self.devices):
            return
        if device is None:
            raise not_found_error(f"There is no {call.key['device']} at {location}.")
        self._prepare_device(device, assignment, call)
        if vm is not None and not self.vms[vm].has_device(location):
            self._move_to_vm(call, vm, others)

    def _prepare_device(self, device: Device, assignment: str, call: SetCall) -> None:
        """Enable, disable, mount or dismount a device, as its assignment needs."""
        if assignment in (ENABLED, DISABLED) and device.dismounted:
            self.mount_vm_host_assignable_device(device.location)
        if device.enabled and not device.dismounted and assignment != ENABLED:
            self.disable_pnp_device(device.instance)
        if not device.enabled and assignment == ENABLED:
            self.enable_pnp_device(device.instance)
        if assignment not in (ENABLED, DISABLED) and not device.dismounted:
            self.dismount_vm_host_assignable_device(device.location, force=FORCE in call.accept)

    def _move_to_vm(self, call: SetCall, vm: str, others: Sequence[str]) -> None:
        location = call.key["location"]
        try:
            self.add_vm_assignable_device(vm, location)
        except CmdletError:
            for guid in others:
                self.add_vm_assignable_device(guid, location)
            raise
