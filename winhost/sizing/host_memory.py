"""The memory that a workload takes of the host: the target's RAM and /dev/shm, pinned memory, and the machine's."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from winhost.model.path import AvailableMemory
from winhost.model.units import Bytes, GiB, MiB, gib
from winhost.model.workload import LoadFormat, Mirror, Model, Workload
from winhost.sizing.engines import Engine
from winhost.sizing.memories import (
    ALONGSIDE_WINDOWS,
    HOST,
    HOST_PER_GPUS,
    PINNED,
    RAM,
    SHARED_WITH_WINDOWS,
    SHM,
    BudgetLine,
    ends,
    line_of,
)

SYSTEM = 2 * GiB
SYSTEM_LEAST = GiB
PROCESS_RAM = 2 * GiB  # of the API server and core of each copy, and of each worker, of which there is one a GPU
PROCESS_RAM_LEAST = GiB
LOADING = 5 * GiB  # one file of weights; engines start one after the other
PACKED_LOADER = 8 * 32 * MiB  # pinned, a GPU: a buffer for each thread of winhost_weights
WINDOWS = 2 * GiB
WINDOWS_USABLE = 4 * GiB
NCCL_SHM = 256 * MiB  # a GPU
QUEUE_OUT = 10 * 16 * MiB  # slots by size: from the engine to all workers of a copy
QUEUE_BACK = 10 * 24 * MiB  # from each worker
QUEUE_OWN = 24 * MiB  # of each copy's workers among themselves


def wsl_default_ram(host_ram: Bytes) -> Bytes:
    """The memory of WSL without `memory` in .wslconfig: half of the machine's."""
    return host_ram // 2


def as_planned(available_memory: AvailableMemory, workload: Workload) -> AvailableMemory:
    """The available memory with the most that a plan's .wslconfig can give WSL; nothing else limits a container's
    /dev/shm there.
    """
    if available_memory.path != "wsl2":
        return available_memory
    windows = WINDOWS_USABLE if workload.keep_windows_usable else WINDOWS
    ram = max(available_memory.ram, available_memory.host_ram - windows)
    return replace(available_memory, ram=ram, shm=ram)


def ram_lines(
    workload: Workload, engines: Sequence[Engine], available_memory: AvailableMemory, shm: Sequence[BudgetLine]
) -> Iterator[BudgetLine]:
    system = f"the target itself, {gib(SYSTEM_LEAST)} to {gib(SYSTEM)}"
    yield BudgetLine("system", RAM, SYSTEM, SYSTEM_LEAST, system, ("target-ram",), estimate=True)
    for each in engines:
        count = _process_count(each.model)
        how = f"{count} processes of {gib(PROCESS_RAM_LEAST)} to {gib(PROCESS_RAM)}"
        used, least = count * PROCESS_RAM, count * PROCESS_RAM_LEAST
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
    """The RAM of one engine and of the file of weights that it loads, without /dev/shm and backups."""
    return _process_count(model) * PROCESS_RAM + LOADING


def _process_count(model: Model) -> int:
    return model.parallel.data + model.gpus


def _backups(
    workload: Workload, engines: Sequence[Engine], available_memory: AvailableMemory, where: str
) -> Iterator[BudgetLine]:
    """Pinned, of every model that ever slept, whether it sleeps now or not; else of those that sleep, which may be all
    of them at once."""
    pinned = pins(workload, available_memory)
    stays = ("kept also while it is awake", "sleep-backup-stays")
    goes = ("given back on waking, but all may sleep at once", "sleep-backup-returned")
    for each in engines:
        if each.backup is None:
            continue
        line = line_of(each.backup, where, each.model.name)
        for_how_long, known_from = stays if pinned else goes
        yield replace(line, how=f"{line.how}, {for_how_long}", evidence=(*line.evidence, known_from))
        if pinned:
            how = "pinned blocks are rounded up to powers of two: up to as much again, and 0.95 as much was measured"
            evidence = ("pinned-powers-of-two",)
            yield BudgetLine(
                "rounding", where, each.backup.bytes, 0, how, evidence, estimate=True, model=each.model.name
            )


def pins(workload: Workload, available_memory: AvailableMemory) -> bool:
    """Under WSL, vLLM pins memory only if it is configured to, as for a workload that must have pinned memory."""
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
    """The buffers of winhost's loader. Its use of the GPU is not counted: the KV cache is not there yet."""
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
    if pins(workload, available_memory):
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
        how = "the least that Windows asks for" + (" with people working on it" if workload.keep_windows_usable else "")
        yield BudgetLine("Windows", HOST, needs, needs, how, ("windows-memory",), estimate=True)
    if available_memory.path in SHARED_WITH_WINDOWS:
        for gpu, vram in enumerate(available_memory.gpus):
            how = "memory of the GPU, for which Windows wants as much of its own"
            yield BudgetLine(f"gpu{gpu}", HOST_PER_GPUS, vram, vram, how, ("wsl-vram-above-memory",), estimate=False)
