"""What to do next where an endpoint serves: its address, where the key is, a request, and how to look after it."""

import json
from collections.abc import Iterable, Iterator
from shlex import quote

from winhost.connect.ways_in import ACCESS, SEED
from winhost.core.checks import Check
from winhost.model.errors import visible
from winhost.serving.deployed import Deployed, NotDeployed

_HERE = ("127.0.0.1", "::1")
_ANY = ("0.0.0.0", "::")  # noqa: S104 - compared, not bound
_THROUGH_WINDOWS = ("PortForward", "HyperVFirewall")  # it is reached at the address of Windows
_WAYS_IN = (ACCESS, SEED)  # to a distro or guest, whose SSH is not that of its Windows


def next_of_served(host: str, checks: Iterable[Check]) -> Iterator[str]:
    """Lines for people; none where nothing is served."""
    checks = tuple(checks)
    deployed = next(filter(None, map(_deployed, checks)), None)
    if deployed is None:
        return
    address, _, port = deployed.gateway.listen.rpartition(":")
    bare, scheme = address.strip("[]"), "https" if deployed.gateway.tls else "http"
    within = any(each.resource in _WAYS_IN for each in checks)
    own = within and not any(each.resource in _THROUGH_WINDOWS for each in checks)
    reached = "ADDRESS" if own else host
    url = f"{scheme}://{reached if bare in _ANY else address}:{port}"
    models = ", ".join(engine.model for engine in deployed.engines)
    yield f"Served: {models} at {url}/v1, each after a completion of its own"
    if bare in _HERE:
        yield from _from_elsewhere(host, f"{port}:{address}:{port}", within)
    elif own and bare in _ANY:
        yield f"  ADDRESS is that of the Linux within {visible(host)}, which has its own in the network."
    yield "  The key is the one that you named with --api-key; the machine has its hash alone."
    body = json.dumps({"model": deployed.engines[0].model, "messages": [{"role": "user", "content": "Hello"}]})
    asks = f'-H "Authorization: Bearer $API_KEY" -H "Content-Type: application/json" -d {quote(body)}'
    yield f"  curl {asks} {url}/v1/chat/completions"
    yield f"  winhost serve status {quote(host)}"


def _from_elsewhere(host: str, forward: str, inside: bool) -> Iterator[str]:
    """forward: as ssh -L takes it; inside: what serves is a Linux within this host."""
    if not inside:
        yield f"  It listens on {visible(host)} itself. From elsewhere: ssh -N -L {forward} {quote(host)}"
        return
    yield f"  It listens inside the Linux of {visible(host)} alone: run the curl below there, or forward its port by"
    yield f"  the SSH of that Linux, with its own address, port and user: ssh -N -L {forward} -p PORT USER@ADDRESS"


def _deployed(check: Check) -> Deployed | None:
    """What stands in the file that says what is served, by its own form."""
    if check.resource != "LinuxFile" or check.property != "text" or not check.holds:
        return None
    try:
        return Deployed.parse(str(check.found))
    except NotDeployed:
        return None
