"""Tests of winhost chat, open, status and winhost without arguments, with a simulated Linux behind real SSH."""

import http.client
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.cli.conftest import Line
from tests.cli.test_one_plan_to_endpoint import ACCEPT
from tests.processes import PATIENCE_S, exit_code, started
from tests.schemas import faults
from tests.serving.one_plan import KEY, hub_of_model, workload
from tests.serving.stacks import IMAGE
from winhost.cli import run
from winhost.engine.store import Store
from winhost.lab.linux.serving import STAND_IN, SimulatedServing
from winhost.lab.running_lab import Lab

LINUX = Path(__file__).parents[2] / "examples/linux/ubuntu-2xh100.json"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Yield a lab whose Linux serves, with its fleet.yaml and journals in the lab's folder."""
    folder = tmp_path_factory.mktemp("served")
    with pytest.MonkeyPatch.context() as patch, Lab([LINUX], folder, scale=0.001) as lab, hub_of_model() as hub:
        patch.setenv("ALICE", KEY)
        patch.setenv("WINHOST_STATE", str(folder / "state"))
        patch.setenv("WINHOST_FLEET", str(folder))
        words = ("--workload", str(workload(folder)), "--api-key", "alice=env:ALICE", "--hub", hub.url)
        plan = str(folder / "plan.json")
        assert run(["plan", "llm-01", *words, "--engine-image", IMAGE.pinned, "-o", plan]) == 0
        assert run(["apply", plan, *ACCEPT]) == 0
        yield lab


@pytest.fixture
def there(served: Lab, line: Line, monkeypatch: pytest.MonkeyPatch) -> Line:
    monkeypatch.setenv("ALICE", KEY)
    monkeypatch.setenv("WINHOST_STATE", str(served.folder / "state"))
    monkeypatch.setenv("WINHOST_FLEET", str(served.folder))
    return line


@pytest.mark.costly
def test_a_prompt_is_answered_wherever_it_stands(there: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (("Say hello",), ("llm-01", "Say hello"), ("LLM-01", "Say hello", "--model", "chat")):
        assert there("chat", *words).out == f"{STAND_IN}\n"
    for words in (("-",), ("llm-01", "é" * 600_000)):
        monkeypatch.setattr(
            sys, "stdin", SimpleNamespace(buffer=io.BytesIO("é".encode() * 600_000), isatty=lambda: False)
        )
        assert "longer than the gateway accepts" in there("chat", *words).err
    for words in ((), ("-",), ("llm-01", "-"), ("llm-01",)):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"Say hello"), isatty=lambda: False))
        assert there("chat", *words).out == f"{STAND_IN}\n"
    said, schema = there("chat", "Say hello", "--json"), there("schema", "chat").json
    assert list(faults(said.json, schema, schema)) == []
    found = said.result
    assert (found["text"], found["host"], found["url"], found["finish_reason"]) == (STAND_IN, "llm-01", None, "stop")


