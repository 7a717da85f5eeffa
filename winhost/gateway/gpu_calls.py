"""Call NVIDIA's driver libraries: read the state of GPUs, and suspend processes.

Suspending (`cuCheckpointProcess…`) moves all GPU memory of a process to host memory. It was tried on Linux with one GPU
and NVIDIA's driver for Linux. The driver of Windows, which WSL uses, does not offer it.
"""

import ctypes
from collections import Counter
from pathlib import Path
from typing import Any

_MIB = 1 << 20
_NVML = ("libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1")
_CUDA = ("libcuda.so.1",)
_LOCK_MS = 10_000
_SUSPENDED = 2  # CU_PROCESS_STATE_CHECKPOINTED
_WSL = Path("/dev/dxg")
_MAX_PROCESSES = 256
_MAX_EVENTS = 1_000  # read at a time
_GPU_IS_LOST = 15  # NVML_ERROR_GPU_IS_LOST
_XID = 8  # nvmlEventTypeXidCriticalError
_READINGS: "tuple[tuple[str, str, tuple[int, ...], Any], ...]" = (
    ("celsius", "nvmlDeviceGetTemperature", (0,), ctypes.c_uint),
    ("milliwatts", "nvmlDeviceGetPowerUsage", (), ctypes.c_uint),
    ("limit_milliwatts", "nvmlDeviceGetEnforcedPowerLimit", (), ctypes.c_uint),
    ("millijoules", "nvmlDeviceGetTotalEnergyConsumption", (), ctypes.c_ulonglong),
    ("throttled", "nvmlDeviceGetCurrentClocksThrottleReasons", (), ctypes.c_ulonglong),
    ("ecc_corrected", "nvmlDeviceGetTotalEccErrors", (0, 0), ctypes.c_ulonglong),
    ("ecc_uncorrected", "nvmlDeviceGetTotalEccErrors", (1, 0), ctypes.c_ulonglong),
)
"""The key in the state of a GPU, the driver's function, its arguments after the GPU, and the type of its result."""


