"""Reading a whole host starts no C# compiler: Add-Type starts csc.exe, which takes seconds and which guards report."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.powershell.twins import Scripts, contract, machine, scripts
from tests.rows import each_row
from winhost.lab.physics.simulated_machine import Machine
from winhost.resources.registry import WINDOWS_STATES
from winhost.resources.windows.windows_scripts import agent_text

HOSTS = (
    "not-administrator", "server2022-cluster", "server2025-german", "server2025-several-disks", "win11-free-space",
    "win11-laptop-shrink-held", "win11-pro-1gpu", "win11-rst-bitlocker",
)  # fmt: skip
EVERYTHING = [{"resource": state.resource_type.name, "verb": "get"} for state in WINDOWS_STATES]
BY_NAME = {"FirmwareBoot": {}, "RunningSystem": {}}
DATA = {"accept": ["data"]}


def compiling() -> list[str]:
    """The functions of the agent that compile before they do anything else."""
    bodies = re.split(r"(?m)^function ", agent_text())
    return [body.split(" ")[0] for body in bodies if re.search(r"(?m)^    Import-WinhostNative$", body)]


@pytest.fixture(scope="module")
def engine() -> Iterator[Scripts]:
    """With the lab's stand-ins for what compiles replaced by an error that says so."""
    with scripts() as running:
        assert "Read-WinhostFirmwareVariable" in compiling()
        assert "Read-WinhostVolumeFiles" in compiling()
        for name in (*compiling(), "Import-WinhostNative", "Add-Type"):
            running.run(f"function {name} {{ throw 'compiled by {name}' }}")
        yield running


def read(engine: Scripts, on: Machine, *calls: dict[str, Any]) -> str:
    return json.dumps(engine.answers(on, *calls))


@each_row("name", HOSTS)
def test_a_whole_host_is_read_without_compiling(engine: Scripts, name: str) -> None:
    assert re.findall(r"compiled by [\w-]+", read(engine, machine(name), *EVERYTHING)) == []


@each_row(("resource", "key"), BY_NAME.items())
def test_what_is_asked_for_by_name_may_compile(engine: Scripts, resource: str, key: dict[str, str]) -> None:
    assert "compiled by" in read(engine, machine("win11-pro-1gpu"), {"resource": resource, "verb": "get", "key": key})


def test_what_winhost_made_in_firmware_and_on_volumes_is_read_as_it_is(engine: Scripts) -> None:
    host = machine("win11-free-space")
    (guid,) = (r.key["partition"] for r in host.instances("EfiVolume"))
    kept = {"resource": "EfiBackup", "verb": "set", "key": {"partition": guid}, "desired": {"kept": True}, "how": DATA}
    assert contract(host, kept)[0]["ok"]
    assert "compiled by Read-WinhostVolumeFiles" in read(engine, host, {"resource": "EfiBackup", "verb": "get"})
