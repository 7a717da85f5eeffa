"""Engines, gateway and their last check as units of a real Debian 12, with a stand-in for vLLM's program.

The stand-in opens what a real one would: its socket, and ports as workers over several GPUs have them.
"""

import json
import re
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.linux.debian import INSIDE, Debian
from tests.processes import PATIENCE_S
from tests.serving.situations import linux
from tests.serving.stacks import request
from winhost.connect.agent import Agent
from winhost.connect.wire_errors import RemoteError
from winhost.gateway.api_keys import new_key
from winhost.resources.registry import RULES
from winhost.serving.stack import Stack, stack

pytestmark = [pytest.mark.real, pytest.mark.timeout(2400)]  # they take turns, and one is fetched

KEY, LINE = new_key("alice")
PROGRAM = "/opt/stand-in/vllm"
ENGINE = """\
#!/usr/bin/python3
import asyncio, json, os, socket, sys
from aiohttp import web
assert sys.argv[1] == "serve", sys.argv
path = next(word[6:] for word in sys.argv if word.startswith("--uds="))
worker = socket.create_server(("0.0.0.0", 29500))
other = os.fork()
if not other:
    os.setsid()
    os.execv("/bin/sleep", ["a-worker-that-stays", "3600"])
def reached(place):
    try:
        socket.socket(socket.AF_UNIX).connect(place)
        return "reached"
    except OSError as error:
        return type(error).__name__
async def answer(request):
    if request.method == "GET":
        return web.json_response({place: reached(place) for place in request.query.getall("try", [])})
    asked = json.loads(await request.read())
    return web.json_response({"model": asked["model"], "choices": [{"text": "yes"}]})
async def main():
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.UnixSite(runner, path).start()
    await asyncio.Event().wait()
asyncio.run(main())
"""
TRY = """\
import socket, sys
for place in sys.argv[1:]:
    try:
        if place.startswith("/"):
            socket.socket(socket.AF_UNIX).connect(place)
        else:
            socket.create_connection((place.rpartition(":")[0], int(place.rpartition(":")[2])), 2)
        print("reached", place)
    except OSError as error:
        print(type(error).__name__, place)
"""
# What the group of the gateway reaches: the socket of another engine, and the keeper's, in folders as theirs are.
OTHERS = ("/run/winhost-engines/other/engine.sock", "/run/winhost-keeper/keeper.sock")
LISTEN = """\
import os, signal, socket, sys
os.umask(0o007)
listening = [socket.socket(socket.AF_UNIX) for _ in sys.argv[1:]]
for each, place in zip(listening, sys.argv[1:]):
    os.makedirs(os.path.dirname(place), 0o750, exist_ok=True)
    each.bind(place)
    each.listen()
signal.pause()
"""
ASK = """\
import http.client, socket, sys
to = http.client.HTTPConnection("engine")
to.sock = socket.socket(socket.AF_UNIX)
to.sock.connect(sys.argv[1])
to.request("GET", sys.argv[2])
print(to.getresponse().read().decode())
"""
UNIT = "winhost-engine-chat.service"
SOCKET = "/run/winhost-engines/chat/engine.sock"


def made(**changed: Any) -> Stack:
    return stack(linux("ubuntu-2xh100"), request("chat", runtime=PROGRAM, image=None, keys=(LINE,), **changed))


@pytest.fixture(scope="module")
def served(debian: Debian, asked: Agent) -> Iterator[Debian]:
    """The state after a run, without the model's files."""
    program = debian.root / PROGRAM.lstrip("/")
    program.parent.mkdir(parents=True)
    program.write_text(ENGINE)
    program.chmod(0o755)
    for name, text in (("try", TRY), ("listen", LISTEN), ("ask_engine", ASK)):
        (debian.root / f"srv/{name}.py").write_text(text)
    debian.run("sh", "-c", "id somebody >/dev/null 2>&1 || useradd --system --no-create-home somebody")
    wanted = [each for each in list[Any](made().entries) if each["resource"] != "ModelFiles"]
    wanted.sort(key=lambda each: (RULES[each["resource"]].order, list(each["key"].values())))
    for each in wanted:
        after = asked.set(each["resource"], each["key"], each["desired"], {}, {"accept": ["network"]}).after
        assert {name: after[name] for name in each["desired"]} == each["desired"], each["title"]
    yield debian
    asked.set("EngineUnit", {"unit": UNIT}, {"text": None, "enabled": False, "active": False}, {}, {})
    debian.run("systemctl", "stop", "winhost-gateway.service")


def test_it_serves_and_starts_with_the_machine(served: Debian, asked: Agent) -> None:
    assert asked.get("ServingReady", {}) == {"ready": True}
    assert served.run("systemctl", "is-enabled", UNIT).strip() == "enabled"
    assert served.run("stat", "-c", "%a %G", "/run/winhost-engines/chat").split() == ["750", "winhost-engines"]


def test_nobody_else_reaches_the_engine_or_its_workers(served: Debian) -> None:
    """Another user tries the loopback address and every other address of the machine."""
    addresses = ["127.0.0.1", *served.run("hostname", "-I").split()]
    places = [SOCKET, *(f"{each}:29500" for each in addresses if ":" not in each)]
    said = served.run("runuser", "-u", "somebody", "--", "python3", "/srv/try.py", *places)
    assert said.count("\n") == len(places)
    assert "reached" not in said
    assert "PermissionError" in said.splitlines()[0]


