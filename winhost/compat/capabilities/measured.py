"""Measurements of `winhost probe` on this host replace findings from documents and reports, for better and
for worse.
"""

from collections.abc import Iterable
from dataclasses import replace

from winhost.compat.capability import judges_measurement
from winhost.compat.rule import finding
from winhost.model.measured import AllReduce, ManagedMemory, Measurement, PeerLink
from winhost.model.path import SHARED
from winhost.model.reason import Finding
from winhost.model.units import Bytes, GiB, size

PINNED_ENOUGH: Bytes = 4 * GiB  # as far as the probe goes

# The calls that are about a part. Where another one says no, such as that for memory, nothing is settled by it.
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


@judges_measurement("gpu-compute", over=("tcc", "unlisted"))
def gpu_compute(measured: Measurement) -> Finding | None:
    """CUDA initialised here or it did not, whatever mode the driver is said to be in."""
    ended = measured.found.of("driver")
    if ended is None or ended.outcome == "skipped":
        return None
    if ended.outcome == "done":
        return finding("gpu-compute.measured", f"{len(measured.found.gpus)} GPU(s) with CUDA")
    return finding("gpu-compute.measured-none", ended.why or ended.outcome)


@judges_measurement(
    "gpu-p2p", over=("behind-windows", "refused", "gpu-untold", "bridge", "hung", "assigned", "partition")
)
def gpu_p2p(measured: Measurement) -> Finding | None:
    """Each GPU reaches each other one, and what arrives is what was sent."""
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
    "nccl-transport", over=("behind-windows", "many-behind-windows", "assigned", "no-peers", "gpu-untold", "partition")
)
def nccl_transport(measured: Measurement) -> Finding | None:
    """An all-reduce over all GPUs, and what NCCL's log says that it went through."""
    if why := _nccl_failure(measured):
        return finding("nccl-transport.measured-none", why)
    if (reduced := valid_all_reduce(measured)) is None:
        return None
    if is_peer_to_peer(reduced):
        return finding("nccl-transport.measured", _describe_all_reduce(reduced))
    return finding("nccl-transport.measured-indirect", _describe_all_reduce(reduced))


@judges_measurement("tensor-parallel", over=("behind-windows", "many-behind-windows", "assigned", "no-peers"))
def tensor_parallel(measured: Measurement) -> Finding | None:
    """The parts of a layer are put together by all-reduces."""
    if why := _nccl_failure(measured):
        return finding("tensor-parallel.measured-none", why)
    if (reduced := valid_all_reduce(measured)) is None:
        return None
    if is_peer_to_peer(reduced):
        return finding("tensor-parallel.measured", _describe_all_reduce(reduced))
    return finding("tensor-parallel.measured-indirect", _describe_all_reduce(reduced))


def _nccl_failure(measured: Measurement) -> str | None:
    """Say why NCCL does not work; None where it does, or where there is none."""
    tried = _measurement_in_container(measured)
    found, ended = tried.found.nccl, tried.found.of("nccl")
    if ended and ended.error and ended.error.number < 0:
        return None  # there is no NCCL
    return _part_failure(tried, "nccl") or ("what arrives is wrong" if found and found.intact is False else None)


def _describe_all_reduce(reduced: AllReduce) -> str:
    largest = max(reduced.rates, key=lambda each: each.bytes)
    return f"{', '.join(reduced.transports)}; {size(largest.bytes)} in {largest.microseconds / 1000:.1f} ms"


def valid_all_reduce(measured: Measurement) -> AllReduce | None:
    """The all-reduce whose result was right; None without one."""
    found = _measurement_in_container(measured).found.nccl
    return found if found and found.intact and found.transports and found.rates else None


def is_peer_to_peer(found: AllReduce) -> bool:
    """True where each GPU reaches the others directly; else data goes through host memory or a network."""
    return all(name.startswith("P2P") for name in found.transports)


def _measurement_in_container(measured: Measurement) -> Measurement:
    """The measurement in a container, where one was made."""
    inside = measured.found.container and measured.found.container.answer
    return replace(measured, found=inside) if inside and inside.of("nccl") else measured


@judges_measurement("cuda-ipc", over=("legacy-only", "old-driver", "unknown"))
def cuda_ipc(measured: Measurement) -> Finding | None:
    """Two processes shared GPU memory by the old calls, the new ones, or both."""
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


@judges_measurement("uvm", over=("behind-windows", "partition"))
def managed_memory(measured: Measurement) -> Finding | None:
    """The processor used managed memory while the GPU worked. Whether it may exceed the GPU's is left untried."""
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


@judges_measurement("pinned-memory", over=("little",))
def pinned_memory(measured: Measurement) -> Finding | None:
    """The amount that was pinned. Copies alone show that some memory can be pinned, which documents say too."""
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


@judges_measurement("cuda-checkpoint", over=("behind-windows", "old-driver", "tool-only", "unknown"))
def cuda_checkpoint(measured: Measurement) -> Finding | None:
    """A small process was suspended and resumed, and its data were intact."""
    done, ended = measured.found.checkpoint, measured.found.of("checkpoint")
    if ended and ended.error and ended.error.number < 0:
        return None  # a driver without the calls may still come with the tool
    wrong = "its data were not intact" if done and done.intact is False else None
    if why := _part_failure(measured, "checkpoint") or wrong:
        return finding("cuda-checkpoint.measured-none", why)
    if done is None or done.intact is None:
        return None
    observed = f"{size(done.bytes)} suspended in {done.suspended} s, resumed in {done.resumed} s"
    return finding("cuda-checkpoint.measured", observed)


@judges_measurement("video-codec", over=("gpu-untold", "toolkit-regression", "toolkit-older", "unknown"))
def video_codec(measured: Measurement) -> Finding | None:
    """Judge the encoding and decoding that was tried here; in WSL it works only if a container does as much, because
    toolkits differ in that.
    """
    video, inside = measured.found.video, measured.found.container and measured.found.container.answer
    if why := _part_failure(measured, "video") or (video and video.decodes is False and "what is decoded is wrong"):
        return finding("video-codec.measured-none", why)
    if video is None or not video.decodes:
        return None
    if inside and (ended := inside.of("video")) and not (inside.video and inside.video.decodes):
        return finding("video-codec.measured-outside", ended.why or "it decodes nothing")
    if video.encodes is False:
        return finding("video-codec.measured-decodes", video.why or "what is encoded is wrong")
    if not video.encodes or (measured.path in SHARED and not (inside and inside.video)):
        return None
    return finding("video-codec.measured", "encoded and decoded H.264")


def _worked(measured: Measurement, part: str, worked: bool | None) -> bool | None:
    return worked if worked is not None else (False if _part_failure(measured, part) else None)


def _part_failure(measured: Measurement, part: str) -> str | None:
    """Say why it does not work: a call was refused, or the process that tried it hung or crashed."""
    ended = measured.found.of(part)
    if ended and ended.outcome in ("hung", "crashed"):
        return f"{part} {ended.outcome}: {ended.why}"
    return _refused_call(measured, part)


def _refused_call(measured: Measurement, part: str) -> str | None:
    ended = measured.found.of(part)
    error = ended.error if ended else None
    return str(error) if error and error.call.startswith(_CALLS_OF_PARTS[part]) else None
