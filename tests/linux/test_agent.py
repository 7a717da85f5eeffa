"""The real agent, and resources that need no systemd, in a sandbox."""

import json
import shutil
import stat
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.linux.sandbox import Sandbox
from tests.processes import PATIENCE_S, wait_for
from winhost.connect.agent import Agent
from winhost.connect.wire_errors import Drifted, NotAvailable, RemoteError
from winhost.core.answers import Unavailable
from winhost.core.undo import Keep, find_undo
from winhost.resources.linux.linux_scripts import session_text
from winhost.resources.registry import LINUX_STATES, RULES

pytestmark = pytest.mark.real

FILE = "/etc/systemd/network/winhost.d/winhost.conf"
NONE = {"text": None, "link": None, "mode": None, "owner": None}
OURS = {"text": "{}\n", "link": None, "mode": "0644", "owner": "root:root"}


def put(agent: Agent, path: str, desired: dict[str, Any], expect: dict[str, Any] | None = None) -> Any:
    return agent.set("LinuxFile", {"path": path}, desired, expect or {}, {})


@pytest.fixture
def no_file(sandbox: Sandbox) -> Iterator[str]:
    sandbox.path(FILE).unlink(missing_ok=True)
    yield FILE
    sandbox.path(FILE).unlink(missing_ok=True)


# ---- the protocol


def test_every_resource_is_read_at_once_and_fits_its_state(agent: Agent) -> None:
    answers = agent.read([state.resource_type.name for state in LINUX_STATES])
    for state in LINUX_STATES:
        answer = answers[state.resource_type.name]
        if isinstance(answer, Unavailable):
            assert state.resource_type.name in (
                "SystemdUnit",
                "EngineUnit",
                "ServingReady",
                "CdiSpec",
                "ContainerImage",
                "ClusterNode",
                "ClusterObjects",
                "PackedModel",
            )
            continue
        assert isinstance(answer, tuple), answer
        if not answer:
            # None is plugged in, and none is known before a plan names it.
            elsewhere = state.resource_type.name in ("DataDisk", "LinuxFolder")
            made = state.resource_type.absent is not None or elsewhere
            assert made or not state.resource_type.sets, "there is none, and none can be made"
            continue
        assert {tuple(record.key) for record in answer} == {state.resource_type.key}
        assert {frozenset(record.state) for record in answer} == {frozenset(state.__annotations__)}


def test_what_a_set_answers_is_what_was_and_what_is(agent: Agent, no_file: str) -> None:
    answer = put(agent, no_file, {"text": "{}\n"}, NONE)
    assert (answer.before, answer.after) == (NONE, OURS)


def test_a_set_of_what_is_so_already_writes_nothing(agent: Agent, sandbox: Sandbox, no_file: str) -> None:
    put(agent, no_file, {"text": "{}\n"})
    before = sandbox.path(no_file).stat().st_ino
    put(agent, no_file, OURS)
    assert sandbox.path(no_file).stat().st_ino == before


def test_drift_is_told_and_changes_nothing(agent: Agent, sandbox: Sandbox, no_file: str) -> None:
    sandbox.write(no_file, "theirs")
    with pytest.raises(Drifted) as caught:
        put(agent, no_file, {"text": "ours"}, {"text": None})
    assert caught.value.differences == {"text": (None, "theirs")}
    assert sandbox.path(no_file).read_text() == "theirs"


