"""A workload: the models that somebody wants to serve, and what they need besides memory.

The classes declare the format of `workload.yaml`; winhost works with the same objects.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import field, replace
from enum import StrEnum
from fractions import Fraction
from ipaddress import ip_network
from typing import Annotated, Literal

from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, WithJsonSchema

from winhost.core.dataclass import dataclass
from winhost.model.capabilities import CAPABILITIES
from winhost.model.errors import did_you_mean, visible
from winhost.model.secrets import SecretRef
from winhost.model.units import SIZE_PATTERN, Bytes, GiB, parse_size
from winhost.model.written import NOT_WRITTEN, Duration, Matching, Omittable, Text, Written, WrittenAs, text_schema

SCHEMA = "winhost.workload/1"
BODY_BOUNDS = (
    *("n", "best_of", "max_tokens", "logprobs", "top_logprobs", "prompt_logprobs", "sequences", "inputs", "stop"),
    *("stop_token_ids", "bad_words", "logit_bias", "allowed_token_ids", "logprob_token_ids"),
)
"""The fields of a request that the gateway limits, as in winhost.gateway.request_rules."""

_FOLDER = re.compile(r"(?:~|\.{1,2})?[/\\]|~$|\.{1,2}$|[A-Za-z]:[/\\]")


def is_folder(model: str) -> bool:
    """Tell whether a model is a path (`./x`, `../x`, `/x`, `~/x`, `C:\\x`), and not the ORG/NAME of a hub."""
    return _FOLDER.match(model) is not None


class DType(StrEnum):
    """The type of weights that are not quantized, and of the KV cache unless kv_dtype is given."""

    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT32 = "float32"

    @property
    def bytes(self) -> int:
        return 4 if self is DType.FLOAT32 else 2


class Quantization(StrEnum):
    """The storage of the linear layers' weights; embeddings stay as they were."""

    AWQ = "awq"
    GPTQ = "gptq"
    INT4 = "int4"
    INT8 = "int8"
    FP8 = "fp8"
    NVFP4 = "nvfp4"
    MXFP4 = "mxfp4"


class LoadFormat(StrEnum):
    """The values of vLLM's --load-format, and `packed` for winhost's own loader."""

    AUTO = "auto"
    HF = "hf"
    SAFETENSORS = "safetensors"
    PT = "pt"
    NPCACHE = "npcache"
    MISTRAL = "mistral"
    FASTSAFETENSORS = "fastsafetensors"
    INSTANTTENSOR = "instanttensor"
    RUNAI_STREAMER = "runai_streamer"
    RUNAI_STREAMER_SHARDED = "runai_streamer_sharded"
    SHARDED_STATE = "sharded_state"
    TENSORIZER = "tensorizer"
    IPC_CACHE = "ipc_cache"
    MODELEXPRESS = "modelexpress"
    DUMMY = "dummy"
    PACKED = "packed"


class ModelState(StrEnum):
    """Resident models are always ready; those that sleep take turns on their GPUs."""

    RESIDENT = "resident"
    SLEEPING = "sleeping"


class Exposure(StrEnum):
    """The network from which the endpoint is reached."""

    LOOPBACK = "loopback"
    LAN = "lan"
    CLUSTER = "cluster"


class Deploy(StrEnum):
    """The runtime of the engines: units of systemd on one Linux, or pods of a Kubernetes cluster."""

    UNITS = "units"
    KUBERNETES = "kubernetes"


class Mirror(StrEnum):
    """The means by which the KV cache is written through to storage outside of the engine."""

    TIERS = "tiers"
    LMCACHE = "lmcache"


