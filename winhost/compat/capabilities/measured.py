"""Judges of capabilities by measurements of `winhost probe` on this host, which replace findings from documents."""

from collections.abc import Iterable
from dataclasses import replace

from winhost.compat.capability import judges_measurement
from winhost.compat.rule import finding
from winhost.model.measured import AllReduce, ManagedMemory, Measurement, PeerLink
from winhost.model.path import SHARED_GPU_PATHS
from winhost.model.reason import Finding
from winhost.model.units import Bytes, GiB, size

PINNED_ENOUGH: Bytes = 4 * GiB  # as far as the probe goes

# The calls that each part of the probe is about. If another call is refused, such as one for memory, the part is not
# judged.
_CALLS_OF_PARTS = {
    "peers": ("cuDeviceCanAccessPeer", "cuCtxEnablePeerAccess", "cuMemcpyPeer"),
    "ipc-legacy": ("cuIpc",),
    "ipc-fd": ("cuMemGetAllocationGranularity", "cuMemCreate", "cuMemExport", "cuMemImport", "cuMemMap", "cuMemSet"),
    "managed": ("cuMemAllocManaged", "cuMemset", "cuStream"),
    "copies": ("cuMemHostAlloc",),
    "checkpoint": ("cuCheckpoint",),
    "video": ("cuvid",),
    "nccl": ("nccl",),
}


@judges_measurement("gpu-compute", replaces=("tcc", "unlisted"))
def gpu_compute(measured: Measurement) -> Finding | None:
    """Judge whether CUDA initialised, whatever mode the driver reports."""
    ended = measured.found.outcome_of("driver")
    if ended is None or ended.outcome == "skipped":
        return None
    if ended.outcome == "done":
        return finding("gpu-compute.measured", f"{len(measured.found.gpus)} GPU(s) with CUDA")
    return finding("gpu-compute.measured-none", ended.why or ended.outcome)


@judges_measurement(
    "gpu-p2p", replaces=("behind-windows", "refused", "gpu-untold", "bridge", "hung", "assigned", "partition")
)
def gpu_p2p(measured: Measurement) -> Finding | None:
    """Judge whether each GPU can copy to each other one, with the data intact."""
    links = measured.found.peers
    if why := _failed_links(links) or _part_failure(measured, "peers"):
        return finding("gpu-p2p.measured-none", why)
    if not links or not all(link.intact for link in links):
        return None
    slowest = min(link.rate or 0 for link in links)
    return finding("gpu-p2p.measured", f"{len(links)} directions, at least {slowest:.0f} GB/s")


def _failed_links(links: Iterable[PeerLink]) -> str | None:
    wrong = [f"{link.source} to {link.target}" for link in links if link.intact is False]
    refused = [f"{link.source} to {link.target}" for link in links if not link.access]
    if wrong:
        return f"what arrives is wrong: {', '.join(wrong)}"
    return f"no access: {', '.join(refused)}" if refused else None


@judges_measurement(
    "nccl-transport",
    replaces=("behind-windows", "many-behind-windows", "assigned", "no-peers", "gpu-untold", "partition"),
)
def nccl_transport(measured: Measurement) -> Finding | None:
    """Judge an all-reduce over all GPUs, and the transport that NCCL's log names."""
    if why := _nccl_failure(measured):
        return finding("nccl-transport.measured-none", why)
    if (reduced := valid_all_reduce(measured)) is None:
        return None
    if is_peer_to_peer(reduced):
        return finding("nccl-transport.measured", _describe_all_reduce(reduced))
    return finding("nccl-transport.measured-indirect", _describe_all_reduce(reduced))


@judges_measurement("tensor-parallel", replaces=("behind-windows", "many-behind-windows", "assigned", "no-peers"))
def tensor_parallel(measured: Measurement) -> Finding | None:
    """Judge by the all-reduce, which joins the parts of a layer."""
    if why := _nccl_failure(measured):
        return finding("tensor-parallel.measured-none", why)
    if (reduced := valid_all_reduce(measured)) is None:
        return None
    if is_peer_to_peer(reduced):
        return finding("tensor-parallel.measured", _describe_all_reduce(reduced))
    return finding("tensor-parallel.measured-indirect", _describe_all_reduce(reduced))


def _nccl_failure(measured: Measurement) -> str | None:
    """Return why NCCL does not work; None where it works or is not installed."""
    inside = _measurement_in_container(measured)
    found, ended = inside.found.nccl, inside.found.outcome_of("nccl")
    if ended and ended.error and ended.error.number < 0:
        return None  # there is no NCCL
    return _part_failure(inside, "nccl") or ("what arrives is wrong" if found and found.intact is False else None)


def _describe_all_reduce(reduced: AllReduce) -> str:
    largest = max(reduced.rates, key=lambda each: each.bytes)
    return f"{', '.join(reduced.transports)}; {size(largest.bytes)} in {largest.microseconds / 1000:.1f} ms"


def valid_all_reduce(measured: Measurement) -> AllReduce | None:
    """Return the all-reduce if its result was right; None without one."""
    found = _measurement_in_container(measured).found.nccl
    return found if found and found.intact and found.transports and found.rates else None


def is_peer_to_peer(found: AllReduce) -> bool:
    """Tell whether each GPU reaches the others directly; otherwise data goes through host memory or a network."""
    return all(name.startswith("P2P") for name in found.transports)


