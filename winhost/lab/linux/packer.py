"""Packs weights on a simulated Linux: each file becomes a header that says which file it was made of."""

import json
import stat
from collections.abc import Sequence

from winhost.lab.linux.inner_python import Ended
from winhost.lab.linux.linux_machine import Linux

_RECORDS = "/var/lib/winhost/models"
_SECONDS_OF_GB = 3.5  # as measured, with one thread


def packs(linux: Linux, words: Sequence[str]) -> Ended | str:
    """The only thing that winhost runs by `docker run`, `podman run` and `systemd-run`."""
    source, folder = (_outside(word, words) for word in words[-2:])
    if linux.disk.node(folder) is None:
        return Ended(1, '{"error": "there is no folder for what is packed"}\n')
    for name in linux.disk.names(source):
        if name.endswith(".safetensors") and name not in linux.disk.names(folder):
            hash_, size = _known(linux, source, name)
            linux.sleep(size / 1e9 * _SECONDS_OF_GB)
            header = json.dumps({"__metadata__": {"winhost.packed": json.dumps({"sha256": hash_})}}).encode()
            data = len(header).to_bytes(8, "little") + header
            linux.disk.put(f"{folder}/{name}", linux.disk.new(stat.S_IFREG, data=data))
    return ""


def _outside(path: str, words: Sequence[str]) -> str:
    """The folder that a container sees as this one."""
    volumes = (word.removeprefix("--volume=").split(":") for word in words if word.startswith("--volume="))
    return next((volume[0] for volume in volumes if volume[1] == path), path)


def _known(linux: Linux, folder: str, name: str) -> tuple[str, int]:
    for record in linux.disk.names(_RECORDS):
        found = json.loads(linux.disk.text(f"{_RECORDS}/{record}") or "{}")
        for line in found["files"] or () if found["folder"] == folder else ():
            hash_, size, path = line.split(" ", 2)
            if path == name:
                return hash_.removeprefix("sha256:"), int(size)
    return "", 0
