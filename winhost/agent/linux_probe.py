# Json {parts: [...], deadlines: {part: s}, container: {image, program}}   answer {answers: [{ok, ...}]}
"""What the GPUs of this Linux can do, tried with little memory and a deadline for each part. Constant, as the agent.

Each part runs in a process of its own, which alone loads the driver: one that hangs or crashes ends no other, and what
it said before that is kept. A part is skipped where little memory is free: a running engine may still ask for it.
"""

from __future__ import annotations

import array
import ctypes
import json
import mmap
import os
import re
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

MIB = 1 << 20
BLOCK = 256 * MIB  # of a copy
SMALL = 16 * MIB
GPU_MUST_BE_FREE = 2048 * MIB  # a context takes about 0.5 GiB, and a block or two follow
HOST_MUST_BE_FREE = 2048 * MIB
PIN_STEP = 128 * MIB
PIN_AT_MOST = 4096 * MIB
LINKS_AT_MOST = 18  # NVML_NVLINK_MAX_LINKS
GPUS_AT_MOST = 16
SAID_AT_MOST = 1 << 20  # bytes that a part may say
BEAT = 1.0  # seconds between signs of life
CUDA = ("libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1")
NVML = ("libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1")
NCCL = ("libnccl.so.2",)
SHM = "/dev/shm"  # noqa: S108 - as a file system
RUNTIMES = ("docker", "podman")
PLACES = ("/usr/local/bin", "/usr/bin", "/bin")
START = 'import json,sys;exec(compile(json.loads(sys.stdin.buffer.readline()),"winhost","exec"))'
IN_CONTAINER = ("driver", "nccl")

# CUdevice_attribute
MAJOR, MINOR = 75, 76
UNIFIED_ADDRESSING, CONCURRENT_MANAGED, FD_HANDLES = 41, 89, 103
# CUmemAllocationType, CUmemLocationType, CUmemAllocationHandleType, CUmemAccess_flags
PINNED, ON_DEVICE, AS_FD, READ_WRITE = 1, 1, 1, 3
NOT_READY, PEERS_ALREADY = 600, 704
FLOAT32, SUM = 7, 0  # ncclDataType_t, ncclRedOp_t
BEFORE, AFTER = 0x5A17C0DE, 0x0DDBA115

Pointer = ctypes.c_uint64  # CUdeviceptr and handles of cuMem


class CallFailed(Exception):
    """A call of the driver, or of NCCL, said no."""

    def __init__(self, call: str, number: int, name: str) -> None:
        super().__init__(f"{call}: {name} ({number})")
        self.call, self.number, self.name = call, number, name


class Skipped(Exception):
    """Not tried, and why."""


class Unfit(Exception):
    """It came to an end, but not to what it should."""


class IpcMemHandle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_ubyte * 64)]


