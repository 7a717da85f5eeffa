"""The memory that a workload takes on the GPUs, the part of them that engines can have, and the GPUs of each model."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

from packaging.version import Version

from winhost.core.dataclass import dataclass
from winhost.model.path import AvailableMemory
from winhost.model.units import Bytes, gib
from winhost.model.workload import Model, Video, Workload
from winhost.sizing.engines import CUDA_GRAPHS, NCCL, OUTSIDE, Engine, MemoryPart, Missing
from winhost.sizing.memories import SHARED_WITH_WINDOWS, BudgetLine, Capacity, ends, line_of
from winhost.sizing.placement import Claim, Placement, place_on_gpus

VIDEO = "video streams"


@dataclass(frozen=True)
class _Limit:
    """Percent of a GPU's memory. share: the largest safe share; whole, most: what engines can have inside and outside
    their shares, safely and at best.
    """

    share: int
    whole: int
    most: int
    evidence: tuple[str, ...]


NATIVE = _Limit(95, 97, 100, ("native-gpu-share",))
WSL = _Limit(90, 94, 97, ("wsl-utilization", "native-gpu-share"))
WSL_SEVERAL = _Limit(80, 87, 91, ("wsl-multi-gpu-residency",))  # where one engine spans several GPUs
SHARE_WSL, SHARE_WSL_SEVERAL = WSL.share, WSL_SEVERAL.share
CUDA_SEES = Fraction(98, 100)  # at least, of what nvidia-smi names; vLLM's share is a part of this
GRAPHS_INSIDE = Version("0.20.0")  # from here on runner V1 takes graphs out of the share (profile_cudagraph_memory)
FIRST_V1 = Version("0.8"), Version("0.9")  # vLLM whose engine V1 took more than it counted; V0 beside it did not


def is_first_v1(vllm: Version | None) -> bool:
    return vllm is not None and FIRST_V1[0] <= vllm < FIRST_V1[1]


def limit_of(path: str, models: Iterable[Model]) -> _Limit:
    if path not in SHARED_WITH_WINDOWS:
        return NATIVE
    return WSL_SEVERAL if any(model.engine_gpus > 1 for model in models) else WSL


def gpu_capacity(workload: Workload, available_memory: AvailableMemory, gpu: int) -> Capacity:
    """The bytes of a GPU that engines can have, inside and outside their shares."""
    limit = limit_of(available_memory.path, workload.models)
    outside = OUTSIDE + (NCCL if any(model.engine_gpus > 1 for model in workload.models) else 0)
    vram = available_memory.gpus[gpu]
    whole, share = vram * limit.whole // 100, vram * limit.share // 100 + outside
    how = f"{limit.whole} % of {gib(vram)}"
    if share < whole:
        how = f"a share of {limit.share} % of {gib(vram)}, and {gib(outside)} beside it"
    return Capacity(min(whole, share), how, limit.evidence, most=vram * limit.most // 100)


def share_holds(each: Engine, vram: Bytes, share: Fraction, vllm: Version | None = None) -> bool | None:
    """Tell whether an engine starts with this share of a GPU to itself; None where that depends on what it takes.

    Weights, KV cache and activations have to be inside, and there has to be room for the rest outside. From
    GRAPHS_INSIDE on, graphs may be in both; whether the first engines V1 start where they fit is open.
    """
    seen = vram * CUDA_SEES
    (inside_least, inside), (outside_least, outside) = ends(each.share), ends(each.outside)
    graphs_least, graphs = ends(part for part in each.outside if part.what == CUDA_GRAPHS)
    within = 0 if vllm and vllm < GRAPHS_INSIDE else graphs
    if inside + within <= seen * share and seen * share + outside <= seen:
        return None if is_first_v1(vllm) else True
    return None if inside_least <= vram * share and vram * share + outside_least - graphs_least <= vram else False


def placement_of(workload: Workload, engines: Sequence[Engine], capacities: Sequence[Capacity]) -> Placement:
    """Place the engines by their upper ends, or by their lower ends if those have no room."""
    safe, most = [each.bytes or 0 for each in capacities], [each.most or 0 for each in capacities]
    video = workload.video
    beside = [Claim(VIDEO, 1, video.streams * (video.each or 0))] if video else []
    found = place_on_gpus([*(_claim(each, lambda part: part.bytes) for each in engines), *beside], safe)
    if found.fits:
        return found
    least = place_on_gpus([*(_claim(each, lambda part: part.least) for each in engines), *beside], most)
    if not least.fits:
        return replace(found, proven=found.proven and least.proven)
    return Placement(least.gpus, found.homeless, fits=False, proven=found.proven)


def _claim(each: Engine, size: Callable[[MemoryPart], Bytes]) -> Claim:
    stays, turn = sum(map(size, each.stays)), sum(map(size, each.turn))
    fixed, turn = (stays, turn) if each.model.sleeps else (stays + turn, 0)
    return Claim(each.model.name, each.model.gpus, fixed, turn, each.model.served_name)


def missing_of_video(video: Video | None) -> tuple[Missing, ...]:
    if video is None or video.each is not None:
        return ()
    return (Missing(None, "memory of video streams", "it depends on codec and resolution", ("video.each",)),)


def gpu_lines(workload: Workload, engines: Sequence[Engine], placement: Placement, gpus: int) -> Iterator[BudgetLine]:
    for gpu in range(gpus):
        where = f"gpu{gpu}"
        here = [each for each in engines if gpu in placement.gpus.get(each.model.name, ())]
        for each in here:
            parts = each.stays if each.model.sleeps else (*each.turn, *each.stays)
            yield from (line_of(part, where, each.model.name) for part in parts)
        yield from _turn(here, where)
        if workload.video and workload.video.each and gpu in placement.gpus[VIDEO]:
            streams, size = workload.video.streams, workload.video.each
            how = f"{streams} streams of {gib(size)} each, as stated"
            yield BudgetLine(VIDEO, where, streams * size, streams * size, how, (), estimate=False)


def _turn(here: Iterable[Engine], where: str) -> Iterator[BudgetLine]:
    """The largest of those that take turns on a GPU: one of them is awake."""
    sleepers = [each for each in here if each.model.sleeps]
    if not sleepers:
        return
    largest = max(sleepers, key=lambda each: each.awake)
    among = f"; the largest of {len(sleepers)} that take turns" if len(sleepers) > 1 else ""
    for part in largest.turn:
        evidence = (*part.evidence, "sleepers-take-turns")
        yield line_of(replace(part, how=part.how + among, evidence=evidence), where, largest.model.name)
