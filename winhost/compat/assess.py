"""Evaluates each path on a host. Pure: facts in, verdicts with reasons out."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

from packaging.version import Version

from winhost.compat.rule import ASSIGNMENT, GPU, HOST, VM, SubjectKind, find_reasons, finding, gap, has_rules
from winhost.compat.stated import with_stated_versions
from winhost.compat.target import Target, available_memory
from winhost.core.answers import MissingFact, Unknown
from winhost.hardware.host_gpus import gpu_label, is_compute_gpu
from winhost.knowledge import catalogue
from winhost.model.facts import Instance
from winhost.model.lazy import LazySequence
from winhost.model.once import once
from winhost.model.path import OPT_IN_VARIANTS, PATHS, PATHS_OF_LINUX, VARIANTS, WINDOWS_VARIANTS, path_of
from winhost.model.reason import HOST as THE_HOST
from winhost.model.reason import (
    PLAN,
    Assessment,
    CapabilityVerdict,
    Finding,
    PathVerdict,
    Severity,
    SubjectVerdict,
    Verdict,
)
from winhost.paths.playbook import expand_names, shipped_playbook
from winhost.paths.vocabulary import VOCABULARIES
from winhost.resources.host import Gpu, HostFacts, Selection
from winhost.resources.registry import WINDOWS
from winhost.resources.windows.read_only import Vm
from winhost.resources.windows.vms import assigned_vm

if TYPE_CHECKING:
    from winhost.paths.wsl2 import Wsl2Settings


T = TypeVar("T")
Judged: TypeAlias = tuple[tuple[Finding, ...], tuple[Gpu, ...], tuple[Instance[Vm], ...]]


def _judge_capabilities(target: Target) -> tuple[CapabilityVerdict, ...]:
    from winhost.compat import capabilities  # most plans do not need it

    return capabilities.offers(target)


def assess(
    facts: HostFacts, selection: Selection | None = None, stated: Mapping[str, Version] | None = None
) -> Assessment:
    """Evaluate every path and its capabilities. With a selection, DDA is evaluated for exactly its GPUs and VM.

    stated: versions that facts do not contain, by name (vllm, cuda, toolkit, wsl, kernel, driver).
    """
    facts = with_stated_versions(facts, stated)
    names = PATHS_OF_LINUX if facts.is_linux else PATHS
    paths = tuple([_judge_path(facts, path, selection if path == "dda" else None) for path in names])
    known = facts.is_linux or _knows_windows(facts)
    best = _best({path.path: path.verdict for path in paths}) if known else None
    return Assessment(facts.host, facts.origin, paths, best)


def _knows_windows(facts: HostFacts) -> bool:
    """Tell whether the Windows edition is known. Nearly every path depends on it, so without it nothing is
    recommended.
    """
    try:
        return bool(facts.os.family)
    except MissingFact:
        return False


def find_alternative(facts: HostFacts, but: str) -> PathVerdict | None:
    """Return the variant that assess would recommend if there were no `but`; capabilities are not evaluated."""
    variants = [judge(facts, each) for each in (PATHS_OF_LINUX if facts.is_linux else WINDOWS_VARIANTS) if each != but]
    possible = [judged for judged in variants if judged.verdict is not Verdict.UNSUPPORTED]
    return min(possible, key=lambda judged: (judged.verdict.rank, judged.path in OPT_IN_VARIANTS), default=None)


def _best(verdicts: Mapping[str, Verdict]) -> str | None:
    possible = [path for path, verdict in verdicts.items() if verdict is not Verdict.UNSUPPORTED]
    return min(possible, key=lambda path: verdicts[path].rank, default=None)


def _judge_path(facts: HostFacts, path: str, selection: Selection | None) -> PathVerdict:
    """Judge the variants of a path and their capabilities. The best variant decides the verdict of the path."""
    variants = [f"{path}/{variant}" for variant in VARIANTS.get(path, ())] or [path]
    judged = [_with_capabilities(judge(facts, variant, selection), Target(facts, variant)) for variant in variants]
    best = min(judged, key=lambda verdict: verdict.verdict.rank)
    return replace(best, path=path, variants=tuple(judged) if len(judged) > 1 else ())


def _with_capabilities(judged: PathVerdict, target: Target) -> PathVerdict:
    try:
        memory = available_memory(target)
    except MissingFact:
        memory = None
    return replace(judged, capabilities=LazySequence(lambda: _judge_capabilities(target)), available_memory=memory)


def judge(facts: HostFacts, variant: str, selection: Selection | None = None) -> PathVerdict:
    """Judge one path or variant; with a selection, exactly its GPUs and VM."""
    if selection is not None:
        return _judge(facts, variant, selection)
    return facts.cached(("judged", variant), _judge, facts, variant, None)


def _judge(facts: HostFacts, variant: str, selection: Selection | None) -> PathVerdict:
    host, gpus, vms = (
        _judge_unselected(facts, variant) if selection is None else _judge_selected(facts, variant, selection)
    )
    judged_gpus = tuple(_judge_gpu(facts, variant, gpu, alone=selection is None) for gpu in gpus)
    judged_vms = tuple(_judge_vm(facts, variant, vm) for vm in vms)
    counted = (*_counting_subjects(judged_gpus, selection), *_counting_subjects(judged_vms, selection))
    grounds = catalogue.topics()[path_of(variant)].grounds_for(variant)
    verdict = Verdict.worst([Verdict.of(host), *(subject.verdict for subject in counted)])
    if verdict is Verdict.SUPPORTED and not grounds:
        host = (*host, finding(f"{path_of(variant)}.unshown", f"on {variant}", Severity.UNVERIFIED, THE_HOST))
        verdict = Verdict.UNVERIFIED
    if selection is None:
        host = (*host, *default_plan_notes(facts, variant, judged_gpus))
    because = verdict.because([*host, *(reason for subject in counted for reason in subject.reasons)])
    return PathVerdict(variant, verdict, because, host, judged_gpus, judged_vms, grounds)


def _judge_unselected(facts: HostFacts, path: str) -> Judged:
    """Return the findings of the host, every GPU except displays of management controllers, and every VM."""
    gpus, missing_gpus = _read_subjects(path, GPU, lambda: tuple(filter(is_compute_gpu, facts.gpus)))
    vms, missing_vms = _read_subjects(path, VM, lambda: facts.vms)
    host = find_reasons(path, HOST, THE_HOST, facts)
    return tuple(dict.fromkeys((*host, *missing_gpus, *missing_vms))), gpus, vms


def _judge_selected(facts: HostFacts, path: str, selection: Selection) -> Judged:
    """Return the findings of the host and of the selection as a whole, with the selected GPUs and VM."""
    together = find_reasons(path, ASSIGNMENT, _name_selection(selection), facts, selection)
    vms = (selection.vm,) if selection.vm else ()
    return (*find_reasons(path, HOST, THE_HOST, facts), *together), selection.gpus, vms


def _read_subjects(
    path: str, each: SubjectKind, read: Callable[[], tuple[T, ...]]
) -> tuple[tuple[T, ...], tuple[Finding, ...]]:
    """Return the subjects, or the reason why they could not be read; neither where the path has no rules about them."""
    try:
        return (read() if has_rules(path, each) else ()), ()
    except MissingFact as missing:
        return (), (gap(path_of(path), Severity.UNVERIFIED, missing, THE_HOST),)


def _counting_subjects(subjects: Sequence[SubjectVerdict], selection: Selection | None) -> Sequence[SubjectVerdict]:
    """Return the subjects that decide the verdict: all selected ones; without a selection those with the best
    verdict.
    """
    if selection is not None:
        return subjects
    best = Verdict.best(subject.verdict for subject in subjects)
    return [subject for subject in subjects if subject.verdict is best]


def _judge_gpu(facts: HostFacts, path: str, gpu: Gpu, *, alone: bool) -> SubjectVerdict:
    name = _name(lambda: gpu_label(gpu), gpu.location)
    found = find_reasons(path, GPU, name, facts, gpu)
    if alone:
        found += find_reasons(path, ASSIGNMENT, name, facts, Selection((gpu,)))
    return _subject("gpu", gpu.location, name, found)


def _judge_vm(facts: HostFacts, path: str, vm: Instance[Vm]) -> SubjectVerdict:
    name = _name(lambda: vm.state.name, vm.key["vm"])
    return _subject("vm", vm.key["vm"], name, find_reasons(path, VM, name, facts, vm))


def _subject(kind: Literal["gpu", "vm"], key: str, name: str, found: tuple[Finding, ...]) -> SubjectVerdict:
    once = tuple(dict.fromkeys(found))
    return SubjectVerdict(kind, key, name, Verdict.of(once), once)


def _name(read: Callable[[], str], key: str) -> str:
    try:
        return read()
    except MissingFact:
        return key


def _name_selection(selection: Selection) -> str:
    gpus = f"{len(selection.gpus)} GPU(s)"
    if selection.vm is None:
        return gpus
    vm = selection.vm
    return f"{gpus} for {_name(lambda: vm.state.name, vm.key['vm'])}"


_DOUBTFUL = Severity.UNVERIFIED.rank

# --- The default selection of a plan, and why such a plan would be refused
# ---------------------------------------------


def default_gpus(facts: HostFacts, judged: Sequence[SubjectVerdict], vm: str | None) -> tuple[Gpu, ...]:
    """Return the GPUs that a VM gets when the user names none: not those that drive a display of the host or belong to
    another VM, and unverified ones only if there are no others. If all of them belong to another VM, return them
    anyway.
    """
    possible = [each for each in judged if each.verdict is not Verdict.UNSUPPORTED and not _disables_display(each)]
    verified = [each.key for each in possible if each.verdict is not Verdict.UNVERIFIED]
    chosen = verified or [each.key for each in possible]
    gpus = tuple(gpu for gpu in facts.gpus if gpu.location in chosen)
    return tuple(gpu for gpu in gpus if _owner(facts, gpu) in (None, vm)) or gpus


def reasons_against_sharing(facts: HostFacts, gpus: Sequence[Gpu]) -> tuple[Finding, ...]:
    """Return the reasons against assigning these GPUs to one VM, except those that hold for the first GPU alone."""
    alone = {reason.code for reason in find_reasons("dda", ASSIGNMENT, PLAN, facts, Selection(tuple(gpus[:1])))}
    together = find_reasons("dda", ASSIGNMENT, PLAN, facts, Selection(tuple(gpus))) if len(gpus) > 1 else ()
    return tuple(each for each in together if each.severity.rank >= _DOUBTFUL and each.code not in alone)


def choose_compatible_gpus(facts: HostFacts, gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """Choose GPUs for one VM, in order, and omit each that cannot share a VM with those before it."""
    chosen: tuple[Gpu, ...] = ()
    for gpu in gpus:
        chosen = (*chosen, gpu) if not reasons_against_sharing(facts, (*chosen, gpu)) else chosen
    return chosen


def _disables_display(gpu: SubjectVerdict) -> bool:
    return any("headless" in reason.risks for reason in gpu.reasons)


def _owner(facts: HostFacts, gpu: Gpu) -> str | None:
    try:
        return assigned_vm(facts.assignment(gpu.pci))
    except MissingFact:
        return None


def default_plan_notes(facts: HostFacts, variant: str, judged: Sequence[SubjectVerdict]) -> tuple[Finding, ...]:
    """Return notes on what prevents a default plan of a variant, besides the reasons of the host, each GPU and
    each VM.
    """
    path = path_of(variant)
    if path not in VOCABULARIES or path in PATHS_OF_LINUX:
        return ()
    if unread := facts.cached(("unread", path), _unread_resources, facts, path):
        observed = f"a plan needs {', '.join(unread)}, which could not be read"
        return (finding(f"{path}.unknown", observed, Severity.NOTE, PLAN),)
    try:
        return (
            tuple(_dda_notes(facts, judged)) if path == "dda" else facts.cached("refusals of wsl2", _wsl2_notes, facts)
        )
    except MissingFact as missing:
        return (gap(path, Severity.NOTE, missing, PLAN),)


def _unread_resources(facts: HostFacts, path: str) -> tuple[str, ...]:
    """Return the resources of the shipped playbook that could not be read at all."""
    return tuple([resource for resource in _playbook_resources(path) if isinstance(facts.answer(resource), Unknown)])


@once
def _playbook_resources(path: str) -> tuple[str, ...]:
    later = VOCABULARIES[path].on_request
    entries = shipped_playbook(path)["resources"]
    resources = dict.fromkeys(entry["resource"] for entry in entries if entry.get("for_each") not in later)
    return tuple(resource for resource in resources if resource in WINDOWS)


def _dda_notes(facts: HostFacts, judged: Sequence[SubjectVerdict]) -> Iterator[Finding]:
    if not facts.vms:
        yield finding("dda.no-vm", "the host has no VM", Severity.NOTE, PLAN)
    gpus = default_gpus(facts, judged, None)
    if len(gpus) < 2:
        return
    for reason in reasons_against_sharing(facts, gpus):
        observed = f"not all {len(gpus)} GPUs in one VM: {reason.observed}"
        yield replace(reason, subject=THE_HOST, severity=Severity.NOTE, observed=observed)


def _wsl2_notes(facts: HostFacts) -> tuple[Finding, ...]:
    from winhost.paths.wsl2_refusals import refusals  # only this path needs it

    refused = refusals(facts, _wsl2_settings(), ())
    return tuple(finding(each.code, f"{each.sentence} {each.remedy}", Severity.NOTE, PLAN) for each in refused)


@once
def _wsl2_settings() -> "Wsl2Settings":
    from winhost.paths.wsl2 import Wsl2Settings  # as above

    return Wsl2Settings.model_validate(expand_names("wsl2", shipped_playbook("wsl2").get("settings", {})))
