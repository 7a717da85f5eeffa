"""An engine for process images: it counts, and each count goes through a pipe, shared memory, a semaphore and a TCP
connection between its processes. Whoever connects to its Unix socket is told how far it is.

    counting_engine.py SOCKET
"""

import json
import multiprocessing
import os
import socket
import sys
import threading
import time
import zlib
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from multiprocessing.synchronize import Semaphore
from pathlib import Path

BALLAST = 8 << 20
PATIENCE_S = 300
AT = BALLAST  # of the count in the shared memory


def adds(numbers: Connection, shared: SharedMemory, added: Semaphore) -> None:
    """One worker."""
    while True:
        number = int.from_bytes(numbers.recv_bytes(), "little")
        shared.buf[AT : AT + 8] = (number + 1).to_bytes(8, "little")
        added.release()


def returns(port: int) -> None:
    """Another."""
    with socket.create_connection(("127.0.0.1", port)) as line:
        while piece := line.recv(8):
            line.sendall(piece)


def main(path: str) -> None:
    fork = multiprocessing.get_context("fork")
    shared, added = SharedMemory(create=True, size=BALLAST + 8), fork.Semaphore(0)
    shared.buf[:BALLAST] = os.urandom(BALLAST)
    began = zlib.crc32(shared.buf[:BALLAST])
    theirs, numbers = fork.Pipe(duplex=False)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    workers = [
        fork.Process(target=adds, args=(theirs, shared, added), daemon=True),
        fork.Process(target=returns, args=(port,), daemon=True),
    ]
    for each in workers:
        each.start()
    line, _ = listener.accept()
    count = 0

    def counts() -> None:
        nonlocal count
        while True:
            numbers.send_bytes(count.to_bytes(8, "little"))
            while not added.acquire(timeout=PATIENCE_S):
                pass
            line.sendall(bytes(shared.buf[AT : AT + 8]))
            count = int.from_bytes(line.recv(8, socket.MSG_WAITALL), "little")
            time.sleep(0.05)

    threading.Thread(target=counts, daemon=True).start()
    Path(path).unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        os.write(1, b"serves\n")
        while True:
            client, _ = server.accept()
            whole = zlib.crc32(shared.buf[:BALLAST]) == began
            pids = [os.getpid(), *(each.pid for each in workers)]
            client.sendall(json.dumps({"count": count, "memory": whole, "pids": pids, "user": os.getuid()}).encode())
            client.close()


if __name__ == "__main__":
    main(sys.argv[1])
