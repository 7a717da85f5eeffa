"""A workload: the models that somebody wants to serve, and what they need beside memory."""

import re
from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import TYPE_CHECKING

from winhost.core.dataclass import dataclass
from winhost.model.path import path_of
from winhost.model.secrets import SecretRef
from winhost.model.units import Bytes, GiB

if TYPE_CHECKING:
    from packaging.version import Version

VERSIONS = ("vllm", "cuda", "toolkit", "wsl", "kernel", "driver")
"""What a user may state the version of; toolkit is nvidia-container-toolkit."""
BODY_BOUNDS = (
    *("n", "best_of", "max_tokens", "logprobs", "top_logprobs", "prompt_logprobs", "sequences", "inputs", "stop"),
    *("stop_token_ids", "bad_words", "logit_bias", "allowed_token_ids", "logprob_token_ids"),
)
"""What the gateway bounds in a request: as winhost.gateway.request_rules has it."""


_FOLDER = re.compile(r"(?:~|\.{1,2})?[/\\]|~$|\.{1,2}$|[A-Za-z]:[/\\]")


def is_folder(model: str) -> bool:
    """Whether a model is written as a path (`./x`, `../x`, `/x`, `~/x`, `C:\\x`), not as the ORG/NAME of a hub."""
    return _FOLDER.match(model) is not None


class DType(StrEnum):
    """In what weights are kept that are not quantized, and the KV cache, unless it is told otherwise."""

    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT32 = "float32"

    @property
    def bytes(self) -> int:
        """Of one number."""
        return 4 if self is DType.FLOAT32 else 2


class Quantization(StrEnum):
    """How the weights of the linear layers are stored; embeddings stay as they were."""

    AWQ = "awq"
    GPTQ = "gptq"
    INT4 = "int4"
    INT8 = "int8"
    FP8 = "fp8"
    NVFP4 = "nvfp4"
    MXFP4 = "mxfp4"


class LoadFormat(StrEnum):
    """From what vLLM loads weights, in its own words (--load-format)."""

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


class ModelState(StrEnum):
    """Resident models are always ready; those that sleep take turns on their cards."""

    RESIDENT = "resident"
    SLEEPING = "sleeping"


class Exposure(StrEnum):
    """From where the endpoint is reached."""

    LOOPBACK = "loopback"
    LAN = "lan"
    CLUSTER = "cluster"


class Deploy(StrEnum):
    """By what engines run: units of systemd on one Linux, or pods of a Kubernetes cluster."""

    UNITS = "units"
    KUBERNETES = "kubernetes"


class Mirror(StrEnum):
    """How the KV cache is written through to a place outside of the engine."""

    TIERS = "tiers"
    LMCACHE = "lmcache"


