"""A plan: the differences between the state of a host and the desired state of a path. A file to review, diff and
apply.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import Literal

from winhost.core.answers import Json
from winhost.core.dataclass import dataclass
from winhost.core.steps import DesiredResource, Step

SCHEMA = "winhost.plan/3"

# What each consent allows, as the user is asked for it.
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
    """A resource that can only be planned once `until` exists. It is read and planned after the stage that
    contains it.
    """

    resource: str
    title: str
    until: str
    why: str
    asks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Unchecked:
    """A value of the request that can only be checked once `until` exists. value: null if it is chosen then.

    name: as in `winhost resume --set`; resources: the resources whose steps check it, if planning cannot.
    """

    name: str
    value: Json
    until: str
    resources: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stage:
    """Steps without a restart between them. deferred: planned after this stage, from facts that are read then."""

    number: int
    desired: tuple[DesiredResource, ...]
    steps: tuple[Step, ...]
    deferred: tuple[Deferred, ...] = ()

    @property
    def restarts(self) -> bool:
        return any(step.restarts for step in self.steps)


@dataclass(frozen=True)
class OfflineImage:
    """A container image in a file on the Linux that serves. name: its name once it is loaded."""

    archive: str
    sha256: str
    name: str


@dataclass(frozen=True)
class Offline:
    """The files that a Linux uses instead of the internet: paths on that Linux, as `winhost fetch` named them.

    images: by REGISTRY/NAME@DIGEST; models: folders, by ADDRESS@COMMIT; sources: of packages, by URI SUITE.
    """

    images: Mapping[str, OfflineImage]
    models: Mapping[str, str]
    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PlanRequest:
    """The user's request. It contains everything that planning the same host again after a restart needs.

    vm: name or GUID; gpus: location paths (empty: every GPU that the rules allow); low, high: MMIO windows in bytes, if
    the user sets them; power: the state of the VM afterwards; playbook: its content, so that edits travel with the
    plan; allow_unverified: continue in each stage where something could not be read or is unverified; offline: copies
    that were fetched for a host without a network; asks_with: the secret reference of the API key for the request that
    tests the endpoint, if the plan makes one.
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
    """A plan for one host, identified by its machine id. notes: what a reader should know before applying; linux_key:
    the SSH host key of its Linux, if winhost can log on there; variant: of the path, if it has variants; made_at: ISO
    8601, set when the plan is written, because planning reads no clock; stated: facts that a user stated for the plan;
    apply reads them from the host.
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
        """The consents that `apply` requires before it begins."""
        return sort_risks(risk for step in self.steps for risk in step.risks)

    @property
    def possible_risks(self) -> tuple[str, ...]:
        """The consents that a step or a later stage may require as well."""
        later = (risk for deferred in self.deferred for risk in deferred.asks)
        maybe = (risk for step in self.steps for risk in step.may_need)
        return sort_risks(risk for risk in (*maybe, *later) if risk not in self.risks)


def sort_risks(risks: Iterable[str]) -> tuple[str, ...]:
    """Return each consent once, in the order of RISKS, so that plans can be compared."""
    unique = set(risks)
    return tuple(risk for risk in RISKS if risk in unique)
