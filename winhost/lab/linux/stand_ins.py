"""Replaces functions of a simulated Linux's scripts that reach hubs, engines or real bytes. Every hub and every archive
has every file, a download comes whole and at the same rate, and of a downloaded file only size and hash are there.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

from winhost.lab.linux.data_disks import DataDisks
from winhost.lab.linux.inner_python import InnerFile
from winhost.lab.linux.linux_machine import Linux
from winhost.lab.linux.served_engines import ServedEngines
from winhost.lab.linux.simulated_cluster import SimulatedCluster

_BYTES_A_SECOND = 100e6
# An archive without members, for tarfile as for zipfile.
_NO_MEMBERS = bytes(1024) + b"PK\x05\x06" + bytes(18)


class StandIns:
    """names: what the scripts define."""

    def __init__(self, linux: Linux, names: Mapping[str, Any]) -> None:
        self._linux, self._names = linux, names
        self._load_image = names.get("load_image")

    def table(self) -> Mapping[str, Any]:
        """The stand-ins by the names that the scripts have for them."""
        return {
            "NOW": self._linux.shown_gpus(),
            "asked_ready": self._asked_ready,
            "brought_wheel": self._brought_wheel,
            "cluster_node": lambda name: (self._linux.part(SimulatedCluster).node == name, "k3s does not run as it"),
            "fetched": lambda part, file, record, token: self._bring(record["source"], part, file.size, file.hash),
            "hash_of": lambda here, file: here.node.told[1] if here.node.told else f"sha256:{here.node.sha256}",
            "load_image": self._loaded,
            "mounted_at": self._linux.part(DataDisks).device_at,
            "release_pieces": lambda part, after: self._bring(
                after["source"], part, after["bytes"], f"sha256:{after['sha256']}"
            ),
            "sha256_of": lambda here: here.node.sha256,
        }

    def _asked_ready(self, host: str, port: int, tls: bool) -> tuple[bool, str]:
        in_cluster = self._linux.part(SimulatedCluster).answers_at(host)
        ready = in_cluster or self._linux.part(ServedEngines).ready()
        return ready, "200 " if ready else "503 an engine does not answer"

    def _bring(self, source: str, part: str, size: int, digest: str) -> Iterator[int]:
        if not self._linux.online and not source.startswith("/"):
            message = f"{source}: 5 attempts in a row brought nothing. It goes on from there the next time."
            raise self._names["AgentFault"]("Winhost.HubUnreachable", "ResourceUnavailable", message)
        self._linux.sleep(size / _BYTES_A_SECOND)
        self._linux.disk.write(part, _NO_MEMBERS.decode()).told = (size, digest)
        yield size

    def _brought_wheel(self, making: str, wheel: Any, source: str) -> AbstractContextManager[InnerFile]:
        part = making + self._names["WHEEL"]
        list(self._bring(f"{source}/{wheel.path}", part, wheel.size, f"sha256:{wheel.hash}"))
        file: AbstractContextManager[InnerFile] = self._names["opened"](part)
        return file

    def _loaded(self, engine: str, record: Mapping[str, Any], how: Mapping[str, Any]) -> Any:
        """Load an archive as the script does. Where nobody put one there, it exists only during the call."""
        path, digest = str(record["archive"]), f"sha256:{record['archive_sha256']}"
        brings = path.startswith("/") and self._linux.disk.node(path) is None
        if brings:
            list(self._bring(path, path, record["bytes"] or 0, digest))
        try:
            return self._load_image(engine, record, how)  # type: ignore[misc]
        finally:
            if brings:
                self._linux.disk.remove(path)
