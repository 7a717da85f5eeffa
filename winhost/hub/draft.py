"""Make the draft of a workload file from a model's own files, with known and assumed values and notes for the user; or
an entry like those of the catalogue, so that the model is fitted to a host in the same way.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from winhost.core.dataclass import dataclass
from winhost.hub.catalogue import Entry
from winhost.hub.model_config import ModelConfig, model_config
from winhost.hub.repositories import NAME_A_FOLDER, ModelFolder, ModelRepository, listing_error
from winhost.hub.weights import Progress, Weights, weights_of
from winhost.model.secrets import SecretRef
from winhost.model.units import Bytes, MiB
from winhost.model.workload import SCHEMA, DType, Shape, is_model_name

CONTEXT = 16_384
SEQUENCES = 4
SHORT = 8192  # tokens: the context of a model that does not state how long it may be
_CONFIG = "config.json"
_LARGEST_CONFIG: Bytes = 2 * MiB
_PICKLES = re.compile(r"(pytorch_model|model)[^/]*\.(bin|pt|pth)|consolidated[^/]*\.pth")
_WRITES = re.compile(r"(ForCausalLM|ForConditionalGeneration|LMHeadModel)$")
_COLUMN = 36
_YAML_KEYWORDS = ("true", "false", "yes", "no", "on", "off", "y", "n", "null")  # YAML does not read these as strings


@dataclass(frozen=True)
class Line:
    """A key of the model with its value. why: the source of the value; assumed: the model does not state it."""

    key: str
    value: str | int | bool
    why: str = ""
    assumed: bool = False


@dataclass(frozen=True)
class Planned:
    """Values that were planned for a host. gpus: over which each layer is spread."""

    context: int
    sequences: int = SEQUENCES
    gpus: int = 1


@dataclass(frozen=True)
class Draft:
    """name: under which it is served; revision: a commit, empty for a folder; page: a URL about the model, or its
    folder; look: sentences on what the user has to decide or do; gpus: over which each layer is spread.
    """

    name: str
    model: str
    revision: str
    page: str
    lines: tuple[Line, ...]
    shape: tuple[Line, ...]
    look: tuple[str, ...]
    gpus: int = 1

    @property
    def assumed(self) -> tuple[str, ...]:
        return tuple(f"{line.key} {line.value}: {line.why}" for line in (*self.lines, *self.shape) if line.assumed)

    @property
    def text(self) -> str:
        """The text of the file, with the notes for the user at its beginning."""
        head = [f"# {self.model}, from {self.page}", *(f"# Look: {each}" for each in self.look)]
        body = [
            "",
            f"schema: {SCHEMA}",
            "",
            "models:",
            _row(2, f"{_scalar(self.name)}:", "the name under which it is served"),
        ]
        rows = [_row(4, f"{line.key}: {_scalar(line.value)}", _why(line)) for line in self.lines]
        shape = [_row(6, f"{line.key}: {_scalar(line.value)}", _why(line)) for line in self.shape]
        inner = [*rows, *([_row(4, "shape:", _CONFIG), *shape] if shape else [])]
        if self.gpus > 1:
            inner += [_row(4, "parallel:", ""), _row(6, f"tensor: {self.gpus}", "GPUs that share each layer")]
        return "\n".join([*head, *body, *inner, "", "needs:", "  must: [gpu-compute]", "", "exposure: loopback", ""])


def _row(indent: int, text: str, comment: str) -> str:
    row = " " * indent + text
    return f"{row:<{_COLUMN}}  # {comment}" if comment else row


def _scalar(value: str | int | bool) -> str:
    """Write a value as YAML, quoted where it could be read as a number or a keyword."""
    if isinstance(value, bool):
        return str(value).lower()
    plain = isinstance(value, int) or (
        re.fullmatch(r"[A-Za-z][A-Za-z0-9._/-]*", value) and value.lower() not in _YAML_KEYWORDS
    )
    return str(value) if plain else json.dumps(value)


def _why(line: Line) -> str:
    return f"assumed: {line.why}" if line.assumed else line.why


def draft(
    repository: ModelRepository, token: SecretRef | None, report: Progress, planned: Planned | None = None
) -> Draft:
    """Draft the workload file of a model. Raises WinhostError (NotListed)."""
    now, about = repository.current()
    files = now.sizes()
    config = config_of(now, files)
    weights = weights_of(now, files, report)
    pickles = sum(size for path, size in files.items() if _PICKLES.fullmatch(path))
    if weights is None and not pickles:
        gguf = any(path.endswith(".gguf") for path in files)
        why = (
            "has its weights as GGUF alone, and winhost plans for safetensors"
            if gguf
            else "has no weights that vLLM loads: no safetensors"
        )
        raise listing_error(now.model, why, _other_model(now, "Name the model that it was made from"))
    closed = bool(about.get("gated")) or bool(about.get("private"))
    if isinstance(now, ModelFolder):
        identity = [Line("id", now.model, "a folder: a plan pins the hash of each of its files")]
    else:
        was = "" if repository.revision == now.revision else f"{repository.revision}, now"
        identity = [Line("id", now.model), Line("revision", now.revision, was)]
    lines = (
        *identity,
        *([Line("token", token.written)] if closed and token else []),
        *_size(config, weights, pickles),
        *_numbers(config),
        *_length(config, planned),
    )
    look = (*_hub_notes(repository, now, about, closed, token), *config_notes(config, weights))
    shape = tuple(_shape(config, weights))
    gpus = planned.gpus if planned else 1
    return Draft(served_name(now.model), now.model, now.revision, now.page, lines, shape, look, gpus)


def config_of(repository: ModelRepository, files: Mapping[str, Bytes]) -> ModelConfig:
    """Read a model's configuration. files: sizes by path. Raises WinhostError (NotListed)."""
    if _CONFIG not in files:
        adapter = "adapter_config.json" in files
        what = "is an adapter (LoRA), not a model" if adapter else "has no config.json: winhost cannot tell its shape"
        raise listing_error(repository.model, what, _other_model(repository, "Name the model that it belongs to"))
    document: dict[str, Any] = repository.document(_CONFIG, _LARGEST_CONFIG)
    if "quantization_config" not in document and "hf_quant_config.json" in files:
        quantized = repository.document("hf_quant_config.json", _LARGEST_CONFIG).get("quantization")
        if isinstance(quantized, dict):
            document["quantization_config"] = {"quant_method": "modelopt", **quantized}
    return model_config(document)


