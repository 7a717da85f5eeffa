"""The gateway as a unit of a real Debian 12, run by its Python, before a stand-in for vLLM."""

import json
import re
import time
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import pytest

from tests.linux.debian import Debian
from tests.processes import PATIENCE_S, wait_for
from winhost.connect.agent import Agent
from winhost.gateway.api_keys import new_key
from winhost.resources.linux.linux_scripts import serving_text
from winhost.resources.registry import RULES
from winhost.serving.gateway_entries import gateway_entries

pytestmark = [pytest.mark.real, pytest.mark.timeout(2400)]  # they take turns, and one is fetched

KEY, LINE = new_key("alice")
METRICS_KEY, METRICS_LINE = new_key("prometheus", "metrics")
UNIT = "winhost-gateway.service"
UNIT_FILE = f"/usr/local/lib/systemd/system/{UNIT}"
SETTINGS: dict[str, Any] = {
    "listen": {"address": "127.0.0.1", "port": 8443},
    "models": [{"name": "org/tiny", "engine": {"socket": "/run/engine/engine.sock"}, "served_as": "tiny"}],
    "limits": {"hold": 10, "drain": 10},
}
ENGINE = """\
import asyncio, json, os
from aiohttp import web
async def answer(request):
    asked = json.loads(await request.read())
    if not asked.get("stream"):
        return web.json_response({"model": asked["model"], "choices": [{"text": "yes"}]})
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for number in range(20):
        await response.write(b"data: {}\\n\\n")
        await asyncio.sleep(0.1)
    await response.write(b"data: [DONE]\\n\\n")
    return response
async def main():
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.UnixSite(runner, "/run/engine/engine.sock").start()
    os.chmod("/run/engine/engine.sock", 0o660)
    await asyncio.Event().wait()
asyncio.run(main())
"""
ENGINE_UNIT = """\
[Service]
User=engine
Group=winhost-engines
UMask=0007
RuntimeDirectory=engine
RuntimeDirectoryMode=0750
ExecStart=/usr/bin/python3 /srv/engine.py
"""
# The status, or why there is no connection, and the body: Debian's minimum has no curl.
ASK = """\
import http.client, sys
key, method, path, body = sys.argv[1:]
to = http.client.HTTPConnection("127.0.0.1", 8443, timeout=30)
to.request(method, path, body or None, {"Authorization": "Bearer " + key, "Content-Type": "application/json"})
answer = to.getresponse()
print(answer.status, answer.read().decode())
print(answer.getheader("Retry-After") or "", file=sys.stderr)
"""
KEEP = """\
import json, socket, sys
to = socket.socket(socket.AF_UNIX)
try:
    to.connect(sys.argv[1])
    to.sendall(json.dumps({"do": sys.argv[2], "unit": sys.argv[3]}).encode() + b"\\n")
    print(to.makefile().readline())
except OSError as error:
    print(type(error).__name__)
"""


@pytest.fixture(scope="module")
def served(debian: Debian, asked: Agent) -> Iterator[Debian]:
    """A Debian with the gateway, installed with winhost's resources. The engine is installed and does not run."""
    units = debian.root / "etc/systemd/system"
    (units / "engine.service").write_text(ENGINE_UNIT)
    (debian.root / "srv/engine.py").write_text(ENGINE)
    (debian.root / "srv/ask.py").write_text(ASK)
    debian.run("useradd", "--system", "--no-create-home", "engine")
    debian.run("useradd", "--system", "--no-create-home", "somebody")
    converge(asked, SETTINGS)
    debian.run("systemctl", "daemon-reload")
    yield debian
    debian.run("systemctl", "stop", UNIT, "engine.service")


def converge(agent: Agent, settings: dict[str, Any], *keys: str) -> None:
    """Each entry in the order of a run. keys: more lines."""
    entries = gateway_entries(settings, [LINE, METRICS_LINE, *keys], None)
    entries.sort(key=lambda each: (RULES[each["resource"]].order, list(each["key"].values())))
    for each in entries:
        after = agent.set(each["resource"], each["key"], each["desired"], {}, {"accept": ["network"]}).after
        assert {name: after[name] for name in each["desired"]} == each["desired"], each["title"]


def answer(served: Debian, path: str, body: Any = None, key: str = KEY) -> tuple[int, str]:
    data = "" if body is None else json.dumps(body)
    said = served.run("python3", "/srv/ask.py", key, "POST" if data else "GET", path, data)
    return int(said[:3]), said[4:]


