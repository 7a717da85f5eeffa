"""Trying what the GPUs of a host's Linux can do: one constant program over SSH, one answer."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import sha256

from winhost.connect.checked_answers import one_answer
from winhost.connect.ssh import SshWire
from winhost.model.measured import Measurement, ProbeAnswer

# In the order in which they run. Each ends by a deadline of its own, which the script has.
PARTS = ("driver", "shm", "copies", "peers", "ipc-legacy", "ipc-fd", "managed", "video")
# What takes more of the machine than a moment, so only where it is asked for.
DISTURBING = ("pin-limit", "checkpoint", "nccl", "container")
TIMEOUT_S = 1200  # seconds: more than all deadlines of the script together


def probe(wire: SshWire, program: str, path: str, also: Sequence[str], image: str | None) -> Measurement:
    """Try each part, and those of DISTURBING that are in `also`, through a wire to this program. Raises WireError,
    RemoteError, UsageError.
    """
    request = {
        "parts": [*PARTS, *(part for part in DISTURBING if part in also)],
        "container": {"image": image, "program": program} if image else None,
    }
    answer = one_answer(wire.host, wire.invoke(json.dumps(request), TIMEOUT_S), ProbeAnswer, "probe")
    return Measurement(
        path=path,
        target=wire.host.partition("/")[2] or wire.host,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        script=sha256(program.encode("ascii")).hexdigest(),
        found=answer,
    )
