"""A plan: the differences between what a host is and what a path wants. A file to read, review, diff and apply."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import Literal

from winhost.core.answers import Json
from winhost.core.dataclass import dataclass
from winhost.core.steps import DesiredResource, Step

SCHEMA = "winhost.plan/3"

# What each consent allows, in the words that the user is asked with.
RISKS: Mapping[str, str] = {
    "vm-stop": "shut down a VM or a distro of WSL, waiting for it up to the deadline",
    "vm-turn-off": "turn a VM off that does not shut down in time, like pulling its plug",
    "restart": "restart the host, with everything that runs on it",
    "headless": "take a display from the host",
    "force-dismount": "take a device from the host without a driver or ACS that contains it: its VM must be trusted, "
    "because it can then attack the host",
    "network": "interrupt the host's network, or open a port on it or on the computer that runs winhost",
    "packages": "upgrade or downgrade packages on a Linux that winhost did not install",
    "containers": "end the containers that run in a Linux, as a restart of Docker does",
    "data": "change or delete data",
}


@dataclass(frozen=True)
class Deferred:
    """A resource that can be planned only once `until` is there: read and judged again after the stage before it."""

    resource: str
    title: str
    until: str
    why: str
    asks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Unchecked:
    """A value of the request that can be checked only once `until` is there; null: left to what is found then.

    name: as `winhost resume --set` takes it; resources: those of the steps that alone can tell, where planning cannot.
    """

    name: str
    value: Json
    until: str
    resources: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stage:
    """Steps without a restart between them. What is deferred is planned after this stage, from facts read then."""

    number: int
    desired: tuple[DesiredResource, ...]
    steps: tuple[Step, ...]
    deferred: tuple[Deferred, ...] = ()

    @property
    def restarts(self) -> bool:
        return any(step.restarts for step in self.steps)


@dataclass(frozen=True)
class OfflineImage:
    """An image of containers in a file on the Linux that serves. name: what it is called once it is loaded."""

    archive: str
    sha256: str
    name: str


@dataclass(frozen=True)
class Offline:
    """The files that a Linux takes in place of the internet: paths on that Linux, as `winhost fetch` named them.

    images: by REGISTRY/NAME@DIGEST; models: folders, by ADDRESS@COMMIT; sources: of packages, by URI SUITE.
    """

    images: Mapping[str, OfflineImage]
    models: Mapping[str, str]
    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PlanRequest:
    """The user's request: enough to plan again, on the same host, after a restart.

    vm: name or GUID; gpus: location paths (none given: every GPU that the rules allow); low, high: MMIO windows in
    bytes, where the user sets them himself; power: as-found, running or off; playbook: its content, so that an edited
    one travels with the plan; allow_unverified: goes on where something could not be read or is unproven, at every
    stage; offline: copies that were fetched for a host without a network; asks_with: the secret reference of an API key
    with which the endpoint is asked in the end, where the plan makes one.
    """

    path: str
    playbook: Mapping[str, Json]
    vm: str | None = None
    gpus: tuple[str, ...] = ()
    low: int | None = None
    high: int | None = None
    power: Literal["as-found", "running", "off"] = "as-found"
    allow_unverified: bool = False
    offline: Offline | None = None
    asks_with: str | None = None


@dataclass(frozen=True)
class Plan:
    """A plan for one host, by its machine id. notes: what the verdict says that a reader should know before applying;
    linux_key: the SSH host key of its Linux, where that can be entered; variant: of the path, where it has some;
    made_at: ISO 8601, set when the plan is written, because planning reads no clock; stated: facts that a user stated
    for the plan, and that apply reads itself.
    """

    host: str
    machine_id: str
    origin: str
    facts_read_at: str
    winhost: str
    request: PlanRequest
    stages: tuple[Stage, ...]
    notes: tuple[str, ...] = ()
    linux_key: str | None = None
    made_at: str | None = None
    unchecked: tuple[Unchecked, ...] = ()
    variant: str | None = None
    stated: tuple[str, ...] = ()
    schema: Literal["winhost.plan/3"] = "winhost.plan/3"

    @property
    def steps(self) -> Iterator[Step]:
        return (step for stage in self.stages for step in stage.steps)

    @property
    def deferred(self) -> tuple[Deferred, ...]:
        return tuple(deferred for stage in self.stages for deferred in stage.deferred)

    @property
    def risks(self) -> tuple[str, ...]:
        """Consents without which `apply` does not begin."""
        return sort_risks(risk for step in self.steps for risk in step.risks)

    @property
    def possible_risks(self) -> tuple[str, ...]:
        """Consents that a step or a later stage may turn out to ask for."""
        later = (risk for deferred in self.deferred for risk in deferred.asks)
        maybe = (risk for step in self.steps for risk in step.may_need)
        return sort_risks(risk for risk in (*maybe, *later) if risk not in self.risks)


def sort_risks(risks: Iterable[str]) -> tuple[str, ...]:
    """Each once, in the order of RISKS, so that plans compare."""
    found = set(risks)
    return tuple(risk for risk in RISKS if risk in found)
