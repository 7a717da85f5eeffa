"""Models that take turns beside one that is kept, as a plan puts them onto a real Debian 12, by a stand-in for vLLM."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tests.gateway as gateway_tests
from tests.linux.debian import Debian
from tests.linux.test_debian_gateway import ASK, LINE, answer
from tests.serving.situations import linux, model
from tests.serving.stacks import request
from winhost.connect.agent import Agent
from winhost.model.workload import ModelState, Workload
from winhost.resources.registry import RULES
from winhost.serving.stack import Stack, stack

pytestmark = [pytest.mark.real, pytest.mark.timeout(2400)]  # they take turns, and one is fetched

PROGRAM = "/opt/stand-in/vllm"
# Each has a GPU of its own, so that what keeps them from each other is the gateway.
ENGINE = """\
#!/bin/sh
for word; do
  case $word in
    --uds=*) socket=${word#--uds=} ;;
    --served-model-name=*) name=${word#--served-model-name=} ;;
  esac
done
export PYTHONPATH=/srv
exec /usr/bin/python3 -B -m tests.gateway.protocol_server "$name" "$socket" 0.02
"""
TURNS, KEPT = ("chat", "coder"), "kept"
NAMES = (*TURNS, KEPT)


def unit(name: str) -> str:
    return f"winhost-engine-{name}.service"


def made() -> Stack:
    states = dict.fromkeys(TURNS, ModelState.SLEEPING)
    models = tuple(model(name, state=states.get(name, ModelState.RESIDENT)) for name in NAMES)
    plain = request(*NAMES, runtime=PROGRAM, image=None, keys=(LINE,), vllm="0.24.0")
    workload = Workload(models, versions=plain.workload.versions)
    return stack(linux("ubuntu-2xh100"), request(*NAMES, runtime=PROGRAM, image=None, keys=(LINE,), workload=workload))


@pytest.fixture(scope="module")
def served(debian: Debian, asked: Agent) -> Iterator[Debian]:
    """The state after a run, without the model's files."""
    package = debian.root / "srv/tests/gateway"
    package.mkdir(parents=True, exist_ok=True)
    for name in ("protocol_server.py", "vllm_protocol.py"):
        text = Path(*gateway_tests.__path__, name).read_text()
        (package / name).write_text(text.replace(", shutdown_timeout=0", ""))  # aiohttp 3.8 has it elsewhere
    (debian.root / "srv/ask.py").write_text(ASK)
    program = debian.root / PROGRAM.lstrip("/")
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(ENGINE)
    program.chmod(0o755)
    wanted = [each for each in list[Any](made().entries) if each["resource"] != "ModelFiles"]
    wanted.sort(key=lambda each: (RULES[each["resource"]].order, list(each["key"].values())))
    for each in wanted:
        after = asked.set(each["resource"], each["key"], each["desired"], {}, {"accept": ["network"]}).after
        assert {name: after[name] for name in each["desired"]} == each["desired"], each["title"]
    yield debian
    for name in NAMES:
        asked.set("EngineUnit", {"unit": unit(name)}, {"text": None, "enabled": False}, {}, {})
    debian.run("systemctl", "stop", "winhost-gateway.service", "winhost-keeper.service")


def shown(served: Debian, name: str, *properties: str) -> list[str]:
    words = [f"--property={each}" for each in properties]
    return served.run("systemctl", "show", "--value", *words, unit(name)).split("\n")[: len(properties)]


def said_by(served: Debian, name: str) -> str:
    status, body = answer(served, "/v1/completions", {"model": name, "prompt": "hi"})
    assert status == 200, body
    return str(json.loads(body)["choices"][0]["text"])


def test_all_of_them_answer_and_swap_without_new_starts(served: Debian, asked: Agent) -> None:
    assert (asked.get("ServingReady", {}) or {})["ready"]
    starts = {name: shown(served, name, "InvocationID") for name in NAMES}
    for name in (*NAMES, *NAMES):
        assert said_by(served, name).startswith(f"{name}: hi")
    assert {name: shown(served, name, "InvocationID") for name in NAMES} == starts


def test_the_kept_one_had_started_before_them(served: Debian) -> None:
    """The gateway requests the others from the beginning of the run."""
    (kept,) = shown(served, KEPT, "ActiveEnterTimestampMonotonic")
    for name in TURNS:
        (began,) = shown(served, name, "InactiveExitTimestampMonotonic")
        assert int(began) >= int(kept)


def test_the_gateway_alone_starts_them_with_the_machine(served: Debian) -> None:
    states = {name: shown(served, name, "UnitFileState")[0] for name in NAMES}
    assert states == {"chat": "static", "coder": "static", "kept": "enabled"}


@pytest.mark.parametrize("name", TURNS)
def test_units_are_ones_that_systemd_accepts(served: Debian, name: str) -> None:
    path = f"/usr/local/lib/systemd/system/{unit(name)}"
    assert "winhost-engine" not in served.run("sh", "-c", f"systemd-analyze verify --man=no {path} 2>&1 || true")


def test_taken_back_beside_a_gateway_that_starts_them_none_is_left(served: Debian, asked: Agent) -> None:
    for name in TURNS:
        asked.set("EngineUnit", {"unit": unit(name)}, {"text": None, "enabled": False}, {}, {"undoing": True})
    assert answer(served, "/v1/completions", {"model": KEPT, "prompt": "hi"})[0] == 200
    running = served.run("sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    assert "protocol_server kept" in running
    assert "protocol_server c" not in running
