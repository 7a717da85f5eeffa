"""Make a plan from facts and a request. Pure: no host, no clock, no network."""

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from winhost import __version__
from winhost.compat.assess import find_alternative, judge
from winhost.connect.wire_errors import error_of
from winhost.core.answers import NOT_READ, HostAnswers, Id, Json, MissingFact, Unavailable, identity, if_known
from winhost.core.dataclass import dataclass
from winhost.core.order import NoInstance, differences, steps_for
from winhost.core.rules import RESTART, Condition
from winhost.core.steps import DesiredResource, Step
from winhost.engine.failures import NOT_PLANNABLE, PlanRefused, RefusalGrounds, missing_instance_error
from winhost.engine.offline_copies import use_copies
from winhost.engine.path_planner import PathPlanner
from winhost.model.errors import UsageError, WinhostError, visible
from winhost.model.facts import Facts
from winhost.model.path import EVERY_VARIANT, PATHS_OF_LINUX, is_requested, path_of, variant_name
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


def _invalid_plan_error(host: str, why: str, named: str | None = None) -> UsageError:
    """Make the error for a plan with values that no resource can have, because it was edited or is of another version.
    named: the host in commands, if that is not its name.
    """
    return UsageError(
        "NotAPlan",
        what=f"the plan for {host} wants what this winhost cannot do: {visible(why)}",
        hint=f"Change a copy of the playbook, then: winhost plan {named or visible(host)} --playbook COPY",
        host=host,
    )


@dataclass(frozen=True)
class CheckedPlan:
    """A plan that was checked as far as possible without its host. request: parsed."""

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
        raise _invalid_plan_error(
            plan.host, f"there is no plan for the path '{plan.request.path}'; there is for: {', '.join(PLANNERS)}"
        )
    if not plan.stages:
        raise _invalid_plan_error(plan.host, "it has no stages")
    request = request_of(plan)
    if request.playbook.path != request.path:
        raise _invalid_plan_error(plan.host, f"its playbook is for {request.playbook.path}, and not for {request.path}")
    for stage in plan.stages:
        _check_desired(plan.host, stage.desired)
    for step in plan.steps:
        _check_fits(plan.host, step)
    return CheckedPlan(plan, request)


def request_of(plan: Plan) -> PathRequest:
    """Parse the request of a plan. Raises UsageError: NotAPlan."""
    try:
        return parse_request(plan.request)
    except WrongPlaybook as wrong:
        raise _invalid_plan_error(plan.host, f"its playbook: {wrong}") from wrong


def check_stage(facts: HostFacts, request: PathRequest, desired: tuple[DesiredResource, ...]) -> None:
    """Check desired values against the host: a window that is too small, a disk with something on it. Raises UsageError
    (NotAPlan), PlanRefused.
    """
    _check_desired(facts.host, desired, facts.named)
    try:
        refuse_nonempty_disks(facts, desired)
        _planner(facts, request).check(desired)
    except Refusal as refusal:
        raise impossible_value_error(facts, request, refusal) from refusal


def impossible_value_error(facts: HostFacts, request: PathRequest, refusal: Refusal) -> PlanRefused:
    """Make the error for a value that no plan can have on this host."""
    because = (refusal.sentence, refusal.remedy)
    return PlanRefused(facts.host, RefusalGrounds(request.path, facts.named, "refused", because, (refusal.code,)))


def _check_desired(host: str, desired: Iterable[DesiredResource], named: str | None = None) -> None:
    values: dict[tuple[Id, str], Json] = {}
    for each in desired:
        _check_fits(host, each, named)
        for name, value in each.desired.items():
            if values.setdefault((identity(each.resource, each.key), name), value) != value:
                raise _invalid_plan_error(host, f"{each.title}: {name} is wanted twice, with different values", named)


def _check_fits(host: str, each: DesiredResource | Step, named: str | None = None) -> None:
    mismatch = check_desired(each.resource, each.key, each.desired)
    if mismatch := mismatch or RESOURCE_TYPES[each.resource].check_values(each.desired):
        raise _invalid_plan_error(host, f"{each.title}: {mismatch}", named)


