"""What makes a Linux a node of a cluster."""

from collections.abc import Mapping

from winhost.cluster.render_request import ClusterRequest
from winhost.core.answers import Json
from winhost.core.dataclass import dataclass
from winhost.model.units import Bytes


@dataclass(frozen=True)
class NodeFile:
    """A file of a release of k3s, and where it is to be. source: an address, or a path on that Linux."""

    path: str
    source: str
    sha256: str
    bytes: Bytes


@dataclass(frozen=True)
class Join:
    """server: the address of the cluster's API, https://…:6443; token: a secret reference."""

    server: str
    token: str


@dataclass(frozen=True)
class NodeRequest:
    """release: the version of k3s; files: its program, and images for a Linux without a network; join: None where k3s
    starts a cluster, in which the workload is then put; wsl: the network mode of WSL, where it is a distro; newer: what
    is said of a release that is newer than winhost knows.
    """

    node: str
    release: str
    files: tuple[NodeFile, ...]
    cluster: ClusterRequest
    join: Join | None = None
    wsl: str | None = None
    newer: str | None = None


@dataclass(frozen=True)
class ClusterStack:
    """entries: resources of a playbook; notes: sentences for the plan."""

    entries: tuple[Json, ...]
    notes: tuple[str, ...]


def entry(resource: str, title: str, key: Mapping[str, str], desired: Mapping[str, Json], why: str) -> Json:
    """Of a playbook."""
    return {"resource": resource, "title": title, "key": dict(key), "desired": dict(desired), "why": why}
