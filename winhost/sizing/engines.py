"""What one model takes: on each of its cards, and of host memory while it sleeps. Pure arithmetic in bytes.

What is not stated and cannot be computed is missing, never guessed. Where public reports give a range, its upper end
counts and its lower end is kept as `least`.
"""

from fractions import Fraction
from math import ceil

from winhost.core.dataclass import dataclass
from winhost.model.units import Bytes, GiB, MiB, gib
from winhost.model.workload import Model, Quantization

BLOCK = 16  # tokens of the KV cache are given out in blocks of this size

# Bits of a quantized weight with its share of scales and zero points, in the group size that each format is mostly
# published with: AWQ and GPTQ 16 + 4 bits for 128 weights, INT4 16 bits for 128, NVFP4 8 bits for 16, MXFP4 8 bits
# for 32; INT8 and FP8 32 bits a row, of which 4,096 weights are a short one.
BITS = {
    Quantization.AWQ: 4 + Fraction(16 + 4, 128),
    Quantization.GPTQ: 4 + Fraction(16 + 4, 128),
    Quantization.INT4: 4 + Fraction(16, 128),
    Quantization.INT8: 8 + Fraction(32, 4096),
    Quantization.FP8: 8 + Fraction(32, 4096),
    Quantization.NVFP4: 4 + Fraction(8, 16),
    Quantization.MXFP4: 4 + Fraction(8, 32),
}

PROCESS = ceil(Fraction(23, 10) * GiB)  # on each card, while it is awake: CUDA context, CUDA graphs, NCCL
SLEEPING_PROCESS = 2780 * MiB  # what of them stays during sleep: most where the engine has just compiled its graphs
SUSPENDED_PROCESS = 4 * MiB
PROCESS_LEAST = ceil(Fraction(8, 10) * GiB)
ACTIVATIONS = GiB + 512 * MiB
ACTIVATIONS_LEAST = 512 * MiB


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
    """A model as its cards see it: stays also while it sleeps, turn only while it is awake, both on each card.

    backup: what level 1 keeps in host memory, for all its cards; missing: what the other fields lack.
    """

    model: Model
    stays: MemoryPart
    turn: tuple[MemoryPart, ...]
    backup: MemoryPart | None
    missing: tuple[Missing, ...]

    @property
    def awake(self) -> Bytes:
        """Bytes on each card while it is awake, without what stays."""
        return sum(part.bytes for part in self.turn)


def engine(model: Model) -> Engine:
    """What a model takes."""
    found: list[MemoryPart | Missing | None]
    stays = SLEEPING_PROCESS if _sleeps_in_place(model) else PROCESS
    if model.memory is not None:
        stays = min(stays, model.memory)
        left = model.memory - stays
        how = f"{gib(model.memory)} are stated for everything; {gib(stays)} of it count as the process"
        found = [MemoryPart("all but the process", left, left, how)]
    else:
        found = [weights(model), _pool_copy(model), kv_cache(model), _activations(model), _lora(model)]
    process, turn = _process(model, stays), tuple(part for part in found if isinstance(part, MemoryPart))
    if model.sleeps and not _sleeps_in_place(model):
        process, turn = _SUSPENDED if _is_suspended(model) else _NOTHING, (*turn, process)
    return Engine(
        model,
        process,
        turn,
        _backup(model),
        tuple(part for part in found if isinstance(part, Missing)),
    )


def _sleeps_in_place(model: Model) -> bool:
    """Whether its process stays on the GPU between its turns, instead of being stopped or suspended."""
    return model.sleeps and model.sleep_level > 0 and not model.suspend


def _is_suspended(model: Model) -> bool:
    return model.suspend and model.sleep_level > 0


# --- On a card -------------------------------------------------------------------------------------------------------


