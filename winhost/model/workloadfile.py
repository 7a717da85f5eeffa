"""`workload.yaml`: what people write in it, and the workload that it means."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import partial
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Annotated, Any, Literal

from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, PlainValidator, WithJsonSchema, field_validator

from winhost.model.capabilities import CAPABILITIES
from winhost.model.errors import did_you_mean, visible
from winhost.model.secrets import SecretRef
from winhost.model.units import SIZE_PATTERN, parse_size
from winhost.model.workload import (
    BODY_BOUNDS,
    VERSIONS,
    Attention,
    Availability,
    Body,
    Deploy,
    DType,
    Embedding,
    Exposure,
    KeyLimit,
    KvMirror,
    LoadFormat,
    Lora,
    Mirror,
    Model,
    ModelState,
    Needs,
    PerKey,
    Quantization,
    Video,
    Workload,
)
from winhost.model.written import Duration, Text, Written, text_schema
from winhost.model.yamlfile import Finding, load_placed

SCHEMA = "winhost.workload/1"

# ---- what people write

_PARAMETERS = r"([0-9]{1,6}(?:\.[0-9]{1,9})?) ?([MBT])"
_THOUSANDS = {"M": 10**6, "B": 10**9, "T": 10**12}
_KEY_NAME = r"[A-Za-z0-9._-]{1,64}"
_FIELD = r"(?:chat_template_kwargs\.)?[A-Za-z_][A-Za-z0-9_]{0,63}"
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
# The last label of a name begins with a letter, and no address does.
_HOST = rf"(?:{_LABEL}\.)+[a-z](?:[a-z0-9-]{{0,61}}[a-z0-9])?(?::[0-9]{{1,5}})?"
_MODEL_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"


def _parameters(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    found = re.fullmatch(_PARAMETERS, value) if isinstance(value, str) else None
    if found is None or not Fraction(found[1]):
        raise ValueError("should be a number of parameters such as 8.03B, 494M, or a whole number")
    return int(Fraction(found[1]) * _THOUSANDS[found[2]])


def _capability(text: str) -> str:
    if text in CAPABILITIES:
        return text
    raise ValueError(f"'{visible(text)}' is no capability{did_you_mean(text, CAPABILITIES)}")


def is_model_name(text: str) -> bool:
    return re.fullmatch(_MODEL_NAME, text) is not None


def _model_name(text: str) -> str:
    if is_model_name(text):
        return text
    raise ValueError("is not a model name: letters, digits, '.', '_' and '-'; the model's repository goes to id")


def _key_name(text: str) -> str:
    if re.fullmatch(_KEY_NAME, text):
        return text
    raise ValueError("is not the name of an API key: up to 64 letters, digits, '.', '_' and '-'")


def _commit(text: str) -> str:
    if re.fullmatch(r"[0-9a-f]{40}", text):
        return text
    raise ValueError("is not a commit: 40 hexadecimal digits; a branch may lead elsewhere tomorrow")


def _matching(pattern: str, what: str) -> Callable[[str], str]:
    def check(text: str) -> str:
        if re.fullmatch(pattern, text):
            return text
        raise ValueError(f"is not {what}")

    return check


def _bound(text: str) -> str:
    if text in BODY_BOUNDS:
        return text
    raise ValueError(f"'{visible(text)}' is no bound; there are {', '.join(BODY_BOUNDS)}")


def _network(text: str) -> str:
    try:
        network = ip_network(text)
    except ValueError:
        raise ValueError("is not a network such as 10.20.0.5/32 or 10.20.0.0/24") from None
    if not network.prefixlen:
        raise ValueError("is every address: any client could say that it is another")
    return str(network)


def _version(value: object) -> Version:
    # 12.10 without quotes is the number 12.1, so numbers are not taken for versions.
    if isinstance(value, str):
        try:
            return Version(value)
        except InvalidVersion:
            pass
    raise ValueError('should be a version in quotes, such as "0.33.0"')


def _kernel(value: object) -> object:
    """`uname -r` without what the distribution puts behind the number."""
    return value.partition("-")[0] if isinstance(value, str) else value


_Size = Annotated[
    int,
    PlainValidator(parse_size),
    WithJsonSchema({"anyOf": [text_schema(SIZE_PATTERN), {"type": "integer", "minimum": 1}]}),
]
_Parameters = Annotated[
    int,
    PlainValidator(_parameters),
    WithJsonSchema({"anyOf": [text_schema(_PARAMETERS), {"type": "integer", "minimum": 1}]}),
]
_Capability = Annotated[
    str, AfterValidator(_capability), WithJsonSchema({"type": "string", "enum": list(CAPABILITIES)})
]
_ModelName = Annotated[str, AfterValidator(_model_name), WithJsonSchema(text_schema(_MODEL_NAME))]
_Version = Annotated[Version, PlainValidator(_version), WithJsonSchema({"type": "string"})]
_Commit = Annotated[str, AfterValidator(_commit), WithJsonSchema(text_schema(r"[0-9a-f]{40}"))]
_Kernel = Annotated[_Version, BeforeValidator(_kernel), WithJsonSchema({"type": "string"})]
_Network = Annotated[str, AfterValidator(_network)]
_Count = Annotated[int, Field(ge=1, le=65_536)]
_Tokens = Annotated[int, Field(ge=1, le=100_000_000)]
_KeyName = Annotated[str, AfterValidator(_key_name), WithJsonSchema(text_schema(_KEY_NAME))]
_Field = Annotated[str, AfterValidator(_matching(_FIELD, "the name of a field")), WithJsonSchema(text_schema(_FIELD))]
_Host = Annotated[
    str,
    AfterValidator(_matching(_HOST, "a host's name in small letters, without a URL")),
    WithJsonSchema(text_schema(_HOST)),
]
_Bound = Annotated[str, AfterValidator(_bound), WithJsonSchema({"type": "string", "enum": list(BODY_BOUNDS)})]


class ShapeOptions(Written):
    """The numbers of a model's config.json from which memory is computed."""

    layers: _Count | None = Field(
        default=None, description="num_hidden_layers. Only those that have a KV cache, where some have none."
    )
    kv_heads: _Count | None = Field(default=None, description="num_key_value_heads.")
    head_dim: _Count | None = Field(default=None, description="head_dim, or hidden_size / num_attention_heads.")
    hidden: _Count | None = Field(default=None, description="hidden_size.")
    vocabulary: Annotated[int, Field(ge=1, le=10_000_000)] | None = Field(default=None, description="vocab_size.")
    tied_embeddings: bool | None = Field(default=None, description="tie_word_embeddings. Default: false.")