def _other_model(repository: ModelRepository, advice: str) -> str:
    """Return the hint for what holds no model. advice: for a repository, whose page names the other model."""
    return NAME_A_FOLDER if isinstance(repository, ModelFolder) else f"{advice}; see {repository.page}"


def served_name(model: str) -> str:
    name = re.split(r"[/\\]", model.rstrip("/\\"))[-1][:63].rstrip("._-")
    return name if is_model_name(name) else "model"


# ---- lines


def _size(config: ModelConfig, weights: Weights | None, pickles: Bytes) -> Iterator[Line]:
    """Yield the bytes of quantized weights, which are more exact than a number of parameters, else that number."""
    if weights is None:
        yield Line("weights", pickles, "size of its pickles; how many parameters they have is not known")
        return
    headers = "its safetensors header" if weights.files == 1 else f"the headers of {weights.files} safetensors files"
    if config.quantized:
        yield Line("weights", weights.bytes, f"bytes, by {headers}")
    else:
        kinds = sorted(kind for kind in weights.parameters if re.fullmatch(r"[A-Z0-9_]{1,16}", kind))
        yield Line("parameters", weights.total, f"by {headers}: {', '.join(kinds)}")


def _numbers(config: ModelConfig) -> Iterator[Line]:
    dtype = config.served_dtype
    if config.dtype in (DType.BFLOAT16, DType.FLOAT16):
        yield Line("dtype", dtype)
    else:
        why = f"its weights are {config.dtype}" if config.dtype else "config.json names none"
        yield Line("dtype", dtype, why, assumed=True)
    if config.quantization:
        yield Line("quantization", config.quantization, f"{config.quantized}")
    if not (config.experts or config.more or config.other_layers or config.quantized):
        yield Line("dense", True, "no experts, and no input but text")


def _length(config: ModelConfig, planned: Planned | None) -> Iterator[Line]:
    if planned:
        yield Line("context", min(planned.context, config.longest or planned.context), "as planned")
        yield Line("sequences", planned.sequences, "at once, each at full context")
        return
    longest = f"it was made for {config.longest:,} tokens" if config.longest else "config.json does not say how long"
    yield Line("context", min(CONTEXT, config.longest or CONTEXT), longest, assumed=True)
    yield Line("sequences", SEQUENCES, "at once, each at full context", assumed=True)


