"""PCI functions and VMs of a simulated host, and how they show in the resources of the facts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from winhost.core.answers import Json, Key, Record
from winhost.core.dataclass import dataclass
from winhost.lab.physics.lab_section import DevicePhysics
from winhost.lab.physics.windows_errors import own_error
from winhost.model.units import GiB, MiB
from winhost.resources.windows.vms import DISABLED, DISMOUNTED, ENABLED, assigned_vm

_PAGE = 0x1000
_HIGH_BASE = 0xF_E000_0000  # 64 GiB - 512 MiB, where Hyper-V puts the high window
_LOW_END = 0x1_0000_0000
_LOW_RESERVED = 0xFED4_0000  # from here to 4 GiB nothing is given out
_FRAME_BUFFER = 0x800_0000  # the most that the synthetic video of a generation 2 VM takes
_CONFIG = 0x2000  # per device, in the low window


def known_or(state: Mapping[str, Json], name: str, otherwise: Json) -> Json:
    """Return a property, or `otherwise` where even the recorded host could not tell it."""
    value = state.get(name, otherwise)
    return otherwise if isinstance(value, Mapping) else value


@dataclass(frozen=True)
class GuestBars:
    """The BARs of one function as its registers say, in bytes."""

    wide: tuple[int, ...]
    narrow: tuple[int, ...]


class _Window:
    """An address window that is given out in aligned pieces, lowest first."""

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end
        self.taken: list[tuple[int, int]] = []

    def take(self, length: int, alignment: int) -> bool:
        """Take a piece, and tell whether one was left."""
        for edge in sorted([self.start, *(end for _, end in self.taken)]):
            address = -(-edge // alignment) * alignment
            if address + length <= self.end and all(address + length <= a or b <= address for a, b in self.taken):
                self.taken.append((address, address + length))
                return True
        return False


def fitting(functions: Sequence[GuestBars], low: int, high: int) -> list[bool]:
    """Tell for each function, in the order in which the guest meets them, whether it gets both its pieces."""
    above = _Window(_HIGH_BASE, _HIGH_BASE + high)
    below = _Window(_LOW_END - low + min(low // 2, _FRAME_BUFFER), _LOW_RESERVED)
    return [below.take(_CONFIG, _PAGE) and _fits(above, bars.wide) and _fits(below, bars.narrow) for bars in functions]


def window_end(high: int) -> int:
    """The first address behind a high window of this size."""
    return _HIGH_BASE + high


def _fits(window: _Window, bars: Sequence[int]) -> bool:
    total = sum(-(-bar // _PAGE) * _PAGE for bar in bars)
    if total == 0:
        return True
    alignment = _PAGE
    while alignment * 2 <= total:
        alignment *= 2
    return window.take(total, alignment)


PROBLEM_DISABLED = 22
_DISMOUNTED_DRIVER = "pcip"
_DISMOUNTED_NAMES = {"display": "PCI Express Graphics Processing Unit - Dismounted"}
_FOUR_GIB = 1 << 32
_APERTURE = 1 << 28  # a frame buffer BAR is a 64-bit one, also where firmware put it below 4 GiB


@dataclass
class Device:
    """`healthy` is its PciDevice state as it shows while enabled; `numbered` counts its renumberings."""

    key: Key
    healthy: Mapping[str, Json]
    physics: DevicePhysics
    enabled: bool = True
    dismounted: bool = False
    forced: bool = False
    numbered: int = 0
    surveyed: list[Mapping[str, int]] = field(default_factory=list)

    @property
    def location(self) -> str:
        return self.key["location"]

    @property
    def rung(self) -> str:
        """The state of the device on the host; the VMs know which of them has it."""
        if self.dismounted:
            return DISMOUNTED
        return ENABLED if self.enabled else DISABLED

    @property
    def instance(self) -> str:
        """PCI\\… changes to PCIP\\… on dismounting, and the last part with each renumbering."""
        whole = str(self.healthy["instance"])
        if whole.count("\\") < 2:  # as no Windows names it
            return whole
        _, ids, last = whole.split("\\", 2)
        bus = "PCIP" if self.dismounted else "PCI"
        return f"{bus}\\{ids}\\{self.numbered}&{last}" if self.numbered else f"{bus}\\{ids}\\{last}"

    @property
    def bars(self) -> GuestBars:
        """The BARs for which a guest has to find room."""
        lengths = [(r["start"] >= _FOUR_GIB or r["length"] >= _APERTURE, r["length"]) for r in self.surveyed]
        wide, narrow = self.physics.bars64, self.physics.bars32
        return GuestBars(
            wide=tuple(n for is_wide, n in lengths if is_wide) if wide is None else wide,
            narrow=tuple(n for is_wide, n in lengths if not is_wide) if narrow is None else narrow,
        )

    def known_or(self, name: str, otherwise: Json) -> Json:
        return known_or(self.healthy, name, otherwise)

    def state(self) -> dict[str, Json]:
        """Its PciDevice state now."""
        state = {"numa": None, **self.healthy, "instance": self.instance}
        if self.dismounted:
            name = _DISMOUNTED_NAMES.get(str(self.healthy["kind"]), "PCI Express Device - Dismounted")
            lost = {"problem": 0, "driver": _DISMOUNTED_DRIVER, "driver_version": None, "vram": None}
            hidden = {"base_class": not_exposed(), "kind": not_exposed()} if self.physics.hides_class else {}
            return {**state, **_UNREAD_WHILE_OFF, **lost, "name": name, "device_class": "System", **hidden}
        if not self.enabled:
            return {**state, **_UNREAD_WHILE_OFF, "problem": PROBLEM_DISABLED}
        return state


# What cannot be read of a disabled or a dismounted device.
_UNREAD_WHILE_OFF: Mapping[str, Json] = {
    "ranges": [],
    "driver_model": None,
    "displays": 0,
    "line_interrupts_only": False,
}


def not_exposed() -> Json:
    """A property that this Windows does not have."""
    return {"unknown": own_error("NotExposed", "NotImplemented", "This Windows does not tell it.").as_json()}


def device(record: Record, assignment: str | None, physics: DevicePhysics) -> Device:
    """Make a device from its PciDevice instance and, where that was read, its assignment."""
    healthy = dict(record.state)
    if isinstance(healthy.get("ranges"), list | tuple):
        healthy["ranges"] = sorted(healthy["ranges"], key=lambda each: int(each["start"]))
    dismounted = str(healthy["instance"]).upper().startswith("PCIP\\")
    problem = healthy.get("problem")
    made = Device(record.key, healthy, physics, enabled=problem != PROBLEM_DISABLED, dismounted=dismounted)
    made.surveyed = list(made.known_or("ranges", []))
    if problem == PROBLEM_DISABLED:
        made.healthy = {**healthy, "problem": 0}
    if assignment is not None:
        made.dismounted = assignment not in (ENABLED, DISABLED)
        # Whoever dismounts disables first; that shows again when it is mounted.
        made.enabled = assignment == ENABLED
    return made


@dataclass(frozen=True)
class Setting:
    """A field of a VM that a cmdlet sets. cold: only while the VM is off; word: its values are words, as the resource
    declares them; least, most, step: of sizes in bytes.
    """

    cmdlet: str
    parameter: str
    cold: bool = True
    word: bool = False
    least: int = 0
    most: int = 1 << 64
    step: int = 1

    def takes(self, value: Any) -> bool:
        return not isinstance(value, int) or (self.least <= value <= self.most and value % self.step == 0)


SETTINGS: Mapping[str, Setting] = {
    "low": Setting("Set-VM", "LowMemoryMappedIoSpace", least=128 * MiB, most=3584 * MiB, step=2 * MiB),
    "high": Setting("Set-VM", "HighMemoryMappedIoSpace", least=2 * MiB, step=2 * MiB),
    "cache": Setting("Set-VM", "GuestControlledCacheTypes"),
    "stop_action": Setting("Set-VM", "AutomaticStopAction", word=True),
    "start_action": Setting("Set-VM", "AutomaticStartAction", cold=False, word=True),
    "checkpoint_type": Setting("Set-VM", "CheckpointType", cold=False, word=True),
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
# The fields that keep properties of resources.
FIELDS = {
    "VmMmio": {"low": "low", "high": "high", "cache": "cache"},
    "VmActions": {"stop": "stop_action", "start": "start_action"},
    "VmCheckpoints": {"kind": "checkpoint_type", "automatic": "automatic_checkpoints"},
    "VmMemory": {"dynamic": "dynamic_memory", "startup": "startup", "minimum": "minimum", "maximum": "maximum"},
}
VM_RESOURCES = ("Vm", "VmPower", *FIELDS)


@dataclass(frozen=True)
class Assignment:
    """An assigned device in a VM's configuration: its location, and the instance that was dismounted there when it was
    assigned.
    """

    location: str
    instance: str


@dataclass
class VirtualMachine:
    """`traits` are the properties of resource Vm but for its power and its devices. Sizes are in bytes.

    The fields after `assignments` are known only of VMs that were made here: path is the folder of its files, com1 a
    pipe, disks has the paths of the virtual disks. Facts do not tell the cpus of other VMs.
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
    dvds: list[str] = field(default_factory=list)
    """The files in its DVD drives, "" where nothing is."""
    discs: list[bytes | None] = field(default_factory=list)
    """The seed for cloud-init in one of them, at each start."""
    boots_from: str | None = None
    com1: str | None = None
    switch: str | None = None
    holds: Callable[[], int] = int
    """Bytes that its guest wrote."""
    vlan: int | None = None
    mac: str = "000000000000"

    @property
    def name(self) -> str:
        return str(self.traits["name"])

    def known_or(self, name: str, otherwise: Json) -> Json:
        return known_or(self.traits, name, otherwise)

    @property
    def occupies_memory(self) -> bool:
        return self.power in ("running", "paused")

    def has(self, location: str) -> bool:
        """Tell whether the configuration holds a device there, stale or not."""
        return any(assignment.location == location for assignment in self.assignments)

    def state(self, resource: str) -> dict[str, Json]:
        """Its state in one of VM_RESOURCES."""
        if resource == "Vm":
            locations = [assignment.location for assignment in self.assignments]
            return {**self.traits, "state": self.power, "devices": locations}
        if resource == "VmPower":
            return {"state": self.power}
        return {name: getattr(self, kept) for name, kept in FIELDS[resource].items()}


def virtual_machine(
    guid: str,
    state_of: Callable[[str], Mapping[str, Json]],
    assignments: Mapping[str, str],
    instance: Callable[[str], str],
) -> VirtualMachine:
    """Make a VM from its states (`state_of` a resource), the assignments of all devices by location, and the instance
    at a location. Values that a recorded host could not tell are those of a new VM.
    """
    seen = state_of("Vm")
    kept: dict[str, Any] = {
        field_name: value
        for resource, names in FIELDS.items()
        for name, field_name in names.items()
        if not isinstance(value := state_of(resource).get(name), Mapping | None)
    }
    devices = [] if isinstance(seen["devices"], Mapping) else list(seen["devices"])
    mine = [location for location, each in assignments.items() if assigned_vm(each) == guid and location not in devices]
    power = seen["state"]
    return VirtualMachine(
        guid=guid,
        traits={name: value for name, value in seen.items() if name not in ("state", "devices")},
        power=power,
        was_running=power == "running",
        assignments=[Assignment(location, instance(location)) for location in (*devices, *mine)],
        **kept,
    )
