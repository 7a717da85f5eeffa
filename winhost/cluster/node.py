"""A Linux as a node of a cluster: the request, the files of k3s, and the resources of its plan."""

import json
from collections.abc import Iterator
from dataclasses import replace

from winhost.cluster.render_request import GPU_NODE, ClusterRequest
from winhost.cluster.rendering import render
from winhost.core.answers import Json, MissingFact
from winhost.core.dataclass import dataclass
from winhost.model.errors import RefusedError, visible
from winhost.model.units import Bytes
from winhost.resources.host import HostFacts
from winhost.resources.linux.files import ReleaseFile
from winhost.resources.linux.read_only import ListeningPort
from winhost.serving.entries import entry, file_entry


@dataclass(frozen=True)
class NodeFile:
    """A file of a release of k3s. path: on the node; source: a URL, or a path on the node."""

    path: str
    source: str
    sha256: str
    bytes: Bytes


@dataclass(frozen=True)
class Join:
    """The cluster that a node joins. server: the URL of its API, https://…:6443; token: a secret reference."""

    server: str
    token: str


@dataclass(frozen=True)
class NodeRequest:
    """release: the version of k3s; files: its program, and images for a Linux without internet access; cluster: the
    workload; join: None if k3s starts a cluster, which then gets the workload; wsl: the networking mode of WSL, if the
    node is a distro; newer: a note on a release that is newer than those that winhost knows.
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


CONFIG, TOKEN, UNIT = "/etc/rancher/k3s/config.yaml", "/etc/rancher/k3s/join-token", "winhost-k3s.service"
UNIT_FILE = f"/usr/local/lib/systemd/system/{UNIT}"
PROGRAM = "/usr/local/bin/k3s"


def config_file(request: NodeRequest) -> str:
    """Write the configuration of k3s. The token of a cluster to join is in a file of its own, which only root reads."""
    lines = ["# Written by winhost.", f"node-name: {request.node}", "node-label:", f"- {GPU_NODE}=true"]
    if request.wsl is not None:
        # The adapter of the network that all distros share.
        lines.append("flannel-iface: eth0")
    if request.join is not None:
        lines += [f"server: {request.join.server}", f"token-file: {TOKEN}"]
    else:
        # Only root reads the credentials of the API; Secrets are encrypted on disk. Ports 80 and 443 stay free.
        lines += ['write-kubeconfig-mode: "0600"', "secrets-encryption: true", "disable:", "- traefik"]
    return "\n".join([*lines, ""])


def unit_file(request: NodeRequest) -> str:
    """Write the unit of k3s. Pods survive a restart of k3s, as with k3s's own installer."""
    shared = ["# Pods see what is mounted later.", "ExecStartPre=-/bin/mount --make-rshared /"] if request.wsl else []
    return "\n".join(
        [
            "# Written by winhost: a node of a Kubernetes cluster.",
            "[Unit]",
            "Description=k3s, a node of a Kubernetes cluster",
            "Wants=network-online.target",
            "After=network-online.target",
            "",
            "[Service]",
            "Type=notify",
            *shared,
            "ExecStartPre=-/sbin/modprobe br_netfilter",
            "ExecStartPre=-/sbin/modprobe overlay",
            f"ExecStart={PROGRAM} {'agent' if request.join else 'server'}",
            "KillMode=process",
            "Delegate=yes",
            "LimitNOFILE=1048576",
            "LimitNPROC=infinity",
            "LimitCORE=0",
            "TasksMax=infinity",
            "TimeoutStartSec=600",
            "Restart=always",
            "RestartSec=5",
            "",
            "[Install]",
            "WantedBy=multi-user.target",
            "",
        ]
    )


_NODE_PORTS = ("6443", "10250")  # of the API, and of the kubelet
_PORTS = "nodes reach each other at TCP 6443 and 10250 and UDP 8472: winhost opens none of these in a firewall"
_ROLLBACK_NOTE = (
    "rollback stops k3s; what it keeps in /var/lib/rancher stays, with the volumes of models, and pods of the system "
    "run until the next restart"
)


