"""Resources of a simulated Linux for which no script runs: their records answer."""

from collections.abc import Callable, Iterable, Mapping

from winhost.core.answers import Json, Key, Record
from winhost.core.dataclass import dataclass
from winhost.lab.linux.container_store import container_images, set_container_image
from winhost.lab.linux.data_disks import data_disks, linux_disks, mounts, set_data_disk, set_mount
from winhost.lab.linux.linux_errors import refused
from winhost.lab.linux.linux_machine import Linux
from winhost.lab.linux.python_venvs import python_venvs, set_python_venv
from winhost.lab.linux.served_engines import await_endpoint, serving_ready
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


# ---- what the driver shows


def _shown_gpus(linux: Linux, key: Key | None) -> Iterable[Record]:
    shown = [gpu for gpu in linux.gpus() if gpu.state["uuid"] is not None] if linux.own else []
    needed = next((each.state for each in linux.machine.instances("MmioNeed")), {})
    unplaced = sum(bar["start"] == 0 for gpu in linux.gpus() for bar in gpu.state["bars"])
    now = {"count": len(shown), "loaded": linux.own and bool(linux.driver), "unplaced": unplaced}
    yield Record({**now, "needed_high": needed.get("high"), "needed_low": needed.get("low")})


def _await_gpus(linux: Linux, key: Key, desired: Mapping[str, Json]) -> None:
    if desired.get("loaded", True) is not True or desired.get("unplaced", 0) != 0:
        message = "A driver is waited for until it runs, and BARs until each has its address."
        raise refused("BadRequest", "InvalidArgument", message)
    (now,) = _shown_gpus(linux, None)
    if lacks := {each: now.state[each] for each in desired if now.state[each] != desired[each]}:
        raise refused("GpusMissing", "ObjectNotFound", f"Not as desired: {lacks}.")


RECORDS: Mapping[str, LinuxResource] = {
    "LinuxSystem": LinuxResource((), lambda linux, key: linux.system()),
    "LinuxGpuDriver": LinuxResource((), lambda linux, key: linux.driver_state()),
    "LinuxGpu": LinuxResource(("address",), lambda linux, key: linux.gpus()),
    "ContainerEngine": LinuxResource(("engine",), lambda linux, key: linux.engines()),
    "LinuxDisk": LinuxResource(("disk",), linux_disks),
    "ListeningPort": LinuxResource(("address", "port"), lambda linux, key: linux.found("ListeningPort")),
    "ShownGpus": LinuxResource((), _shown_gpus, _await_gpus),
    "ContainerImage": LinuxResource(("engine", "image"), container_images, set_container_image),
    "PythonVenv": LinuxResource(("folder",), python_venvs, set_python_venv),
    "DataDisk": LinuxResource(("serial", "size"), data_disks, set_data_disk),
    "Mount": LinuxResource(("path",), mounts, set_mount),
    "ServingReady": LinuxResource((), serving_ready, await_endpoint),
    "ClusterNode": LinuxResource(("node",), cluster_nodes, await_node),
    "ClusterObjects": LinuxResource(("name",), cluster_objects, set_cluster_objects),
}
