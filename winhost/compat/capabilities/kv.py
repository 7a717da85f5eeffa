"""Rules of KV caches outside the GPU that computed them: files, LMCache, NIXL, copies between GPUs."""

from dataclasses import replace

from packaging.version import Version

from winhost.compat.capabilities import links
from winhost.compat.capability import EVERYWHERE, RULES, SHARED, WHOLE_CARD, capability, measure
from winhost.compat.gpu_cards import linked, several
from winhost.compat.target import Target
from winhost.hardware.gpus import NvLink

VLLM_WITH_TIERS = Version("0.22.0")  # docs.vllm.ai lists vllm.v1.kv_offload.tiering.fs from there on
VLLM_OF_NEW_LAYOUTS = Version("0.20.0")  # LMCache/LMCache #3282
VLLM_WITHOUT_PEER_COPIES = Version("0.24.0")  # its wheel has no P2pNcclConnector, that of 0.23.0 has

# --- Written through to files --------------------------------------------------------------------------------------


@capability("kv-write-through.old-vllm", on=EVERYWHERE)
def vllm_without_tiers(target: Target) -> str | None:
    """vLLM before 0.22 offloads KV blocks to host memory only, which is lost with the engine."""
    if target.vllm < VLLM_WITH_TIERS:
        return f"vLLM {target.vllm}"
    return None


@capability("kv-write-through.unpinned", on=SHARED)
def tier_is_not_pinned(target: Target) -> str | None:
    """The tier in host memory is larger than what can be pinned behind the Windows driver."""
    return f"on {target.path}"


@capability("kv-write-through.no-sleep", on=EVERYWHERE)
def never_with_sleep(target: Target) -> str | None:
    """KV offloading together with sleep mode ended an engine; nobody has shown the two work."""
    return f"on {target.variant}"


@capability("kv-write-through.settings", on=EVERYWHERE)
def mirror_takes_settings(target: Target) -> str | None:
    """vLLM's default settings are those of a cache, not of a mirror."""
    return f"on {target.variant}"


@measure("kv-write-through")
def blocks_leave_at(target: Target) -> str | None:
    """Rate at which KV blocks are copied off the GPU, as measured."""
    if target.path not in WHOLE_CARD:
        return None
    return "6.5 GB/s in blocks of 16 KiB, one copy each, and 55.5 GB/s in bulk, measured on an H200 into pinned memory"


# --- LMCache -------------------------------------------------------------------------------------------------------


@capability("kv-lmcache.pair", on=EVERYWHERE)
def layouts_of_vllm_moved_on(target: Target) -> str | None:
    """Each LMCache release works with certain vLLM releases; from 0.20 on vLLM needs a newer LMCache."""
    if target.vllm >= VLLM_OF_NEW_LAYOUTS:
        return f"vLLM {target.vllm}"
    return None


@capability("kv-lmcache.behind-windows", on=SHARED)
def server_maps_the_engine(target: Target) -> str | None:
    """The LMCache server maps the engine's memory by CUDA IPC, which is limited behind the Windows driver."""
    return f"on {target.path}"


@capability("kv-lmcache.sleep-clears", on=EVERYWHERE)
def sleep_clears(target: Target) -> str | None:
    """An engine that goes to sleep clears the LMCache server for every engine that uses it."""
    return f"on {target.variant}"


# --- NIXL ----------------------------------------------------------------------------------------------------------


@capability("kv-nixl.pull", on=EVERYWHERE)
def pulled_when_asked_for(target: Target) -> str | None:
    """NIXL transfers KV blocks on request; it keeps no copy."""
    return f"on {target.variant}"


@capability("kv-nixl.sleep", on=EVERYWHERE)
def sleeps_with_ucx_only(target: Target) -> str | None:
    """With sleep mode enabled, vLLM accepts NIXL with UCX only."""
    return f"on {target.variant}"


@capability("kv-nixl.behind-windows", on=SHARED)
def transports_behind_windows(target: Target) -> str | None:
    """Behind the Windows driver NIXL has neither peer-to-peer nor RDMA."""
    return f"on {target.path}"


@capability("kv-nixl.nat", on=("wsl2/nat",))
def nobody_reaches_it(target: Target) -> str | None:
    """Behind NAT, engines of other hosts cannot connect to the address that this engine announces."""
    return f"on {target.variant}"


# --- From card to card ---------------------------------------------------------------------------------------------

# What speaks against peers speaks against copies between them.
_PEERS = [rule for rule in RULES if (rule.judge.__module__, rule.capability) == (links.__name__, "gpu-p2p")]
RULES.extend(replace(rule, capability="kv-peer-copies") for rule in _PEERS)


@capability("kv-peer-copies.connector-gone", on=EVERYWHERE)
def connector_is_gone(target: Target) -> str | None:
    """vLLM removed P2pNcclConnector in 0.24, and no other connector pushes copies."""
    if target.vllm >= VLLM_WITHOUT_PEER_COPIES:
        return f"vLLM {target.vllm}"
    return None


@measure("kv-peer-copies")
def blocks_cross_at(target: Target) -> str | None:
    """Rate of copies between GPUs over NVLink, as measured."""
    if target.path not in WHOLE_CARD or not linked(several(target), NvLink.BOARD):
        return None
    return "396 GB/s in bulk and 1.3 GB/s in blocks of 16 KiB, one copy each, measured between two H200 over NVLink"
