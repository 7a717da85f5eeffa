"""Make a plan from facts and a request. Pure: no host, no clock, no network."""

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from winhost import __version__
from winhost.compat.assess import judge, recommended
from winhost.connect.wire_errors import error_of
from winhost.core.answers import NOT_THERE, HostAnswers, Id, Json, MissingFact, Unavailable, identity, if_known
from winhost.core.dataclass import dataclass
from winhost.core.order import NoInstance, differences, steps_for
from winhost.core.rules import RESTART, Condition
from winhost.core.steps import DesiredResource, Step
from winhost.engine.failures import NOT_PLANNABLE, PlanRefused, RefusalGrounds, gone
from winhost.engine.offline_copies import from_copies
from winhost.engine.path_planner import PathPlanner
from winhost.model.errors import UsageError, WinhostError, visible
from winhost.model.facts import Facts
from winhost.model.path import EVERY_VARIANT, PATHS_OF_LINUX, is_meant, path_of, variant_name
from winhost.model.plan import Deferred, Plan, Stage
from winhost.model.reason import PLAN, Caution, Finding, PathVerdict, Refusal, Severity, Verdict
from winhost.paths.disks import refuse_nonempty_disks
from winhost.paths.playbook import REFERENCE, PathRequest, Playbook, PlaybookResource, WrongPlaybook, parse_request
from winhost.resources.host import HostFacts, other_system_error
from winhost.resources.registry import LINUX, RESOURCE_TYPES, answer, check_desired, describe_missing, host_answers
from winhost.resources.shared import ACCESS, READING, RUNNING, SEED

# A planner is imported only for its own path, because it imports all that this path decides.


def _dda() -> type[PathPlanner[Any]]:
    from winhost.engine.plan_dda import DdaPlanner

    return DdaPlanner


def _wsl2() -> type[PathPlanner[Any]]:
    from winhost.engine.plan_wsl2 import Wsl2Planner

    return Wsl2Planner


def _dual_boot() -> type[PathPlanner[Any]]:
    from winhost.engine.plain_planner import DualBootPlanner

    return DualBootPlanner


def _linux() -> type[PathPlanner[Any]]:
    from winhost.engine.plain_planner import LinuxPlanner

    return LinuxPlanner


PLANNERS: Mapping[str, Callable[[], type[PathPlanner[Any]]]] = {
    "dda": _dda,
    "wsl2": _wsl2,
    "dual-boot": _dual_boot,
    "linux": _linux,
}


def _planner(facts: HostFacts, request: PathRequest) -> PathPlanner[Any]:
    return PLANNERS[request.path]()(facts, request)


def _not_a_plan(host: str, why: str, named: str | None = None) -> UsageError:
    """Make the error for a plan that wants what no resource can be: edited, or of a winhost with other resources.
    named: as a command names the host, where that is not its name.
    """
    return UsageError(
        "NotAPlan",
        what=f"the plan for {host} wants what this winhost cannot do: {visible(why)}",
        hint=f"Change a copy of the playbook, then: winhost plan {named or visible(host)} --playbook COPY",
        host=host,
    )


@dataclass(frozen=True)
class CheckedPlan:
    """A plan from outside, once all that can be checked without its host is, with its request as objects."""

    plan: Plan
    request: PathRequest

    @property
    def host(self) -> str:
        return self.plan.host

    @property
    def named(self) -> frozenset[Id]:
        """The resources that its playbook and its stages name."""
        goals = (goal for stage in self.plan.stages for goal in stage.desired)
        return self.request.playbook.named | {identity(goal.resource, goal.key) for goal in goals}


def check_plan(plan: Plan) -> CheckedPlan:
    """Check a plan without its host. Raises UsageError: NotAPlan."""
    if plan.request.path not in PLANNERS:
        raise _not_a_plan(
            plan.host, f"there is no plan for the path '{plan.request.path}'; there is for: {', '.join(PLANNERS)}"
        )
    if not plan.stages:
        raise _not_a_plan(plan.host, "it has no stages")
    request = request_of(plan)
    if request.playbook.path != request.path:
        raise _not_a_plan(plan.host, f"its playbook is for {request.playbook.path}, and not for {request.path}")
    for stage in plan.stages:
        _check_desired(plan.host, stage.desired)
    for step in plan.steps:
        _check_fits(plan.host, step)
    return CheckedPlan(plan, request)


def request_of(plan: Plan) -> PathRequest:
    """Raises UsageError: NotAPlan."""
    try:
        return parse_request(plan.request)
    except WrongPlaybook as wrong:
        raise _not_a_plan(plan.host, f"its playbook: {wrong}") from wrong


