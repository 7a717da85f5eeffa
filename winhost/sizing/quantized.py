"""The weights of a quantized model, by its parameters and by the modules that its checkpoint leaves unquantized."""

import re
from fnmatch import fnmatchcase
from fractions import Fraction
from functools import lru_cache
from itertools import chain
from math import ceil

from winhost.core.dataclass import dataclass
from winhost.model.units import Bytes
from winhost.model.workload import Attention, Embedding, Model, Quantization

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

# Formats whose checkpoints may leave attention in 16 bits (compressed-tensors and ModelOpt list what they ignore).
PARTLY = (Quantization.INT4, Quantization.INT8, Quantization.FP8, Quantization.NVFP4, Quantization.MXFP4)
MARGIN = Fraction(102, 100)  # a checkpoint was seen to take 1.8 % more than its parameters
# The width of all queries, in widths of the model, if the number of heads is not stated: Gemma 3 27B has 0.76, Qwen3
# 0.6B 2.
NARROWEST_QUERIES, WIDEST_QUERIES = Fraction(3, 4), Fraction(2)
LARGEST_ATTENTION = Fraction(2, 5)  # the largest share of attention in linear layers: Qwen3 0.6B 40 %, an 8B 17 to 20 %

_PARTS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
_MLP = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
# Parts that are never quantized or too small to count: tables of embeddings, norms, routers.
_IGNORED_PARTS = re.compile(
    r"(?:.*[.*])?(?:lm_head|embed_tokens|wte|\w*norm\w*|gate|router|shared_expert_gate|e_score_correction_bias)"
)


@dataclass(frozen=True)
class QuantizedWeights:
    """bytes: at most; least: at least; how: the computation."""

    bytes: Bytes
    least: Bytes
    how: str
    evidence: tuple[str, ...]


def quantized_weights(
    model: Model, quantization: Quantization, embedding: Embedding, parameters: int
) -> QuantizedWeights:
    bits, quantized = model.dtype.bytes * 8, BITS[quantization]
    linear = parameters - embedding.parameters
    least = ceil(linear * quantized / 8) + embedding.parameters * model.dtype.bytes
    how = (
        f"{linear:,} parameters at {float(quantized):.3f} bits with their scales, and {embedding.parameters:,} of "
        f"embeddings at {bits} bits"
    )
    if quantization not in PARTLY and not model.unquantized:
        return QuantizedWeights(least, least, how, ("quantized-formats",))

    def total_bytes(kept: int) -> Bytes:
        return max(least, ceil(least + kept * (bits - quantized) / 8))

    evidence = ("quantized-formats", "quantized-attention")
    kept = _unquantized_range(model, embedding, linear)
    if kept is not None:
        few, many = kept
        named = f"{few:,} to {many:,}" if many > few else f"{few:,}" if few else "none"
        how += f"; of the linear layers unquantized leaves {named} at {bits} bits"
        return QuantizedWeights(ceil(total_bytes(many) * MARGIN), total_bytes(few), how, evidence)
    if model.attention is None:
        many, what = ceil(linear * LARGEST_ATTENTION), "attention, of unknown shape,"
    else:
        attention = min(linear, _attention(model.attention, embedding.hidden, _widths(model, embedding)[1]))
        many, what = attention + 2 * (linear - attention) // model.attention.layers, "attention and two layers"
    settles = (
        "state unquantized, the list ignore or modules_to_not_convert in its config.json"
        if model.unquantized is None
        else "unquantized names a module of unknown size; state weights, the size of its files"
    )
    how += f"; more where the checkpoint leaves {what} ({many:,}) at {bits} bits: {settles}"
    return QuantizedWeights(ceil(total_bytes(many) * MARGIN), least, how, evidence)


def _widths(model: Model, embedding: Embedding) -> tuple[int, int]:
    """Return the least and the greatest width of all queries."""
    if model.shape.heads is not None and model.shape.head_dim is not None:
        width = model.shape.heads * model.shape.head_dim
        return width, width
    return ceil(embedding.hidden * NARROWEST_QUERIES), ceil(embedding.hidden * WIDEST_QUERIES)


def _attention(attention: Attention, hidden: int, width: int) -> int:
    return attention.layers * 2 * hidden * (width + attention.kv_heads * attention.head_dim)


def _unquantized_range(model: Model, embedding: Embedding, linear: int) -> tuple[int, int] | None:
    """Return the least and the greatest number of parameters in the linear layers that the model's list leaves
    unquantized; None if there is no list, or if it names a module of unknown size.
    """
    if model.unquantized is None:
        return None
    plain = (each.removeprefix("re:").strip("^$").replace("\\", "") for each in model.unquantized)
    patterns = [each for each, name in zip(model.unquantized, plain, strict=True) if not _IGNORED_PARTS.fullmatch(name)]
    if not patterns:
        return 0, 0
    if model.attention is None:
        return None
    listed = _listed_layers(tuple(patterns), model.attention.layers)
    if listed is None:
        return None
    few, many = (
        sum(_size(name, model.attention, embedding.hidden, width, linear) for name in listed)
        for width in _widths(model, embedding)
    )
    return min(few, many), max(few, many)


@lru_cache(maxsize=64)
def _listed_layers(patterns: tuple[str, ...], layers: int) -> frozenset[str] | None:
    """Return the linear layers that match the patterns; None if a pattern matches none. Cached, because a search for
    fixes calls it hundreds of times, and checkpoints list hundreds of modules.
    """
    names = [f"model.layers.{number}.{part}" for number in range(layers) for part in (*_PARTS, *_MLP)]
    found = [[name for name in names if _matches(pattern, name)] for pattern in patterns]
    return frozenset(chain(*found)) if all(found) else None


def _matches(pattern: str, name: str) -> bool:
    """Tell whether a pattern matches a module: a regular expression, or whole parts of a name with * as a wildcard."""
    if pattern.startswith("re:"):
        try:
            return re.match(pattern[3:], name) is not None
        except re.error:
            return False
    parts, names = pattern.strip(".").split("."), name.split(".")
    if parts[-1] == "gate*":  # is written for routers; checkpoints differ in whether gate_proj is meant as well
        return False
    return any(
        all(map(fnmatchcase, names[start : start + len(parts)], parts)) for start in range(len(names) - len(parts) + 1)
    )


def _size(name: str, attention: Attention, hidden: int, width: int, linear: int) -> int:
    part = name.split(".", 3)[3]
    if part in _MLP:
        return max(0, linear - _attention(attention, hidden, width)) // attention.layers // len(_MLP)
    return hidden * (width if part in (_PARTS[0], _PARTS[3]) else attention.kv_heads * attention.head_dim)
