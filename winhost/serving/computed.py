"""Computed values of a profile, each with its arithmetic: /dev/shm, shares of GPUs, memory."""

from collections.abc import Callable, Mapping
from fractions import Fraction

from packaging.version import Version

from winhost.compat.workload_rules import needs_conversion
from winhost.core.dataclass import dataclass
from winhost.model.errors import RefusedError, visible
from winhost.model.units import Bytes, GiB, gib, gib_range
from winhost.model.workload import LoadFormat, Model
from winhost.serving.engine_names import (
    CACHE,
    MODEL,
    kv_folder,
    lmcache,
    model_folder,
    packed_folder,
    socket,
    socket_folder,
)
from winhost.serving.engine_spec import Mount
from winhost.serving.kv_mirror import transfer_config
from winhost.serving.when import Case
from winhost.sizing.budget import Budget
from winhost.sizing.engines import CUDA_GRAPHS, REMAINS, Engine, engine
from winhost.sizing.memories import CUDA_SEES, GRAPHS_INSIDE, SHM, VIDEO, MemoryUse, is_first_v1, limit_of, share_holds

MIN_SHM: Bytes = 8 * GiB
SHM_STEP: Bytes = 8 * GiB
# For each GPU. NCCL maps at most 4 MiB + 512 KiB + 4.69 MiB (Simple, LL, LL128) for each of 64 channels, 588 MiB; six
# communicators of an engine (world, tensor, pipeline, data, expert, and vLLM's own) make 3.45 GiB. The size of /dev/shm
# is a limit: unused space takes no memory, but when it is full NCCL fails, or falls back on sockets.
SHM_MARGIN: Bytes = 4 * GiB


@dataclass(frozen=True)
class Computed:
    """A value of a profile. how: the arithmetic, if there is any; doubt: why it may be wrong."""

    value: str | int | Mount | None
    how: str | None
    doubt: str | None = None


# Hyper-V derives a GPU's PCI domain from its VMBus id, and the guest numbers GPUs by their domains.
_ORDER_IN_GUEST = "counted in the order of the host; the guest has an order of its own, and these GPUs are not alike"


