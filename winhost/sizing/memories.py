"""Compute how much a workload takes of each memory, on the GPUs, in the target and in the machine, and whether it
fits.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

from packaging.version import Version

from winhost.core.dataclass import dataclass
from winhost.model.path import AvailableMemory
from winhost.model.units import Bytes, GiB, MiB, gib
from winhost.model.workload import LoadFormat, Mirror, Model, Video, Workload
from winhost.sizing.engines import CUDA_GRAPHS, NCCL, OUTSIDE, Engine, MemoryPart, Missing
from winhost.sizing.placement import Claim, Placement, place_on_gpus

RAM = "ram"
SHM = "shm"
PINNED = "pinned"
HOST = "host"
HOST_PER_GPUS = "host-per-gpus"
UNKNOWN_SIZE = ", not known"  # the end of `how` for an unknown capacity
SHARED_WITH_WINDOWS = ("wsl2", "wslc")
ALONGSIDE_WINDOWS = (*SHARED_WITH_WINDOWS, "dda", "gpu-p")


@dataclass(frozen=True)
class BudgetLine:
    """A part of the content of one memory. bytes: the upper end, which counts; least: the lower end; how: the
    computation.
    """

    what: str
    where: str
    bytes: Bytes
    least: Bytes
    how: str
    evidence: tuple[str, ...]
    estimate: bool
    model: str | None = None


@dataclass(frozen=True)
class MemoryUse:
    """One memory: `gpu0`, `ram`, `shm`, `pinned`, `host`, or `host-per-gpus`; sizes in bytes.

    how: the computation of the capacity, of which most is the upper end. fits: whether the upper end of all lines fits,
    None where that is unknown; may_fit: whether their lower end fits into the upper end of the capacity.
    """

    where: str
    gpu: int | None
    capacity: Bytes | None
    most: Bytes | None
    how: str
    evidence: tuple[str, ...]
    used: Bytes
    least: Bytes
    margin: Bytes | None
    fits: bool | None
    may_fit: bool | None


def line_of(part: MemoryPart, where: str, model: str | None = None) -> BudgetLine:
    return BudgetLine(part.what, where, part.bytes, part.least, part.how, part.evidence, part.estimate, model)


@dataclass(frozen=True)
class Capacity:
    """The capacity of a memory. bytes: the safe amount; most: the largest possible amount. None: not known."""

    bytes: Bytes | None
    how: str
    evidence: tuple[str, ...]
    most: Bytes | None = None


def capacity_of(size: Bytes | None, how: str, *evidence: str) -> Capacity:
    return Capacity(size, how if size is not None else how + UNKNOWN_SIZE, evidence, size)


def memory_use(
    lines: Sequence[BudgetLine],
    where: str,
    capacity: Capacity,
    gpu: int | None = None,
    *,
    doubts: bool,
    unproven: bool = False,
) -> MemoryUse:
    """Compare the lines of one memory with its capacity. doubts: the size of a part is unknown; unproven: what does not
    fit here might fit on another GPU.
    """
    least, used = ends(line for line in lines if line.where == where)
    fits, may_fit = _fits(used, capacity.bytes, doubts), _fits(least, capacity.most, doubts)
    return MemoryUse(
        where=where,
        gpu=gpu,
        capacity=capacity.bytes,
        most=capacity.most,
        how=capacity.how,
        evidence=capacity.evidence,
        used=used,
        least=least,
        margin=None if capacity.bytes is None else capacity.bytes - used,
        fits=None if unproven and fits is False else fits,
        may_fit=None if unproven and may_fit is False else may_fit,
    )


def _fits(needed: Bytes, capacity: Bytes | None, doubts: bool) -> bool | None:
    if capacity is None:
        return None
    if needed > capacity:
        return False
    return None if doubts else True


def ends(parts: Iterable[MemoryPart | BudgetLine]) -> tuple[Bytes, Bytes]:
    """Return the sums of the lower and of the upper ends."""
    all_parts = list(parts)
    return sum(part.least for part in all_parts), sum(part.bytes for part in all_parts)


# ---- on the GPUs: the memory that engines can have, and the GPUs of each model


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
FIRST_V1 = Version("0.8"), Version("0.9")  # versions of vLLM whose engine V1 took more than it counted, unlike V0


def is_first_v1(vllm: Version | None) -> bool:
    return vllm is not None and FIRST_V1[0] <= vllm < FIRST_V1[1]


def limit_of(path: str, models: Iterable[Model]) -> _Limit:
    if path not in SHARED_WITH_WINDOWS:
        return NATIVE
    return WSL_SEVERAL if any(model.engine_gpus > 1 for model in models) else WSL


def gpu_capacity(workload: Workload, available_memory: AvailableMemory, gpu: int) -> Capacity:
    """Return the bytes of a GPU that engines can have, inside and outside their shares."""
    limit = limit_of(available_memory.path, workload.models)
    outside = OUTSIDE + (NCCL if any(model.engine_gpus > 1 for model in workload.models) else 0)
    vram = available_memory.gpus[gpu]
    whole, share = vram * limit.whole // 100, vram * limit.share // 100 + outside
    how = f"{limit.whole} % of {gib(vram)}"
    if share < whole:
        how = f"a share of {limit.share} % of {gib(vram)}, and {gib(outside)} outside it"
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
    video_claims = [Claim(VIDEO, 1, video.streams * (video.each or 0))] if video else []
    found = place_on_gpus([*(_claim(each, lambda part: part.bytes) for each in engines), *video_claims], safe)
    if found.fits:
        return found
    least = place_on_gpus([*(_claim(each, lambda part: part.least) for each in engines), *video_claims], most)
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
        on_gpu = [each for each in engines if gpu in placement.gpus.get(each.model.name, ())]
        for each in on_gpu:
            parts = each.stays if each.model.sleeps else (*each.turn, *each.stays)
            yield from (line_of(part, where, each.model.name) for part in parts)
        yield from _largest_turn_lines(on_gpu, where)
        if workload.video and workload.video.each and gpu in placement.gpus[VIDEO]:
            streams, size = workload.video.streams, workload.video.each
            how = f"{streams} streams of {gib(size)} each, as stated"
            yield BudgetLine(VIDEO, where, streams * size, streams * size, how, (), estimate=False)


def _largest_turn_lines(engines: Iterable[Engine], where: str) -> Iterator[BudgetLine]:
    """Yield the lines of the largest engine of those that take turns on a GPU, because only one of them is awake."""
    sleepers = [each for each in engines if each.model.sleeps]
    if not sleepers:
        return
    largest = max(sleepers, key=lambda each: each.awake)
    among = f"; the largest of {len(sleepers)} that take turns" if len(sleepers) > 1 else ""
    for part in largest.turn:
        evidence = (*part.evidence, "sleepers-take-turns")
        yield line_of(replace(part, how=part.how + among, evidence=evidence), where, largest.model.name)


# ---- on the host: RAM and /dev/shm of the target, pinned memory, and memory of the machine


SYSTEM = 2 * GiB
MIN_SYSTEM = GiB
PROCESS_RAM = 2 * GiB  # of the API server and core of each copy, and of each worker, of which there is one a GPU
MIN_PROCESS_RAM = GiB
LOADING = 5 * GiB  # one file of weights; engines start one after the other
PACKED_LOADER = 8 * 32 * MiB  # pinned, a GPU: a buffer for each thread of winhost_weights
WINDOWS = 2 * GiB
WINDOWS_USABLE = 4 * GiB
NCCL_SHM = 256 * MiB  # a GPU
QUEUE_OUT = 10 * 16 * MiB  # slots by size: from the engine to all workers of a copy
QUEUE_BACK = 10 * 24 * MiB  # from each worker
QUEUE_OWN = 24 * MiB  # of each copy's workers among themselves


def wsl_default_ram(host_ram: Bytes) -> Bytes:
    """Return the memory of WSL without `memory` in .wslconfig: half of the machine's."""
    return host_ram // 2


