# Part of the probe: its parts. Each reports results as soon as it has them.
from __future__ import annotations

import ctypes
import json
import mmap
import os
import resource
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from winhost.agent.linux_collectives import nccl
from winhost.agent.linux_libraries import (
    AS_FD,
    BLOCK,
    CONCURRENT_MANAGED,
    FD_HANDLES,
    MAJOR,
    MIB,
    MIN_FREE_HOST,
    MINOR,
    NOT_READY,
    ON_DEVICE,
    PEERS_ALREADY,
    PINNED,
    READ_WRITE,
    SMALL,
    UNIFIED_ADDRESSING,
    AllocationProperties,
    CallFailed,
    Cuda,
    IpcMemHandle,
    Location,
    LockArguments,
    MemoryAccess,
    Nvml,
    Pointer,
    Skipped,
    Unfit,
    check_host,
    find_in_folders,
    host_memory,
    rate,
    shortest_time,
)
from winhost.agent.linux_peer import Peer
from winhost.agent.linux_video import video

PIN_STEP = 128 * MIB
MAX_PINNED = 4096 * MIB
SHM = "/dev/shm"  # noqa: S108 - as a file system
RUNTIMES = ("docker", "podman")
RUNTIME_FOLDERS = ("/usr/local/bin", "/usr/bin", "/bin")
START = 'import json,sys;exec(compile(json.loads(sys.stdin.buffer.readline()),"winhost","exec"))'
CONTAINER_PARTS = ("driver", "nccl", "video")
BEFORE, AFTER = 0x5A17C0DE, 0x0DDBA115


def driver(say: Any, _: Any) -> None:
    """Initialise CUDA, and list its GPUs."""
    with suppress(CallFailed):
        say("driver", Nvml().driver())
    cuda = Cuda()
    version = cuda.integer("cuDriverGetVersion")
    say("cuda", f"{version // 1000}.{version % 1000 // 10}")
    gpus = []
    for gpu in range(cuda.count()):
        name, total = ctypes.create_string_buffer(128), ctypes.c_size_t()
        cuda("cuDeviceGetName", name, 128, gpu)
        cuda("cuDeviceTotalMem_v2", ctypes.byref(total), gpu)
        found = {
            "index": gpu,
            "name": name.value.decode("ascii", "replace"),
            "location": cuda.location(gpu),
            "total": total.value,
            "compute_capability": f"{cuda.attribute(MAJOR, gpu)}.{cuda.attribute(MINOR, gpu)}",
            "unified_addressing": bool(cuda.attribute(UNIFIED_ADDRESSING, gpu)),
            "concurrent_managed": bool(cuda.attribute(CONCURRENT_MANAGED, gpu)),
            "fd_handles": bool(cuda.attribute(FD_HANDLES, gpu)),
            "free": Nvml.free_of(cuda.location(gpu)),
            "nvlinks": None,
        }
        with suppress(CallFailed):
            found["nvlinks"] = Nvml().links(str(found["location"]))
        gpus.append(found)
        say("gpus", gpus)
    if not gpus:
        raise Unfit("CUDA initialises and has no GPU")


def shm(say: Any, _: Any) -> None:
    """Try the shared memory that NCCL and vLLM use."""
    filesystem = os.statvfs(SHM)
    total, free = filesystem.f_blocks * filesystem.f_frsize, filesystem.f_bavail * filesystem.f_frsize
    memlock = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    found = {"total": total, "free": free, "usable": False, "memlock": None if memlock < 0 else memlock}
    say("shm", found)
    with tempfile.TemporaryFile(dir=SHM) as file:
        file.truncate(MIB)
        with mmap.mmap(file.fileno(), MIB) as shared:
            shared[:] = b"w" * MIB
    say("shm", dict(found, usable=True))


