"""Tests of winhost serve up, status, logs, test and down on a simulated Linux with the files of a plan."""

import json
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from tests.cli.conftest import Line
from tests.schemas import faults
from tests.serving.test_deployed import DEPLOYED, ENGINE, GATEWAY
from winhost.cli.serve import change as serve_change
from winhost.cli.serve import status as serve_status
from winhost.cli.serve.status import show_status
from winhost.lab.linux.linux_machine import NO_FILE
from winhost.lab.linux.serving import STAND_IN, ServedEngines, SimulatedServing
from winhost.lab.linux.software import Unit
from winhost.lab.running_lab import Lab
from winhost.model.served import EngineState, GatewayState, Sample, ServingState, UnitState
from winhost.serving.deployed import DeployedEngine
from winhost.serving.serving_status import serving_status

HOST = Path(__file__).parents[2] / "examples/linux/ubuntu-2xh100.json"
KEY, METRICS_KEY = (
    "wh-Canary3of4the5key6of7carol",
    "wh-Canary1of8the9key2of3metrics",
)  # the same in all processes of pytest
SECOND = {**ENGINE, "model": "org/second", "slug": "org-second", "unit": "winhost-engine-org-second.service",
          "socket": "/run/winhost-engines/org-second/engine.sock", "gpus": []}  # fmt: skip
UNITS = (ENGINE["unit"], SECOND["unit"], GATEWAY["unit"])


def furnish(serving: SimulatedServing) -> None:
    """Write the files of a plan to the simulated Linux. No unit runs."""
    linux = serving.linux
    files = {
        "/etc/winhost/serving.json": json.dumps({"format": 1, "engines": [ENGINE, SECOND], "gateway": GATEWAY}),
        "/opt/winhost/gateway-0/keys": f"carol sha256:{sha256(KEY.encode()).hexdigest()}\n"
        f"prometheus sha256:{sha256(METRICS_KEY.encode()).hexdigest()} metrics\n",
    }
    for path, text in files.items():
        linux.write_file(path, {**NO_FILE, "text": text})
    engine = {"text": "[Service]\n", "enabled": True, "active": False, "failed": False}
    for unit in UNITS[:2]:
        linux.part(ServedEngines).update_unit(unit, **engine)
    linux.systemd.units[UNITS[2]] = Unit("enabled")


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    for module, name in ((serve_change, "_PAUSE_S"), (serve_change, "_STOP_PAUSE_S"), (serve_status, "_PAUSE_S")):
        monkeypatch.setattr(module, name, 0.001)
    monkeypatch.setenv("CAROL", KEY)
    monkeypatch.setenv("METRICS", METRICS_KEY)
    with Lab([HOST], tmp_path, scale=0.001) as running:
        yield running


@pytest.fixture
def host(lab: Lab) -> str:
    (name,) = lab.linux_hosts
    return name


@pytest.fixture
def serving(lab: Lab, host: str) -> SimulatedServing:
    found = lab.linux_hosts[host].linux.part(SimulatedServing)
    furnish(found)
    return found


@pytest.mark.usefixtures("lab")
def test_where_nothing_is_installed_it_says_what_to_do(line: Line, host: str) -> None:
    for words in (("status",), ("up",), ("down", "--yes"), ("logs",), ("test", "--api-key", "env:CAROL")):
        said = line("serve", words[0], host, *words[1:], "--json")
        assert (said.code, said.result["error"]["kind"]) == (1, "NothingServed")
        assert f"winhost up --on {host}" in said.result["error"]["hint"]


