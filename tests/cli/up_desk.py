"""Stand-ins for tests of `winhost up`: a hub with every model, and a simulated Windows as this machine."""

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.connect.local_powershell import local_powershell
from tests.hub.stand_in_hub import StandInHub, serving
from winhost.lab.hostfile import find
from winhost.lab.running_lab import Lab

IMAGE = ("--engine-image", "registry.example.com/vllm/vllm-openai:v0.33.0", "--digest", f"sha256:{'a' * 64}")
SIZE = 5_000_000_000


class HubOfAll(StandInHub):
    """A hub with every model."""

    def answer(self, path: str, given: str | None, span: str | None) -> tuple[int, dict[str, str], bytes]:
        named = re.match(r"/(?:api/models/)?([^/]+/[^/?]+)", unquote(path))
        assert named
        self.model = named[1]
        return super().answer(path, given, span)


@contextmanager
def hub_of_all() -> Iterator[StandInHub]:
    files = {"config.json": b"{}", "model.safetensors": bytes(5000)}
    with serving(HubOfAll(files=files, sizes={"model.safetensors": SIZE})) as hub:
        yield hub


@dataclass
class Desk:
    """This machine as a simulated Windows. serves: options of up that replace the internet; calls: those of its
    powershell.exe.
    """

    lab: Lab
    name: str
    serves: tuple[str, ...]
    calls: list[list[str]]

    def state(self) -> str:
        return json.dumps(self.lab.hosts[self.name].machine.comparable_state(), sort_keys=True, default=str)


@contextmanager
def desk(folder: Path, monkeypatch: pytest.MonkeyPatch, host: str = "win11-pro-1gpu") -> Iterator[Desk]:
    """Make a simulated Windows answer as the machine that winhost runs on."""
    programs = folder / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    with Lab([find(host)], folder / "lab", scale=0.001) as lab, hub_of_all() as hub:
        ((name, simulated),) = lab.hosts.items()
        with local_powershell(programs, simulated) as calls:
            yield Desk(lab, name, ("--hub", hub.url, *IMAGE), calls)


def fleet_of(desk: Desk, folder: Path, name: str = "desk") -> None:
    """Write a fleet file with the address of the simulated distro, and without a key."""
    port = desk.lab.ssh_endpoints[desk.name].port
    text = f"schema: winhost.fleet/1\nhosts:\n  {name}:\n    address: localhost\n"
    (folder / "fleet.yaml").write_text(f"{text}    ssh: {{port: {port}, address: 127.0.0.1}}\n", encoding="utf-8")


def without_keys(lab: Lab) -> Path:
    """Remove the SSH keys of the Windows hosts from the fleet file of a lab."""
    text = lab.fleet_file.read_text("utf-8")
    hosts = text.split('\n  "')
    kept = [each if "kind: linux" in each else re.sub(r"\n      key: .*", "", each) for each in hosts]
    lab.fleet_file.write_text('\n  "'.join(kept), encoding="utf-8")
    return lab.fleet_file