def shared_memory(model: Model, budget: Budget) -> tuple[Bytes, str]:
    """Return the size of /dev/shm for a model's container, and its arithmetic: the budget plus a margin, rounded up, at
    least 8 GiB.
    """
    lines = [line for line in budget.lines if line.where == SHM and line.model == model.name]
    needed = sum(line.bytes for line in lines) + model.gpus * SHM_MARGIN
    parts = [f"{gib(line.bytes)} {line.what} ({line.how})" for line in lines]
    parts.append(f"{gib(model.gpus * SHM_MARGIN)} margin ({gib(SHM_MARGIN)} a GPU)")
    size = max(MIN_SHM, -(-needed // SHM_STEP) * SHM_STEP)
    return size, f"{' + '.join(parts)} = {gib(needed)}; up to a multiple of {gib(SHM_STEP)}: {gib(size)}"


def _share(case: Case) -> Computed:
    """Compute the share of GPU memory for vLLM, which is the same on each of the model's GPUs. On a GPU with several
    models the remaining memory is split between them. The share leaves room for what an engine takes outside it.
    """
    vllm = case.workload.versions.get("vllm")
    parts = engine(case.model, max(case.vram), vllm)
    memories = [memory for memory in case.budget.memories if memory.gpu in case.budget.placement.gpus[case.model.name]]
    available = [_available_memory(case, memory) for memory in memories]
    outside, least_outside = sum(part.bytes for part in parts.outside), sum(part.least for part in parts.outside)
    least_share = sum(part.least for part in parts.share)
    shares = [Fraction(limit_of(case.target.path, case.workload.models).share, 100)]
    for (bytes_, _), memory in zip(available, memories, strict=True):
        # Where only the lower ends fit, the share has to hold at least these.
        risky = min(least_share, bytes_ + (memory.most or 0) - (memory.capacity or 0) - least_outside)
        shares.append(max(bytes_ - outside, risky, 0) / (_vram(case, memory) * CUDA_SEES))
    share = int(min(shares) * 1000 + Fraction(1, 1000)) / Fraction(1000)  # capacities are whole bytes, a little less
    doubts = []
    for memory in memories:
        vram = _vram(case, memory)
        if memory.fits and share * vram < _needed(case, memory) - outside:
            doubts.append(f"GPUs of different sizes: too little of {memory.where}")
        doubts += filter(None, [_share_doubt(parts, memory, share_holds(parts, vram, share, vllm), vllm)])
    how = "; ".join(dict.fromkeys(how for _, how in available))
    how += f"; {gib(outside)} of it lie outside the share ({', '.join(part.what for part in parts.outside)})"
    how += "; of what CUDA sees, at least 98 %; rounded down"
    return Computed(str(float(share)), how, next(iter(doubts), None))


def _share_doubt(parts: Engine, memory: MemoryUse, holds: bool | None, vllm: Version | None) -> str | None:
    if memory.fits is False:
        taken = gib_range(memory.least, memory.used)
        return f"it takes {taken} of {memory.where}, where {gib(memory.capacity or 0)} are safe"
    if holds or any(part.what in REMAINS for part in parts.outside):
        return None
    if is_first_v1(vllm):
        return f"engine V1 of vLLM {vllm} was reported to run out of memory where there was room"
    graphs = sum(part.bytes for part in parts.outside if part.what == CUDA_GRAPHS)
    return (
        f"from vLLM {GRAPHS_INSIDE} on, model runner V1 takes CUDA graphs (up to {gib(graphs)}) out of this share, "
        "which then has too little for them; VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0 turns that off"
    )


def _available_memory(case: Case, memory: MemoryUse) -> tuple[Bytes, str]:
    """Return the memory of one GPU that the model may take, inside and outside the share, and the arithmetic. Raises
    RefusedError (GpuShared) if the size of another model on the GPU is not known.
    """
    assert memory.capacity is not None
    placed = case.budget.placement.gpus
    tenants = [model for model in case.workload.models if memory.gpu in placed[model.name]]
    if tenants == [case.model] and memory.gpu not in placed.get(VIDEO, ()):
        return memory.capacity, f"alone on {memory.where}: {memory.how}"
    if memory.fits is None:
        missing = [f"{each.model}: {each.what}" for each in case.budget.missing]
        missing_text = "; ".join(map(visible, missing)) or "whether they fit at all is not known"
        raise RefusedError(
            "GpuShared",
            what=f"how {memory.where} is split cannot be computed; on it: "
            f"{', '.join(visible(model.name) for model in tenants)}",
            meaning="Each engine takes its share when it starts, and where shares are too large one fails. "
            f"Missing: {missing_text}",
            hint="State it in the workload file; winhost assess --workload names the keys that settle it.",
        )
    assert memory.margin is not None
    # The models that sleep count as one party, because only one of them is awake: each can have what the largest needs.
    parties = sum(not model.sleeps for model in tenants) + any(model.sleeps for model in tenants)
    needed, extra = _needed(case, memory), memory.margin // parties
    if extra < 0:
        return needed + extra, f"{gib(needed)} of {memory.where}, less {gib(-extra)} that all of them lack"
    return needed + extra, f"{gib(needed)} of {memory.where}, and {gib(extra)} that nobody there needs"


def _needed(case: Case, memory: MemoryUse) -> Bytes:
    """Return the memory that a model needs of a GPU; for a model that sleeps, that of its process and of the largest
    model that takes turns there.
    """
    lines = [line for line in case.budget.lines if line.where == memory.where]
    if not case.model.sleeps:
        return sum(line.bytes for line in lines if line.model == case.model.name)
    sleepers = {model.name for model in case.workload.models if model.sleeps}
    stays = sum(part.bytes for part in engine(case.model).stays)
    return stays + sum(line.bytes for line in lines if line.model in sleepers and line.what not in REMAINS)


def _vram(case: Case, memory: MemoryUse) -> Bytes:
    assert memory.gpu is not None
    return case.vram[memory.gpu]


def _gpus(case: Case) -> Computed:
    gpus = case.budget.placement.gpus[case.model.name]
    alike = len({gpu.pci.key["device"] for gpu in case.target.gpus}) <= 1 and len(set(case.vram)) <= 1
    doubt = _ORDER_IN_GUEST if case.target.path == "dda" and len(gpus) < len(case.target.gpus) and not alike else None
    return Computed(",".join(map(str, gpus)), "where the budget places it, in the order of the PCI bus", doubt)


def _ram(case: Case) -> Computed:
    size = -(-case.ram.used // GiB)
    taken = f"{gib(case.ram.used)} of memory in all; as it is set, WSL gets {gib(case.wsl_ram)}"
    # What .wslconfig calls GB is GiB.
    return Computed(f"{size}GB", f"{taken}; winhost plan HOST --path wsl2 --set 'memory={size} GiB' writes it")


def _from_model(value: Callable[[Model], object]) -> Callable[[Case], Computed]:
    return lambda case: Computed(str(value(case.model)), "as the workload says")


def _loader(case: Case) -> Computed:
    model = case.model
    doubt = f"winhost converts nothing: {model.id} must have files in this format already"
    return Computed(str(model.load_format), "as the workload says", doubt if needs_conversion(model) else None)


def _from_name(value: Callable[[str], str | Mount]) -> Callable[[Case], Computed]:
    return lambda case: Computed(value(case.model.name), "by the model's name")


def _weights_folder(case: Case) -> Computed:
    folder = packed_folder if case.model.load_format is LoadFormat.PACKED else model_folder
    return Computed(Mount(folder(case.model.served_name), MODEL, read_only=True), "by the model's name")


def _transfer(case: Case) -> Computed:
    mirror, version = case.workload.kv_mirror, case.workload.versions.get("vllm")
    assert mirror is not None
    doubt = (
        None if str(version) in _CHECKED_VERSIONS else f"its keys were read in vLLM {' and '.join(_CHECKED_VERSIONS)}"
    )
    config = transfer_config(case.model.served_name, mirror)
    return Computed(config, f"{gib(mirror.staging)} on the way, as stated", doubt)


_CHECKED_VERSIONS = ("0.24.0", "0.33.0")


def _media(case: Case) -> Computed:
    hosts = dict.fromkeys(host.partition(":")[0] for host in case.model.body.media)
    if hosts:
        return Computed(" ".join(hosts), "as the workload says")
    # vLLM takes an empty list for none, and this name exists nowhere (RFC 6761).
    return Computed("media.invalid", "no host: the workload names none, and media come in requests")


def _mirror_folder(case: Case) -> Computed:
    """Mount the mirror's folder. Both engines of a model share it, so that a standby reads what the first computed."""
    folder = kv_folder(case.model.served_name)
    return Computed(Mount(folder, folder), "by the model's name")


COMPUTED: Mapping[str, Callable[[Case], Computed]] = {
    "engine.folder": _from_name(lambda name: Mount(socket_folder(name), socket_folder(name))),
    "engine.socket": _from_name(socket),
    "cache.volume": lambda _: Computed(Mount(CACHE, "/root/.cache/vllm"), None),
    "model.folder": _weights_folder,
    "kv.folder": _mirror_folder,
    "kv.transfer": _transfer,
    "lmcache.container": _from_name(lmcache),
    "shm.size": lambda case: Computed(*shared_memory(case.model, case.budget)),
    "gpu.share": _share,
    "gpu.numbers": _gpus,
    "ram": _ram,
    "model.tensor": _from_model(lambda model: model.parallel.tensor),
    "model.pipeline": _from_model(lambda model: model.parallel.pipeline),
    "model.data": _from_model(lambda model: model.parallel.data),
    "media.domains": _media,
    "model.context": _from_model(lambda model: model.context),
    "model.loader": _loader,
    "model.adapters": _from_model(lambda model: model.lora and model.lora.adapters),
}
