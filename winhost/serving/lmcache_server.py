"""The LMCache server of an engine. Each engine has its own: an engine that falls asleep clears its whole server."""

from winhost.model.units import GiB
from winhost.serving.containers import docker_program, restricted_run
from winhost.serving.engine_files import ServedEngine
from winhost.serving.engine_names import lmcache, unit
from winhost.serving.kv_mirror import LMCACHE_PORT

_HTTP_PORT = 8080


def lmcache_unit(engine: ServedEngine, staging: int) -> str:
    """Return the unit of one engine's server. Server and engine share GPUs and a network that nothing else reaches.

    staging: bytes of memory for the server's cache.
    """
    model = engine.served.model
    options = f"--host=127.0.0.1 --port={LMCACHE_PORT} --http-host=127.0.0.1 --http-port={_HTTP_PORT}"
    options += f" --l1-size-gb={max(1, staging // GiB)} --eviction-policy=LRU"
    head = ["# Written by winhost: what users asked is in its memory; only its engine reaches it.", "[Unit]"]
    head += [f"Description=LMCache for {engine.quoted_model}", "StartLimitIntervalSec=0"]
    if engine.container_client is None:
        server = f"{engine.spec.environment_program('lmcache')} server {options}"
        body = [
            f"ExecStart={server}",
            *engine.gpu_environment,
            f"User={engine.user}",  # the engine's user, because it maps the engine's memory
            "DynamicUser=yes",
            "PrivateNetwork=yes",
            "PrivateTmp=yes",
            "NoNewPrivileges=yes",
            "CapabilityBoundingSet=",
            "ProtectSystem=strict",
            "ProtectHome=yes",
            "LimitMEMLOCK=infinity",
            "LimitCORE=0",
        ]
        joins = [f"JoinsNamespaceOf={unit(model)}"]
        return _unit([*head, *joins], body)
    name, client = lmcache(model), engine.container_client
    start = " ".join([
        client,
        *restricted_run("--network=none", "--ipc=host", name=name),
        engine.gpu_options,
        *docker_program(engine.spec, "lmcache", "server", options),
    ])  # fmt: skip
    remove = f"-{client} rm --force {name}"
    docker = ["After=docker.service", "Requires=docker.service"] if client.endswith("docker") else []
    ends = [f"ExecStop=-{client} stop --time 30 {name}", f"ExecStopPost={remove}"]
    return _unit([*head, *docker], [f"ExecStartPre={remove}", f"ExecStart={start}", *ends])


def _unit(head: list[str], body: list[str]) -> str:
    tail = ["Restart=on-failure", "RestartSec=15", "TimeoutStopSec=60", "", "[Install]", "WantedBy=multi-user.target"]
    return "\n".join([*head, "", "[Service]", "Type=exec", *body, *tail, ""])
