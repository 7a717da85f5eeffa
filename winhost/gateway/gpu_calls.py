"""What the NVIDIA driver says and does, by its own libraries: free memory of GPUs, and suspending processes.

Suspending (`cuCheckpointProcess…`) moves all that a process has on its GPUs to host memory. It was seen on Linux with
its own driver and one GPU; the driver of Windows, which WSL uses, does not offer it.
"""

import ctypes
from pathlib import Path
from typing import Any

_MIB = 1 << 20
_NVML = ("libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1")
_CUDA = ("libcuda.so.1",)
_LOCK_MS = 10_000
_SUSPENDED = 2  # CU_PROCESS_STATE_CHECKPOINTED
_WSL = Path("/dev/dxg")
_MOST_PROCESSES = 256


class NoDriver(Exception):
    """Says what the driver does not offer, or what it answered."""


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("memory", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class _LockArguments(ctypes.Structure):
    _fields_ = (("timeout_ms", ctypes.c_uint), ("zero", ctypes.c_uint), ("zeros", ctypes.c_ulonglong * 7))


def _library(names: "tuple[str, ...]") -> Any:
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise NoDriver(f"{names[0]} is not there: no NVIDIA driver")


class GpuLibrary:
    """The driver's library for looking at GPUs, kept open: opening it can take a second."""

    def __init__(self) -> None:
        """Raises NoDriver."""
        self._library = _library(_NVML)
        self._do("nvmlInit_v2")

    def _do(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            raise NoDriver(f"{name} answered {code}")

    def _gpus(self) -> "list[ctypes.c_void_p]":
        count = ctypes.c_uint()
        self._do("nvmlDeviceGetCount_v2", ctypes.byref(count))
        found = [ctypes.c_void_p() for _ in range(count.value)]
        for index, each in enumerate(found):
            self._do("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(each))
        return found

    def free_mib(self) -> "dict[int, int]":
        """Of each GPU, as the driver counts them. Raises NoDriver."""
        found = {}
        for index, gpu in enumerate(self._gpus()):
            memory = _Memory()
            self._do("nvmlDeviceGetMemoryInfo", gpu, ctypes.byref(memory))
            found[index] = memory.free // _MIB
        return found

    def processes(self) -> "set[int]":
        """Those that compute on a GPU. Raises NoDriver."""
        found = set()
        for gpu in self._gpus():
            count = ctypes.c_uint(_MOST_PROCESSES)
            rows = (_Process * _MOST_PROCESSES)()
            self._do("nvmlDeviceGetComputeRunningProcesses_v3", gpu, ctypes.byref(count), rows)
            found |= {rows[index].pid for index in range(count.value)}
        return found


def suspend(pid: int) -> None:
    """Afterwards the process has nothing on its GPUs and waits. Raises NoDriver."""
    lock = _LockArguments(timeout_ms=_LOCK_MS)
    library = _cuda()
    _cuda_do(library, "cuCheckpointProcessLock", ctypes.c_int(pid), ctypes.byref(lock))
    try:
        _cuda_do(library, "cuCheckpointProcessCheckpoint", ctypes.c_int(pid), None)
    except NoDriver:
        _cuda_do(library, "cuCheckpointProcessUnlock", ctypes.c_int(pid), None)
        raise


def resume(pid: int) -> None:
    """Afterwards it is as it was. Raises NoDriver."""
    library = _cuda()
    _cuda_do(library, "cuCheckpointProcessRestore", ctypes.c_int(pid), None)
    _cuda_do(library, "cuCheckpointProcessUnlock", ctypes.c_int(pid), None)


def is_suspended(pid: int) -> bool:
    """Raises NoDriver."""
    state = ctypes.c_int()
    return (
        _cuda().cuCheckpointProcessGetState(ctypes.c_int(pid), ctypes.byref(state)) == 0 and state.value == _SUSPENDED
    )


def _cuda() -> Any:
    if _WSL.exists():
        raise NoDriver("suspending is not offered in WSL, where the driver is that of Windows")
    library = _library(_CUDA)
    if not hasattr(library, "cuCheckpointProcessLock"):
        raise NoDriver("this driver cannot suspend processes; 570 can")
    _cuda_do(library, "cuInit", ctypes.c_uint(0))
    return library


def _cuda_do(library: Any, name: str, *arguments: Any) -> None:
    code = getattr(library, name)(*arguments)
    if code:
        raise NoDriver(f"{name} answered {code}")
