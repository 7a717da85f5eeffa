"""Trying what the GPUs of a host's Linux can do: one constant program over SSH, one answer."""

import json
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from hashlib import sha256

from winhost.connect.checked_answers import NotTheAgents, checked, not_text, parsed
from winhost.connect.ssh import SshTarget, SshWire
from winhost.connect.wire_errors import BAD_ANSWER, RemoteError
from winhost.core.answers import RemoteFault
from winhost.model.documents import plain
from winhost.model.measured import Measurement, ProbeAnswer
from winhost.resources.linux.linux_scripts import probe_text

# In the order in which they run. Each ends by a deadline of its own, which the script has.
PARTS = ("driver", "shm", "copies", "peers", "ipc-legacy", "ipc-fd", "managed")
# What takes more of the machine than a moment, so only where it is asked for.
DISTURBING = ("pin-limit", "checkpoint", "nccl", "container")
WITHIN = 900  # seconds: more than all deadlines of the script together


def probe(target: SshTarget, path: str, also: Sequence[str], image: str | None) -> Measurement:
    """Try each part, and those of DISTURBING that are in `also`. Raises WireError, RemoteError, UsageError."""
    program = probe_text()
    request = {
        "parts": [*PARTS, *(part for part in DISTURBING if part in also)],
        "container": {"image": image, "program": program} if image else None,
    }
    with closing(SshWire(target, program)) as wire:
        answer = _answer(target.name, wire.invoke(json.dumps(request), WITHIN))
    return Measurement(
        path=path,
        target=target.name.partition("/")[2] or target.name,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        script=sha256(program.encode("ascii")).hexdigest(),
        found=answer,
    )


def _answer(host: str, text: str) -> ProbeAnswer:
    try:
        (answer,) = parsed(text, 1)
        found = checked(answer, ProbeAnswer)
    except NotTheAgents as why:
        raise _bad(host, str(why)) from None
    if not isinstance(found, ProbeAnswer):
        raise _bad(host, "it says that it did not try")
    if unlike := not_text(plain(found)):
        raise _bad(host, unlike)
    return found


def _bad(host: str, why: str) -> RemoteError:
    return RemoteError(host, RemoteFault("InvalidResult", BAD_ANSWER, message=why), "probe")