def copies(say: Any, _: Any) -> None:
    """Measure rates between host and GPU, with pinned and with pageable memory."""
    check_host(2 * BLOCK)
    cuda, found = Cuda(), []
    size = ctypes.c_size_t(BLOCK)
    pageable = mmap.mmap(-1, BLOCK)
    plain = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(pageable)))
    ctypes.memset(plain, 1, BLOCK)
    for gpu in range(cuda.count()):
        cuda.enter(gpu)
        where, pinned = cuda.allocated(BLOCK), ctypes.c_void_p()
        rates: dict[str, Any] = {"gpu": gpu, "bytes": BLOCK}
        found.append(rates)

        def timed(name: str, call: str, *arguments: Any) -> None:
            def copy() -> None:
                cuda(call, *arguments)
                cuda("cuCtxSynchronize")

            rates[name] = rate(BLOCK, shortest_time(copy))  # noqa: B023 - called before the next one
            say("copies", found)

        timed("pageable_up", "cuMemcpyHtoD_v2", where, plain, size)
        timed("pageable_down", "cuMemcpyDtoH_v2", plain, where, size)
        cuda("cuMemHostAlloc", ctypes.byref(pinned), size, 0)
        ctypes.memset(pinned, 1, BLOCK)
        timed("pinned_up", "cuMemcpyHtoD_v2", where, pinned, size)
        timed("pinned_down", "cuMemcpyDtoH_v2", pinned, where, size)
        cuda("cuMemFreeHost", pinned)
        cuda("cuMemFree_v2", where)


def peers(say: Any, _: Any) -> None:
    """Measure each GPU's access to each other one: the rate, and whether the data arrives intact."""
    cuda, found = Cuda(), []
    number = cuda.count()
    if number < 2:
        raise Skipped("there are fewer than two GPUs")
    check_host(SMALL)
    blocks = []
    for gpu in range(number):
        cuda.enter(gpu)
        blocks.append(cuda.allocated(BLOCK))
    for source in range(number):
        for target in range(number):
            if source == target:
                continue
            link = {"source": source, "target": target, "access": False, "rate": None, "intact": None}
            found.append(link)
            link["access"] = bool(cuda.integer("cuDeviceCanAccessPeer", source, target))
            say("peers", found)
            if link["access"]:
                link.update(peer_copy(cuda, source, target, blocks))
            say("peers", found)


def peer_copy(cuda: Cuda, source: int, target: int, blocks: list[Any]) -> dict[str, Any]:
    contexts = [ctypes.c_void_p(), ctypes.c_void_p()]
    for context, gpu in zip(contexts, (source, target)):
        cuda("cuDevicePrimaryCtxRetain", ctypes.byref(context), gpu)
    target_context, source_context = contexts[1], contexts[0]
    cuda("cuCtxSetCurrent", target_context)
    cuda.filled(blocks[target], BLOCK, BEFORE)
    cuda("cuCtxSetCurrent", source_context)
    cuda.filled(blocks[source], BLOCK, AFTER)
    number = cuda.number("cuCtxEnablePeerAccess", target_context, 0)
    if number not in (0, PEERS_ALREADY):
        raise CallFailed("cuCtxEnablePeerAccess", number, cuda.name_of(number))
    times, size = 8, ctypes.c_size_t(BLOCK)

    def copy() -> None:
        for _ in range(times):
            cuda("cuMemcpyPeer", blocks[target], target_context, blocks[source], source_context, size)
        cuda("cuCtxSynchronize")

    took = shortest_time(copy)
    cuda("cuCtxSetCurrent", target_context)
    intact = cuda.holds(blocks[target], BLOCK, AFTER)
    return {"rate": rate(times * BLOCK, took), "intact": intact}


def ipc_legacy(say: Any, _: Any) -> None:
    """Let a process write into another one's GPU memory, with cuIpcGetMemHandle."""

    def run_peer(parent: Peer) -> None:
        heard = parent.receive()
        cuda, where = Cuda(), Pointer()
        cuda.enter(0)
        handle = IpcMemHandle((ctypes.c_ubyte * 64)(*heard))
        cuda("cuIpcOpenMemHandle_v2", ctypes.byref(where), handle, ctypes.c_uint(1))
        parent.send(cuda.holds(where, SMALL, BEFORE))
        cuda.filled(where, SMALL, AFTER)
        parent.send("written")
        parent.receive()
        cuda("cuIpcCloseMemHandle", where)

    peer = Peer(run_peer)
    cuda, handle = Cuda(), IpcMemHandle()
    cuda.enter(0)
    where = cuda.allocated(SMALL)
    cuda.filled(where, SMALL, BEFORE)
    cuda("cuIpcGetMemHandle", ctypes.byref(handle), where)
    peer.send(list(handle.reserved))
    shared(say, "ipc_legacy", peer, cuda, where)