def make_plan(facts: HostFacts, request: PathRequest) -> Plan:
    """Make a plan. Raises PlanRefused; UsageError for a VM or GPU that does not exist, for an impossible value, or for
    a path of another system; and the WireError of the host's Linux if the plan needs its facts.
    """
    if facts.is_linux != (request.path in PATHS_OF_LINUX):
        raise other_system_error(facts, f"the path {request.path}")
    try:
        planner = _planner(facts, request)
        verdict = planner.verdict
        if verdict.verdict is Verdict.UNSUPPORTED:
            raise _refused_error(facts, verdict, if_known(lambda: planner.choices))
        if verdict.verdict is Verdict.UNVERIFIED and not request.document.allow_unverified:
            raise _refused_error(facts, verdict, if_known(lambda: planner.choices), _remaining_refusal(facts, request))
        stage = _plan_stage(facts, request, planner, number=1)
        stated_names = ", ".join(facts.document.stated)
        stated = f"stated, and not read: {stated_names}. apply reads the host itself, and judges and plans by that."
        return Plan(
            host=facts.host,
            machine_id=facts.machine_id,
            origin=facts.document.origin,
            facts_read_at=facts.document.read_at,
            winhost=__version__,
            request=request.document,
            stages=(stage,),
            notes=(*((visible(stated),) if stated_names else ()), *_notes(verdict, planner.cautions)),
            linux_key=_linux_key(facts.document),
            variant=variant_name(verdict.path),
            unchecked=planner.unchecked(stage.deferred),
            stated=facts.document.stated,
        )
    except Refusal as refusal:
        raise impossible_value_error(facts, request, refusal) from refusal
    except NoInstance as missing:
        raise missing_instance_error(facts.host, missing, facts.named) from missing
    except MissingFact as missing:
        if silent := error_of(missing, facts.host):
            raise silent from missing
        grounds = RefusalGrounds(request.path, facts.named, NOT_PLANNABLE, (f"{describe_missing(missing)}.",))
        raise PlanRefused(facts.host, grounds) from missing


def _linux_key(facts: Facts) -> str | None:
    """Return the host key of the one Linux with SSH access, which is the one in the facts. Windows may know several
    keys of a guest; the guest's own facts have the present one.
    """
    ways_in, guests, own = (answer(facts, resource) for resource in (ACCESS, SEED, "SshHostKey"))
    keys = [access.state.get("host_key") for access in ways_in] if isinstance(ways_in, tuple) else []
    if not keys and isinstance(guests, tuple) and guests and isinstance(own, tuple):
        keys = [each.state.get("key") for each in own]
    (key,) = keys if len(keys) == 1 else (None,)
    return key if isinstance(key, str) else None


def _notes(verdict: PathVerdict, cautions: Iterable[Caution]) -> tuple[str, ...]:
    """Return the plan's notes, most severe first. Reasons that are judged only in later stages are left out."""
    every = (r for r in verdict.every_reason if r.subject != PLAN and not r.code.endswith(".later"))
    listed = [(r.severity.rank, format_reason(r)) for r in every]
    listed += [(c.severity.rank, visible(f"{c.severity}: the request: {c.sentence} [{c.code}]")) for c in cautions]
    return tuple(dict.fromkeys(text for _, text in sorted(listed, key=lambda each: -each[0])))


def next_stage(facts: HostFacts, request: PathRequest, number: int) -> Stage:
    """Plan the deferred resources from new facts. Raises as make_plan does."""
    stage = make_plan(facts, request).stages[0]
    steps = (replace(step, id=f"{number}.{count}") for count, step in enumerate(stage.steps, start=1))
    return replace(stage, number=number, steps=tuple(steps))


def format_reason(reason: Finding) -> str:
    """Format a reason as one line."""
    observed = reason.observed.rstrip(".")
    return visible(f"{reason.severity}: {reason.subject}: {observed}. {reason.sentence} [{reason.code}]")


def _plan_stage(facts: HostFacts, request: PathRequest, planner: PathPlanner[Any], number: int) -> Stage:
    try:
        expanded, deferred_entries = expand(request.playbook, planner.decisions)
        goals = tuple(use_copies(each, request.document.offline) for each in expanded)
        desired, deferred = _defer_unread(goals, deferred_entries, facts.document)
    except Refusal as refusal:
        raise impossible_value_error(facts, request, refusal) from refusal
    if not facts.is_linux:  # a Linux in a Windows host restarts without that host; one next to Windows is the machine
        deferred = tuple(
            replace(each, asks=tuple(risk for risk in each.asks if risk != RESTART))
            if each.resource in LINUX and each.until != RUNNING
            else each
            for each in deferred
        )
    check_stage(facts, request, desired)
    steps = steps_for(desired, host_answers(facts.document), prefix=f"{number}.", extra_risks=planner.risks())
    return Stage(number, desired, steps, deferred)


