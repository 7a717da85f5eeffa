"""Test what the GPUs of a host's Linux can do, with one constant program over SSH and one answer."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import sha256

from winhost.connect.checked_answers import parse_one_answer
from winhost.connect.ssh import SshWire
from winhost.model.measured import Measurement, ProbeAnswer

# In the order in which they run. Each ends by a deadline of its own, which the program has.
PARTS = ("driver", "shm", "copies", "peers", "ipc-legacy", "ipc-fd", "managed", "video")
# These load the machine longer, so they run only on request.
DISTURBING = ("pin-limit", "checkpoint", "nccl", "container")
TIMEOUT_S = 1200  # more than all deadlines of the program together


def probe(wire: SshWire, program: str, path: str, also: Sequence[str], image: str | None) -> Measurement:
    """Run all of PARTS, and those of DISTURBING that are in `also`. wire: to this program. Raises WireError,
    RemoteError, UsageError.
    """
    request = {
        "parts": [*PARTS, *(part for part in DISTURBING if part in also)],
        "container": {"image": image, "program": program} if image else None,
    }
    answer = parse_one_answer(wire.host, wire.invoke(json.dumps(request), TIMEOUT_S), ProbeAnswer, "probe")
    return Measurement(
        path=path,
        target=wire.host.partition("/")[2] or wire.host,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        script=sha256(program.encode("ascii")).hexdigest(),
        found=answer,
    )