def folder(served: Debian) -> str:
    return served.run("systemctl", "show", "--property=WorkingDirectory", "--value", UNIT).strip()


def test_the_unit_is_hardened(served: Debian) -> None:
    said = served.run("systemd-analyze", "security", "--no-pager", UNIT)
    found = re.search(r"exposure level for \S+: ([0-9.]+)", said)
    assert found
    assert float(found[1]) < 2, said
    assert "winhost-gateway" not in served.run("systemd-analyze", "verify", "--man=no", UNIT_FILE)


def test_it_waits_for_the_engine_and_lets_it_answer(served: Debian) -> None:
    assert answer(served, "/health")[0] == 200
    served.run("systemctl", "start", "engine.service")
    status, body = answer(served, "/v1/completions", {"model": "org/tiny", "prompt": "a"})
    assert (status, json.loads(body)["model"]) == (200, "tiny")
    assert answer(served, "/ready")[0] == 200
    assert [answer(served, path)[0] for path in ("/sleep", "/v1/../sleep")] == [404, 404]
    assert answer(served, "/v1/models", key="wh-" + "x" * 40)[0] == 401


def test_the_unit_may_have_the_process_that_reads_large_bodies(served: Debian) -> None:
    status, body = answer(served, "/v1/completions", {"model": "org/tiny", "prompt": "a" * 100_000})
    assert (status, json.loads(body)["model"]) == (200, "tiny")
    assert "gateway.body_process" in served.run("systemctl", "status", "--no-pager", "--full", UNIT)


def test_nobody_else_reaches_the_engine_or_the_keys(served: Debian) -> None:
    for path, command in (("/run/engine/engine.sock", "ls"), (f"{folder(served)}/keys", "cat")):
        done = served.run("sh", "-c", f"runuser -u somebody -- {command} {path} 2>&1 || true")
        assert "Permission denied" in done


def test_the_keeper_hears_the_gateways_group_alone_and_moves_only_units_of_the_settings(
    served: Debian, asked: Agent
) -> None:
    unit, socket = "winhost-engine-tiny.service", "/run/winhost-keeper/keeper.sock"
    (served.root / "etc/systemd/system" / unit).write_text("[Service]\nExecStart=/bin/sleep 3600\n")
    (served.root / "srv/keep.py").write_text(KEEP)
    served.run("systemctl", "daemon-reload")
    (model,) = SETTINGS["models"]
    turns = {"gpus": [0], "between": "stop", "unit": unit}
    converge(asked, {**SETTINGS, "models": [{**model, "turns": turns}], "turns": {"keeper": socket}})
    served.run("systemctl", "stop", UNIT)  # which would start the engine, too

    def said(group: str, do: str, which: str) -> str:
        asking = ["runuser", "-u", "somebody", "-g", group, "--", "python3", "/srv/keep.py", socket, do, which]
        return served.run(*asking)

    def active() -> str:
        return served.run("sh", "-c", f"systemctl is-active {unit} || true").strip()

    try:
        assert ("PermissionError" in said("somebody", "start", unit), active()) == (True, "inactive")
        assert "no such unit" in said("winhost-engines", "stop", "ssh.service")
        assert (said("winhost-engines", "start", unit).strip(), active()) == ('{"done": "start"}', "active")
        assert (said("winhost-engines", "stop", unit).strip(), active()) == ('{"done": "stop"}', "inactive")
    finally:
        served.run("systemctl", "stop", "winhost-keeper.service")
        converge(asked, SETTINGS)


def keys(served: Debian, **change: Any) -> dict[str, Any]:
    """Change a key with the program of `winhost serve`, and wait until the gateway has read it."""
    (served.root / "srv/serving.py").write_text(serving_text())
    request = json.dumps({"do": "keys", "change": change or None})
    until = time.monotonic() + PATIENCE_S
    while True:
        said = served.run("sh", "-c", 'echo "$1" | python3 /srv/serving.py', "sh", request)
        (answer,) = json.loads(said.strip().splitlines()[-1])["answers"]
        assert answer["ok"], answer
        if answer["in_force"] or time.monotonic() > until:
            return {each["name"]: each for each in answer["keys"]}
        request = json.dumps({"do": "keys", "change": None})
        time.sleep(0.2)