class NcclId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_ubyte * 128)]


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class AllocationFlags(ctypes.Structure):
    _fields_ = [
        ("compression", ctypes.c_ubyte),
        ("rdma", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    ]


class AllocationProperties(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", Location),
        ("win32", ctypes.c_void_p),
        ("flags", AllocationFlags),
    ]


class MemoryAccess(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


class LockArguments(ctypes.Structure):
    _fields_ = [("timeout_ms", ctypes.c_uint), ("reserved0", ctypes.c_uint), ("reserved1", ctypes.c_uint64 * 7)]


class NvmlMemory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


# ---- the libraries


class SharedLibrary:
    """A library by its soname. Calls return an error number, 0 for success."""

    def __init__(self, names: tuple[str, ...]) -> None:
        why = ""
        for name in names:
            try:
                self._library = ctypes.CDLL(name)
                return
            except OSError as error:
                why = why or str(error)
        raise CallFailed("dlopen", -1, why[:200])

    def number(self, call: str, *arguments: Any) -> int:
        try:
            function = getattr(self._library, call)
        except AttributeError:
            raise CallFailed(call, -1, "not in this driver") from None
        return int(function(*arguments))

    def __call__(self, call: str, *arguments: Any) -> None:
        number = self.number(call, *arguments)
        if number:
            raise CallFailed(call, number, self.name_of(number))

    def name_of(self, number: int) -> str:
        return "error"


class Cuda(SharedLibrary):
    def __init__(self) -> None:
        super().__init__(CUDA)
        self("cuInit", 0)

    def name_of(self, number: int) -> str:
        name = ctypes.c_char_p()
        with suppress(AttributeError):
            self._library.cuGetErrorName(number, ctypes.byref(name))
        return (name.value or b"unknown").decode("ascii", "replace")

    def integer(self, call: str, *arguments: Any) -> int:
        value = ctypes.c_int()
        self(call, ctypes.byref(value), *arguments)
        return value.value

    def count(self) -> int:
        return min(self.integer("cuDeviceGetCount"), GPUS_AT_MOST)

    def attribute(self, which: int, gpu: int) -> int:
        return self.integer("cuDeviceGetAttribute", which, gpu)

    def location(self, gpu: int) -> str:
        text = ctypes.create_string_buffer(32)
        self("cuDeviceGetPCIBusId", text, 32, gpu)
        return text.value.decode("ascii", "replace")

    def enter(self, gpu: int) -> None:
        """The GPU's context, if there is memory for it and what is done in it."""
        free = Nvml.free_of(self.location(gpu))
        if free is not None and free < GPU_MUST_BE_FREE:
            raise Skipped(too_little(f"GPU {gpu}", free, GPU_MUST_BE_FREE))
        context = ctypes.c_void_p()
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), gpu)
        self("cuCtxSetCurrent", context)
        left = self.memory()[0]
        if left < 3 * BLOCK:
            raise Skipped(too_little(f"GPU {gpu}", left, 3 * BLOCK))

    def memory(self) -> tuple[int, int]:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def allocated(self, size: int) -> Any:
        where = Pointer()
        self("cuMemAlloc_v2", ctypes.byref(where), ctypes.c_size_t(size))
        return where

    def filled(self, where: Any, size: int, with_: int) -> None:
        self("cuMemsetD32_v2", where, ctypes.c_uint(with_), ctypes.c_size_t(size // 4))
        self("cuCtxSynchronize")

    def holds(self, where: Any, size: int, what: int) -> bool:
        """Whether every word of it is `what`. size: a multiple of SMALL."""
        memory, step = ctypes.create_string_buffer(SMALL), ctypes.c_size_t(SMALL)
        expected = what.to_bytes(4, "little") * (SMALL // 4)
        for at in range(0, size, SMALL):
            self("cuMemcpyDtoH_v2", memory, Pointer(where.value + at), step)
            if memory.raw != expected:
                return False
        return True


class Nvml(SharedLibrary):
    """NVIDIA's management library. It takes no GPU memory, so it is asked first. WSL has it in part."""

    def __init__(self) -> None:
        super().__init__(NVML)
        self("nvmlInit_v2")

    def driver(self) -> str:
        text = ctypes.create_string_buffer(96)
        self("nvmlSystemGetDriverVersion", text, 96)
        return text.value.decode("ascii", "replace")

    def gpu(self, location: str) -> Any:
        handle = ctypes.c_void_p()
        self("nvmlDeviceGetHandleByPciBusId_v2", location.encode("ascii"), ctypes.byref(handle))
        return handle

    def memory(self, location: str) -> Any:
        memory = NvmlMemory()
        self("nvmlDeviceGetMemoryInfo", self.gpu(location), ctypes.byref(memory))
        return memory

    def links(self, location: str) -> int:
        """How many NVLinks are up."""
        gpu, up = self.gpu(location), 0
        for link in range(LINKS_AT_MOST):
            state = ctypes.c_int()
            number = self.number("nvmlDeviceGetNvLinkState", gpu, link, ctypes.byref(state))
            up += number == 0 and state.value == 1
        return up

    @staticmethod
    def free_of(location: str) -> int | None:
        try:
            return int(Nvml().memory(location).free)
        except CallFailed:
            return None


class Nccl(SharedLibrary):
    def __init__(self) -> None:
        beside = (Path(place) / "nvidia/nccl/lib" / NCCL[0] for place in sys.path)
        super().__init__((*NCCL, *(str(path) for path in beside if path.exists())))

    def name_of(self, number: int) -> str:
        with suppress(AttributeError):
            said = self._library.ncclGetErrorString
            said.restype = ctypes.c_char_p
            return (said(number) or b"unknown").decode("ascii", "replace")
        return "unknown"


def too_little(what: str, free: int, needed: int) -> str:
    return f"{what} has {free // MIB} MiB free, and {needed // MIB} MiB are needed"


def host_memory() -> dict[str, int]:
    """Bytes, by the names of /proc/meminfo."""
    lines = map(str.split, Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if len(words) > 2}


def check_host(needed: int) -> None:
    free = host_memory()["MemAvailable"]
    if free < needed + HOST_MUST_BE_FREE:
        raise Skipped(too_little("this machine", free, needed + HOST_MUST_BE_FREE))


def seconds_of(act: Any, times: int = 3) -> float:
    """The shortest of several, after one that does not count."""
    act()
    took = []
    for _ in range(times):
        began = time.monotonic()
        act()
        took.append(time.monotonic() - began)
    return max(min(took), 1e-9)


def rate(size: int, seconds: float) -> float:
    """GB/s."""
    return round(size / seconds / 1e9, 2)


# ---- two processes that share something


class Peer:
    """The other process of a part: forked before either of them has loaded the driver."""

    started: list[Peer] = []  # noqa: RUF012 - of this process

    def __init__(self, act: Any) -> None:
        self._received, self._fds = b"", array.array("i")
        self._socket, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid:
            theirs.close()
            self.started.append(self)
            return
        self._socket.close()
        self._socket = theirs
        try:
            act(self)
        except Exception as error:  # noqa: BLE001 - the other one tells it
            self.say(ended_by(error))
        finally:
            os._exit(0)

    @classmethod
    def leave(cls) -> None:
        """Until those that were started have ended, so that none of them holds memory when the next part begins."""
        for peer in cls.started:
            peer._socket.close()
            os.waitpid(peer.pid, 0)

    def say(self, what: Any, fd: int | None = None) -> None:
        passed = [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
        self._socket.sendmsg([json.dumps(what).encode("ascii") + b"\n"], passed)

    def hear(self) -> Any:
        """What it says next. Raises what it ended by."""
        while b"\n" not in self._received:
            more, passed, _, _ = self._socket.recvmsg(65536, socket.CMSG_SPACE(self._fds.itemsize))
            if not more:
                raise Unfit("the other process ended")
            self._received += more
            for _, kind, data in passed:
                if kind == socket.SCM_RIGHTS:
                    self._fds.frombytes(data[: self._fds.itemsize])
        line, _, self._received = self._received.partition(b"\n")
        heard = json.loads(line.decode("ascii"))
        if isinstance(heard, dict) and heard.get("outcome") == "skipped":
            raise Skipped(heard["why"])
        if isinstance(heard, dict) and heard.get("error"):
            raise CallFailed(**heard["error"])
        if isinstance(heard, dict) and heard.get("outcome"):
            raise Unfit(heard["why"])
        return heard

    def take(self) -> int:
        """The file descriptor that came with what was heard."""
        return self._fds.pop(0)


# ---- the parts: each says what it finds as it finds it


def driver(say: Any, _: Any) -> None:
    """CUDA initialises, and these GPUs are there."""
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
    """What NCCL and vLLM share memory through."""
    there = os.statvfs(SHM)
    total, free = there.f_blocks * there.f_frsize, there.f_bavail * there.f_frsize
    memlock = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    found = {"total": total, "free": free, "usable": False, "memlock": None if memlock < 0 else memlock}
    say("shm", found)
    with tempfile.TemporaryFile(dir=SHM) as file:
        file.truncate(MIB)
        with mmap.mmap(file.fileno(), MIB) as shared:
            shared[:] = b"w" * MIB
    say("shm", dict(found, usable=True))


def copies(say: Any, _: Any) -> None:
    """Rates between host and GPU, from pinned and from pageable memory."""
    check_host(2 * BLOCK)
    cuda, found = Cuda(), []
    size = ctypes.c_size_t(BLOCK)
    pageable = mmap.mmap(-1, BLOCK)
    plain = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(pageable)))
    ctypes.memset(plain, 1, BLOCK)
    for gpu in range(cuda.count()):
        cuda.enter(gpu)
        where, pinned = cuda.allocated(BLOCK), ctypes.c_void_p()
        of_gpu: dict[str, Any] = {"gpu": gpu, "bytes": BLOCK}
        found.append(of_gpu)

        def timed(name: str, call: str, *arguments: Any) -> None:
            def copy() -> None:
                cuda(call, *arguments)
                cuda("cuCtxSynchronize")

            of_gpu[name] = rate(BLOCK, seconds_of(copy))  # noqa: B023 - called before the next one
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
    """Each GPU's access to each other one, with the rate, and whether what arrives is what was sent."""
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
    for context, gpu in zip(contexts, (source, target)):  # noqa: B905 - Python 3.8 has no strict
        cuda("cuDevicePrimaryCtxRetain", ctypes.byref(context), gpu)
    theirs, ours = contexts[1], contexts[0]
    cuda("cuCtxSetCurrent", theirs)
    cuda.filled(blocks[target], BLOCK, BEFORE)
    cuda("cuCtxSetCurrent", ours)
    cuda.filled(blocks[source], BLOCK, AFTER)
    number = cuda.number("cuCtxEnablePeerAccess", theirs, 0)
    if number not in (0, PEERS_ALREADY):
        raise CallFailed("cuCtxEnablePeerAccess", number, cuda.name_of(number))
    times, size = 8, ctypes.c_size_t(BLOCK)

    def copy() -> None:
        for _ in range(times):
            cuda("cuMemcpyPeer", blocks[target], theirs, blocks[source], ours, size)
        cuda("cuCtxSynchronize")

    took = seconds_of(copy)
    cuda("cuCtxSetCurrent", theirs)
    intact = cuda.holds(blocks[target], BLOCK, AFTER)
    return {"rate": rate(times * BLOCK, took), "intact": intact}


def ipc_legacy(say: Any, _: Any) -> None:
    """A process writes into another one's GPU memory by cuIpcGetMemHandle."""

    def other(us: Peer) -> None:
        heard = us.hear()
        cuda, where = Cuda(), Pointer()
        cuda.enter(0)
        handle = IpcMemHandle((ctypes.c_ubyte * 64)(*heard))
        cuda("cuIpcOpenMemHandle_v2", ctypes.byref(where), handle, ctypes.c_uint(1))
        us.say(cuda.holds(where, SMALL, BEFORE))
        cuda.filled(where, SMALL, AFTER)
        us.say("written")
        us.hear()
        cuda("cuIpcCloseMemHandle", where)

    peer = Peer(other)
    cuda, handle = Cuda(), IpcMemHandle()
    cuda.enter(0)
    where = cuda.allocated(SMALL)
    cuda.filled(where, SMALL, BEFORE)
    cuda("cuIpcGetMemHandle", ctypes.byref(handle), where)
    peer.say(list(handle.reserved))
    shared(say, "ipc_legacy", peer, cuda, where)


def ipc_fd(say: Any, _: Any) -> None:
    """The same through a file descriptor of cuMemExportToShareableHandle."""

    def other(us: Peer) -> None:
        size = us.hear()
        cuda, handle = Cuda(), Pointer()
        cuda.enter(0)
        cuda("cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(us.take()), AS_FD)
        where = mapped(cuda, handle, size)
        us.say(cuda.holds(where, size, BEFORE))
        cuda.filled(where, size, AFTER)
        us.say("written")
        us.hear()

    peer = Peer(other)
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
    peer.say(size, fd.value)
    shared(say, "ipc_fd", peer, cuda, where, size)


def mapped(cuda: Cuda, handle: Any, size: int) -> Any:
    where, nothing = Pointer(), ctypes.c_size_t(0)
    length, access = ctypes.c_size_t(size), MemoryAccess(Location(ON_DEVICE, 0), READ_WRITE)
    cuda("cuMemAddressReserve", ctypes.byref(where), length, nothing, Pointer(0), ctypes.c_ulonglong(0))
    cuda("cuMemMap", where, length, nothing, handle, ctypes.c_ulonglong(0))
    cuda("cuMemSetAccess", where, length, ctypes.byref(access), ctypes.c_size_t(1))
    return where


def shared(say: Any, name: str, peer: Peer, cuda: Cuda, where: Any, size: int = SMALL) -> None:
    """What the other one read, and what it wrote, is right."""
    read = peer.hear()
    peer.hear()
    say(name, bool(read and cuda.holds(where, size, AFTER)))
    peer.say("over")


def managed(say: Any, _: Any) -> None:
    """Managed memory works, and can be touched while the GPU works. Never more of it than a little."""
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
        return  # the driver says that touching it now would be the end of this process
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
    """How much can be pinned, up to 4 GiB. Windows shares what WSL pins, so only where it was asked for."""
    cuda = Cuda()
    cuda.enter(0)
    pinned = 0
    while pinned < PIN_AT_MOST:
        if host_memory()["MemAvailable"] < PIN_STEP + HOST_MUST_BE_FREE:
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
    """A process of our own is suspended with its GPU memory, and resumed."""

    def other(us: Peer) -> None:
        cuda = Cuda()
        cuda.enter(0)
        where = cuda.allocated(BLOCK)
        cuda.filled(where, BLOCK, AFTER)
        us.say(cuda.location(0))
        us.hear()
        us.say(cuda.holds(where, BLOCK, AFTER))

    check_host(2 * BLOCK)
    peer = Peer(other)
    location = peer.hear()
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
    peer.say("go on")
    found["intact"] = bool(peer.hear())
    say("checkpoint", found)


def nccl(say: Any, _: Any) -> None:
    """An all-reduce over all GPUs, one process each, and the transport that NCCL's log names."""
    check_host(BLOCK)
    log = Path(tempfile.gettempdir())
    os.environ["NCCL_DEBUG"], os.environ["NCCL_DEBUG_FILE"] = "INFO", f"{log}/%p"
    os.environ["NCCL_NVLS_ENABLE"] = "0"  # multicast is the whole switch's, not only ours
    counter = Peer(lambda us: us.say(Cuda().count()))  # we fork more, so we load no driver
    number = counter.hear()
    if number < 2:
        raise Skipped("there are fewer than two GPUs")
    library, version = Nccl(), ctypes.c_int()
    library("ncclGetVersion", ctypes.byref(version))
    found: dict[str, Any] = {"version": version.value, "gpus": number, "transports": [], "rates": [], "intact": None}
    say("nccl", found)
    ranks = [Peer(lambda us, rank=rank: all_reduce(us, rank, number)) for rank in range(number)]
    unique = ranks[0].hear()
    for rank in ranks:
        rank.say(unique)
    results = [rank.hear() for rank in ranks]
    found["transports"] = transports(log)
    found["rates"] = results[0]["rates"]
    found["intact"] = all(result["intact"] for result in results)
    say("nccl", found)


def all_reduce(us: Peer, rank: int, number: int) -> None:
    library, unique, stream, comm = Nccl(), NcclId(), ctypes.c_void_p(), ctypes.c_void_p()
    if rank == 0:
        library("ncclGetUniqueId", ctypes.byref(unique))
        us.say(list(unique.internal))
    unique = NcclId((ctypes.c_ubyte * 128)(*us.hear()))
    cuda = Cuda()
    cuda.enter(rank)
    sent, received = cuda.allocated(BLOCK), cuda.allocated(BLOCK)
    one = int.from_bytes(bytes(ctypes.c_float(1.0)), "little")
    total = int.from_bytes(bytes(ctypes.c_float(float(number))), "little")
    cuda.filled(sent, BLOCK, one)
    cuda("cuStreamCreate", ctypes.byref(stream), ctypes.c_uint(1))
    library("ncclCommInitRank", ctypes.byref(comm), number, unique, rank)
    rates = []
    for size in (8192, MIB, 16 * MIB, BLOCK):
        times = 50 if size <= MIB else 10

        def reduce(size: int = size, times: int = times) -> None:
            for _ in range(times):
                count = ctypes.c_size_t(size // 4)
                library("ncclAllReduce", sent, received, count, FLOAT32, SUM, comm, stream)
            cuda("cuStreamSynchronize", stream)

        took = seconds_of(reduce) / times
        rates.append({"bytes": size, "microseconds": round(took * 1e6, 1), "rate": rate(size, took)})
    us.say({"rates": rates, "intact": cuda.holds(received, BLOCK, total)})


def transports(log: Path) -> list[str]:
    """`P2P/CUMEM`, as its lines `Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM` have it."""
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in log.iterdir()]
    return sorted({via for text in texts for via in re.findall(r" via ([A-Za-z0-9/_-]{1,40})", text)})


def container(say: Any, request: Any) -> None:
    """The same in a container of an image that is there already."""
    asked = request.get("container") or {}
    image, program = asked.get("image"), asked.get("program")
    if not image or not program:
        raise Skipped("no image was named")
    runtime = next((path for path in map(program_at, RUNTIMES) if path), None)
    if runtime is None:
        raise Skipped("there is no docker and no podman")
    found: dict[str, Any] = {"image": image, "runtime": Path(runtime).name, "answer": None}
    say("container", found)
    gpus = "--gpus=all" if found["runtime"] == "docker" else "--device=nvidia.com/gpu=all"
    arguments = ["run", "--rm", "--interactive", "--pull=never", "--network=none", "--shm-size=1g", gpus]
    arguments += ["--entrypoint=python3", "--", image, "-I", "-c", START]
    parts = {"parts": list(IN_CONTAINER), "deadlines": request.get("deadlines") or {}}
    lines = json.dumps(program) + "\n" + json.dumps(parts) + "\n"
    ran = subprocess.run(  # noqa: S603 - a list, and the image follows `--`
        [runtime, *arguments], input=lines.encode("ascii"), capture_output=True, check=False
    )
    answer = next((line for line in ran.stdout.splitlines() if line.startswith(b'{"answers"')), None)
    if answer is None:
        said = ran.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise Unfit(f"{found['runtime']} ended with {ran.returncode}: {said[:300]}")
    found["answer"] = json.loads(answer.decode("ascii"))["answers"][0]
    say("container", found)


def program_at(name: str) -> str | None:
    return next((path for path in (f"{place}/{name}" for place in PLACES) if os.access(path, os.X_OK)), None)


PARTS = {
    "driver": (driver, 30),
    "shm": (shm, 10),
    "copies": (copies, 90),
    "peers": (peers, 90),
    "ipc-legacy": (ipc_legacy, 30),
    "ipc-fd": (ipc_fd, 30),
    "managed": (managed, 30),
    "pin-limit": (pin_limit, 60),
    "checkpoint": (checkpoint, 60),
    "nccl": (nccl, 120),
    "container": (container, 240),
}


# ---- each in a process of its own


class Part:
    """A part while it runs, and what it has said."""

    def __init__(self, name: str, request: Any) -> None:
        self.name, self.found, self.outcome = name, {}, {}  # type: ignore[var-annotated]
        self._act, seconds = PARTS[name]
        self._seconds = float((request.get("deadlines") or {}).get(name, seconds))
        self._began = time.monotonic()
        self._rest = b""
        self._folder = tempfile.mkdtemp(prefix="winhost-")
        self._read, write = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            self._child(write, request)
        os.close(write)

    def _child(self, write: int, request: Any) -> None:
        """Never returns."""
        code = 1
        try:
            os.setsid()  # what it starts ends with it
            os.close(self._read)
            quiet = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(quiet, fd)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            tempfile.tempdir = self._folder
            os.write(write, ended_with(self._act, write, request))
            Peer.leave()
            code = 0
        finally:
            os._exit(code)

    def wait(self, alive: Any) -> None:
        """Until it ends, or its time does."""
        heard = 0
        while True:
            left = self._began + self._seconds - time.monotonic()
            if left <= 0 or heard > SAID_AT_MOST:
                return self._close("hung" if left <= 0 else "failed", f"it was stopped after {self._seconds:g} s")
            if not select.select([self._read], [], [], min(left, BEAT))[0]:
                alive()
                if not self._ended():
                    continue  # else another process of it may still hold the pipe
                return self._close("crashed", "")
            more = os.read(self._read, 65536)
            heard += len(more)
            if not more:
                return self._close("crashed", "")
            self._hear(more)
            if self.outcome:
                return self._close("", "")

    def _ended(self) -> bool:
        return os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _hear(self, more: bytes) -> None:
        *lines, self._rest = (self._rest + more).split(b"\n")
        for line in lines:
            name, value = json.loads(line.decode("ascii"))
            if name == "ended":
                self.outcome = value
            else:
                self.found[name] = value

    def _close(self, outcome: str, why: str) -> None:
        os.close(self._read)
        status = self._stop(0.0 if outcome == "hung" else 2.0)
        shutil.rmtree(self._folder, ignore_errors=True)
        if not self.outcome:
            if status is None:
                why += ", and cannot be killed: it waits for the driver"
            elif outcome == "crashed":
                signalled = os.WIFSIGNALED(status)
                why = f"signal {os.WTERMSIG(status)}" if signalled else f"exit code {os.WEXITSTATUS(status)}"
            self.outcome = {"outcome": outcome, "why": why.strip(", ")}
        whole = {"part": self.name, "outcome": "done", "why": None, "error": None}
        self.outcome = dict(whole, seconds=round(time.monotonic() - self._began, 2), **self.outcome)

    def _stop(self, patience: float) -> int | None:
        """Its status; None where even killing does not end it."""
        for wait in (patience, 5.0):
            until = time.monotonic() + wait
            while True:
                pid, status = os.waitpid(self._pid, os.WNOHANG)
                if pid:
                    with suppress(OSError):
                        os.killpg(self._pid, signal.SIGKILL)  # what it may have left
                    return status
                if time.monotonic() >= until:
                    break
                time.sleep(0.02)
            with suppress(OSError):
                os.killpg(self._pid, signal.SIGKILL)
        return None


def ended_with(act: Any, write: int, request: Any) -> bytes:
    """What it came to, as the last line of a part."""

    def say(name: str, value: Any) -> None:
        os.write(write, json.dumps([name, value]).encode("ascii") + b"\n")

    try:
        act(say, request)
        ended: dict[str, Any] = {"outcome": "done"}
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this part's
        ended = ended_by(error)
    return json.dumps(["ended", ended]).encode("ascii") + b"\n"


def ended_by(error: Exception) -> dict[str, Any]:
    """What a part, or the other process of one, came to."""
    if isinstance(error, Skipped):
        return {"outcome": "skipped", "why": str(error)}
    if isinstance(error, CallFailed):
        failed = {"call": error.call, "number": error.number, "name": error.name}
        return {"outcome": "failed", "why": str(error), "error": failed}
    why = str(error) if isinstance(error, Unfit) else f"{type(error).__name__}: {error}"
    return {"outcome": "failed", "why": why[:300]}


def probed(request: Any, alive: Any) -> dict[str, Any]:
    """One part after the other: two at once would measure each other."""
    answer: dict[str, Any] = {"ok": True, "kernel": os.uname().release, "outcomes": []}
    for name in request["parts"]:
        part = Part(name, request)
        part.wait(alive)
        answer.update(part.found)
        answer["outcomes"].append(part.outcome)
    return answer


def serve() -> None:
    """Answer lines of requests until there are no more."""

    def send(line: bytes) -> None:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()

    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for line in iter(sys.stdin.buffer.readline, b""):
        answers = {"answers": [probed(json.loads(line.decode("ascii")), lambda: send(b"\n"))]}
        send(json.dumps(answers).encode("ascii") + b"\n")
