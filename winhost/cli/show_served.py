"""Show what to do next where an endpoint serves: its address, where the key is, a request, and how to look after it."""

import json
import socket
from collections.abc import Iterable, Iterator

from winhost.cli.first_completion import PLACE
from winhost.cli.shells import Shell, command_line, own_shell, post_with_key
from winhost.core.checks import Check
from winhost.model.errors import visible
from winhost.serving.deployed import Deployed, NotDeployed

_HERE = ("127.0.0.1", "::1")
_ANY = ("0.0.0.0", "::")  # noqa: S104 - compared, not bound


def next_of_served(host: str, checks: Iterable[Check], shell: Shell | None = None) -> Iterator[str]:
    """Lines for people; none where nothing is served."""
    checks, shell = tuple(checks), shell or own_shell()
    deployed = next(filter(None, map(_deployed, checks)), None)
    if deployed is None:
        return
    place = next((each.found for each in checks if each.property == PLACE and isinstance(each.found, dict)), {})
    address, _, port = deployed.gateway.listen.rpartition(":")
    bare, scheme = address.strip("[]"), "https" if deployed.gateway.tls else "http"
    reached = bare if bare in _HERE else _of_this_computer(str(place.get("address") or ""))
    if not reached:
        reached = "ADDRESS" if bare in _ANY else bare
    url = f"{scheme}://{f'[{reached}]' if ':' in reached else reached}:{port}"
    models = ", ".join(engine.model for engine in deployed.published)
    yield f"Served: {models} at {url}/v1, each after a completion of its own"
    ssh = place.get("ssh")
    if bare in _HERE and isinstance(ssh, list | tuple):
        forward = command_line(("ssh", "-N", "-L", f"{port}:{address}:{port}", *map(str, ssh)), shell)
        yield f"  It listens on its own machine alone, within {visible(host)}. From elsewhere, leave this running:"
        yield f"  {forward}"
    elif bare in _HERE:
        yield f"  It listens on its own machine alone, within {visible(host)}: run the request below there."
    elif reached == "ADDRESS":
        yield f"  ADDRESS is that of the Linux of {visible(host)} in its own network: no address of it is known here."
    yield "  The key is that of --api-key, or the one that winhost plan made; the machine has its hash alone."
    body = json.dumps({"model": deployed.engines[0].model, "messages": [{"role": "user", "content": "Hello"}]})
    yield f"  {post_with_key(f'{url}/v1/chat/completions', body, shell)}"
    yield f"  {command_line(('winhost', 'chat', host, 'Say hello'), shell)}"
    yield f"  {command_line(('winhost', 'serve', 'status', host), shell)}"


def _of_this_computer(address: str) -> str:
    """Its name, where the host is this computer itself: other machines need more than `localhost`."""
    return socket.gethostname() if address in ("localhost", *_HERE) else address


def _deployed(check: Check) -> Deployed | None:
    """The deployment in the serving file, by its own form."""
    if check.resource != "LinuxFile" or check.property != "text" or not check.holds:
        return None
    try:
        return Deployed.parse(str(check.found))
    except NotDeployed:
        return None
