"""Two engines by protocol as units of a real Debian 12, moved by the real gateway through the real keeper."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tests.gateway as gateway_tests
from tests.linux.debian import Debian
from tests.linux.test_debian_gateway import ASK, KEY, METRICS_KEY, UNIT, answer, converge
from tests.processes import wait_for
from winhost.connect.agent import Agent
from winhost.gateway.api_keys import new_key
from winhost.resources.linux.linux_scripts import serving_text

pytestmark = [pytest.mark.real, pytest.mark.timeout(2400)]  # they take turns, and one is fetched

KEEPER = "/run/winhost-keeper/keeper.sock"
SCALE = 0.02  # of the times of a real engine
# As a plan's: the gateway starts them, so that they neither start with the machine nor by themselves.
ENGINE_UNIT = """\
[Service]
User=engine
Group=winhost-engines
UMask=0007
RuntimeDirectory=winhost-engines/{name}
RuntimeDirectoryMode=0750
Environment=PYTHONPATH=/srv
EnvironmentFile=-/srv/fault-{name}
ExecStart=/usr/bin/python3 -m tests.gateway.protocol_server {name} {socket} {scale} $FAULT
ExecStartPost=+/bin/rm -f /srv/fault-{name}
TimeoutStopSec=10
Restart=no
"""


def unit_of(name: str) -> str:
    return f"winhost-engine-{name}.service"


def socket_of(name: str) -> str:
    return f"/run/winhost-engines/{name}/engine.sock"


def model(name: str) -> dict[str, Any]:
    turns = {"gpus": [0], "between": "sleep", "level": 1, "version": "0.24.0", "unit": unit_of(name)}
    return {"name": name, "engine": {"socket": socket_of(name)}, "turns": turns}


SETTINGS: dict[str, Any] = {
    "listen": {"address": "127.0.0.1", "port": 8443},
    "models": [model("a"), model("b")],
    "limits": {"hold": 25, "drain": 5},
    "turns": {"keeper": KEEPER, "stay": 0, "drain": 5, "swap": 3, "start": 30, "release": 1},
}


@pytest.fixture(scope="module")
def served(debian: Debian, asked: Agent) -> Iterator[Debian]:
    """A Debian with the gateway. The engines do not run until a request comes."""
    package = debian.root / "srv/tests/gateway"
    package.mkdir(parents=True)
    for name in ("protocol_server.py", "vllm_protocol.py"):
        text = Path(*gateway_tests.__path__, name).read_text()
        (package / name).write_text(text.replace(", shutdown_timeout=0", ""))  # aiohttp 3.8 has it elsewhere
    (debian.root / "srv/ask.py").write_text(ASK)
    debian.run("useradd", "--system", "--no-create-home", "engine")
    for name in ("a", "b"):
        text = ENGINE_UNIT.format(name=name, socket=socket_of(name), scale=SCALE)
        (debian.root / "etc/systemd/system" / unit_of(name)).write_text(text)
    debian.run("systemctl", "daemon-reload")
    converge(asked, SETTINGS)
    yield debian
    debian.run("systemctl", "stop", UNIT, "winhost-keeper.service", unit_of("a"), unit_of("b"))


def said_by(served: Debian, name: str) -> str:
    status, body = answer(served, "/v1/completions", {"model": name, "prompt": "hi"})
    assert status == 200, body
    return str(json.loads(body)["choices"][0]["text"])


def start_of(served: Debian, name: str) -> str:
    return served.run("systemctl", "show", "--property=InvocationID", "--value", unit_of(name)).strip()


def test_each_is_started_and_they_swap(served: Debian) -> None:
    assert said_by(served, "a").startswith("a: hi")
    assert said_by(served, "b").startswith("b: hi")
    before = start_of(served, "a"), start_of(served, "b")
    for name in "ababab":
        assert said_by(served, name).startswith(f"{name}: hi")
    assert (start_of(served, "a"), start_of(served, "b")) == before, "they slept and woke, and were not started anew"


@pytest.mark.parametrize("trouble", ["dies", "hangs", "lies"])
def test_one_in_trouble_is_started_anew_by_its_unit(served: Debian, trouble: str) -> None:
    """lies: the engine reports that it is awake, and answers differently than before it slept."""
    assert said_by(served, "a").startswith("a: hi")
    if trouble == "lies":
        (served.root / "srv/fault-a").write_text("FAULT=corrupt\n")
        served.run("systemctl", "restart", unit_of("a"))
        assert said_by(served, "a").startswith("a: hi")
    before = start_of(served, "a")
    if trouble != "lies":
        served.run("systemctl", "kill", f"--signal={'KILL' if trouble == 'dies' else 'STOP'}", unit_of("a"))
    assert said_by(served, "b").startswith("b: hi")
    assert said_by(served, "a").startswith("a: hi")
    assert start_of(served, "a") != before


def test_the_keeper_alone_has_rights_and_few(served: Debian) -> None:
    said = served.run("systemd-analyze", "verify", "--man=no", "/usr/local/lib/systemd/system/winhost-keeper.service")
    assert "winhost-keeper" not in said
    log = served.journal("winhost-keeper.service")
    assert f"start {unit_of('a')}" in log
    assert "notification message" not in log


def told_by_the_program(served: Debian, mode: str | None = None) -> dict[str, Any]:
    """Send the request of `winhost yield`."""
    (served.root / "srv/serving.py").write_text(serving_text())
    gateway = {"unit": UNIT, "address": "127.0.0.1", "port": 8443, "tls": False}
    request = json.dumps({"do": "yield", "gateway": gateway, "mode": mode})
    said = served.run("sh", "-c", 'echo "$1" | python3 /srv/serving.py', "sh", request)
    (found,) = json.loads(said.strip().splitlines()[-1])["answers"]
    assert found.pop("ok"), found
    return dict(found)


def awake(served: Debian) -> list[str]:
    """Models that are on their GPU, by the gateway's metrics."""
    lines = answer(served, "/metrics", key=METRICS_KEY)[1].splitlines()
    states = [line for line in lines if line.startswith("winhost_gateway_engine_state{") and line.endswith(" 1")]
    return [line.split('model="')[1].split('"')[0] for line in states if 'state="awake"' in line]


