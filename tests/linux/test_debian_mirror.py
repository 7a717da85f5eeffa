"""Mirrors of KV caches on a real Debian 12: who enters the folder, what keeps it small, and who reaches a server."""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.linux.debian import Debian
from tests.linux.test_debian_gateway import LINE
from tests.processes import PATIENCE_S
from tests.serving.situations import linux
from tests.serving.stacks import request
from winhost.connect.agent import Agent
from winhost.model.units import GiB
from winhost.model.workload import KvMirror, Mirror
from winhost.resources.registry import RULES
from winhost.serving.stack import stack

pytestmark = [pytest.mark.real, pytest.mark.timeout(2400)]  # they take turns, and one is fetched

PROGRAM = "/opt/stand-in/vllm"
NAME, UNIT, SERVER = "mirrored", "winhost-engine-mirrored.service", "winhost-engine-mirrored--lmcache.service"
FOLDER = "/var/lib/winhost-kv-mirrored"
# It writes blocks where it is told to, or asks the server that it is told of.
ENGINE = """\
#!/usr/bin/python3
import http.server, json, os, socket, socketserver, sys, time
words = dict(word.split("=", 1) for word in sys.argv if "=" in word)
extra = json.loads(words["--kv-transfer-config"])["kv_connector_extra_config"]
if "secondary_tiers" in extra:
    root = extra["secondary_tiers"][0]["root_dir"] + "/model_r0/abc"
    os.makedirs(root, exist_ok=True)
    for number in range(20):
        with open(f"{root}/{number:02d}.bin", "wb") as file:
            file.write(bytes(1000))
        os.utime(f"{root}/{number:02d}.bin", (number + 1, number + 1))
else:
    host, port = extra["lmcache.mp.host"].removeprefix("tcp://"), extra["lmcache.mp.port"]
    for _ in range(50):
        try:
            said = socket.create_connection((host, port), 2).recv(100)
            break
        except OSError:
            time.sleep(0.2)
    print("the server said", said.decode(), "to", os.getuid(), flush=True)
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def address_string(self):
        return "gateway"
class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    pass
Server(words["--uds"], Answer).serve_forever()
"""
LMCACHE = """\
#!/usr/bin/python3
import os, socket, sys
assert sys.argv[1] == "server" and "--l1-size-gb=10" in sys.argv, sys.argv
words = dict(word.split("=", 1) for word in sys.argv if "=" in word)
with socket.create_server((words["--host"], int(words["--port"]))) as server:
    while True:
        to, _ = server.accept()
        to.sendall(str(os.getuid()).encode())
        to.close()
"""


def put(debian: Debian, asked: Agent, through: Mirror, keep: int = 100 * GiB) -> None:
    """Install what a run would, without other hosts' files and the gateway."""
    for name, text in (("vllm", ENGINE), ("lmcache", LMCACHE)):
        program = debian.root / f"opt/stand-in/{name}"
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(text)
        program.chmod(0o755)
    plain = request(NAME, runtime=PROGRAM, image=None, keys=(LINE,))
    workload = replace(plain.workload, kv_mirror=KvMirror(through, 10 * GiB, keep))
    entries: list[Any] = list(stack(linux("ubuntu-2xh100"), replace(plain, workload=workload)).entries)
    ours = ("LinuxGroup", "EngineUnit")
    mirrors = [each for each in entries if "kv-prune" in str(each["key"]) or f"/engine-{NAME}" in str(each["key"])]
    wanted = [each for each in entries if each["resource"] in ours or each in mirrors]
    wanted.sort(key=lambda each: (RULES[each["resource"]].order, list(each["key"].values())))
    for each in wanted:
        after = asked.set(each["resource"], each["key"], each["desired"], {}, {"accept": ["network"]}).after
        assert {name: after[name] for name in each["desired"]} == each["desired"], each["title"]


@pytest.fixture
def cleared(debian: Debian, asked: Agent) -> Iterator[Debian]:
    yield debian
    for unit in (UNIT, SERVER):
        asked.set("EngineUnit", {"unit": unit}, {"text": None, "enabled": False, "active": False}, {}, {})
    debian.run("sh", "-c", "systemctl disable --now winhost-kv-prune.timer 2>/dev/null || true")


def files(debian: Debian) -> list[str]:
    return sorted(debian.run("sh", "-c", f"cd {FOLDER}/ && find . -name '*.bin' -printf '%f\\n'").split())


def test_files_are_the_engines_alone_and_stay_within_their_size(cleared: Debian, asked: Agent) -> None:
    put(cleared, asked, Mirror.TIERS, keep=5000)
    assert files(cleared) == [f"{number:02d}.bin" for number in range(20)]
    mode = cleared.run("stat", "-L", "-c", "%a %U", FOLDER).split()
    assert mode[0] == "700"
    assert mode[1] != "root"
    assert cleared.run("systemctl", "is-active", "winhost-kv-prune.timer").strip() == "active"
    cleared.run("systemctl", "start", "winhost-kv-prune.service")
    assert files(cleared) == [f"{number:02d}.bin" for number in range(15, 20)]
    assert "15 files removed" in cleared.journal("winhost-kv-prune.service")
    cleared.run("sh", "-c", "id somebody >/dev/null 2>&1 || useradd --system --no-create-home somebody")
    said = cleared.run("sh", "-c", f"runuser -u somebody -- ls {FOLDER}/ 2>&1 || true")
    assert "Permission denied" in said


def test_a_server_and_its_engine_have_one_user_and_a_network_of_their_own(cleared: Debian, asked: Agent) -> None:
    put(cleared, asked, Mirror.LMCACHE)
    until, said = time.monotonic() + PATIENCE_S, ""
    while "the server said" not in said and time.monotonic() < until:
        said = cleared.journal(UNIT)
        time.sleep(0.5)
    (line,) = (line for line in said.splitlines() if line.startswith("the server said"))
    theirs, ours = line.removeprefix("the server said ").split(" to ")
    assert theirs == ours != "0"
    assert ":15B3" not in cleared.run("cat", "/proc/net/tcp"), "nobody else of the machine sees port 5555"
    before = cleared.run("systemctl", "show", "--property=MainPID", "--value", SERVER).strip()
    cleared.run("systemctl", "restart", UNIT)
    after = cleared.run("systemctl", "show", "--property=MainPID", "--value", SERVER).strip()
    assert before == after != "0", "what the server keeps outlives its engine"
