"""A real Debian that serves: engine and gateway as units, and `winhost serve` on the command line."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.linux.debian import INSIDE, Debian
from tests.linux.test_debian_gateway import LINE, METRICS_KEY, converge
from winhost.connect.agent import Agent

KEY_VARIABLE, METRICS_VARIABLE = "DEBIAN_KEY", "DEBIAN_METRICS_KEY"
NAME = "serve-01"
MODEL = "org/tiny"
GATEWAY = "winhost-gateway.service"
ENGINE = "winhost-engine-tiny.service"
SOCKET = "/run/winhost-engines/tiny/engine.sock"
# As engines are installed: nobody else's network, and a folder that the gateway's group alone may enter.
UNIT = """\
[Service]
User=engine
Group=winhost-engines
UMask=0007
RuntimeDirectory=winhost-engines/tiny
RuntimeDirectoryMode=0750
StateDirectory=engine
Environment=HOME=/var/lib/engine
PrivateNetwork=yes
Restart=on-failure
RestartSec=1
TimeoutStopSec=60
"""


@dataclass
class Said:
    code: int
    out: str
    err: str

    @property
    def result(self) -> Any:
        (result,) = json.loads(self.out)["results"]
        return result


@dataclass
class Serving:
    """The command line for the Debian. key: an API key of its gateway."""

    debian: Debian
    folder: Path
    key: str

    def __call__(self, *words: str) -> Said:
        done = subprocess.run([*self.command, *words], capture_output=True, text=True, env=self.environ, timeout=600)
        return Said(done.returncode, done.stdout, done.stderr)

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", "winhost", "serve"]

    @property
    def environ(self) -> dict[str, str]:
        return {
            **os.environ,
            "WINHOST_FLEET": str(self.folder / "fleet.yaml"),
            KEY_VARIABLE: self.key,
            METRICS_VARIABLE: METRICS_KEY,
        }


def furnished(debian: Debian, asked: Agent, folder: Path, key: str, version: str, unit: str) -> Serving:
    """Install engine and gateway. unit: additional lines for the engine's unit."""
    debian.run("useradd", "--system", "--no-create-home", "engine")
    limits = {"hold": 2, "drain": 20}
    model = {"name": MODEL, "engine": {"socket": SOCKET}, "served_as": "tiny"}
    place = {"listen": {"address": "127.0.0.1", "port": 8443}, "models": [model], "limits": limits}
    converge(asked, place)
    (debian.root / "etc/systemd/system" / ENGINE).write_text(UNIT + unit)
    engine = {"model": MODEL, "served_name": "tiny", "slug": "tiny", "unit": ENGINE, "socket": SOCKET}
    engine |= {"image": None, "version": version, "profile": "bare-metal", "gpus": []}
    gateway = {"unit": GATEWAY, "listen": "127.0.0.1:8443", "tls": False}
    told = debian.root / "etc/winhost/serving.json"
    told.parent.mkdir(exist_ok=True)
    told.write_text(json.dumps({"format": 1, "engines": [engine], "gateway": gateway}))
    debian.run("systemctl", "daemon-reload")
    debian.run("systemctl", "stop", GATEWAY)
    host_key = (debian.root / "etc/ssh/ssh_host_ed25519_key.pub").read_text().strip()
    ssh = {"user": "root", "key": f"file:{debian.key}", "host_key": host_key}
    host = {"kind": "linux", "address": INSIDE, "ssh": ssh}
    fleet = {"schema": "winhost.fleet/1", "hosts": {NAME: host}}
    (folder / "fleet.yaml").write_text(json.dumps(fleet))
    return Serving(debian, folder, key)


__all__ = [
    "ENGINE",
    "GATEWAY",
    "KEY_VARIABLE",
    "LINE",
    "METRICS_VARIABLE",
    "MODEL",
    "NAME",
    "SOCKET",
    "Serving",
    "furnished",
]