def test_models_leave_their_gpu_for_the_administrator_for_a_key_and_where_nobody_asks(
    served: Debian, asked: Agent
) -> None:
    key, line = new_key("desk", "yield")
    yields = {"mode": "/run/winhost-gateway/yield", "drain": 1}
    converge(asked, {**SETTINGS, "yields": yields, "turns": {**SETTINGS["turns"], "idle": 2}}, line)
    ask = {"model": "a", "prompt": "hi"}

    assert said_by(served, "a").startswith("a: hi")
    wait_for(lambda: not awake(served))  # nobody asks for two seconds
    assert said_by(served, "a").startswith("a: hi")

    wait_for(lambda: told_by_the_program(served) == {"mode": "auto", "code": ""})
    told_by_the_program(served, "now")
    wait_for(lambda: told_by_the_program(served) == {"mode": "now", "code": "yielded"})
    status, body = answer(served, "/v1/completions", ask)
    assert (status, json.loads(body)["error"]["code"], awake(served)) == (503, "yielded", [])
    said = served.run("sh", "-c", f"python3 /srv/ask.py {KEY} POST /v1/completions '{json.dumps(ask)}' 2>&1 >/dev/null")
    assert int(said) > 0, "it says when to come back"
    told_by_the_program(served, "auto")
    wait_for(lambda: told_by_the_program(served)["code"] == "")
    assert said_by(served, "a").startswith("a: hi")

    wish = {"state": "yield", "seconds": 4}
    assert answer(served, "/winhost/yield", wish)[0] == 403, "any other key is good for it"
    assert answer(served, "/v1/completions", ask, key)[0] == 403
    assert answer(served, "/winhost/yield", wish, key)[0] == 200
    wait_for(lambda: answer(served, "/ready")[0] == 503)
    wait_for(lambda: answer(served, "/ready")[0] == 200)  # the wish ends by itself
    assert said_by(served, "b").startswith("b: hi")
    told_by_the_program(served, "never")
    # The program looks each second.
    wait_for(lambda: json.loads(answer(served, "/winhost/yield", wish, key)[1])["mode"] == "never")
    assert said_by(served, "a").startswith("a: hi")
    wait_for(lambda: "key=desk route=/winhost/yield" in served.journal(UNIT))
