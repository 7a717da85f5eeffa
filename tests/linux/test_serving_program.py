"""The program of `winhost serve`: how it parses the output of systemd, journald, Prometheus and engines."""

import ast
import grp
import json
import os
import pwd
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.processes import PATIENCE_S
from winhost.agent import linux_http, linux_keys, linux_serving, linux_units
from winhost.agent.linux_agent import AgentFault, ProgramResult
from winhost.connect.ssh import START
from winhost.gateway.gateway_metrics import TurnMetrics
from winhost.gateway.key_lines import parse_keys
from winhost.resources.linux.linux_scripts import serving_text

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it runs on Linux")


def test_it_is_old_enough_a_python_and_needs_nothing_beside_it() -> None:
    tree = ast.parse(serving_text(), feature_version=(3, 8))
    names = {each.name for node in tree.body if isinstance(node, ast.Import) for each in node.names}
    names |= {str(node.module) for node in tree.body if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names
    assert serving_text().isascii()


def test_a_request_that_cannot_be_met_is_an_answer_and_the_next_is_met() -> None:
    requests = [{"do": "start", "unit": "ssh.service"}, {"do": "nothing"}, {"do": "log", "units": ["; reboot"]}]
    given = "\n".join(json.dumps(each) for each in [serving_text(), *requests]) + "\n"
    command = START.replace("exec python3", f"exec {sys.executable}")
    ran = subprocess.run(["sh", "-c", command], input=given.encode(), capture_output=True, timeout=PATIENCE_S)
    assert (ran.returncode, ran.stderr) == (0, b"")
    answers = [json.loads(line)["answers"][0] for line in ran.stdout.splitlines() if line]
    assert [each["ok"] for each in answers] == [False, False, False]
    assert [each["error"]["code"] for each in answers] == ["Winhost.BadRequest", "KeyError", "Winhost.BadRequest"]


@pytest.mark.parametrize("name", ["ssh.service", "--now", "winhost-engine-A.service", "winhost-gateway.service\n", 1])
def test_no_other_unit_is_touched(name: Any) -> None:
    with pytest.raises(AgentFault):
        linux_units.unit_name(name)


def entry(message: Any, number: int = 1) -> str:
    return json.dumps({"__CURSOR": f"c{number}", "__REALTIME_TIMESTAMP": "1795443982000000", "MESSAGE": message})


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("plain", "plain"),
        (list(b"10%|\r100%|\r"), "100%|"),
        (list("caf\u00e9".encode()), "caf\u00e9"),
        ([255, 65], "\ufffdA"),
        (None, "(a line that is too long)"),
        ("", ""),
        ("x" * 9999, "x" * 2000),
    ],
)
def test_a_line_of_the_journal_is_what_a_terminal_would_show_in_the_end(message: Any, text: str) -> None:
    (line,) = linux_units.page(entry(message), ["u"], None)["lines"]
    assert line == {"unit": "u", "at": 1795443982.0, "text": text}


def test_a_page_ends_before_it_is_too_large_and_says_where() -> None:
    output = "\n".join(entry("[{" * 900, number) for number in range(100))
    first = linux_units.page(output, ["u"], None)
    assert (len(first["lines"]), first["cursor"], first["more"]) == (33, "c32", True)


