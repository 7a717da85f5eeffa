"""From facts and a request to a plan. Pure: no host, no clock, no network."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from winhost import __version__
from winhost.compat.assess import recommended
from winhost.engine.failures import EndOfRun, ways
from winhost.engine.order import Gone, Id, differences, identity, steps_for
from winhost.engine.plan_dda import DdaPlanner
from winhost.engine.plan_wsl2 import Wsl2Planner
from winhost.knowledge.catalogue import remedies
from winhost.model.errors import Exit, UsageError, visible
from winhost.model.facts import Facts, Json, MissingFact, Unavailable
from winhost.model.path import path_of, variant_name
from winhost.model.plan import Deferred, DesiredResource, Plan, Stage, Step, Unchecked
from winhost.model.reason import PLAN, PathVerdict, Reason, Severity, Verdict
from winhost.model.refusal import Caution, Refusal
from winhost.paths.expansion import expand
from winhost.paths.path_request import PathRequest, parse_request
from winhost.paths.playbook import WrongPlaybook
from winhost.resources.host import HostFacts
from winhost.resources.registry import RESOURCE_TYPES, answer, unread
from winhost.resources.shared import ACCESS


class PathPlanner(Protocol):
    """What planning asks of a path, for one host and one request."""

    def __init__(self, facts: HostFacts, request: PathRequest) -> None: ...

    @property
    def verdict(self) -> PathVerdict:
        """Of exactly what is asked for. Raises MissingFact, UsageError."""

    @property
    def decisions(self) -> object:
        """What its playbook may refer to. Their properties raise MissingFact and Refusal."""

    @property
    def cautions(self) -> tuple[Caution, ...]:
        """What to know of the request itself, where nothing speaks against it."""

    @property
    def choices(self) -> str | None:
        """Options of `winhost plan` with which it would not be refused. Raises MissingFact."""

    def check(self, desired: Iterable[DesiredResource]) -> None:
        """What only the host can tell of wanted values, whoever wrote them and where. Raises Refusal."""

    def risks(self) -> Mapping[Id, tuple[str, ...]]:
        """Consents that its verdict asks for, by the resources whose steps they are asked for."""

    def unchecked(self, deferred: Iterable[Deferred]) -> tuple[Unchecked, ...]:
        """What of the request only a later stage can check, which plans this."""


PLANNERS: Mapping[str, type[PathPlanner]] = {"dda": DdaPlanner, "wsl2": Wsl2Planner}

NOT_PLANNABLE = "not plannable"


@dataclass(eq=False)
class Refused(EndOfRun):
    """A plan that is known to fail, or that nobody has verified, is refused before its first step, or a later stage is.

    anew: the words of `resume` that choose what was asked for otherwise.
    """

    exit_code = Exit.REFUSED

    host: str
    path: str
    verdict: str
    because: tuple[str, ...]
    codes: tuple[str, ...] = ()
    helps: tuple[str, ...] = ()
    instead: str | None = None
    run: str | None = None
    choices: str | None = None
    anew: str | None = None
    going_back: bool = False

    @property
    def what(self) -> str:
        return f"{self.path} is {self.verdict} on {self.host}"

    @property
    def meaning(self) -> str:
        return "\n".join(self.because)

    @property
    def ways(self) -> tuple[tuple[str, str], ...]:
        return ways(self.run, anew=self.anew) if self.run else ()

    @property
    def hint(self) -> str:
        helps = f"What would help: {' '.join(self.helps)}" if self.helps else None
        explain = f"The whole story: winhost explain {self.codes[0]}" if self.codes else None
        fresh = not self.run  # what planning otherwise would help is too late in the middle of a run
        anyway = "Plan it all the same: --allow-unverified" if self.verdict == Verdict.UNVERIFIED and fresh else None
        command = f"winhost plan {visible(self.host)}"
        with_these = f"It would work with: {command} --path {path_of(self.path)} {self.choices}"
        choices = visible(with_these) if self.choices and fresh else None
        instead = f"This host can do: {self.instead}" if self.instead and fresh else None
        again = f"Read it from the host, as an administrator: winhost detect {visible(self.host)} -o facts"
        missing = again if self.verdict == NOT_PLANNABLE else None
        next_ = (f"{what}: {command}" for what, command in self.ways)
        return "\n".join(filter(None, (helps, choices, explain, missing, anyway, instead, *next_)))


@dataclass(eq=False)
class NotAPlan(UsageError):
    """A plan that wants what no resource can be: edited, or of a winhost with other resources."""

    host: str
    why: str

    @property
    def what(self) -> str:
        return f"the plan for {self.host} wants what this winhost cannot do: {visible(self.why)}"

    @property
    def hint(self) -> str:
        return f"To change what is wanted, copy the playbook: winhost plan {self.host} --playbook my.yaml"


def check_plan(plan: Plan) -> PathRequest:
    """What can be said of a plan without its host; its request, parsed. Raises NotAPlan."""
    if plan.request.path not in PLANNERS:
        raise NotAPlan(
            plan.host, f"there is no plan for the path '{plan.request.path}'; there is for: {', '.join(PLANNERS)}"
        )
    if not plan.stages:
        raise NotAPlan(plan.host, "it has no stages")
    request = request_of(plan)
    if request.playbook.path != request.path:
        raise NotAPlan(plan.host, f"its playbook is for {request.playbook.path}, and not for {request.path}")
    for stage in plan.stages:
        _check_desired(plan.host, stage.desired)
    for step in plan.steps:
        _check_fits(plan.host, step)
    return request


def request_of(plan: Plan) -> PathRequest:
    """Raises NotAPlan."""
    try:
        return parse_request(plan.request)
    except WrongPlaybook as wrong:
        raise NotAPlan(plan.host, f"its playbook: {wrong}") from wrong


def check_stage(facts: HostFacts, request: PathRequest, desired: tuple[DesiredResource, ...]) -> None:
    """What only the host can tell of wanted values: a window that is too small, wherever it was written.

    Raises NotAPlan, Refused.
    """
    _check_desired(facts.host, desired)
    try:
        PLANNERS[request.path](facts, request).check(desired)
    except Refusal as refusal:
        raise _undecided(facts, request, refusal) from refusal


def _undecided(facts: HostFacts, request: PathRequest, refusal: Refusal) -> Refused:
    return Refused(facts.host, request.path, "refused", (refusal.sentence, refusal.remedy), (refusal.code,))


def _check_desired(host: str, desired: Iterable[DesiredResource]) -> None:
    values: dict[tuple[Id, str], Json] = {}
    for each in desired:
        _check_fits(host, each)
        for name, value in each.desired.items():
            if values.setdefault((identity(each.resource, each.key), name), value) != value:
                raise NotAPlan(host, f"{each.title}: {name} is wanted twice, with different values")


def _check_fits(host: str, each: DesiredResource | Step) -> None:
    resource = RESOURCE_TYPES.get(each.resource)
    if resource is None:
        raise NotAPlan(host, f"there is no resource {each.resource}")
    if misfit := resource.misfit(each.key, each.desired) or resource.wrong_value(each.desired):
        raise NotAPlan(host, f"{each.title}: {misfit}")


def make_plan(facts: HostFacts, request: PathRequest) -> Plan:
    """Raises Refused, and UsageError for a VM or card that is not there, or for a value that cannot be."""
    try:
        return _make_plan(facts, request)
    except MissingFact as missing:
        raise Refused(facts.host, request.path, NOT_PLANNABLE, (f"{unread(missing)}.",)) from missing


def _make_plan(facts: HostFacts, request: PathRequest) -> Plan:
    planned = PLANNERS[request.path](facts, request)
    verdict = planned.verdict
    _refuse(facts, planned, request.document.allow_unverified)
    stage = _stage(facts, request, planned, number=1)
    return Plan(
        host=facts.host,
        machine_id=facts.os.machine_id,
        origin=facts.document.origin,
        facts_read_at=facts.document.read_at,
        winhost=__version__,
        request=request.document,
        stages=(stage,),
        notes=(*_stated(facts.document), *_notes(verdict, planned.cautions)),
        linux_key=_linux_key(facts.document),
        variant=variant_name(verdict.path),
        unchecked=planned.unchecked(stage.deferred),
        stated=facts.document.stated,
    )


def _stated(facts: Facts) -> tuple[str, ...]:
    if not facts.stated:
        return ()
    said = ", ".join(facts.stated)
    return (visible(f"stated, and not read: {said}. apply reads the host itself, and judges and plans by that."),)


def _linux_key(facts: Facts) -> str | None:
    """Of the one Linux that lets somebody in: whose resources the facts hold."""
    ways_in = answer(facts, ACCESS)
    keys = [way.state.get("host_key") for way in ways_in] if isinstance(ways_in, tuple) else []
    (key,) = keys if len(keys) == 1 else (None,)
    return key if isinstance(key, str) else None


def _notes(verdict: PathVerdict, cautions: Iterable[Caution]) -> tuple[str, ...]:
    """Heaviest first. What is judged only later stands in the plan as what is deferred."""
    every = (r for r in verdict.every_reason if r.subject != PLAN and not r.code.endswith(".later"))
    said = [(r.severity.rank, told(r)) for r in every]
    said += [(c.severity.rank, visible(f"{c.severity}: the request: {c.sentence} [{c.code}]")) for c in cautions]
    return tuple(dict.fromkeys(text for _, text in sorted(said, key=lambda each: -each[0])))


def next_stage(facts: HostFacts, request: PathRequest, number: int) -> Stage:
    """What was deferred, planned from facts read since. Raises as make_plan does."""
    stage = make_plan(facts, request).stages[0]
    steps = (replace(step, id=f"{number}.{count}") for count, step in enumerate(stage.steps, start=1))
    return replace(stage, number=number, steps=tuple(steps))


def told(reason: Reason) -> str:
    """A reason as one line for people."""
    observed = reason.observed.rstrip(".")
    return visible(f"{reason.severity}: {reason.subject}: {observed}. {reason.sentence} [{reason.code}]")


def _stage(facts: HostFacts, request: PathRequest, planned: PathPlanner, number: int) -> Stage:
    try:
        desired, deferred = _until_there(*expand(request.playbook, planned.decisions), facts.document)
    except Refusal as refusal:
        raise _undecided(facts, request, refusal) from refusal
    check_stage(facts, request, desired)
    steps = steps_for(desired, facts.document, prefix=f"{number}.", extra_risks=planned.risks())
    return Stage(number, desired, steps, deferred)


def _deferred(desired: DesiredResource, until: str) -> Deferred:
    return Deferred(desired.resource, desired.title, until, desired.why, RESOURCE_TYPES[desired.resource].asks)


def _until_there(
    desired: tuple[DesiredResource, ...], deferred: tuple[Deferred, ...], facts: Facts
) -> tuple[tuple[DesiredResource, ...], tuple[Deferred, ...]]:
    """The same, but what cannot be looked at yet waits, too, though it needs no decision: where nothing is there that
    it could be compared with, nothing could be put back either.
    """
    awaited = [(each, _awaited(each, facts)) for each in desired]
    later = [_deferred(each, until) for each, until in awaited if until]
    return tuple(each for each, until in awaited if not until), (*deferred, *later)


def _awaited(desired: DesiredResource, facts: Facts) -> str | None:
    try:
        differences(desired, facts)
    except MissingFact as missing:
        return missing.missing.unavailable if isinstance(missing.missing, Unavailable) else None
    except Gone:
        return None  # said once it is judged
    return None


def _refuse(facts: HostFacts, planned: PathPlanner, allow_unverified: bool) -> None:
    verdict = planned.verdict
    bad = {Verdict.UNSUPPORTED} if allow_unverified else {Verdict.UNSUPPORTED, Verdict.UNVERIFIED}
    if verdict.verdict not in bad:
        return
    grave = [reason for reason in verdict.every_reason if reason.severity.rank >= Severity.UNVERIFIED.rank]
    decisive = sorted(grave, key=lambda reason: -reason.severity.rank)
    heaviest = [reason for reason in decisive if reason.severity.rank == verdict.verdict.rank]
    raise Refused(
        facts.host,
        verdict.path,
        verdict.verdict,
        tuple(dict.fromkeys(map(told, decisive))),
        tuple(dict.fromkeys(reason.code for reason in decisive)),
        tuple(dict.fromkeys(remedies()[reason.remedy].do for reason in heaviest if reason.remedy)),
        _instead(facts, verdict),
        choices=_choices(planned),
    )


def _choices(planned: PathPlanner) -> str | None:
    try:
        return planned.choices
    except MissingFact:
        return None


def _instead(facts: HostFacts, refused: PathVerdict) -> str | None:
    """Another way with its verdict; of the same path only a better one."""
    best = recommended(facts, but=refused.path)
    if best is None:
        return None
    better = best.verdict.rank < refused.verdict.rank or path_of(best.path) != path_of(refused.path)
    way = path_of(best.path) if best.path == "wsl2/bridged" else best.path  # which has to be told its switch
    command = f": winhost plan {visible(facts.host)} --path {way}" if path_of(way) in PLANNERS else ""
    return f"{best.path} ({best.verdict}){command}" if better else None


def asked_risks(facts: HostFacts, request: PathRequest) -> Mapping[Id, tuple[str, ...]]:
    """Consents that the verdict asks for, by the resources whose steps they are asked for."""
    return PLANNERS[request.path](facts, request).risks()