def check_stage(facts: HostFacts, request: PathRequest, desired: tuple[DesiredResource, ...]) -> None:
    """Check desired values against the host: a window that is too small, a disk with something on it. Raises UsageError
    (NotAPlan), PlanRefused.
    """
    _check_desired(facts.host, desired, facts.named)
    try:
        refuse_nonempty_disks(facts, desired)
        _planner(facts, request).check(desired)
    except Refusal as refusal:
        raise undecided(facts, request, refusal) from refusal


def undecided(facts: HostFacts, request: PathRequest, refusal: Refusal) -> PlanRefused:
    """Make the error for a value that no plan can have on this host."""
    because = (refusal.sentence, refusal.remedy)
    return PlanRefused(facts.host, RefusalGrounds(request.path, facts.named, "refused", because, (refusal.code,)))


def _check_desired(host: str, desired: Iterable[DesiredResource], named: str | None = None) -> None:
    values: dict[tuple[Id, str], Json] = {}
    for each in desired:
        _check_fits(host, each, named)
        for name, value in each.desired.items():
            if values.setdefault((identity(each.resource, each.key), name), value) != value:
                raise _not_a_plan(host, f"{each.title}: {name} is wanted twice, with different values", named)


def _check_fits(host: str, each: DesiredResource | Step, named: str | None = None) -> None:
    misfit = check_desired(each.resource, each.key, each.desired)
    if misfit := misfit or RESOURCE_TYPES[each.resource].check_values(each.desired):
        raise _not_a_plan(host, f"{each.title}: {misfit}", named)


def make_plan(facts: HostFacts, request: PathRequest) -> Plan:
    """Raises PlanRefused, and UsageError for a VM or GPU that is not there, for a value that cannot be, or for a path
    of another system; and why the Linux of the host could not be asked, where the plan needs what it says.
    """
    if facts.is_linux != (request.path in PATHS_OF_LINUX):
        raise other_system_error(facts, f"the path {request.path}")
    try:
        planned = _planner(facts, request)
        verdict = planned.verdict
        if verdict.verdict is Verdict.UNSUPPORTED:
            raise _refused(facts, verdict, if_known(lambda: planned.choices))
        if verdict.verdict is Verdict.UNVERIFIED and not request.document.allow_unverified:
            raise _refused(facts, verdict, if_known(lambda: planned.choices), _still(facts, request))
        stage = _stage(facts, request, planned, number=1)
        told = ", ".join(facts.document.stated)
        stated = f"stated, and not read: {told}. apply reads the host itself, and judges and plans by that."
        return Plan(
            host=facts.host,
            machine_id=facts.machine_id,
            origin=facts.document.origin,
            facts_read_at=facts.document.read_at,
            winhost=__version__,
            request=request.document,
            stages=(stage,),
            notes=(*((visible(stated),) if told else ()), *_notes(verdict, planned.cautions)),
            linux_key=_linux_key(facts.document),
            variant=variant_name(verdict.path),
            unchecked=planned.unchecked(stage.deferred),
            stated=facts.document.stated,
        )
    except Refusal as refusal:
        raise undecided(facts, request, refusal) from refusal
    except NoInstance as missing:
        raise gone(facts.host, missing, facts.named) from missing
    except MissingFact as missing:
        if silent := error_of(missing, facts.host):
            raise silent from missing
        grounds = RefusalGrounds(request.path, facts.named, NOT_PLANNABLE, (f"{describe_missing(missing)}.",))
        raise PlanRefused(facts.host, grounds) from missing


def _linux_key(facts: Facts) -> str | None:
    """The host key of the one Linux that lets somebody in: whose resources the facts hold. A guest may be known by
    several keys; it says itself which one it shows.
    """
    ways_in, guests, own = (answer(facts, resource) for resource in (ACCESS, SEED, "SshHostKey"))
    keys = [access.state.get("host_key") for access in ways_in] if isinstance(ways_in, tuple) else []
    if not keys and isinstance(guests, tuple) and guests and isinstance(own, tuple):
        keys = [each.state.get("key") for each in own]
    (key,) = keys if len(keys) == 1 else (None,)
    return key if isinstance(key, str) else None


def _notes(verdict: PathVerdict, cautions: Iterable[Caution]) -> tuple[str, ...]:
    """Heaviest first. What is judged only later stands in the plan as what is deferred."""
    every = (r for r in verdict.every_reason if r.subject != PLAN and not r.code.endswith(".later"))
    listed = [(r.severity.rank, format_reason(r)) for r in every]
    listed += [(c.severity.rank, visible(f"{c.severity}: the request: {c.sentence} [{c.code}]")) for c in cautions]
    return tuple(dict.fromkeys(text for _, text in sorted(listed, key=lambda each: -each[0])))


def next_stage(facts: HostFacts, request: PathRequest, number: int) -> Stage:
    """Plan what was deferred, from facts read since. Raises as make_plan does."""
    stage = make_plan(facts, request).stages[0]
    steps = (replace(step, id=f"{number}.{count}") for count, step in enumerate(stage.steps, start=1))
    return replace(stage, number=number, steps=tuple(steps))