_PARAMETERS = r"([0-9]{1,6}(?:\.[0-9]{1,9})?) ?([MBT])"
_THOUSANDS = {"M": 10**6, "B": 10**9, "T": 10**12}
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
# The last label of a host name begins with a letter, that of an address does not.
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
    """Return the version in `uname -r`, without what the distribution appends."""
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
_ModelName = Annotated[
    str, Matching(_MODEL_NAME, "a model name: letters, digits, '.', '_' and '-'; the model's repository goes to id")
]
_Version = Annotated[Version, PlainValidator(_version), WithJsonSchema({"type": "string"})]
_Commit = Annotated[
    str, Matching(r"[0-9a-f]{40}", "a commit: 40 hexadecimal digits; a branch may lead elsewhere tomorrow")
]
_Kernel = Annotated[_Version, BeforeValidator(_kernel), WithJsonSchema({"type": "string"})]
_Network = Annotated[str, AfterValidator(_network)]
_Count = Annotated[int, Field(ge=1, le=65_536)]
_Tokens = Annotated[int, Field(ge=1, le=100_000_000)]
_KeyName = Annotated[
    str, Matching(r"[A-Za-z0-9._-]{1,64}", "the name of an API key: up to 64 letters, digits, '.', '_' and '-'")
]
_Field = Annotated[str, Matching(r"(?:chat_template_kwargs\.)?[A-Za-z_][A-Za-z0-9_]{0,63}", "the name of a field")]
_Host = Annotated[str, Matching(_HOST, "a host's name in small letters, without a URL")]
_Program = Annotated[str, Matching(r"[A-Za-z0-9][A-Za-z0-9 ._+-]{0,99}\.exe", "the name of a program's file")]
# Account names of Windows, without characters that Task Scheduler interprets as a variable.
_PERSON = r"""[^\s."/\\\[\]:;|=,+*?<>@%$]([^\x00-\x1f"/\\\[\]:;|=,+*?<>@%$]{0,18}[^\s."/\\\[\]:;|=,+*?<>@%$])?"""
_Person = Annotated[str, Matching(_PERSON, "the name of a local account of Windows")]
_URL = r"https://[A-Za-z0-9.-]{1,253}(:[0-9]{1,5})?|http://127\.0\.0\.1:[0-9]{1,5}"
_Url = Annotated[str, Matching(_URL, "https://, a host's name and perhaps a port, or http://127.0.0.1:PORT")]
_Bound = Annotated[str, AfterValidator(_bound), WithJsonSchema({"type": "string", "enum": list(BODY_BOUNDS)})]


@dataclass(frozen=True)
class Attention:
    """The sizes that decide the KV cache of a token."""

    layers: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class Embedding:
    """The tables at both ends of a model; where they are tied, both ends are one table."""

    vocabulary: int
    hidden: int
    tied: bool = False

    @property
    def table(self) -> int:
        """The parameters of one table."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """The parameters of all tables."""
        return self.table * (1 if self.tied else 2)


@dataclass(frozen=True)
class Shape(Written):
    """The numbers of a model's config.json from which memory is computed."""

    layers: Omittable[_Count] = None
    """num_hidden_layers. Only those that have a KV cache, where some have none."""
    kv_heads: Omittable[_Count] = None
    """num_key_value_heads."""
    head_dim: Omittable[_Count] = None
    """head_dim, or hidden_size / num_attention_heads."""
    hidden: Omittable[_Count] = None
    """hidden_size."""
    vocabulary: Omittable[Annotated[int, Field(ge=1, le=10_000_000)]] = None
    """vocab_size."""
    tied_embeddings: Omittable[bool] = None
    """tie_word_embeddings. Default: false."""
    heads: Omittable[_Count] = None
    """num_attention_heads. Only what stays unquantized is computed from it."""

    @property
    def attention(self) -> Attention | None:
        if self.layers is None or self.kv_heads is None or self.head_dim is None:
            return None
        return Attention(self.layers, self.kv_heads, self.head_dim)

    @property
    def embedding(self) -> Embedding | None:
        if self.vocabulary is None or self.hidden is None:
            return None
        return Embedding(self.vocabulary, self.hidden, bool(self.tied_embeddings))


@dataclass(frozen=True)
class Parallel(Written):
    """Over how many GPUs a model is spread: tensor by pipeline by data."""

    tensor: _Count = 1
    """GPUs that share each layer. Default: 1."""
    pipeline: _Count = 1
    """Stages that share the layers. Default: 1."""
    data: _Count = 1
    """Whole copies. Default: 1."""
    nodes: _Count = 1
    """Machines that share the stages, as nodes of one Kubernetes cluster. Default: 1."""


@dataclass(frozen=True)
class Lora(Written):
    """LoRA adapters beside a model."""

    adapters: _Count
    """The number that is loaded at once."""
    each: _Size
    """Size of the largest adapter's file."""


