"""Test the endpoint once after the machine has started: `python3 -m gateway.boot_test SETTINGS RESULT`.

/ready tells without a key whether each model completes a request. The outcome is written to RESULT.
"""

import http.client
import json
import ssl
import sys
import time
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path

from .gateway_settings import GatewaySettings, parse_settings

_WITHIN_S, _PAUSE_S, _ANSWER_S = 3600, 2, 40
_LOST = (OSError, http.client.HTTPException)


def main(words: "list[str]") -> int:
    """Write the outcome to RESULT. Returns 0 whatever it is."""
    settings = parse_settings(Path(words[0]).read_text("utf-8"))
    until = time.monotonic() + _WITHIN_S
    while (why := why_not_ready(settings)) and time.monotonic() < until:
        time.sleep(_PAUSE_S)
    uptime = float(Path("/proc/uptime").read_text("ascii").split()[0])  # seconds since the kernel started
    at = datetime.now(timezone.utc).isoformat(timespec="seconds")
    told = {"at": at, "ready": not why, "seconds": int(uptime), "why": why[:100]}
    result = Path(words[1])
    beside = result.with_suffix(".new")
    beside.write_text(json.dumps(told) + "\n", "ascii")
    beside.replace(result)
    return 0


def why_not_ready(settings: GatewaySettings) -> str:
    """Why the endpoint is not ready; empty if each model answers."""
    listen = settings.listen
    own = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(str(listen.address), str(listen.address))  # noqa: S104 - compared
    connection = http.client.HTTPConnection(own, listen.port, timeout=_ANSWER_S)
    if settings.tls is not None:
        # This asks the gateway of this machine by an address that no certificate names, and sends nothing secret.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(own, listen.port, timeout=_ANSWER_S, context=context)
    try:
        with closing(connection):
            connection.request("GET", "/ready")
            answer = connection.getresponse()
            body = answer.read(65536)
    except _LOST:
        return "no-answer"
    if answer.status == http.client.OK:
        return ""
    try:
        return str(json.loads(body)["error"]["code"])
    except (ValueError, LookupError, TypeError):
        return f"status-{answer.status}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
