"""Wait until an engine answers on its Unix socket: argv[1]. Runs in the engine's unit after its start, and ends with 1
if the engine ends, because systemd would wait until the time limit of the start.
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
    """Tell whether the process runs. An ended process disappears at once, because systemd reaps it."""
    return not process or Path("/proc", process).exists()


if __name__ == "__main__":
    while not answers(sys.argv[1]):
        if not runs(os.environ.get("MAINPID", "")):
            sys.exit("the engine has ended; what it said stands above")
        time.sleep(1)
