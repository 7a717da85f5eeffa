"""Evaluates each path on a host. Pure: facts in, verdicts with reasons out."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

from packaging.version import Version

from winhost.compat.rule import (
    ASSIGNMENT,
    GPU,
    HOST,
    VM,
    Each,
    asks,
    finding,
    gap,
    reasons,
)
from winhost.compat.stated import as_stated
from winhost.compat.target import Target, available_memory
from winhost.core.answers import MissingFact, Unknown
from winhost.hardware.host_gpus import gpu_label, is_compute_gpu
from winhost.knowledge import catalogue
from winhost.model.facts import Instance
from winhost.model.lazy import LazySequence
from winhost.model.once import once
from winhost.model.path import ALL_VARIANTS, ON_REQUEST, PATHS, PATHS_OF_LINUX, VARIANTS, path_of
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
Wanted: TypeAlias = tuple[tuple[Finding, ...], tuple[Gpu, ...], tuple[Instance[Vm], ...]]


def _offered(target: Target) -> tuple[CapabilityVerdict, ...]:
    from winhost.compat import capabilities  # most plans do without

    return capabilities.offers(target)


def assess(
    facts: HostFacts, selection: Selection | None = None, stated: Mapping[str, Version] | None = None
) -> Assessment:
    """Evaluate every path and its capabilities. With a selection, DDA is evaluated for exactly its GPUs and VM.

    stated: versions that facts do not contain, by name (vllm, cuda, toolkit, wsl, kernel, driver).
    """
    facts = as_stated(facts, stated)
    asked = PATHS_OF_LINUX if facts.is_linux else PATHS
    paths = tuple([_whole(facts, path, selection if path == "dda" else None) for path in asked])
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


def recommended(facts: HostFacts, but: str) -> PathVerdict | None:
    """The variant that assess would recommend without this one, evaluated without capabilities."""
    variants = [judge(facts, each) for each in (PATHS_OF_LINUX if facts.is_linux else ALL_VARIANTS) if each != but]
    possible = [judged for judged in variants if judged.verdict is not Verdict.UNSUPPORTED]
    return min(possible, key=lambda judged: (judged.verdict.rank, judged.path in ON_REQUEST), default=None)


def _best(verdicts: Mapping[str, Verdict]) -> str | None:
    possible = [path for path, verdict in verdicts.items() if verdict is not Verdict.UNSUPPORTED]
    return min(possible, key=lambda path: verdicts[path].rank, default=None)


def _whole(facts: HostFacts, path: str, selection: Selection | None) -> PathVerdict:
    """A path with its variants, the best of which counts, and its capabilities."""
    variants = [f"{path}/{variant}" for variant in VARIANTS.get(path, ())] or [path]
    judged = [_with_offers(judge(facts, variant, selection), Target(facts, variant)) for variant in variants]
    best = min(judged, key=lambda verdict: verdict.verdict.rank)
    return replace(best, path=path, variants=tuple(judged) if len(judged) > 1 else ())


def _with_offers(judged: PathVerdict, target: Target) -> PathVerdict:
    try:
        memory = available_memory(target)
    except MissingFact:
        memory = None
    return replace(judged, capabilities=LazySequence(lambda: _offered(target)), available_memory=memory)


def judge(facts: HostFacts, variant: str, selection: Selection | None = None) -> PathVerdict:
    """Evaluate one path or variant; with a selection, exactly its GPUs and VM."""
    if selection is not None:
        return _judge(facts, variant, selection)
    return facts.cached(("judged", variant), _judge, facts, variant, None)


def _judge(facts: HostFacts, variant: str, selection: Selection | None) -> PathVerdict:
    host, gpus, vms = _open(facts, variant) if selection is None else _chosen(facts, variant, selection)
    judged_gpus = tuple(_gpu(facts, variant, gpu, alone=selection is None) for gpu in gpus)
    judged_vms = tuple(_vm(facts, variant, vm) for vm in vms)
    counted = (*_counted(judged_gpus, selection), *_counted(judged_vms, selection))
    grounds = catalogue.topics()[path_of(variant)].rests_on(variant)
    verdict = Verdict.worst([Verdict.of(host), *(subject.verdict for subject in counted)])
    if verdict is Verdict.SUPPORTED and not grounds:
        host = (*host, finding(f"{path_of(variant)}.unshown", f"on {variant}", Severity.UNVERIFIED, THE_HOST))
        verdict = Verdict.UNVERIFIED
    if selection is None:
        host = (*host, *refused_by_default(facts, variant, judged_gpus))
    because = verdict.because([*host, *(reason for subject in counted for reason in subject.reasons)])
    return PathVerdict(variant, verdict, because, host, judged_gpus, judged_vms, grounds)


def _open(facts: HostFacts, path: str) -> Wanted:
    """Judge every VM, and every GPU but the display of a management controller."""
    gpus, missing_gpus = _readable(path, GPU, lambda: tuple(filter(is_compute_gpu, facts.gpus)))
    vms, missing_vms = _readable(path, VM, lambda: facts.vms)
    host = reasons(path, HOST, THE_HOST, facts)
    return tuple(dict.fromkeys((*host, *missing_gpus, *missing_vms))), gpus, vms


def _chosen(facts: HostFacts, path: str, selection: Selection) -> Wanted:
    """The selected GPUs and VM, with the reasons that apply to them together."""
    together = reasons(path, ASSIGNMENT, _together(selection), facts, selection)
    vms = (selection.vm,) if selection.vm else ()
    return (*reasons(path, HOST, THE_HOST, facts), *together), selection.gpus, vms


def _readable(path: str, each: Each, read: Callable[[], tuple[T, ...]]) -> tuple[tuple[T, ...], tuple[Finding, ...]]:
    """The subjects, or the reason why they could not be read; neither where the path has no rules about them."""
    try:
        return (read() if asks(path, each) else ()), ()
    except MissingFact as missing:
        return (), (gap(path_of(path), Severity.UNVERIFIED, missing, THE_HOST),)


def _counted(subjects: Sequence[SubjectVerdict], selection: Selection | None) -> Sequence[SubjectVerdict]:
    """All selected subjects count; without a selection, only those with the best verdict."""
    if selection is not None:
        return subjects
    best = Verdict.best(subject.verdict for subject in subjects)
    return [subject for subject in subjects if subject.verdict is best]


def _gpu(facts: HostFacts, path: str, gpu: Gpu, *, alone: bool) -> SubjectVerdict:
    name = _name(lambda: gpu_label(gpu), gpu.location)
    found = reasons(path, GPU, name, facts, gpu)
    if alone:
        found += reasons(path, ASSIGNMENT, name, facts, Selection((gpu,)))
    return _subject("gpu", gpu.location, name, found)


def _vm(facts: HostFacts, path: str, vm: Instance[Vm]) -> SubjectVerdict:
    name = _name(lambda: vm.state.name, vm.key["vm"])
    return _subject("vm", vm.key["vm"], name, reasons(path, VM, name, facts, vm))


def _subject(kind: Literal["gpu", "vm"], key: str, name: str, found: tuple[Finding, ...]) -> SubjectVerdict:
    once = tuple(dict.fromkeys(found))
    return SubjectVerdict(kind, key, name, Verdict.of(once), once)


def _name(read: Callable[[], str], key: str) -> str:
    try:
        return read()
    except MissingFact:
        return key


def _together(selection: Selection) -> str:
    gpus = f"{len(selection.gpus)} GPU(s)"
    if selection.vm is None:
        return gpus
    vm = selection.vm
    return f"{gpus} for {_name(lambda: vm.state.name, vm.key['vm'])}"


_DOUBTFUL = Severity.UNVERIFIED.rank

# --- What a plan selects when nothing is named, and why it would be refused: assess says so before plan does ----------


def default_gpus(facts: HostFacts, judged: Sequence[SubjectVerdict], vm: str | None) -> tuple[Gpu, ...]:
    """GPUs that a VM gets when none is named: none that drives a display of the host or that another VM has, and no
    unverified one if there are others. If that leaves none, all of them.
    """
    able = [each for each in judged if each.verdict is not Verdict.UNSUPPORTED and not _blinds(each)]
    sure = [each.key for each in able if each.verdict is not Verdict.UNVERIFIED]
    go = sure or [each.key for each in able]
    gpus = tuple(gpu for gpu in facts.gpus if gpu.location in go)
    return tuple(gpu for gpu in gpus if _owner(facts, gpu) in (None, vm)) or gpus


def spoiling(facts: HostFacts, gpus: Sequence[Gpu]) -> tuple[Finding, ...]:
    """Why these GPUs do not go to one VM together, beyond what keeps the first of them from going alone."""
    alone = {reason.code for reason in reasons("dda", ASSIGNMENT, PLAN, facts, Selection(tuple(gpus[:1])))}
    together = reasons("dda", ASSIGNMENT, PLAN, facts, Selection(tuple(gpus))) if len(gpus) > 1 else ()
    return tuple(each for each in together if each.severity.rank >= _DOUBTFUL and each.code not in alone)


def going_together(facts: HostFacts, gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """Choose GPUs for one VM, in order, leaving out each that would spoil the others; `assess` judges each alone."""
    going: tuple[Gpu, ...] = ()
    for gpu in gpus:
        going = (*going, gpu) if not spoiling(facts, (*going, gpu)) else going
    return going


def _blinds(gpu: SubjectVerdict) -> bool:
    return any("headless" in reason.risks for reason in gpu.reasons)


def _owner(facts: HostFacts, gpu: Gpu) -> str | None:
    try:
        return assigned_vm(facts.assignment(gpu.pci))
    except MissingFact:
        return None


def refused_by_default(facts: HostFacts, variant: str, judged: Sequence[SubjectVerdict]) -> tuple[Finding, ...]:
    """Notes on what prevents a default plan of a variant, beyond the reasons of the host, each GPU and each VM."""
    path = path_of(variant)
    if path not in VOCABULARIES or path in PATHS_OF_LINUX:
        return ()
    if unread := facts.cached(("unread", path), _unread, facts, path):
        lacking = f"a plan needs {', '.join(unread)}, which could not be read"
        return (finding(f"{path}.unknown", lacking, Severity.NOTE, PLAN),)
    try:
        return tuple(_dda(facts, judged)) if path == "dda" else facts.cached("refusals of wsl2", _wsl2, facts)
    except MissingFact as missing:
        return (gap(path, Severity.NOTE, missing, PLAN),)


def _unread(facts: HostFacts, path: str) -> tuple[str, ...]:
    """Resources of the playbook that we ship, of which nothing at all could be read."""
    return tuple([resource for resource in _needed(path) if isinstance(facts.answer(resource), Unknown)])


@once
def _needed(path: str) -> tuple[str, ...]:
    later = VOCABULARIES[path].on_request
    entries = shipped_playbook(path)["resources"]
    resources = dict.fromkeys(entry["resource"] for entry in entries if entry.get("for_each") not in later)
    return tuple(resource for resource in resources if resource in WINDOWS)


def _dda(facts: HostFacts, judged: Sequence[SubjectVerdict]) -> Iterator[Finding]:
    if not facts.vms:
        yield finding("dda.no-vm", "the host has no VM", Severity.NOTE, PLAN)
    gpus = default_gpus(facts, judged, None)
    if len(gpus) < 2:
        return
    for reason in spoiling(facts, gpus):
        observed = f"not all {len(gpus)} GPUs in one VM: {reason.observed}"
        yield replace(reason, subject=THE_HOST, severity=Severity.NOTE, observed=observed)


def _wsl2(facts: HostFacts) -> tuple[Finding, ...]:
    from winhost.paths.wsl2_refusals import refusals  # with what this path decides, which the others do without

    refused = refusals(facts, _wsl2_settings(), ())
    return tuple(finding(each.code, f"{each.sentence} {each.remedy}", Severity.NOTE, PLAN) for each in refused)


@once
def _wsl2_settings() -> "Wsl2Settings":
    from winhost.paths.wsl2 import Wsl2Settings  # as above

    return Wsl2Settings.model_validate(expand_names("wsl2", shipped_playbook("wsl2").get("settings", {})))