def planned_memory(available_memory: AvailableMemory, workload: Workload) -> AvailableMemory:
    """Return the available memory if a plan's .wslconfig gives WSL as much as it can. That is also the limit of a
    container's /dev/shm in WSL.
    """
    if available_memory.path != "wsl2":
        return available_memory
    windows = WINDOWS_USABLE if workload.keep_windows_usable else WINDOWS
    ram = max(available_memory.ram, available_memory.host_ram - windows)
    return replace(available_memory, ram=ram, shm=ram)


def ram_lines(
    workload: Workload, engines: Sequence[Engine], available_memory: AvailableMemory, shm: Sequence[BudgetLine]
) -> Iterator[BudgetLine]:
    system = f"the target itself, {gib(MIN_SYSTEM)} to {gib(SYSTEM)}"
    yield BudgetLine("system", RAM, SYSTEM, MIN_SYSTEM, system, ("target-ram",), estimate=True)
    for each in engines:
        count = _process_count(each.model)
        how = f"{count} processes of {gib(MIN_PROCESS_RAM)} to {gib(PROCESS_RAM)}"
        used, least = count * PROCESS_RAM, count * MIN_PROCESS_RAM
        yield BudgetLine("processes", RAM, used, least, how, ("target-ram",), estimate=True, model=each.model.name)
    loading = f"a file of weights on its way to the GPU, {gib(LOADING)} at most; engines start one after the other"
    yield BudgetLine("loading", RAM, LOADING, 0, loading, ("loading-file",), estimate=True)
    yield from _packed_loaders(workload, RAM)
    yield from _backups(workload, engines, available_memory, RAM)
    if workload.kv_mirror and workload.kv_mirror.through is Mirror.LMCACHE:
        yield from _staging(workload, RAM, "LMCache server", "lmcache-server")
    if workload.kv_mirror and workload.kv_mirror.through is Mirror.TIERS:
        yield from _tiers_rounding(workload)
    if shm:
        least, used = ends(shm)
        yield BudgetLine(
            "shared memory", RAM, used, least, "what is in /dev/shm; its pages are RAM", ("shm-is-ram",), estimate=True
        )


