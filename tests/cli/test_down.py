"""winhost down says which data are deleted before it asks for consent."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from tests.rows import each_row
from winhost.cli.up.down import deletions
from winhost.core.answers import Record
from winhost.core.steps import Step
from winhost.lab.hostfile import expand, find
from winhost.resources.host import HostFacts

DISTRO, DISK = {"account": "winhost", "distro": "llm"}, {"name": "llm"}
SIZES: dict[str, tuple[Any, str]] = {
    "read": (6_500_000_000, " has 6.5 GB. "),
    "could not be read": ({"unknown": {"category": "PermissionDenied", "message": "denied"}}, " is not known. "),
    "not there yet": ({"unavailable": "Wsl"}, " is not known. "),
    "no file": (None, " is not known. "),
    "nothing seen of it": (0, " is not known. "),
}


def _told(resource: str, key: dict[str, str], state: dict[str, Any]) -> str:
    facts, _ = expand(find("win11-pro-1gpu"))
    there = {**facts.resources, resource: (Record(state, key),)}
    host = HostFacts(replace(facts, resources=there))
    gone = {"installed": False} if resource == "WslDistro" else {"made": False}
    step = Step("1", resource, key, "undo", {}, gone, "distro llm", "")
    (said,) = deletions(SimpleNamespace(stages=()), (step,), host)  # type: ignore[arg-type] - it downloaded no model
    return said


@each_row("name", SIZES)
def test_each_disk_is_told_with_its_size_and_where_it_is_exported_to(name: str) -> None:
    size, says = SIZES[name]
    distro = {"installed": True, "running": True, "image": "1" * 64, "folder": "C:\\x", "file_size": size, "others": 0}
    told = _told("WslDistro", DISTRO, distro)
    assert f"disk ext4.vhdx{says}It is exported first" in told, told
    assert told.endswith("to a .tar in %ProgramData%\\winhost\\exports\\winhost")
    disk = {"made": True, "image": "1" * 64, "size": 64 << 30, "file_size": size, "path": "C:\\x", "vm": None}
    told = _told("VmDisk", DISK, disk)
    assert f"its file{says}It is not exported" in told, told