def _possible_consents(desired: DesiredResource) -> Iterator[str]:
    """Yield the consents that steps to this goal may need. Consents that only another goal of the resource needs are
    left out: making a distro, for example, deletes no data.
    """
    resource = RESOURCE_TYPES[desired.resource]
    for risk in resource.asks:
        rules = [rule for rule in (*resource.risks, *resource.may_need) if rule.consent == risk]
        if not rules or any(_can_hold(rule.when, desired.desired) for rule in rules):
            yield risk


def _can_hold(when: Iterable[Condition], desired: Mapping[str, Json]) -> bool:
    """Tell whether the conditions can hold for this goal. Properties that it omits do not change."""
    for each in when:
        if each.of != "desired" or not each.property:
            continue
        if each.property not in desired or (each.one_of and desired[each.property] not in each.one_of):
            return False
        if each.none_of and desired[each.property] in each.none_of:
            return False
    return True


def _defer_unread(
    desired: tuple[DesiredResource, ...], deferred: tuple[Deferred, ...], facts: Facts
) -> tuple[tuple[DesiredResource, ...], tuple[Deferred, ...]]:
    """Defer goals whose present state is not known yet, because they could not be restored. If the facts of a Linux
    lack instances that were not read by name, changes that come after these in order are deferred too.
    """
    host = host_answers(facts)
    prerequisites = {identity(each.resource, each.key): _awaited_resource(each, host) for each in desired}
    unread_orders = [host.rules[resource].order for (resource, _), until in prerequisites.items() if until == READING]
    for each in desired:
        id_ = identity(each.resource, each.key)
        if (
            unread_orders
            and not prerequisites[id_]
            and host.rules[each.resource].order > min(unread_orders)
            and _would_change(each, host)
        ):
            prerequisites[id_] = READING
    later = [
        Deferred(each.resource, each.title, until, each.why, tuple(_possible_consents(each)))
        for each in desired
        if (until := prerequisites[identity(each.resource, each.key)])
    ]
    now = tuple(each for each in desired if not prerequisites[identity(each.resource, each.key)])
    return now, (*deferred, *later)


def _awaited_resource(desired: DesiredResource, host: HostAnswers) -> str | None:
    try:
        differences(desired, host)
        return None
    except MissingFact as missing:
        if isinstance(missing.missing, Unavailable):
            return missing.missing.unavailable
        is_unread = missing.missing == NOT_READ
    except NoInstance:
        is_unread = True
    return READING if is_unread and desired.resource in LINUX else None  # other missing facts are reported later


def _would_change(desired: DesiredResource, host: HostAnswers) -> bool:
    try:
        return differences(desired, host) is not None
    except (MissingFact, NoInstance):
        return False


def refuse_unsupported(facts: HostFacts, path: str) -> None:
    """Refuse a path or variant that is unsupported on this host, before other questions are asked. Raises PlanRefused,
    and UsageError for a path of another system.
    """
    if facts.is_linux != (path in PATHS_OF_LINUX):
        raise other_system_error(facts, f"the path {path}")
    judged = [judge(facts, each) for each in EVERY_VARIANT if is_requested(path, each)]
    if all(each.verdict is Verdict.UNSUPPORTED for each in judged):
        raise _refused_error(facts, judged[0])


def _refused_error(
    facts: HostFacts, verdict: PathVerdict, working_options: str | None = None, remaining_refusal: str | None = None
) -> PlanRefused:
    grave = [reason for reason in verdict.every_reason if reason.severity.rank >= Severity.UNVERIFIED.rank]
    decisive = sorted(grave, key=lambda reason: -reason.severity.rank)
    heaviest = [reason for reason in decisive if reason.severity.rank == verdict.verdict.rank]
    grounds = RefusalGrounds(
        verdict.path,
        facts.named,
        verdict.verdict,
        reasons=tuple(dict.fromkeys(map(format_reason, decisive))),
        codes=tuple(dict.fromkeys(reason.code for reason in decisive)),
        remedies=tuple(dict.fromkeys(reason.remedy.do for reason in heaviest if reason.remedy)),
        working_options=working_options,
        alternative=_describe_alternative(facts, verdict),
        remaining_refusal=remaining_refusal,
    )
    return PlanRefused(facts.host, grounds)


