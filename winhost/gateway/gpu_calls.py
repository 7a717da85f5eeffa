"""Call NVIDIA's driver libraries: read the state of GPUs, and suspend processes.

Suspending (`cuCheckpointProcess…`) moves all that a process has on its GPUs to host memory. It was tried on Linux with
its own driver and one GPU; the driver of Windows, which WSL uses, does not offer it.
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
_MOST_PROCESSES = 256
_MOST_EVENTS = 1_000  # at a look
_LOST = 15  # NVML_ERROR_GPU_IS_LOST
_XID = 8  # nvmlEventTypeXidCriticalError
_NUMBERS: "tuple[tuple[str, str, tuple[int, ...], Any], ...]" = (
    ("celsius", "nvmlDeviceGetTemperature", (0,), ctypes.c_uint),
    ("milliwatts", "nvmlDeviceGetPowerUsage", (), ctypes.c_uint),
    ("limit_milliwatts", "nvmlDeviceGetEnforcedPowerLimit", (), ctypes.c_uint),
    ("millijoules", "nvmlDeviceGetTotalEnergyConsumption", (), ctypes.c_ulonglong),
    ("throttled", "nvmlDeviceGetCurrentClocksThrottleReasons", (), ctypes.c_ulonglong),
    ("ecc_corrected", "nvmlDeviceGetTotalEccErrors", (0, 0), ctypes.c_ulonglong),
    ("ecc_uncorrected", "nvmlDeviceGetTotalEccErrors", (1, 0), ctypes.c_ulonglong),
)
"""Our name, the driver's function, its arguments after the GPU, and the type of its result."""


class NoDriver(Exception):
    """The driver did not do it. The message says what it lacks, or what it answered."""


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


def _library(names: "tuple[str, ...]") -> Any:
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise NoDriver(f"{names[0]} is not there: no NVIDIA driver")