def ipc_fd(say: Any, _: Any) -> None:
    """Let a process write into another one's GPU memory, with a file descriptor of cuMemExportToShareableHandle."""

    def run_peer(parent: Peer) -> None:
        size = parent.receive()
        cuda, handle = Cuda(), Pointer()
        cuda.enter(0)
        cuda("cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(parent.take_descriptor()), AS_FD)
        where = mapped(cuda, handle, size)
        parent.send(cuda.holds(where, size, BEFORE))
        cuda.filled(where, size, AFTER)
        parent.send("written")
        parent.receive()

    peer = Peer(run_peer)
    cuda, handle, fd, step = Cuda(), Pointer(), ctypes.c_int(-1), ctypes.c_size_t()
    cuda.enter(0)
    how = AllocationProperties(type=PINNED, handle_types=AS_FD, location=Location(ON_DEVICE, 0))
    cuda("cuMemGetAllocationGranularity", ctypes.byref(step), ctypes.byref(how), 0)
    if SMALL % step.value:
        raise Unfit(f"memory comes in pieces of {step.value} bytes")
    size = SMALL
    cuda("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(how), ctypes.c_ulonglong(0))
    cuda("cuMemExportToShareableHandle", ctypes.byref(fd), handle, AS_FD, ctypes.c_ulonglong(0))
    where = mapped(cuda, handle, size)
    cuda.filled(where, size, BEFORE)
    peer.send(size, fd.value)
    shared(say, "ipc_fd", peer, cuda, where, size)


def mapped(cuda: Cuda, handle: Any, size: int) -> Any:
    where, nothing = Pointer(), ctypes.c_size_t(0)
    length, access = ctypes.c_size_t(size), MemoryAccess(Location(ON_DEVICE, 0), READ_WRITE)
    cuda("cuMemAddressReserve", ctypes.byref(where), length, nothing, Pointer(0), ctypes.c_ulonglong(0))
    cuda("cuMemMap", where, length, nothing, handle, ctypes.c_ulonglong(0))
    cuda("cuMemSetAccess", where, length, ctypes.byref(access), ctypes.c_size_t(1))
    return where


def shared(say: Any, name: str, peer: Peer, cuda: Cuda, where: Any, size: int = SMALL) -> None:
    """Check that the peer read and wrote the right data."""
    read = peer.receive()
    peer.receive()
    say(name, bool(read and cuda.holds(where, size, AFTER)))
    peer.send("over")


def managed(say: Any, _: Any) -> None:
    """Try a little managed memory, also while the GPU computes."""
    check_host(SMALL)
    cuda, where, stream = Cuda(), Pointer(), ctypes.c_void_p()
    cuda.enter(0)
    found: dict[str, Any] = {"works": None, "concurrent": None, "offered": bool(cuda.attribute(CONCURRENT_MANAGED, 0))}
    say("managed", found)
    cuda("cuMemAllocManaged", ctypes.byref(where), ctypes.c_size_t(SMALL), ctypes.c_uint(1))
    ctypes.memset(where.value, 1, SMALL)
    cuda.filled(where, SMALL // 2, AFTER)
    expected = AFTER.to_bytes(4, "little") * (SMALL // 8) + b"\1" * (SMALL // 2)
    found["works"] = ctypes.string_at(where.value, SMALL) == expected
    say("managed", found)
    if not found["offered"]:
        return  # without this attribute, access while the GPU computes would end the process
    busy = cuda.allocated(BLOCK)
    cuda("cuStreamCreate", ctypes.byref(stream), ctypes.c_uint(1))
    for _ in range(400):
        cuda("cuMemsetD32Async", busy, ctypes.c_uint(1), ctypes.c_size_t(BLOCK // 4), stream)
    ctypes.memset(where.value, 2, 4096)
    if cuda.number("cuStreamQuery", stream) == NOT_READY:
        found["concurrent"] = ctypes.string_at(where.value, 4096) == b"\2" * 4096
    cuda("cuStreamSynchronize", stream)
    say("managed", found)


def pin_limit(say: Any, _: Any) -> None:
    """Find how much memory can be pinned, up to 4 GiB. Memory that WSL pins is missing in Windows, so this part runs
    only if it is requested.
    """
    cuda = Cuda()
    cuda.enter(0)
    pinned = 0
    while pinned < MAX_PINNED:
        if host_memory()["MemAvailable"] < PIN_STEP + MIN_FREE_HOST:
            say("pinned", {"bytes": pinned, "ended": "memory"})
            return
        where = ctypes.c_void_p()
        number = cuda.number("cuMemHostAlloc", ctypes.byref(where), ctypes.c_size_t(PIN_STEP), 0)
        if number:
            say("pinned", {"bytes": pinned, "ended": cuda.name_of(number)})
            return
        pinned += PIN_STEP
        say("pinned", {"bytes": pinned, "ended": None})


def checkpoint(say: Any, _: Any) -> None:
    """Suspend and resume a process of the probe that has GPU memory."""

    def run_peer(parent: Peer) -> None:
        cuda = Cuda()
        cuda.enter(0)
        where = cuda.allocated(BLOCK)
        cuda.filled(where, BLOCK, AFTER)
        parent.send(cuda.location(0))
        parent.receive()
        parent.send(cuda.holds(where, BLOCK, AFTER))

    check_host(2 * BLOCK)
    peer = Peer(run_peer)
    location = peer.receive()
    cuda = Cuda()
    found: dict[str, Any] = {"bytes": BLOCK, "suspended": None, "resumed": None, "freed": None, "intact": None}
    lock = LockArguments(timeout_ms=10000)
    before = Nvml.free_of(location)
    cuda("cuCheckpointProcessLock", peer.pid, ctypes.byref(lock))
    began = time.monotonic()
    cuda("cuCheckpointProcessCheckpoint", peer.pid, None)
    found["suspended"] = round(time.monotonic() - began, 3)
    between = Nvml.free_of(location)
    if before is not None and between is not None:
        found["freed"] = max(between - before, 0)
    say("checkpoint", found)
    began = time.monotonic()
    cuda("cuCheckpointProcessRestore", peer.pid, None)
    found["resumed"] = round(time.monotonic() - began, 3)
    cuda("cuCheckpointProcessUnlock", peer.pid, None)
    peer.send("go on")
    found["intact"] = bool(peer.receive())
    say("checkpoint", found)


def container(say: Any, request: Any) -> None:
    """Run some of the parts in a container of an image that exists already."""
    options = request.get("container") or {}
    image, program = options.get("image"), options.get("program")
    if not image or not program:
        raise Skipped("no image was named")
    runtime = runtime_with(image)
    found: dict[str, Any] = {"image": image, "runtime": Path(runtime).name, "answer": None}
    say("container", found)
    gpus = "--gpus=all" if found["runtime"] == "docker" else "--device=nvidia.com/gpu=all"
    # Without this variable, a container gets no libraries for video, unless it uses a CDI specification.
    gives = ["--env=NVIDIA_DRIVER_CAPABILITIES=compute,utility,video", gpus]
    arguments = ["run", "--rm", "--interactive", "--pull=never", "--network=none", "--shm-size=1g", *gives]
    arguments += ["--entrypoint=python3", "--", image, "-I", "-c", START]
    parts = {"parts": list(CONTAINER_PARTS), "deadlines": request.get("deadlines") or {}}
    lines = json.dumps(program) + "\n" + json.dumps(parts) + "\n"
    ran = subprocess.run(  # noqa: S603 - a list, and the image follows `--`
        [runtime, *arguments], input=lines.encode("ascii"), capture_output=True, check=False
    )
    answer = next((line for line in ran.stdout.splitlines() if line.startswith(b'{"answers"')), None)
    if answer is None:
        last_line = ran.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise Unfit(f"{found['runtime']} ended with {ran.returncode}: {last_line[:300]}")
    found["answer"] = json.loads(answer.decode("ascii"))["answers"][0]
    say("container", found)


def runtime_with(image: str) -> str:
    """Find the container engine that has the image. Each has images of its own."""
    found = [path for name in RUNTIMES if (path := find_in_folders(RUNTIME_FOLDERS, name))]
    if not found:
        raise Skipped("there is no docker and no podman")
    for runtime in found[:-1]:
        inspected = subprocess.run(  # noqa: S603 - a list, and the image follows `--`
            [runtime, "image", "inspect", "--", image], stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
        if inspected.returncode == 0:
            return runtime
    return found[-1]


PARTS = {
    "driver": (driver, 30),
    "shm": (shm, 10),
    "copies": (copies, 90),
    "peers": (peers, 90),
    "ipc-legacy": (ipc_legacy, 30),
    "ipc-fd": (ipc_fd, 30),
    "managed": (managed, 30),
    "video": (video, 150),
    "pin-limit": (pin_limit, 60),
    "checkpoint": (checkpoint, 60),
    "nccl": (nccl, 120),
    "container": (container, 390),
}