def test_a_change_leaves_its_mark_and_one_that_is_not_begun_none(agent: Agent, sandbox: Sandbox, no_file: str) -> None:
    def put_marked(desired: dict[str, Any], expect: dict[str, Any], mark: str) -> None:
        agent.set("LinuxFile", {"path": no_file}, desired, expect, {"mark": mark})

    with pytest.raises(Drifted):
        put_marked({"text": "ours"}, {"text": "theirs"}, "drifted")
    assert agent.marks("linux") == ()
    put_marked({"text": "ours"}, {"text": None}, "one")
    put_marked({"text": "ours"}, {"text": "ours"}, "nothing to do")
    put_marked({"text": "more"}, {"text": "ours"}, "two")
    assert agent.marks("linux") == ("one", "two")
    file = sandbox.path("/var/lib/winhost/marks.txt")
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("one\ntwo\n", 0o600)
    with pytest.raises(Drifted):
        agent.keep_marks("linux", [], ["one"])
    agent.keep_marks("linux", ["two"], ["one", "two"])
    many = [f"{number} {'x' * 60_000}" for number in range(6)]
    agent.keep_marks("linux", many, ["two"])
    assert agent.marks("linux") == tuple(many[-4:])  # the oldest ones go
    agent.keep_marks("linux", [], many[-4:])
    assert not file.exists()


def test_marks_that_a_disk_damaged_stop_no_change(agent: Agent, sandbox: Sandbox, no_file: str) -> None:
    agent.set("LinuxFile", {"path": no_file}, {"text": "ours"}, {"text": None}, {"mark": "one"})
    file = sandbox.path("/var/lib/winhost/marks.txt")
    file.write_bytes(b"one\n\xff\x00\x00\n")
    assert agent.marks("linux") == ("one",)
    agent.set("LinuxFile", {"path": no_file}, {"text": "more"}, {"text": "ours"}, {"mark": "two"})
    assert file.read_text() == "one\ntwo\n"
    agent.keep_marks("linux", [], ["one", "two"])
    assert not file.exists()


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no such resource": ({"resource": "Nothing", "verb": "get"}, "Winhost.UnknownNoun"),
    "no such verb": ({"resource": "LinuxFile", "verb": "drop"}, "Winhost.BadRequest"),
    "half a key": ({"resource": "LinuxFile", "verb": "get", "key": {}}, "Winhost.BadRequest"),
    "a key that is no text": ({"resource": "LinuxFile", "verb": "get", "key": {"path": 1}}, "Winhost.BadRequest"),
    "a resource that is only read": (
        {"resource": "LinuxSystem", "verb": "set", "key": {}, "desired": {"id": "x"}},
        "Winhost.BadRequest",
    ),
    "a set without a request": (
        {"resource": "LinuxFile", "verb": "set", "key": {"path": FILE}},
        "Winhost.BadRequest",
    ),
    "a property that is not there": (
        {"resource": "LinuxFile", "verb": "set", "key": {"path": FILE}, "desired": {"colour": 1}},
        "Winhost.BadRequest",
    ),
    "a mode that is a number": (
        {"resource": "LinuxFile", "verb": "set", "key": {"path": FILE}, "desired": {"text": "x", "mode": 644}},
        "Winhost.BadRequest",
    ),
    "an owner that nobody is": (
        {"resource": "LinuxFile", "verb": "set", "key": {"path": FILE}, "desired": {"text": "x", "owner": "no:body"}},
        "Winhost.BadRequest",
    ),
    "a package that is an option": (
        {"resource": "DebianPackage", "verb": "get", "key": {"package": "--reinstall"}},
        "Winhost.BadRequest",
    ),
    "a source that is not ours": (
        {"resource": "AptSource", "verb": "get", "key": {"name": "debian"}},
        "Winhost.BadRequest",
    ),
}


def calls(agent: Agent, *asked: dict[str, Any]) -> list[dict[str, Any]]:
    text = agent.wire.invoke(json.dumps({"exclusive": False, "calls": asked}), 60)
    answers: list[dict[str, Any]] = json.loads(text)["answers"]
    return answers


