"""The memory that a change takes in the target and in its machine."""

from collections.abc import Iterator

from winhost.model.units import Bytes, GiB
from winhost.model.workload import AvailableMemory
from winhost.sizing.budget import Budget
from winhost.sizing.fit_changes import ChangeKind, FitChange
from winhost.sizing.memory_places import BESIDE_WINDOWS, HOST, HOST_PER_CARDS, PINNED, RAM, SHM


def memory_changes(found: Budget, room: AvailableMemory) -> Iterator[FitChange]:
    """In whole GiB: /dev/shm, what the target gets, what is in the machine."""
    shm = found.at(SHM)
    if shm and not shm.fits:
        yield FitChange(ChangeKind.SHM, None, room.shm, _whole(shm.used))
    ram = _ram(found, room)
    if ram != room.ram:
        yield FitChange(ChangeKind.RAM, None, room.ram, ram)
    host = _host_ram(found, room, ram)
    if host > room.host_ram:
        yield FitChange(ChangeKind.HOST_RAM, None, room.host_ram, host)


def _ram(found: Budget, room: AvailableMemory) -> Bytes:
    """What the target should get: more where it lacks, less where Windows lacks and it can spare it."""
    ram, pinned, host = found.at(RAM), found.at(PINNED), found.at(HOST)
    assert ram is not None
    least = _whole(max(ram.used, room.ram - (pinned.margin or 0) if pinned else 0))
    if least > room.ram:
        return least
    if host and not host.fits:
        return max(least, room.ram - _whole(host.used - room.host_ram))
    return room.ram


def _host_ram(found: Budget, room: AvailableMemory, ram: Bytes) -> Bytes:
    if room.path not in BESIDE_WINDOWS:
        return ram
    host, cards = found.at(HOST), found.at(HOST_PER_CARDS)
    assert host is not None
    needed = max(host.used - room.ram + ram, cards.used if cards else 0)
    return _whole(needed) if needed > room.host_ram else room.host_ram


def _whole(n: Bytes) -> Bytes:
    return -(-n // GiB) * GiB
