"""Rights and network of a workload's pods: no more than serving takes."""

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

from winhost.cluster.render_request import ENGINE_PORT, engine_name, manifest, selector
from winhost.core.answers import Json
from winhost.model.workload import Model

USER = 2000
"""`vllm` in vLLM's image; its files belong to the group 0."""


def container_security(*, writes: bool = True) -> dict[str, Json]:
    """writes: into the file system of its image."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        **({} if writes else {"readOnlyRootFilesystem": True}),
    }


def pod_basics() -> dict[str, Json]:
    """The keys of each pod: no access to the API, and no variables of Services, because one called vllm would set
    VLLM_PORT, which vLLM reads.
    """
    # As Kubernetes' standard `restricted` demands. The image user's group owns volumes.
    security: dict[str, Json] = {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": 0,
        "fsGroup": 0,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    return {"automountServiceAccountToken": False, "enableServiceLinks": False, "securityContext": security}


# Its files come from addresses that change, and all of them are public.
_PUBLIC_HUB = "huggingface.co"
# Metadata services of clouds, which hand out credentials: no pod reaches them (the last two are Azure's and Oracle's).
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
    """pods: a selector of labels; empty: all of the namespace. Rules of several policies add up."""
    spec: dict[str, Json] = {
        "podSelector": {"matchLabels": dict(pods)} if pods else {},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": ingress,
        "egress": egress,
    }
    return manifest("NetworkPolicy", "networking.k8s.io/v1", name, namespace, {"spec": spec}, part)


def dns() -> Json:
    """The rule that allows the cluster's DNS, as a Service or as a cache on each node."""
    pods: dict[str, Json] = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
        "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
    }
    ports: list[Json] = [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]
    return {"to": [pods, {"ipBlock": {"cidr": _NODE_LOCAL_DNS}}], "ports": ports}


def to_engines(models: Iterable[Model]) -> Json:
    pods: list[Json] = [{"podSelector": {"matchLabels": selector(engine_name(each.name))}} for each in models]
    return {"to": pods, "ports": [{"protocol": "TCP", "port": ENGINE_PORT}]}


def to_hub(source: str) -> Json:
    """source: the URL of a repository."""
    url = urlsplit(source)
    host, ports = url.hostname or "", {443, url.port or (80 if url.scheme == "http" else 443)}
    try:
        address = ip_address(host)
    except ValueError:
        return _to_addresses(ports, private=host != _PUBLIC_HUB)
    block: Json = {"ipBlock": {"cidr": f"{address}/{address.max_prefixlen}"}}
    return {"to": [block], "ports": [*_tcp(ports)]}


def to_media(hosts: Iterable[str]) -> Json:
    """hosts: with a port where it is not the usual one."""
    named = {int(port) for _, _, port in (host.partition(":") for host in hosts) if port}
    return _to_addresses({80, 443, *named}, private=False)


def _to_addresses(ports: Iterable[int], *, private: bool) -> Json:
    blocks: list[Json] = [
        {"ipBlock": {"cidr": "0.0.0.0/0", "except": [*(_METADATA if private else _PRIVATE)]}},
        {"ipBlock": {"cidr": "::/0", "except": [*(_METADATA_6 if private else _PRIVATE_6)]}},
    ]
    return {"to": blocks, "ports": [*_tcp(ports)]}


def _tcp(ports: Iterable[int]) -> Iterator[Json]:
    return ({"protocol": "TCP", "port": port} for port in sorted(set(ports)))
