"""The memory that one model takes: on each of its GPUs, and of the host while it sleeps. Pure arithmetic in bytes.

The lines are vLLM's own. Its share (--gpu-memory-utilization) holds weights, KV cache and activations; the CUDA
context, CUDA graphs and NCCL come on top. Each line has a range, `bytes` at most and `least`. A value that is neither
stated nor computable is missing, never guessed.
"""

from dataclasses import replace
from fractions import Fraction
from math import ceil

from packaging.version import Version

from winhost.core.dataclass import dataclass
from winhost.model.units import Bytes, GiB, MiB, gib
from winhost.model.workload import Model
from winhost.sizing.quantized import quantized_weights

BLOCK = 16  # tokens of the KV cache are given out in blocks of this size

# Outside the share, on each GPU of an engine that is awake.
CONTEXT, MIN_CONTEXT = 1500 * MiB, 512 * MiB  # with what the allocators hold beyond the share
GRAPHS, MIN_GRAPHS = 1080 * MiB, 100 * MiB
GRAPHS_LARGE = 2150 * MiB  # where vLLM batches more; 2.04 GiB were reported of its runner V2
NCCL = 952 * MiB  # only where an engine spans GPUs
OUTSIDE = CONTEXT + GRAPHS
SLEEPING_PROCESS = 2780 * MiB  # what of them stays during sleep: most where the engine has just compiled its graphs
MIN_SLEEPING_PROCESS = ceil(Fraction(8, 10) * GiB)
SUSPENDED_PROCESS = 4 * MiB

# vLLM measures activations by a run with as many tokens and sequences as it may batch. Its API server takes more of
# both from this memory on, but not on an A100 (engine/arg_utils.py, 0.24.0). Before 0.9, any GPU got as many sequences,
# and graphs took more.
LARGE_GPU = 70 * GiB
TAMED, GRAPHS_BEFORE = Version("0.9"), 3 * GiB
BATCH_LARGE, BATCH = (8192, 1024), (2048, 256)  # tokens, sequences
SAMPLER = Fraction(96, 10) * 4  # bytes for each entry of the logits, at their peak: 9.6 copies in 32 bits
VOCABULARY = 262_144  # where none is stated: the largest in common use
MIN_ACTIVATIONS = 224 * MiB  # without graphs; no compiled engine was seen below 0.3 GiB


@dataclass(frozen=True)
class MemoryPart:
    """Bytes that are counted for something, and the least that it may turn out to be; how: the computation."""

    what: str
    bytes: Bytes
    least: Bytes
    how: str
    evidence: tuple[str, ...] = ()
    estimate: bool = False


@dataclass(frozen=True)
class Missing:
    """A value that is neither stated nor computable. state: keys of the workload file, any of which settles it."""

    model: str | None
    what: str
    why: str
    state: tuple[str, ...]


@dataclass(frozen=True)
class Engine:
    """A model as its GPUs see it: stays also while it sleeps, turn only while it is awake, both on each GPU.

    backup: what level 1 keeps in host memory, for all its GPUs; missing: what the other fields lack.
    """

    model: Model
    stays: tuple[MemoryPart, ...]
    turn: tuple[MemoryPart, ...]
    backup: MemoryPart | None
    missing: tuple[Missing, ...]

    @property
    def awake(self) -> Bytes:
        """Bytes on each GPU while it is awake, without what stays."""
        return sum(part.bytes for part in self.turn)

    @property
    def outside(self) -> tuple[MemoryPart, ...]:
        """The parts that it takes of each GPU beyond its share while it is awake."""
        return tuple(part for part in (*self.stays, *self.turn) if part.what in OUTSIDE_LINES)

    @property
    def share(self) -> tuple[MemoryPart, ...]:
        """The parts that its share has to hold while it is awake."""
        return tuple(part for part in self.turn if part.what not in OUTSIDE_LINES)


def engine(model: Model, gpu: Bytes = 0, vllm: Version | None = None) -> Engine:
    """Compute what a model takes. gpu: memory of the largest GPU, by which vLLM chooses how much it batches; vllm: its
    version, None if not stated.
    """
    found: list[MemoryPart | Missing | None]
    old = vllm is not None and vllm < TAMED
    outside = _outside(model, GRAPHS_BEFORE if old else GRAPHS_LARGE if gpu >= LARGE_GPU else GRAPHS)
    if model.memory is not None:
        most = min(sum(part.bytes for part in outside), model.memory)
        how = f"{gib(most)} of the {gib(model.memory)} that are stated for everything"
        outside = [replace(outside[0], what=SLEEPING if _sleeps_in_place(model) else "process", bytes=most, how=how)]
        outside[0] = replace(outside[0], least=min(outside[0].least, most))
        left = model.memory - most
        how = f"{gib(model.memory)} are stated for everything; {gib(most)} of it count as the process"
        found = [MemoryPart(ALL_BUT, left, left, how)]
    else:
        found = [
            weights(model),
            _pool_copy(model),
            kv_cache(model),
            activations(model, LARGE_GPU if old else gpu),
            _lora(model),
        ]
    stays, turn = outside, [part for part in found if isinstance(part, MemoryPart)]
    if model.sleeps and not _sleeps_in_place(model):
        stays, turn = [_SUSPENDED if model.suspend and model.level > 0 else _NOTHING], [*turn, *outside]
    missing = tuple(part for part in found if isinstance(part, Missing))
    return Engine(model, tuple(stays), tuple(turn), _backup(model), missing)


