"""Power plans of a simulated host: two CIM classes that tell of them, and powercfg.exe, which changes them."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from pydantic import Field

from winhost.core.answers import Record
from winhost.lab.physics.parts import Change, Host, Part, SetCall
from winhost.lab.physics.windows_errors import own_error
from winhost.lab.physics.windows_objects import WindowsObject
from winhost.model.written import Closed

_SLEEP = "238c9fa8-0aad-41ed-83f4-97be242c8f20"
_SETTINGS = {
    "29f6c1db-86da-48c5-9fdb-f2b67b1f44da": "standby",
    "9d7815a6-7ee4-497e-8888-515a05f02364": "hibernate",
}
_REFUSED = (1, "This operation is disabled by group policy.")
_S0 = {"en": "Standby (S0 Low Power Idle) Network Connected", "de": "Standby (S0 Niedriger Energieleerlauf)"}


class PowerPlanPhysics(Closed):
    """`lab: {found: {power_plans: …}}` in a host file."""

    refuses: bool = Field(default=False, description="powercfg.exe changes nothing, as under a group policy")


class PowerPlans(Part):
    """The plans of a host, by the GUIDs of their schemes."""

    administrators_set = ("PowerPlan",)

    def __init__(self, host: Host, initial: Mapping[str, Sequence[Record]]) -> None:
        super().__init__(host)
        self._physics = PowerPlanPhysics.model_validate(host.lab.found.get("power_plans", {}))
        self._plans = {record.key["scheme"]: dict(record.state) for record in initial.get("PowerPlan", ())}
        host.cim_classes["Win32_PowerPlan"] = self._listed
        host.cim_classes["Win32_PowerSettingDataIndex"] = self._indexes
        host.programs["powercfg.exe"] = self.powercfg

    def records(self) -> Mapping[str, Callable[[], Iterable[Record]]]:
        return {"PowerPlan": lambda: (Record(dict(state), {"scheme": s}) for s, state in self._plans.items())}

    def changes(self) -> Mapping[str, Change]:
        return {"PowerPlan": self.change}

    def change(self, asked: SetCall) -> None:
        """Change the sleep states as the script does. Raises CmdletError."""
        scheme, desired = asked.key["scheme"], asked.desired
        for setting, name in _SETTINGS.items():
            if name in desired:
                self._run("/setacvalueindex", scheme, _SLEEP, setting, str(desired[name]))
        if self._plans[scheme]["active"]:
            self._run("/setactive", scheme)

    def _run(self, *arguments: str) -> None:
        code, output = self.powercfg(arguments)
        if code:
            raise own_error("PowerPlanRefused", "InvalidOperation", f"powercfg.exe: {code} {output}")

    def powercfg(self, arguments: Sequence[str]) -> tuple[int, str]:
        """powercfg.exe: its exit code and what it prints."""
        match list(arguments):
            case ["/a"]:
                return 0, self._sleep_states()
            case ["/setacvalueindex", scheme, _, setting, seconds]:
                with self.host.changing("powercfg.exe"):
                    if self._physics.refuses:
                        return _REFUSED
                    self._plans[scheme][_SETTINGS[setting]] = int(seconds)
                    return 0, ""
            case ["/setactive", scheme]:
                with self.host.changing("powercfg.exe"):
                    for each, state in self._plans.items():
                        state["active"] = each == scheme
                    return 0, ""
        raise self.host.fail("not-stood-in", "powercfg.exe", what=" ".join(arguments))

    def _sleep_states(self) -> str:
        modern = any(state["modern_standby"] is True for state in self._plans.values())
        s0 = f"    {_S0.get(str(self.host.lab.language)[:2], _S0['en'])}\r\n"
        reason = "\tThe system firmware does not support this standby state.\r\n"
        available, missing = (s0, "") if modern else ("", s0 + reason)
        return f"Available:\r\n{available}    Hibernate\r\n\r\nNot available:\r\n{missing}    Standby (S1)\r\n{reason}"

    def _listed(self) -> Iterable[WindowsObject]:
        for scheme, state in self._plans.items():
            instance = f"Microsoft:PowerPlan\\{{{scheme}}}"
            yield WindowsObject(
                None, {"InstanceID": instance, "ElementName": state["name"], "IsActive": state["active"]}
            )

    def _indexes(self) -> Iterable[WindowsObject]:
        for scheme, state in self._plans.items():
            for setting, name in _SETTINGS.items():
                for source, value in (("AC", state[name]), ("DC", 180)):
                    if isinstance(value, int):
                        instance = f"Microsoft:PowerSettingDataIndex\\{{{scheme}}}\\{source}\\{{{setting}}}"
                        yield WindowsObject(None, {"InstanceID": instance, "SettingIndexValue": value})


part = PowerPlans