def format_reason(reason: Finding) -> str:
    """A reason as one line for people."""
    observed = reason.observed.rstrip(".")
    return visible(f"{reason.severity}: {reason.subject}: {observed}. {reason.sentence} [{reason.code}]")


def _stage(facts: HostFacts, request: PathRequest, planned: PathPlanner[Any], number: int) -> Stage:
    try:
        expanded, waiting = expand(request.playbook, planned.decisions)
        here = tuple(from_copies(each, request.document.offline) for each in expanded)
        desired, deferred = _until_there(here, waiting, facts.document)
    except Refusal as refusal:
        raise undecided(facts, request, refusal) from refusal
    if not facts.is_linux:  # a Linux inside of a Windows host restarts without it; one beside it is that machine
        deferred = tuple(
            replace(each, asks=tuple(risk for risk in each.asks if risk != RESTART))
            if each.resource in LINUX and each.until != RUNNING
            else each
            for each in deferred
        )
    check_stage(facts, request, desired)
    steps = steps_for(desired, host_answers(facts.document), prefix=f"{number}.", extra_risks=planned.risks())
    return Stage(number, desired, steps, deferred)


def _may_ask(desired: DesiredResource) -> Iterator[str]:
    """Consents that its steps may ask for, without those that only another goal would: a distro that is made deletes
    no data.
    """
    resource = RESOURCE_TYPES[desired.resource]
    for risk in resource.asks:
        rules = [rule for rule in (*resource.risks, *resource.may_need) if rule.consent == risk]
        if not rules or any(_can_hold(rule.when, desired.desired) for rule in rules):
            yield risk


def _can_hold(when: Iterable[Condition], desired: Mapping[str, Json]) -> bool:
    """Tell whether the conditions can hold, as far as the goal alone decides: properties that it omits do not
    change.
    """
    for each in when:
        if each.of != "desired" or not each.property:
            continue
        if each.property not in desired or (each.one_of and desired[each.property] not in each.one_of):
            return False
        if each.none_of and desired[each.property] in each.none_of:
            return False
    return True


def _until_there(
    desired: tuple[DesiredResource, ...], deferred: tuple[Deferred, ...], facts: Facts
) -> tuple[tuple[DesiredResource, ...], tuple[Deferred, ...]]:
    """Defer what the facts do not tell yet: nothing could be put back that it was not compared with. Where facts of a
    Linux lack what they were not asked for by name, the changes that come after it in order wait with it.
    """
    host = host_answers(facts)
    awaited = {identity(each.resource, each.key): _awaited(each, host) for each in desired}
    orders = [host.rules[resource].order for (resource, _), until in awaited.items() if until == READING]
    for each in desired:
        id_ = identity(each.resource, each.key)
        if orders and not awaited[id_] and host.rules[each.resource].order > min(orders) and _changes(each, host):
            awaited[id_] = READING
    later = [
        Deferred(each.resource, each.title, until, each.why, tuple(_may_ask(each)))
        for each in desired
        if (until := awaited[identity(each.resource, each.key)])
    ]
    now = tuple(each for each in desired if not awaited[identity(each.resource, each.key)])
    return now, (*deferred, *later)


def _awaited(desired: DesiredResource, host: HostAnswers) -> str | None:
    try:
        differences(desired, host)
        return None
    except MissingFact as missing:
        if isinstance(missing.missing, Unavailable):
            return missing.missing.unavailable
        is_unread = missing.missing == NOT_THERE
    except NoInstance:
        is_unread = True
    return READING if is_unread and desired.resource in LINUX else None  # anything else is said once it is judged


def _changes(desired: DesiredResource, host: HostAnswers) -> bool:
    try:
        return differences(desired, host) is not None
    except (MissingFact, NoInstance):
        return False


def refuse_unsupported(facts: HostFacts, path: str) -> None:
    """Raises PlanRefused for a path, or a variant, that works in no way on this host, before anything else is asked;
    UsageError for a path of another system.
    """
    if facts.is_linux != (path in PATHS_OF_LINUX):
        raise other_system_error(facts, f"the path {path}")
    judged = [judge(facts, each) for each in EVERY_VARIANT if is_meant(path, each)]
    if all(each.verdict is Verdict.UNSUPPORTED for each in judged):
        raise _refused(facts, judged[0])


