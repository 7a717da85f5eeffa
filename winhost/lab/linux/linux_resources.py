"""Resources of a simulated Linux for which no script runs: their records answer."""

from collections.abc import Callable, Iterable, Mapping

from winhost.core.answers import Json, Key, Record
from winhost.core.dataclass import dataclass
from winhost.lab.linux.data_disks import data_disks, linux_disks, mounts, set_data_disk, set_mount
from winhost.lab.linux.linux_machine import Linux
from winhost.lab.linux.simulated_cluster import (
    await_node,
    cluster_nodes,
    cluster_objects,
    set_cluster_objects,
)

Get = Callable[[Linux, Key | None], Iterable[Record]]
Set = Callable[[Linux, Key, Mapping[str, Json]], None]


@dataclass(frozen=True)
class LinuxResource:
    """set: None of what can only be read."""

    key: tuple[str, ...]
    get: Get
    set: Set | None = None
    cuts: Callable[[Linux, Key], bool] = lambda linux, key: False


RECORDS: Mapping[str, LinuxResource] = {
    "LinuxSystem": LinuxResource((), lambda linux, key: linux.system()),
    "LinuxGpuDriver": LinuxResource((), lambda linux, key: linux.driver_state()),
    "LinuxGpu": LinuxResource(("address",), lambda linux, key: linux.gpus()),
    "ContainerEngine": LinuxResource(("engine",), lambda linux, key: linux.engines()),
    "LinuxDisk": LinuxResource(("disk",), linux_disks),
    "ListeningPort": LinuxResource(("address", "port"), lambda linux, key: linux.found("ListeningPort")),
    "DataDisk": LinuxResource(("serial", "size"), data_disks, set_data_disk),
    "Mount": LinuxResource(("path",), mounts, set_mount),
    "ClusterNode": LinuxResource(("node",), cluster_nodes, await_node),
    "ClusterObjects": LinuxResource(("name",), cluster_objects, set_cluster_objects),
}
