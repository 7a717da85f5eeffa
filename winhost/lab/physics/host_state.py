"""The state of a simulated host: made from facts, and read back as facts.

It also has the rules that all cmdlets share: which need an administrator, how long they take, and what happens to them
when the host goes down.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict
from typing import Any

from winhost.core.answers import Json, Key, Record, Unavailable, Unknown
from winhost.lab.physics.lab_section import DevicePhysics, LabClock, LabSection
from winhost.lab.physics.parts import Change, Part, SetCall
from winhost.lab.physics.virtual_machine import (
    VM_RESOURCES,
    Assignment,
    Device,
    VirtualMachine,
    allocate_bars,
    get_known,
    make_device,
    make_virtual_machine,
)
from winhost.lab.physics.windows_errors import CmdletError, administrator_required, cmdlet_error
from winhost.model.facts import Answer, Facts
from winhost.resources.host import typed_instance
from winhost.resources.registry import WINDOWS, WINDOWS_STATES
from winhost.resources.windows.read_only import DMA_PROTECTION, OperatingSystem
from winhost.resources.windows.vms import assignment_to

_HYPER_V_RESOURCES = {name for name, resource in WINDOWS.items() if resource.requires == "HyperVRole"}
# Resource to the cmdlet that only administrators may call. Of HyperVHost only two properties need one.
_ADMINISTRATORS_ONLY = {name: "Get-VM" for name in _HYPER_V_RESOURCES if name != "HyperVHost"} | {
    "VmSwitch": "Get-VMSwitch",
    "ExternalSwitch": "Get-VMSwitch",
    "PartitionableGpu": "Get-VMHostPartitionableGpu",
    "BitLocker": "Get-BitLockerVolume",
    "KeyEscrow": "Get-BitLockerVolume",
}
_CHANGE_VERBS = ("New", "Set", "Remove")
_FIREWALL_NOUNS = ("NetFirewallHyperVVMSetting", "NetFirewallHyperVRule", "NetFirewallRule")
_DENIAL_ERRORS = {
    **{f"{verb}-{resource}": "network-denied" for resource in _FIREWALL_NOUNS for verb in _CHANGE_VERBS},
    **{f"{verb}-WindowsOptionalFeature": "elevation-needed" for verb in ("Get", "Enable", "Disable")},
    "Get-WindowsFeature": "features-denied",
}
# Resource to the properties that only administrators can read, and the cmdlet that reads these.
_ADMINISTRATOR_PROPERTIES = {
    "HyperVHost": ("Get-VMHost", ("iov_support", "iov_reasons")),
    "NetworkAdapter": ("Get-VMSwitch", ("switch",)),
}
_ADMINISTRATORS_MODULES = ("Hyper-V", "ServerManager", "Dism", "BitLocker")

# Durations of cmdlets in lab seconds; all others take no time.
_SECONDS = {
    "Install-WindowsFeature": 60.0,
    "Uninstall-WindowsFeature": 30.0,
    "Enable-WindowsOptionalFeature": 60.0,
    "Disable-WindowsOptionalFeature": 30.0,
    "Copy-WinhostSource": 30.0,
    "Receive-WinhostSlice": 20.0,
    "msiexec.exe": 30.0,
    "nvidia-smi.exe": 1.0,
    "Start-VM": 3.0,
    "Save-VM": 10.0,
    "Disable-PnpDevice": 2.0,
    "Enable-PnpDevice": 3.0,
    "Dismount-VMHostAssignableDevice": 2.0,
    "Mount-VMHostAssignableDevice": 3.0,
}
# The machine on which this thread has a session, and a call that returns whether that session is still alive.
_SESSION: ContextVar[tuple[object, Callable[[], bool]]] = ContextVar("session", default=(None, lambda: True))
_BOOT_STEP = 3600 * 10**7


class HostDown(Exception):
    """The host went down during a call, which gets no answer."""


class HostState:
    """The state of a host, made from facts and from hidden physics that facts do not show. It is thread-safe."""

    def __init__(self, facts: Facts, lab: LabSection | None = None, clock: LabClock | None = None) -> None:
        self.lab = lab or LabSection()
        self.clock = clock or LabClock()
        self.boot = 1
        self._up = True
        self._facts = facts
        self._lock = threading.RLock()
        self._logon_ready, self._servicing = True, False
        self.initial = _load_records(facts, self.lab)
        system = self.initial.get("OperatingSystem", ())
        self._system = typed_instance(OperatingSystem, system[0]).state if system else None
        # The states of the Windows features Hyper-V and Hyper-V-PowerShell, as in resource HyperVRole. Facts that were
        # read without the right to list features still show whether VMs can be read.
        visible_state = "available" if isinstance(facts.resources.get("Vm"), Unavailable) else "installed"
        role_state = self._first_state("HyperVRole")
        self.role, self.tools = str(role_state.get("role", visible_state)), str(role_state.get("tools", visible_state))
        self._reasons: list[str] = list(get_known(self._first_state("PendingReboot"), "reasons", []))
        assignments = {_freeze(r.key): str(r.state["assignment"]) for r in self.initial.get("AssignableDevice", ())}
        self.devices = [
            make_device(r, assignments.get(_freeze(r.key)), self.lab.devices.get(r.key["location"], DevicePhysics()))
            for r in self.initial.get("PciDevice", ())
        ]
        self.vms = self._make_vms()
        self._initial_vm_memory = self._used_memory()
        self.parts: list[Part] = []
        self._part_of_resource: dict[str, Part] = {}
        self._indexed_parts = 0  # how many parts _part_of_resource has
        # Parts add to these tables. They add methods, not lambdas: a deep copy of the machine then calls its own parts.
        self.session: dict[str, Callable[[], Json]] = {}
        """Properties of resource Session."""
        self.refusals: dict[str, Callable[[], CmdletError | None]] = {}
        """Resource to a call that returns the error with which it cannot be read now."""
        self.key_resolvers: dict[str, Callable[[Key], Key]] = {}
        """Resource to a call that turns a requested key into the key under which the instance is listed."""
        self.listing_views: dict[str, Callable[[Record], Record]] = {}
        """Resource to a call that turns a record into what a listing of all instances shows."""
        self.prerequisites: dict[str, Callable[[], str | None]] = {}
        """Resource to a call that returns the resource that has to exist first, if it is missing."""
        self.registry_keys: list[Callable[[], Iterable[tuple[str, Mapping[str, Json]]]]] = []
        self.registry_writers: dict[str, Callable[[str, Json], None]] = {}
        self.cim_classes: dict[str, Callable[[], Iterable[Any]]] = {}
        self.programs: dict[str, Callable[[Sequence[str]], tuple[int, str]]] = {}
        """Programs, which return an exit code and their output."""
        self.changes: dict[str, Change] = {}
        """Resource to the call that applies a `set`."""
        firmware = self._first_state("Firmware")
        self._hypervisor = bool(get_known(firmware, "hypervisor_present", False))
        # Virtualization reads as not enabled once a hypervisor runs.
        properties = ("hypervisor_present", "virtualization_enabled")
        self._virtualization = any(get_known(firmware, name, True) for name in properties)

    # ---- made from facts

    def _first_state(self, resource: str) -> Mapping[str, Json]:
        records = self.initial.get(resource, ())
        return records[0].state if records else {}

    @property
    def non_gpu_devices(self) -> set[str]:
        """Locations of the devices other than GPUs that VMs had in the facts."""
        gpu_locations = {d.location for d in self.devices}
        assignments = self.initial.get("AssignableDevice", ())
        return {r.key["location"] for r in assignments if r.state.get("present") is True} - gpu_locations

    def _make_vms(self) -> dict[str, VirtualMachine]:
        assignments = {r.key["location"]: str(r.state["assignment"]) for r in self.initial.get("AssignableDevice", ())}
        instances = {
            r.key["location"]: f"PCIP\\{r.key['device']}\\gone" for r in self.initial.get("AssignableDevice", ())
        } | {d.location: d.instance for d in self.devices}

        def make(guid: str) -> VirtualMachine:
            def state_of(resource: str) -> Mapping[str, Json]:
                return next((r.state for r in self.initial.get(resource, ()) if r.key["vm"] == guid), {})

            return make_virtual_machine(guid, state_of, assignments, lambda location: instances.get(location, ""))

        return {r.key["vm"]: make(r.key["vm"]) for r in self.initial.get("Vm", ())}

    # ---- reads

    @property
    def name(self) -> str:
        """The computer name."""
        return self._system.hostname if self._system else self._facts.host

    @property
    def is_client(self) -> bool:
        """Tell whether it is a client Windows, where roles are optional features."""
        return self._system is not None and self._system.installation_type == "Client"

    @property
    def manages_vms(self) -> bool:
        """Tell whether Hyper-V's management service runs and its PowerShell module is installed."""
        return self.service_runs and self.tools == "installed"

    @property
    def service_runs(self) -> bool:
        return self.role in ("installed", "uninstall-pending")

    def assignment(self, location: str) -> str | None:
        """Return the assignment of the device at this location: that of a VM that claims it, else that of the host."""
        vm_assignments = [assignment_to(vm.guid) for vm in self.vms.values() if vm.has_device(location)]
        host_assignments = [d.host_assignment for d in self.devices if d.location == location]
        return next(iter(vm_assignments + host_assignments), None)

    def devices_in_guest(self, guid: str) -> list[str]:
        """Return the locations of the devices that a running VM's guest can use: present, and within its windows."""
        with self._lock:
            vm, devices = self.vms[guid], self._guest_devices(guid)
            fits = allocate_bars([d.bars for d in devices], vm.low, vm.high)
            return sorted(d.location for d, fit in zip(devices, fits, strict=True) if fit)

    def missing_window_sizes(self, guid: str) -> dict[str, int]:
        """Return the window sizes that the guest's kernel reports as missing, by window. It tries the low one first."""
        with self._lock:
            vm, devices = self.vms[guid], self._guest_devices(guid)
            bars = [d.bars for d in devices]
            fit_both, fit_low = allocate_bars(bars, vm.low, vm.high), allocate_bars(bars, vm.low, 1 << 60)
            sizes = {
                "low": [sum(each.narrow) for each, fits in zip(bars, fit_low, strict=True) if not fits],
                "high": [
                    sum(each.wide) for each, fits, low in zip(bars, fit_both, fit_low, strict=True) if low and not fits
                ],
            }
            return {window: max(needed) for window, needed in sizes.items() if needed}

    def _guest_devices(self, guid: str) -> list[Device]:
        """Return the devices of a running VM in the order in which its guest enumerates them."""
        vm = self.vms[guid]
        claimed = map(self._find_claimed, vm.assignments) if vm.power == "running" else ()
        devices = [d for d in claimed if d is not None]
        return devices[::-1] if self.lab.guest_order == "reversed" else devices

    def answer(self, resource: str) -> Answer:
        """Return all instances of a resource that this session may see. Raises KeyError for an unknown resource."""
        with self._lock:
            if resource in _HYPER_V_RESOURCES and not self.manages_vms:
                return Unavailable("HyperVRole")
            if not self.lab.administrator and (cmdlet := self._denied_cmdlet(resource)):
                return Unknown(self.denial_error(cmdlet).fault)
            is_hidden = not self.lab.administrator and any(
                resource in part.administrator_resources for part in self.parts
            )
            if error := administrator_required() if is_hidden else self.refusals.get(resource, lambda: None)():
                return Unknown(error.fault)
            if (dependency := self.prerequisites.get(resource, lambda: None)()) is not None:
                return Unavailable(dependency)
            records = self.instances(resource)
            recorded = self._facts.resources.get(resource)
            if isinstance(recorded, Unknown) and not records:
                return recorded
            return (
                self._hide_administrator_properties(resource, records)
                if resource in _ADMINISTRATOR_PROPERTIES
                else records
            )

    def instances(self, resource: str) -> tuple[Record, ...]:
        """Return all instances of a resource, without checking who may see them."""
        with self._lock:
            if resource in VM_RESOURCES:
                return tuple(Record(vm.state(resource), {"vm": vm.guid}) for vm in self.vms.values())
            if self._indexed_parts != len(self.parts):
                self._part_of_resource = {name: part for part in reversed(self.parts) for name in part.records()}
                self._indexed_parts = len(self.parts)
            # Only this resource's records are made: a detect calls this for dozens of resources.
            if (part := self._part_of_resource.get(resource)) is not None:
                return tuple(part.records()[resource]())
            return tuple(self._record_sources.get(resource, lambda: self.initial.get(resource, ()))())

    def set_record(self, call: SetCall) -> bool:
        """Apply a `set` whose desired properties become the record's, without any side effect."""
        if not self.lab.administrator:
            raise administrator_required()
        call.check_data()
        with self.changing(f"Set-Winhost{call.resource}"):
            self.update_record(call.resource, call.key, call.desired)
        return WINDOWS[call.resource].restarts

    def update_record(self, resource: str, key: Key, state: Mapping[str, Json]) -> None:
        """Change properties of an instance that no part has. One in its absent state is removed."""
        records = {_freeze(each.key): each for each in self.initial.get(resource, ())}
        absent = WINDOWS[resource].absent
        before = records[_freeze(key)].state if _freeze(key) in records else absent or {}
        records[_freeze(key)] = Record({**before, **state}, key)
        self.initial[resource] = tuple(each for each in records.values() if each.state != absent)

    def has_module(self, module: str) -> bool:
        """Tell whether this Windows has a PowerShell module."""
        installed = {"Hyper-V": self.tools == "installed", "ServerManager": not self.is_client}
        return installed.get(module, module != "BitLocker" or bool(self.initial.get("BitLocker")))

    def denial_error(self, cmdlet: str) -> CmdletError:
        """Return the error of this cmdlet for a user who is no administrator."""
        if cmdlet == "Get-BitLockerVolume":  # a script, which asks CIM
            return self.windows_error("cim-denied", "Get-CimInstance")
        return self.windows_error(_DENIAL_ERRORS.get(cmdlet, "access-denied"), cmdlet)

    def _denied_cmdlet(self, resource: str) -> str | None:
        if resource == "VirtualMachinePlatform":
            return "Get-WindowsOptionalFeature"
        if resource == "HyperVRole":
            return "Get-WindowsOptionalFeature" if self.is_client else "Get-WindowsFeature"
        return (
            _ADMINISTRATORS_ONLY.get(resource) if self.instances(resource) or resource in _HYPER_V_RESOURCES else None
        )

    def _hide_administrator_properties(self, resource: str, records: tuple[Record, ...]) -> tuple[Record, ...]:
        """Replace the properties that only administrators can read, for other users."""
        if self.lab.administrator or not self.manages_vms:
            return records
        cmdlet, names = _ADMINISTRATOR_PROPERTIES[resource]
        unknown = {"unknown": self.denial_error(cmdlet).as_json()}
        return tuple(Record({**r.state, **dict.fromkeys(names, unknown)}, r.key) for r in records)

    def snapshot(self) -> dict[str, Json]:
        """Return the answers of all resources as JSON, as a session reads them now."""
        return {state.resource_type.name: _to_json(self.answer(state.resource_type.name)) for state in WINDOWS_STATES}

    def facts(self) -> Facts:
        """Return the answers of all resources as facts."""
        resources = {state.resource_type.name: self.answer(state.resource_type.name) for state in WINDOWS_STATES}
        initial = self._facts
        return Facts(initial.host, initial.origin, initial.read_at, initial.winhost, resources, initial.schema)

    def comparable_state(self) -> dict[str, Json]:
        """Return the state that a complete undo restores, including what only administrators see and VMs without the
        role.

        Not included, because no undo can or need restore it: the boot, instance ids, free memory, sizes of disk files,
        and the power of VMs while Hyper-V is not installed.
        """
        with self._lock:
            instances = {
                resource: self.instances(resource) for resource in {**self.initial, **WINDOWS} if resource != "Boot"
            }
            records = {name: _to_json(each) for name, each in instances.items() if each or name in self.initial}
            volatile = {("PciDevice", "instance"), ("Memory", "free")}
            volatile |= {("WslDistro", "file_size"), ("VmDisk", "file_size")}
            if not self.service_runs:
                volatile |= {("Vm", "state"), ("VmPower", "state")}
            for resource, name in volatile:
                for record in records.get(resource, ()):
                    del record["state"][name]
            return records

    @property
    def _record_sources(self) -> Mapping[str, Callable[[], Iterable[Record]]]:
        # Made anew for each call: a copy of this host would otherwise keep calls that read this host.
        session = {"administrator": self.lab.administrator, "simulated": True}
        role = {"role": self.role, "tools": self.tools, "vms": len(self.vms) if self.manages_vms else 0}
        return {
            "Session": lambda: self._update_records(
                "Session", session | {name: read() for name, read in self.session.items()}
            ),
            "Boot": lambda: self._update_records("Boot", self._boot_state()),
            "Firmware": lambda: self._update_records("Firmware", self._firmware_state()),
            "Memory": lambda: self._update_records("Memory", {"free": self._free_memory()}),
            "HyperVRole": lambda: self._update_records("HyperVRole", role),
            "PendingReboot": lambda: self._update_records("PendingReboot", {"reasons": list(self._reasons)}),
            "HyperVHost": self._hyper_v_host,
            "PciDevice": lambda: (Record(d.state(), d.key) for d in self.devices),
            "AssignableDevice": self._list_assignments,
        }

    def _update_records(self, resource: str, changed: Mapping[str, Json]) -> Iterator[Record]:
        """Return the records of the facts with changed properties."""
        return (Record({**r.state, **changed}, r.key) for r in self.initial.get(resource, ()))

    def _hyper_v_host(self) -> tuple[Record, ...]:
        if "HyperVHost" in self.initial or isinstance(self._facts.resources.get("HyperVHost"), Unknown):
            return self.initial.get("HyperVHost", ())
        # Facts of a host without the role have no such record.
        return (Record({"iov_support": self._remaps_dma(), "iov_reasons": [], "service": "running"}),)

    def _list_assignments(self) -> Iterator[Record]:
        for each in self.devices:
            yield Record({"assignment": self.assignment(each.location), "present": True}, each.key)
        present = {d.location for d in self.devices}
        for vm in self.vms.values():
            for claim in vm.assignments:
                if claim.location not in present:
                    ids = claim.instance.split("\\")[1].partition("&REV_")[0] if claim.instance else ""
                    state = {"assignment": assignment_to(vm.guid), "present": claim.location in self.non_gpu_devices}
                    yield Record(state, {"location": claim.location, "device": ids})

    def _boot_state(self) -> dict[str, Json]:
        # Boot ids count steps of 100 ns, as Windows does, and grow with each boot.
        initial = str(self._first_state("Boot").get("boot_id", 0))
        first = int(initial) if initial.isascii() and initial.isdecimal() else 0
        boot_id = str(first + (self.boot - 1) * _BOOT_STEP)
        return {"boot_id": boot_id, "logon_ready": self._logon_ready, "servicing": self._servicing}

    def _firmware_state(self) -> dict[str, Json]:
        state: dict[str, Json] = {"hypervisor_present": self._hypervisor}
        if self._hypervisor:
            return {**state, "virtualization_enabled": False, "second_level_translation": False}
        if get_known(self._first_state("Firmware"), "hypervisor_present", False):
            return {**state, "virtualization_enabled": True, "second_level_translation": True}
        return state

    def _used_memory(self) -> int:
        return sum(vm.startup for vm in self.vms.values() if vm.occupies_memory)

    def _free_memory(self) -> int:
        free = int(get_known(self._first_state("Memory"), "free", 1 << 40))
        return max(0, free + self._initial_vm_memory - self._used_memory())

    def _find_claimed(self, claim: Assignment) -> Device | None:
        """Return the device of an assignment; None if it was mounted, moved or renumbered since."""
        candidates = (d for d in self.devices if d.location == claim.location and d.dismounted)
        return next((d for d in candidates if d.instance == claim.instance), None)

    def _remaps_dma(self) -> bool:
        if self.lab.iommu is not None:
            return self.lab.iommu
        has_dma_protection = DMA_PROTECTION in get_known(self._first_state("Firmware"), "security_properties", ())
        return has_dma_protection or bool(get_known(self._first_state("HyperVHost"), "iov_support", False))

    def windows_error(self, name: str, cmdlet: str, **values: object) -> CmdletError:
        """Return the error `name` of the catalogue, in the language of this host."""
        language = self.lab.language or (self._system.language if self._system else "en-US")
        return cmdlet_error(name, cmdlet, language, {"host": self.name, "cmdlet": cmdlet, **values})

    # ---- cmdlets and sessions

    def accepts_connections(self) -> bool:
        """Tell whether the host is up. While it restarts, it accepts no connections."""
        return self._up

    @contextmanager
    def session_scope(self, is_alive: Callable[[], bool]) -> Iterator[None]:
        """Run calls of this thread as those of one session. After the session has ended, they raise HostDown."""
        machine, is_outer_alive = _SESSION.get()
        is_whole_alive = (lambda: is_outer_alive() and is_alive()) if machine is self else is_alive
        token = _SESSION.set((self, is_whole_alive))
        try:
            yield
        finally:
            _SESSION.reset(token)

    def check_session(self) -> None:
        """Raise HostDown if the session of this thread has ended."""
        machine, alive = _SESSION.get()
        if machine is self and not alive():
            raise HostDown

    @contextmanager
    def reading(self, cmdlet: str, module: str) -> Iterator[None]:
        """Lock the machine for a cmdlet that only reads. Raises CmdletError, HostDown."""
        with self._lock:
            self._check_up(self.boot)
            if not self.has_module(module):
                raise self.windows_error("no-module", cmdlet)
            if module in _ADMINISTRATORS_MODULES and not self.lab.administrator:
                raise self.denial_error(cmdlet)
            yield

    @contextmanager
    def changing(self, cmdlet: str) -> Iterator[None]:
        """Lock the machine for a cmdlet or program that changes something, after the time that it takes.

        Raises CmdletError if the user is no administrator, and HostDown.
        """
        boot = self.boot
        if not self.lab.administrator:
            raise self.denial_error(cmdlet)
        self.clock.sleep(self.lab.seconds.get(cmdlet, _SECONDS.get(cmdlet, 0.0)))
        with self._lock:
            self._check_up(boot)
            yield

    def _check_up(self, boot: int) -> None:
        self.check_session()
        if not self._up or self.boot != boot:
            raise HostDown


def _load_records(facts: Facts, lab: LabSection) -> dict[str, tuple[Record, ...]]:
    """Return the instances of all resources: those of the facts, hidden ones, and usual states of unread resources."""
    usual = {name: (Record(each.usual),) for name, each in WINDOWS.items() if each.usual is not None}
    read = {resource: answer for resource, answer in facts.resources.items() if isinstance(answer, tuple)}
    hidden = {
        resource: tuple(Record(r["state"], r["key"]) for r in records) for resource, records in lab.hidden.items()
    }
    return usual | read | hidden


def _freeze(key: Key) -> frozenset[tuple[str, str]]:
    return frozenset(key.items())


def _to_json(answer: Answer) -> Json:
    if isinstance(answer, Unavailable):
        return {"unavailable": answer.unavailable}
    if isinstance(answer, Unknown):
        return {"unknown": {**asdict(answer.unknown), "hresults": list(answer.unknown.hresults)}}
    return [{"key": dict(r.key), "state": dict(r.state)} for r in answer]
