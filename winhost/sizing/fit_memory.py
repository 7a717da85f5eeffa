"""The memory that a change takes in the target and in its machine."""

from collections.abc import Iterator

from winhost.model.path import AvailableMemory
from winhost.model.units import Bytes, GiB
from winhost.sizing.budget import Budget
from winhost.sizing.fit_changes import ChangeKind, FitChange
from winhost.sizing.memory_places import ALONGSIDE_WINDOWS, HOST, HOST_PER_GPUS, PINNED, RAM, SHM


def memory_changes(found: Budget, available_memory: AvailableMemory) -> Iterator[FitChange]:
    """Changes of memory in whole GiB: /dev/shm, the target, the machine."""
    shm = found.at(SHM)
    if shm and not shm.fits:
        yield FitChange(ChangeKind.SHM, None, available_memory.shm, _whole(shm.used))
    ram = _ram(found, available_memory)
    if ram != available_memory.ram:
        yield FitChange(ChangeKind.RAM, None, available_memory.ram, ram)
    host = _host_ram(found, available_memory, ram)
    if host > available_memory.host_ram:
        yield FitChange(ChangeKind.HOST_RAM, None, available_memory.host_ram, host)


def _ram(found: Budget, available_memory: AvailableMemory) -> Bytes:
    """The memory that the target should get: more where it lacks, less where Windows lacks and it can spare it."""
    ram, pinned, host = found.at(RAM), found.at(PINNED), found.at(HOST)
    assert ram is not None
    least = _whole(max(ram.used, available_memory.ram - (pinned.margin or 0) if pinned else 0))
    if least > available_memory.ram:
        return least
    if host and not host.fits:
        return max(least, available_memory.ram - _whole(host.used - available_memory.host_ram))
    return available_memory.ram


def _host_ram(found: Budget, available_memory: AvailableMemory, ram: Bytes) -> Bytes:
    if available_memory.path not in ALONGSIDE_WINDOWS:
        return ram
    host, gpus = found.at(HOST), found.at(HOST_PER_GPUS)
    assert host is not None
    needed = max(host.used - available_memory.ram + ram, gpus.used if gpus else 0)
    return _whole(needed) if needed > available_memory.host_ram else available_memory.host_ram


def _whole(n: Bytes) -> Bytes:
    return -(-n // GiB) * GiB