class ParallelOptions(Written):
    """Over how many cards a model is spread: tensor by pipeline by data."""

    tensor: _Count | None = Field(default=None, description="Cards that share each layer. Default: 1.")
    pipeline: _Count | None = Field(default=None, description="Stages that share the layers. Default: 1.")
    data: _Count | None = Field(default=None, description="Whole copies. Default: 1.")
    nodes: _Count | None = Field(
        default=None, description="Machines that share the stages, as nodes of one Kubernetes cluster. Default: 1."
    )


class LoraOptions(Written):
    """LoRA adapters beside a model."""

    adapters: _Count = Field(description="How many are loaded at once.")
    each: _Size = Field(description="Size of the largest adapter's file.")


class BodyOptions(Written):
    """What requests to a model may contain, beyond the lists of the gateway: docs/gateway.md."""

    fields: tuple[_Field, ...] | None = Field(
        default=None, description="Fields that are on no list, such as priority. Read first why. Default: none."
    )
    media: tuple[_Host, ...] | None = Field(
        default=None,
        description=(
            "Hosts from which the engine may fetch images, sound and video, each with its port where that is not the "
            "usual one. For deploy: kubernetes. Default: none; media come in the requests, as data: URLs."
        ),
    )
    most: dict[_Bound, _Tokens] | None = Field(
        default=None, description="Other bounds, such as {n: 32}. Default: those of the gateway."
    )


