"""Test the endpoint once after the machine has started: `python3 -m gateway.boot_test SETTINGS RESULT`.

/ready needs no key, and tells whether each model completes a request. The outcome is written to RESULT.
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
_CONNECTION_ERRORS = (OSError, http.client.HTTPException)


def main(arguments: "list[str]") -> int:
    """Wait until the endpoint is ready, and write the outcome to RESULT. Return 0 in any case."""
    settings = parse_settings(Path(arguments[0]).read_text("utf-8"))
    deadline = time.monotonic() + _WITHIN_S
    while (code := why_not_ready(settings)) and time.monotonic() < deadline:
        time.sleep(_PAUSE_S)
    uptime = float(Path("/proc/uptime").read_text("ascii").split()[0])  # seconds since the kernel started
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    result = {"at": now, "ready": not code, "seconds": int(uptime), "why": code[:100]}
    path = Path(arguments[1])
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(result) + "\n", "ascii")
    temporary.replace(path)
    return 0


def why_not_ready(settings: GatewaySettings) -> str:
    """Return the code of why the endpoint is not ready; empty if each model answers."""
    listen = settings.listen
    address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(str(listen.address), str(listen.address))  # noqa: S104 - compared
    connection = http.client.HTTPConnection(address, listen.port, timeout=_ANSWER_S)
    if settings.tls is not None:
        # The request goes to this machine, by an address that no certificate names, and contains no secret.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(address, listen.port, timeout=_ANSWER_S, context=context)
    try:
        with closing(connection):
            connection.request("GET", "/ready")
            answer = connection.getresponse()
            body = answer.read(65536)
    except _CONNECTION_ERRORS:
        return "no-answer"
    if answer.status == http.client.OK:
        return ""
    try:
        return str(json.loads(body)["error"]["code"])
    except (ValueError, LookupError, TypeError):
        return f"status-{answer.status}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