def _shape(config: ModelConfig, weights: Weights | None) -> Iterator[Line]:
    if config.layers and config.kv_heads and config.head_dim and not config.latent:
        yield Line("layers", config.layers)
        if config.kv_heads_stated:
            yield Line("kv_heads", config.kv_heads)
        else:
            yield Line("kv_heads", config.kv_heads, "as many as attention heads; config.json names none", assumed=True)
        yield Line("head_dim", config.head_dim)
    tied = config.tied is True or (not weights.head if weights else bool(config.tied))
    if not config.hidden or not config.vocabulary:
        return
    tables = config.hidden * config.vocabulary * (1 if tied else 2)
    if weights is None or config.quantized or tables < weights.total:  # else one of these values must be wrong
        yield Line("hidden", config.hidden)
        yield Line("vocabulary", config.vocabulary)
        if weights or config.tied is not None:
            yield Line("tied_embeddings", tied)
        else:
            yield Line("tied_embeddings", False, "config.json does not say", assumed=True)


# ---- notes for the user


def _hub_notes(
    requested: ModelRepository, now: ModelRepository, about: Mapping[str, Any], closed: bool, token: SecretRef | None
) -> Iterator[str]:
    if now.model != requested.model:
        yield f"{requested.model} is called {now.model} by now."
    if closed:
        kind = "gated: whoever downloads it has to accept its licence there first" if about.get("gated") else "private"
        yield f"It is {kind}. " + (
            "The Linux that serves downloads it with the token." if token else "Name a token: token: env:HF_TOKEN"
        )


def config_notes(config: ModelConfig, weights: Weights | None) -> Iterator[str]:
    if config.remote_code:
        yield (
            "It wants to run Python files of its repository in the engine. Read them; then set trust_remote_code: "
            "true. Without it vLLM serves it only if it knows the architecture itself."
        )
    if weights is None:
        yield "Its weights are pickles, which can run programs when they are loaded. Prefer a copy with safetensors."
    if config.architecture is None or not _WRITES.search(config.architecture):
        named = config.architecture or "config.json names no architecture"
        yield f"Does it write text? {named}. See the models that vLLM supports."
    if config.quantized and config.quantization is None:
        yield f"It is quantized ({config.quantized}), which winhost has no name for; its weights count as they are."
    yield from _cache_notes(config)
    if config.experts:
        yield f"It is a mixture of {config.experts} experts: all of them take memory, also inactive ones."
    if config.more:
        yield f"It also takes {', '.join(config.more)}: state activations: once its engine's log has told them."


def _cache_notes(config: ModelConfig) -> Iterator[str]:
    if config.latent:
        yield "It keeps keys and values compressed (latent attention): state kv:, which its engine's log tells."
    elif not (config.layers and config.kv_heads and config.head_dim):
        yield "config.json does not tell the shape of its KV cache: state kv:, which its engine's log tells."
    elif config.partial:
        yield "Some of its layers see only a part of a sequence: its KV cache is at most what is computed."
    if config.other_layers and not config.latent:
        yield f"{config.other_layers} of its layers have no KV cache but a state of their own, which is not counted."


# ---- an entry


def entry_of(repository: ModelRepository, report: Progress = lambda done, of: None) -> Entry:
    """Make the entry of a model at its current commit. Raises WinhostError (NotListed), also for a model whose
    config.json does not tell its shape: for such a model, `winhost workload init` drafts a file.
    """
    now, about = repository.current()
    sizes = now.sizes()
    config = config_of(now, sizes)
    weights = weights_of(now, sizes, report)
    tied = config.tied is True or (weights is not None and not weights.head)
    shape = Shape(config.layers, config.kv_heads, config.head_dim, config.hidden, config.vocabulary, tied)
    tables = shape.embedding
    if weights is None or config.latent or shape.attention is None or tables is None or not config.heads:
        hint = f"Draft a file and complete it: winhost workload init {now.model} -o workload.yaml"
        raise listing_error(now.model, "its files do not tell what a KV cache or its weights take", hint)
    exact = config.quantized is None and tables.parameters < weights.total
    return Entry(
        id=now.model,
        name=served_name(now.model),
        released="",
        parameters=weights.total,
        dtype=config.served_dtype,
        quantization=config.quantization,
        weights=None if exact else weights.bytes,
        download=sum(sizes.values()),
        shape=shape,
        heads=config.heads,
        intermediate=config.intermediate or tables.hidden,
        longest=config.longest or SHORT,
        experts=config.experts,
        takes=config.more,
        gated=bool(about.get("gated")),
        revision=now.revision or None,
        sources={"all": now.page},
    )
