"""PCI functions and VMs of a simulated host, and their states as resources."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from winhost.core.answers import Json, Key, Record
from winhost.core.dataclass import dataclass
from winhost.lab.physics.lab_section import DevicePhysics
from winhost.lab.physics.windows_errors import agent_error
from winhost.model.units import GiB, MiB
from winhost.resources.windows.vms import DISABLED, DISMOUNTED, ENABLED, assigned_vm

_PAGE = 0x1000
_HIGH_BASE = 0xF_E000_0000  # 64 GiB - 512 MiB, where Hyper-V puts the high window
_LOW_END = 0x1_0000_0000
_LOW_RESERVED = 0xFED4_0000  # addresses from here to 4 GiB are not allocated
_FRAME_BUFFER = 0x800_0000  # the most that the synthetic video of a generation 2 VM takes
_CONFIG_BYTES = 0x2000  # per device, in the low window


def get_known(state: Mapping[str, Json], name: str, default: Json) -> Json:
    """Return a property, or the default if it is missing or could not be read."""
    value = state.get(name, default)
    return default if isinstance(value, Mapping) else value


@dataclass(frozen=True)
class GuestBars:
    """The sizes of the BARs of one function, in bytes."""

    wide: tuple[int, ...]
    narrow: tuple[int, ...]


class _Window:
    """An address window, allocated in aligned ranges from the lowest address."""

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end
        self.allocated: list[tuple[int, int]] = []

    def allocate(self, length: int, alignment: int) -> bool:
        """Allocate a range, and tell whether there was room."""
        for edge in sorted([self.start, *(end for _, end in self.allocated)]):
            address = -(-edge // alignment) * alignment
            if address + length <= self.end and all(address + length <= a or b <= address for a, b in self.allocated):
                self.allocated.append((address, address + length))
                return True
        return False


def allocate_bars(functions: Sequence[GuestBars], low: int, high: int) -> list[bool]:
    """Allocate BARs in a guest's order; return for each function whether all its BARs fit. low, high: window sizes."""
    high_window = _Window(_HIGH_BASE, _HIGH_BASE + high)
    low_window = _Window(_LOW_END - low + min(low // 2, _FRAME_BUFFER), _LOW_RESERVED)
    return [
        low_window.allocate(_CONFIG_BYTES, _PAGE)
        and _allocate(high_window, bars.wide)
        and _allocate(low_window, bars.narrow)
        for bars in functions
    ]


def window_end(high: int) -> int:
    """Return the first address behind a high window of this size."""
    return _HIGH_BASE + high


def _allocate(window: _Window, bars: Sequence[int]) -> bool:
    total = sum(-(-bar // _PAGE) * _PAGE for bar in bars)
    if total == 0:
        return True
    alignment = _PAGE
    while alignment * 2 <= total:
        alignment *= 2
    return window.allocate(total, alignment)


PROBLEM_DISABLED = 22
_DISMOUNTED_DRIVER = "pcip"
_DISMOUNTED_NAMES = {"display": "PCI Express Graphics Processing Unit - Dismounted"}
_FOUR_GIB = 1 << 32
_APERTURE = 1 << 28  # a frame buffer BAR is a 64-bit one, also where firmware put it below 4 GiB


@dataclass
class Device:
    """One PCI function. enabled_state: its PciDevice state while it is enabled; renumberings: each changes its id."""

    key: Key
    enabled_state: Mapping[str, Json]
    physics: DevicePhysics
    enabled: bool = True
    dismounted: bool = False
    forced: bool = False
    renumberings: int = 0
    recorded_ranges: list[Mapping[str, int]] = field(default_factory=list)

    @property
    def location(self) -> str:
        return self.key["location"]

    @property
    def host_assignment(self) -> str:
        """The assignment of the device as far as the host knows it: a VM knows its own devices."""
        if self.dismounted:
            return DISMOUNTED
        return ENABLED if self.enabled else DISABLED

    @property
    def instance(self) -> str:
        """The instance id. Dismounting changes PCI\\… to PCIP\\…, and each renumbering changes the last part."""
        instance = str(self.enabled_state["instance"])
        if instance.count("\\") < 2:  # no id of a real Windows
            return instance
        _, ids, suffix = instance.split("\\", 2)
        bus = "PCIP" if self.dismounted else "PCI"
        return f"{bus}\\{ids}\\{self.renumberings}&{suffix}" if self.renumberings else f"{bus}\\{ids}\\{suffix}"

    @property
    def bars(self) -> GuestBars:
        """The BARs that a guest has to allocate."""
        lengths = [(r["start"] >= _FOUR_GIB or r["length"] >= _APERTURE, r["length"]) for r in self.recorded_ranges]
        bars64, bars32 = self.physics.bars64, self.physics.bars32
        return GuestBars(
            wide=tuple(n for is_wide, n in lengths if is_wide) if bars64 is None else bars64,
            narrow=tuple(n for is_wide, n in lengths if not is_wide) if bars32 is None else bars32,
        )

    def get_known(self, name: str, default: Json) -> Json:
        return get_known(self.enabled_state, name, default)

    def state(self) -> dict[str, Json]:
        """Return the present PciDevice state."""
        state = {"numa": None, **self.enabled_state, "instance": self.instance}
        if self.dismounted:
            name = _DISMOUNTED_NAMES.get(str(self.enabled_state["kind"]), "PCI Express Device - Dismounted")
            changed = {"problem": 0, "driver": _DISMOUNTED_DRIVER, "driver_version": None, "vram": None}
            unexposed = (
                {"base_class": unexposed_property(), "kind": unexposed_property()} if self.physics.hides_class else {}
            )
            return {**state, **_UNREAD_WHILE_OFF, **changed, "name": name, "device_class": "System", **unexposed}
        if not self.enabled:
            return {**state, **_UNREAD_WHILE_OFF, "problem": PROBLEM_DISABLED}
        return state


# Properties that cannot be read while a device is disabled or dismounted.
_UNREAD_WHILE_OFF: Mapping[str, Json] = {
    "ranges": [],
    "driver_model": None,
    "displays": 0,
    "line_interrupts_only": False,
}


def unexposed_property() -> Json:
    """Return the value of a property that this Windows does not expose."""
    return {"unknown": agent_error("NotExposed", "NotImplemented", "This Windows does not tell it.").as_json()}


def make_device(record: Record, assignment: str | None, physics: DevicePhysics) -> Device:
    """Make a device from its PciDevice instance and its assignment, if that was read."""
    enabled_state = dict(record.state)
    if isinstance(enabled_state.get("ranges"), list | tuple):
        enabled_state["ranges"] = sorted(enabled_state["ranges"], key=lambda each: int(each["start"]))
    dismounted = str(enabled_state["instance"]).upper().startswith("PCIP\\")
    problem = enabled_state.get("problem")
    device = Device(record.key, enabled_state, physics, enabled=problem != PROBLEM_DISABLED, dismounted=dismounted)
    device.recorded_ranges = list(device.get_known("ranges", []))
    if problem == PROBLEM_DISABLED:
        device.enabled_state = {**enabled_state, "problem": 0}
    if assignment is not None:
        device.dismounted = assignment not in (ENABLED, DISABLED)
        # A device is disabled before it is dismounted, and is still disabled when it is mounted again.
        device.enabled = assignment == ENABLED
    return device


@dataclass(frozen=True)
class Setting:
    """A field of a VM that a cmdlet sets.

    cold: only while the VM is off; is_enum: values are those that the resource declares; minimum, maximum, step: of
    sizes in bytes.
    """

    cmdlet: str
    parameter: str
    cold: bool = True
    is_enum: bool = False
    minimum: int = 0
    maximum: int = 1 << 64
    step: int = 1

    def allows(self, value: Any) -> bool:
        return not isinstance(value, int) or (self.minimum <= value <= self.maximum and value % self.step == 0)


SETTINGS: Mapping[str, Setting] = {
    "low": Setting("Set-VM", "LowMemoryMappedIoSpace", minimum=128 * MiB, maximum=3584 * MiB, step=2 * MiB),
    "high": Setting("Set-VM", "HighMemoryMappedIoSpace", minimum=2 * MiB, step=2 * MiB),
    "cache": Setting("Set-VM", "GuestControlledCacheTypes"),
    "stop_action": Setting("Set-VM", "AutomaticStopAction", is_enum=True),
    "start_action": Setting("Set-VM", "AutomaticStartAction", cold=False, is_enum=True),
    "checkpoint_type": Setting("Set-VM", "CheckpointType", cold=False, is_enum=True),
    "automatic_checkpoints": Setting("Set-VM", "AutomaticCheckpointsEnabled", False),
    "start_delay": Setting("Set-VM", "AutomaticStartDelay", False),
    "notes": Setting("Set-VM", "Notes", False),
    "cpus": Setting("Set-VMProcessor", "Count"),
    "dynamic_memory": Setting("Set-VMMemory", "DynamicMemoryEnabled"),
    "startup": Setting("Set-VMMemory", "StartupBytes"),
    "com1": Setting("Set-VMComPort", "Path", False),
    "boots_from": Setting("Set-VMFirmware", "FirstBootDevice"),
    "mac": Setting("Set-VMNetworkAdapter", "StaticMacAddress"),
    "vlan": Setting("Set-VMNetworkAdapterVlan", "VlanId", False),
    "switch": Setting("Connect-VMNetworkAdapter", "VMSwitch", False),
}
# Resource to its properties, and the fields of a VM that have them.
FIELDS = {
    "VmMmio": {"low": "low", "high": "high", "cache": "cache"},
    "VmActions": {"stop": "stop_action", "start": "start_action"},
    "VmCheckpoints": {"kind": "checkpoint_type", "automatic": "automatic_checkpoints"},
    "VmMemory": {"dynamic": "dynamic_memory", "startup": "startup", "minimum": "minimum", "maximum": "maximum"},
}
VM_RESOURCES = ("Vm", "VmPower", *FIELDS)


@dataclass(frozen=True)
class Assignment:
    """An assigned device in a VM's configuration. instance: the instance id at the time of the assignment."""

    location: str
    instance: str


@dataclass
class VirtualMachine:
    """A VM. traits: the properties of resource Vm without its power and its devices; sizes are in bytes.

    Facts do not have the fields after `assignments`: they are known only for VMs that were made here. path: the folder
    of its files; disks: paths of virtual disks; com1: a pipe.
    """

    guid: str
    traits: Mapping[str, Json]
    power: str = "off"
    low: int = 128 * MiB
    high: int = 512 * MiB
    cache: bool = False
    stop_action: str = "save"
    start_action: str = "start-if-running"
    checkpoint_type: str = "production"
    automatic_checkpoints: bool = False
    dynamic_memory: bool = False
    startup: int = GiB
    minimum: int = 512 * MiB
    maximum: int = 1024 * GiB
    assignments: list[Assignment] = field(default_factory=list)
    was_running: bool = False
    notes: str = ""
    path: str = ""
    cpus: int = 1
    start_delay: int = 0
    disks: list[str] = field(default_factory=list)
    dvd_files: list[str] = field(default_factory=list)
    """The files in its DVD drives; "" for an empty drive."""
    seeds_at_starts: list[bytes | None] = field(default_factory=list)
    """The cloud-init seed that was in a drive at each start, or None."""
    boots_from: str | None = None
    com1: str | None = None
    switch: str | None = None
    guest_bytes: Callable[[], int] = int
    """Returns the bytes that the guest has written."""
    vlan: int | None = None
    mac: str = "000000000000"

    @property
    def name(self) -> str:
        return str(self.traits["name"])

    def get_known(self, name: str, default: Json) -> Json:
        return get_known(self.traits, name, default)

    @property
    def occupies_memory(self) -> bool:
        return self.power in ("running", "paused")

    def has_device(self, location: str) -> bool:
        """Tell whether a device at this location is assigned, even if it is no longer there."""
        return any(assignment.location == location for assignment in self.assignments)

    def state(self, resource: str) -> dict[str, Json]:
        """Return the state of one of VM_RESOURCES."""
        if resource == "Vm":
            locations = [assignment.location for assignment in self.assignments]
            return {**self.traits, "state": self.power, "devices": locations}
        if resource == "VmPower":
            return {"state": self.power}
        return {name: getattr(self, field_name) for name, field_name in FIELDS[resource].items()}


def make_virtual_machine(
    guid: str,
    state_of: Callable[[str], Mapping[str, Json]],
    assignments: Mapping[str, str],
    instance: Callable[[str], str],
) -> VirtualMachine:
    """Make a VM. Values that could not be read are those of a new VM.

    state_of: returns its state of a resource; assignments: of all devices, by location; instance: returns the instance
    id at a location.
    """
    vm_state = state_of("Vm")
    fields: dict[str, Any] = {
        field_name: value
        for resource, names in FIELDS.items()
        for name, field_name in names.items()
        if not isinstance(value := state_of(resource).get(name), Mapping | None)
    }
    devices = [] if isinstance(vm_state["devices"], Mapping) else list(vm_state["devices"])
    claimed = [
        location for location, each in assignments.items() if assigned_vm(each) == guid and location not in devices
    ]
    power = vm_state["state"]
    return VirtualMachine(
        guid=guid,
        traits={name: value for name, value in vm_state.items() if name not in ("state", "devices")},
        power=power,
        was_running=power == "running",
        assignments=[Assignment(location, instance(location)) for location in (*devices, *claimed)],
        **fields,
    )
