"""A powershell.exe on the PATH that the simulated host answers as if it were this computer's own."""

import base64
import json
import socketserver
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from winhost.lab.wire.served_host import PipelineError
from winhost.lab.wire.shells import RemoteCommand
from winhost.web.server import run_server as running

PROGRAM = """#!{python} -IS
import json, socket, sys
with socket.create_connection(("127.0.0.1", {port}), 60) as lab:
    lab.sendall(json.dumps([sys.argv[1:], sys.stdin.read()]).encode() + b"\\n")
    out, error, code = json.loads(lab.makefile().read())
sys.stdout.write(out)
sys.stderr.write(error)
sys.exit(code)
"""


@contextmanager
def local_powershell(folder: Path, host: Any) -> Iterator[list[list[str]]]:
    """In a folder for the PATH; gives the arguments of each call."""
    calls: list[list[str]] = []

    class Answers(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            words, given = json.loads(self.rfile.readline())
            calls.append(words)
            self.wfile.write(json.dumps(_answer(host, given)).encode())

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Answers) as server:
        server.daemon_threads = True
        with running(server):
            program = folder / "powershell.exe"
            program.write_text(PROGRAM.format(python=sys.executable, port=server.server_address[1]))
            program.chmod(0o755)
            yield calls


def _answer(host: Any, given: str) -> tuple[str, str, int]:
    sent = json.loads(given)
    try:
        outputs = host.open_runspace("local").invoke(
            [RemoteCommand(sent["script"], is_script=True, arguments=(sent["request"],))], threading.Event()
        )
        return "".join(base64.b64encode(str(each).encode()).decode() + "\r\n" for each in outputs), "", 0
    except PipelineError as error:
        return "", f"{error.message}\r\n", 1
