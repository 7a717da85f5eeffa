"""winhost serve on a real Debian: systemd's units, journald's journal, the gateway's process, and a stand-in engine."""

import json
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.linux.debian import Debian
from tests.linux.serving_debian import (
    ENGINE,
    GATEWAY,
    KEY_VARIABLE,
    METRICS_VARIABLE,
    MODEL,
    NAME,
    SOCKET,
    Serving,
    furnished,
)
from tests.linux.test_debian_gateway import KEY
from tests.processes import PATIENCE_S
from winhost.connect.agent import Agent
from winhost.lab.linux.serving import START_LOG

pytestmark = [pytest.mark.real, pytest.mark.timeout(2400)]  # they take turns, and one is fetched

ENGINE_PROGRAM = (
    f"""\
import asyncio, json, os, sys
from aiohttp import web
START = {START_LOG!r}
SOCKET = {SOCKET!r}
"""
    """\
mode = open("/srv/mode").read().strip()
for line in START[:4] if mode == "fail" else START:
    print(line, file=sys.stderr, flush=True)
if mode == "fail":
    sys.exit("RuntimeError: UVA is not available")
print("\\rLoading: 10%|\\rLoading: \\x1b[32m100%\\x1b[0m token=hf_Abcdefghij0123456789", file=sys.stderr, flush=True)
async def answer(request):
    if request.path == "/health":
        return web.Response()
    if request.path == "/version":
        return web.json_response({"version": "0.33.0"})
    if request.path == "/v1/models":
        return web.json_response({"data": [{"id": "tiny", "max_model_len": 64}]})
    if request.path == "/metrics":
        return web.Response(text='vllm:num_requests_running{engine="0",model_name="tiny"} 2.0\\n')
    asked = json.loads(await request.read())
    if isinstance(asked["prompt"], list):
        return web.json_response({"error": {"message": "maximum context length is 64 tokens"}}, status=400)
    tokens = asked["max_tokens"]
    usage = {"completion_tokens": tokens}
    if not asked.get("stream"):
        return web.json_response({"model": "tiny", "choices": [{"text": "yes"}], "usage": usage})
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for number in range(tokens):
        await response.write(b'data: {"choices": [{"text": "word "}]}\\n\\n')
        await asyncio.sleep(0.01)
    await response.write(b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\\n\\ndata: [DONE]\\n\\n")
    return response
async def main():
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.UnixSite(runner, SOCKET).start()
    await asyncio.Event().wait()
asyncio.run(main())
"""
)


