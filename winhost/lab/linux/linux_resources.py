"""What of a simulated Linux is only looked at: records of its facts and of its parts answer, and no script."""

from collections.abc import Callable, Iterable, Mapping

from winhost.core.answers import Record
from winhost.lab.linux.data_disks import DataDisks
from winhost.lab.linux.linux_machine import Linux

RECORDS: Mapping[str, Callable[[Linux], Iterable[Record]]] = {
    "LinuxSystem": Linux.system,
    "LinuxGpuDriver": Linux.driver_state,
    "LinuxGpu": Linux.gpus,
    "ContainerEngine": Linux.engines,
    "LinuxDisk": lambda linux: linux.part(DataDisks).disks(),
    "DataDisk": lambda linux: linux.part(DataDisks).data_disks(),
    "ListeningPort": lambda linux: linux.found("ListeningPort"),
}
