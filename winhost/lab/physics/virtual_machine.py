"""A VM of a simulated host, and how it shows in the resources of the facts."""

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from winhost.core.answers import Json
from winhost.core.dataclass import dataclass
from winhost.model.units import GiB, MiB
from winhost.resources.windows.assignable_device import owner

# Parameters of Set-VM, and properties of what Get-VM gives: the field of a VM that each is kept in.
SETTINGS = {
    "LowMemoryMappedIoSpace": "low",
    "HighMemoryMappedIoSpace": "high",
    "GuestControlledCacheTypes": "cache",
    "AutomaticStopAction": "stop_action",
    "AutomaticStartAction": "start_action",
    "CheckpointType": "checkpoint_type",
    "AutomaticCheckpointsEnabled": "automatic_checkpoints",
    "AutomaticStartDelay": "start_delay",
    "Notes": "notes",
}
# Likewise of properties of resources.
FIELDS = {
    "VmMmio": {"low": "low", "high": "high", "cache": "cache"},
    "VmActions": {"stop": "stop_action", "start": "start_action"},
    "VmCheckpoints": {"kind": "checkpoint_type", "automatic": "automatic_checkpoints"},
    "VmMemory": {"dynamic": "dynamic_memory", "startup": "startup", "minimum": "minimum", "maximum": "maximum"},
}
VM_RESOURCES = ("Vm", "VmPower", *FIELDS)


@dataclass(frozen=True)
class Assignment:
    """An assigned device in a VM's configuration: its place, and the instance that was dismounted there when it was
    assigned.
    """

    location: str
    instance: str


@dataclass
class VirtualMachine:
    """`traits` are the properties of resource Vm that nobody changes of a VM that was found. Sizes in bytes.

    What follows assignments is known of VMs that were made here: path is where its files are, com1 a pipe, disks the
    paths of their files; cpus of others is not told by facts.
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
    """What is in its DVD drives, "" where nothing is."""
    discs: list[bytes | None] = field(default_factory=list)
    """What was for cloud-init in one of them at each start."""
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
        """A trait, or `otherwise` where even the recorded host could not tell it."""
        value = self.traits.get(name, otherwise)
        return otherwise if isinstance(value, Mapping) else value

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
    guid: str, state_of: Callable[[str], Mapping[str, Json]], places: Mapping[str, str], instance: Callable[[str], str]
) -> VirtualMachine:
    """Make a VM from its states (`state_of` a resource), the places of all devices by location, and the instance at a
    location. Values that a recorded host could not tell are those of a new VM.
    """
    seen = state_of("Vm")
    kept: dict[str, Any] = {
        field_name: value
        for resource, names in FIELDS.items()
        for name, field_name in names.items()
        if not isinstance(value := state_of(resource).get(name), Mapping | None)
    }
    devices = [] if isinstance(seen["devices"], Mapping) else list(seen["devices"])
    mine = [location for location, place in places.items() if owner(place) == guid and location not in devices]
    power = seen["state"]
    return VirtualMachine(
        guid=guid,
        traits={name: value for name, value in seen.items() if name not in ("state", "devices")},
        power=power,
        was_running=power == "running",
        assignments=[Assignment(location, instance(location)) for location in (*devices, *mine)],
        **kept,
    )
