"""The LMCache server of an engine: one each, because an engine that falls asleep clears its server for everybody."""

from pathlib import PurePosixPath

from winhost.model.units import GiB
from winhost.serving.engine_files import ServedEngine
from winhost.serving.engine_names import lmcache, unit
from winhost.serving.kv_mirror import LMCACHE_PORT

_HTTP_PORT = 8080


def lmcache_unit(engine: ServedEngine, staging: int) -> str:
    """The unit of one engine's server, which shares the engine's GPUs and its network; nothing else reaches that."""
    model = engine.served.model
    words = [f"--host=127.0.0.1 --port={LMCACHE_PORT} --http-host=127.0.0.1 --http-port={_HTTP_PORT}"]
    words += [f"--l1-size-gb={max(1, staging // GiB)} --eviction-policy=LRU"]
    options = " ".join(words)
    head = ["# Written by winhost: what users asked is in its memory; only its engine reaches it.", "[Unit]"]
    head += [f"Description=LMCache for {engine.quoted_model}", "StartLimitIntervalSec=0"]
    if engine.program is None:
        server = f"{PurePosixPath(engine.by).with_name('lmcache')} server {options}"
        body = [
            f"ExecStart={server}",
            *engine.gpu_environment,
            f"User={engine.user}",  # that of the engine, whose memory it maps
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
    name, program = lmcache(model), engine.program
    run = " ".join([
        f"{program} run --name={name} --rm --pull=never --network=none --ipc=host --cap-drop=ALL",
        f"--security-opt=no-new-privileges {engine.gpu_options} --entrypoint=lmcache {engine.image} server {options}",
    ])  # fmt: skip
    sweep = f"-{program} rm --force {name}"
    docker = ["After=docker.service", "Requires=docker.service"] if program.endswith("docker") else []
    ends = [f"ExecStop=-{program} stop --time 30 {name}", f"ExecStopPost={sweep}"]
    return _unit([*head, *docker], [f"ExecStartPre={sweep}", f"ExecStart={run}", *ends])


def _unit(head: list[str], body: list[str]) -> str:
    tail = ["Restart=on-failure", "RestartSec=15", "TimeoutStopSec=60", "", "[Install]", "WantedBy=multi-user.target"]
    return "\n".join([*head, "", "[Service]", "Type=exec", *body, *tail, ""])