class ModelOptions(Written):
    """One model, and how it is served."""

    id: Text | None = Field(default=None, description="Repository or path of the model. Default: its name here.")
    revision: _Commit | None = Field(
        default=None, description="The commit of the repository, all 40 digits. Default: none is fixed."
    )
    token: SecretRef | None = Field(
        default=None, description="A secret reference to a token that may read the repository. Default: none."
    )
    trust_remote_code: bool | None = Field(
        default=None,
        description="Whether Python files of the repository may run in the engine. Read them first. Default: false.",
    )
    parameters: _Parameters | None = Field(
        default=None, description="All of them, also those of experts that rest: 8.03B, 494M, or a whole number."
    )
    dtype: DType | None = Field(default=None, description="Of what is not quantized. Default: bfloat16.")
    quantization: Quantization | None = Field(
        default=None, description="How the linear layers are stored. Default: not quantized."
    )
    weights: _Size | None = Field(
        default=None, description="Size of all weight files, instead of computing it from parameters."
    )
    shape: ShapeOptions | None = Field(default=None, description="From config.json.")
    context: _Tokens | None = Field(default=None, description="Tokens of the longest sequence.")
    sequences: _Count | None = Field(
        default=None, description="Sequences at once, at full context, in each data parallel copy. Default: 1."
    )
    kv_dtype: Literal["auto", "fp8"] | None = Field(
        default=None, description="Of the KV cache. Default: auto, which is dtype."
    )
    kv: _Size | None = Field(
        default=None, description="KV cache on each card, instead of computing it from shape, context and sequences."
    )
    activations: _Size | None = Field(
        default=None,
        description="Working memory on each card while it computes, as the engine reports it at its start.",
    )
    memory: _Size | None = Field(
        default=None, description="Everything that one of its cards must hold for it, instead of computing it."
    )
    load_format: LoadFormat | None = Field(
        default=None, description="From what vLLM loads the weights, as for --load-format. Default: auto."
    )
    state: ModelState | None = Field(
        default=None,
        description=(
            "resident: always ready; sleeping: takes turns with the others that sleep on its cards. Default: resident."
        ),
    )
    sleep_level: Literal[1, 2] | None = Field(
        default=None,
        description=(
            "1 keeps the weights in host memory, 2 loads them again. "
            "Default: what memory and swap_within allow, 1 first."
        ),
    )
    dense: bool | None = Field(
        default=None,
        description=(
            "Whether it has no experts and takes text alone. Only then may a plan choose level 2. Default: false."
        ),
    )
    suspend: Literal["disk"] | bool | None = Field(
        default=None,
        description=(
            "Whether its process leaves the card altogether while it sleeps. disk: it is also written to disk once, "
            "by CRIU, and starts from there. One card, Linux's own driver, no container. Default: false."
        ),
    )
    parallel: ParallelOptions | None = Field(
        default=None, description="Over how many cards it is spread. Default: one."
    )
    lora: LoraOptions | None = Field(default=None, description="Adapters beside it. Default: none.")
    body: BodyOptions | None = Field(
        default=None, description="What requests may contain. Default: what clients usually send."
    )


class NeedsOptions(Written):
    """Capabilities that the workload wants."""

    must: tuple[_Capability, ...] = Field(default=(), description="Without these a path will not do.")
    nice: tuple[_Capability, ...] = Field(default=(), description="These decide between paths that will do.")


class AvailabilityOptions(Written):
    """When it must answer."""

    start_on_boot: bool | None = Field(
        default=None, description="Whether it starts with the machine, without anybody logging on. Default: false."
    )
    swap_within: Duration | None = Field(
        default=None, description="How long a sleeping model may take until it answers. Default: any time."
    )


