"""Waits until an engine answers on its Unix socket: argv[1]. Runs beside its unit, which ends it where that fails."""

import http.client
import socket
import sys
import time


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


if __name__ == "__main__":
    while not answers(sys.argv[1]):
        time.sleep(1)