@pytest.mark.costly
def test_what_cannot_be_asked_is_told(there: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    def kind(*words: str) -> tuple[int, str]:
        said = there("chat", *words, "--json")
        return said.code, said.result["error"]["kind"]

    assert kind("other", "Hi") == (2, "NoSuchHost")
    assert kind("Hi", "--model", "nope") == (2, "NoSuchModel")
    assert kind(" ") == (2, "NoPrompt")
    assert kind("Hi", "--api-key", "cmd:echo no-such-key") == (1, "ApiKeyRefused")
    with monkeypatch.context() as without:
        without.delenv("WINHOST_FLEET")
        assert kind("Hi") == (2, "NoWayThere")
    monkeypatch.delenv("ALICE")
    assert kind("Hi") == (2, "SecretUnreadable")
    monkeypatch.setenv("WINHOST_STATE", str(there.folder / "none"))
    assert kind("Hi") == (1, "NothingHere")
    monkeypatch.setenv("ALICE", KEY)
    # Set up from elsewhere. The key may be named as it was for the plan.
    for key in ("env:ALICE", "alice=env:ALICE"):
        assert there("chat", "llm-01", "Hi", "--api-key", key).out == f"{STAND_IN}\n"
    assert kind("llm-01", "Hi") == (2, "NoApiKey")


@pytest.mark.costly
def test_a_conversation_goes_on_until_it_is_ended(there: Line) -> None:
    import pty

    child, main = pty.fork()
    if child == 0:
        os.execve(sys.executable, [sys.executable, "-m", "winhost", "chat"], {**os.environ, "NO_COLOR": "1"})
    text, answers = "", [b"Hello\n", b"Again\n", b"\x04"]
    try:
        while got := os.read(main, 65536).decode():
            text += got
            if text.endswith(">>> ") and answers:
                os.write(main, answers.pop(0))
    except OSError:
        pass  # it has ended
    os.close(main)
    assert exit_code(child) == 0
    assert text.count(STAND_IN) == 2
    assert "chat on llm-01. Ctrl-C stops an answer, Ctrl-D ends." in text


@pytest.mark.costly
def test_many_come_through_an_open_port_until_it_is_closed(there: Line) -> None:
    with started(
        [sys.executable, "-m", "winhost", "open", "llm-01"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as opened:
        assert opened.stdout
        lines = [opened.stdout.readline() for _ in range(5)]
        port = int(re.findall(r"http://127\.0\.0\.1:(\d+)/v1$", lines[1].strip())[0])
        assert "API key:  env:ALICE" in lines[3]
        assert 'Bearer $ALICE"' in lines[4]

        def ask(number: int) -> bytes:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
            body = {"model": "chat", "stream": True, "messages": [{"role": "user", "content": str(number)}]}
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Authorization": f"Bearer {KEY}"})
            return connection.getresponse().read()  # to its end, which only closing tells

        with ThreadPoolExecutor(12) as pool:
            answers = [*pool.map(ask, range(24))]
        assert {each.rstrip().rpartition(b"\n")[2] for each in answers} == {b"data: [DONE]"}
        opened.send_signal(signal.SIGINT)
        assert opened.wait(PATIENCE_S) == 130


def test_a_port_that_is_taken_is_told(there: Line) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for host in (("llm-01",), ()):  # the only one that serves
            said = there("open", *host, "--port", port)
            assert said.code == 2
            assert f"port {port} of 127.0.0.1 cannot be used: Address already in use\n" in said.err
            assert "Leave --port out" in said.err


def test_status_says_what_is_served_and_what_comes_next(there: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    found = there("status", "--json").result
    assert (found["host"], found["serves"], found["reached"], found["url"]) == ("llm-01", True, True, None)
    assert found["next"] == "winhost chat llm-01 'Say hello'"
    fleet = os.environ["WINHOST_FLEET"]
    named = there("status", "--fleet", fleet, "--json").result
    assert named["next"] == f"winhost chat --fleet {fleet} llm-01 'Say hello'"
    assert [(each["model"], each["state"]) for each in found["models"]] == [("chat", "serving")]
    quick = there()
    assert quick.code == 0
    assert "llm-01: serves since" in quick.out
    assert "chat: not asked" in quick.out
    assert quick.out.splitlines()[-1] == "All commands: winhost --help"
    monkeypatch.setenv("WINHOST_STATE", str(there.folder / "none"))
    assert "winhost host add USER@ADDRESS" in there().out
    assert "  winhost assess localhost\n" in there().out
    assert there("status").code == 0
    assert there("status", "--json").results == []
    monkeypatch.delenv("WINHOST_FLEET")
    assert "Nothing is served yet" in there().out
    Path("fleet.yaml").write_text("schema: winhost.fleet/1\nhosts: 5\n")
    assert there().code == 0


def test_what_is_another_version_than_when_it_was_tested_is_shown(there: Line, served: Lab) -> None:
    serving = served.linux_hosts["llm-01"].linux.part(SimulatedServing)
    before = dict(serving.versions)
    since = there("status", "--json").result["since_verified"]
    assert (since["changed"], since["unknown"]) == ([], []), "apply ended with a completion"
    try:
        serving.versions |= {"boot": "a"}
        assert there("serve", "test", "llm-01", "--api-key", "env:ALICE").code == 0
        assert "since it was found to answer" not in there("status").out
        serving.versions |= {"boot": "b", "driver": "580.105.08", "toolkit": "1.18.0"}  # the last was not known before
        said = there("status").out
        assert "driver 580.95.05 → 580.105.08; the machine was started again" in " ".join(said.split())
        assert "toolkit" not in said
        assert "driver 580.95.05 → 580.105.08" in " ".join(there("serve", "status", "llm-01").out.split())
        assert "Next: winhost serve test llm-01 --api-key env:API_KEY" in said
        assert there("serve", "test", "llm-01", "--api-key", "env:ALICE").code == 0
        assert there("status", "--json").result["since_verified"]["changed"] == []
        serving.versions |= {"wsl": "2.6.1.0"}
        del serving.versions["driver"]
        assert "not known now: driver, windows" in " ".join(there("status").out.split())
        assert there("verify", served.folder / "plan.json").code == 0
        assert there("status", "--json").result["since_verified"]["unknown"] == ["windows"]
    finally:
        serving.versions = before
        shutil.rmtree(served.folder / "state/verified", ignore_errors=True)


def test_what_serves_is_tested_once_after_each_change(
    there: Line, served: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = served.linux_hosts["llm-01"].linux.part(SimulatedServing)
    before, looks = dict(serving.versions), []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            serving.versions |= {"boot": "b"}
        if len(looks) == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr("winhost.cli.endpoint.status.time", SimpleNamespace(sleep=sleep))
    serving.versions |= {"boot": "a"}
    try:
        assert there("serve", "test", "llm-01", "--api-key", "env:ALICE").code == 0
        said = there("status", "--watch", "--test", "--api-key", "env:ALICE")
        assert [re.sub(r"^[0-9-]+ [0-9:]+Z llm-01: ", "", each) for each in said.out.splitlines()] == [
            "serves chat=serving",
            f"serves chat=serving; since it was found to answer on {said.out[:10]}: the machine was started again",
            "tested again: passed",
            "serves chat=serving",
        ]
        assert there("status", "--test").code == 2
    finally:
        serving.versions = before
        shutil.rmtree(served.folder / "state/verified", ignore_errors=True)


def test_a_host_that_is_gone_is_shown(there: Line, served: Lab) -> None:
    text = served.fleet_file.read_text()
    try:
        served.fleet_file.write_text(re.sub(r"port: \d+", "port: 1", text))
        said = there("status")
        assert said.code == 5
        assert "llm-01: not reached; it served since" in said.out
        assert "Next: winhost host test llm-01" in said.out
        assert there("chat", "Hi").code == 5
    finally:
        served.fleet_file.write_text(text)


def test_whoever_watches_is_told_what_changes(there: Line, served: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    text, looks = served.fleet_file.read_text(), []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            served.fleet_file.write_text(re.sub(r"port: \d+", "port: 1", text))
        if len(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("winhost.cli.endpoint.status.time", SimpleNamespace(sleep=sleep))
    try:
        said = there("status", "--watch", "--every", "7")
    finally:
        served.fleet_file.write_text(text)
    assert (said.code, looks) == (130, [7, 7, 7])
    first, second = (re.sub(r"^[0-9-]+ [0-9:]+Z ", "", each) for each in said.out.splitlines())
    assert first == "llm-01: serves chat=serving"
    assert second.startswith("llm-01: not reached chat=unknown; ")
    assert there("status", "--watch", "--json").code == 2


def test_a_screen_is_redrawn_until_ctrl_c(there: Line) -> None:
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "WINHOST_STATE": str(there.folder / "none")}
    command = [sys.executable, "-m", "winhost", "status", "--watch", "--every", "1"]
    with started(command, env=environment, stdin=theirs, stdout=theirs, stderr=theirs) as watching:
        os.close(theirs)
        said = b""
        while said.count(b"UTC, every 1 s. Ctrl-C ends.") < 2:
            said += os.read(ours, 4096)
        watching.send_signal(signal.SIGINT)
        assert watching.wait(PATIENCE_S) == 130
    os.close(ours)
    assert said.count(b"\x1b[2J") >= 2
    assert b"Nothing is served yet" in said
    assert b"Traceback" not in said


def test_a_run_that_was_interrupted_is_shown_with_its_next_command(
    there: Line, served: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    (journal,) = (served.folder / "state/runs").iterdir()
    state = there.folder / "cut"
    (state / "runs").mkdir(parents=True, mode=0o700)
    state.chmod(0o700)
    cut = state / "runs" / journal.name
    cut.write_text("".join(journal.read_text().splitlines(keepends=True)[:-3]))
    cut.chmod(0o600)
    monkeypatch.setenv("WINHOST_STATE", str(state))
    found = there("status", "--json").result
    assert (found["next"], found["models"][0]["model"]) == (f"winhost resume {journal.stem}", "chat")
    (unfinished,) = found["unfinished"]
    assert (unfinished["run"], unfinished["state"]) == (journal.stem, "interrupted")
    quick = there().out
    assert "llm-01: serves nothing" in quick  # by the journal: it did not come to its end
    assert f"Next: winhost resume {journal.stem}" in quick
    with Store().lock("llm-01", "apply"):  # as while another winhost goes on with it
        quick = there().out
        assert "running now" in quick
        assert f"Next: winhost runs {journal.stem}" in quick
        assert "it ended" not in quick


@pytest.mark.costly
def test_what_was_rolled_back_serves_no_more(there: Line, served: Lab) -> None:
    """This test comes last, because it ends the endpoint of the others."""
    (journal,) = (served.folder / "state/runs").iterdir()
    said = there("rollback", journal.stem, *ACCEPT)
    assert said.code == 0, said.out
    assert there("status", "--json").results == []
    assert there("chat", "Hi").code == 1
