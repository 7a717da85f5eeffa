"""The gateway in a cluster: the only pod that clients reach, and that reaches engines."""

import hashlib
import json
from collections.abc import Mapping

from winhost.cluster.isolation import container_security, dns, engines_egress, pod_basics, policy
from winhost.cluster.render_request import (
    ENGINE_PORT,
    GATEWAY,
    GATEWAY_PORT,
    ClusterRequest,
    engine_name,
    labels,
    manifest,
    selector,
)
from winhost.core.answers import Json
from winhost.gateway.gateway_settings import parse_settings
from winhost.model.workload import Exposure
from winhost.serving.gateway_entries import check_key_names, gateway_program, published_model, workload_limits

_CODE, _SETTINGS, _KEYS = "/opt/winhost", "/etc/winhost", "/run/winhost-keys"
_DRAIN_S = 90


def gateway_manifests(request: ClusterRequest) -> tuple[Mapping[str, Json], ...]:
    """Return the manifests of the gateway, in the order in which they are applied. Raises ValueError."""
    settings = json.dumps(_settings(request), indent=1) + "\n"
    parse_settings(settings)
    config = _manifest(request, "ConfigMap", "v1", {"data": {**gateway_program(), "settings.json": settings}})
    keys = []
    if request.keys:
        # The lines contain hashes of keys, with which the gateway can check a key, but nobody can log in.
        text = "\n".join([*request.keys, ""])
        check_key_names(settings, text)
        body: dict[str, Json] = {"type": "Opaque", "stringData": {"keys": text}}
        keys.append(manifest("Secret", "v1", request.keys_secret, request.namespace, body, GATEWAY))
    return (config, *keys, _network(request), _service(request), _deployment(request, config))


def _settings(request: ClusterRequest) -> dict[str, Json]:
    models: list[Json] = [
        published_model(model, {"service": f"{engine_name(model.name)}.{request.namespace}.svc", "port": ENGINE_PORT})
        for model in request.workload.models
    ]
    listen: dict[str, Json] = {
        "listen": {"address": "0.0.0.0", "port": GATEWAY_PORT},  # noqa: S104
        "models": models,
        **workload_limits(request.workload),
    }
    if request.tls_secret is not None:
        return {**listen, "tls": {"certificate": "certificate", "key": "key"}}
    return {**listen, "plain_http_beyond_this_machine": True}


def _network(request: ClusterRequest) -> Mapping[str, Json]:
    """Admit clients by the exposure of the workload, and let the gateway reach only engines.

    port-forward and the kubelet's probes always reach it.
    """
    port: list[Json] = [{"protocol": "TCP", "port": GATEWAY_PORT}]
    rules: dict[Exposure, list[Json]] = {
        Exposure.LOOPBACK: [],
        Exposure.CLUSTER: [{"from": [{"namespaceSelector": {}}], "ports": port}],
        Exposure.LAN: [{"ports": port}],
    }
    egress = [dns(), engines_egress(request.workload.models)]
    return policy(GATEWAY, request.namespace, selector(GATEWAY), rules[request.workload.exposure], egress)


def _service(request: ClusterRequest) -> Mapping[str, Json]:
    scheme = "https" if request.tls_secret else "http"
    port: dict[str, Json] = {"name": scheme, "port": GATEWAY_PORT, "targetPort": "gateway"}
    spec: dict[str, Json] = {"type": "ClusterIP", "selector": selector(GATEWAY), "ports": [port]}
    if request.workload.exposure is Exposure.LAN:
        spec |= {"type": "LoadBalancer", "externalTrafficPolicy": "Local", "loadBalancerSourceRanges": [*request.allow]}
    return _manifest(request, "Service", "v1", {"spec": spec})


def _deployment(request: ClusterRequest, config: Mapping[str, Json]) -> Mapping[str, Json]:
    # Pods do not read a changed ConfigMap or Secret again, so a changed hash of both makes new pods.
    read = json.dumps([config["data"], *request.keys, request.keys_secret, request.tls_secret], sort_keys=True)
    digest = hashlib.sha256(read.encode("utf-8")).hexdigest()
    metadata: dict[str, Json] = {"labels": labels(GATEWAY), "annotations": {"winhost/read": digest[:32]}}
    spec: dict[str, Json] = {
        "replicas": 1,
        "revisionHistoryLimit": 3,
        "selector": {"matchLabels": selector(GATEWAY)},
        "template": {"metadata": metadata, "spec": _pod(request)},
    }
    return _manifest(request, "Deployment", "apps/v1", {"spec": spec})


def _pod(request: ClusterRequest) -> dict[str, Json]:
    health: dict[str, Json] = {
        "httpGet": {"path": "/health", "port": "gateway", "scheme": "HTTPS" if request.tls_secret else "HTTP"}
    }
    container: dict[str, Json] = {
        "name": "gateway",
        "image": request.image,
        "workingDir": _CODE,
        "command": ["python3", "-s", "-E", "-B", "-m", "gateway.program", f"{_SETTINGS}/settings.json"],
        "env": [{"name": "CREDENTIALS_DIRECTORY", "value": _KEYS}],
        "ports": [{"name": "gateway", "containerPort": GATEWAY_PORT}],
        "readinessProbe": {**health, "periodSeconds": 5, "timeoutSeconds": 5},
        "livenessProbe": {**health, "periodSeconds": 20, "timeoutSeconds": 10},
        "resources": {"requests": {"cpu": "250m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": container_security(writes=False),
        "volumeMounts": [
            {"name": "code", "mountPath": f"{_CODE}/gateway", "readOnly": True},
            {"name": "settings", "mountPath": _SETTINGS, "readOnly": True},
            {"name": "keys", "mountPath": _KEYS, "readOnly": True},
        ],
    }
    code: list[Json] = [{"key": name, "path": name} for name in gateway_program()]
    secrets: list[Json] = [{"secret": {"name": request.keys_secret, "items": [{"key": "keys", "path": "keys"}]}}]
    if request.tls_secret is not None:
        items: list[Json] = [{"key": "tls.crt", "path": "certificate"}, {"key": "tls.key", "path": "key"}]
        secrets.append({"secret": {"name": request.tls_secret, "items": items}})
    return {
        **pod_basics(),
        "terminationGracePeriodSeconds": _DRAIN_S,
        "containers": [container],
        "volumes": [
            {"name": "code", "configMap": {"name": GATEWAY, "items": code}},
            {
                "name": "settings",
                "configMap": {"name": GATEWAY, "items": [{"key": "settings.json", "path": "settings.json"}]},
            },
            {"name": "keys", "projected": {"defaultMode": 0o440, "sources": secrets}},
        ],
    }


def _manifest(request: ClusterRequest, kind: str, api: str, body: Mapping[str, Json]) -> Mapping[str, Json]:
    return manifest(kind, api, GATEWAY, request.namespace, body)