class GpuLibrary:
    """The driver's library for reading GPUs (NVML). It is kept open, because opening it can take a second."""

    def __init__(self) -> None:
        """Raises NoDriver."""
        self._library = _library(_NVML)
        self._do("nvmlInit_v2")
        self._events: ctypes.c_void_p | None = None
        self._xids: Counter[tuple[int, int]] = Counter()

    def _do(self, name: str, *arguments: Any) -> None:
        if code := self._code(name, *arguments):
            raise NoDriver(f"{name} answered {code}")

    def _code(self, name: str, *arguments: Any) -> int:
        """The function's result, 0 for success; -1 if this driver has no such function."""
        function = getattr(self._library, name, None)
        return int(function(*arguments)) if function else -1

    def _handles(self) -> "list[tuple[ctypes.c_void_p, int]]":
        """A handle of each GPU, and the result of asking for it."""
        count = ctypes.c_uint()
        self._do("nvmlDeviceGetCount_v2", ctypes.byref(count))
        found = [ctypes.c_void_p() for _ in range(count.value)]
        ask = "nvmlDeviceGetHandleByIndex_v2"
        return [(gpu, self._code(ask, ctypes.c_uint(at), ctypes.byref(gpu))) for at, gpu in enumerate(found)]

    def _gpus(self) -> "list[ctypes.c_void_p]":
        found = self._handles()
        if failed := [code for _, code in found if code]:
            raise NoDriver(f"nvmlDeviceGetHandleByIndex_v2 answered {failed[0]}")
        return [gpu for gpu, _ in found]

    def free_mib(self) -> "dict[int, int]":
        """Free memory of each GPU by the driver's index. Raises NoDriver."""
        found = {}
        for index, gpu in enumerate(self._gpus()):
            memory = _Memory()
            self._do("nvmlDeviceGetMemoryInfo", gpu, ctypes.byref(memory))
            found[index] = memory.free // _MIB
        return found

    def processes(self) -> "set[int]":
        """Ids of the processes that compute on a GPU. Raises NoDriver."""
        found = set()
        for gpu in self._gpus():
            count = ctypes.c_uint(_MOST_PROCESSES)
            rows = (_Process * _MOST_PROCESSES)()
            self._do("nvmlDeviceGetComputeRunningProcesses_v3", gpu, ctypes.byref(count), rows)
            found |= {rows[index].pid for index in range(count.value)}
        return found

    def state(self) -> "list[dict[str, Any]]":
        """The state of each GPU. Values that the driver does not offer are absent; in WSL these are many. Raises
        NoDriver.
        """
        handles = self._handles()
        self._count_xids({index: gpu for index, (gpu, code) in enumerate(handles) if not code})
        found = [self._seen(gpu, code) for gpu, code in handles]
        for index, each in enumerate(found):
            each["index"] = index
            each["xids"] = {str(xid): so_many for (at, xid), so_many in self._xids.items() if at == index}
        return found

    def _seen(self, gpu: ctypes.c_void_p, code: int) -> "dict[str, Any]":
        """The state of one GPU. code: the result of asking for its handle."""
        if code:
            return {"lost": True} if code == _LOST else {}
        found: dict[str, Any] = {"lost": False}
        for name, function, more, kind in _NUMBERS:
            value = kind()
            code = self._code(function, gpu, *map(ctypes.c_uint, more), ctypes.byref(value))
            found["lost"] = found["lost"] or code == _LOST
            if not code:
                found[name] = value.value
        for name, function in (("uuid", "nvmlDeviceGetUUID"), ("name", "nvmlDeviceGetName")):
            text = ctypes.create_string_buffer(96)
            if not self._code(function, gpu, text, ctypes.c_uint(96)):
                found[name] = text.value.decode("ascii", "replace")
        memory, busy = _Memory(), _Utilization()
        if not self._code("nvmlDeviceGetMemoryInfo", gpu, ctypes.byref(memory)):
            found |= {"total": memory.total, "used": memory.used}
        if not self._code("nvmlDeviceGetUtilizationRates", gpu, ctypes.byref(busy)):
            found["busy_percent"] = busy.gpu
        return found

    def _count_xids(self, gpus: "dict[int, ctypes.c_void_p]") -> None:
        """Count the errors that the driver reported since the first call; it keeps them until they are fetched."""
        if self._events is None:
            self._events = ctypes.c_void_p()
            if self._code("nvmlEventSetCreate", ctypes.byref(self._events)):
                self._events = ctypes.c_void_p()
            for gpu in gpus.values() if self._events else ():
                self._code("nvmlDeviceRegisterEvents", gpu, ctypes.c_ulonglong(_XID), self._events)
        numbers = {gpu.value: index for index, gpu in gpus.items()}
        for _ in range(_MOST_EVENTS if self._events else 0):
            event = _Event()
            if self._code("nvmlEventSetWait_v2", self._events, ctypes.byref(event), ctypes.c_uint(0)):
                return  # none is left
            if event.kind == _XID and event.gpu in numbers:
                self._xids[numbers[event.gpu], event.data] += 1


def suspend(pid: int) -> None:
    """Suspend a process: it has nothing on its GPUs then, and waits. Raises NoDriver."""
    lock = _LockArguments(timeout_ms=_LOCK_MS)
    library = _cuda()
    _cuda_do(library, "cuCheckpointProcessLock", ctypes.c_int(pid), ctypes.byref(lock))
    try:
        _cuda_do(library, "cuCheckpointProcessCheckpoint", ctypes.c_int(pid), None)
    except NoDriver:
        _cuda_do(library, "cuCheckpointProcessUnlock", ctypes.c_int(pid), None)
        raise


def resume(pid: int) -> None:
    """Let a suspended process go on. Raises NoDriver."""
    library = _cuda()
    _cuda_do(library, "cuCheckpointProcessRestore", ctypes.c_int(pid), None)
    _cuda_do(library, "cuCheckpointProcessUnlock", ctypes.c_int(pid), None)


def is_suspended(pid: int) -> bool:
    """Tell whether a process is suspended. Raises NoDriver."""
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
