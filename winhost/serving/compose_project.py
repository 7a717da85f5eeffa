"""A Compose project that serves a workload, for users who deploy it themselves: engines, models and gateway.

No engine has a port: each listens on a socket in a volume that it shares only with the gateway.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from winhost.core.answers import Json
from winhost.core.dataclass import dataclass
from winhost.model.workload import KvMirror, LoadFormat, Mirror, Model, Workload
from winhost.resources.host import HostFacts
from winhost.serving.choice import Served, Serving, serving
from winhost.serving.containers import START, compose_engine, compose_literal, compose_text, hardened
from winhost.serving.deployed import endpoint
from winhost.serving.engine_files import START_SECONDS
from winhost.serving.engine_names import CACHE, MODEL, kv_folder, model_folder, slug, socket, socket_folder
from winhost.serving.gateway_entries import gateway_files, published_model, workload_settings
from winhost.serving.kv_mirror import prune_program
from winhost.serving.profile import base_of, profile_without_sleep
from winhost.serving.stack import LOOPBACK, revision_of

_PRUNE = "/opt/winhost/prune_kv.py"
_FOLDER, _SECRETS = "/opt/winhost", "/run/winhost-credentials"
# The gateway has no capabilities, so it needs the group of the sockets, which is root's, to reach them.
_USER = "65534:0"
_HEALTH = (
    "import http.client, socket, sys; c = http.client.HTTPConnection('localhost'); "
    "c.sock = socket.socket(socket.AF_UNIX); c.sock.settimeout(10); c.sock.connect(sys.argv[1]); "
    "c.request('GET', '/health'); sys.exit(c.getresponse().status != 200)"
)
_CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)"
_FETCH = (
    "import sys; from huggingface_hub import snapshot_download; "
    "snapshot_download(sys.argv[1], revision=sys.argv[2], local_dir='/model')"
)
_HEAD = """\
# Written by winhost {version}: {models} by vLLM {vllm} behind a gateway, at {url}.
# It takes Docker Compose 2.23.1 or later and NVIDIA's Container Toolkit{cdi}.
#   docker compose up --detach     downloads the models, starts engine after engine, then answers
#   curl -H "Authorization: Bearer $API_KEY" {url}/v1/models
# An engine has no network and no port: only the gateway reaches its socket. Keys stand here as hashes.
"""

_ONLY_IN_PLANS = {
    "standby": "a plan sets up the second engine",
    "idle": "a plan sets up models that leave their GPUs",
    "yield_to": "a plan sets up models that leave their GPUs",
    "test_on_boot": "a plan sets up the unit that tests the endpoint",
}


@dataclass(frozen=True)
class ComposeRequest:
    """image: with its digest; keys: lines of the gateway's file of keys; tls: paths of a certificate and its key on the
    machine that serves, readable by the group root; path: the path to the Linux of a Windows host; hub: the URL of a
    hub other than huggingface.co.
    """

    workload: Workload
    image: str
    keys: tuple[str, ...]
    listen: tuple[str, int]
    tls: tuple[str, str] | None = None
    plain_http: bool = False
    path: str | None = None
    hub: str | None = None


@dataclass(frozen=True)
class ComposeProject:
    """text: of compose.yaml; notes: sentences for the user."""

    host: str
    text: str
    notes: tuple[str, ...]


def compose_project(facts: HostFacts, request: ComposeRequest, version: str) -> ComposeProject:
    """Make the project. version: of winhost. Raises UsageError (NoRevision), ValueError, and as `serving` does."""
    mirror = request.workload.kv_mirror
    if mirror and mirror.through is Mirror.LMCACHE:
        raise ValueError("kv_mirror: lmcache takes a server beside each engine, which a plan sets up; here take tiers")
    if any(model.load_format is LoadFormat.PACKED for model in request.workload.models):
        raise ValueError("load_format: packed takes a step that packs, which a plan has; here leave it out")
    for name, why in _ONLY_IN_PLANS.items():
        if getattr(request.workload.availability, name):
            raise ValueError(f"availability.{name}: {why}; leave it out of what Compose starts")
    found = serve_without_sleep(facts, request.workload, request.path)
    models: list[Json] = [published_model(model, {"socket": socket(model.name)}) for model in request.workload.models]
    settings = workload_settings(request.workload, request.listen, models, plain_http=request.plain_http)
    files = gateway_files(settings, request.keys, request.tls)
    services: dict[str, Any] = {}
    before: dict[int, str] = {}  # GPUs, and the last engine that starts on each
    for model, served in zip(request.workload.models, found.models, strict=True):
        services[f"model-{slug(model.name)}"] = _download(request, model)
        services[f"engine-{slug(model.name)}"] = _engine(request, model, served, before)
        if not model.sleeps:
            before |= dict.fromkeys(served.gpus, f"engine-{slug(model.name)}")
    services["gateway"] = _gateway(request, files)
    configs = {_config(path): {"content": compose_literal(text)} for path, text in files.items()}
    if mirror:
        services["kv-prune"] = _prune(request, mirror)
        configs["kv-prune"] = {"content": compose_literal(prune_program())}
    document = {
        "name": "winhost",
        "services": services,
        "volumes": dict(_volumes(request.workload)),
        "configs": configs,
    }
    devices = any(served.spec.container.cdi for served in found.models)
    head = _HEAD.format(
        version=version,
        models=", ".join(served.model for served in found.models),
        vllm=found.vllm,
        url=f"{'https' if request.tls else 'http'}://{endpoint(*request.listen)}",
        cdi=", with GPUs by CDI (Docker 25 or later)" if devices else "",
    )
    return ComposeProject(found.host, compose_text(document, head), tuple(_notes(request, found)))


def serve_without_sleep(facts: HostFacts, workload: Workload, path: str | None) -> Serving:
    """Choose profiles that never turn on vLLM's development mode, because here others than the gateway could reach its
    endpoints. Raises as `serving` does.
    """
    default = serving(facts, workload, path=path)
    if not any(model.sleeps for model in workload.models):
        return default
    return serving(facts, workload, profile_without_sleep(base_of(default.models[0].profile)), path=path)


def _engine(request: ComposeRequest, model: Model, served: Served, before: Mapping[int, str]) -> dict[str, Any]:
    """Return the service of an engine. Engines on one GPU start one after the other, because engines that start at the
    same time count each other's memory as their own. before: the engine that starts last so far on each GPU.
    """
    name, spec = slug(model.name), replace(served.spec, image=request.image)
    volumes = {socket_folder(model.name): f"socket-{name}", model_folder(model.name): f"model-{name}"}
    volumes[kv_folder(model.name)] = f"kv-{name}"  # below Docker's own folder, which root alone enters
    mounts = tuple(replace(each, source=volumes.get(each.source, each.source)) for each in spec.container.mounts)
    spec = replace(spec, container=replace(spec.container, mounts=mounts))
    waits = {engine: "service_healthy" for gpu, engine in before.items() if gpu in served.gpus}
    return {
        **hardened(str(spec.image), "unless-stopped"),
        # A killed engine leaves its socket, and vLLM does not replace it.
        **compose_engine(spec, f"rm -f {served.socket}; {START}"),
        **({"profiles": ["by-turns"]} if model.sleeps else {}),
        "depends_on": {
            f"model-{name}": {"condition": "service_completed_successfully"},
            **{engine: {"condition": condition} for engine, condition in waits.items()},
        },
        "healthcheck": {
            "test": ["CMD", "python3", "-I", "-c", _HEALTH, served.socket],
            "interval": "15s",
            "timeout": "15s",
            "start_period": f"{START_SECONDS}s",
        },
    }


def _download(request: ComposeRequest, model: Model) -> dict[str, Any]:
    """Return the service that downloads a model at one commit, with the library in the image, and then ends."""
    environment = {"NVIDIA_VISIBLE_DEVICES": "void", "HF_HOME": "/tmp"}  # noqa: S108 - of its own container
    if request.hub:
        environment["HF_ENDPOINT"] = compose_literal(request.hub)
    if model.token:
        environment["HF_TOKEN"] = "${HF_TOKEN:?a token of the hub reads this model: export HF_TOKEN}"  # noqa: S105 - where it is
    return {
        **hardened(request.image, "no"),
        "entrypoint": ["python3", "-I", "-c", compose_literal(_FETCH)],
        "command": [compose_literal(model.id), revision_of(model)],
        "environment": environment,
        "volumes": [f"model-{slug(model.name)}:{MODEL}"],
    }


def _prune(request: ComposeRequest, mirror: KvMirror) -> dict[str, Any]:
    """Return the service that keeps mirrors of KV caches within their size. It runs as root, who owns their files."""
    folders = [kv_folder(model.name) for model in request.workload.models]
    return {
        **hardened(request.image, "unless-stopped"),
        "network_mode": "none",
        "entrypoint": ["/bin/sh", "-c", 'while sleep 600; do python3 -I "$$0" "$$@"; done'],
        "command": [_PRUNE, str(mirror.disk_limit), *folders],
        "environment": {"NVIDIA_VISIBLE_DEVICES": "void"},
        "volumes": [f"kv-{slug(model.name)}:{kv_folder(model.name)}" for model in request.workload.models],
        "configs": [{"source": "kv-prune", "target": _PRUNE}],
    }


def _gateway(request: ComposeRequest, files: Mapping[str, str]) -> dict[str, Any]:
    """Return the gateway's service, in the machine's network, where its firewall applies: ports that Docker publishes
    bypass ufw. Its file system is not read-only as a whole, because Compose has to write its configuration into it.
    """
    address, port = request.listen
    probed = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)  # noqa: S104 - compared, not bound
    mounts = [f"socket-{slug(model.name)}:{socket_folder(model.name)}:ro" for model in request.workload.models]
    mounts += [
        f"{path}:{_SECRETS}/{name}:ro" for name, path in zip(("certificate", "key"), request.tls or (), strict=False)
    ]
    return {
        **hardened(request.image, "unless-stopped"),
        "user": _USER,
        "network_mode": "host",
        "pids_limit": 64,
        "ulimits": {"nofile": 65536, "core": 0},
        "working_dir": _FOLDER,
        "entrypoint": ["python3", "-s", "-E", "-B", "-m", "gateway.program", f"{_FOLDER}/settings.json"],
        "environment": {"CREDENTIALS_DIRECTORY": _SECRETS, "NVIDIA_VISIBLE_DEVICES": "void"},
        "stop_grace_period": "90s",
        "volumes": mounts,
        "configs": [
            {"source": _config(path), "target": f"{_SECRETS if path == 'keys' else _FOLDER}/{path}"} for path in files
        ],
        "healthcheck": {"test": ["CMD", "python3", "-I", "-c", _CONNECT, probed, str(port)], "interval": "15s"},
    }


def _volumes(workload: Workload) -> Iterator[tuple[str, Any]]:
    # Sockets are in memory, and open only to root and its group, as in /run/winhost-engines on a Linux that winhost
    # sets up.
    socket_options = {"type": "tmpfs", "device": "tmpfs", "o": "mode=0770"}
    for model in workload.models:
        yield f"model-{slug(model.name)}", None
        yield f"socket-{slug(model.name)}", {"driver": "local", "driver_opts": socket_options}
        if workload.kv_mirror:
            yield f"kv-{slug(model.name)}", None
    yield CACHE, None


def _config(path: str) -> str:
    return "gateway-" + re.sub(r"[^a-z0-9]+", "-", path.rpartition("/")[2].removesuffix(".py")).strip("-")


def _notes(request: ComposeRequest, found: Serving) -> Iterator[str]:
    for served in found.models:
        yield f"{served.model}: profile {served.profile}, GPUs {', '.join(map(str, served.gpus))}"
        yield from served.doubts
    turning = [f"engine-{slug(model.name)}" for model in request.workload.models if model.sleeps]
    if turning:
        yield (
            f"{', '.join(turning)}: in this project nobody puts a model to sleep, so none of these starts by itself. "
            "Start one and stop it before the next: docker compose up --detach ENGINE, docker compose stop ENGINE"
        )
    yield "The files of models are taken from the hub at one commit, and not compared with hashes as a plan does"
    if request.listen[0] not in LOOPBACK:
        yield "Others reach the endpoint as far as the firewall of the machine lets them: see docs/gateway.md"