def _measurement_in_container(measured: Measurement) -> Measurement:
    """Return the measurement in a container if there is one, else the measurement itself."""
    inside = measured.found.container and measured.found.container.answer
    return replace(measured, found=inside) if inside and inside.outcome_of("nccl") else measured


@judges_measurement("cuda-ipc", replaces=("legacy-only", "old-driver", "unknown"))
def cuda_ipc(measured: Measurement) -> Finding | None:
    """Judge whether two processes shared GPU memory by the old calls, the new ones, or both."""
    old = _worked(measured, "ipc-legacy", measured.found.ipc_legacy)
    new = _worked(measured, "ipc-fd", measured.found.ipc_fd)
    if old is None or new is None:
        return None
    if old and new:
        return finding("cuda-ipc.measured", "cuIpcGetMemHandle and cuMemExportToShareableHandle")
    failed = [why for part in ("ipc-legacy", "ipc-fd") if (why := _part_failure(measured, part))]
    observed = "; ".join(failed) or "what was shared is wrong"
    if old or new:
        return finding("cuda-ipc.measured-part", observed)
    return finding("cuda-ipc.measured-none", observed)


@judges_measurement("uvm", replaces=("behind-windows", "partition"))
def managed_memory(measured: Measurement) -> Finding | None:
    """Judge whether the processor used managed memory while the GPU worked. Whether managed memory may exceed that of
    the GPU is not tested.
    """
    managed = measured.found.managed
    if why := _part_failure(measured, "managed") or (managed and _managed_memory_failure(managed)):
        return finding("uvm.measured-none", why)
    if managed is None or managed.concurrent is None:
        return None
    return finding("uvm.measured", "used by GPU and processor at once")


def _managed_memory_failure(managed: ManagedMemory) -> str | None:
    if managed.works is False or managed.concurrent is False:
        return "what was written is wrong"
    return None if managed.offered else "the driver offers no use by GPU and processor at once"


@judges_measurement("pinned-memory", replaces=("little",))
def pinned_memory(measured: Measurement) -> Finding | None:
    """Judge the amount of memory that was pinned. Copies alone only show that some can be pinned, as documents say."""
    pinned = measured.found.pinned
    if why := _refused_call(measured, "copies") or (pinned and not pinned.bytes and pinned.ended):
        return finding("pinned-memory.measured-none", why)
    if pinned is None:
        return None
    if pinned.bytes >= PINNED_ENOUGH:
        return finding("pinned-memory.measured", f"{size(pinned.bytes)} pinned, and no more was tried")
    if pinned.ended in (None, "memory"):
        return None  # it was stopped, or the machine had no more to spare
    return finding("pinned-memory.measured-little", f"{size(pinned.bytes)}, then {pinned.ended}")


@judges_measurement("cuda-checkpoint", replaces=("behind-windows", "old-driver", "tool-only", "unknown"))
def cuda_checkpoint(measured: Measurement) -> Finding | None:
    """Judge whether a small process was suspended and resumed with its data intact."""
    done, ended = measured.found.checkpoint, measured.found.outcome_of("checkpoint")
    if ended and ended.error and ended.error.number < 0:
        return None  # a driver without the calls may still have the tool
    wrong = "its data were not intact" if done and done.intact is False else None
    if why := _part_failure(measured, "checkpoint") or wrong:
        return finding("cuda-checkpoint.measured-none", why)
    if done is None or done.intact is None:
        return None
    observed = f"{size(done.bytes)} suspended in {done.suspended} s, resumed in {done.resumed} s"
    return finding("cuda-checkpoint.measured", observed)


@judges_measurement("video-codec", replaces=("gpu-untold", "toolkit-regression", "toolkit-older", "unknown"))
def video_codec(measured: Measurement) -> Finding | None:
    """Judge encoding and decoding. In WSL both must work in a container too, because container toolkits differ
    in that.
    """
    video, inside = measured.found.video, measured.found.container and measured.found.container.answer
    if why := _part_failure(measured, "video") or (video and video.decodes is False and "what is decoded is wrong"):
        return finding("video-codec.measured-none", why)
    if video is None or not video.decodes:
        return None
    if inside and (ended := inside.outcome_of("video")) and not (inside.video and inside.video.decodes):
        return finding("video-codec.measured-outside", ended.why or "it decodes nothing")
    if video.encodes is False:
        return finding("video-codec.measured-decodes", video.why or "what is encoded is wrong")
    if not video.encodes or (measured.path in SHARED_GPU_PATHS and not (inside and inside.video)):
        return None
    return finding("video-codec.measured", "encoded and decoded H.264")


def _worked(measured: Measurement, part: str, worked: bool | None) -> bool | None:
    return worked if worked is not None else (False if _part_failure(measured, part) else None)


def _part_failure(measured: Measurement, part: str) -> str | None:
    """Return why a part does not work: a call was refused, or the process that tried it hung or crashed."""
    ended = measured.found.outcome_of(part)
    if ended and ended.outcome in ("hung", "crashed"):
        return f"{part} {ended.outcome}: {ended.why}"
    return _refused_call(measured, part)


def _refused_call(measured: Measurement, part: str) -> str | None:
    ended = measured.found.outcome_of(part)
    error = ended.error if ended else None
    return str(error) if error and error.call.startswith(_CALLS_OF_PARTS[part]) else None
