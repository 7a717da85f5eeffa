"""What stands in a simulated Linux for functions of its scripts: those that reach hubs, engines or real bytes.

Every hub and every archive has every file, a download comes whole and at the same rate, and of a file that came only
the size and the hash are there.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

from winhost.lab.linux.inner_python import InnerFile
from winhost.lab.linux.linux_machine import Linux
from winhost.lab.linux.served_engines import ServedEngines

_BYTES_A_SECOND = 100e6
# An archive without members, for tarfile as for zipfile.
_NO_MEMBERS = bytes(1024) + b"PK\x05\x06" + bytes(18)


def replaced(linux: Linux, names: Mapping[str, Any]) -> Mapping[str, Any]:
    """By the names that the scripts have for them."""

    def bring(source: str, part: str, size: int, digest: str) -> Iterator[int]:
        if not linux.online and not source.startswith("/"):
            message = f"{source}: 5 attempts in a row brought nothing. It goes on from there the next time."
            raise names["AgentFault"]("Winhost.HubUnreachable", "ResourceUnavailable", message)
        linux.sleep(size / _BYTES_A_SECOND)
        linux.disk.write(part, _NO_MEMBERS.decode()).told = (size, digest)
        yield size

    def fetched(part: str, file: Any, record: Mapping[str, Any], token: str | None) -> Iterator[int]:
        return bring(record["source"], part, file.size, file.hash)

    def release_pieces(part: str, after: Mapping[str, Any]) -> Iterator[int]:
        return bring(after["source"], part, after["bytes"], f"sha256:{after['sha256']}")

    def brought_wheel(making: str, wheel: Any, source: str) -> AbstractContextManager[InnerFile]:
        part = making + names["WHEEL"]
        list(bring(f"{source}/{wheel.path}", part, wheel.size, f"sha256:{wheel.hash}"))
        file: AbstractContextManager[InnerFile] = names["opened"](part)
        return file

    return {
        "asked_ready": lambda host, port, tls: linux.part(ServedEngines).ready(),
        "brought_wheel": brought_wheel,
        "fetched": fetched,
        "hash_of": _hash_of,
        "release_pieces": release_pieces,
        "sha256_of": _sha256_of,
        "NOW": linux.shown_gpus(),
    }


def _hash_of(here: InnerFile, file: Any) -> str:
    return here.node.told[1] if here.node.told else f"sha256:{_sha256_of(here)}"


def _sha256_of(here: InnerFile) -> str:
    told = here.node.told
    return told[1].removeprefix("sha256:") if told else hashlib.sha256(here.node.data).hexdigest()
