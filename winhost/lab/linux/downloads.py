"""What comes from hubs to a simulated Linux: files of which only the size and the hash are there.

Every hub has every file; a download comes whole, and at the same rate.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from winhost.lab.linux.inner_python import InnerFile
from winhost.lab.linux.linux_machine import Linux

_BYTES_A_SECOND = 100e6


def replaced(linux: Linux, names: Mapping[str, Any]) -> Mapping[str, Callable[..., Any]]:
    """Functions of the scripts in whose place these stand."""

    def bring(source: str, part: str, size: int, digest: str) -> Iterator[int]:
        if not linux.online and not source.startswith("/"):
            message = f"{source}: 5 attempts in a row brought nothing. It goes on from there the next time."
            raise names["AgentFault"]("Winhost.HubUnreachable", "ResourceUnavailable", message)
        linux.sleep(size / _BYTES_A_SECOND)
        linux.disk.write(part, "").told = (size, digest)
        yield size

    def fetched(part: str, file: Any, record: Mapping[str, Any], token: str | None) -> Iterator[int]:
        return bring(record["source"], part, file.size, file.hash)

    def release_pieces(part: str, after: Mapping[str, Any]) -> Iterator[int]:
        return bring(after["source"], part, after["bytes"], f"sha256:{after['sha256']}")

    return {"fetched": fetched, "release_pieces": release_pieces, "hash_of": _hash_of, "sha256_of": _sha256_of}


def _hash_of(here: InnerFile, file: Any) -> str:
    return here.node.told[1] if here.node.told else f"sha256:{_sha256_of(here)}"


def _sha256_of(here: InnerFile) -> str:
    told = here.node.told
    return told[1].removeprefix("sha256:") if told else hashlib.sha256(here.node.data).hexdigest()