class DriverError(Exception):
    """A call of the driver failed. The message says which function is missing, or what it returned."""


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Event(ctypes.Structure):
    _fields_ = (
        ("gpu", ctypes.c_void_p),
        ("kind", ctypes.c_ulonglong),
        ("data", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("memory", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class _LockArguments(ctypes.Structure):
    _fields_ = (("timeout_ms", ctypes.c_uint), ("zero", ctypes.c_uint), ("zeros", ctypes.c_ulonglong * 7))


def _load_library(names: "tuple[str, ...]") -> Any:
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise DriverError(f"{names[0]} is missing: no NVIDIA driver is installed")


class GpuLibrary:
    """The driver's library for reading GPUs (NVML). It is kept open, because opening it can take a second."""

    def __init__(self) -> None:
        """Raises DriverError."""
        self._library = _load_library(_NVML)
        self._call("nvmlInit_v2")
        self._events: ctypes.c_void_p | None = None
        self._xids: Counter[tuple[int, int]] = Counter()

    def _call(self, name: str, *arguments: Any) -> None:
        if code := self._call_code(name, *arguments):
            raise DriverError(f"{name} answered {code}")

    def _call_code(self, name: str, *arguments: Any) -> int:
        """Call a function, and return its result: 0 for success, -1 if this driver has no such function."""
        function = getattr(self._library, name, None)
        return int(function(*arguments)) if function else -1

    def _gpu_handles(self) -> "list[tuple[ctypes.c_void_p, int]]":
        """Return the handle of each GPU, and the result of the call for it."""
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        found = [ctypes.c_void_p() for _ in range(count.value)]
        ask = "nvmlDeviceGetHandleByIndex_v2"
        return [(gpu, self._call_code(ask, ctypes.c_uint(index), ctypes.byref(gpu))) for index, gpu in enumerate(found)]

    def _gpus(self) -> "list[ctypes.c_void_p]":
        found = self._gpu_handles()
        if failed := [code for _, code in found if code]:
            raise DriverError(f"nvmlDeviceGetHandleByIndex_v2 answered {failed[0]}")
        return [gpu for gpu, _ in found]

    def free_mib(self) -> "dict[int, int]":
        """Read the free memory of each GPU, by the driver's index. Raises DriverError."""
        found = {}
        for index, gpu in enumerate(self._gpus()):
            memory = _Memory()
            self._call("nvmlDeviceGetMemoryInfo", gpu, ctypes.byref(memory))
            found[index] = memory.free // _MIB
        return found

    def processes(self) -> "set[int]":
        """Read the ids of the processes that compute on a GPU. Raises DriverError."""
        found = set()
        for gpu in self._gpus():
            count = ctypes.c_uint(_MAX_PROCESSES)
            rows = (_Process * _MAX_PROCESSES)()
            self._call("nvmlDeviceGetComputeRunningProcesses_v3", gpu, ctypes.byref(count), rows)
            found |= {rows[index].pid for index in range(count.value)}
        return found

    def state(self) -> "list[dict[str, Any]]":
        """Read the state of each GPU. Values that the driver does not offer are absent; in WSL many are. Raises
        DriverError.
        """
        handles = self._gpu_handles()
        self._count_xids({index: gpu for index, (gpu, code) in enumerate(handles) if not code})
        found = [self._read_gpu(gpu, code) for gpu, code in handles]
        for index, each in enumerate(found):
            each["index"] = index
            each["xids"] = {str(xid): count for (owner, xid), count in self._xids.items() if owner == index}
        return found

    def _read_gpu(self, gpu: ctypes.c_void_p, code: int) -> "dict[str, Any]":
        """Read the state of one GPU. code: the result of the call for its handle."""
        if code:
            return {"lost": True} if code == _GPU_IS_LOST else {}
        found: dict[str, Any] = {"lost": False}
        for name, function, arguments, kind in _READINGS:
            value = kind()
            code = self._call_code(function, gpu, *map(ctypes.c_uint, arguments), ctypes.byref(value))
            found["lost"] = found["lost"] or code == _GPU_IS_LOST
            if not code:
                found[name] = value.value
        for name, function in (("uuid", "nvmlDeviceGetUUID"), ("name", "nvmlDeviceGetName")):
            text = ctypes.create_string_buffer(96)
            if not self._call_code(function, gpu, text, ctypes.c_uint(96)):
                found[name] = text.value.decode("ascii", "replace")
        memory, busy = _Memory(), _Utilization()
        if not self._call_code("nvmlDeviceGetMemoryInfo", gpu, ctypes.byref(memory)):
            found |= {"total": memory.total, "used": memory.used}
        if not self._call_code("nvmlDeviceGetUtilizationRates", gpu, ctypes.byref(busy)):
            found["busy_percent"] = busy.gpu
        return found

    def _count_xids(self, gpus: "dict[int, ctypes.c_void_p]") -> None:
        """Count the errors since the first call of this method. The driver keeps them until they are read."""
        if self._events is None:
            self._events = ctypes.c_void_p()
            if self._call_code("nvmlEventSetCreate", ctypes.byref(self._events)):
                self._events = ctypes.c_void_p()
            for gpu in gpus.values() if self._events else ():
                self._call_code("nvmlDeviceRegisterEvents", gpu, ctypes.c_ulonglong(_XID), self._events)
        numbers = {gpu.value: index for index, gpu in gpus.items()}
        for _ in range(_MAX_EVENTS if self._events else 0):
            event = _Event()
            if self._call_code("nvmlEventSetWait_v2", self._events, ctypes.byref(event), ctypes.c_uint(0)):
                return  # none is left
            if event.kind == _XID and event.gpu in numbers:
                self._xids[numbers[event.gpu], event.data] += 1


def suspend(pid: int) -> None:
    """Suspend a process, which frees its GPU memory. Raises DriverError."""
    lock = _LockArguments(timeout_ms=_LOCK_MS)
    library = _load_cuda()
    _call_cuda(library, "cuCheckpointProcessLock", ctypes.c_int(pid), ctypes.byref(lock))
    try:
        _call_cuda(library, "cuCheckpointProcessCheckpoint", ctypes.c_int(pid), None)
    except DriverError:
        _call_cuda(library, "cuCheckpointProcessUnlock", ctypes.c_int(pid), None)
        raise


def resume(pid: int) -> None:
    """Resume a suspended process. Raises DriverError."""
    library = _load_cuda()
    _call_cuda(library, "cuCheckpointProcessRestore", ctypes.c_int(pid), None)
    _call_cuda(library, "cuCheckpointProcessUnlock", ctypes.c_int(pid), None)


def is_suspended(pid: int) -> bool:
    """Tell whether a process is suspended. Raises DriverError."""
    state = ctypes.c_int()
    return (
        _load_cuda().cuCheckpointProcessGetState(ctypes.c_int(pid), ctypes.byref(state)) == 0
        and state.value == _SUSPENDED
    )


def _load_cuda() -> Any:
    if _WSL.exists():
        raise DriverError("suspending is not offered in WSL, which uses the driver of Windows")
    library = _load_library(_CUDA)
    if not hasattr(library, "cuCheckpointProcessLock"):
        raise DriverError("this driver cannot suspend processes; 570 can")
    _call_cuda(library, "cuInit", ctypes.c_uint(0))
    return library


def _call_cuda(library: Any, name: str, *arguments: Any) -> None:
    code = getattr(library, name)(*arguments)
    if code:
        raise DriverError(f"{name} answered {code}")