@pytest.mark.parametrize(("call", "code"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_asked_is_refused(agent: Agent, no_file: str, call: dict[str, Any], code: str) -> None:
    (answer,) = calls(agent, call)
    assert (answer["ok"], answer["error"]["code"]) == (False, code)


def test_after_a_change_that_failed_no_other_is_begun(agent: Agent, sandbox: Sandbox, no_file: str) -> None:
    sandbox.write(no_file, "theirs")
    key = {"path": no_file}
    first = {"resource": "LinuxFile", "verb": "set", "key": key, "desired": {"owner": "no:body"}}
    second = {"resource": "LinuxFile", "verb": "set", "key": key, "desired": {"text": "ours"}}
    failed, skipped, read = calls(agent, first, second, {"resource": "LinuxFile", "verb": "get", "key": key})
    assert failed["after"]["text"] == "theirs"
    assert skipped["error"]["code"] == "Winhost.Skipped"
    assert read["state"]["text"] == "theirs"


def test_one_is_not_true(agent: Agent) -> None:
    with pytest.raises(Drifted):
        agent.set("AptSource", {"name": "winhost-docker"}, {"present": True}, {"present": 0}, {})


# ---- files


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_comes_through_and_goes_again(agent: Agent, sandbox: Sandbox, no_file: str, text: str) -> None:
    assert put(agent, no_file, {"text": text}).after["text"] == text
    assert sandbox.path(no_file).read_bytes() == text.encode("utf-8")
    put(agent, no_file, NONE)
    assert not sandbox.path(no_file).exists()


def test_half_a_character_is_refused_and_leaves_nothing(agent: Agent, sandbox: Sandbox, no_file: str) -> None:
    with pytest.raises(RemoteError) as caught:
        put(agent, no_file, {"text": "\ud800"})
    assert caught.value.fault.code == "UnicodeEncodeError"
    assert list(sandbox.path(FILE).parent.iterdir()) == []


NOT_OURS = (
    "/etc/passwd",
    "/etc/systemd/system/../../passwd",
    "/etc/systemd/system/a.d/../../../passwd",
    "/etc/systemd/system/..",
    "/etc/systemd/system//x",
    "/etc/systemd/system/",
    "/etc/systemd/system/a/b",
    "/etc/systemd/network/x\n",
    "/etc/docker/daemon.json/",
    "/etc/wsl.conf\0",
    "etc/wsl.conf",
)


@pytest.mark.parametrize("path", NOT_OURS)
def test_only_files_of_winhost_are_written(agent: Agent, path: str) -> None:
    with pytest.raises(RemoteError) as caught:
        put(agent, path, {"text": "x"})
    assert caught.value.fault.code == "Winhost.BadRequest"


def test_a_link_is_replaced_only_by_who_says_so_and_comes_back(agent: Agent, sandbox: Sandbox) -> None:
    sandbox.path("/etc/resolv.conf").unlink()
    sandbox.path("/etc/resolv.conf").symlink_to("../run/somewhere")
    with pytest.raises(RemoteError) as caught:
        put(agent, "/etc/resolv.conf", {"text": "nameserver 192.0.2.1\n"})
    assert caught.value.fault.code == "Winhost.WrongState"
    desired = {"text": "nameserver 192.0.2.1\n", "link": None, "mode": "0644", "owner": "root:root"}
    before = put(agent, "/etc/resolv.conf", desired).before
    assert not sandbox.path("/run/somewhere").exists()
    assert put(agent, "/etc/resolv.conf", dict(before)).after == {**NONE, "link": "../run/somewhere"}


def test_a_folder_that_is_a_link_is_not_followed(agent: Agent, sandbox: Sandbox) -> None:
    sandbox.path("/etc/elsewhere").mkdir()
    shutil.rmtree(sandbox.path("/etc/cdi"), ignore_errors=True)  # this machine may have one
    sandbox.path("/etc/cdi").symlink_to("elsewhere")
    with pytest.raises(RemoteError) as caught:
        put(agent, "/etc/cdi/x.yaml", {"text": "x"})
    assert caught.value.fault.code in ("ELOOP", "ENOTDIR")
    assert list(sandbox.path("/etc/elsewhere").iterdir()) == []


def test_what_is_no_text_is_unknown_and_is_not_overwritten(agent: Agent, sandbox: Sandbox, no_file: str) -> None:
    sandbox.write(no_file, "")
    sandbox.path(no_file).write_bytes(b"\xff\xfe")
    state = agent.get("LinuxFile", {"path": no_file}) or {}
    assert state["text"]["unknown"]["code"] == "UnicodeDecodeError"
    with pytest.raises(RemoteError):
        put(agent, no_file, {"text": "x"})
    assert sandbox.path(no_file).read_bytes() == b"\xff\xfe"


def test_mode_and_owner_stay_where_nobody_asks_for_others(agent: Agent, sandbox: Sandbox, no_file: str) -> None:
    sandbox.write(no_file, "theirs", 0o600)
    assert put(agent, no_file, {"text": "ours"}).after["mode"] == "0600"
    assert put(agent, no_file, {"mode": "0640"}).after["mode"] == "0640"
    assert stat.S_IMODE(sandbox.path(no_file).stat().st_mode) == 0o640


def test_a_drop_in_that_sshd_refuses_is_taken_back(agent: Agent, sandbox: Sandbox) -> None:
    if not sandbox.path("/usr/sbin/sshd").exists():
        pytest.skip("there is no sshd here")
    sandbox.path("/run/sshd").mkdir(exist_ok=True)
    path = "/etc/ssh/sshd_config.d/10-winhost.conf"
    put(agent, path, {"text": "PasswordAuthentication no\n"})
    with pytest.raises(RemoteError) as caught:
        put(agent, path, {"text": "PasswordAuthentication perhaps\n"})
    assert caught.value.fault.cmdlet == "sshd"
    assert sandbox.path(path).read_text() == "PasswordAuthentication no\n"
    sandbox.path(path).unlink()


# ---- CDI, with a stand-in for NVIDIA's tool: it lists what is in the driver store

CTK = """\
#!/bin/sh
store() { echo "---"; for file in /usr/lib/wsl/drivers/*/*; do echo "- hostPath: $file"; done; }
case "$*" in
*list*) if [ -e /run/cdi/nvidia.yaml ]; then echo nvidia.com/gpu=all; fi ;;
*--output=*)
    touch /run/begun
    while [ -e /run/slow ]; do sleep 0.05; done
    mkdir -p /run/cdi
    store > /run/cdi/nvidia.yaml ;;
*generate*) store ;;
esac
"""


@pytest.fixture
def toolkit(sandbox: Sandbox) -> Iterator[Sandbox]:
    sandbox.write("/usr/bin/nvidia-ctk", CTK, 0o755)
    sandbox.write("/usr/lib/wsl/drivers/nv_dispi.inf_amd64_1/libcuda.so.1.1", "")
    yield sandbox
    for path in ("/run/slow", "/run/begun", "/run/cdi/nvidia.yaml", "/usr/bin/nvidia-ctk"):
        sandbox.path(path).unlink(missing_ok=True)


def test_without_its_tool_cdi_is_unavailable(agent: Agent) -> None:
    with pytest.raises(NotAvailable) as caught:
        agent.get("CdiSpec", {})
    assert caught.value.needs == "DebianPackage"


def test_a_spec_is_stale_when_the_driver_store_moved_though_the_old_one_is_still_there(
    agent: Agent, toolkit: Sandbox
) -> None:
    made = agent.set("CdiSpec", {}, {"present": True, "fresh": True}, {"present": False}, {}).after
    assert made == {"present": True, "fresh": True, "devices": ["nvidia.com/gpu=all"]}
    toolkit.write("/usr/lib/wsl/drivers/nv_dispi.inf_amd64_2/libcuda.so.1.1", "")
    assert (agent.get("CdiSpec", {}) or {})["fresh"] is False
    assert agent.set("CdiSpec", {}, {"present": True, "fresh": True}, {"fresh": False}, {}).after["fresh"] is True


def test_a_spec_that_came_goes_again_and_one_that_was_stale_is_not_put_back(agent: Agent, toolkit: Sandbox) -> None:
    answer = agent.set("CdiSpec", {}, {"present": True, "fresh": True}, {}, {})
    before = {"present": answer.before["present"], "fresh": answer.before["fresh"]}
    undo = find_undo(RULES["CdiSpec"], before, answer.after, answer.after)
    assert undo == {"present": False}
    assert agent.set("CdiSpec", {}, undo, {}, {}).after == {"present": False, "fresh": False, "devices": []}
    assert isinstance(find_undo(RULES["CdiSpec"], {"fresh": False}, answer.after, answer.after), Keep)


# ---- one at a time


SLOW = json.dumps(
    {"calls": [{"resource": "CdiSpec", "verb": "set", "key": {}, "desired": {"present": True, "fresh": True}}]}
)


def test_a_call_that_outlives_its_controller_is_finished_and_waited_for(agent: Agent, toolkit: Sandbox) -> None:
    toolkit.path("/run/slow").touch()
    lost = toolkit.wire()
    lost.ask(SLOW)
    wait_for(toolkit.path("/run/begun").exists)
    lost.leave()
    answers: list[Any] = []
    settling = threading.Thread(target=lambda: answers.append(agent.get("CdiSpec", {}, settled=True)))
    settling.start()
    unsettled = toolkit.agent()
    assert (unsettled.get("CdiSpec", {}) or {})["present"] is False
    assert answers == []
    toolkit.path("/run/slow").unlink()
    settling.join(PATIENCE_S)
    unsettled.close()
    assert answers[0]["present"] is True
    assert lost.ended() == 0


def test_who_waits_and_is_left_goes_without_changing_anything(toolkit: Sandbox) -> None:
    toolkit.path("/run/slow").touch()
    first, second = toolkit.wire(), toolkit.wire()
    first.ask(SLOW)
    wait_for(toolkit.path("/run/begun").exists)
    change = {"resource": "LinuxFile", "verb": "set", "key": {"path": FILE}, "desired": {"text": "x"}}
    second.ask(json.dumps({"calls": [change]}))
    second.leave()
    assert second.ended() == 0
    assert not toolkit.path(FILE).exists()
    toolkit.path("/run/slow").unlink()
    assert json.loads(first.answer())["answers"][0]["ok"] is True
    first.close()


def test_without_its_lock_nothing_is_changed(agent: Agent, sandbox: Sandbox, no_file: str) -> None:
    lock = sandbox.path("/run/winhost.lock")
    lock.unlink(missing_ok=True)
    lock.symlink_to("/run/elsewhere")
    change = {"resource": "LinuxFile", "verb": "set", "key": {"path": no_file}, "desired": {"text": "x"}}
    answers = calls(agent, change, {"resource": "LinuxFile", "verb": "get"})
    lock.unlink()
    assert [answer["error"]["code"] for answer in answers] == ["ELOOP", "ELOOP"]
    assert not sandbox.path(no_file).exists()
    assert not sandbox.path("/run/elsewhere").exists()


def test_a_program_that_does_not_end_is_ended_with_its_children(toolkit: Sandbox) -> None:
    toolkit.write("/usr/bin/nvidia-ctk", "#!/bin/sh\n/bin/sleep 54321 & wait\n", 0o755)
    toolkit.write("/run/cdi/nvidia.yaml", "")
    signature = "def run_checked(\n    program: str,\n    *arguments: str,\n    within: float = {},"
    patient, hasty = signature.format("60"), signature.format("0.2")
    assert session_text().count(patient) == 1
    wire = toolkit.wire(session_text().replace(patient, hasty))
    (answer,) = calls(Agent(wire, 60), {"resource": "CdiSpec", "verb": "get", "key": {}})
    wire.close()
    assert answer["state"]["fresh"]["unknown"]["code"] == "Winhost.ProgramTimedOut"
    assert toolkit.run("pgrep", "--full", "sleep 54321").stdout == ""
