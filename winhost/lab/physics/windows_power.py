"""Power plans, sleep states, the power source and the hardware clock of a simulated host, and powercfg.exe."""

from collections.abc import Iterator, Mapping, Sequence

from pydantic import Field

from winhost.core.answers import Json
from winhost.lab.physics.lab_section import part_physics
from winhost.lab.physics.parts import Change, Host, Part, SetCall
from winhost.lab.physics.windows_errors import CmdletError, WindowsObject, agent_error, windows_object
from winhost.model.written import Closed

_SETTINGS = {"29f6c1db-86da-48c5-9fdb-f2b67b1f44da": "standby", "9d7815a6-7ee4-497e-8888-515a05f02364": "hibernate"}
_S0 = {"en": "Standby (S0 Low Power Idle) Network Connected", "de": "Standby (S0 Niedriger Energieleerlauf)"}
_BALANCED = (
    "381b4222-f694-41f0-9685-ff5bb260df2e"  # https://learn.microsoft.com/windows/win32/power/power-setting-guids
)
_CONTROL = "SYSTEM\\CurrentControlSet\\Control"
_FAST_STARTUP = f"{_CONTROL}\\Session Manager\\Power"


@part_physics("power_plans")
class PowerPlanPhysics(Closed):
    """The physics of power plans."""

    refuses: bool = Field(default=False, description="powercfg.exe changes nothing, as under a group policy")


@part_physics("sleep_states")
class SleepPhysics(Closed):
    """The physics of sleep states."""

    refuses: bool = Field(default=False, description="its firmware cannot hibernate")


class Power(Part):
    """Power plans and sleep states of one host.

    Defaults for host files that do not state them: a client hibernates and has fast startup; one power plan is active
    and never sleeps.
    """

    administrator_settable = ("PowerPlan", "FastStartup")

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._refuses_changes = PowerPlanPhysics.model_validate(host.lab.found.get("power_plans", {})).refuses
        self._cannot_hibernate = SleepPhysics.model_validate(host.lab.found.get("sleep_states", {})).refuses
        if "FastStartup" not in host.initial:
            host.update_record("FastStartup", {}, dict.fromkeys(("hibernation", "fast_startup"), host.is_client))
        if "PowerPlan" not in host.initial:
            usual = {"name": "Balanced", "active": True, "standby": 0, "hibernate": 0, "modern_standby": False}
            host.update_record("PowerPlan", {"scheme": _BALANCED}, usual)
        host.cim_classes |= {
            "Win32_PowerPlan": self._plans,
            "Win32_PowerSettingDataIndex": self._plan_settings,
            "Win32_Battery": self._batteries,
        }
        host.registry_keys.append(self._registry_keys)
        host.registry_writers[_FAST_STARTUP] = self._write_fast_startup
        host.programs["powercfg.exe"] = self.powercfg

    def changes(self) -> Mapping[str, Change]:
        return {"PowerPlan": self.set_plan, "FastStartup": self.set_fast_startup}

    def set_plan(self, call: SetCall) -> None:
        if self._refuses_changes:
            raise _power_error("This operation is disabled by group policy.")
        self.host.set_record(call)

    def set_fast_startup(self, call: SetCall) -> None:
        if self._cannot_hibernate and "hibernation" in call.desired:
            raise _power_error("The firmware cannot hibernate.")
        self.host.set_record(call)

    def powercfg(self, arguments: Sequence[str]) -> tuple[int, str]:
        """Run powercfg.exe; return its exit code and output."""
        if list(arguments) == ["/a"]:
            return 0, self._sleep_states()
        with self.host.changing("powercfg.exe"):
            match list(arguments):
                case ["/hibernate", _] if self._cannot_hibernate:
                    return 1, "Hibernation failed with the following error: The request is not supported."
                case ["/hibernate", desired]:
                    self.host.update_record("FastStartup", {}, {"hibernation": desired == "on"})
                case ["/setacvalueindex", *_] if self._refuses_changes:
                    return 1, "This operation is disabled by group policy."
                case ["/setacvalueindex", scheme, _, setting, seconds]:
                    self.host.update_record("PowerPlan", {"scheme": scheme}, {_SETTINGS[setting]: int(seconds)})
                case ["/setactive", scheme]:
                    for each in self.host.instances("PowerPlan"):
                        self.host.update_record("PowerPlan", each.key, {"active": each.key["scheme"] == scheme})
                case _:
                    raise self.host.windows_error("not-stood-in", "powercfg.exe", what=" ".join(arguments))
        return 0, ""

    def _sleep_states(self) -> str:
        modern = any(each.state["modern_standby"] is True for each in self.host.instances("PowerPlan"))
        s0 = f"    {_S0.get(str(self.host.lab.language)[:2], _S0['en'])}\r\n"
        reason = "\tThe system firmware does not support this standby state.\r\n"
        available, missing = (s0, "") if modern else ("", s0 + reason)
        return f"Available:\r\n{available}    Hibernate\r\n\r\nNot available:\r\n{missing}    Standby (S1)\r\n{reason}"

    def _write_fast_startup(self, name: str, value: Json) -> None:
        assert name == "HiberbootEnabled"
        self.host.update_record("FastStartup", {}, {"fast_startup": bool(value)})

    # ---- CIM and the registry

    def _plans(self) -> Iterator[WindowsObject]:
        for each in self.host.instances("PowerPlan"):
            properties = {"ElementName": each.state["name"], "IsActive": each.state["active"]}
            yield WindowsObject(None, {"InstanceID": f"Microsoft:PowerPlan\\{{{each.key['scheme']}}}", **properties})

    def _plan_settings(self) -> Iterator[WindowsObject]:
        for plan in self.host.instances("PowerPlan"):
            for setting, name in _SETTINGS.items():
                for source, value in (("AC", plan.state[name]), ("DC", 180)):
                    if isinstance(value, int):
                        scheme = plan.key["scheme"]
                        instance = f"Microsoft:PowerSettingDataIndex\\{{{scheme}}}\\{source}\\{{{setting}}}"
                        yield WindowsObject(None, {"InstanceID": instance, "SettingIndexValue": value})

    def _registry_keys(self) -> Iterator[tuple[str, Mapping[str, Json]]]:
        state = self.host.instances("FastStartup")[0].state
        yield f"{_CONTROL}\\Power", {"HibernateEnabled": int(bool(state["hibernation"]))}
        yield _FAST_STARTUP, {"HiberbootEnabled": int(bool(state["fast_startup"]))}
        utc = 1 if self.host.instances("HardwareClock")[0].state["utc"] else None
        yield f"{_CONTROL}\\TimeZoneInformation", {"RealTimeIsUniversal": utc}

    def _batteries(self) -> Iterator[WindowsObject]:
        power = self.host.instances("PowerSource")[0].state
        for _ in range(int(power["batteries"])):
            yield windows_object("Win32_Battery", BatteryStatus=1 if power["on_battery"] else 2)


def _power_error(why: str) -> CmdletError:
    return agent_error("PowerPlanRefused", "InvalidResult", f"powercfg.exe: {why}")