@dataclass(frozen=True)
class Attention:
    """What the KV cache of a token consists of: keys and values of each KV head, in each layer."""

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
        """Parameters of one table."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """Of all tables."""
        return self.table * (1 if self.tied else 2)


@dataclass(frozen=True)
class Lora:
    """Adapters that are loaded at once, each of at most `each` bytes on a card."""

    adapters: int
    each: Bytes


@dataclass(frozen=True)
class Body:
    """What requests may contain besides what the gateway lets through to any model. fields: by name; media: hosts that
    the engine may fetch media from; most: bounds by name.
    """

    fields: tuple[str, ...] = ()
    media: tuple[str, ...] = ()
    most: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Model:
    """A model and how it is served. None: nobody said.

    revision: the commit of its repository; token: a secret reference to what reads it there; trust_remote_code:
    programs of its repository may run;
    weights: of the whole model, stated; kv, activations: on each card, stated; memory: everything on each card, stated;
    context: tokens of one sequence; sequences: at once, in each data parallel copy; dense: no experts, and text alone;
    level_stated: somebody wrote its level of sleep; suspend: its process leaves the GPU while it sleeps; image: that
    process is written to disk, and starts from there.
    """

    name: str
    id: str
    revision: str | None = None
    token: SecretRef | None = None
    trust_remote_code: bool = False
    parameters: int | None = None
    dtype: DType = DType.BFLOAT16
    quantization: Quantization | None = None
    weights: Bytes | None = None
    embedding: Embedding | None = None
    attention: Attention | None = None
    context: int | None = None
    sequences: int = 1
    kv_bytes: int = 2
    """Of one number in the KV cache."""
    kv: Bytes | None = None
    activations: Bytes | None = None
    memory: Bytes | None = None
    load_format: LoadFormat = LoadFormat.AUTO
    state: ModelState = ModelState.RESIDENT
    sleep_level: int = 1
    """0, which no file says: it is stopped between its turns, and nothing of it stays."""
    level_stated: bool = False
    dense: bool = False
    suspend: bool = False
    image: bool = False
    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    nodes: int = 1
    """Machines that share its stages; each has the same number of them."""
    lora: Lora | None = None
    body: Body = Body()

    @property
    def engine_cards(self) -> int:
        """Cards of one data parallel copy."""
        return self.tensor * self.pipeline

    @property
    def cards(self) -> int:
        """Cards of all copies on one machine; no two share one."""
        return self.engine_cards // self.nodes * self.data

    @property
    def sleeps(self) -> bool:
        """Whether it takes turns with others."""
        return self.state is ModelState.SLEEPING


@dataclass(frozen=True)
class Needs:
    """Capabilities by id."""

    must: tuple[str, ...] = ()
    nice: tuple[str, ...] = ()


@dataclass(frozen=True)
class Availability:
    """swap_within: seconds until a sleeping model answers."""

    start_on_boot: bool = False
    swap_within: int | None = None


@dataclass(frozen=True)
class KvMirror:
    """staging: host memory of each engine on the way to storage; keep: of the disk, for the files of each engine."""

    through: Mirror
    staging: Bytes
    keep: Bytes = 100 * GiB


@dataclass(frozen=True)
class Video:
    """Streams that are transcoded at once on one card, each holding `each` bytes of it, where that is told."""

    streams: int
    each: Bytes | None = None


@dataclass(frozen=True)
class KeyLimit:
    """What an API key may use of the gateway. None: as much as there is."""

    concurrent: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


@dataclass(frozen=True)
class PerKey:
    """each: of every key; keys: where those of these names may use something else."""

    each: KeyLimit = KeyLimit()
    keys: Mapping[str, KeyLimit] = field(default_factory=dict)


@dataclass(frozen=True)
class Workload:
    """What somebody wants to serve."""

    models: tuple[Model, ...]
    needs: Needs = Needs()
    availability: Availability = Availability()
    exposure: Exposure = Exposure.LOOPBACK
    keep_windows_usable: bool = False
    versions: Mapping[str, "Version"] = field(default_factory=dict)
    """By name, as in VERSIONS; only those that are stated."""
    kv_mirror: KvMirror | None = None
    video: Video | None = None
    deploy: Deploy = Deploy.UNITS
    per_key: PerKey | None = None
    trusted_proxies: tuple[str, ...] = ()
    """Networks of proxies before the gateway, which may say for whom they ask."""
    proxy_protocol: bool = False
    """They say it by the PROXY protocol, not in X-Forwarded-For."""


@dataclass(frozen=True)
class AvailableMemory:
    """What a path gives on this host, in bytes. None: not known.

    variant: one of ALL_VARIANTS; cards: memory of each; ram: what the target has or would get; host_ram: of the host;
    shm: size of /dev/shm; pinned: what may be pinned, where Linux has its own driver all of its RAM.
    """

    variant: str
    cards: tuple[Bytes, ...]
    ram: Bytes
    host_ram: Bytes
    shm: Bytes | None = None
    pinned: Bytes | None = None

    @property
    def path(self) -> str:
        return path_of(self.variant)