def test_versions_are_what_each_program_says_and_who_says_none_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {
        "nvidia-smi": "580.95.05\n580.95.05\n",
        "nvidia-ctk": "NVIDIA Container Toolkit CLI version 1.17.8\ncommit: 1",
    }

    def run(program: str, *words: str, within: float) -> ProgramResult:
        if program == "wslinfo":
            raise AgentFault("Winhost.ProgramTimedOut", "OperationTimeout", "late", program)
        return ProgramResult(0, said[program], "")

    monkeypatch.setattr(linux_serving, "find_program", lambda program: f"/usr/bin/{program}")
    monkeypatch.setattr(linux_serving, "run", run)
    found = {each["name"]: each["version"] for each in linux_serving.versions()}
    assert (found["driver"], found["toolkit"], "wsl" in found) == ("580.95.05", "1.17.8", False)
    assert found["kernel"] == os.uname().release
    assert found["boot"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_a_test_after_a_start_is_read_and_what_is_none_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "result.json"
    monkeypatch.setattr(linux_serving, "BOOT_TEST", str(file))
    assert linux_serving.boot_test() is None
    told = {"at": "2026-11-28T06:02:00+00:00", "ready": False, "seconds": 125, "why": "not-ready"}
    for text, found in ((json.dumps({**told, "more": 1}), told), ("{", None), ('{"ready": 1, "seconds": 2}', None)):
        file.write_text(text)
        assert linux_serving.boot_test() == found


def test_metrics_are_summed_by_model() -> None:
    text = 'a_total{model="x",b="1"} 2.0\na_total{b="2",model="x"} 3\na_total{model="y"} 1\n'
    text += "other 5\n# HELP a_total\na_total NaN\n"
    found = linux_http.sum_metrics(text, {"a_total": "a"})
    assert found == [{"name": "a", "model": "x", "value": 5.0}, {"name": "a", "model": "y", "value": 1.0}]


def test_a_state_is_part_of_what_a_metric_is_called() -> None:
    metrics = TurnMetrics()
    metrics.record_move("x", 1.25)
    text = "\n".join(metrics.lines({"x": "falling-asleep"}, {"model_requests_waiting": {"x": 3}}))
    found = {each["name"]: each["value"] for each in linux_http.sum_metrics(text, linux_serving.GATEWAY_METRICS)}
    assert found.pop("move_at") > 1.7e9
    assert found == {"turn:falling-asleep": 1.0, "turn_waiting": 3.0, "move_seconds": 1.25}


@pytest.fixture
def listening() -> Iterator[tuple[int, Callable[[], bool]]]:
    with socket.create_server(("127.0.0.1", 0)) as ours:
        port = ours.getsockname()[1]
        yield port, lambda: linux_units.holds_port(os.getpid(), port)


def test_who_listens_at_a_port_is_known(listening: tuple[int, Callable[[], bool]]) -> None:
    port, ours = listening
    assert ours()
    assert not linux_units.holds_port(1 if os.getpid() != 1 else 2, port)
    assert not linux_units.holds_port(os.getpid(), 1)


def test_not_where_another_one_listens_at_another_address(listening: tuple[int, Callable[[], bool]]) -> None:
    port, ours = listening
    listen = (
        f"import socket, sys; to = socket.create_server(('127.0.0.2', {port})); print(flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen([sys.executable, "-c", listen], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdout
    try:
        other.stdout.readline()
        assert not ours()
    finally:
        other.kill()
        other.communicate(timeout=PATIENCE_S)


def test_a_stream_is_timed_by_its_first_text_and_whole_only_with_its_end(tmp_path: Path) -> None:
    found: dict[str, Any] = {"first": None, "events": 0, "tokens": None, "whole": False, "text": "", "why": None}
    for at, event in enumerate(('{"choices": [{"text": ""}]}', '{"choices": [{"text": "a"}]}', "no JSON", "[]")):
        linux_http.add_event(found, event, float(at))
    assert (found["first"], found["text"], found["whole"], found["events"]) == (1.0, "a", False, 4)
    linux_http.add_event(found, '{"choices": [], "usage": {"completion_tokens": 7}}', 5.0)
    linux_http.add_event(found, '{"error": {"message": "broke off"}}', 6.0)
    linux_http.add_event(found, "[DONE]", 7.0)
    assert (found["tokens"], found["whole"]) == (7, True)
    assert "broke off" in found["why"]


def test_a_request_ends_when_its_engine_fails_for_good(
    listening: tuple[int, Callable[[], bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listening socket never answers."""
    monkeypatch.setattr(linux_http, "CHECK_PAUSE_S", 0.001)
    states = [("activating", "start", "1"), ("failed", "failed", "1"), ("failed", "failed", "1")]
    states += [("activating", "start", "2"), ("failed", "failed", "2"), ("activating", "start", "3")]
    looks = iter(states)

    def unit_states(names: list[Any]) -> list[dict[str, str]]:
        return [dict(zip(("active", "sub", "invocation"), next(looks), strict=True)) for _ in names]

    monkeypatch.setattr(linux_units, "unit_states", unit_states)
    starts = linux_units.FailedStarts("winhost-engine-a.service", again=True)
    place = {"address": "127.0.0.1", "port": listening[0], "tls": False}
    found = linux_http.time_request(place, "/v1/completions", {}, None, PATIENCE_S, starts.has_failed)
    assert (found["status"], starts.invocations, next(looks)) == (None, ["1", "2"], states[-1])
    assert found["why"]


@pytest.mark.parametrize(
    ("sub", "again", "looks"), [("failed", False, 1), ("auto-restart", False, 2), ("failed", True, 2)]
)
def test_an_engine_that_nobody_starts_again_failed_for_good_at_once(
    sub: str, again: bool, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    active = {"failed": "failed", "auto-restart": "activating"}[sub]
    monkeypatch.setattr(
        linux_units,
        "unit_states",
        lambda _: [{"active": active, "sub": sub, "invocation": str(len(starts.invocations))}],
    )
    starts = linux_units.FailedStarts("winhost-engine-a.service", again)
    assert [starts.has_failed() for _ in range(looks)] == [False] * (looks - 1) + [True]


@pytest.fixture
def gateway_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files of a gateway whose plan has the key alice; the file of what was changed since."""
    changes = tmp_path / "changes"
    settings = {"models": [{"name": "org/model"}], "key_changes": str(changes)}
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    (tmp_path / "keys").write_text(f"alice sha256:{'a' * 64}\n")
    unit = f"LoadCredential=keys:{tmp_path}/keys\nExecStart=/usr/bin/python3 -m x {tmp_path}/settings.json\n"
    (tmp_path / "winhost-gateway.service").write_text(unit)
    owner = f"{pwd.getpwuid(os.getuid()).pw_name}:{grp.getgrgid(os.getgid()).gr_name}"
    for name, value in {
        "GATEWAY_UNITS": (str(tmp_path),),
        "KEY_CHANGES": str(changes),
        "KEY_CHANGES_OWNER": owner,
        "KEY_USE": str(tmp_path / "use.json"),
        "KEYS_LOCK": str(tmp_path / "lock"),
    }.items():
        monkeypatch.setattr(linux_keys, name, value)
    return changes


def test_of_many_who_change_keys_at_once_none_loses_a_change(gateway_keys: Path) -> None:
    """Each opens the lock anew, as processes do."""

    def add(number: int) -> str:
        change = {"verb": "add", "name": f"key-{number}", "sha256": f"{number:064x}"}
        return str(linux_keys.keys({"change": change})["outcome"])

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(add, range(60))) == {"changed"}
    assert {each.name for each in parse_keys(gateway_keys.read_text())} == {f"key-{number}" for number in range(60)}
    assert [each.name for each in gateway_keys.parent.glob(".changes*")] == []


def test_a_key_that_was_revoked_never_counts_again_whoever_has_its_name(gateway_keys: Path) -> None:
    """Its name is given to another key, or a new plan has another key with this name, whose rules change."""
    planned = gateway_keys.parent / "keys"

    def change(verb: str, name: str, **more: Any) -> str:
        return str(linux_keys.keys({"change": {"verb": verb, "name": name, **more}})["outcome"])

    assert [change("add", "bob", sha256="b" * 64), change("revoke", "bob")] == ["changed", "changed"]
    assert change("add", "bob", sha256="c" * 64) == "changed"
    assert change("add", "eve", sha256="b" * 64) == "same-key"
    assert change("revoke", "alice") == "changed"
    planned.write_text(f"alice sha256:{'d' * 64}\n")
    assert change("limit", "alice", limits={"concurrent": 1}) == "changed"
    planned.write_text(f"alice sha256:{'a' * 64}\n")  # as a rollback does
    told = {each["name"]: each["state"] for each in linux_keys.keys({})["keys"]}
    assert (told["alice"], told["bob"]) == ("revoked", "active")


def test_who_finds_the_lock_taken_for_long_is_told(gateway_keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linux_keys, "LOCKED_S", 0.01)
    with linux_keys.locked_keys(), pytest.raises(AgentFault, match="Another process changes keys"):
        linux_keys.keys({"change": {"verb": "revoke", "name": "alice"}})
    assert not gateway_keys.exists()


@pytest.mark.parametrize(
    "change",
    [
        {"verb": "add", "name": "a b", "sha256": "0" * 64},
        {"verb": "add", "name": "b", "sha256": "0" * 63},
        {"verb": "add", "name": "b\nc", "sha256": "0" * 64},
        {"verb": "add", "name": "b", "sha256": "0" * 64, "expires": 0},
        {"verb": "add", "name": "b", "sha256": "0" * 64, "expires_in": 10**15},
        {"verb": "add", "name": "b", "sha256": "0" * 64, "limits": {"concurrent": True}},
        {"verb": "add", "name": "b", "sha256": "0" * 64, "limits": {"sleep": 1}},
        {"verb": "limit", "name": "alice", "limits": {"concurrent": 10**10}},
    ],
)
def test_a_change_that_no_file_of_keys_can_have_is_refused(gateway_keys: Path, change: dict[str, Any]) -> None:
    with pytest.raises(AgentFault):
        linux_keys.keys({"change": change})
    assert not gateway_keys.exists()


def test_what_the_gateway_wrote_is_not_trusted(gateway_keys: Path) -> None:
    use = gateway_keys.parent / "use.json"
    for text in ("", "[]", "{", "[" * 100_000, '{"read": 1, "used": 2}', '{"used": {"alice": {"of": 1}}}'):
        use.write_text(text)
        (alice,) = linux_keys.keys({})["keys"]
        assert (alice["state"], alice["used"]) == ("active", None)


def test_a_gateway_of_before_keys_could_change_says_what_to_do(gateway_keys: Path) -> None:
    (gateway_keys.parent / "settings.json").write_text('{"models": []}')
    with pytest.raises(AgentFault, match="plan and apply anew"):
        linux_keys.keys({"change": {"verb": "revoke", "name": "alice"}})
