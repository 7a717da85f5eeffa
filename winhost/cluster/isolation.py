"""Rights and network of a workload's pods: only what serving needs."""

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

from winhost.cluster.render_request import ENGINE_PORT, engine_name, manifest, selector
from winhost.core.answers import Json
from winhost.model.workload import Model

USER = 2000
"""The user `vllm` in vLLM's image, whose files belong to the group 0."""


def container_security(*, writes: bool = True) -> dict[str, Json]:
    """Return the securityContext of a container. writes: it may write into the file system of its image."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        **({} if writes else {"readOnlyRootFilesystem": True}),
    }


def pod_basics() -> dict[str, Json]:
    """Return the keys of each pod: no access to the API, and no variables of Services, because a Service called vllm
    would set VLLM_PORT, which vLLM reads.
    """
    # Kubernetes' standard `restricted` demands these. The group of the image's user owns volumes.
    security: dict[str, Json] = {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": 0,
        "fsGroup": 0,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    return {"automountServiceAccountToken": False, "enableServiceLinks": False, "securityContext": security}


# This hub serves files from changing addresses, all of which are public.
_PUBLIC_HUB = "huggingface.co"
# Metadata services of clouds hand out credentials, so no pod reaches them (the last two are Azure's and Oracle's).
_METADATA = ["169.254.0.0/16", "168.63.129.16/32", "192.0.0.0/24"]
_PRIVATE = ["0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", *_METADATA]
_METADATA_6 = ["fe80::/10", "fd00:ec2::254/128"]
_PRIVATE_6 = ["fc00::/7", "fe80::/10"]
_NODE_LOCAL_DNS = "169.254.20.10/32"


def policy(
    name: str,
    namespace: str,
    pods: Mapping[str, Json],
    ingress: list[Json],
    egress: list[Json],
    part: str | None = None,
) -> Mapping[str, Json]:
    """Make a NetworkPolicy. pods: the labels of its pods, empty for all pods of the namespace. Rules of several
    policies add up.
    """
    spec: dict[str, Json] = {
        "podSelector": {"matchLabels": dict(pods)} if pods else {},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": ingress,
        "egress": egress,
    }
    return manifest("NetworkPolicy", "networking.k8s.io/v1", name, namespace, {"spec": spec}, part)


def dns() -> Json:
    """Return the rule that allows the cluster's DNS: the Service, or a cache on each node."""
    pods: dict[str, Json] = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
        "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
    }
    ports: list[Json] = [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]
    return {"to": [pods, {"ipBlock": {"cidr": _NODE_LOCAL_DNS}}], "ports": ports}


def engines_egress(models: Iterable[Model]) -> Json:
    pods: list[Json] = [{"podSelector": {"matchLabels": selector(engine_name(each.name))}} for each in models]
    return {"to": pods, "ports": [{"protocol": "TCP", "port": ENGINE_PORT}]}


def hub_egress(source: str) -> Json:
    """Return the rule that allows connections to a hub. source: the URL of a repository."""
    url = urlsplit(source)
    host, ports = url.hostname or "", {443, url.port or (80 if url.scheme == "http" else 443)}
    try:
        address = ip_address(host)
    except ValueError:
        return _address_egress(ports, private=host != _PUBLIC_HUB)
    block: Json = {"ipBlock": {"cidr": f"{address}/{address.max_prefixlen}"}}
    return {"to": [block], "ports": [*_tcp(ports)]}


def media_egress(hosts: Iterable[str]) -> Json:
    """Return the rules that allow connections to hosts of media. hosts: HOST, or HOST:PORT if the port is neither 80
    nor 443.
    """
    named = {int(port) for _, _, port in (host.partition(":") for host in hosts) if port}
    return _address_egress({80, 443, *named}, private=False)


def _address_egress(ports: Iterable[int], *, private: bool) -> Json:
    blocks: list[Json] = [
        {"ipBlock": {"cidr": "0.0.0.0/0", "except": [*(_METADATA if private else _PRIVATE)]}},
        {"ipBlock": {"cidr": "::/0", "except": [*(_METADATA_6 if private else _PRIVATE_6)]}},
    ]
    return {"to": blocks, "ports": [*_tcp(ports)]}


def _tcp(ports: Iterable[int]) -> Iterator[Json]:
    return ({"protocol": "TCP", "port": port} for port in sorted(set(ports)))