@dataclass(frozen=True)
class Body(Written):
    """The content that requests to a model may have, beyond the lists of the gateway: docs/gateway.md."""

    fields: tuple[_Field, ...] = ()
    """Fields that are on no list, such as priority. Read first why. Default: none."""
    media: tuple[_Host, ...] = ()
    """Hosts from which the engine may fetch images, sound and video, each with its port where that is not the usual
    one. For deploy: kubernetes. Default: none; media come in the requests, as data: URLs.
    """
    most: Mapping[_Bound, _Tokens] = field(default_factory=dict)
    """Other bounds, such as {n: 32}. Default: those of the gateway."""


@dataclass(frozen=True)
class Model(Written):
    """One model, and how it is served."""

    name: Annotated[str, NOT_WRITTEN, Field(default="")]
    """Its key in the file."""
    id: Annotated[Text, Field(default="")]
    """Repository or path of the model. Default: its name here."""
    revision: Omittable[_Commit] = None
    """The commit of the repository, all 40 digits. Default: none is fixed."""
    token: Omittable[SecretRef] = None
    """A secret reference to a token that may read the repository. Default: none."""
    trust_remote_code: bool = False
    """Let Python files of the repository run in the engine. Read them first. Default: false."""
    parameters: Omittable[_Parameters] = None
    """All of them, also those of experts that are not active: 8.03B, 494M, or a whole number."""
    dtype: DType = DType.BFLOAT16
    """The type of weights that are not quantized. Default: bfloat16."""
    quantization: Omittable[Quantization] = None
    """The storage of the linear layers. Default: not quantized."""
    unquantized: Omittable[tuple[Text, ...]] = None
    """The modules that stay in dtype, as quantization_config of config.json lists them: ignore, modules_to_not_convert
    or ignored_layers. An empty list: only embeddings and norms, as with vLLM's own --quantization. Default: unknown.
    """
    weights: Omittable[_Size] = None
    """Size of all weight files, instead of computing it from parameters."""
    shape: Shape = Shape()
    """The shape of the model, from config.json."""
    context: Omittable[_Tokens] = None
    """Tokens of the longest sequence."""
    sequences: _Count = 1
    """Sequences at once, at full context, in each data parallel copy. Default: 1."""
    kv_dtype: Literal["auto", "fp8"] = "auto"
    """The type of the KV cache. Default: auto, which is dtype."""
    kv: Omittable[_Size] = None
    """KV cache on each GPU, instead of computing it from shape, context and sequences."""
    activations: Omittable[_Size] = None
    """Working memory on each GPU while it computes, as the engine reports it at its start."""
    memory: Omittable[_Size] = None
    """Everything that one of its GPUs must hold for it, instead of computing it."""
    load_format: LoadFormat = LoadFormat.AUTO
    """The format from which vLLM loads the weights, as for --load-format; packed: a plan packs them there. Default:
    auto.
    """
    state: ModelState = ModelState.RESIDENT
    """resident: always ready; sleeping: takes turns with the others that sleep on its GPUs. Default: resident."""
    sleep_level: Omittable[Literal[1, 2]] = None
    """1 keeps the weights in host memory, 2 loads them again. Default: what memory and swap_within allow, 1 first."""
    dense: bool = False
    """True if it has no experts and takes text alone. Only then may a plan choose level 2. Default: false."""
    suspend: Literal["disk"] | bool = False
    """Take its process off the GPU altogether while it sleeps. disk: it is also written to disk once, by CRIU, and
    starts from there. One GPU, Linux's own driver, no container. Default: false.
    """
    parallel: Parallel = Parallel()
    """Over how many GPUs it is spread. Default: one."""
    lora: Omittable[Lora] = None
    """Adapters beside it. Default: none."""
    body: Body = Body()
    """The content that requests may have. Default: what clients usually send."""
    chosen_level: Annotated[int | None, NOT_WRITTEN] = None
    """Decided by winhost, over sleep_level. 0: the model is stopped between its turns, and nothing of it stays."""
    stands_by: Annotated[str, NOT_WRITTEN] = ""
    """The model for which it is the second engine; empty: it is a model of the file."""
    starts_anew: Annotated[bool, NOT_WRITTEN] = False
    """Its standby is its own engine, started again: a second one does not fit beside it."""

    @property
    def served_name(self) -> str:
        """The name that its engine reports; both engines of a model report the same."""
        return self.stands_by or self.name

    @property
    def level(self) -> int:
        """The sleep level: as decided by winhost, else as stated, else 1."""
        return (self.sleep_level or 1) if self.chosen_level is None else self.chosen_level

    @property
    def attention(self) -> Attention | None:
        return self.shape.attention

    @property
    def embedding(self) -> Embedding | None:
        return self.shape.embedding

    @property
    def kv_bytes(self) -> int:
        """The bytes of one number in the KV cache."""
        return 1 if self.kv_dtype == "fp8" else self.dtype.bytes

    @property
    def image(self) -> bool:
        """True if the process is written to disk, and starts from there."""
        return self.suspend == "disk"

    @property
    def engine_gpus(self) -> int:
        """The number of GPUs of one data parallel copy."""
        return self.parallel.tensor * self.parallel.pipeline

    @property
    def gpus(self) -> int:
        """The number of GPUs of all copies on one machine. Copies do not share GPUs."""
        return self.engine_gpus // self.parallel.nodes * self.parallel.data

    @property
    def sleeps(self) -> bool:
        return self.state is ModelState.SLEEPING


