"""Fast Startup, hibernation, the power source and the hardware clock of a simulated host."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from pydantic import Field

from winhost.core.answers import Json, Record
from winhost.lab.physics.parts import Change, Host, Part, SetCall
from winhost.lab.physics.windows_errors import own_error
from winhost.lab.physics.windows_objects import WindowsObject, of_type
from winhost.model.written import Closed

_CONTROL = "SYSTEM\\CurrentControlSet\\Control"
_FAST_STARTUP = f"{_CONTROL}\\Session Manager\\Power"
_REFUSED = (1, "Hibernation failed with the following error: The request is not supported.")


class SleepPhysics(Closed):
    """`lab: {found: {sleep_states: …}}` in a host file."""

    refuses: bool = Field(default=False, description="its firmware cannot hibernate")


class SleepStates(Part):
    """The sleep states. Values that a host file does not state are those of a new Windows: a client hibernates, and
    starts fast.
    """

    administrators_set = ("FastStartup",)

    def __init__(self, host: Host, initial: Mapping[str, Sequence[Record]]) -> None:
        super().__init__(host)
        self._physics = SleepPhysics.model_validate(host.lab.found.get("sleep_states", {}))
        self._inner = host.programs["powercfg.exe"]
        client = host.is_client
        self._states = {"hibernation": client, "fast_startup": client}
        self._states |= _first(initial, "FastStartup")
        self._power: dict[str, Json] = {"batteries": 0, "on_battery": False, **_first(initial, "PowerSource")}
        self._clock: dict[str, Json] = {"utc": False, **_first(initial, "HardwareClock")}
        host.registry_keys.append(self._keys)
        host.registry_writers[_FAST_STARTUP] = self._write
        host.cim_classes["Win32_Battery"] = self._batteries
        host.programs["powercfg.exe"] = self.powercfg

    def records(self) -> Mapping[str, Callable[[], Iterable[Record]]]:
        return {
            "FastStartup": lambda: [Record(dict(self._states))],
            "PowerSource": lambda: [Record(dict(self._power))],
            "HardwareClock": lambda: [Record(dict(self._clock))],
        }

    def changes(self) -> Mapping[str, Change]:
        return {"FastStartup": self.change}

    def change(self, asked: SetCall) -> None:
        """Change the sleep states as the script does. Raises CmdletError."""
        desired = asked.desired
        if "hibernation" in desired:
            code, output = self.powercfg(["/hibernate", "on" if desired["hibernation"] else "off"])
            if code:
                raise own_error("PowerPlanRefused", "InvalidOperation", f"powercfg.exe: {code} {output}")
        if "fast_startup" in desired:
            with self.host.changing("Write-WinhostRegistry"):
                self._write("HiberbootEnabled", int(bool(desired["fast_startup"])))

    def powercfg(self, arguments: Sequence[str]) -> tuple[int, str]:
        """Its exit code and what it prints; the rest is of power plans."""
        if arguments[0] != "/hibernate":
            given: tuple[int, str] = self._inner(arguments)
            return given
        with self.host.changing("powercfg.exe"):
            if self._physics.refuses:
                return _REFUSED
            self._states["hibernation"] = arguments[1] == "on"
            return 0, ""

    def _write(self, name: str, value: Json) -> None:
        assert name == "HiberbootEnabled"
        self._states["fast_startup"] = bool(value)

    def _keys(self) -> Iterator[tuple[str, Mapping[str, Json]]]:
        yield f"{_CONTROL}\\Power", {"HibernateEnabled": int(bool(self._states["hibernation"]))}
        yield _FAST_STARTUP, {"HiberbootEnabled": int(bool(self._states["fast_startup"]))}
        yield f"{_CONTROL}\\TimeZoneInformation", {"RealTimeIsUniversal": 1 if self._clock["utc"] else None}

    def _batteries(self) -> Iterator[WindowsObject]:
        for _ in range(int(self._power["batteries"])):
            yield of_type("Win32_Battery", BatteryStatus=1 if self._power["on_battery"] else 2)


def _first(initial: Mapping[str, Sequence[Record]], resource: str) -> dict[str, Json]:
    return dict(next(iter(initial.get(resource, ())), Record({})).state)


part = SleepStates