def test_what_is_stopped_is_started_one_after_the_other_and_tested_and_stopped(
    line: Line, host: str, serving: SimulatedServing
) -> None:
    said = line("serve", "status", host)
    assert (said.code, "0 of 2 models serve" in said.out) == (4, True)

    said = line("serve", "up", host, "--json")
    assert said.code == 0, said.out
    assert [(each["source"], each["outcome"]) for each in said.result["units"]] == [
        (name, "serving") for name in ("org/model", "org/second", "gateway")
    ]
    journal = [unit for unit, _, _ in serving.journal]
    assert journal == sorted(journal, key=UNITS.index)  # the second one began when the first one served
    again = line("serve", "up", host, "--json").result["units"]
    assert {each["outcome"] for each in again} == {"already-serving"}

    said = line("serve", "status", host, "--metrics-key", "env:METRICS", "--json")
    assert said.code == 0
    assert said.result["serves"] is said.result["gateway"]["ready"] is True
    assert [each["state"] for each in said.result["models"]] == ["serving", "serving"]
    assert said.result["gateway"]["answered"] == 0
    assert line("serve", "status", host, "--json").result["gateway"]["answered"] is None
    with_key = line("serve", "status", host, "--metrics-key", "env:CAROL", "--json")
    assert with_key.result["gateway"]["answered"] is None

    said = line("serve", "test", host, "--api-key", "env:CAROL", "--json")
    assert said.code == 0, said.out
    checks = [(each["check"], each["status"]) for each in said.result["requests"]]
    of_model = [("completion", 200), ("stream", 200), ("too-long", 400)]
    assert checks == [*of_model, *of_model, ("wrong-model", 404), ("no-key", 401), ("private", 404)]
    assert said.result["requests"][1]["per_second"] > 1

    said = line("serve", "down", host, "--yes", "--json")
    assert [each["source"] for each in said.result["units"]] == ["gateway", "org/second", "org/model"]
    assert line("serve", "status", host).code == 4
    said = line("serve", "test", host, "--api-key", "env:CAROL")
    assert (said.code, f"Start it: winhost serve up {host}" in said.err) == (1, True)
    said = line("status", host)
    assert said.out.count("org/second: stopped") == 1
    assert said.out.endswith(f"  the gateway: stopped\n  Next: winhost serve up {host}\n")


def test_models_yield_now_never_or_when_they_are_asked(line: Line, host: str, serving: SimulatedServing) -> None:
    assert line("serve", "up", host, "--json").code == 0
    said = line("yield", host, "now")
    assert (said.code, "availability.yield_to" in said.err) == (2, True), "its gateway knows nothing of it"

    file = {"format": 1, "engines": [ENGINE, SECOND], "gateway": {**GATEWAY, "yields": True}}
    serving.linux.write_file("/etc/winhost/serving.json", {**NO_FILE, "text": json.dumps(file)})
    for mode, says in (("", "by clients with a key"), ("now", "the GPUs are free"), ("never", "models are served")):
        said = line("yield", host, *filter(None, [mode]))
        assert (said.code, says in " ".join(said.out.split())) == (0, True), said.out
        told = line("serve", "status", host, "--json")
        yielded = mode == "now"
        assert (told.result["gateway"]["yields"], told.result["serves"], told.code) == (
            ("yielded", False, 4) if yielded else (None, True, 0)
        )
        shown = line("status", host)
        assert (f"winhost yield {host}" in shown.out, "have left their GPUs" in " ".join(shown.out.split())) == (
            yielded,
            yielded,
        )
    assert serving.yield_mode == "never"
    said = line("yield", host, "--json")
    assert (said.code, said.result) == (0, {"host": said.result["host"], "mode": "never", "state": "serving"})


def test_what_the_machine_found_of_its_endpoint_after_its_start_is_shown(
    line: Line, host: str, serving: SimulatedServing
) -> None:
    assert line("serve", "up", host, "--json").code == 0
    assert line("status", host, "--json").result["boot_test"] is None
    found = {"at": "2026-11-28T06:02:00+00:00", "ready": True, "seconds": 125, "why": ""}
    for told, says in (
        (found, "each model answered, 2 minutes after"),
        ({**found, "ready": False, "why": "not-ready"}, "(not-ready)"),
    ):
        serving.boot_test = told
        for words in (("status", host), ("serve", "status", host)):
            assert says in " ".join(line(*words).out.split())
        assert line("status", host, "--json").result["boot_test"] == told