@dataclass(frozen=True)
class Needs(Written):
    """Capabilities that the workload wants."""

    must: tuple[_Capability, ...] = ()
    """Without these a path will not do."""
    nice: tuple[_Capability, ...] = ()
    """These decide between paths that will do."""


@dataclass(frozen=True)
class YieldTo(Written):
    """When models leave GPUs that they share with the desktop of a Windows. Each of these is enough."""

    programs: tuple[_Program, ...] = ()
    """One of these programs runs, such as game.exe. Default: none."""
    full_screen: bool = False
    """A program has the whole screen. Default: false."""
    unlocked: bool = False
    """Somebody has logged on, and the screen is not locked. Default: false."""
    gpu_memory: Omittable[_Size] = None
    """Programs of Windows take so much of the GPUs' memory together. Default: it does not matter."""
    accounts: tuple[_Person, ...] = ()
    """Local accounts of people at that desktop, for whom a plan of path wsl2 installs the watcher. Default: none."""
    url: Omittable[_Url] = None
    """The gateway, as that Windows reaches it. Default: http://127.0.0.1 and the gateway's port, where it is there."""


@dataclass(frozen=True)
class Availability(Written):
    """When it must answer."""

    start_on_boot: bool = False
    """Start with the machine, without anybody logging on. Default: false."""
    test_on_boot: bool = False
    """Let the machine test its endpoint after each start; `winhost status` has the result. Default: false."""
    swap_within: Omittable[Duration] = None
    """The longest time until a sleeping model answers. Default: any time."""
    idle: Omittable[Duration] = None
    """The time without a request after which all models that sleep leave their GPUs. Default: the last one stays awake.
    """
    yield_to: Omittable[YieldTo] = None
    """When all models leave their GPUs to the desktop, and `winhost yield` can say so. Default: never."""
    standby: tuple[_ModelName, ...] = ()
    """Models that get a second engine, on other GPUs, which takes over where one dies or hangs. Where it does not fit,
    and for models that sleep, the same engine is started anew. Default: none.
    """


@dataclass(frozen=True)
class Versions(Written):
    """Versions that are or will be on the target, where facts do not tell."""

    vllm: Omittable[_Version] = None
    """The version that `vllm --version` prints."""
    cuda: Omittable[_Version] = None
    """CUDA toolkit of the engine."""
    toolkit: Omittable[_Version] = None
    """nvidia-container-toolkit."""
    wsl: Omittable[_Version] = None
    """The version that `wsl --version` prints."""
    kernel: Omittable[_Kernel] = None
    """The version that `uname -r` prints."""
    driver: Omittable[_Version] = None
    """NVIDIA driver of the target; of WSL, that of Windows."""

    def stated(self) -> dict[str, Version]:
        """Return the stated versions, by name."""
        return {name: version for name in VERSIONS if (version := getattr(self, name)) is not None}


VERSIONS = tuple(Versions.__annotations__)


