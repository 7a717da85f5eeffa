"""A python3 that the simulated Linux answers as if it were this computer's own: winhost runs on it, without SSH."""

import json
import socket
import socketserver
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from winhost.connect import this_linux
from winhost.connect.tunnel import TunnelRefused
from winhost.lab.linux.linuxes import LinuxHost
from winhost.lab.physics.host_state import HostDown
from winhost.resources.linux.linux_scripts import boot_text, probe_text, serving_text, session_text

PROGRAM = """#!{python} -IS
import os, socket, sys, threading
with socket.create_connection(("127.0.0.1", {port})) as lab:
    def hand_on():
        while piece := os.read(0, 65536):
            lab.sendall(piece)
        lab.shutdown(socket.SHUT_WR)
    threading.Thread(target=hand_on, daemon=True).start()
    while piece := lab.recv(65536):
        os.write(1, piece)
"""


@contextmanager
def local_linux(folder: Path, linux: LinuxHost, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Gives the programs that were started. A connection to this computer meets what the simulated Linux serves."""
    started: list[str] = []
    known = {session_text(): "agent", probe_text(): "probe", serving_text(): "serving", boot_text(): "boot"}

    def connect(_: this_linux.ThisLinux, address: str, port: int, within: float) -> socket.socket:
        sshd = linux.find_sshd()
        found = sshd.connect(address, port) if sshd else None
        if found is None:
            raise TunnelRefused("Connection refused")
        return found

    class Answers(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            sshd = linux.find_sshd()
            if sshd is None:
                return
            program = known[json.loads(self.rfile.readline())]
            started.append(program)
            try:
                for line in self.rfile:
                    self.wfile.write(sshd.invoke(line.decode("ascii"), program=program).encode("ascii") + b"\n")
            except (HostDown, OSError):
                return

    class Listening(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False

    with Listening(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        program = folder / "python3"
        program.write_text(PROGRAM.format(python=sys.executable, port=server.server_address[1]), encoding="utf-8")
        program.chmod(0o755)
        monkeypatch.setattr(this_linux, "_PATH", f"{folder}:{this_linux._PATH}")
        monkeypatch.setattr(this_linux.ThisLinux, "tunnel", connect)
        yield started
        server.shutdown()