class VersionsOptions(Written):
    """Versions that are or will be on the target, where facts do not tell."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    vllm: _Version | None = Field(default=None, description="As `vllm --version` says.")
    cuda: _Version | None = Field(default=None, description="CUDA toolkit of the engine.")
    toolkit: _Version | None = Field(default=None, description="nvidia-container-toolkit.")
    wsl: _Version | None = Field(default=None, description="As `wsl --version` says.")
    kernel: _Kernel | None = Field(default=None, description="As `uname -r` says.")
    driver: _Version | None = Field(default=None, description="NVIDIA driver of the target; of WSL, that of Windows.")


class KvMirrorOptions(Written):
    """KV caches are written through to storage, so that they outlive the engine."""

    through: Mirror = Field(description="tiers: vLLM's own, through /dev/shm; lmcache: a server beside it.")
    staging: _Size = Field(description="Host memory of each engine on the way to storage.")
    keep: _Size | None = Field(
        default=None,
        description=(
            "tiers: what the files of each engine may take of the disk; beyond it the least used go. Default: 100 GiB."
        ),
    )


class VideoOptions(Written):
    """Video is transcoded on a card beside the models."""

    streams: _Count = Field(description="How many at once.")
    each: _Size | None = Field(
        default=None, description="What one stream holds of the card's memory, as nvidia-smi shows it."
    )


class KeyLimitOptions(Written):
    """What one API key may use of the gateway."""

    concurrent: _Count | None = Field(default=None, description="Requests at a time. Default: no limit.")
    requests_per_minute: _Tokens | None = Field(default=None, description="Requests per minute. Default: no limit.")
    tokens_per_minute: _Tokens | None = Field(
        default=None, description="Tokens per minute, of prompts and answers together. Default: no limit."
    )


class PerKeyOptions(KeyLimitOptions):
    """What each API key may use of the gateway."""

    keys: dict[_KeyName, KeyLimitOptions] = Field(
        default={}, description="Keys by their names that may use something else; what is left out is as for every key."
    )


class WorkloadFile(Written):
    """workload.yaml: the models to serve, and what they need beside memory."""

    schema_: Literal["winhost.workload/1"] = Field(alias="schema", description="The version of this format.")
    models: dict[_ModelName, ModelOptions] = Field(description="The models by the names under which they are served.")
    needs: NeedsOptions | None = Field(default=None, description="Capabilities that the workload wants.")
    availability: AvailabilityOptions | None = Field(default=None, description="When it must answer.")
    exposure: Exposure | None = Field(default=None, description="From where it is reached. Default: loopback.")
    keep_windows_usable: bool | None = Field(
        default=None, description="Whether people go on working on the Windows of this machine. Default: false."
    )
    versions: VersionsOptions | None = Field(default=None, description="Versions where facts do not tell.")
    kv_mirror: KvMirrorOptions | None = Field(default=None, description="Default: KV caches live in the engine alone.")
    video: VideoOptions | None = Field(default=None, description="Default: none.")
    deploy: Deploy | None = Field(
        default=None,
        description=(
            "units: systemd starts the engines of one Linux; kubernetes: a cluster runs them as pods. Default: units."
        ),
    )
    per_key: PerKeyOptions | None = Field(
        default=None, description="What each API key may use of the gateway. Default: as much as there is."
    )

    trusted_proxies: tuple[_Network, ...] | None = Field(
        default=None,
        description=(
            "Networks of proxies before the gateway, such as 10.20.0.5/32, which say in X-Forwarded-For for whom they "
            "ask. Default: none, and the header says nothing."
        ),
    )
    proxy_protocol: bool | None = Field(
        default=None,
        description="Whether those proxies say it by the PROXY protocol instead (v1 or v2). Default: false.",
    )

    @field_validator("models")
    @classmethod
    def _is_about_something(cls, models: Mapping[str, object]) -> Mapping[str, object]:
        if not models:
            raise ValueError("is empty: name at least one model")
        return models


# ---- from what is written to what it means


def load_workload(path: Path, *, in_cluster: bool = False) -> Workload:
    """Reads a workload.yaml. in_cluster: it is to run in one, also where it does not say so.

    Raises UsageError (FileFaults) with all of its faults.
    """
    found = _meant(load_placed(path, WorkloadFile, partial(_disagreements, in_cluster=in_cluster)).value)
    return replace(found, deploy=Deploy.KUBERNETES) if in_cluster else found


def _meant(file: WorkloadFile) -> Workload:
    given = _given(file, "exposure", "keep_windows_usable", "deploy", "trusted_proxies", "proxy_protocol")
    if file.needs:
        given["needs"] = Needs(file.needs.must, file.needs.nice)
    if file.availability:
        given["availability"] = Availability(**_given(file.availability, "start_on_boot", "swap_within"))
    if file.versions:
        given["versions"] = _given(file.versions, *VERSIONS)
    if file.kv_mirror:
        given["kv_mirror"] = KvMirror(**_given(file.kv_mirror, "through", "staging", "keep"))
    if file.video:
        given["video"] = Video(file.video.streams, file.video.each)
    if file.per_key:
        given["per_key"] = _per_key(file.per_key)
    return Workload(models=tuple(_model(name, options) for name, options in file.models.items()), **given)


def _per_key(options: PerKeyOptions) -> PerKey:
    limits = tuple(KeyLimitOptions.model_fields)
    each = _given(options, *limits)
    keys = {name: KeyLimit(**(each | _given(own, *limits))) for name, own in options.keys.items()}
    return PerKey(KeyLimit(**each), keys)


_TAKEN_OVER = (
    "id",
    "revision",
    "token",
    "trust_remote_code",
    "parameters",
    "dtype",
    "quantization",
    "weights",
    "context",
    "sequences",
    "kv",
    "activations",
    "memory",
    "load_format",
    "state",
    "sleep_level",
    "dense",
    "suspend",
)


def _model(name: str, options: ModelOptions) -> Model:
    given = {"id": name} | _given(options, *_TAKEN_OVER)
    shape = options.shape or ShapeOptions()
    if options.parallel:
        given |= _given(options.parallel, "tensor", "pipeline", "data", "nodes")
    if options.lora:
        given["lora"] = Lora(options.lora.adapters, options.lora.each)
    if options.body:
        given["body"] = Body(**_given(options.body, "fields", "media", "most"))
    if options.suspend == "disk":
        given |= {"suspend": True, "image": True}
    return Model(
        name=name,
        attention=_attention(shape),
        embedding=_embedding(shape),
        kv_bytes=1 if options.kv_dtype == "fp8" else given.get("dtype", DType.BFLOAT16).bytes,
        level_stated=options.sleep_level is not None,
        **given,
    )


def _attention(shape: ShapeOptions) -> Attention | None:
    if shape.layers is None or shape.kv_heads is None or shape.head_dim is None:
        return None
    return Attention(shape.layers, shape.kv_heads, shape.head_dim)


def _embedding(shape: ShapeOptions) -> Embedding | None:
    if shape.vocabulary is None or shape.hidden is None:
        return None
    return Embedding(shape.vocabulary, shape.hidden, bool(shape.tied_embeddings))


def _given(options: Written, *names: str) -> dict[str, Any]:
    """What is written; the rest is left to the defaults of what it means."""
    return {name: value for name in names if (value := getattr(options, name)) is not None}


# ---- what is wrong only when the parts are seen together


def _disagreements(file: WorkloadFile, *, in_cluster: bool = False) -> Iterator[Finding]:
    if file.needs:
        yield from _needed_twice(file.needs)
    if file.proxy_protocol:
        yield from _by_protocol(file.trusted_proxies or ())
    in_pods = in_cluster or file.deploy is Deploy.KUBERNETES
    if in_pods:
        yield from _of_pods(file)
    if file.kv_mirror and file.kv_mirror.keep and file.kv_mirror.through is Mirror.LMCACHE:
        yield ("kv_mirror", "keep"), "is for tiers: an LMCache server keeps staging, in memory"
    for name, options in file.models.items():
        for checked in (_sizes, _shape, _spread, _sleep, _in_pods if in_pods else _on_one_machine):
            for loc, message in checked(options):
                yield ("models", name, *loc), message


def _of_pods(file: WorkloadFile) -> Iterator[Finding]:
    if file.deploy is Deploy.UNITS:
        yield ("deploy",), "is units, and this is for a cluster: write deploy: kubernetes, or leave it out"
    if file.kv_mirror and file.kv_mirror.through is Mirror.LMCACHE:
        yield ("kv_mirror", "through"), "lmcache needs a server beside the engine, which no manifest has: take tiers"


def _by_protocol(proxies: tuple[str, ...]) -> Iterator[Finding]:
    if not proxies:
        yield ("proxy_protocol",), "is for proxies: name them in trusted_proxies"
    for position, each in enumerate(proxies):
        if any(ip_address(own) in ip_network(each) for own in ("127.0.0.1", "::1")):
            message = (
                "has the gateway's own machine in it, from where checks reach the gateway without the header of "
                "proxy_protocol: leave that out, and such a proxy says in X-Forwarded-For for whom it asks"
            )
            yield ("trusted_proxies", position), message


def _needed_twice(needs: NeedsOptions) -> Iterator[Finding]:
    counts = Counter((*needs.must, *needs.nice))
    for kind, names in (("must", needs.must), ("nice", needs.nice)):
        seen: set[str] = set(needs.must) if kind == "nice" else set()
        for position, name in enumerate(names):
            if counts[name] > 1 and name in seen:
                yield ("needs", kind, position), f"'{name}' is asked for twice"
            seen.add(name)


def _sizes(options: ModelOptions) -> Iterator[Finding]:
    if options.parameters is None and options.weights is None and options.memory is None:
        yield (), "says nothing of its size: give parameters, or weights, or memory"
    if options.memory is None:
        return
    for key in ("kv", "activations", "lora"):
        if getattr(options, key) is not None:
            yield (key,), "cannot be said beside memory, which is everything on a card"


_TOGETHER = (("layers", "kv_heads", "head_dim"), ("vocabulary", "hidden"))


def _shape(options: ModelOptions) -> Iterator[Finding]:
    shape = options.shape
    if shape is None:
        return
    for group in _TOGETHER:
        missing = [key for key in group if getattr(shape, key) is None]
        if 0 < len(missing) < len(group):
            yield ("shape",), f"lacks {' and '.join(missing)}: {', '.join(group)} tell something only together"
    embedding = _embedding(shape)
    if embedding and options.parameters is not None and embedding.parameters >= options.parameters:
        message = (
            f"{embedding.parameters:,} parameters of embeddings are not less than the {options.parameters:,} of all"
        )
        yield ("shape", "vocabulary"), message
    if shape.tied_embeddings is not None and shape.vocabulary is None:
        yield ("shape", "tied_embeddings"), "tells something only with vocabulary and hidden"


def _spread(options: ModelOptions) -> Iterator[Finding]:
    if options.parallel is None or options.shape is None:
        return
    tensor, heads = options.parallel.tensor or 1, options.shape.kv_heads
    if heads is not None and heads % tensor and tensor % heads:
        message = f"{tensor} cards cannot share {heads} KV heads: one must be a multiple of the other"
        yield ("parallel", "tensor"), message
    stages, layers = options.parallel.pipeline or 1, options.shape.layers
    if layers is not None and stages > layers:
        yield ("parallel", "pipeline"), f"{stages} stages cannot share {layers} layers"


def _sleep(options: ModelOptions) -> Iterator[Finding]:
    if options.sleep_level is not None and options.state is not ModelState.SLEEPING:
        yield ("sleep_level",), "is for models with state: sleeping"
    if options.suspend and options.state is not ModelState.SLEEPING:
        yield ("suspend",), "is for models with state: sleeping"
    if options.suspend and options.parallel is not None:
        spread = options.parallel
        if (spread.tensor or 1) * (spread.pipeline or 1) * (spread.data or 1) > 1:
            yield ("suspend",), "is for models on one card: over several nobody has seen it work"


def _in_pods(options: ModelOptions) -> Iterator[Finding]:
    if options.state is ModelState.SLEEPING:
        yield (
            ("state",),
            "takes turns on a GPU with others, and Kubernetes gives each GPU to one pod: use deploy: units",
        )
    spread = options.parallel or ParallelOptions()
    stages, copies, nodes = spread.pipeline or 1, spread.data or 1, spread.nodes or 1
    if stages % nodes:
        yield ("parallel", "nodes"), f"{nodes} machines cannot share {stages} stages evenly"
    if nodes > 1 and copies > 1:
        yield ("parallel", "data"), "copies that span machines are not written: leave data out, or nodes"


def _on_one_machine(options: ModelOptions) -> Iterator[Finding]:
    if options.body and options.body.media:
        message = "is for deploy: kubernetes: an engine here has no network, so media come in requests, as data: URLs"
        yield ("body", "media"), message
    if options.parallel and (options.parallel.nodes or 1) > 1:
        yield ("parallel", "nodes"), "is for deploy: kubernetes"