def test_an_engine_reaches_no_other_engine_and_not_the_keeper(served: Debian) -> None:
    """An engine that is taken over could run code in others by /collective_rpc, and stop them with the keeper."""
    listen = ["--unit=others", "--property=Group=winhost-engines", "python3", "/srv/listen.py", *OTHERS]
    served.run("systemd-run", "--quiet", "--collect", *listen)
    try:
        over = time.monotonic() + PATIENCE_S
        while not (served.root / OTHERS[1].lstrip("/")).is_socket() and time.monotonic() < over:
            time.sleep(0.2)
        gateway = ["runuser", "-u", "somebody", "-g", "winhost-engines", "--", "python3", "/srv/try.py", *OTHERS]
        assert served.run(*gateway).count("reached") == len(OTHERS)
        query = "/try?" + "&".join(f"try={place}" for place in OTHERS)
        said = json.loads(served.run("python3", "/srv/ask_engine.py", SOCKET, query))
        assert said == dict.fromkeys(OTHERS, "PermissionError")
    finally:
        served.run("systemctl", "stop", "others.service")
        served.run("rm", "-r", *(place.rpartition("/")[0] for place in OTHERS))


def test_no_other_machine_and_no_windows_reaches_a_port_of_it(served: Debian) -> None:
    """Root sees none; WSL's relay, by which Windows' localhost comes, passes on only what it sees there."""
    with pytest.raises(OSError, match=r"refused|timed out|unreachable"):
        socket.create_connection((INSIDE, 29500), 5)
    assert ":29500" not in served.run("cat", "/proc/net/tcp") + served.run("ss", "-ltn")


def test_the_unit_is_one_that_systemd_accepts_and_is_hardened(served: Debian) -> None:
    verified = served.run(
        "sh", "-c", f"systemd-analyze verify --man=no /usr/local/lib/systemd/system/{UNIT} 2>&1 || true"
    )
    assert "winhost-engine" not in verified
    found = re.search(
        r"exposure level for \S+: ([0-9.]+)", served.run("systemd-analyze", "security", "--no-pager", UNIT)
    )
    assert found
    assert float(found[1]) < 5


def test_a_killed_server_leaves_nothing(served: Debian, asked: Agent) -> None:
    """The core and the workers would keep the memory of the GPU."""
    assert "a-worker-that-stays" in served.run("sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    before = served.run("systemctl", "show", "--property=MainPID", "--value", UNIT).strip()
    served.run("kill", "-KILL", before)
    served.run("systemctl", "stop", UNIT)
    assert "a-worker-that-stays" not in served.run("sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    assert asked.get("EngineUnit", {"unit": UNIT})["active"] is False
    asked.set("EngineUnit", {"unit": UNIT}, {"active": True}, {}, {})
    asked.set("ServingReady", {}, {"ready": True}, {}, {})


def test_an_engine_that_ends_while_it_starts_is_not_waited_for(served: Debian, asked: Agent) -> None:
    """The unit has an hour for a start, and systemd starts units that wait for it."""
    program = served.root / PROGRAM.lstrip("/")
    program.write_text("#!/bin/sh\necho out of memory\nexit 1\n")
    asked.set("EngineUnit", {"unit": UNIT}, {"active": False}, {}, {})
    with pytest.raises(RemoteError, match="out of memory"):  # a wait to its end would say that it does not serve
        asked.set("EngineUnit", {"unit": UNIT}, {"active": True}, {}, {"within": 600})
    program.write_text(ENGINE)
    asked.set("EngineUnit", {"unit": UNIT}, {"active": True}, {}, {})
    asked.set("ServingReady", {}, {"ready": True}, {}, {})


def test_a_new_version_that_fails_gives_its_place_back_to_the_old_one(served: Debian, asked: Agent) -> None:
    """systemd would start the new one again and again; a rollback writes the old text, and the old engine runs."""
    broken = served.root / "opt/stand-in/newer"
    broken.write_text("#!/bin/sh\necho this driver is too old\nexit 1\n")
    broken.chmod(0o755)
    old = asked.get("EngineUnit", {"unit": UNIT})["text"]
    with pytest.raises(RemoteError, match="this driver is too old"):
        asked.set("EngineUnit", {"unit": UNIT}, {"text": old.replace(PROGRAM, "/opt/stand-in/newer")}, {}, {})
    assert asked.set("EngineUnit", {"unit": UNIT}, {"text": old}, {}, {"undoing": True}).after["active"] is True
    asked.set("ServingReady", {}, {"ready": True}, {}, {})
    asked.set("EngineUnit", {"unit": UNIT}, {"active": False}, {}, {})
    stopped = asked.set("EngineUnit", {"unit": UNIT}, {"text": old + "# newer\n"}, {}, {}).after
    assert stopped["active"] is False, "what somebody stopped stays stopped"
    asked.set("EngineUnit", {"unit": UNIT}, {"text": old, "active": True}, {}, {})


def test_an_endpoint_that_does_not_serve_is_told(served: Debian, asked: Agent) -> None:
    asked.set("EngineUnit", {"unit": UNIT}, {"active": False}, {}, {})
    over = time.monotonic() + PATIENCE_S  # the gateway believes an answer for 15 seconds
    while (asked.get("ServingReady", {}) or {})["ready"] and time.monotonic() < over:
        time.sleep(1)
    with pytest.raises(RemoteError, match="does not serve"):
        asked.set("ServingReady", {}, {"ready": True}, {}, {"within": 3})
    asked.set("EngineUnit", {"unit": UNIT}, {"active": True}, {}, {})
