"""Runs in the installer before the guard, from media that hold no settings: fetches them from the controller, once.

Constant, and of the standard library alone. fetch.json beside it has the address and the SHA-256 of the controller's
certificate; nothing is asked of whoever shows another one. Only HTTPS is spoken.
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

LARGEST = 4 << 20
CLIENT = "Winhost-Client"  # a header: by it the controller knows whoever asks again
TRIES, PAUSE_S, TIMEOUT_S = 30, 10, 30  # the network may still be coming up


class NotHandedOut(Exception):
    """Another try would end alike."""


def fetched(url: str, fingerprint: str, client: str = "") -> bytes:
    """Fetch the settings over HTTPS, from a server with this fingerprint. Raises NotHandedOut, OSError."""
    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.hostname:
        raise NotHandedOut("settings are fetched over HTTPS alone")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it is known by its fingerprint, below
    line = http.client.HTTPSConnection(parts.hostname, parts.port or 443, timeout=TIMEOUT_S, context=context)
    try:
        line.connect()
        shown = line.sock.getpeercert(binary_form=True) or b""
        if not hmac.compare_digest(hashlib.sha256(shown).hexdigest(), fingerprint):
            raise NotHandedOut("the controller shows another certificate than the one on this medium")
        line.request("GET", parts.path, headers={CLIENT: client})
        answer = line.getresponse()
        data = answer.read(LARGEST + 1)
        if answer.status == 503:
            raise OSError("the controller still waits for the end of an answer before")
        if len(data) < int(answer.headers["Content-Length"] or 0) and len(data) <= LARGEST:
            raise http.client.IncompleteRead(data)
        if answer.status != 200 or len(data) > LARGEST:
            raise NotHandedOut(f"the controller answers with HTTP {answer.status}; settings are given out once")
        return data
    finally:
        line.close()


def tried(url: str, fingerprint: str, pause: float) -> bytes:
    client = secrets.token_hex(16)
    for left in range(TRIES - 1, -1, -1):
        try:
            return fetched(url, fingerprint, client)
        except (OSError, http.client.HTTPException):
            if not left:
                raise
        time.sleep(pause)
    raise OSError("never tried")


def put(folder: Path, root: Path, settings: bytes) -> None:
    """Put the files where the installer and the guard look for them, readable by root alone."""
    here = root / "run/winhost"
    here.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in ("guard.py", "boot.py"):
        shutil.copyfile(folder / name, here / name)
    document = json.loads(settings)
    for path, part in ((here / "guard.json", "guard"), (root / "autoinstall.yaml", "autoinstall")):
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            json.dump(document[part], file)


def main(folder: Path, root: Path = Path("/"), pause: float = PAUSE_S) -> int:
    try:
        told = json.loads((folder / "fetch.json").read_text("utf-8"))
        put(folder, root, tried(told["url"], told["sha256"], pause))
    except (NotHandedOut, OSError, http.client.HTTPException, ValueError, KeyError) as error:
        sys.stderr.write(f"winhost: there are no settings for this installation: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parent))
