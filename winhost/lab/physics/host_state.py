"""The state of a simulated host, made from facts, its view in facts, and the rules for its cmdlets: which need an
administrator, which take time, and that it may go down.
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
    device,
    fitting,
    known_or,
    virtual_machine,
)
from winhost.lab.physics.windows_errors import CmdletError, cmdlet_error, not_administrator
from winhost.model.facts import Answer, Facts
from winhost.resources.host import typed_instance
from winhost.resources.registry import WINDOWS, WINDOWS_STATES
from winhost.resources.windows.read_only import DMA_PROTECTION, OperatingSystem
from winhost.resources.windows.vms import assignment_to

_OF_HYPER_V = {name for name, resource in WINDOWS.items() if resource.requires == "HyperVRole"}
# The cmdlet that refuses whoever is no administrator, by resource; of HyperVHost it refuses two properties only.
_ADMINISTRATORS_ONLY = {name: "Get-VM" for name in _OF_HYPER_V if name != "HyperVHost"} | {
    "VmSwitch": "Get-VMSwitch",
    "ExternalSwitch": "Get-VMSwitch",
    "PartitionableGpu": "Get-VMHostPartitionableGpu",
    "BitLocker": "Get-BitLockerVolume",
    "KeyEscrow": "Get-BitLockerVolume",
}
_CHANGING = ("New", "Set", "Remove")
_OF_THE_NETWORK = ("NetFirewallHyperVVMSetting", "NetFirewallHyperVRule", "NetFirewallRule")
_DENIED_OTHERWISE = {
    **{f"{verb}-{resource}": "network-denied" for resource in _OF_THE_NETWORK for verb in _CHANGING},
    **{f"{verb}-WindowsOptionalFeature": "elevation-needed" for verb in ("Get", "Enable", "Disable")},
    "Get-WindowsFeature": "features-denied",
}
# Resources that everybody can read but for some properties, and the cmdlet that tells administrators those.
_ASKED_OF_THE_HOST = {
    "HyperVHost": ("Get-VMHost", ("iov_support", "iov_reasons")),
    "NetworkAdapter": ("Get-VMSwitch", ("switch",)),
}
_ADMINISTRATORS_MODULES = ("Hyper-V", "ServerManager", "Dism", "BitLocker")

# Lab seconds that cmdlets take; the others take next to none.
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
# The machine that the session of this thread is on, and whether the session is still there.
_SESSION: ContextVar[tuple[object, Callable[[], bool]]] = ContextVar("session", default=(None, lambda: True))
_BOOT_STEP = 3600 * 10**7


class HostDown(Exception):
    """The host went down while this was running: there will be no answer."""


class HostState:
    """The state of a host, made from facts and from hidden physics that facts cannot tell. It is thread-safe."""

    def __init__(self, facts: Facts, lab: LabSection | None = None, clock: LabClock | None = None) -> None:
        self.lab = lab or LabSection()
        self.clock = clock or LabClock()
        self.boot = 1
        self._up = True
        self._facts = facts
        self._lock = threading.RLock()
        self._logon_ready, self._servicing = True, False
        self.initial = _initial(facts, self.lab)
        system = self.initial.get("OperatingSystem", ())
        self._system = typed_instance(OperatingSystem, system[0]).state if system else None
        # The Windows features Hyper-V and Hyper-V-PowerShell, in the words of resource HyperVRole. Who may not ask for
        # features may still see their effect.
        seen = "available" if isinstance(facts.resources.get("Vm"), Unavailable) else "installed"
        known = self._first("HyperVRole")
        self.role, self.tools = str(known.get("role", seen)), str(known.get("tools", seen))
        self._reasons: list[str] = list(known_or(self._first("PendingReboot"), "reasons", []))
        assignments = {_frozen(r.key): str(r.state["assignment"]) for r in self.initial.get("AssignableDevice", ())}
        self.devices = [
            device(r, assignments.get(_frozen(r.key)), self.lab.devices.get(r.key["location"], DevicePhysics()))
            for r in self.initial.get("PciDevice", ())
        ]
        self.vms = self._make_vms()
        self._initially_used = self._used_memory()
        self.parts: list[Part] = []
        self._tellers: dict[str, Part] = {}  # by what they tell, of the first so many parts
        self._asked = 0
        # Parts add to these: properties of resource Session; the error that refuses a resource; the key under which a
        # resource lists an asked key; the record that a listing of all shows; the resource that has to be there first;
        # registry keys and their writers; CIM classes; programs, which return a code and an output; and what a `set`
        # does to a resource.
        self.session: dict[str, Callable[[], Json]] = {}
        self.refusals: dict[str, Callable[[], CmdletError | None]] = {}
        self.known_as: dict[str, Callable[[Key], Key]] = {}
        self.listed_as: dict[str, Callable[[Record], Record]] = {}
        self.awaits: dict[str, Callable[[], str | None]] = {}
        # Methods of parts, not lambdas: a copy of the machine gets those of its own parts.
        self.registry_keys: list[Callable[[], Iterable[tuple[str, Mapping[str, Json]]]]] = []
        self.registry_writers: dict[str, Callable[[str, Json], None]] = {}
        self.cim_classes: dict[str, Callable[[], Iterable[Any]]] = {}
        self.programs: dict[str, Callable[[Sequence[str]], tuple[int, str]]] = {}
        self.changes: dict[str, Change] = {}
        firmware = self._first("Firmware")
        self._hypervisor = bool(known_or(firmware, "hypervisor_present", False))
        # Virtualization reads as not enabled once a hypervisor runs.
        either = ("hypervisor_present", "virtualization_enabled")
        self._virtualization = any(known_or(firmware, name, True) for name in either)

    # ---- made from facts

    def _first(self, resource: str) -> Mapping[str, Json]:
        records = self.initial.get(resource, ())
        return records[0].state if records else {}

    @property
    def other_devices(self) -> set[str]:
        """Locations of devices that are no GPUs, and that VMs had when the host was given."""
        gpus = {d.location for d in self.devices}
        told = self.initial.get("AssignableDevice", ())
        return {r.key["location"] for r in told if r.state.get("present") is True} - gpus

    def _make_vms(self) -> dict[str, VirtualMachine]:
        assignments = {r.key["location"]: str(r.state["assignment"]) for r in self.initial.get("AssignableDevice", ())}
        gone = {r.key["location"]: f"PCIP\\{r.key['device']}\\gone" for r in self.initial.get("AssignableDevice", ())}
        instances = gone | {d.location: d.instance for d in self.devices}

        def make(guid: str) -> VirtualMachine:
            def state_of(resource: str) -> Mapping[str, Json]:
                return next((r.state for r in self.initial.get(resource, ()) if r.key["vm"] == guid), {})

            return virtual_machine(guid, state_of, assignments, lambda location: instances.get(location, ""))

        return {r.key["vm"]: make(r.key["vm"]) for r in self.initial.get("Vm", ())}

    # ---- looking

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
        """Tell whether the service that knows the VMs runs and its PowerShell module is installed."""
        return self.service_runs and self.tools == "installed"

    @property
    def service_runs(self) -> bool:
        return self.role in ("installed", "uninstall-pending")

    def assignment(self, location: str) -> str | None:
        """The assignment of the device there, as AssignableDevice shows it: a VM that claims it counts first."""
        claimed = [assignment_to(vm.guid) for vm in self.vms.values() if vm.has(location)]
        rungs = [d.rung for d in self.devices if d.location == location]
        return next(iter(claimed + rungs), None)

    def guest_sees(self, guid: str) -> list[str]:
        """Location paths of the devices that the guest of a running VM can use: there, and fitting its windows."""
        with self._lock:
            vm, found = self.vms[guid], self._met(guid)
            fits = fitting([d.bars for d in found], vm.low, vm.high)
            return sorted(d.location for d, fit in zip(found, fits, strict=True) if fit)

    def guest_lacks(self, guid: str) -> dict[str, int]:
        """The sizes that the kernel of such a guest reports as needed, by window: the low one is asked for first."""
        with self._lock:
            vm, found = self.vms[guid], self._met(guid)
            bars = [d.bars for d in found]
            both, low_alone = fitting(bars, vm.low, vm.high), fitting(bars, vm.low, 1 << 60)
            lacks = {
                "low": [sum(each.narrow) for each, fits in zip(bars, low_alone, strict=True) if not fits],
                "high": [
                    sum(each.wide) for each, fits, low in zip(bars, both, low_alone, strict=True) if low and not fits
                ],
            }
            return {window: max(needed) for window, needed in lacks.items() if needed}

    def _met(self, guid: str) -> list[Device]:
        """The devices of the guest of a running VM, in its order."""
        vm = self.vms[guid]
        met = map(self._present, vm.assignments) if vm.power == "running" else ()
        found = [d for d in met if d is not None]
        return found[::-1] if self.lab.guest_order == "reversed" else found

    def answer(self, resource: str) -> Answer:
        """All instances of a resource, as this session may see them. Raises KeyError for an unknown resource."""
        with self._lock:
            if resource in _OF_HYPER_V and not self.manages_vms:
                return Unavailable("HyperVRole")
            if not self.lab.administrator and (cmdlet := self._refusing(resource)):
                return Unknown(self.denied(cmdlet).fault)
            hidden = not self.lab.administrator and any(resource in part.for_administrators for part in self.parts)
            if error := not_administrator() if hidden else self.refusals.get(resource, lambda: None)():
                return Unknown(error.fault)
            if (missing := self.awaits.get(resource, lambda: None)()) is not None:
                return Unavailable(missing)
            found = self.instances(resource)
            recorded = self._facts.resources.get(resource)
            if isinstance(recorded, Unknown) and not found:
                return recorded
            return self._as_a_guest(resource, found) if resource in _ASKED_OF_THE_HOST else found

    def instances(self, resource: str) -> tuple[Record, ...]:
        """All instances of a resource, whoever may see them."""
        with self._lock:
            if resource in VM_RESOURCES:
                return tuple(Record(vm.state(resource), {"vm": vm.guid}) for vm in self.vms.values())
            if self._asked != len(self.parts):
                self._tellers = {name: part for part in reversed(self.parts) for name in part.records()}
                self._asked = len(self.parts)
            # Only this one is looked up, because each read asks for dozens.
            if (part := self._tellers.get(resource)) is not None:
                return tuple(part.records()[resource]())
            return tuple(self._listers.get(resource, lambda: self.initial.get(resource, ()))())

    def set_record(self, asked: SetCall) -> bool:
        """Change a resource to whose change Windows adds nothing: its record takes what is desired."""
        if not self.lab.administrator:
            raise not_administrator()
        asked.check_data()
        with self.changing(f"Set-Winhost{asked.resource}"):
            self.put(asked.resource, asked.key, asked.desired)
        return WINDOWS[asked.resource].restarts

    def put(self, resource: str, key: Key, state: Mapping[str, Json]) -> None:
        """Give properties to an instance that no part keeps; in its absent state it is gone."""
        records = {_frozen(each.key): each for each in self.initial.get(resource, ())}
        absent = WINDOWS[resource].absent
        before = records[_frozen(key)].state if _frozen(key) in records else absent or {}
        records[_frozen(key)] = Record({**before, **state}, key)
        self.initial[resource] = tuple(each for each in records.values() if each.state != absent)

    def has_module(self, module: str) -> bool:
        """Tell whether this Windows has a PowerShell module."""
        some = {"Hyper-V": self.tools == "installed", "ServerManager": not self.is_client}
        return some.get(module, module != "BitLocker" or bool(self.initial.get("BitLocker")))

    def denied(self, cmdlet: str) -> CmdletError:
        """The error of this cmdlet for those who are no administrators."""
        if cmdlet == "Get-BitLockerVolume":  # a script, which asks CIM
            return self.fail("cim-denied", "Get-CimInstance")
        return self.fail(_DENIED_OTHERWISE.get(cmdlet, "access-denied"), cmdlet)

    def _refusing(self, resource: str) -> str | None:
        if resource == "VirtualMachinePlatform":
            return "Get-WindowsOptionalFeature"
        if resource == "HyperVRole":
            return "Get-WindowsOptionalFeature" if self.is_client else "Get-WindowsFeature"
        return _ADMINISTRATORS_ONLY.get(resource) if self.instances(resource) or resource in _OF_HYPER_V else None

    def _as_a_guest(self, resource: str, found: tuple[Record, ...]) -> tuple[Record, ...]:
        """Hide from others than administrators what only Hyper-V knows of these instances."""
        if self.lab.administrator or not self.manages_vms:
            return found
        cmdlet, names = _ASKED_OF_THE_HOST[resource]
        unknown = {"unknown": self.denied(cmdlet).as_json()}
        return tuple(Record({**r.state, **dict.fromkeys(names, unknown)}, r.key) for r in found)

    def snapshot(self) -> dict[str, Json]:
        """The answers of all resources as JSON: what a session sees of this host now."""
        return {state.resource_type.name: _as_json(self.answer(state.resource_type.name)) for state in WINDOWS_STATES}

    def facts(self) -> Facts:
        """The snapshot as a facts document."""
        resources = {state.resource_type.name: self.answer(state.resource_type.name) for state in WINDOWS_STATES}
        initial = self._facts
        return Facts(initial.host, initial.origin, initial.read_at, initial.winhost, resources, initial.schema)

    def settled_state(self) -> dict[str, Json]:
        """The state that must be the same again after everything was given back, also the parts that only an
        administrator sees, and VMs without the role.

        Left out is what no one can or need give back: the boot, instance ids, free memory, how far files of disks have
        grown, and the power of VMs while there is no Hyper-V to run them.
        """
        with self._lock:
            found = {
                resource: self.instances(resource) for resource in {**self.initial, **WINDOWS} if resource != "Boot"
            }
            records = {name: _as_json(each) for name, each in found.items() if each or name in self.initial}
            volatile = {("PciDevice", "instance"), ("Memory", "free")}
            volatile |= {("WslDistro", "file_size"), ("VmDisk", "file_size")}
            if not self.service_runs:
                volatile |= {("Vm", "state"), ("VmPower", "state")}
            for resource, name in volatile:
                for record in records.get(resource, ()):
                    del record["state"][name]
            return records

    @property
    def _listers(self) -> Mapping[str, Callable[[], Iterable[Record]]]:
        # Not kept: in a copy of this host they would go on telling of this one.
        session = {"administrator": self.lab.administrator, "simulated": True}
        role = {"role": self.role, "tools": self.tools, "vms": len(self.vms) if self.manages_vms else 0}
        return {
            "Session": lambda: self._with("Session", session | {name: tell() for name, tell in self.session.items()}),
            "Boot": lambda: self._with("Boot", self._boot_state()),
            "Firmware": lambda: self._with("Firmware", self._firmware_state()),
            "Memory": lambda: self._with("Memory", {"free": self._free_memory()}),
            "HyperVRole": lambda: self._with("HyperVRole", role),
            "PendingReboot": lambda: self._with("PendingReboot", {"reasons": list(self._reasons)}),
            "HyperVHost": self._hyper_v_host,
            "PciDevice": lambda: (Record(d.state(), d.key) for d in self.devices),
            "AssignableDevice": self._assignments,
        }

    def _with(self, resource: str, changed: Mapping[str, Json]) -> Iterator[Record]:
        """Yield the given records with their present values."""
        return (Record({**r.state, **changed}, r.key) for r in self.initial.get(resource, ()))

    def _hyper_v_host(self) -> tuple[Record, ...]:
        if "HyperVHost" in self.initial or isinstance(self._facts.resources.get("HyperVHost"), Unknown):
            return self.initial.get("HyperVHost", ())
        # Where the role never was, nobody has asked yet.
        return (Record({"iov_support": self._remaps_dma(), "iov_reasons": [], "service": "running"}),)

    def _assignments(self) -> Iterator[Record]:
        for each in self.devices:
            yield Record({"assignment": self.assignment(each.location), "present": True}, each.key)
        present = {d.location for d in self.devices}
        for vm in self.vms.values():
            for claim in vm.assignments:
                if claim.location not in present:
                    ids = claim.instance.split("\\")[1].partition("&REV_")[0] if claim.instance else ""
                    state = {"assignment": assignment_to(vm.guid), "present": claim.location in self.other_devices}
                    yield Record(state, {"location": claim.location, "device": ids})

    def _boot_state(self) -> dict[str, Json]:
        # As Windows counts: in steps of 100 ns, and each boot is later than the one before.
        initial = str(self._first("Boot").get("boot_id", 0))
        first = int(initial) if initial.isascii() and initial.isdecimal() else 0
        boot_id = str(first + (self.boot - 1) * _BOOT_STEP)
        return {"boot_id": boot_id, "logon_ready": self._logon_ready, "servicing": self._servicing}

    def _firmware_state(self) -> dict[str, Json]:
        state: dict[str, Json] = {"hypervisor_present": self._hypervisor}
        if self._hypervisor:
            return {**state, "virtualization_enabled": False, "second_level_translation": False}
        if known_or(self._first("Firmware"), "hypervisor_present", False):
            return {**state, "virtualization_enabled": True, "second_level_translation": True}
        return state

    def _used_memory(self) -> int:
        return sum(vm.startup for vm in self.vms.values() if vm.occupies_memory)

    def _free_memory(self) -> int:
        free = int(known_or(self._first("Memory"), "free", 1 << 40))
        return max(0, free + self._initially_used - self._used_memory())

    def _present(self, claim: Assignment) -> Device | None:
        """The device of an assignment, or None where it was mounted, moved or renumbered since."""
        found = (d for d in self.devices if d.location == claim.location and d.dismounted)
        return next((d for d in found if d.instance == claim.instance), None)

    def _remaps_dma(self) -> bool:
        if self.lab.iommu is not None:
            return self.lab.iommu
        dma = DMA_PROTECTION in known_or(self._first("Firmware"), "security_properties", ())
        return dma or bool(known_or(self._first("HyperVHost"), "iov_support", False))

    def fail(self, name: str, cmdlet: str, **words: object) -> CmdletError:
        """The error `name` of the catalogue, in the language of this host."""
        language = self.lab.language or (self._system.language if self._system else "en-US")
        return cmdlet_error(name, cmdlet, language, {"host": self.name, "cmdlet": cmdlet, **words})

    # ---- cmdlets, which run as long as it is up

    def accepting(self) -> bool:
        """Tell whether it accepts connections: not while it restarts."""
        return self._up

    @contextmanager
    def for_session(self, alive: Callable[[], bool]) -> Iterator[None]:
        """A session dies with its boot: what is asked in it reads and changes nothing of a later boot."""
        machine, outer = _SESSION.get()
        both = (lambda: outer() and alive()) if machine is self else alive
        token = _SESSION.set((self, both))
        try:
            yield
        finally:
            _SESSION.reset(token)

    def check_session(self) -> None:
        """Raises HostDown where the session of this thread is gone."""
        machine, alive = _SESSION.get()
        if machine is self and not alive():
            raise HostDown

    @contextmanager
    def reading(self, cmdlet: str, module: str) -> Iterator[None]:
        """Hold the machine for a cmdlet that changes nothing, and that everybody may ask who may see its answer.

        Raises CmdletError, HostDown.
        """
        with self._lock:
            self._check_up(self.boot)
            if not self.has_module(module):
                raise self.fail("no-module", cmdlet)
            if module in _ADMINISTRATORS_MODULES and not self.lab.administrator:
                raise self.denied(cmdlet)
            yield

    @contextmanager
    def changing(self, cmdlet: str) -> Iterator[None]:
        """Hold the machine for a cmdlet or a program that changes something, which needs an administrator and takes its
        time. Raises CmdletError, HostDown.
        """
        boot = self.boot
        if not self.lab.administrator:
            raise self.denied(cmdlet)
        self.clock.sleep(self.lab.seconds.get(cmdlet, _SECONDS.get(cmdlet, 0.0)))
        with self._lock:
            self._check_up(boot)
            yield

    def _check_up(self, boot: int) -> None:
        self.check_session()
        if not self._up or self.boot != boot:
            raise HostDown


def _initial(facts: Facts, lab: LabSection) -> dict[str, tuple[Record, ...]]:
    """All instances: the usual ones, those that were read, and the hidden ones."""
    usual = {name: (Record(each.usual),) for name, each in WINDOWS.items() if each.usual is not None}
    read = {resource: answer for resource, answer in facts.resources.items() if isinstance(answer, tuple)}
    hidden = {
        resource: tuple(Record(r["state"], r["key"]) for r in records) for resource, records in lab.hidden.items()
    }
    return usual | read | hidden


def _frozen(key: Key) -> frozenset[tuple[str, str]]:
    return frozenset(key.items())


def _as_json(answer: Answer) -> Json:
    if isinstance(answer, Unavailable):
        return {"unavailable": answer.unavailable}
    if isinstance(answer, Unknown):
        return {"unknown": {**asdict(answer.unknown), "hresults": list(answer.unknown.hresults)}}
    return [{"key": dict(r.key), "state": dict(r.state)} for r in answer]
