# Part of the agent, and of the program that `winhost serve` sends: the gateway of this machine, and its /ready.
from __future__ import annotations

import http.client
import ssl

READY_TIMEOUT_S = 60.0  # seconds: the gateway holds requests for engines that start


def gateway_connection(host: str, port: int, tls: bool, within: float) -> http.client.HTTPConnection:
    """Return a connection to the gateway. Its certificate has the names that clients use, and is not checked here: a
    caller that sends a key checks before whose process listens.
    """
    if not tls:
        return http.client.HTTPConnection(host, port, timeout=within)
    unchecked = ssl.create_default_context()
    unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
    return http.client.HTTPSConnection(host, port, timeout=within, context=unchecked)


def check_ready(host: str, port: int, tls: bool) -> str:
    """Return the error of /ready; empty if every model answers."""
    connection = gateway_connection(host, port, tls, READY_TIMEOUT_S)
    try:
        connection.request("GET", "/ready")
        answer = connection.getresponse()
        body = answer.read(2000).decode("utf-8", "replace")
        return "" if answer.status == 200 else f"{answer.status} {body}"
    except (OSError, http.client.HTTPException) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        connection.close()
