# Part of the probe: the libraries of NVIDIA's driver, and NCCL, called through ctypes.
from __future__ import annotations

import ctypes
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

MIB = 1 << 20
BLOCK = 256 * MIB  # the size of a copy
SMALL = 16 * MIB
MIN_FREE_GPU = 2048 * MIB  # a context takes about 0.5 GiB, and one or two blocks follow
MIN_FREE_HOST = 2048 * MIB
MAX_LINKS = 18  # NVML_NVLINK_MAX_LINKS
MAX_GPUS = 16
CUDA = ("libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1")
NVML = ("libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1")
NCCL = ("libnccl.so.2",)

# CUdevice_attribute
MAJOR, MINOR = 75, 76
UNIFIED_ADDRESSING, CONCURRENT_MANAGED, FD_HANDLES = 41, 89, 103
# CUmemAllocationType, CUmemLocationType, CUmemAllocationHandleType, CUmemAccess_flags
PINNED, ON_DEVICE, AS_FD, READ_WRITE = 1, 1, 1, 3
NOT_READY, PEERS_ALREADY = 600, 704
FLOAT32, SUM = 7, 0  # ncclDataType_t, ncclRedOp_t

Pointer = ctypes.c_uint64  # CUdeviceptr and handles of cuMem


class CallFailed(Exception):
    """A call of the driver, or of NCCL, failed."""

    def __init__(self, call: str, number: int, name: str) -> None:
        super().__init__(f"{call}: {name} ({number})")
        self.call, self.number, self.name = call, number, name


class Skipped(Exception):
    """A part is not tried. The message says why."""


class Unfit(Exception):
    """A part ended with a wrong result."""


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


class SharedLibrary:
    """A library, loaded by its soname. Its functions return an error number, 0 for success."""

    def __init__(self, names: tuple[str, ...]) -> None:
        reason = ""
        for name in names:
            try:
                self._library = ctypes.CDLL(name)
                return
            except OSError as error:
                reason = reason or str(error)
        raise CallFailed("dlopen", -1, reason[:200])

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
        return min(self.integer("cuDeviceGetCount"), MAX_GPUS)

    def attribute(self, which: int, gpu: int) -> int:
        return self.integer("cuDeviceGetAttribute", which, gpu)

    def location(self, gpu: int) -> str:
        text = ctypes.create_string_buffer(32)
        self("cuDeviceGetPCIBusId", text, 32, gpu)
        return text.value.decode("ascii", "replace")

    def enter(self, gpu: int) -> None:
        """Enter the context of a GPU. Raises Skipped if there is too little memory for it and for the tests."""
        free = Nvml.free_of(self.location(gpu))
        if free is not None and free < MIN_FREE_GPU:
            raise Skipped(too_little(f"GPU {gpu}", free, MIN_FREE_GPU))
        context = ctypes.c_void_p()
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), gpu)
        self("cuCtxSetCurrent", context)
        free = self.memory()[0]
        if free < 3 * BLOCK:
            raise Skipped(too_little(f"GPU {gpu}", free, 3 * BLOCK))

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
        """Tell whether every 32-bit word of the memory is `what`. size: a multiple of SMALL."""
        memory, step = ctypes.create_string_buffer(SMALL), ctypes.c_size_t(SMALL)
        expected = what.to_bytes(4, "little") * (SMALL // 4)
        for offset in range(0, size, SMALL):
            self("cuMemcpyDtoH_v2", memory, Pointer(where.value + offset), step)
            if memory.raw != expected:
                return False
        return True


class Nvml(SharedLibrary):
    """NVIDIA's management library. It takes no GPU memory, so it is called first. In WSL a part of it is missing."""

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
        """Return the number of NVLinks that are up."""
        gpu, up = self.gpu(location), 0
        for link in range(MAX_LINKS):
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
        installed = (Path(folder) / "nvidia/nccl/lib" / NCCL[0] for folder in sys.path)
        super().__init__((*NCCL, *(str(path) for path in installed if path.exists())))

    def name_of(self, number: int) -> str:
        with suppress(AttributeError):
            error_string = self._library.ncclGetErrorString
            error_string.restype = ctypes.c_char_p
            return (error_string(number) or b"unknown").decode("ascii", "replace")
        return "unknown"


def find_in_folders(folders: tuple[str, ...], name: str) -> str | None:
    return next((path for path in (f"{folder}/{name}" for folder in folders) if os.access(path, os.X_OK)), None)


def too_little(what: str, free: int, needed: int) -> str:
    return f"{what} has {free // MIB} MiB free, and {needed // MIB} MiB are needed"


def host_memory() -> dict[str, int]:
    """Read /proc/meminfo: bytes by name."""
    lines = map(str.split, Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if len(words) > 2}


def check_host(needed: int) -> None:
    free = host_memory()["MemAvailable"]
    if free < needed + MIN_FREE_HOST:
        raise Skipped(too_little("this machine", free, needed + MIN_FREE_HOST))


def shortest_time(act: Any) -> float:
    """Return the shortest duration of three calls, after one that is not timed."""
    act()
    took = []
    for _ in range(3):
        began = time.monotonic()
        act()
        took.append(time.monotonic() - began)
    return max(min(took), 1e-9)


def rate(size: int, seconds: float) -> float:
    """Return a rate in GB/s."""
    return round(size / seconds / 1e9, 2)