def _remaining_refusal(facts: HostFacts, request: PathRequest) -> str | None:
    try:
        make_plan(facts, request.with_options(allow_unverified=True))
    except PlanRefused as refused:
        return " ".join(each if each.endswith(".") else f"{each}." for each in refused.grounds.reasons)
    except WinhostError as error:
        return error.what
    return None


def _describe_alternative(facts: HostFacts, refused: PathVerdict) -> str | None:
    """Name another variant with its verdict and command; None if there is none, or no better one of the same path."""
    best = find_alternative(facts, but=refused.path)
    if best is None:
        return None
    is_better = best.verdict.rank < refused.verdict.rank or path_of(best.path) != path_of(refused.path)
    options = visible(shlex.join(best.path_and_options))
    if best.verdict is Verdict.UNVERIFIED:
        options += " --allow-unverified"
    can_plan = path_of(best.path) in PLANNERS and facts.document.origin != "imported"  # no plan is made of an import
    command = f": winhost plan {facts.named} --path {options}" if can_plan else ""
    return f"{best.path} ({best.verdict}){command}" if is_better else None


def verdict_risks(facts: HostFacts, request: PathRequest) -> Mapping[Id, tuple[str, ...]]:
    """Return the consents that the verdict asks for, by the resources whose steps need them."""
    return _planner(facts, request).risks()


# ---- expand a playbook with the decisions of its path


def expand(playbook: Playbook, decisions: object) -> tuple[tuple[DesiredResource, ...], tuple[Deferred, ...]]:
    """Return the desired resources, and those deferred because they refer to something that does not exist yet.

    decisions: of the path; an attribute that raises MissingFact for an unavailable resource defers the entry.
    """
    desired: list[DesiredResource] = []
    deferred: list[Deferred] = []
    for entry in playbook.resources:
        try:
            desired += _expand_entry(entry, decisions)
        except MissingFact as missing:
            if not isinstance(missing.missing, Unavailable):
                raise
            title, why = (_fill_known_references(text, decisions) for text in (entry.title, entry.why))
            deferred.append(
                Deferred(entry.resource, title, missing.missing.unavailable, why, RESOURCE_TYPES[entry.resource].asks)
            )
    return tuple(desired), tuple(deferred)


class _Scope:
    """The names that a reference may use: the path's decisions, and `each`."""

    def __init__(self, decisions: object, each: object = None) -> None:
        self.decisions = decisions
        self.each = each


def _expand_entry(entry: PlaybookResource, decisions: object) -> list[DesiredResource]:
    items: Iterable[Any] = (None,) if entry.for_each is None else _resolve_reference(entry.for_each, _Scope(decisions))
    return [
        DesiredResource(
            resource=entry.resource,
            key={name: str(_fill_references(value, scope)) for name, value in entry.key.items()},
            desired={name: _fill_references(value, scope) for name, value in entry.desired.items()},
            title=str(_fill_references(entry.title, scope)),
            why=str(_fill_references(entry.why, scope)),
        )
        for scope in (_Scope(decisions, item) for item in items)
    ]


def _fill_references(value: Json, scope: _Scope) -> Json:
    """Replace references. A value that is one reference keeps the type of the decision; inside text it is formatted."""
    if not isinstance(value, str):
        return value
    lone = REFERENCE.fullmatch(value)
    if lone:
        resolved = _resolve_reference(lone[1], scope)
        return list(resolved) if isinstance(resolved, tuple) else resolved  # states are compared as JSON
    return REFERENCE.sub(lambda match: str(_resolve_reference(match[1], scope)), value)


def _fill_known_references(text: str, decisions: object) -> str:
    """Replace references in a text, with an ellipsis for each one that cannot be decided yet."""

    def fill(match: re.Match[str]) -> str:
        try:
            return "…" if match[1].strip().startswith("each.") else str(_resolve_reference(match[1], _Scope(decisions)))
        except MissingFact:
            return "…"

    return REFERENCE.sub(fill, text)


def _resolve_reference(reference: str, scope: _Scope) -> Any:
    """Return the value of names joined by dots. Nothing else is evaluated: a playbook is data, not a program."""
    first, *rest = reference.strip().split(".")
    value: Any = scope.each if first == "each" else getattr(scope.decisions, _public_name(first, reference))
    for name in rest:
        value = value[name] if isinstance(value, Mapping) else getattr(value, _public_name(name, reference))
    return value


def _public_name(name: str, reference: str) -> str:
    if name.startswith("_"):
        raise AttributeError(f"${{{reference}}}: no such decision")
    return name
