"""Mirrors of KV caches that outlive the engine: files on a disk, or an LMCache server for each engine."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from importlib.resources import files

from winhost.core.answers import Json
from winhost.model.workload import KvMirror, Mirror
from winhost.serving.engine_names import UNITS, kv_folder

LMCACHE_PORT = 5555  # in a network of the server and its engine alone
_PRUNE = "prune_kv.py"
PRUNE_TIMER, _SERVICE = "winhost-kv-prune.timer", "winhost-kv-prune.service"
_EVERY = "10min"


def transfer_config(model: str, mirror: KvMirror) -> str:
    """The value of --kv-transfer-config. A block that is missing or cannot be read is computed again."""
    if mirror.through is Mirror.TIERS:
        disk = {"type": "fs", "root_dir": kv_folder(model), "n_read_threads": 16, "n_write_threads": 16}
        extra = {
            "spec_name": "TieringOffloadingSpec",
            "cpu_bytes_to_use": mirror.staging,
            "block_size": 64,
            "offload_prompt_only": False,  # else what is generated is not mirrored
            "eviction_policy": "lru",
            "secondary_tiers": [disk],
        }
        return _config("OffloadingConnector", extra)
    return _config("LMCacheMPConnector", {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": LMCACHE_PORT})


def _config(connector: str, extra: dict[str, Json]) -> str:
    config = {"kv_connector": connector, "kv_role": "kv_both", "kv_load_failure_policy": "recompute"}
    return json.dumps({**config, "kv_connector_extra_config": extra}, separators=(",", ":"))


# ---- files on a disk: what keeps them within their size


def prune_program() -> str:
    """The program that removes the least used files."""
    return files(__package__).joinpath(_PRUNE).read_text("utf-8")


def prune_entries(models: Sequence[str], keep: int) -> Iterator[tuple[str, str, str]]:
    """Title, path and text of each file. keep: bytes of each model's mirror."""
    program = prune_program()
    folder = f"/opt/winhost/kv-prune-{hashlib.sha256(program.encode()).hexdigest()[:16]}"
    yield "What keeps mirrors within their size", f"{folder}/{_PRUNE}", program
    mirrors = [kv_folder(model) for model in models]
    writable = [
        f"-{place}" for mirror in mirrors for place in (mirror, f"/var/lib/private/{mirror.rpartition('/')[2]}")
    ]
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
    timer = ["[Unit]", "Description=Keeps mirrors of KV caches within their size", "", "[Timer]", f"OnBootSec={_EVERY}"]
    timer += [f"OnUnitActiveSec={_EVERY}", "", "[Install]", "WantedBy=timers.target", ""]
    yield f"Mirrors of KV caches: {_SERVICE}", f"{UNITS}/{_SERVICE}", "\n".join(service)
    yield f"Mirrors of KV caches: {PRUNE_TIMER}", f"{UNITS}/{PRUNE_TIMER}", "\n".join(timer)
