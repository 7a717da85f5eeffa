"""A workload: the models that somebody wants to serve, and what they need beside memory.

Its classes are those of `workload.yaml`: what is read of the file is what winhost works with.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import field, replace
from enum import StrEnum
from typing import Annotated, Literal

from packaging.version import Version
from pydantic import Field

from winhost.core.dataclass import dataclass
from winhost.model.secrets import SecretRef
from winhost.model.units import Bytes, GiB
from winhost.model.workload_text import (
    BodyField,
    Bound,
    Capability,
    Commit,
    Count,
    Kernel,
    KeyName,
    MediaHost,
    ModelName,
    Network,
    NumberedVersion,
    Parameters,
    Person,
    Program,
    Size,
    Tokens,
    Url,
    says,
)
from winhost.model.written import NOT_WRITTEN, Duration, Omittable, Text, Written, WrittenAs

SCHEMA = "winhost.workload/1"

_FOLDER = re.compile(r"(?:~|\.{1,2})?[/\\]|~$|\.{1,2}$|[A-Za-z]:[/\\]")


def is_folder(model: str) -> bool:
    """Tell whether a model is written as a path (`./x`, `../x`, `/x`, `~/x`, `C:\\x`), not as the ORG/NAME of a hub."""
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
    """The values of vLLM's --load-format; packed is of winhost's own loader."""

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
    """The means by which the KV cache is written through to a place outside of the engine."""

    TIERS = "tiers"
    LMCACHE = "lmcache"


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

    layers: Annotated[
        Omittable[Count], says("num_hidden_layers. Only those that have a KV cache, where some have none.")
    ] = None
    kv_heads: Annotated[Omittable[Count], says("num_key_value_heads.")] = None
    head_dim: Annotated[Omittable[Count], says("head_dim, or hidden_size / num_attention_heads.")] = None
    hidden: Annotated[Omittable[Count], says("hidden_size.")] = None
    vocabulary: Annotated[Omittable[Annotated[int, Field(ge=1, le=10_000_000)]], says("vocab_size.")] = None
    tied_embeddings: Annotated[Omittable[bool], says("tie_word_embeddings. Default: false.")] = None

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

    tensor: Annotated[Count, says("GPUs that share each layer. Default: 1.")] = 1
    pipeline: Annotated[Count, says("Stages that share the layers. Default: 1.")] = 1
    data: Annotated[Count, says("Whole copies. Default: 1.")] = 1
    nodes: Annotated[Count, says("Machines that share the stages, as nodes of one Kubernetes cluster. Default: 1.")] = 1


@dataclass(frozen=True)
class Lora(Written):
    """LoRA adapters beside a model."""

    adapters: Annotated[Count, says("How many are loaded at once.")]
    each: Annotated[Size, says("Size of the largest adapter's file.")]


@dataclass(frozen=True)
class Body(Written):
    """The content that requests to a model may have, beyond the lists of the gateway: docs/gateway.md."""

    fields: Annotated[
        tuple[BodyField, ...], says("Fields that are on no list, such as priority. Read first why. Default: none.")
    ] = ()
    media: Annotated[
        tuple[MediaHost, ...],
        says(
            "Hosts from which the engine may fetch images, sound and video, each with its port where that "
            "is not the usual one. For deploy: kubernetes. Default: none; media come in the requests, as "
            "data: URLs."
        ),
    ] = ()
    most: Annotated[Mapping[Bound, Tokens], says("Other bounds, such as {n: 32}. Default: those of the gateway.")] = (
        field(default_factory=dict)
    )


@dataclass(frozen=True)
class Model(Written):
    """One model, and how it is served."""

    name: Annotated[str, NOT_WRITTEN, Field(default=""), says("Its key in the file.")]
    id: Annotated[Text, Field(default=""), says("Repository or path of the model. Default: its name here.")]
    revision: Annotated[
        Omittable[Commit], says("The commit of the repository, all 40 digits. Default: none is fixed.")
    ] = None
    token: Annotated[
        Omittable[SecretRef], says("A secret reference to a token that may read the repository. Default: none.")
    ] = None
    trust_remote_code: Annotated[
        bool, says("Whether Python files of the repository may run in the engine. Read them first. Default: false.")
    ] = False
    parameters: Annotated[
        Omittable[Parameters],
        says("All of them, also those of experts that are not active: 8.03B, 494M, or a whole number."),
    ] = None
    dtype: Annotated[DType, says("Of what is not quantized. Default: bfloat16.")] = DType.BFLOAT16
    quantization: Annotated[
        Omittable[Quantization], says("How the linear layers are stored. Default: not quantized.")
    ] = None
    weights: Annotated[Omittable[Size], says("Size of all weight files, instead of computing it from parameters.")] = (
        None
    )
    shape: Annotated[Shape, says("From config.json.")] = Shape()
    context: Annotated[Omittable[Tokens], says("Tokens of the longest sequence.")] = None
    sequences: Annotated[Count, says("Sequences at once, at full context, in each data parallel copy. Default: 1.")] = 1
    kv_dtype: Annotated[Literal["auto", "fp8"], says("Of the KV cache. Default: auto, which is dtype.")] = "auto"
    kv: Annotated[
        Omittable[Size], says("KV cache on each GPU, instead of computing it from shape, context and sequences.")
    ] = None
    activations: Annotated[
        Omittable[Size], says("Working memory on each GPU while it computes, as the engine reports it at its start.")
    ] = None
    memory: Annotated[
        Omittable[Size], says("Everything that one of its GPUs must hold for it, instead of computing it.")
    ] = None
    load_format: Annotated[
        LoadFormat,
        says("From what vLLM loads the weights, as for --load-format; packed: a plan packs them there. Default: auto."),
    ] = LoadFormat.AUTO
    state: Annotated[
        ModelState,
        says(
            "resident: always ready; sleeping: takes turns with the others that sleep on its GPUs. Default: resident."
        ),
    ] = ModelState.RESIDENT
    sleep_level: Annotated[
        Omittable[Literal[1, 2]],
        says(
            "1 keeps the weights in host memory, 2 loads them again. Default: what memory and swap_within "
            "allow, 1 first."
        ),
    ] = None
    dense: Annotated[
        bool,
        says("Whether it has no experts and takes text alone. Only then may a plan choose level 2. Default: false."),
    ] = False
    suspend: Annotated[
        Literal["disk"] | bool,
        says(
            "Whether its process leaves the GPU altogether while it sleeps. disk: it is also written to "
            "disk once, by CRIU, and starts from there. One GPU, Linux's own driver, no container. "
            "Default: false."
        ),
    ] = False
    parallel: Annotated[Parallel, says("Over how many GPUs it is spread. Default: one.")] = Parallel()
    lora: Annotated[Omittable[Lora], says("Adapters beside it. Default: none.")] = None
    body: Annotated[Body, says("What requests may contain. Default: what clients usually send.")] = Body()
    chosen_level: Annotated[
        int | None,
        NOT_WRITTEN,
        says(
            "Decided by winhost, over sleep_level. 0: the model is stopped between its turns, and nothing of it stays."
        ),
    ] = None
    stands_by: Annotated[
        str, NOT_WRITTEN, says("For which model it is the second engine; empty: it is a model of the file.")
    ] = ""
    starts_anew: Annotated[
        bool, NOT_WRITTEN, says("Its standby is its own engine in its next life: a second one does not fit beside it.")
    ] = False

    @property
    def served_name(self) -> str:
        """What its engine calls it: both engines of a model say the same."""
        return self.stands_by or self.name

    @property
    def level(self) -> int:
        """The level of its sleep: as decided, else as stated, else 1."""
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
        """Its process is written to disk, and starts from there."""
        return self.suspend == "disk"

    @property
    def engine_gpus(self) -> int:
        """GPUs of one data parallel copy."""
        return self.parallel.tensor * self.parallel.pipeline

    @property
    def gpus(self) -> int:
        """GPUs of all copies on one machine; no two share one."""
        return self.engine_gpus // self.parallel.nodes * self.parallel.data

    @property
    def sleeps(self) -> bool:
        return self.state is ModelState.SLEEPING


@dataclass(frozen=True)
class Needs(Written):
    """Capabilities that the workload wants."""

    must: Annotated[tuple[Capability, ...], says("Without these a path will not do.")] = ()
    nice: Annotated[tuple[Capability, ...], says("These decide between paths that will do.")] = ()


@dataclass(frozen=True)
class YieldTo(Written):
    """When models leave GPUs that they share with the desktop of a Windows. Each of these is enough."""

    programs: Annotated[tuple[Program, ...], says("One of these programs runs, such as game.exe. Default: none.")] = ()
    full_screen: Annotated[bool, says("A program has the whole screen. Default: false.")] = False
    unlocked: Annotated[bool, says("Somebody has logged on, and the screen is not locked. Default: false.")] = False
    gpu_memory: Annotated[
        Omittable[Size],
        says("Programs of Windows take so much of the GPUs' memory together. Default: it does not matter."),
    ] = None
    accounts: Annotated[
        tuple[Person, ...],
        says(
            "Local accounts of people at that desktop, for whom a plan of path wsl2 installs the watcher. "
            "Default: none."
        ),
    ] = ()
    url: Annotated[
        Omittable[Url],
        says(
            "The gateway, as that Windows reaches it. Default: http://127.0.0.1 and the gateway's port, "
            "where it is there."
        ),
    ] = None


@dataclass(frozen=True)
class Availability(Written):
    """When it must answer."""

    start_on_boot: Annotated[
        bool, says("Whether it starts with the machine, without anybody logging on. Default: false.")
    ] = False
    test_on_boot: Annotated[
        bool,
        says(
            "Whether the machine tests its endpoint after each start; `winhost status` has the result. Default: false."
        ),
    ] = False
    swap_within: Annotated[
        Omittable[Duration], says("How long a sleeping model may take until it answers. Default: any time.")
    ] = None
    idle: Annotated[
        Omittable[Duration],
        says("How long nobody asks until all models that sleep leave their GPUs. Default: the last one stays awake."),
    ] = None
    yield_to: Annotated[
        Omittable[YieldTo],
        says("When all models leave their GPUs to the desktop, and `winhost yield` can say so. Default: never."),
    ] = None
    standby: Annotated[
        tuple[ModelName, ...],
        says(
            "Models that get a second engine, on other GPUs, which takes over where one dies or hangs. Where it "
            "does not fit, and for models that sleep, the same engine is started anew. Default: none."
        ),
    ] = ()


@dataclass(frozen=True)
class Versions(Written):
    """Versions that are or will be on the target, where facts do not tell."""

    vllm: Annotated[Omittable[NumberedVersion], says("As `vllm --version` says.")] = None
    cuda: Annotated[Omittable[NumberedVersion], says("CUDA toolkit of the engine.")] = None
    toolkit: Annotated[Omittable[NumberedVersion], says("nvidia-container-toolkit.")] = None
    wsl: Annotated[Omittable[NumberedVersion], says("As `wsl --version` says.")] = None
    kernel: Annotated[Omittable[Kernel], says("As `uname -r` says.")] = None
    driver: Annotated[Omittable[NumberedVersion], says("NVIDIA driver of the target; of WSL, that of Windows.")] = None

    def stated(self) -> dict[str, Version]:
        """Those that are stated, by name."""
        return {name: version for name in VERSIONS if (version := getattr(self, name)) is not None}


VERSIONS = tuple(Versions.__annotations__)


@dataclass(frozen=True)
class KvMirror(Written):
    """KV caches are written through to storage, so that they outlive the engine."""

    through: Annotated[Mirror, says("tiers: vLLM's own, through /dev/shm; lmcache: a server beside it.")]
    staging: Annotated[Size, says("Host memory of each engine on the way to storage.")]
    keep: Annotated[
        Omittable[Size],
        says(
            "tiers: what the files of each engine may take of the disk; beyond it the least used go. Default: 100 GiB."
        ),
    ] = None

    @property
    def kept(self) -> Bytes:
        """The bytes that the files of each engine may take of the disk."""
        return self.keep or 100 * GiB


@dataclass(frozen=True)
class Video(Written):
    """Video is transcoded on a GPU beside the models."""

    streams: Annotated[Count, says("How many at once.")]
    each: Annotated[Omittable[Size], says("What one stream holds of the GPU's memory, as nvidia-smi shows it.")] = None


@dataclass(frozen=True)
class KeyLimit(Written):
    """The limits of one API key."""

    concurrent: Annotated[Omittable[Count], says("Requests at a time. Default: no limit.")] = None
    requests_per_minute: Annotated[Omittable[Tokens], says("Requests per minute. Default: no limit.")] = None
    tokens_per_minute: Annotated[
        Omittable[Tokens], says("Tokens per minute, of prompts and answers together. Default: no limit.")
    ] = None


@dataclass(frozen=True)
class PerKey(KeyLimit):
    """The limits of each API key."""

    keys: Annotated[
        Mapping[KeyName, KeyLimit],
        says("Keys by their names that may use something else; what is left out is as for every key."),
    ] = field(default_factory=dict)

    def of(self, key: str) -> KeyLimit:
        """The limits of a key: its own, then those of every key."""
        own = self.keys.get(key, self)
        return KeyLimit(*(getattr(own, name) or getattr(self, name) for name in KeyLimit.__annotations__))


def _named(models: Mapping[str, Model]) -> tuple[Model, ...]:
    if not models:
        raise ValueError("is empty: name at least one model")
    return tuple(replace(model, name=name, id=model.id or name) for name, model in models.items())


@dataclass(frozen=True)
class Workload(Written):
    """The models that somebody wants to serve, and what they need."""

    models: Annotated[
        tuple[Model, ...],
        WrittenAs(dict[ModelName, Model], _named),
        says("The models by the names under which they are served."),
    ]
    needs: Annotated[Needs, says("The capabilities that must be there, and those that would be nice to have.")] = (
        Needs()
    )
    availability: Annotated[Availability, says("When it must answer, and who tests that.")] = Availability()
    exposure: Annotated[Exposure, says("From where it is reached. Default: loopback.")] = Exposure.LOOPBACK
    keep_windows_usable: Annotated[
        bool, says("Whether people go on working on the Windows of this machine. Default: false.")
    ] = False
    versions: Annotated[
        Mapping[str, Version],
        WrittenAs(Versions, Versions.stated),
        says("Versions where facts do not tell."),
    ] = field(default_factory=dict)
    kv_mirror: Annotated[Omittable[KvMirror], says("Default: KV caches live in the engine alone.")] = None
    video: Annotated[Omittable[Video], says("Default: none.")] = None
    deploy: Annotated[
        Omittable[Deploy],
        says(
            "units: systemd starts the engines of one Linux; kubernetes: a cluster runs them as pods. Default: units."
        ),
    ] = None
    per_key: Annotated[
        Omittable[PerKey], says("What each API key may use of the gateway. Default: as much as there is.")
    ] = None
    trusted_proxies: Annotated[
        tuple[Network, ...],
        says(
            "Networks of proxies before the gateway, such as 10.20.0.5/32, which say in X-Forwarded-For "
            "for whom they ask. Default: none, and the header says nothing."
        ),
    ] = ()
    proxy_protocol: Annotated[
        bool, says("Whether those proxies say it by the PROXY protocol instead (v1 or v2). Default: false.")
    ] = False


def standby_of(name: str) -> str:
    """What the second engine of a model is called."""
    return f"{name}-standby"


def with_standbys(workload: Workload, beside: Collection[str]) -> Workload:
    """With the standby of each model that has one: of those beside, a second engine after it."""
    asked = workload.availability.standby
    models: list[Model] = []
    for model in workload.models:
        models.append(replace(model, starts_anew=model.name in asked and model.name not in beside))
        if model.name in asked and model.name in beside:
            models.append(replace(model, name=standby_of(model.name), stands_by=model.name))
    return replace(workload, models=tuple(models), availability=replace(workload.availability, standby=()))


@dataclass(frozen=True, kw_only=True)
class WorkloadFile(Workload):
    """workload.yaml: the models to serve, and what they need beside memory."""

    schema: Annotated[Literal["winhost.workload/1"], says("The version of this format.")]
