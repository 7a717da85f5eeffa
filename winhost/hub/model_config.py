"""Read a model's shape from its config.json. Architectures use different names for the same value. Missing values are
None, never guessed.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from winhost.core.dataclass import dataclass
from winhost.model.workload import DType, Quantization

# In models with several parts, the part that generates text.
_TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_VOCABULARY = ("vocab_size", "padded_vocab_size")
_CONTEXT = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length")
_INTERMEDIATE = ("moe_intermediate_size", "intermediate_size", "ffn_hidden_size", "n_inner")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_MAX_COUNT = 10_000_000


@dataclass(frozen=True)
class ModelConfig:
    """longest: the context in tokens that the model was made for; intermediate: the width of one expert's MLP; experts:
    their number in a mixture; latent: keys and values are stored compressed.

    partial: some layers see only a part of the sequence; other_layers: layers without a KV cache, which `layers` does
    not count; quantized: the name of the format in the file; quantization: the same as winhost's type, if it knows the
    format; more: inputs other than text.
    """

    architecture: str | None
    layers: int | None
    heads: int | None
    kv_heads: int | None
    kv_heads_stated: bool
    head_dim: int | None
    hidden: int | None
    vocabulary: int | None
    tied: bool | None
    dtype: str | None
    longest: int | None
    intermediate: int | None
    experts: int | None
    latent: bool
    partial: bool
    other_layers: int
    quantized: str | None
    quantization: Quantization | None
    remote_code: bool
    more: tuple[str, ...]

    @property
    def served_dtype(self) -> DType:
        """The type in which it is served: vLLM uses 16 bits for weights that are stored in 32."""
        return DType.FLOAT16 if self.dtype == "float16" else DType.BFLOAT16


def model_config(document: Mapping[str, Any]) -> ModelConfig:
    text = _text_part(document)
    heads, hidden = _count(text, _HEADS, 65_536), _count(text, _HIDDEN, 65_536)
    one = text.get("multi_query") is True and text.get("new_decoder_architecture") is not True
    kv_heads = 1 if one else _count(text, _KV_HEADS, 65_536)
    head_dim = _count(text, ("head_dim", "kv_channels"), 65_536)
    if head_dim is None and heads and hidden and hidden % heads == 0:
        head_dim = hidden // heads
    layers, others, partial = _layers(text)
    named = (part.get(name) for part in (document, text) for name in ("quantization_config", "compression_config"))
    quantized = next((each for each in named if isinstance(each, dict)), {})
    tied = (part.get("tie_word_embeddings") for part in (text, document))
    architectures = document.get("architectures")
    return ModelConfig(
        architecture=_identifier(architectures[0]) if isinstance(architectures, list) and architectures else None,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads if kv_heads is not None or _has_any(text, _KV_HEADS) else heads,
        kv_heads_stated=kv_heads is not None,
        head_dim=head_dim,
        hidden=hidden,
        vocabulary=_count(text, _VOCABULARY, _MAX_COUNT) or _count(document, _VOCABULARY, _MAX_COUNT),
        tied=next((each for each in tied if type(each) is bool), None),
        dtype=_dtype(document, text),
        longest=_count(text, _CONTEXT, 100_000_000) or _count(document, _CONTEXT, 100_000_000),
        intermediate=_count(text, _INTERMEDIATE, 10_000_000),
        experts=_count(text, _EXPERTS, 65_536),
        latent=_count(text, ("kv_lora_rank",), _MAX_COUNT) is not None,
        partial=partial,
        other_layers=others,
        quantized=_quantization_label(quantized),
        quantization=_quantization(quantized),
        remote_code=isinstance(document.get("auto_map"), dict),
        more=tuple(sorted(_non_text_parts(document))),
    )


def _text_part(document: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in _TEXT_PARTS:
        part = document.get(name)
        if isinstance(part, dict) and not _has_any(document, _LAYERS):
            return _text_part(part)
    return document


def _non_text_parts(document: Mapping[str, Any]) -> Iterator[str]:
    for name in ("vision", "audio", "video", "speech"):
        if any(key.startswith(name) and isinstance(value, dict) for key, value in document.items()):
            yield name
    thinker = document.get("thinker_config")
    if isinstance(thinker, dict):
        yield from _non_text_parts(thinker)


def _has_any(text: Mapping[str, Any], names: tuple[str, ...]) -> bool:
    return any(text.get(name) is not None for name in names)


def _count(text: Mapping[str, Any], names: tuple[str, ...], most: int) -> int | None:
    """Return the first of these values that is a whole number from 1 to `most`."""
    for name in names:
        value = text.get(name)
        if type(value) is int and 1 <= value <= most:
            return value
    return None


def _layers(text: Mapping[str, Any]) -> tuple[int | None, int, bool]:
    """Count the layers with and without a KV cache, and tell whether some of the first see only a window."""
    layers = _count(text, _LAYERS, 65_536)
    kinds = text.get("layer_types") or text.get("layers_block_type")
    if isinstance(kinds, list) and layers == len(kinds):
        cached = [kind for kind in kinds if isinstance(kind, str) and "attention" in kind and "linear" not in kind]
        windows = any(kind not in ("full_attention", "attention") for kind in cached)
        return (len(cached) or None, layers - len(cached), windows)
    window = type(text.get("sliding_window")) is int and text.get("use_sliding_window") is not False
    mixed = any(text.get(name) for name in ("hybrid_override_pattern", "mamba_d_state", "ssm_cfg", "attn_layer_period"))
    return (None if mixed else layers, layers or 0 if mixed else 0, window)


def _dtype(document: Mapping[str, Any], text: Mapping[str, Any]) -> str | None:
    named = (_identifier(part.get(name)) for part in (text, document) for name in ("dtype", "torch_dtype"))
    found = next(filter(None, named), None)
    return found.removeprefix("torch.") if found else None


def _identifier(value: Any) -> str | None:
    return value if isinstance(value, str) and value.isascii() and value.isprintable() and len(value) <= 100 else None


def _quantization_label(config: Mapping[str, Any]) -> str | None:
    if not config:
        return None
    form = _identifier(config.get("format")) or _identifier(config.get("quant_algo"))
    parts = (_identifier(config.get("quant_method")), form)
    return ", ".join(filter(None, parts)) or "in a way that it does not name"


def _quantization(config: Mapping[str, Any]) -> Quantization | None:
    method, bits = _identifier(config.get("quant_method")), config.get("bits")
    form = _identifier(config.get("format")) or _identifier(config.get("quant_algo")) or ""
    if method in ("compressed-tensors", "modelopt", "modelopt_fp4"):
        return _FORMS.get(form.lower()) or _packed_width(config, form)
    if method == "gptq":
        return {4: Quantization.GPTQ, 8: Quantization.INT8}.get(bits if type(bits) is int else 0)
    return _METHODS.get(method or "")


def _packed_width(config: Mapping[str, Any], form: str) -> Quantization | None:
    """Return the format by the width of weights in compressed-tensors, if all groups have the same width."""
    groups = config.get("config_groups")
    if form != "pack-quantized" or not isinstance(groups, dict):
        return None
    weights = [group.get("weights") for group in groups.values() if isinstance(group, dict)]
    widths = {_count(each, ("num_bits",), 64) for each in weights if isinstance(each, dict)}
    return {4: Quantization.INT4, 8: Quantization.INT8}.get(widths.pop() or 0) if len(widths) == 1 else None


_METHODS: Mapping[str, Quantization] = {
    "awq": Quantization.AWQ,
    "fp8": Quantization.FP8,
    "fbgemm_fp8": Quantization.FP8,
    "mxfp4": Quantization.MXFP4,
}
_FORMS: Mapping[str, Quantization] = {
    "int-quantized": Quantization.INT8,
    "float-quantized": Quantization.FP8,
    "nvfp4-pack-quantized": Quantization.NVFP4,
    "fp8": Quantization.FP8,
    "nvfp4": Quantization.NVFP4,
}
