"""A PCI function of a simulated host: where it stands, and how Windows shows it there."""

from collections.abc import Mapping
from dataclasses import field

from winhost.core.answers import Json, Key, Record
from winhost.core.dataclass import dataclass
from winhost.lab.physics.guest_mmio import GuestBars
from winhost.lab.physics.lab_section import DevicePhysics
from winhost.lab.physics.windows_errors import own_error
from winhost.resources.windows.assignable_device import DISABLED, DISMOUNTED, ENABLED

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
        _, ids, place = whole.split("\\", 2)
        bus = "PCIP" if self.dismounted else "PCI"
        return f"{bus}\\{ids}\\{self.numbered}&{place}" if self.numbered else f"{bus}\\{ids}\\{place}"

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
        """A property, or `otherwise` where even the recorded host could not tell it."""
        value = self.healthy.get(name, otherwise)
        return otherwise if isinstance(value, Mapping) else value

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


def device(record: Record, place: str | None, physics: DevicePhysics) -> Device:
    """Make a device from its PciDevice instance and, where that was read, its place on the ladder."""
    healthy = dict(record.state)
    if isinstance(healthy.get("ranges"), list | tuple):
        healthy["ranges"] = sorted(healthy["ranges"], key=lambda each: int(each["start"]))
    dismounted = str(healthy["instance"]).upper().startswith("PCIP\\")
    problem = healthy.get("problem")
    made = Device(record.key, healthy, physics, enabled=problem != PROBLEM_DISABLED, dismounted=dismounted)
    made.surveyed = list(made.known_or("ranges", []))
    if problem == PROBLEM_DISABLED:
        made.healthy = {**healthy, "problem": 0}
    if place is not None:
        made.dismounted = place not in (ENABLED, DISABLED)
        # Whoever dismounts disables first; that shows again when it is mounted.
        made.enabled = place == ENABLED
    return made
