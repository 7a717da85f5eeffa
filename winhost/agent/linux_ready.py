# Part of the agent, a gateway's /ready: whether each model answers with a completion.
from __future__ import annotations

import http.client
import ssl

ASKS_FOR = 60.0  # seconds: the gateway holds requests for engines that start


def asked_ready(host: str, port: int, tls: bool) -> str:
    """Tell what is said instead of an answer of every model; empty where each answered."""
    if tls:
        # Nothing is sent to it, and its certificate is for the names of clients.
        unchecked = ssl.create_default_context()
        unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            host, port, timeout=ASKS_FOR, context=unchecked
        )
    else:
        connection = http.client.HTTPConnection(host, port, timeout=ASKS_FOR)
    try:
        connection.request("GET", "/ready")
        answer = connection.getresponse()
        said = answer.read(2000).decode("utf-8", "replace")
        return "" if answer.status == 200 else f"{answer.status} {said}"
    except (OSError, http.client.HTTPException) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        connection.close()