def cluster_stack(facts: HostFacts, request: NodeRequest) -> ClusterStack:
    """Make the resources of the plan. Raises as `render`, RefusedError (SpansNodes, AlreadyNode, JoinsBehindNat)."""
    # k3s makes the RuntimeClass itself, for the runtime that it finds.
    wsl = f"wsl2/{request.wsl}" if request.wsl else None
    rendered = render(facts, replace(request.cluster, runtime_class=False, variant=wsl))
    if request.join is not None and request.wsl == "nat":
        raise RefusedError(
            "JoinsBehindNat",
            what=f"the distro of {visible(facts.host)} is behind NAT, so it can join no cluster",
            meaning="Its pod network uses UDP, which Windows does not forward. [kubernetes-per-gpu.behind-nat]",
            hint="Give it an address of its own: --set network=bridged --set bridge.switch=NAME",
            host=facts.host,
        )
    _refuse_foreign_node(facts)
    wide = [model.name for model in request.cluster.workload.models if model.parallel.nodes > 1]
    if wide and request.join is None:
        host = visible(facts.host)
        raise RefusedError(
            "SpansNodes",
            what=f"{', '.join(map(visible, wide))} spans nodes, and the cluster that starts on {host} has one",
            meaning="It also needs LeaderWorkerSet, which winhost does not install.",
            hint="Join a cluster that has both (--join), then: winhost render kubernetes WORKLOAD",
            host=facts.host,
        )
    entries = [*_node(request)]
    if request.join is None:
        manifests: list[Json] = [dict(each) for each in rendered.manifests]
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}, indent=1) + "\n"
        tokens: list[Json] = [model.token.written for model in request.cluster.workload.models if model.token]
        desired: dict[str, Json] = {"text": text, "serves": True, **({"token": tokens[0]} if tokens else {})}
        why = "Engines, the gateway before them, what gives them GPUs; and a completion of each model."
        key = {"name": request.cluster.namespace}
        entries.append(entry("ClusterObjects", "What serves, in the cluster", key, desired, why))
    return ClusterStack(tuple(entries), (*rendered.notes, *_notes(request)))


def _refuse_foreign_node(facts: HostFacts) -> None:
    """Refuse a node that winhost did not make. Raises RefusedError (AlreadyNode)."""
    try:
        listens = {port.key["port"] for port in facts.all(ListeningPort)} & {*_NODE_PORTS}
        managed = any(file.state.source is not None for file in facts.all(ReleaseFile))
    except MissingFact:
        return  # this Linux does not exist yet
    if listens and not managed:
        raise RefusedError(
            "AlreadyNode",
            what=f"{visible(facts.host)} is a node of a cluster already: it listens at {', '.join(sorted(listens))}",
            meaning="winhost makes no second one of it, and changes none that it did not make.",
            hint="Put the workload into that cluster: winhost render kubernetes WORKLOAD",
            host=facts.host,
        )


def _node(request: NodeRequest) -> Iterator[Json]:
    for file in request.files:
        desired: dict[str, Json] = {"source": file.source, "sha256": file.sha256, "bytes": file.bytes}
        name = file.path.rpartition("/")[2]
        yield entry("ReleaseFile", f"k3s {request.release}: {name}", {"path": file.path}, desired, "By its hash.")
    if request.join is not None:
        token = {"secret": request.join.token}
        yield entry("SecretFile", "The cluster's token", {"path": TOKEN}, token, "Root alone reads it.")
    yield file_entry("Configuration of k3s", CONFIG, config_file(request), "A node of a cluster.")
    yield file_entry("Unit of k3s", UNIT_FILE, unit_file(request), "A node of a cluster.")
    starts: dict[str, Json] = {"enabled": "enabled", "active": True}
    yield entry("SystemdUnit", "k3s", {"unit": UNIT}, starts, "It starts with the machine.")
    node, why = {"node": request.node}, "Pods can be placed on it."
    yield entry("ClusterNode", f"Node {request.node}", node, {"ready": True}, why)


def _notes(request: NodeRequest) -> Iterator[str]:
    yield "unverified: winhost has seen k3s as a stand-in alone, which keeps what its documentation says"
    if request.newer is not None:
        yield f"unverified: {request.newer}"
    yield f"k3s {request.release} from {request.files[0].source}"
    yield _ROLLBACK_NOTE
    if request.join is not None:
        yield f"joins {request.join.server}; {_PORTS}"
        yield "the workload is not put into that cluster: winhost render kubernetes WORKLOAD prints its manifests"
    if request.wsl is not None:
        yield "WSL: all GPUs are one device to Kubernetes, swap is off, and bridged networking is preferred"