def engine_ram(model: Model) -> Bytes:
    """Return the RAM of one engine and of the file of weights that it loads, without /dev/shm and backups."""
    return _process_count(model) * PROCESS_RAM + LOADING


def _process_count(model: Model) -> int:
    return model.parallel.data + model.gpus


def _backups(
    workload: Workload, engines: Sequence[Engine], available_memory: AvailableMemory, where: str
) -> Iterator[BudgetLine]:
    """Yield the backups of weights in host memory. Pinned backups stay while a model is awake; others exist only while
    it sleeps, but all models may sleep at once.
    """
    pinned = is_pinned(workload, available_memory)
    stays = ("kept also while it is awake", "sleep-backup-stays")
    freed = ("given back on waking, but all may sleep at once", "sleep-backup-returned")
    for each in engines:
        if each.backup is None:
            continue
        line = line_of(each.backup, where, each.model.name)
        duration, evidence_key = stays if pinned else freed
        yield replace(line, how=f"{line.how}, {duration}", evidence=(*line.evidence, evidence_key))
        if pinned:
            how = "pinned blocks are rounded up to powers of two: up to as much again, and 0.95 as much was measured"
            evidence = ("pinned-powers-of-two",)
            yield BudgetLine(
                "rounding", where, each.backup.bytes, 0, how, evidence, estimate=True, model=each.model.name
            )


def is_pinned(workload: Workload, available_memory: AvailableMemory) -> bool:
    """Tell whether vLLM pins memory. In WSL it does so only if configured, as for a workload that needs it."""
    return available_memory.path not in SHARED_WITH_WINDOWS or "pinned-memory" in workload.needs.must


