"""The stand-in for wsl.exe. It calls a service and passes on its pipes, as wsl.exe does: see wsl.py."""

import json
import os
import socket
import sys


def main(address: str, account: str, *arguments: str) -> int:
    with socket.socket(socket.AF_UNIX) as service:
        service.connect(address)
        asked = {"account": account, "arguments": arguments, "utf8": os.environ.get("WSL_UTF8") == "1"}
        socket.send_fds(service, [json.dumps(asked).encode()], [0, 1, 2])
        return int(service.recv(16))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