def _refused(
    facts: HostFacts, verdict: PathVerdict, choices: str | None = None, still: str | None = None
) -> PlanRefused:
    grave = [reason for reason in verdict.every_reason if reason.severity.rank >= Severity.UNVERIFIED.rank]
    decisive = sorted(grave, key=lambda reason: -reason.severity.rank)
    heaviest = [reason for reason in decisive if reason.severity.rank == verdict.verdict.rank]
    grounds = RefusalGrounds(
        verdict.path,
        facts.named,
        verdict.verdict,
        because=tuple(dict.fromkeys(map(format_reason, decisive))),
        codes=tuple(dict.fromkeys(reason.code for reason in decisive)),
        helps=tuple(dict.fromkeys(reason.remedy.do for reason in heaviest if reason.remedy)),
        choices=choices,
        instead=_instead(facts, verdict),
        still=still,
    )
    return PlanRefused(facts.host, grounds)


def _still(facts: HostFacts, request: PathRequest) -> str | None:
    try:
        make_plan(facts, request.with_options(allow_unverified=True))
    except PlanRefused as refused:
        return " ".join(each if each.endswith(".") else f"{each}." for each in refused.grounds.because)
    except WinhostError as error:
        return error.what
    return None


def _instead(facts: HostFacts, refused: PathVerdict) -> str | None:
    """Name another way with its verdict; of the same path only a better one."""
    best = recommended(facts, but=refused.path)
    if best is None:
        return None
    better = best.verdict.rank < refused.verdict.rank or path_of(best.path) != path_of(refused.path)
    words = visible(shlex.join(best.path_and_options))
    if best.verdict is Verdict.UNVERIFIED:
        words += " --allow-unverified"
    planned = path_of(best.path) in PLANNERS and facts.document.origin != "imported"  # no plan is made of an import
    command = f": winhost plan {facts.named} --path {words}" if planned else ""
    return f"{best.path} ({best.verdict}){command}" if better else None


def asked_risks(facts: HostFacts, request: PathRequest) -> Mapping[Id, tuple[str, ...]]:
    """Consents that the verdict asks for, by the resources whose steps they are asked for."""
    return _planner(facts, request).risks()


# ---- a playbook, filled in with the decisions of its path


def expand(playbook: Playbook, decisions: object) -> tuple[tuple[DesiredResource, ...], tuple[Deferred, ...]]:
    """The desired resources, and those deferred because they refer to something that does not exist yet.

    `decisions` is the path's; an attribute that raises MissingFact for an unavailable resource defers the entry.
    """
    desired: list[DesiredResource] = []
    deferred: list[Deferred] = []
    for entry in playbook.resources:
        try:
            desired += _each(entry, decisions)
        except MissingFact as missing:
            if not isinstance(missing.missing, Unavailable):
                raise
            title, why = (_as_far_as_known(text, decisions) for text in (entry.title, entry.why))
            deferred.append(
                Deferred(entry.resource, title, missing.missing.unavailable, why, RESOURCE_TYPES[entry.resource].asks)
            )
    return tuple(desired), tuple(deferred)


class _Scope:
    """The names that a reference may use: the path's decisions, and `each`."""

    def __init__(self, decisions: object, each: object = None) -> None:
        self.decisions = decisions
        self.each = each


def _each(entry: PlaybookResource, decisions: object) -> list[DesiredResource]:
    items: Iterable[Any] = (None,) if entry.for_each is None else _look_up(entry.for_each, _Scope(decisions))
    return [
        DesiredResource(
            resource=entry.resource,
            key={name: str(_filled(value, scope)) for name, value in entry.key.items()},
            desired={name: _filled(value, scope) for name, value in entry.desired.items()},
            title=str(_filled(entry.title, scope)),
            why=str(_filled(entry.why, scope)),
        )
        for scope in (_Scope(decisions, item) for item in items)
    ]


def _filled(value: Json, scope: _Scope) -> Json:
    """A lone reference gives its value with its type; inside text it is written out."""
    if not isinstance(value, str):
        return value
    alone = REFERENCE.fullmatch(value)
    if alone:
        found = _look_up(alone[1], scope)
        return list(found) if isinstance(found, tuple) else found  # what a host answers is JSON
    return REFERENCE.sub(lambda match: str(_look_up(match[1], scope)), value)


def _as_far_as_known(text: str, decisions: object) -> str:
    """The text with an ellipsis for each reference that cannot be decided yet."""

    def known(match: re.Match[str]) -> str:
        try:
            return "…" if match[1].strip().startswith("each.") else str(_look_up(match[1], _Scope(decisions)))
        except MissingFact:
            return "…"

    return REFERENCE.sub(known, text)


def _look_up(reference: str, scope: _Scope) -> Any:
    """Names joined by dots, nothing else: a playbook is data, not a program."""
    first, *rest = reference.strip().split(".")
    found: Any = scope.each if first == "each" else getattr(scope.decisions, _public(first, reference))
    for name in rest:
        found = found[name] if isinstance(found, Mapping) else getattr(found, _public(name, reference))
    return found


def _public(name: str, reference: str) -> str:
    if name.startswith("_"):
        raise AttributeError(f"${{{reference}}}: no such decision")
    return name
