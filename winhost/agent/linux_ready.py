# Part of the agent, and of what `winhost serve` sends: the gateway of this machine, and its /ready.
from __future__ import annotations

import http.client
import ssl

ASKS_FOR = 60.0  # seconds: the gateway holds requests for engines that start


def gateway_connection(host: str, port: int, tls: bool, within: float) -> http.client.HTTPConnection:
    """Its certificate is for the names of clients, and is not checked: whoever sends a key looks first whose process
    listens there.
    """
    if not tls:
        return http.client.HTTPConnection(host, port, timeout=within)
    unchecked = ssl.create_default_context()
    unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
    return http.client.HTTPSConnection(host, port, timeout=within, context=unchecked)


def asked_ready(host: str, port: int, tls: bool) -> str:
    """Tell what is said instead of an answer of every model; empty where each answered."""
    connection = gateway_connection(host, port, tls, ASKS_FOR)
    try:
        connection.request("GET", "/ready")
        answer = connection.getresponse()
        said = answer.read(2000).decode("utf-8", "replace")
        return "" if answer.status == 200 else f"{answer.status} {said}"
    except (OSError, http.client.HTTPException) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        connection.close()