def test_models_that_do_not_leave_their_gpus_in_time_are_told_of(
    line: Line, host: str, serving: SimulatedServing, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert line("serve", "up", host, "--json").code == 0
    file = {"format": 1, "engines": [ENGINE, SECOND], "gateway": {**GATEWAY, "yields": True}}
    serving.linux.write_file("/etc/winhost/serving.json", {**NO_FILE, "text": json.dumps(file)})
    for code, state in (("yielding", "yielding"), ("no-answer", "no-answer"), ("engine-down", "not-ready")):
        monkeypatch.setattr(SimulatedServing, "ready", lambda self, code=code: code)
        assert line("yield", host, "--json").result["state"] == state
    said = line("yield", host, "now", "--within", "1s")
    assert (said.code, "not all models have left their GPUs" in said.err) == (1, True)
    assert "winhost serve logs" in said.err


def test_whose_turn_it_is_is_shown_to_who_has_a_key(line: Line, host: str, serving: SimulatedServing) -> None:
    assert line("serve", "up", host, "--json").code == 0
    first, second = ENGINE["model"], SECOND["model"]
    moves = (("move_seconds", second, 1.34), ("move_at", second, 1_795_443_982.0))
    serving.engine_metrics = (
        ("turn:awake", first, 1.0),
        ("turn:asleep", second, 1.0),
        ("turn_waiting", second, 3.0),
        *moves,
    )
    told = line("serve", "status", host, "--metrics-key", "env:METRICS", "--json").result["models"]
    assert [each["turn"] for each in told] == [
        {"state": "awake", "waiting": 0, "move_seconds": None, "move_at": None},
        {"state": "asleep", "waiting": 3, "move_seconds": 1.34, "move_at": 1_795_443_982.0},
    ]
    shown = line("serve", "status", host, "--metrics-key", "env:METRICS").out
    assert "2026-11-23T14:26:22+00:00, in 1.3 s" in shown
    assert "asleep" in shown
    assert {each["turn"] for each in line("serve", "status", host, "--json").result["models"]} == {None}


@pytest.mark.parametrize(
    ("unit", "turn", "serves"),
    [
        ("inactive", "down", True),
        ("inactive", "starting", False),
        ("activating", "starting", False),
        ("activating", "down", False),
        ("inactive", "awake", False),
        ("inactive", None, False),
        ("failed", "down", False),
    ],
)
def test_an_engine_that_rests_by_its_turn_serves_and_one_that_starts_does_not(
    unit: str, turn: str | None, serves: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    state = UnitState("u", True, unit, "", "", "disabled", 0, 0, 0, "", None)
    engine = EngineState(ENGINE["socket"], None, None, (), ())
    metrics = () if turn is None else (Sample(f"turn:{turn}", ENGINE["model"], 1.0),)
    gateway = GatewayState(200, 200, metrics, own=True)
    up = replace(state, active="active")
    found = serving_status("h", DEPLOYED, ServingState((state, up), (engine,), gateway, None))
    assert found.serves is serves
    assert found.models[0].starts is ("starting" in (turn, found.models[0].state))
    show_status(found)
    count = "0 of 1 models serve, 1 starting" if found.models[0].starts else f"{serves:d} of 1 models serve"
    assert f"h: {count} at http" in capsys.readouterr().out


def test_the_one_of_two_engines_that_answers_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    state = UnitState("u", True, "active", "", "", "enabled", 0, 0, 0, "", None)
    second = DeployedEngine(**{**SECOND, "stands_by": ENGINE["model"], "served_name": ENGINE["served_name"]})
    deployed = replace(DEPLOYED, engines=(*DEPLOYED.engines, second))
    engines = tuple(EngineState(each.socket, 200, None, (), ()) for each in deployed.engines)
    gateway = GatewayState(200, 200, (Sample("standby:second", ENGINE["model"], 1.0),), own=True)
    found = serving_status("h", deployed, ServingState((state, state, state), engines, gateway, None))
    assert [(each.stands_by, each.answers) for each in found.models] == [(None, False), (ENGINE["model"], True)]
    show_status(found)
    shown = capsys.readouterr().out
    assert "serving, stands by" in shown
    assert "serving, answers" in shown


@pytest.fixture
def by_turns(serving: SimulatedServing) -> SimulatedServing:
    """Let both models take turns."""
    engines = [{**ENGINE, "turns": True}, {**SECOND, "turns": True}]
    text = json.dumps({"format": 1, "engines": engines, "gateway": GATEWAY})
    serving.linux.write_file("/etc/winhost/serving.json", {**NO_FILE, "text": text})
    for unit in UNITS[:2]:
        serving.linux.part(ServedEngines).update_unit(unit, enabled=False)
    return serving


def test_the_gateway_starts_models_that_take_turns(line: Line, host: str, by_turns: SimulatedServing) -> None:
    assert line("serve", "status", host).code == 4
    said = line("serve", "up", host, "--json")
    assert said.code == 0, said.out
    assert [(each["source"], each["outcome"]) for each in said.result["units"]] == [
        ("gateway", "serving"),
        ("org/model", "taking-turns"),
        ("org/second", "taking-turns"),
    ]
    journal = [unit for unit, _, _ in by_turns.journal]
    assert journal == sorted(journal, key=UNITS.index)
    assert set(journal) == set(UNITS[:2])

    said = line("serve", "status", host, "--json")
    assert (said.code, said.result["serves"]) == (0, True)
    assert [(each["state"], each["takes_turns"]) for each in said.result["models"]] == [("stopped", True)] * 2
    assert "asleep" in line("serve", "status", host, "--metrics-key", "env:METRICS").out
    assert line("serve", "test", host, "--api-key", "env:CAROL").code == 0

    assert line("serve", "down", host, "--yes").code == 0
    assert line("serve", "status", host).code == 4


def test_a_gateway_that_a_plan_started_has_had_each_of_them_up(
    line: Line, host: str, by_turns: SimulatedServing
) -> None:
    by_turns.linux.systemd.start(GATEWAY["unit"])
    assert line("serve", "test", host, "--api-key", "env:CAROL").code == 0


def test_one_that_takes_turns_and_fails_is_told(line: Line, host: str, by_turns: SimulatedServing) -> None:
    by_turns.linux.part(ServedEngines).update_unit(UNITS[1], failed=True)  # of an earlier start, which is no news
    by_turns.failure_logs[UNITS[1]] = ("ValueError: No available memory for the cache blocks.",)
    said = line("serve", "up", host, "--json")
    assert (said.code, said.result["error"]["kind"]) == (1, "StartFailed")
    assert "org/second" in said.result["error"]["what"]


def test_a_test_ends_where_an_engine_fails_for_good(line: Line, host: str, by_turns: SimulatedServing) -> None:
    assert line("serve", "up", host).code == 0
    by_turns.failure_logs[UNITS[1]] = ("loading", "ValueError: No available memory for the cache blocks.")
    before = by_turns.starts[UNITS[1]]
    said = line("serve", "test", host, "--api-key", "env:CAROL", "--json")
    error = said.result["error"]
    assert (said.code, error["kind"]) == (1, "StartFailed")
    assert "org/second did not start: " in error["what"]
    assert "No available memory for the cache blocks." in error["meaning"]
    assert f"winhost serve logs {host} --model org/second" in error["hint"]
    assert by_turns.starts[UNITS[1]] == before + 2  # the second failure is enough
    by_turns.failure_logs[UNITS[1]] = ("it broke",)
    assert "its engine failed again and again" in line("serve", "test", host, "--api-key", "env:CAROL").err


def test_one_that_nobody_starts_again_is_not_waited_for(line: Line, host: str, serving: SimulatedServing) -> None:
    assert line("serve", "up", host).code == 0
    serving.failure_logs[UNITS[0]] = ("it broke",)
    serving.linux.part(ServedEngines).update_unit(UNITS[0], active=False, failed=True)
    said = line("serve", "test", host, "--api-key", "env:CAROL")
    assert (said.code, "org/model did not start: its engine failed, and" in said.err) == (1, True)


def test_who_stops_one_that_takes_turns_is_told_that_it_comes_back(
    line: Line, host: str, by_turns: SimulatedServing, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(serve_change, "confirm_start", lambda question, yes: asked.append(question))
    assert line("serve", "down", host, "--model", "org/second").code == 0
    assert line("serve", "down", host).code == 0
    assert ["The gateway starts org/second again" in each for each in asked] == [True, False]


def test_one_model_is_stopped_and_the_gateway_stays(line: Line, host: str, serving: SimulatedServing) -> None:
    assert line("serve", "up", host).code == 0
    said = line("serve", "down", host, "--model", "org/second", "--yes", "--json")
    assert [(each["source"], each["outcome"]) for each in said.result["units"]] == [("org/second", "stopped")]
    said = line("serve", "status", host, "--json")
    assert [each["state"] for each in said.result["models"]] == ["serving", "stopped"]
    assert (said.code, said.result["gateway"]["state"], said.result["gateway"]["ready"]) == (4, "serving", False)


@pytest.mark.usefixtures("serving")
def test_down_asks_and_without_a_terminal_refuses(line: Line, host: str) -> None:
    said = line("serve", "down", host, "--json")
    assert (said.code, said.result["error"]["kind"]) == (2, "NotAsked")


def test_a_known_failure_is_told_in_a_sentence_with_its_remedy_and_the_engine_stays_stopped(
    line: Line, host: str, serving: SimulatedServing
) -> None:
    serving.failure_logs[UNITS[0]] = (
        "(APIServer pid=8) INFO 11-22 10:54:46 [api_utils.py:286] non-default args: {}",
        "(EngineCore pid=13) ERROR 11-22 10:55:07 [core.py:1231] RuntimeError: UVA is not available",
        "RuntimeError: Engine core initialization failed. See root cause above.",
    )
    said = line("serve", "up", host, "--json")
    error = said.result["error"]
    assert (said.code, error["kind"]) == (1, "StartFailed")
    assert "org/model did not start: vLLM cannot share pinned memory with the GPU here." in error["what"]
    assert "UVA is not available" in error["meaning"]
    assert f"winhost serve logs {host} --model org/model" in error["hint"]
    assert not serving.linux.part(ServedEngines).units[UNITS[0]]["active"]
    assert UNITS[1] not in serving.starts  # nothing after it was begun


def test_an_unknown_failure_shows_the_last_lines_without_secrets(
    line: Line, host: str, serving: SimulatedServing
) -> None:
    serving.failure_logs[UNITS[0]] = ("one", "it broke: token=hf_AbcdefGhij123456789 \x1b[2J")
    said = line("serve", "up", host)
    assert (said.code, "exit code 1" in said.err) == (1, True)
    assert "it broke: token=***" in said.err
    assert "hf_Abc" not in said.err
    assert "\x1b[2J" not in said.err


def test_logs_are_of_what_was_named_and_without_secrets(line: Line, host: str, serving: SimulatedServing) -> None:
    line("serve", "up", host)
    serving.journal.append((UNITS[2], "", "key=alice /v1/completions Authorization: Bearer wh-secretsecretsecret"))
    said = line("serve", "logs", host, "--model", "org/second", "--json")
    assert {each["source"] for each in said.results} == {"org/second"}
    assert len(said.results) == 11
    said = line("serve", "logs", host, "--gateway", "-n", 1)
    assert (said.out.split()[1], "secretsecret" in said.out, said.out.count("\n")) == ("gateway", False, 1)
    schema = line("schema", "serving-log").json
    assert list(faults(line("serve", "logs", host, "--json").json, schema, schema)) == []


def test_following_goes_on_until_it_is_stopped_and_the_document_is_whole(
    line: Line, host: str, serving: SimulatedServing, monkeypatch: pytest.MonkeyPatch
) -> None:
    line("serve", "up", host)
    pauses = 0

    def pause(seconds: float) -> None:
        nonlocal pauses
        pauses += 1
        if pauses == 3:
            raise KeyboardInterrupt
        serving.journal.append((UNITS[0], "", f"line {pauses}"))

    monkeypatch.setattr(serve_status.time, "sleep", pause)
    said = line("serve", "logs", host, "--follow", "--model", "org/model", "-n", 1, "--json")
    assert said.code == 130
    assert [each["text"] for each in said.results][1:] == ["line 1", "line 2"]


def test_ctrl_c_says_what_serves_and_what_goes_on(
    line: Line, host: str, serving: SimulatedServing, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(seconds: float) -> None:
        if len(serving.starts) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(serve_change.time, "sleep", stop)
    said = line("serve", "up", host)
    assert said.code == 130
    assert "org/model serving; org/second goes on starting there; not started: gateway." in said.err
    assert f"winhost serve down {host}" in said.err


@pytest.mark.costly
def test_a_start_that_takes_too_long_goes_on_and_says_so(line: Line, host: str, serving: SimulatedServing) -> None:
    serving.failure_logs[UNITS[0]] = ("Loading safetensors checkpoint shards:  50% Completed | 1/2",) * 1_000_000
    said = line("serve", "up", host, "--within", "1s", "--json")
    assert (said.code, said.result["error"]["kind"]) == (1, "NotServingInTime")
    assert "its phase is: loading weights" in said.result["error"]["what"]
    assert serving.linux.part(ServedEngines).units[UNITS[0]]["active"]


def test_wrong_names_and_keys_are_told(line: Line, host: str, serving: SimulatedServing) -> None:
    said = line("serve", "up", host, "--model", "org/modle", "--json")
    assert (said.code, said.result["error"]["kind"]) == (2, "NoSuchModel")
    assert "did you mean 'org/model'?" in said.result["error"]["what"]
    assert line("serve", "test", host, "--api-key", "no-reference").code == 2
    assert line("serve", "status", "nobody").code == 2
    line("serve", "up", host)
    said = line("serve", "test", host, "--api-key", f"env:{'PATH'}", "--json")  # a secret, and not the key
    assert (said.code, {each["status"] for each in said.result["requests"]}) == (1, {401})
    said = line("serve", "test", host, "--api-key", "env:CAROL")
    assert KEY not in said.out + said.err
    assert STAND_IN not in said.err


def test_a_file_that_is_not_ours_is_refused(line: Line, host: str, serving: SimulatedServing) -> None:
    text = '{"format": 1, "engines": [{"unit": "--now"}]}'
    serving.linux.write_file("/etc/winhost/serving.json", {**NO_FILE, "text": text})
    said = line("serve", "up", host, "--json")
    assert (said.code, said.result["error"]["kind"]) == (1, "WrongServingFile")


@pytest.mark.usefixtures("serving")
def test_answers_have_their_schemas(line: Line, host: str) -> None:
    for kind, words in (
        ("serving-change", ("up",)),
        ("serving", ("status",)),
        ("serving-test", ("test", "--api-key", "env:CAROL")),
    ):
        schema = line("schema", kind).json
        said = line("serve", words[0], host, *words[1:], "--json")
        assert list(faults(said.json, schema, schema)) == [], said.out