def test_keys_change_without_a_restart_and_their_use_outlives_one(served: Debian) -> None:
    served.run("systemctl", "start", "engine.service")
    pid = served.run("systemctl", "show", "--property=MainPID", "--value", UNIT)
    key = f"{KEY}-of-carol"
    ask = {"model": "org/tiny", "prompt": "a"}
    assert answer(served, "/v1/completions", ask, key)[0] == 401
    found = keys(served, verb="add", name="carol", sha256=sha256(key.encode()).hexdigest(), expires_in=3600)
    assert found["carol"]["state"] == "active"
    assert answer(served, "/v1/completions", ask, key)[0] == 200
    assert served.run("stat", "--format=%a %U:%G", "/etc/winhost/gateway-keys").split() == [
        "640",
        "root:winhost-engines",
    ]
    assert served.run("systemctl", "show", "--property=MainPID", "--value", UNIT) == pid
    served.run("systemctl", "restart", UNIT)
    assert keys(served)["carol"]["used"]["requests"] == 1
    assert answer(served, "/v1/completions", ask, key)[0] == 200
    assert keys(served, verb="revoke", name="carol")["carol"]["state"] == "revoked"
    assert answer(served, "/v1/completions", ask, key)[0] == 401
    for path in ("/etc/winhost/gateway-keys", "/var/lib/private/winhost-gateway/use.json"):
        assert "Permission denied" in served.run("sh", "-c", f"runuser -u somebody -- cat {path} 2>&1 || true")


def test_changed_keys_and_counts_go_with_the_unit(served: Debian, asked: Agent) -> None:
    keys(served, verb="add", name="erin", sha256="0" * 64)
    left = ("/etc/winhost/gateway-keys", "/var/lib/winhost-gateway", "/var/lib/private/winhost-gateway")
    assert [path for path in left if "No such" in served.run("sh", "-c", f"ls -d {path} 2>&1 || true")] == []
    asked.set("SystemdUnit", {"unit": UNIT}, {"enabled": "disabled", "active": False}, {}, {})
    nothing = {"text": None, "link": None, "mode": None, "owner": None}
    try:
        asked.set("LinuxFile", {"path": UNIT_FILE}, nothing, {}, {})
        assert [path for path in left if "No such" not in served.run("sh", "-c", f"ls -d {path} 2>&1 || true")] == []
    finally:
        converge(asked, SETTINGS)
    assert answer(served, "/health")[0] == 200


def test_no_key_is_shown_by_ps_or_the_journal(served: Debian) -> None:
    pid = served.run("systemctl", "show", "--property=MainPID", "--value", UNIT).strip()
    shown = served.run("sh", "-c", f"tr '\\0' ' ' </proc/{pid}/cmdline; tr '\\0' ' ' </proc/{pid}/environ")
    wait_for(lambda: "key=alice route=/v1/completions" in served.journal(UNIT))
    assert KEY not in shown + served.journal(UNIT)


def test_it_lets_streams_end_when_it_is_stopped(served: Debian) -> None:
    body = json.dumps({"model": "org/tiny", "prompt": "a", "stream": True})
    asking = f"python3 /srv/ask.py {KEY} POST /v1/completions '{body}' >/run/said"
    served.run("systemd-run", "--quiet", "--collect", "--unit=asking", "sh", "-c", asking)
    time.sleep(1)
    served.run("systemctl", "stop", UNIT)
    assert served.run("cat", "/run/said").rstrip().endswith("data: [DONE]")
    assert "Result=success" in served.run("systemctl", "show", "--property=Result", UNIT)


def test_what_changes_is_a_new_folder_and_a_restart_and_so_is_the_way_back(served: Debian, asked: Agent) -> None:
    converge(asked, SETTINGS)
    before, unit = folder(served), (served.root / UNIT_FILE.lstrip("/")).read_text()
    converge(asked, {**SETTINGS, "limits": {"body_bytes": 1000}})
    large = {"model": "org/tiny", "prompt": "a" * 2000}
    assert (folder(served) != before, answer(served, "/v1/completions", large)[0]) == (True, 413)
    asked.set("LinuxFile", {"path": UNIT_FILE}, {"text": unit}, {}, {})
    assert (folder(served), answer(served, "/v1/completions", large)[0]) == (before, 200)


def test_wrong_settings_fail_the_start_and_say_why(served: Debian) -> None:
    settings = served.root / folder(served).lstrip("/") / "settings.json"
    settings.write_text(json.dumps({**SETTINGS, "listen": {"address": "0.0.0.0", "port": 8443}}))
    try:
        served.run("sh", "-c", f"! systemctl restart {UNIT}")
        log = served.journal(UNIT)
        assert "0.0.0.0:8443 can be reached from other machines without TLS" in log
    finally:
        settings.write_text(json.dumps(SETTINGS))
        served.run("systemctl", "stop", UNIT)
        served.run("systemctl", "reset-failed")