@pytest.fixture(scope="module")
def serve(debian: Debian, asked: Agent, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    (debian.root / "srv/engine.py").write_text(ENGINE_PROGRAM)
    (debian.root / "srv/mode").write_text("good")
    start = "ExecStart=/usr/bin/python3 /srv/engine.py\n"
    yield furnished(debian, asked, tmp_path_factory.mktemp("serve"), KEY, "0.33.0", start)
    debian.run("systemctl", "stop", GATEWAY, ENGINE)


def mode(serve: Serving, word: str) -> None:
    (serve.debian.root / "srv/mode").write_text(word)


def test_what_is_stopped_is_told_and_started(serve: Serving) -> None:
    said = serve("status", NAME, "--json")
    assert (said.code, said.result["models"][0]["state"], said.result["gateway"]["state"]) == (4, "stopped", "stopped")
    said = serve("up", NAME, "--json")
    assert said.code == 0, said.err
    assert [each["outcome"] for each in said.result["units"]] == ["serving", "serving"]
    assert "capturing CUDA graphs" in said.err or "warming up" in said.err
    assert {each["outcome"] for each in serve("up", NAME, "--json").result["units"]} == {"already-serving"}


def test_status_has_what_engine_and_gateway_say(serve: Serving) -> None:
    found = serve("status", NAME, "--metrics-key", f"env:{METRICS_VARIABLE}", "--json")
    assert found.code == 0, found.out
    (model,) = found.result["models"]
    assert (model["state"], model["running"], model["version"], model["length"]) == ("serving", 2, "0.33.0", 64)
    gateway = found.result["gateway"]
    assert (gateway["ready"], gateway["running"], found.result["gpus"]) == (True, 0, None)
    assert isinstance(gateway["answered"], int)


def test_requests_are_tested_and_timed(serve: Serving) -> None:
    said = serve("test", NAME, "--api-key", f"env:{KEY_VARIABLE}", "--json")
    assert said.code == 0, said.out
    found = {each["check"]: each for each in said.result["requests"]}
    assert {name: each["status"] for name, each in found.items()} == {
        "completion": 200,
        "stream": 200,
        "too-long": 400,
        "wrong-model": 404,
        "no-key": 401,
        "private": 404,
    }
    assert found["stream"]["tokens"] == 64
    assert 0 < found["stream"]["first_token"] < found["stream"]["seconds"]
    assert 10 < found["stream"]["per_second"] < 200  # it says a hundred words a second, at most
    assert KEY not in said.out + said.err


def test_the_key_goes_to_nobody_but_the_gateway(serve: Serving) -> None:
    """If another user's process has the port, winhost does not even connect."""
    serve.debian.run("systemctl", "stop", GATEWAY)
    listen = "import socket; socket.create_server(('127.0.0.1', 8443)).accept(); open('/var/tmp/reached', 'w')"
    serve.debian.run("systemd-run", "--quiet", "--collect", "--unit=thief", "-pUser=engine", "python3", "-c", listen)
    time.sleep(1)
    try:
        said = serve("test", NAME, "--api-key", f"env:{KEY_VARIABLE}", "--json")
        assert (said.code, said.result["error"]["kind"]) == (1, "NotStarted")
        assert serve("status", NAME, "--json").result["gateway"]["ready"] is None
        assert not (serve.debian.root / "var/tmp/reached").exists()
    finally:
        serve.debian.run("systemctl", "stop", "thief.service")
        serve.debian.run("systemctl", "start", GATEWAY)


def test_logs_are_shown_without_secrets_and_colours(serve: Serving) -> None:
    said = serve("logs", NAME, "--model", MODEL, "--json")
    texts = [each["text"] for each in json.loads(said.out)["results"]]
    assert START_LOG[0] in texts
    assert "Loading: 100% token=***" in texts
    assert "hf_Abc" not in said.out
    assert serve("logs", NAME, "--gateway", "-n", "1").out.count("\n") == 1


def test_a_long_log_comes_page_by_page_and_whole(serve: Serving) -> None:
    say = "import sys\nfor n in range(3000): print(n, ', [{' * 30)"
    serve.debian.run("systemd-run", "--quiet", "--wait", "--unit=winhost-engine-tiny2", "python3", "-c", say)
    told = serve.debian.root / "etc/winhost/serving.json"
    before = told.read_text()
    try:
        told.write_text(before.replace("winhost-engine-tiny.service", "winhost-engine-tiny2.service"))
        said = serve("logs", NAME, "--model", MODEL, "-n", "5000", "--json")
        numbers = [text.split()[0] for each in json.loads(said.out)["results"] if "[{" in (text := each["text"])]
        assert numbers == [str(number) for number in range(3000)]
    finally:
        told.write_text(before)


def test_following_ends_with_ctrl_c_and_a_whole_document(serve: Serving) -> None:
    command = [*serve.command, "logs", NAME, "--follow", "-n", "1", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=serve.environ)
    time.sleep(4)
    serve("test", NAME, "--api-key", f"env:{KEY_VARIABLE}")  # the gateway writes a line for each
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert sum("/v1/completions" in each["text"] for each in json.loads(out)["results"]) >= 4


def test_a_failure_is_told_with_its_remedy_and_is_not_tried_again_and_again(serve: Serving) -> None:
    assert serve("down", NAME, "--yes").code == 0
    mode(serve, "fail")
    try:
        said = serve("up", NAME, "--json")
        error = said.result["error"]
        assert (said.code, error["kind"]) == (1, "StartFailed")
        assert "vLLM cannot share pinned memory with the GPU here." in error["what"]
        time.sleep(3)
        assert serve.debian.run("systemctl", "show", "-pActiveState", "--value", ENGINE).strip() in (
            "inactive",
            "failed",
        )
    finally:
        mode(serve, "good")


def test_down_lets_a_stream_end_and_engines_stop_after_it(serve: Serving) -> None:
    assert serve("up", NAME).code == 0
    body = json.dumps({"model": MODEL, "prompt": "a", "stream": True, "max_tokens": 300})
    (serve.debian.root / "srv/ask.py").write_text(ASK)
    asking = f"python3 /srv/ask.py {serve.key} '{body}' >/run/said"
    serve.debian.run("systemd-run", "--quiet", "--collect", "--unit=asking", "sh", "-c", asking)
    time.sleep(1)
    said = serve("down", NAME, "--yes", "--json")
    assert [each["source"] for each in said.result["units"]] == ["gateway", MODEL]
    assert serve.debian.run("cat", "/run/said").rstrip().endswith("data: [DONE]")
    assert {each["outcome"] for each in serve("down", NAME, "--yes", "--json").result["units"]} == {"already-stopped"}


ASK = """\
import http.client, sys
to = http.client.HTTPConnection("127.0.0.1", 8443, timeout=60)
headers = {"Authorization": "Bearer " + sys.argv[1], "Content-Type": "application/json"}
to.request("POST", "/v1/completions", sys.argv[2], headers)
print(to.getresponse().read().decode())
"""