def weights(model: Model) -> MemoryPart | Missing:
    """The weights on the card that holds most of them."""
    whole = _whole_weights(model)
    if isinstance(whole, Missing) or model.engine_cards == 1:
        return whole
    if model.pipeline == 1:
        share = -(-whole.bytes // model.tensor)
        how = f"{whole.how}; {gib(whole.bytes)} over {model.tensor} cards"
        return MemoryPart("weights", share, share, how, (*whole.evidence, "vllm-tensor-parallel"), whole.estimate)
    return _stage(model, whole)


def _whole_weights(model: Model) -> MemoryPart | Missing:
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
    linear = model.parameters - model.embedding.parameters
    quantized = BITS[model.quantization]
    total = ceil(linear * quantized / 8) + model.embedding.parameters * model.dtype.bytes
    how = (
        f"{linear:,} parameters at {float(quantized):.3f} bits with their scales, and {model.embedding.parameters:,} "
        f"of embeddings at {bits} bits"
    )
    return MemoryPart("weights", total, total, how, ("quantized-formats",), estimate=True)


def _stage(model: Model, whole: MemoryPart) -> MemoryPart | Missing:
    """The first or the last stage holds most: its layers and a table of embeddings."""
    if model.attention is None or model.embedding is None:
        why = "the ends of a pipeline hold the embeddings beside their layers, and how large those are is not stated"
        return Missing(model.name, "weights on each card", why, ("shape",))
    embedding, layers = model.embedding, model.attention.layers
    table = embedding.table * model.dtype.bytes
    body = max(0, whole.bytes - embedding.parameters * model.dtype.bytes)
    stage_layers = -(-layers // model.pipeline)
    share = -(-(-(-body * stage_layers // layers) + table) // model.tensor)
    how = f"{whole.how}; a stage holds {stage_layers} of {layers} layers and {gib(table)} of embeddings" + (
        f", over {model.tensor} cards" if model.tensor > 1 else ""
    )
    return MemoryPart("weights", share, share, how, (*whole.evidence, "vllm-pipeline-ends"), estimate=True)


def _pool_copy(model: Model) -> MemoryPart | None:
    """What loading leaves behind in the pool that sleep frees: quantized weights take another shape once they are
    loaded, and a live pool gives nothing back. Of weights in 16 bits nothing was left behind where it was measured.
    """
    share = weights(model)
    if model.quantization is None or not (model.sleeps and model.sleep_level) or isinstance(share, Missing):
        return None
    how = f"up to as much again: {model.quantization} weights change their shape, and the pool that sleeps keeps both"
    return MemoryPart("pool copy", share.bytes, 0, how, ("vllm-pool-copy",), estimate=True)


def kv_cache(model: Model) -> MemoryPart | Missing:
    """The KV cache on each card. At least one sequence of full length must fit, or the engine does not start."""
    if model.kv is not None:
        return MemoryPart("KV cache", model.kv, model.kv, f"{gib(model.kv)} are stated")
    if model.attention is None:
        why = "the model's shape is not stated"
        return Missing(model.name, "KV cache", why, ("shape.layers, shape.kv_heads and shape.head_dim", "kv"))
    if model.context is None:
        return Missing(model.name, "KV cache", "the length of a sequence is not stated", ("context", "kv"))
    layers = -(-model.attention.layers // model.pipeline)
    heads = -(-model.attention.kv_heads // model.tensor)
    token = 2 * layers * heads * model.attention.head_dim * model.kv_bytes
    tokens = -(-model.context // BLOCK) * BLOCK
    how = (
        f"{layers} layers x {heads} KV heads x {model.attention.head_dim} x 2 x {model.kv_bytes} bytes "
        f"= {token:,} bytes a token on a card; {tokens:,} tokens x {model.sequences} sequences"
    )
    return MemoryPart("KV cache", token * tokens * model.sequences, token * tokens, how, ("vllm-kv-shape",))


def _activations(model: Model) -> MemoryPart:
    if model.activations is not None:
        return MemoryPart("activations", model.activations, model.activations, f"{gib(model.activations)} are stated")
    how = f"{gib(ACTIVATIONS_LEAST)} to {gib(ACTIVATIONS)}; the engine's log of its start tells it"
    return MemoryPart("activations", ACTIVATIONS, ACTIVATIONS_LEAST, how, ("engine-activations",), estimate=True)


def _lora(model: Model) -> MemoryPart | None:
    if model.lora is None:
        return None
    total = model.lora.adapters * model.lora.each
    how = f"{model.lora.adapters} adapters of {gib(model.lora.each)}, on each card"
    return MemoryPart("LoRA adapters", total, total // model.tensor, how, ("vllm-lora-slots",), estimate=True)


SLEEPING, SUSPENDED, STOPPED = "sleeping process", "suspended process", "stopped process"
REMAINS = (SLEEPING, SUSPENDED, STOPPED)
"""What each model keeps of its GPUs between its turns."""
_NOTHING = MemoryPart(STOPPED, 0, 0, "a process that is stopped leaves nothing")
_SUSPENDED = MemoryPart(
    SUSPENDED, SUSPENDED_PROCESS, 0, "4 MiB were measured of one", ("suspend-measured",), estimate=True
)


def _process(model: Model, counted: Bytes) -> MemoryPart:
    asleep = _sleeps_in_place(model)
    most, evidence = (SLEEPING_PROCESS, "sleeping-residue") if asleep else (PROCESS, "process-measured")
    how = f"CUDA context, graphs and NCCL: {gib(PROCESS_LEAST)} to {gib(most)} have been seen"
    what = SLEEPING if asleep else "process"
    return MemoryPart(what, counted, min(counted, PROCESS_LEAST), how, (evidence,), estimate=True)


# --- In host memory --------------------------------------------------------------------------------------------------


def _backup(model: Model) -> MemoryPart | None:
    """The weights of all cards; how long they stay there depends on whether they are pinned. Level 2 keeps none."""
    if not model.sleeps or model.sleep_level != 1:
        return None
    share = weights(model)
    if isinstance(share, MemoryPart):
        total = share.bytes * model.cards
        how = f"{gib(share.bytes)} of weights from {_cards(model.cards)}"
        return MemoryPart("sleep backup", total, total, how, share.evidence, share.estimate)
    if model.memory is None:
        return None  # the weights are missing already
    total = model.memory * model.cards
    how = f"not more than the {gib(model.memory)} stated for {_cards(model.cards)}"
    return MemoryPart("sleep backup", total, 0, how, estimate=True)


def _cards(count: int) -> str:
    return "1 card" if count == 1 else f"each of {count} cards"
