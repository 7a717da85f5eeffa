"""Waits until an engine answers on its Unix socket: argv[1]. Runs in its unit once that has started, and ends with 1
where the engine has ended: systemd would wait on for it, until the time for the start is over.
"""

import http.client
import os
import socket
import sys
import time
from pathlib import Path


def answers(path: str) -> bool:
    connection = http.client.HTTPConnection("localhost", timeout=10)
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.sock.settimeout(10)
    try:
        connection.sock.connect(path)
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def runs(process: str) -> bool:
    """Tell whether the process runs. Ended ones disappear at once: systemd collects them."""
    return not process or Path("/proc", process).exists()


if __name__ == "__main__":
    while not answers(sys.argv[1]):
        if not runs(os.environ.get("MAINPID", "")):
            sys.exit("the engine has ended; what it said stands above")
        time.sleep(1)