def _sleeps_in_place(model: Model) -> bool:
    """Tell whether its process stays on the GPU between its turns, instead of being stopped or suspended."""
    return model.sleeps and model.level > 0 and not model.suspend


# --- On a GPU -------------------------------------------------------------------------------------------------------


def weights(model: Model) -> MemoryPart | Missing:
    """Return the weights on the GPU that holds most of them."""
    whole = _total_weights(model)
    if isinstance(whole, Missing) or model.engine_gpus == 1:
        return whole
    if model.parallel.pipeline == 1:
        share, least = -(-whole.bytes // model.parallel.tensor), -(-whole.least // model.parallel.tensor)
        how = f"{whole.how}; {gib(whole.bytes)} over {model.parallel.tensor} GPUs"
        return MemoryPart("weights", share, least, how, (*whole.evidence, "vllm-tensor-parallel"), whole.estimate)
    return _stage(model, whole)


def _total_weights(model: Model) -> MemoryPart | Missing:
    if model.weights is not None:
        return MemoryPart("weights", model.weights, model.weights, f"{gib(model.weights)} are stated")
    if model.parameters is None:
        return Missing(model.name, "weights", "their size is not stated", ("parameters", "weights"))
    bits = model.dtype.bytes * 8
    if model.quantization is None:
        total = model.parameters * model.dtype.bytes
        return MemoryPart("weights", total, total, f"{model.parameters:,} parameters at {bits} bits")
    if model.embedding is None:
        why = f"{model.quantization} leaves embeddings at {bits} bits, and how many they are is not stated"
        return Missing(model.name, "weights", why, ("shape.vocabulary and shape.hidden", "weights"))
    found = quantized_weights(model, model.quantization, model.embedding, model.parameters)
    return MemoryPart("weights", found.bytes, found.least, found.how, found.evidence, estimate=True)


def _stage(model: Model, whole: MemoryPart) -> MemoryPart | Missing:
    """The first or the last stage holds most: its layers and a table of embeddings."""
    if model.attention is None or model.embedding is None:
        why = "the ends of a pipeline hold the embeddings beside their layers, and how large those are is not stated"
        return Missing(model.name, "weights on each GPU", why, ("shape",))
    embedding, layers = model.embedding, model.attention.layers
    table = embedding.table * model.dtype.bytes
    stage_layers = -(-layers // model.parallel.pipeline)

    def share(total: Bytes) -> Bytes:
        body = max(0, total - embedding.parameters * model.dtype.bytes)
        return -(-(-(-body * stage_layers // layers) + table) // model.parallel.tensor)

    how = f"{whole.how}; a stage holds {stage_layers} of {layers} layers and {gib(table)} of embeddings" + (
        f", over {model.parallel.tensor} GPUs" if model.parallel.tensor > 1 else ""
    )
    evidence = (*whole.evidence, "vllm-pipeline-ends")
    return MemoryPart("weights", share(whole.bytes), share(whole.least), how, evidence, estimate=True)


def _pool_copy(model: Model) -> MemoryPart | None:
    """Return the copy that loading leaves in the pool that sleep frees: quantized weights take another shape once they
    are loaded, and a live pool gives nothing back. 16-bit weights left nothing behind where it was measured.
    """
    share = weights(model)
    if model.quantization is None or not (model.sleeps and model.level) or isinstance(share, Missing):
        return None
    how = f"up to as much again: {model.quantization} weights change their shape, and the pool that sleeps keeps both"
    return MemoryPart("pool copy", share.bytes, 0, how, ("vllm-pool-copy",), estimate=True)


def kv_cache(model: Model) -> MemoryPart | Missing:
    """Return the KV cache on each GPU. At least one sequence of full length must fit, or the engine does not start."""
    if model.kv is not None:
        return MemoryPart("KV cache", model.kv, model.kv, f"{gib(model.kv)} are stated")
    if model.attention is None:
        why = "the model's shape is not stated"
        return Missing(model.name, "KV cache", why, ("shape.layers, shape.kv_heads and shape.head_dim", "kv"))
    if model.context is None:
        return Missing(model.name, "KV cache", "the length of a sequence is not stated", ("context", "kv"))
    layers = -(-model.attention.layers // model.parallel.pipeline)
    heads = -(-model.attention.kv_heads // model.parallel.tensor)
    token = 2 * layers * heads * model.attention.head_dim * model.kv_bytes
    tokens = -(-model.context // BLOCK) * BLOCK
    how = (
        f"{layers} layers x {heads} KV heads x {model.attention.head_dim} x 2 x {model.kv_bytes} bytes "
        f"= {token:,} bytes a token on a GPU; {tokens:,} tokens x {model.sequences} sequences"
    )
    return MemoryPart("KV cache", token * tokens * model.sequences, token * tokens, how, ("vllm-kv-shape",))


def activations(model: Model, gpu: Bytes = 0) -> MemoryPart:
    """Return the peak of a run with a full batch. gpu: memory of the GPU."""
    if model.activations is not None:
        return MemoryPart("activations", model.activations, model.activations, f"{gib(model.activations)} are stated")
    tokens, sequences = BATCH_LARGE if gpu >= LARGE_GPU else BATCH
    vocabulary = model.embedding.vocabulary if model.embedding else VOCABULARY
    hidden = model.embedding.hidden if model.embedding else 0
    batch = tokens * hidden * model.dtype.bytes
    # vLLM holds its part of the embeddings twice for a moment while it compiles; with --enforce-eager it does not.
    compiled = -(-vocabulary // model.parallel.tensor) * hidden * model.dtype.bytes + batch
    most = max(MIN_ACTIVATIONS, ceil(SAMPLER * sequences * vocabulary), compiled) + batch
    untold = "" if model.embedding else " (not stated: as large as any)"
    how = (
        f"{gib(MIN_ACTIVATIONS)}, and up to 38.4 bytes x {sequences:,} sequences x a vocabulary of "
        f"{vocabulary:,}{untold} while vLLM samples, or a copy of the embeddings while it compiles; the engine's log "
        "of its start tells it"
    )
    return MemoryPart("activations", most, MIN_ACTIVATIONS, how, ("engine-activations",), estimate=True)


def _lora(model: Model) -> MemoryPart | None:
    if model.lora is None:
        return None
    total = model.lora.adapters * model.lora.each
    how = f"{model.lora.adapters} adapters of {gib(model.lora.each)}, on each GPU"
    return MemoryPart("LoRA adapters", total, total // model.parallel.tensor, how, ("vllm-lora-slots",), estimate=True)


SLEEPING, SUSPENDED, STOPPED = "sleeping process", "suspended process", "stopped process"
REMAINS = (SLEEPING, SUSPENDED, STOPPED)
"""The memory that each model keeps of its GPUs between its turns."""
ALL_BUT, CUDA_GRAPHS = "all but the process", "CUDA graphs"
OUTSIDE_LINES = (*REMAINS, "process", "CUDA context", CUDA_GRAPHS, "NCCL")
_NOTHING = MemoryPart(STOPPED, 0, 0, "a process that is stopped leaves nothing")
_SUSPENDED = MemoryPart(
    SUSPENDED, SUSPENDED_PROCESS, 0, "4 MiB were measured of one", ("suspend-measured",), estimate=True
)


def _outside(model: Model, most_graphs: Bytes) -> list[MemoryPart]:
    if _sleeps_in_place(model):
        how = f"CUDA context, graphs and NCCL: {gib(MIN_SLEEPING_PROCESS)} to {gib(SLEEPING_PROCESS)} have been seen"
        return [MemoryPart(SLEEPING, SLEEPING_PROCESS, MIN_SLEEPING_PROCESS, how, ("sleeping-residue",), estimate=True)]
    context = f"and what allocators hold beyond the share: {gib(MIN_CONTEXT)} to {gib(CONTEXT)}"
    graphs = f"{gib(MIN_GRAPHS)} to {gib(most_graphs)}; none with --enforce-eager"
    found = [
        MemoryPart("CUDA context", CONTEXT, MIN_CONTEXT, context, ("process-measured",), estimate=True),
        MemoryPart(CUDA_GRAPHS, most_graphs, MIN_GRAPHS, graphs, ("graphs-measured",), estimate=True),
    ]
    if model.engine_gpus > 1:
        how = f"buffers between the GPUs: up to {gib(NCCL)}, least where they do not reach each other's memory"
        found.append(MemoryPart("NCCL", NCCL, 0, how, ("nccl-on-gpu",), estimate=True))
    return found


# --- In host memory --------------------------------------------------------------------------------------------------


def _backup(model: Model) -> MemoryPart | None:
    """Return the weights of all GPUs. How long they stay depends on whether they are pinned. Level 2 keeps none."""
    if not model.sleeps or model.level != 1:
        return None
    share = weights(model)
    if isinstance(share, MemoryPart):
        total, least = share.bytes * model.gpus, share.least * model.gpus
        how = f"{gib(share.bytes)} of weights from {_gpus(model.gpus)}"
        return MemoryPart("sleep backup", total, least, how, share.evidence, share.estimate)
    if model.memory is None:
        return None  # the weights are missing already
    total = model.memory * model.gpus
    how = f"not more than the {gib(model.memory)} stated for {_gpus(model.gpus)}"
    return MemoryPart("sleep backup", total, 0, how, estimate=True)


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"each of {count} GPUs"