@dataclass(frozen=True)
class KvMirror(Written):
    """KV caches are written through to storage, so that they outlive the engine."""

    through: Mirror
    """tiers: vLLM's own, through /dev/shm; lmcache: a server beside it."""
    staging: _Size
    """Host memory of each engine on the way to storage."""
    keep: Omittable[_Size] = None
    """tiers: what the files of each engine may take of the disk; beyond it the least used go. Default: 100 GiB."""

    @property
    def disk_limit(self) -> Bytes:
        """The bytes that the files of each engine may take of the disk."""
        return self.keep or 100 * GiB


@dataclass(frozen=True)
class Video(Written):
    """Video is transcoded on a GPU beside the models."""

    streams: _Count
    """The number of streams at once."""
    each: Omittable[_Size] = None
    """The GPU memory that one stream holds, as nvidia-smi shows it."""


@dataclass(frozen=True)
class KeyLimit(Written):
    """The limits of one API key."""

    concurrent: Omittable[_Count] = None
    """Requests at a time. Default: no limit."""
    requests_per_minute: Omittable[_Tokens] = None
    """Requests per minute. Default: no limit."""
    tokens_per_minute: Omittable[_Tokens] = None
    """Tokens per minute, of prompts and answers together. Default: no limit."""


@dataclass(frozen=True)
class PerKey(KeyLimit):
    """The limits of each API key."""

    keys: Mapping[_KeyName, KeyLimit] = field(default_factory=dict)
    """Keys by their names that may use something else; what is left out is as for every key."""

    def of(self, key: str) -> KeyLimit:
        """Return the limits of a key: its own, else those of every key."""
        own = self.keys.get(key, self)
        return KeyLimit(*(getattr(own, name) or getattr(self, name) for name in KeyLimit.__annotations__))


def _name_models(models: Mapping[str, Model]) -> tuple[Model, ...]:
    if not models:
        raise ValueError("is empty: name at least one model")
    return tuple(replace(model, name=name, id=model.id or name) for name, model in models.items())


@dataclass(frozen=True)
class Workload(Written):
    """The models that somebody wants to serve, and what they need."""

    models: Annotated[tuple[Model, ...], WrittenAs(dict[_ModelName, Model], _name_models)]
    """The models by the names under which they are served."""
    needs: Needs = Needs()
    """The capabilities that must be there, and those that would be nice to have."""
    availability: Availability = Availability()
    """When it must answer, and who tests that."""
    exposure: Exposure = Exposure.LOOPBACK
    """The network from which it is reached. Default: loopback."""
    keep_windows_usable: bool = False
    """True if people go on working on the Windows of this machine. Default: false."""
    versions: Annotated[Mapping[str, Version], WrittenAs(Versions, Versions.stated)] = field(default_factory=dict)
    """Versions where facts do not tell."""
    kv_mirror: Omittable[KvMirror] = None
    """Default: KV caches live in the engine alone."""
    video: Omittable[Video] = None
    """Default: none."""
    deploy: Omittable[Deploy] = None
    """units: systemd starts the engines of one Linux; kubernetes: a cluster runs them as pods. Default: units."""
    per_key: Omittable[PerKey] = None
    """The limits of each API key. Default: no limit."""
    trusted_proxies: tuple[_Network, ...] = ()
    """Networks of proxies before the gateway, such as 10.20.0.5/32, which say in X-Forwarded-For for whom they ask.
    Default: none, and the header says nothing.
    """
    proxy_protocol: bool = False
    """Take the client's address from the PROXY protocol instead (v1 or v2). Default: false."""


def standby_of(name: str) -> str:
    """Return the name of a model's second engine."""
    return f"{name}-standby"


def add_standbys(workload: Workload, with_engine: Collection[str]) -> Workload:
    """Resolve the standbys of a workload. A model in `with_engine` gets a second engine, which follows it in the list;
    the other ones start their own engine again.
    """
    standby = workload.availability.standby
    models: list[Model] = []
    for model in workload.models:
        models.append(replace(model, starts_anew=model.name in standby and model.name not in with_engine))
        if model.name in standby and model.name in with_engine:
            models.append(replace(model, name=standby_of(model.name), stands_by=model.name))
    return replace(workload, models=tuple(models), availability=replace(workload.availability, standby=()))


@dataclass(frozen=True, kw_only=True)
class WorkloadFile(Workload):
    """workload.yaml: the models to serve, and what they need beside memory."""

    schema: Literal["winhost.workload/1"]
    """The version of this format."""
