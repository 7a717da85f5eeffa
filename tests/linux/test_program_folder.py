"""The files of a program are installed and removed together, and other files in their folder stay."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.errors import raises
from tests.linux.sandbox import Sandbox
from winhost.connect.agent import Agent

AROUND = "/opt/winhost/gateway-2222222222222222"
FOLDER = f"{AROUND}/gateway"
NOTHING = {"files": None, "only_root": None}


def put(agent: Agent, files: Mapping[str, str] | None) -> Mapping[str, Any]:
    desired = {"files": files, "only_root": None if files is None else True}
    return agent.set("LinuxFolder", {"path": FOLDER}, desired, {}, {}).after


def found(agent: Agent) -> Mapping[str, Any]:
    return agent.get("LinuxFolder", {"path": FOLDER}) or {}


@pytest.fixture(autouse=True)
def _nothing_there(sandbox: Sandbox) -> Iterator[None]:
    yield
    sandbox.run("rm", "-rf", AROUND)


def test_whoever_looks_finds_all_files_or_none_and_nothing_is_left(agent: Agent, sandbox: Sandbox) -> None:
    assert put(agent, {"a.py": "1\n", "b.py": ""}) == {"files": {"a.py": "1\n", "b.py": ""}, "only_root": True}
    assert {each.name for each in sandbox.path(AROUND).iterdir()} == {"gateway"}
    assert put(agent, {"b.py": "2\n"})["files"] == {"b.py": "2\n"}
    assert {each.name for each in sandbox.path(AROUND).iterdir()} == {"gateway"}
    assert put(agent, None) == NOTHING
    assert not sandbox.path(AROUND).exists()


def test_what_a_killed_change_left_goes_with_the_next(agent: Agent, sandbox: Sandbox) -> None:
    for name in ("gateway.winhost-0123", "gateway.winhost-4567.old"):
        sandbox.write(f"{AROUND}/{name}/a.py", "a part")
    assert found(agent) == NOTHING
    put(agent, {"a.py": "1\n"})
    assert {each.name for each in sandbox.path(AROUND).iterdir()} == {"gateway"}


def test_the_folder_around_it_stays_while_something_is_in_it(agent: Agent, sandbox: Sandbox) -> None:
    put(agent, {"a.py": "1\n"})
    sandbox.write(f"{AROUND}/settings.json", "{}")
    put(agent, None)
    assert sandbox.path(f"{AROUND}/settings.json").read_text() == "{}"


@pytest.mark.parametrize("name", ["notes.txt", "unknown", "a.py/more", "a.sh"])
def test_with_something_of_others_in_it_it_is_unknown_and_stays(agent: Agent, sandbox: Sandbox, name: str) -> None:
    put(agent, {"b.py": "1\n"})
    sandbox.write(f"{FOLDER}/{name}", "theirs")
    assert set(found(agent)["files"]) == {"unknown"}
    for files in ({"b.py": "2\n"}, None):
        with raises("RemoteError"):
            put(agent, files)
    assert sandbox.path(f"{FOLDER}/{name}").read_text() == "theirs"
    assert sandbox.path(f"{FOLDER}/b.py").read_text() == "1\n"


@pytest.mark.parametrize("changed", [FOLDER, f"{FOLDER}/a.py"])
def test_that_others_may_write_is_seen_and_mended(agent: Agent, sandbox: Sandbox, changed: str) -> None:
    put(agent, {"a.py": "1\n"})
    sandbox.run("chmod", "go+w", changed)
    assert found(agent) == {"files": {"a.py": "1\n"}, "only_root": False}
    assert put(agent, {"a.py": "1\n"})["only_root"] is True


def test_a_link_is_no_folder(agent: Agent, sandbox: Sandbox) -> None:
    sandbox.write("/opt/elsewhere/a.py", "theirs")
    sandbox.run("sh", "-c", f"mkdir -p {AROUND}; ln -s /opt/elsewhere {FOLDER}")
    with raises("RemoteError"):
        found(agent)
    assert sandbox.path("/opt/elsewhere/a.py").read_text() == "theirs"
