"""Packed models by the real agent in a sandbox. A stand-in for podman does what the engine's Python would."""

import hashlib
from typing import Any

import pytest

from tests.linux.sandbox import Sandbox
from tests.linux.standins import put_program
from winhost.connect.agent import Agent
from winhost.connect.wire_errors import RemoteError
from winhost.core.undo import find_undo
from winhost.resources.linux.models import NO_PACKED_MODEL
from winhost.resources.registry import RULES

pytestmark = pytest.mark.real

SOURCE, FOLDER = "/srv/winhost/models/test", "/srv/winhost/models/test--packed"
KEY = {"folder": FOLDER}
NAMES = ("model-1.safetensors", "model-2.safetensors")
# MOST: files that it packs before it fails; OTHER: it says that they were made of another file.
PODMAN = """\
#!/usr/bin/python3
import hashlib, json, pathlib, sys
source, folder, most, other = pathlib.Path(sys.argv[-2]), pathlib.Path(sys.argv[-1]), int(sys.argv[2]), sys.argv[3]
for number, path in enumerate(sorted(source.glob("*.safetensors"))):
    if number == most:
        print("{'a library': 'talks'}")
        print(json.dumps({"error": "nvCOMP decoded something else than it had packed"}))
        sys.exit(1)
    if not (folder / path.name).exists():
        made_of = hashlib.sha256(path.read_bytes() + other.encode()).hexdigest()
        text = json.dumps({"__metadata__": {"winhost.packed": json.dumps({"sha256": made_of})}}).encode()
        (folder / path.name).write_bytes(len(text).to_bytes(8, "little") + text)
"""


@pytest.fixture(autouse=True)
def _model(sandbox: Sandbox) -> None:
    sandbox.run("rm", "-rf", "/srv/winhost", "/var/lib/winhost/packed")
    sandbox.run("groupadd", "--system", "winhost-engines")
    put_program(sandbox.root, "podman", PODMAN)
    for name in NAMES:
        sandbox.write(f"{SOURCE}/{name}", name)


def desired(most: int = 9, other: str = "") -> dict[str, Any]:
    files = [f"sha256:{hashlib.sha256(name.encode()).hexdigest()} {len(name)} {name}" for name in NAMES]
    return {"source": SOURCE, "files": files, "command": ["podman", "run", str(most), other, SOURCE, FOLDER]}


def change(agent: Agent, wanted: dict[str, Any]) -> Any:
    return agent.set("PackedModel", KEY, wanted, {}, {})


def refused(agent: Agent, wanted: dict[str, Any]) -> RemoteError:
    with pytest.raises(RemoteError) as caught:
        change(agent, wanted)
    return caught.value


def there(sandbox: Sandbox) -> list[str]:
    return sorted(path.name for path in sandbox.path(FOLDER).glob("*"))


def test_it_is_packed_known_again_and_taken_away(agent: Agent, sandbox: Sandbox) -> None:
    assert agent.get("PackedModel", KEY) == NO_PACKED_MODEL
    answer = change(agent, desired())
    assert answer.after == desired()
    assert there(sandbox) == [*NAMES]
    assert [record.key for record in agent.read(["PackedModel"])["PackedModel"]] == [KEY]
    undone = find_undo(RULES["PackedModel"], dict.fromkeys(desired()), answer.after, answer.after)
    assert undone == {"source": None}
    assert change(agent, {"source": None}).after == NO_PACKED_MODEL
    assert there(sandbox) == []
    assert sandbox.path(f"{SOURCE}/{NAMES[0]}").exists(), "the original stays"


def test_what_broke_off_is_gone_on_with(agent: Agent, sandbox: Sandbox) -> None:
    error = refused(agent, desired(most=1))
    assert "nvCOMP decoded something else" in str(error)
    first = sandbox.path(f"{FOLDER}/{NAMES[0]}").stat()
    assert agent.get("PackedModel", KEY)["files"] == []
    assert change(agent, desired()).after == desired()
    assert sandbox.path(f"{FOLDER}/{NAMES[0]}").stat().st_mtime_ns == first.st_mtime_ns


def test_a_file_that_changed_since_does_not_count(agent: Agent, sandbox: Sandbox) -> None:
    change(agent, desired())
    sandbox.path(f"{FOLDER}/{NAMES[1]}").write_bytes(b"x")
    assert agent.get("PackedModel", KEY)["files"] == desired()["files"][:1]
    assert refused(agent, desired()).fault.code == "Winhost.NotThisFile"


def test_one_that_was_made_of_another_file_is_not_taken(agent: Agent) -> None:
    assert refused(agent, desired(other="x")).fault.code == "Winhost.NotThisFile"
    assert agent.get("PackedModel", KEY)["files"] == []


def test_room_is_checked_before_anything_is_there(agent: Agent, sandbox: Sandbox) -> None:
    wanted = desired()
    wanted["files"][0] = wanted["files"][0].replace(f" {len(NAMES[0])} ", f" {10**15 - 1} ")
    assert refused(agent, wanted).fault.code == "Winhost.NoRoom"
    assert there(sandbox) == []


def test_a_folder_of_others_stays(agent: Agent, sandbox: Sandbox) -> None:
    sandbox.write(f"{FOLDER}/theirs", "x")
    assert refused(agent, desired()).fault.code == "Winhost.NotOurs"
    assert there(sandbox) == ["theirs"]


def test_only_the_packers_run(agent: Agent) -> None:
    assert refused(agent, {**desired(), "command": ["python3", "-c", "1"]}).fault.code == "Winhost.BadRequest"
