"""Mirrors of KV caches, which outlive the engine: files on a disk, or an LMCache server for each engine."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from importlib.resources import files

from winhost.core.answers import Json
from winhost.model.workload import KvMirror, Mirror
from winhost.serving.engine_names import UNITS, kv_folder

LMCACHE_PORT = 5555  # in a network of the server and its engine alone
_PRUNE = "prune_kv.py"
PRUNE_TIMER, _PRUNE_SERVICE = "winhost-kv-prune.timer", "winhost-kv-prune.service"
_PRUNE_INTERVAL = "10min"


def transfer_config(model: str, mirror: KvMirror) -> str:
    """Return the value of --kv-transfer-config. vLLM computes a block again that is missing or cannot be read."""
    if mirror.through is Mirror.TIERS:
        disk = {"type": "fs", "root_dir": kv_folder(model), "n_read_threads": 16, "n_write_threads": 16}
        extra = {
            "spec_name": "TieringOffloadingSpec",
            "cpu_bytes_to_use": mirror.staging,
            "block_size": 64,
            "offload_prompt_only": False,  # mirror generated tokens as well
            "eviction_policy": "lru",
            "secondary_tiers": [disk],
        }
        return _config("OffloadingConnector", extra)
    return _config("LMCacheMPConnector", {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": LMCACHE_PORT})


def _config(connector: str, extra: dict[str, Json]) -> str:
    config = {"kv_connector": connector, "kv_role": "kv_both", "kv_load_failure_policy": "recompute"}
    return json.dumps({**config, "kv_connector_extra_config": extra}, separators=(",", ":"))


# ---- files on a disk: the program and the units that limit their size


def prune_program() -> str:
    """Return the text of the program that removes the least recently used files."""
    return files(__package__).joinpath(_PRUNE).read_text("utf-8")


def prune_entries(models: Sequence[str], keep: int) -> Iterator[tuple[str, str, str]]:
    """Yield title, path and text of each file. keep: the largest size of each model's mirror in bytes."""
    program = prune_program()
    folder = f"/opt/winhost/kv-prune-{hashlib.sha256(program.encode()).hexdigest()[:16]}"
    yield "What keeps mirrors within their size", f"{folder}/{_PRUNE}", program
    mirrors = [kv_folder(model) for model in models]
    private = "/var/lib/private"
    writable = [f"-{path}" for mirror in mirrors for path in (mirror, f"{private}/{mirror.rpartition('/')[2]}")]
    service = [
        "[Unit]",
        "Description=Keeps mirrors of KV caches within their size",
        "",
        "[Service]",
        "Type=oneshot",
        f"ExecStart=/usr/bin/python3 -I {folder}/{_PRUNE} {keep} {' '.join(mirrors)}",
        "Nice=10",
        "IOSchedulingClass=idle",
        "PrivateNetwork=yes",
        "PrivateTmp=yes",
        "NoNewPrivileges=yes",
        "CapabilityBoundingSet=CAP_DAC_OVERRIDE",  # the folders are their engine's alone
        "ProtectSystem=strict",
        f"ReadWritePaths={' '.join(writable)}",
        "ProtectHome=yes",
        "ProtectKernelTunables=yes",
        "RestrictAddressFamilies=AF_UNIX",
        "",
    ]
    timer = [
        "[Unit]",
        "Description=Keeps mirrors of KV caches within their size",
        "",
        "[Timer]",
        f"OnBootSec={_PRUNE_INTERVAL}",
    ]
    timer += [f"OnUnitActiveSec={_PRUNE_INTERVAL}", "", "[Install]", "WantedBy=timers.target", ""]
    yield f"Mirrors of KV caches: {_PRUNE_SERVICE}", f"{UNITS}/{_PRUNE_SERVICE}", "\n".join(service)
    yield f"Mirrors of KV caches: {PRUNE_TIMER}", f"{UNITS}/{PRUNE_TIMER}", "\n".join(timer)
