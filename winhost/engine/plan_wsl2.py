"""Planning WSL 2: which network mode, and the verdict on the host as the plan will make it."""

from collections.abc import Iterable, Mapping
from functools import cached_property

from winhost.compat.assess import judge
from winhost.core.answers import Id, Json, Record, identity
from winhost.core.steps import DesiredResource
from winhost.engine.path_planner import PathPlanner
from winhost.model.facts import Facts, with_state
from winhost.model.plan import Deferred, Unchecked, in_order
from winhost.model.reason import Caution, PathVerdict
from winhost.paths.never_sleep import kept_awake
from winhost.paths.wsl2 import UNBRIDGED, Mode, Wsl2Decisions, adapter
from winhost.paths.wsl2_refusals import cautions, refusals
from winhost.paths.wsl2_settings import Wsl2Settings
from winhost.resources.host import HostFacts

# Which settings only the host's answer on a resource can prove wrong: what is taken, not there or not to be had.
_CHECKED_BY = {
    "ExternalSwitch": ("bridge.switch",),
    "AptSource": ("containers.ubuntu",),
    "DebianPackage": ("containers.docker", "containers.toolkit"),
}


class Wsl2Planner(PathPlanner[Wsl2Settings]):
    """A request for WSL 2 on one host."""

    settings_type = Wsl2Settings

    @cached_property
    def verdict(self) -> PathVerdict:
        """The verdict on the host with what the plan itself mends: the WSL that it installs, the driver models that it
        sets.
        """
        return judge(self._as_planned, f"wsl2/{self._mode}")

    @cached_property
    def decisions(self) -> Wsl2Decisions:
        return Wsl2Decisions(self._facts, self._settings, self._mode)

    @property
    def cautions(self) -> tuple[Caution, ...]:
        return tuple(cautions(self._facts, self._settings, self._resources))

    def check(self, desired: Iterable[DesiredResource]) -> None:
        """Raises the first Refusal; MissingFact."""
        for refusal in refusals(self._facts, self._settings, desired):
            raise refusal

    def risks(self) -> Mapping[Id, tuple[str, ...]]:
        """The risks that its reasons name are asked for on the switch: no other step of this path takes something from
        the host.
        """
        asked = in_order(risk for reason in self.verdict.every_reason for risk in reason.risks)
        bridge = self._settings.bridge
        return {identity("ExternalSwitch", {"name": bridge.switch}): asked} if bridge else {}

    def unchecked(self, deferred: Iterable[Deferred]) -> tuple[Unchecked, ...]:
        """Settings that nothing but a resource that waits can tell whether they can be."""
        until = {each.resource: each.until for each in deferred if each.resource in _CHECKED_BY}
        values = self._settings.model_dump(mode="json")
        return tuple(
            Unchecked(name, _at(values, name), thing, (resource,))
            for resource, thing in until.items()
            for name in _CHECKED_BY[resource]
        )

    @cached_property
    def _mode(self) -> Mode:
        """The networking mode as it is set; else bridged where the settings say how, else the better of those that need
        no switch.
        """
        if self._settings.network != "auto":
            return self._settings.network
        if self._settings.bridge:
            return "bridged"
        return min(UNBRIDGED, key=lambda mode: judge(self._as_planned, f"wsl2/{mode}").verdict.rank)

    @cached_property
    def _as_planned(self) -> HostFacts:
        document = self._facts.document.edited("PciDevice", _out_of_tcc)
        newer = {"present": True, "version": self._settings.wsl.full}
        if Wsl2Decisions(self._facts, self._settings, "nat").packages:
            document = document.edited("Wsl", lambda each: with_state(each, newer))
        return kept_awake(HostFacts(self._bridged(document)), self._settings.never_sleep)

    def _bridged(self, document: Facts) -> Facts:
        """The facts with only the network that the settings name: nothing else is touched, and nothing else serves."""
        bridge = self._settings.bridge
        if bridge is None:
            return document
        document = document.edited("VmSwitch", lambda each: each if each.state["name"] == bridge.switch else None)
        document = document.edited("ExternalSwitch", lambda each: each if each.key["name"] == bridge.switch else None)
        if bridge.adapter is None:
            return document
        chosen = {"adapter": adapter(self._facts, bridge)}
        return document.edited("NetworkAdapter", lambda each: each if each.key == chosen else None)


def _out_of_tcc(device: Record) -> Record:
    return with_state(device, {"driver_model": "MCDM"}) if device.state.get("driver_model") == "TCC" else device


def _at(values: Mapping[str, Json], name: str) -> Json:
    """The value at a path such as `bridge.switch`, None where there is no bridge."""
    found: Json = values
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found
