"""Choose the serving profile of each model of a workload on a host, and fill it in."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from winhost.compat.assess import assess
from winhost.compat.capabilities.amounts import DISK_RATE
from winhost.compat.needs import Fit, fit_of, fit_paths, needs_of
from winhost.compat.swap import START_SECONDS, slowest
from winhost.compat.target import Target, available_memory, is_in_guest
from winhost.core.answers import MissingFact
from winhost.core.dataclass import dataclass
from winhost.model.errors import RefusedError, visible
from winhost.model.path import PATHS_OF_LINUX, VARIANTS, AvailableMemory, path_of, variant_name
from winhost.model.reason import Assessment, Finding, PathVerdict, Severity, Verdict
from winhost.model.units import Bytes
from winhost.model.workload import Model, Needs, Workload
from winhost.paths.wsl2 import UNBRIDGED
from winhost.resources.host import HostFacts
from winhost.resources.windows.distros import WslConfig, WslVm
from winhost.serving.computed import COMPUTED, shared_memory
from winhost.serving.engine_names import socket
from winhost.serving.engine_spec import EngineSpec
from winhost.serving.levels import Levels, TurnState, fit_together, levels_of, restart_of, state_between_turns
from winhost.serving.profile import base_of, profile, profile_without_sleep
from winhost.serving.profile_lines import ProfileLine, container_of, profile_lines
from winhost.serving.when import Case, causes_of
from winhost.sizing.budget import Budget, budget, with_fitting_standbys
from winhost.sizing.engines import MemoryPart, weights
from winhost.sizing.memories import planned_memory
from winhost.wslconfig.keys import read_values

READ_SPEED = round(DISK_RATE * 1000)  # MB/s
EVIDENCE = ("copies-measured", "vllm-sleep-measured", "vllm-start-measured")


@dataclass(frozen=True)
class StopCost:
    """The cost of stopping a model instead of putting it to sleep. Times are in seconds, and None where the size of its
    weights is not known.

    waking: fastest and slowest time to wake, as measured; reading: time to read all weights from files at read_speed
    MB/s; starting: fastest and slowest time of a whole start, as measured; least: the shortest possible start; within:
    the limit of the workload (`swap_within`); kept: the start is within that limit, None without a limit.
    """

    weights: Bytes | None
    waking: tuple[float, float] | None
    read_speed: int
    reading: float | None
    starting: tuple[float, float]
    least: float
    within: int | None
    kept: bool | None
    evidence: tuple[str, ...] = EVIDENCE


def stop_cost(model: Model, workload: Workload, budget: Budget, read_speed: int) -> StopCost:
    """Compute the cost of stopping a model instead of putting it to sleep. read_speed: of the disk that the weights are
    on, MB/s.
    """
    sleeper = replace(model, chosen_level=model.level or 1)
    share, swap = weights(model), slowest(replace(workload, models=(sleeper,)), budget)
    size = share.bytes * model.gpus if isinstance(share, MemoryPart) else None
    reading = None if size is None else size / (read_speed * 10**6)
    least, within = max(reading or 0, START_SECONDS[0]), workload.availability.swap_within
    return StopCost(
        weights=size,
        waking=(swap.best, swap.worst) if swap else None,
        read_speed=read_speed,
        reading=reading,
        starting=START_SECONDS,
        least=least,
        within=within,
        kept=None if within is None else least <= within,
    )


WSL = "wsl2"
PATHS_WITH_PROFILES = ("wsl2", "dda", "bare-metal", "dual-boot", *PATHS_OF_LINUX)


@dataclass(frozen=True)
class Served:
    """One engine with its profile.

    because: the reasons against sleep; empty where there are none, or where the user named the profile; gpus: numbers
    of its GPUs; left_out: lines whose condition is not known and that may do harm, and lines that this version of vLLM
    does not know; lost: the cost of not sleeping; level: of its sleep, 0 where it is stopped instead; awake: bytes of
    each GPU that it takes in its turn, where it takes turns; asleep: its state between turns; stands_by: the model that
    it is a standby of, or empty; anew: how it starts after a failure, where it is its own standby.
    """

    model: str
    id: str
    profile: str
    because: tuple[Finding, ...]
    socket: str
    gpus: tuple[int, ...]
    shared_memory: Bytes
    lines: tuple[ProfileLine, ...]
    left_out: tuple[ProfileLine, ...]
    lost: StopCost | None
    level: int
    awake: Bytes | None
    asleep: TurnState | None
    stands_by: str
    anew: TurnState | None

    @property
    def served_name(self) -> str:
        """The name that the engine reports for its model."""
        return self.stands_by or self.model

    @property
    def doubts(self) -> tuple[str, ...]:
        """A sentence for each line about which something is not known."""
        lines = (line for line in (*self.lines, *self.left_out) if line.doubt)
        return tuple(f"{self.model}: {line.text} is unverified: {line.doubt}" for line in lines)

    @property
    def spec(self) -> EngineSpec:
        engine = [line for line in self.lines if line.kind == "engine" and line.name != "--uds"]
        return EngineSpec(
            served_name=self.served_name,
            socket=self.socket,
            options=tuple(argument for line in engine for argument in line.arguments),
            environment={line.name: str(line.value) for line in self.lines if line.kind == "env"},
            container=container_of(self.lines),
        )


@dataclass(frozen=True)
class Serving:
    """All models of a workload on one variant.

    vllm: its version, if stated; chosen: why this variant; together: the models that take turns would all fit awake.
    """

    host: str
    origin: str
    variant: str
    chosen: str
    verdict: Verdict
    vllm: str | None
    models: tuple[Served, ...]
    together: bool = False


def serving(
    facts: HostFacts,
    workload: Workload,
    named: str | None = None,
    read_speed: int = READ_SPEED,
    path: str | None = None,
) -> Serving:
    """Choose the profile of each model: the named one, else the first safe one of the path.

    read_speed: in MB/s. path: one with profiles; by default that of the named profile, else WSL 2, or DDA where WSL 2
    cannot serve the workload. Raises RefusedError (NoProfile, UnsafeSleep, GpuShared), MissingFact.
    """
    judged = assess(facts, stated=workload.versions)
    fixed_path = path or (PATHS_OF_LINUX[0] if facts.is_linux else base_of(named) if named else None)
    try:
        return _serving(judged, facts, workload, named, read_speed, fixed_path or WSL, requested=bool(path or named))
    except RefusedError as refused:
        if fixed_path or refused.code != "NoProfile":
            raise
        dda = [fit for fit in fit_paths(judged, needs_of(workload), workload) if path_of(fit.variant) == "dda"]
        if all(fit.verdict is Verdict.UNSUPPORTED for fit in dda):
            raise
    return _serving(judged, facts, workload, named, read_speed, "dda", requested=False)


def _serving(
    judged: Assessment,
    facts: HostFacts,
    workload: Workload,
    named: str | None,
    read_speed: int,
    path: str,
    *,
    requested: bool,
) -> Serving:
    """Choose the profiles for one path. requested: the user chose this path."""
    target = Target(facts, f"{path}/{VARIANTS[path][0]}" if path in VARIANTS else path, workload.versions)
    base = base_profile(target)
    if named is not None and base_of(named) != base:
        raise RefusedError(
            "OtherProfile",
            what=f"the profile {named} is not for {visible(facts.host)}",
            meaning=f"This Linux takes {base} or {profile_without_sleep(base)}.",
            hint=f"Use one of these, or leave --profile out: --profile {base}",
            host=facts.host,
        )
    default_memory = available_memory(target)
    granted = planned_memory(default_memory, workload)
    workload = with_fitting_standbys(workload, granted)
    wsl_ram = _configured_wsl_ram(facts, default_memory.ram) if path == WSL else default_memory.ram
    levels = Levels(workload) if named else levels_of(target, workload, granted, profile_without_sleep(base))
    workload = levels.workload
    choices = [
        _choose_profile(case, base, named, levels.stopped) for case in _cases(target, workload, granted, wsl_ram)
    ]
    pairs = zip(workload.models, choices, strict=True)
    # A model that is stopped instead of put to sleep takes turns as before and leaves nothing in memory.
    models = (replace(model, chosen_level=0) if _is_sleepless(choice) else model for model, choice in pairs)
    awake = replace(workload, models=tuple(models))
    if path == WSL:
        running, verdicts = _running_modes(facts), {each.path: each.verdict for each in judged.path(WSL).every_variant}
        # The variant that a plan uses by default.
        default = min((f"{WSL}/{mode}" for mode in UNBRIDGED), key=lambda variant: verdicts[variant].rank)
        modes = running or frozenset(VARIANTS[WSL])
        offered = [each for each in judged.path(WSL).every_variant if variant_name(each.path) in modes]
        variant, verdict = _choose_variant(judged, workload, awake, granted, offered, default)
        why = _why_variant(variant, default, running)
    else:
        variant, verdict = _choose_variant(judged, workload, awake, granted, judged.path(path).every_variant, path)
        why = "what was asked for" if requested else "what can carry this workload here"
    cases = _cases(target.for_variant(variant), awake, granted, wsl_ram)
    served = tuple(
        _served(
            case,
            choice,
            stop_cost(model, awake, case.budget, read_speed) if _is_sleepless(choice) and model.sleeps else None,
            state_between_turns(case, granted),
        )
        for case, choice, model in zip(cases, choices, workload.models, strict=True)
    )
    vllm, document = workload.versions.get("vllm"), facts.document
    together = fit_together(workload, granted)
    return Serving(document.host, document.origin, variant, why, verdict, str(vllm) if vllm else None, served, together)


def base_profile(target: Target) -> str:
    """Return the profile of a target, one of BASES. Raises MissingFact."""
    if target.path in (WSL, "dda"):
        return target.path
    return "dda" if target.path in PATHS_OF_LINUX and is_in_guest(target) else "bare-metal"


# --- Memory ----------------------------------------------------------------------------------------------------------


def _configured_wsl_ram(facts: HostFacts, default: Bytes) -> Bytes:
    """Return the memory in .wslconfig, if it was read and sets any; the smallest of several, since any account may
    serve.
    """
    try:
        texts = [config.state.text or "" for config in facts.all(WslConfig)]
    except MissingFact:
        return default
    sizes = [read_values(text).get(("wsl2", "memory")) or default for text in texts]
    return min((size for size in sizes if isinstance(size, int)), default=default)


def _cases(target: Target, workload: Workload, granted: AvailableMemory, wsl_ram: Bytes) -> list[Case]:
    memory = budget(workload, replace(granted, variant=target.variant))
    return [Case(target, workload, model, memory, granted.gpus, wsl_ram) for model in workload.models]


# --- Choosing --------------------------------------------------------------------------------------------------------

Choice: TypeAlias = tuple[str, tuple[Finding, ...]]
"""A profile, and the reasons against sleep."""


def _choose_profile(case: Case, base: str, named: str | None, stopped: Mapping[str, tuple[Finding, ...]]) -> Choice:
    """Choose the profile of one model. stopped: models that are stopped instead of put to sleep, and why. Raises
    RefusedError: UnsafeSleep.
    """
    causes = stopped.get(case.model.name) or tuple(causes_of(case, profile_without_sleep(base)))
    known = tuple(cause for cause in causes if cause.lacks is None)
    if named == base and known:
        raise RefusedError(
            "UnsafeSleep",
            what=f"{visible(case.model.name)} cannot sleep safely, so the profile {base} is not for it",
            meaning="\n".join(f"{cause.sentence} ({cause.observed})" for cause in known),
            hint=f"Use --profile {profile_without_sleep(base)}, or leave --profile out.",
        )
    return named or (profile_without_sleep(base) if causes else base), causes


def _is_sleepless(choice: Choice) -> bool:
    return choice[0] != base_of(choice[0])


def _running_modes(facts: HostFacts) -> frozenset[str]:
    """Return the networking modes in which WSL runs now."""
    try:
        modes = {vm.state.mode for vm in facts.all(WslVm) if vm.state.running and vm.state.mode}
    except MissingFact:
        return frozenset()
    return frozenset(modes & set(VARIANTS[WSL]))


def _why_variant(variant: str, default: str, running: frozenset[str]) -> str:
    if running:
        return "the networking mode that WSL runs in now"
    if variant == default:
        return "the networking mode that winhost plan takes by itself, as WSL is here now; another: --set network=…"
    switch = " --set bridge.switch=NAME" if variant == f"{WSL}/bridged" else ""
    option = f"--set network={variant_name(variant)}{switch}"
    return f"{default} cannot carry this workload here; winhost plan takes this with {option}"


def _choose_variant(
    judged: Assessment,
    workload: Workload,
    awake: Workload,
    granted: AvailableMemory,
    offered: Sequence[PathVerdict],
    default: str,
) -> tuple[str, Verdict]:
    """Choose the default variant of a plan if it can serve, else the best one. Sleep is not required of it, because the
    profile is chosen afterwards, with or without sleep. Raises RefusedError: NoProfile.
    """
    must = tuple(need for need in needs_of(awake).must if not need.startswith("sleep-"))
    variants = [replace(variant, available_memory=replace(granted, variant=variant.path)) for variant in offered]
    fitted = [(variant, fit_of(variant, Needs(must), awake)) for variant in variants]
    variant, fit = min(fitted, key=lambda each: _preference(default, *each))
    if _verdict(variant, fit) is not Verdict.UNSUPPORTED:
        return fit.variant, _verdict(variant, fit)
    reasons = [reason for reason in variant.every_reason if reason.code in variant.because]
    reasons += [reason for lacking in fit.lacking for reason in lacking.reasons]
    why = [
        f"{reason.sentence} [{reason.code}: {reason.observed}]{f' {reason.remedy.do}' if reason.remedy else ''}"
        for reason in reasons
        if reason.severity is Severity.UNSUPPORTED
    ]
    why += [f"It would fit with: {fix.text}." for fix in (fit.short.fixes if fit.short else ())]
    best, path = fit_paths(judged, needs_of(workload), workload)[0], path_of(default)
    possible = best.verdict is not Verdict.UNSUPPORTED and path_of(best.variant) != path
    raise _profile_error(judged.host, path, dict.fromkeys(why), path_of(best.variant) if possible else None)


def _profile_error(host: str, path: str, why: Iterable[str], alternative: str | None) -> RefusedError:
    """Make the error for a host without a profile. alternative: a path that can serve the workload as the host is."""
    hint = f"What would change it: winhost assess --facts FACTS --workload WORKLOAD --path {path} --explain"
    if alternative in PATHS_WITH_PROFILES:
        command = f"winhost serve profile FACTS --workload WORKLOAD --path {alternative}"
        hint += f"\nPossible as it is: {alternative}: {command}"
    elif alternative:
        hint += f"\nPossible as it is: {alternative}, for which there is no profile."
    return RefusedError(
        "NoProfile",
        what=f"{path} on {visible(host)} does not offer what this workload takes",
        meaning="\n".join(why),
        hint=hint,
        host=host,
    )


def _preference(default: str, variant: PathVerdict, fit: Fit) -> tuple[bool, bool, int]:
    """Return a sort key: smaller is better."""
    verdict = _verdict(variant, fit)
    return verdict is Verdict.UNSUPPORTED, variant.path != default, verdict.rank


def _verdict(variant: PathVerdict, fit: Fit) -> Verdict:
    return Verdict.worst([variant.verdict, *(lacking.verdict for lacking in fit.lacking)])


# --- Filling in ------------------------------------------------------------------------------------------------------


def _served(case: Case, choice: Choice, cost: StopCost | None, asleep: TurnState | None) -> Served:
    name, because = choice
    lines, left_out = profile_lines(profile(name), case)
    size, _ = shared_memory(case.model, case.budget)
    gpus, awake = case.budget.placement.gpus.get(case.model.name, ()), None
    if case.model.sleeps or case.model.starts_anew:
        # The share of the smallest of its GPUs, which is a little less than what it takes.
        awake = int(float(str(COMPUTED["gpu.share"](case).value)) * min(case.vram[gpu] for gpu in gpus))
    return Served(
        model=case.model.name,
        id=case.model.id,
        profile=name,
        because=because,
        socket=socket(case.model.name),
        gpus=gpus,
        shared_memory=size,
        lines=lines,
        left_out=left_out,
        lost=cost,
        level=case.model.level,
        awake=awake,
        asleep=asleep,
        stands_by=case.model.stands_by,
        anew=restart_of(case.model),
    )
