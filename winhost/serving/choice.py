"""Selects the serving profile for each model of a workload on a host, and fills it in. Pure."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from winhost.compat.assess import assess
from winhost.compat.available_memory import available_memory
from winhost.compat.needs import Fit, fit_of, fits, needs_of
from winhost.compat.target import Target
from winhost.core.answers import MissingFact
from winhost.knowledge import catalogue
from winhost.model.errors import RefusedError, visible
from winhost.model.path import VARIANTS, path_of, variant_name
from winhost.model.reason import Assessment, PathVerdict, Reason, Severity, Verdict
from winhost.model.units import Bytes
from winhost.model.workload import AvailableMemory, Model, Needs, Workload
from winhost.paths.wsl2_network import UNBRIDGED
from winhost.resources.host import HostFacts
from winhost.resources.windows.wsl_config.resource import WslConfig
from winhost.resources.windows.wsl_vm.resource import WslVm
from winhost.serving.computed import COMPUTED, shared_memory
from winhost.serving.lost import READ_SPEED, Lost, lost
from winhost.serving.profile import NO_SLEEP, PLAIN, Kind, ProfileRow, profile
from winhost.serving.when import Case, evaluate, format_when
from winhost.sizing.budget import budget
from winhost.sizing.host_memory import WINDOWS, WINDOWS_USABLE
from winhost.wslconfig import effective

PATH = "wsl2"
FIRST_PORT = 8000
REFERENCE = re.compile(r"\$\{(.+)\}")


@dataclass(frozen=True)
class ProfileLine:
    """A setting with the reason for it. when: the versions and cases it applies to; how: how its value is computed.

    unverified: what is not known about whether, or how, it is needed.
    """

    kind: Kind
    name: str
    value: str | None
    why: str
    when: str
    evidence: tuple[str, ...]
    how: str | None = None
    unverified: str | None = None


@dataclass(frozen=True)
class Because:
    """Why a profile was chosen. unverified: what is missing to be sure of it."""

    why: str
    when: str
    evidence: tuple[str, ...]
    unverified: str | None = None


@dataclass(frozen=True)
class Served:
    """One model. because: empty where nothing rules out sleep, or the profile was named by the user and nothing ruled
    it out;

    left_out: lines that cannot be decided and would do harm where not needed; lost: the cost of not sleeping.
    """

    model: str
    id: str
    profile: str
    because: tuple[Because, ...]
    port: int
    shared_memory: Bytes
    lines: tuple[ProfileLine, ...]
    left_out: tuple[ProfileLine, ...]
    lost: Lost | None


@dataclass(frozen=True)
class Serving:
    """All models of a workload on one variant; vllm: its version, if stated; chosen: why this variant."""

    host: str
    origin: str
    variant: str
    chosen: str
    verdict: Verdict
    vllm: str | None
    models: tuple[Served, ...]


def serving(facts: HostFacts, workload: Workload, named: str | None = None, read_speed: int = READ_SPEED) -> Serving:
    """The profile of each model: the named one, else the first safe one of NAMES. read_speed in MB/s.

    Raises RefusedError (NoProfile, UnsafeSleep, CardShared), MissingFact.
    """
    judged = assess(facts, stated=workload.versions)
    target = Target(facts, f"{PATH}/{VARIANTS[PATH][0]}", workload.versions)
    by_default = available_memory(target)
    granted, set_now = _granted(by_default, workload), _set_now(facts, by_default.ram)
    choices = [_choice(case, named) for case in _cases(target, workload, granted, set_now)]
    awake = replace(workload, models=tuple(map(_as_served, workload.models, choices)))
    running, own = _running(facts), _own(judged)
    variant, verdict = _fit(judged, workload, awake, granted, running or frozenset(VARIANTS[PATH]), own)
    cases = _cases(target.on(variant), awake, granted, set_now)
    models = tuple(
        _served(case, choice, FIRST_PORT + position, _lost(replace(case, model=model), choice, read_speed))
        for position, (case, choice, model) in enumerate(zip(cases, choices, workload.models, strict=True))
    )
    vllm = workload.versions.get("vllm")
    document = facts.document
    return Serving(
        document.host,
        document.origin,
        variant,
        _chosen(variant, own, running),
        verdict,
        str(vllm) if vllm else None,
        models,
    )


# --- Memory ----------------------------------------------------------------------------------------------------------


def _granted(by_default: AvailableMemory, workload: Workload) -> AvailableMemory:
    """The most memory that .wslconfig can give WSL; nothing else limits /dev/shm of a container."""
    windows = WINDOWS_USABLE if workload.keep_windows_usable else WINDOWS
    ram = max(by_default.ram, by_default.host_ram - windows)
    return replace(by_default, ram=ram, shm=ram)


def _set_now(facts: HostFacts, by_default: Bytes) -> Bytes:
    """The memory in .wslconfig, if it was read and sets any; the smallest of several, since any account may serve."""
    try:
        texts = [config.state.text or "" for config in facts.all(WslConfig)]
    except MissingFact:
        return by_default
    stated = [effective(text).get(("wsl2", "memory")) or by_default for text in texts]
    return min((size for size in stated if isinstance(size, int)), default=by_default)


def _cases(target: Target, workload: Workload, granted: AvailableMemory, set_now: Bytes) -> list[Case]:
    taken = budget(workload, replace(granted, variant=target.variant))
    return [Case(target, workload, model, taken, granted.cards, set_now) for model in workload.models]


# --- Choosing --------------------------------------------------------------------------------------------------------

Choice: TypeAlias = tuple[str, tuple[Because, ...]]


def _choice(case: Case, named: str | None) -> Choice:
    """Raises RefusedError: UnsafeSleep."""
    causes = tuple(_causes(case))
    known = tuple(cause for cause in causes if cause.unverified is None)
    if named == PLAIN and known:
        raise RefusedError(
            "UnsafeSleep",
            what=f"{visible(case.model.name)} cannot sleep safely, so the profile {PLAIN} is not for it",
            meaning="\n".join(f"{cause.why} ({cause.when})" for cause in known),
            hint=f"Use --profile {NO_SLEEP}, or leave --profile out.",
        )
    return named or (NO_SLEEP if causes else PLAIN), causes


def _causes(case: Case) -> Iterator[Because]:
    for cause in profile(NO_SLEEP).chosen:
        found = evaluate(cause.when, case)
        if found.holds is not False:
            yield Because(cause.why, format_when(cause.when), cause.evidence, found.doubt)


def _as_served(model: Model, choice: Choice) -> Model:
    """A model that is stopped instead of put to sleep takes turns as before and leaves nothing in memory."""
    return replace(model, sleep_level=0) if choice[0] == NO_SLEEP else model


def _running(facts: HostFacts) -> frozenset[str]:
    """Network modes in which WSL runs now."""
    try:
        modes = {vm.state.mode for vm in facts.all(WslVm) if vm.state.running and vm.state.mode}
    except MissingFact:
        return frozenset()
    return frozenset(modes & set(VARIANTS[PATH]))


def _own(judged: Assessment) -> str:
    """The variant that a plan uses by default."""
    verdicts = {variant.path: variant.verdict for variant in judged.path(PATH).every_variant}
    return min((f"{PATH}/{mode}" for mode in UNBRIDGED), key=lambda variant: verdicts[variant].rank)


def _chosen(variant: str, own: str, running: frozenset[str]) -> str:
    if running:
        return "the network mode that WSL runs in now"
    if variant == own:
        return "the network mode that winhost plan takes by itself, as WSL is here now; another: --set network=…"
    switch = " --set bridge.switch=NAME" if variant == f"{PATH}/bridged" else ""
    chosen = f"--set network={variant_name(variant)}{switch}"
    return f"{own} cannot carry this workload here; winhost plan takes this with {chosen}"


def _fit(
    judged: Assessment, workload: Workload, awake: Workload, granted: AvailableMemory, modes: frozenset[str], own: str
) -> tuple[str, Verdict]:
    """The default variant of a plan if it can serve, else the best one. Sleep is not required here, because profiles
    are chosen by it. Raises RefusedError: NoProfile.
    """
    must = tuple(need for need in needs_of(awake).must if not need.startswith("sleep-"))
    offered = [variant for variant in judged.path(PATH).every_variant if variant_name(variant.path) in modes]
    variants = [replace(variant, available_memory=replace(granted, variant=variant.path)) for variant in offered]
    found = [(variant, fit_of(variant, Needs(must), awake)) for variant in variants]
    variant, fit = min(found, key=lambda each: _preference(own, *each))
    if _verdict(variant, fit) is not Verdict.UNSUPPORTED:
        return fit.variant, _verdict(variant, fit)
    reasons = [reason for reason in variant.every_reason if reason.code in variant.because]
    reasons += [reason for lacking in fit.lacking for reason in lacking.reasons]
    why = [_format_reason(reason) for reason in reasons if reason.severity is Severity.UNSUPPORTED]
    why += [f"It would fit with: {fix.text}." for fix in (fit.short.fixes if fit.short else ())]
    best = fits(judged, needs_of(workload), workload)[0]
    possible = best.verdict is not Verdict.UNSUPPORTED and path_of(best.variant) != PATH
    raise _no_profile(judged.host, dict.fromkeys(why), path_of(best.variant) if possible else None)


def _no_profile(host: str, why: Iterable[str], instead: str | None) -> RefusedError:
    """instead: a path that can serve the workload as the host is."""
    hint = "What would change it: winhost assess --facts FACTS --workload WORKLOAD --path wsl2 --explain"
    other = (
        f"\nPossible as it is: {instead}. There is no profile for it yet, so vLLM's options are up to you; "
        "winhost assess --facts FACTS --workload WORKLOAD shows the memory that it has to share out."
    )
    return RefusedError(
        "NoProfile",
        what=f"winhost has serving profiles for WSL 2 only, and WSL 2 on {visible(host)} does not offer what this "
        "workload takes",
        meaning="\n".join(why),
        hint=hint + (other if instead else ""),
        host=host,
    )


def _preference(own: str, variant: PathVerdict, fit: Fit) -> tuple[bool, bool, int]:
    """Smaller is better."""
    verdict = _verdict(variant, fit)
    return verdict is Verdict.UNSUPPORTED, variant.path != own, verdict.rank


def _verdict(variant: PathVerdict, fit: Fit) -> Verdict:
    return Verdict.worst([variant.verdict, *(lacking.verdict for lacking in fit.lacking)])


def _format_reason(reason: Reason) -> str:
    remedy = f" {catalogue.remedies()[reason.remedy].do}" if reason.remedy else ""
    return f"{reason.sentence} [{reason.code}: {reason.observed}]{remedy}"


# --- Filling in ------------------------------------------------------------------------------------------------------


def _served(case: Case, choice: Choice, port: int, lost: Lost | None) -> Served:
    name, because = choice
    found = [(row, line) for row in profile(name).rows if (line := _line(row, case))]
    size, _ = shared_memory(case.model, case.budget)
    return Served(
        model=case.model.name,
        id=case.model.id,
        profile=name,
        because=because,
        port=port,
        shared_memory=size,
        lines=tuple(line for row, line in found if not _undecided(row, case)),
        left_out=tuple(line for row, line in found if _undecided(row, case)),
        lost=lost,
    )


def _line(row: ProfileRow, case: Case) -> ProfileLine | None:
    """None where the row is not for this case."""
    found = evaluate(row.when, case)
    if found.holds is False:
        return None
    value, how, doubt = row.value, None, found.doubt
    if value and (reference := REFERENCE.fullmatch(value)):
        computed = COMPUTED[reference[1]](case)
        value, how, doubt = computed.text, computed.how, "; ".join(filter(None, (doubt, computed.doubt))) or None
    return ProfileLine(row.kind, row.name, value, row.why, format_when(row.when), row.evidence, how, doubt)


def _undecided(row: ProfileRow, case: Case) -> bool:
    return not evaluate(row.when, case).unknown.keys().isdisjoint(row.must_know)


def _lost(case: Case, choice: Choice, read_speed: int) -> Lost | None:
    if choice[0] != NO_SLEEP or not case.model.sleeps:
        return None
    return lost(case.model, case.workload, case.budget, read_speed)
