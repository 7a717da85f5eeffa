"""Fetch the settings from the controller, once. Runs in the installer before the guard, from media without settings.

The text is constant and uses only the standard library. fetch.json next to it has the URL and the SHA-256 of the
controller's certificate. A server with another certificate gets no request, and only HTTPS is used.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import os
import secrets
import shutil
import ssl
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

MAX_BYTES = 4 << 20
CLIENT = "Winhost-Client"  # a header by which the controller recognizes the same client
TRIES, PAUSE_SECONDS, TIMEOUT_SECONDS = 30, 10, 30  # the network may still be coming up


class SettingsRefused(Exception):
    """The controller gives no settings, and would give none to another request."""


def fetch(url: str, fingerprint: str, client: str = "") -> bytes:
    """Fetch the settings over HTTPS, from a server with this fingerprint. Raises SettingsRefused, OSError."""
    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.hostname:
        raise SettingsRefused("settings are fetched over HTTPS alone")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # the fingerprint is checked below
    line = http.client.HTTPSConnection(parts.hostname, parts.port or 443, timeout=TIMEOUT_SECONDS, context=context)
    try:
        line.connect()
        shown = line.sock.getpeercert(binary_form=True) or b""
        if not hmac.compare_digest(hashlib.sha256(shown).hexdigest(), fingerprint):
            raise SettingsRefused("the controller shows another certificate than the one on this medium")
        line.request("GET", parts.path, headers={CLIENT: client})
        answer = line.getresponse()
        data = answer.read(MAX_BYTES + 1)
        if answer.status == 503:
            raise OSError("the controller still waits for the end of an answer before")
        if len(data) < int(answer.headers["Content-Length"] or 0) and len(data) <= MAX_BYTES:
            raise http.client.IncompleteRead(data)
        if answer.status != 200 or len(data) > MAX_BYTES:
            raise SettingsRefused(f"the controller answers with HTTP {answer.status}; settings are given out once")
        return data
    finally:
        line.close()


def fetch_with_retries(url: str, fingerprint: str, pause: float) -> bytes:
    client = secrets.token_hex(16)
    for remaining in range(TRIES - 1, -1, -1):
        try:
            return fetch(url, fingerprint, client)
        except (OSError, http.client.HTTPException):
            if not remaining:
                raise
        time.sleep(pause)
    raise OSError("never tried")


def put(folder: Path, root: Path, settings: bytes) -> None:
    """Write the files that the installer and the guard read, readable only by root."""
    target = root / "run/winhost"
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in ("guard.py", "boot.py"):
        shutil.copyfile(folder / name, target / name)
    document = json.loads(settings)
    for path, part in ((target / "guard.json", "guard"), (root / "autoinstall.yaml", "autoinstall")):
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            json.dump(document[part], file)


def main(folder: Path, root: Path = Path("/"), pause: float = PAUSE_SECONDS) -> int:
    try:
        source = json.loads((folder / "fetch.json").read_text("utf-8"))
        put(folder, root, fetch_with_retries(source["url"], source["sha256"], pause))
    except (SettingsRefused, OSError, http.client.HTTPException, ValueError, KeyError) as error:
        sys.stderr.write(f"winhost: there are no settings for this installation: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parent))
