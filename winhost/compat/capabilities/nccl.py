"""NCCL: which transport connects the GPUs of one engine, and its settings."""

from collections.abc import Mapping
from dataclasses import field

from winhost.compat.capabilities.measured import is_peer_to_peer, valid_all_reduce
from winhost.compat.capability import measure
from winhost.compat.target import Target, gpus_if_several, gpus_with_peers
from winhost.core.dataclass import dataclass
from winhost.model.path import SHARED_GPU_PATHS
from winhost.model.units import Bytes, GiB, size

SHM = "SHM, through host memory"
PEERS = "P2P, directly between GPUs"
PEERS_OR_SHM = "P2P if the driver offers it, otherwise SHM"

NO_CUSTOM_ALL_REDUCE = "--disable-custom-all-reduce"
SHARED_MEMORY: Bytes = 8 * GiB  # /dev/shm: NCCL falls back on sockets, 60 times slower, where it is too small
NO_PEERS_ENV = {"NCCL_P2P_DISABLE": "1", "NCCL_NVLS_ENABLE": "0", "NCCL_IB_DISABLE": "1"}
# NCCL's newer allocator shares memory in ways that Windows' driver does not offer; switching it off costs nothing.
WINDOWS_DRIVER_ENV = NO_PEERS_ENV | {
    "NCCL_CUMEM_ENABLE": "0",
    "NCCL_CUMEM_HOST_ENABLE": "0",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
    "VLLM_ALLREDUCE_USE_FLASHINFER": "0",
}


@dataclass(frozen=True)
class NcclTransport:
    """The transport that NCCL will use. settings: environment; engine: arguments of vLLM; shared_memory: minimum of
    /dev/shm, bytes.
    """

    name: str
    settings: Mapping[str, str] = field(default_factory=dict)
    engine: tuple[str, ...] = ()
    shared_memory: Bytes = SHARED_MEMORY

    def __str__(self) -> str:
        settings = [f"{name}={value}" for name, value in self.settings.items()]
        return "; ".join(filter(None, (self.name, " ".join((*settings, *self.engine)), self._shared)))

    @property
    def _shared(self) -> str:
        return f"{size(self.shared_memory)} of /dev/shm"


def transport(target: Target) -> NcclTransport | None:
    """Predict the transport of NCCL; None with fewer than two GPUs or if it is unknown. NCCL's log shows its choice."""
    gpus = gpus_if_several(target)
    if not gpus or target.path == "gpu-p":
        return None
    if target.path in SHARED_GPU_PATHS:
        return NcclTransport(SHM, WINDOWS_DRIVER_ENV, (NO_CUSTOM_ALL_REDUCE,))
    shown = measured_transport(target)
    if shown == PEERS:
        return NcclTransport(PEERS)
    if shown or target.path == "dda" or gpus_with_peers(gpus, "refused", "hung"):
        return NcclTransport(SHM, NO_PEERS_ENV, (NO_CUSTOM_ALL_REDUCE,))
    return NcclTransport(PEERS_OR_SHM if gpus_with_peers(gpus, "untold", "bridge") else PEERS)


def measured_transport(target: Target) -> str | None:
    """Return the transport that `winhost probe` measured here; None without a measurement. It takes precedence over
    reports about these GPUs.
    """
    found = valid_all_reduce(target.measurement) if target.measurement else None
    return None if found is None else PEERS if is_peer_to_peer(found) else SHM


@measure("nccl-transport")
def transport_text(target: Target) -> str | None:
    """The transport and its settings."""
    found = transport(target)
    return str(found) if found else None