def _staging(workload: Workload, where: str, what: str, evidence: str) -> Iterator[BudgetLine]:
    assert workload.kv_mirror is not None
    each = workload.kv_mirror.staging
    for model in workload.models:
        how = f"{gib(each)} stated for each engine" + (
            f", {model.parallel.data} copies" if model.parallel.data > 1 else ""
        )
        total = each * model.parallel.data
        yield BudgetLine(what, where, total, total, how, (evidence,), estimate=False, model=model.name)


def _tiers_rounding(workload: Workload) -> Iterator[BudgetLine]:
    assert workload.kv_mirror is not None
    for model in workload.models:
        total = workload.kv_mirror.staging * model.parallel.data
        how = "pinned blocks are rounded up to powers of two: up to as much again, and half as much was measured"
        evidence = ("kv-offload-rounding",)
        yield BudgetLine("KV tiers, rounding", RAM, total, 0, how, evidence, estimate=True, model=model.name)


def _packed_loaders(workload: Workload, where: str) -> Iterator[BudgetLine]:
    """Yield the buffers of winhost's loader. Its use of the GPU is not counted, because the KV cache comes later."""
    for model in workload.models:
        if model.load_format is LoadFormat.PACKED:
            total = model.gpus * PACKED_LOADER
            how = f"{gib(PACKED_LOADER)} of pinned buffers for each GPU, while packed weights load"
            evidence = ("packed-measured",)
            yield BudgetLine("packed loader", where, total, 0, how, evidence, estimate=False, model=model.name)


def shm_lines(workload: Workload) -> Iterator[BudgetLine]:
    for model in workload.models:
        if model.engine_gpus > 1:
            used = model.parallel.data * (QUEUE_OUT + model.engine_gpus * QUEUE_BACK + QUEUE_OWN)
            copies = "" if model.parallel.data == 1 else f" for each of {model.parallel.data} copies"
            how = f"10 x 16 MiB to all workers, 10 x 24 MiB back from each of {model.engine_gpus}, 24 MiB more{copies}"
            yield BudgetLine(
                "message queues", SHM, used, 0, how, ("vllm-message-queue",), estimate=True, model=model.name
            )
            yield _nccl(model.name, model.gpus, SHM)
    if workload.kv_mirror and workload.kv_mirror.through is Mirror.TIERS:
        yield from _staging(workload, SHM, "KV tiers", "vllm-tiers-in-shm")


def _nccl(model: str, gpus: int, where: str) -> BudgetLine:
    how = f"{gib(NCCL_SHM)} for each of {gpus} GPUs, where they do not reach each other's memory"
    return BudgetLine("NCCL buffers", where, gpus * NCCL_SHM, 0, how, ("nccl-shm-pinned",), estimate=True, model=model)


def pinned_lines(
    workload: Workload, engines: Sequence[Engine], available_memory: AvailableMemory
) -> Iterator[BudgetLine]:
    if is_pinned(workload, available_memory):
        yield from _backups(workload, engines, available_memory, PINNED)
    yield from _packed_loaders(workload, PINNED)
    for model in workload.models:
        if model.engine_gpus > 1:
            yield _nccl(model.name, model.gpus, PINNED)


def host_lines(workload: Workload, available_memory: AvailableMemory) -> Iterator[BudgetLine]:
    if available_memory.path in ALONGSIDE_WINDOWS:
        ram = available_memory.ram
        yield BudgetLine("target", HOST, ram, ram, f"the {gib(ram)} that it gets", (), estimate=False)
        needs = WINDOWS_USABLE if workload.keep_windows_usable else WINDOWS
        how = "the least that Windows requires" + (" with people working on it" if workload.keep_windows_usable else "")
        yield BudgetLine("Windows", HOST, needs, needs, how, ("windows-memory",), estimate=True)
    if available_memory.path in SHARED_WITH_WINDOWS:
        for gpu, vram in enumerate(available_memory.gpus):
            how = "memory of the GPU, for which Windows needs as much of its own"
            yield BudgetLine(f"gpu{gpu}", HOST_PER_GPUS, vram, vram, how, ("wsl-vram-above-memory",), estimate=False)
