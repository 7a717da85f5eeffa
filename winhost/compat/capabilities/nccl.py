"""Rules of NCCL: which transport connects the GPUs of one engine, and its settings."""

from collections.abc import Mapping
from dataclasses import field

from winhost.compat.capabilities.gpu import MOST_SEEN_BEHIND_WINDOWS
from winhost.compat.capabilities.settled import goes_directly, reduced_by
from winhost.compat.capability import EVERYWHERE, NATIVE, SHARED, capability, measure
from winhost.compat.gpu_cards import (
    by_bridge,
    gpus,
    hung,
    in_a_guest,
    named,
    several,
    untold,
    without_peers,
)
from winhost.compat.target import Target
from winhost.core.dataclass import dataclass
from winhost.model.units import Bytes, GiB, size

SHM = "SHM, through host memory"
PEERS = "P2P, directly between GPUs"
EITHER = "P2P if the driver offers it, otherwise SHM"

NO_CUSTOM_ALL_REDUCE = "--disable-custom-all-reduce"
SHARED_MEMORY: Bytes = 8 * GiB  # /dev/shm: NCCL falls back on sockets, 60 times slower, where it is too small
WITHOUT_PEERS = {"NCCL_P2P_DISABLE": "1", "NCCL_NVLS_ENABLE": "0", "NCCL_IB_DISABLE": "1"}
# NCCL's newer allocator shares memory in ways that Windows' driver does not offer; switching it off costs nothing.
BEHIND_WINDOWS = WITHOUT_PEERS | {
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
    """None with fewer than two GPUs, or where it is not known. NCCL's log shows the one it chose."""
    cards = several(target)
    if not cards or target.path == "gpu-p":
        return None
    if target.path in SHARED:
        return NcclTransport(SHM, BEHIND_WINDOWS, (NO_CUSTOM_ALL_REDUCE,))
    shown = shown_transport(target)
    if shown == PEERS:
        return NcclTransport(PEERS)
    if shown or target.path == "dda" or without_peers(cards) or hung(cards):
        return NcclTransport(SHM, WITHOUT_PEERS, (NO_CUSTOM_ALL_REDUCE,))
    return NcclTransport(EITHER if untold(cards) or by_bridge(cards) else PEERS)


def shown_transport(target: Target) -> str | None:
    """By what `winhost probe` measured here, whatever is said of these GPUs elsewhere; None where nothing was."""
    found = reduced_by(target.measurement) if target.measurement else None
    return None if found is None else PEERS if goes_directly(found) else SHM


@measure("nccl-transport")
def which(target: Target) -> str | None:
    """The transport and its settings."""
    found = transport(target)
    return str(found) if found else None


@capability("nccl-transport.one-card", on=EVERYWHERE)
def nothing_to_carry(target: Target) -> str | None:
    """One GPU needs no NCCL."""
    if not several(target):
        return f"{len(gpus(target))} GPU(s) with CUDA"
    return None


@capability("nccl-transport.behind-windows", on=SHARED)
def through_host_memory(target: Target) -> str | None:
    """Behind the Windows driver there is no peer-to-peer."""
    if several(target):
        return SHM
    return None


@capability("nccl-transport.many-behind-windows", on=SHARED)
def little_to_pin(target: Target) -> str | None:
    """Each pair of GPUs needs pinned buffers, and WSL can pin too few for more than two GPUs."""
    if len(gpus(target)) > MOST_SEEN_BEHIND_WINDOWS:
        return named(gpus(target))
    return None


@capability("nccl-transport.assigned", on=("dda", "linux"))
def until_peers_are_shown(target: Target) -> str | None:
    """In a guest winhost configures host memory, until peer-to-peer is shown."""
    if several(target) and in_a_guest(target):
        return SHM
    return None


@capability("nccl-transport.no-peers", on=NATIVE)
def without_peers_on_linux(target: Target) -> str | None:
    """These GPUs have no usable peer-to-peer on Linux either."""
    cards = {card.location: card for card in (*without_peers(several(target)), *hung(several(target)))}
    if cards:
        return f"{SHM}: {named(cards.values())}"
    return None


@capability("nccl-transport.card-untold", on=NATIVE)
def decided_by_the_driver(target: Target) -> str | None:
    """The driver decides at run time whether these GPUs have peer-to-peer."""
    cards = (*untold(several(target)), *by_bridge(several(target)))
    if cards and not without_peers(several(target)):
        return f"{EITHER}: {named(cards)}"
    return None


@capability("nccl-transport.partition", on=("gpu-p",))
def partitions_without_unified_memory(target: Target) -> str | None:
    """NCCL did not start on vGPUs without unified memory."""
    if several(target):
        return named(gpus(target))
    return None
