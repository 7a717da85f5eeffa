"""The cases in which scripts and lab are compared: of each resource, and of several; and the worlds they happen in."""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cases import read_cases
from tests.powershell.bundles import twin
from tests.powershell.twins import machine
from winhost import resources
from winhost.lab.contract.agent_answers import RESTORABLE_VALUES
from winhost.lab.physics.lab_section import LabClock
from winhost.lab.physics.simulated_machine import Machine
from winhost.resources.registry import WINDOWS

SHARED = Path(__file__).parents[1] / "data" / "powershell" / "differential.yaml"
OWN = sorted(Path(resources.__path__[0]).glob("windows/*/cases.yaml"))


def _all(part: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in (SHARED, *OWN):
        given = read_cases(path).get(part, {})
        assert not set(given) & set(found), f"{path} says again what another file says"
        found |= given
    return found


KEYS, CASES = _all("keys"), _all("cases")
# What the lab owes a rehearsal of the refusals of winhost's own scripts. Others are the script's alone: the lab is not
# asked, so that nothing in it repeats them. What cmdlets refuse, both engines meet in the same machine.
REHEARSED = read_cases(SHARED.parents[1] / "lab" / "rehearsed.yaml")
WORLDS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "in German": {"language": "de-DE"},
    "for a guest": {"administrator": False},
}
GENERIC = ("Winhost.Skipped", "Winhost.UnknownNoun")  # which follow from the contract itself
PREPARED = {
    "VmPower": {"state": "off"},
    "VmActions": {"stop": "turn-off"},
    "VmCheckpoints": {"kind": "disabled", "automatic": False},
    "VmMemory": {"dynamic": False},
}
SLOW = LabClock(scale=10.0)  # a restart that nobody lives to see


@dataclass
class Case:
    """Batches of calls for one host, and what each of its steps ends with."""

    host: str
    batches: Sequence[Sequence[dict[str, Any]]]
    say: Sequence[str]
    one_batch: bool = False
    slow: bool = False
    lab: dict[str, Any] = field(default_factory=dict)

    def machine(self, world: str) -> Machine:
        """A new one for each call."""
        made = machine(self.host, **{**self.lab, **WORLDS[world]})
        if self.slow:
            made.clock = SLOW
        return made

    def settled(
        self, lab: Machine, script: Machine | None = None
    ) -> Iterator[tuple[Sequence[dict[str, Any]], Sequence[dict[str, Any]]]]:
        """Its batches, each when the restart that one before it began is over, where somebody lives to see that; beside
        each the calls that the lab is asked: those that end with something declared (REHEARSED). After the others it
        goes on from what the script has left.
        """
        for said, batch in zip(self.say, self.batches, strict=self.one_batch is False):
            for host in () if self.slow else filter(None, (lab, script)):
                host.wait_until_ready()
            asked = batch if self.one_batch else [call for call in batch if shows(said, call)]
            yield batch, asked
            if script is not None and len(asked) < len(batch) and script.comparable_state() != lab.comparable_state():
                lab.__dict__ = twin(script).__dict__


def shows(said: str, call: dict[str, Any]) -> bool:
    """Tell whether the lab shows how a call ends. It refuses requests that do not fit the declaration, and
    changes of what no set can make.
    """
    if said == "Winhost.BadRequest":
        return not fits(call)
    if said == "Winhost.NotFound":
        return call["verb"] == "get" or (fits(call) and WINDOWS[call["resource"]].absent is None)
    return call["verb"] == "get" or not said.startswith("Winhost.") or said in REHEARSED or said in GENERIC


def fits(call: dict[str, Any]) -> bool:
    """Tell whether a call has what its resource declares: a key, and values for properties that can be set."""
    resource, desired = WINDOWS.get(call["resource"]), call.get("desired") or {}
    if resource is None or set(call.get("key") or {}) != set(resource.key) or set(desired) - set(resource.sets):
        return False
    given = {name: value for name, value in desired.items() if value not in RESTORABLE_VALUES.get(resource.name, ())}
    return call["verb"] != "set" or (bool(desired) and resource.check_values(given) is None)


def read(name: str) -> Case:
    """Fails for keys that it does not know."""
    given = deepcopy(CASES[name])
    steps = [list(_calls(step)) for step in given.pop("do")]
    one_batch = given.pop("batch", False)
    batches = [[call for step in steps for call in step]] if one_batch else steps
    return Case(batches=batches, one_batch=one_batch, **given)


def _calls(step: Any) -> Iterator[dict[str, Any]]:
    """A step is one call, or the four that prepare a VM."""
    if isinstance(step, dict):
        for resource, desired in PREPARED.items():
            yield {"resource": resource, "verb": "set", "key": KEYS[step["take"]], "desired": desired}
        return
    verb, resource, key, desired, more = [*step, *[None] * (5 - len(step))]
    call = {"verb": verb, "resource": resource, "key": key and KEYS[key], "desired": desired}
    yield {**{name: value for name, value in call.items() if value is not None}, **(more or {})}
