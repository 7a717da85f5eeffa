"""Files of a model: from a hub on loopback, or from a folder, for real."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.linux.hub import REVISION, TOKEN, Hub, line_of, serving
from tests.linux.sandbox import Sandbox
from winhost.connect.agent import Agent
from winhost.connect.wire_errors import RemoteError
from winhost.core.undo import find_undo
from winhost.resources.linux.models import NO_MODEL
from winhost.resources.registry import RULES

pytestmark = pytest.mark.real

FOLDER = "/var/lib/models/test"
KEY = {"folder": FOLDER}
WEIGHTS, CONFIG = "model-00001.safetensors", "sub/config.json"


@pytest.fixture
def hub(sandbox: Sandbox) -> Iterator[Hub]:
    sandbox.run("rm", "-rf", FOLDER, "/var/lib/winhost/models")
    with serving(Hub({WEIGHTS: os.urandom(3 << 20), CONFIG: b"{}\n", "empty": b""})) as made:
        yield made


def desired(hub: Hub, **more: Any) -> dict[str, Any]:
    return {"source": hub.source, "revision": REVISION, "files": hub.lines(), "token": None, **more}


def change(agent: Agent, wanted: dict[str, Any], secret: str | None = None) -> Any:
    return agent.set("ModelFiles", KEY, wanted, {}, {} if secret is None else {"secret": secret})


def refused(agent: Agent, wanted: dict[str, Any], secret: str | None = None) -> str:
    with pytest.raises(RemoteError) as caught:
        change(agent, wanted, secret)
    assert TOKEN not in str(caught.value)
    return caught.value.fault.code


def there(sandbox: Sandbox) -> set[str]:
    root = sandbox.path(FOLDER)
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def undo(answer: Any, wanted: dict[str, Any]) -> Any:
    before = {name: answer.before[name] for name in wanted}
    return find_undo(RULES["ModelFiles"], before, answer.after, answer.after)


def test_files_come_are_known_again_and_go(agent: Agent, sandbox: Sandbox, hub: Hub) -> None:
    assert agent.get("ModelFiles", KEY) == NO_MODEL
    answer = change(agent, desired(hub))
    assert answer.after == desired(hub)
    assert {path: sandbox.path(f"{FOLDER}/{path}").read_bytes() for path in there(sandbox)} == hub.files
    asked = len(hub.asked)
    assert change(agent, desired(hub)).after == answer.after
    assert len(hub.asked) == asked, "the second time nothing is asked"
    assert [record.key for record in agent.read(["ModelFiles"])["ModelFiles"]] == [KEY]
    back = undo(answer, desired(hub))
    assert back == {"source": None}
    assert change(agent, back).after == NO_MODEL
    assert not sandbox.path(FOLDER).exists()


def test_the_token_stays_with_its_host(agent: Agent, sandbox: Sandbox, hub: Hub) -> None:
    hub.locked = True
    wanted = desired(hub, token="env:HF_TOKEN")
    assert refused(agent, wanted) == refused(agent, wanted, "hf_another") == "Winhost.HubRefused"
    hub.asked.clear()
    assert change(agent, wanted, TOKEN).after["token"] == "env:HF_TOKEN"
    assert {given for host, _, _, given in hub.asked if host == "hub"} == {f"Bearer {TOKEN}"}
    assert {given for host, _, _, given in hub.asked if host == "elsewhere"} == {None}
    assert sandbox.run("grep", "-rlFe", TOKEN, "/var/lib", "/run", "/etc").stdout == ""
    change(agent, {"source": None})


@pytest.mark.parametrize("fails", [["cut"], ["cut", 503, "cut"], [429, 429], [500]])
def test_what_breaks_off_is_gone_on_with(agent: Agent, hub: Hub, fails: list[Any]) -> None:
    hub.fails += fails
    assert change(agent, desired(hub)).after == desired(hub)
    if "cut" in fails:
        assert f"bytes={(3 << 20) // 2}-" in {at for _, _, at, _ in hub.asked}
    change(agent, {"source": None})


def test_a_download_goes_on_where_a_run_before_it_ended(agent: Agent, sandbox: Sandbox, hub: Hub) -> None:
    hub.fails += ["cut", 404]
    assert refused(agent, desired(hub)) == "Winhost.NoSuchFile"
    assert agent.get("ModelFiles", KEY) == desired(hub, files=[])
    hub.asked.clear()
    change(agent, desired(hub))
    assert hub.asked[0][2] == f"bytes={(3 << 20) // 2}-"
    change(agent, {"source": None})


def test_what_has_another_hash_never_takes_its_place(agent: Agent, sandbox: Sandbox, hub: Hub) -> None:
    hub.fails += ["wrong"]
    assert refused(agent, desired(hub)) == "Winhost.NotThisFile"
    assert there(sandbox) == set()
    assert change(agent, desired(hub)).after == desired(hub)
    change(agent, {"source": None})


def test_what_broke_off_is_taken_back_whole(agent: Agent, sandbox: Sandbox, hub: Hub) -> None:
    hub.fails += [200, 404]
    wanted = desired(hub, files=hub.lines(CONFIG, WEIGHTS))
    hub.fails[:] = ["wrong"]
    hub.files = {CONFIG: b"aa", WEIGHTS: hub.files[WEIGHTS]}
    wanted["files"] = hub.lines()
    hub.fails += [404]
    assert refused(agent, wanted) == "Winhost.NoSuchFile"
    assert there(sandbox) == {CONFIG}
    assert change(agent, {"source": None}).after == NO_MODEL
    assert not sandbox.path(FOLDER).exists()


def test_there_must_be_room(agent: Agent, hub: Hub) -> None:
    huge = f"sha256:{'0' * 64} {10**15 - 1} {WEIGHTS}"
    assert refused(agent, desired(hub, files=[huge])) == "Winhost.NoRoom"
    assert hub.asked == []


def test_files_of_others_stay(agent: Agent, sandbox: Sandbox, hub: Hub) -> None:
    sandbox.write(f"{FOLDER}/{CONFIG}", "theirs")
    assert refused(agent, desired(hub)) == "Winhost.NotOurs"
    sandbox.path(f"{FOLDER}/{CONFIG}").write_bytes(hub.files[CONFIG])  # the same file, brought by them
    sandbox.write(f"{FOLDER}/notes", "theirs")
    change(agent, desired(hub))
    sandbox.path(f"{FOLDER}/empty").write_text("changed since")
    answer = change(agent, {"source": None})
    assert answer.warnings == ("empty was changed since; it stays.",)
    assert there(sandbox) == {CONFIG, "notes", "empty"}


def test_a_file_of_ours_that_was_damaged_is_brought_again(agent: Agent, sandbox: Sandbox, hub: Hub) -> None:
    change(agent, desired(hub))
    sandbox.path(f"{FOLDER}/{WEIGHTS}").write_bytes(b"damaged")
    assert agent.get("ModelFiles", KEY) == desired(hub, files=hub.lines(CONFIG, "empty"))
    assert change(agent, desired(hub)).after == desired(hub)
    newer = hub.lines(WEIGHTS)
    assert change(agent, {"files": newer}).after["files"] == newer
    assert there(sandbox) == {WEIGHTS}, "what is not wanted any more goes"
    change(agent, {"source": None})


def test_a_folder_is_copied(agent: Agent, sandbox: Sandbox, hub: Hub) -> None:
    data = os.urandom(1000)
    sandbox.write("/var/source/a", "")
    sandbox.path("/var/source/a").write_bytes(data)
    wanted = {"source": "/var/source", "revision": None, "files": [line_of("a", data)], "token": None}
    assert change(agent, wanted).after == wanted
    assert sandbox.path(f"{FOLDER}/a").read_bytes() == data
    change(agent, {"source": None})
    assert sandbox.path("/var/source/a").exists()


HOSTILE = [f"sha256:{'0' * 64} 1 {path}" for path in ("../passwd", "/etc/passwd", "a/../../b", "a//b", ".winhost/x")]


@pytest.mark.parametrize("files", [*([each] for each in HOSTILE), [], [HOSTILE[0], "x"], ["md5:0 1 a"]])
def test_what_leads_out_of_the_folder_is_refused(agent: Agent, hub: Hub, files: list[str]) -> None:
    assert refused(agent, desired(hub, files=files)) == "Winhost.BadRequest"


@pytest.mark.parametrize("folder", ["/etc/x", "/srv", "/srv/../etc", "/usr/lib/x", "srv/x", "/srv/a b"])
def test_not_every_folder_is_one_for_models(agent: Agent, folder: str) -> None:
    with pytest.raises(RemoteError, match=r"no place|path of a folder"):
        agent.get("ModelFiles", {"folder": folder})


def test_a_link_is_not_followed(agent: Agent, sandbox: Sandbox, hub: Hub) -> None:
    sandbox.path("/var/lib/models").mkdir(exist_ok=True)
    sandbox.path(FOLDER).symlink_to("/etc")
    assert refused(agent, desired(hub)) in ("ELOOP", "ENOTDIR")
    sandbox.path(FOLDER).unlink()
