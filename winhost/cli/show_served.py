"""What to do next where an endpoint serves: its address, where the key is, a request, and how to look after it."""

import json
from collections.abc import Iterable, Iterator
from shlex import quote

from winhost.core.checks import Check
from winhost.model.errors import visible
from winhost.serving.deployed import Deployed, NotDeployed

_HERE = ("127.0.0.1", "::1")
_ANY = ("0.0.0.0", "::")  # noqa: S104 - compared, not bound


def next_of_served(host: str, checks: Iterable[Check]) -> Iterator[str]:
    """Lines for people; none where nothing is served."""
    deployed = next(filter(None, map(_deployed, checks)), None)
    if deployed is None:
        return
    address, _, port = deployed.gateway.listen.rpartition(":")
    bare, scheme = address.strip("[]"), "https" if deployed.gateway.tls else "http"
    url = f"{scheme}://{host if bare in _ANY else address}:{port}"
    models = ", ".join(engine.model for engine in deployed.engines)
    yield f"Served: {models} at {url}/v1, each after a completion of its own"
    if bare in _HERE:
        yield f"  It listens on {visible(host)} itself. From elsewhere: ssh -N -L {port}:{address}:{port} {quote(host)}"
    yield "  The key is the one that you named with --api-key; the machine has its hash alone."
    body = json.dumps({"model": deployed.engines[0].model, "messages": [{"role": "user", "content": "Hello"}]})
    asks = f'-H "Authorization: Bearer $API_KEY" -H "Content-Type: application/json" -d {quote(body)}'
    yield f"  curl {asks} {url}/v1/chat/completions"
    yield f"  winhost serve status {quote(host)}"


def _deployed(check: Check) -> Deployed | None:
    """What stands in the file that says what is served, by its own form."""
    if check.resource != "LinuxFile" or check.property != "text" or not check.holds:
        return None
    try:
        return Deployed.parse(str(check.found))
    except NotDeployed:
        return None
