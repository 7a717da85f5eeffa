"""An engine in a real container of a real Podman on a real Debian 12, as a plan sets it up, behind the gateway.

Its image is made here: the Debian's own Python with a stand-in for vLLM, which opens what a real one over several GPUs
would. A CDI specification stands for GPUs. In the container that this Debian is itself, Podman gets no cgroups and no
keyring for its own.
"""

import hashlib
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.linux.debian import INSIDE, Debian
from tests.linux.test_debian_stack import ASK, ENGINE, TRY
from tests.processes import PATIENCE_S
from tests.serving.situations import linux
from tests.serving.stacks import request
from winhost.connect.agent import Agent
from winhost.core.steps import DesiredResource
from winhost.engine.offline_copies import use_copies
from winhost.gateway.api_keys import new_key
from winhost.model.plan import Offline, OfflineImage
from winhost.resources.registry import RULES
from winhost.serving.stack import EngineImage, Stack, stack

pytestmark = [pytest.mark.real, pytest.mark.timeout(2400)]  # they take turns, and one is fetched

KEY, LINE = new_key("alice")
UNIT, CONTAINER = "winhost-engine-chat.service", "winhost-engine-chat"
SOCKET = "/run/winhost-engines/chat/engine.sock"
ARCHIVE, NAME = "/srv/vllm.tar", "registry.example.com/vllm/vllm-openai:v0.33.0"
PINNED = f"registry.example.com/vllm/vllm-openai@sha256:{'ab' * 32}"
MAKE = """\
set -e
mkdir -p /srv/image/usr/local/bin /srv/image/tmp
cp /srv/vllm /srv/image/usr/local/bin/vllm
chmod 755 /srv/image/usr/local/bin/vllm
cp -a /bin /lib /lib64 /srv/image/ 2>/dev/null || true
mkdir -p /srv/image/usr /srv/image/etc
cp -a /usr/bin /usr/lib /usr/lib64 /srv/image/usr/
rm -rf /srv/image/usr/lib/systemd /srv/image/usr/lib/podman /srv/image/usr/bin/podman
tar -C /srv/image -c . | podman import --quiet - %s >/dev/null
podman save --quiet --output %s %s
podman image rm --all >/dev/null
rm -r /srv/image
"""
# The kernel sends no SIGTERM to process 1 of a container unless it has a handler, as vLLM has.
ENDS = "    asyncio.get_running_loop().add_signal_handler(15, os._exit, 0)\n"
FILES = {
    "etc/containers/storage.conf": '[storage]\ndriver = "vfs"\nrunroot = "/run/containers/storage"\n'
    'graphroot = "/var/lib/containers/storage"\n',
    "etc/containers/containers.conf": '[containers]\nkeyring = false\ncgroups = "disabled"\n'
    'default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]\n',
    "etc/cdi/nvidia.yaml": json.dumps(
        {
            "cdiVersion": "0.5.0",
            "kind": "nvidia.com/gpu",
            "devices": [{"name": "all", "containerEdits": {"env": ["GIVEN_GPUS=all"]}}],
        }
    ),
    "srv/vllm": ENGINE.replace('"/bin/sleep", ["a-worker', '"/usr/bin/sleep", ["a-worker').replace(
        "async def main():\n", f"async def main():\n{ENDS}"
    ),
    "srv/try.py": TRY,
    "srv/ask_engine.py": ASK,
}


COUNT = """\
from pathlib import Path
found = 0
for each in Path("/proc").glob("[0-9]*/cmdline"):
    try:
        found += each.read_bytes().startswith(b"a-worker-that-stays")
    except OSError:
        pass
print(found)
"""


def made(sha256: str) -> tuple[Stack, Offline]:
    image = OfflineImage(ARCHIVE, sha256, NAME)
    asked = request("chat", runtime="podman", image=EngineImage(PINNED, 10**6, image), keys=(LINE,))
    return stack(linux("ubuntu-2xh100"), asked), Offline({PINNED: image}, {})


@pytest.fixture(scope="module")
def served(debian: Debian, asked: Agent) -> Iterator[Debian]:
    """The state after a run, without the model's files."""
    for path, text in FILES.items():
        file = debian.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    debian.run("sh", "-c", "id somebody >/dev/null 2>&1 || useradd --system --no-create-home somebody")
    debian.run("apt-get", "update", "--quiet")
    debian.run("apt-get", "install", "--yes", "--quiet", "--no-install-recommends", "podman")
    debian.run("sh", "-c", MAKE % (NAME, ARCHIVE, NAME))
    debian.run("mkdir", "-p", "/srv/winhost/models/chat")
    found, offline = made(hashlib.sha256((debian.root / ARCHIVE.lstrip("/")).read_bytes()).hexdigest())
    wanted = [each for each in list[Any](found.entries) if each["resource"] != "ModelFiles"]
    wanted.sort(key=lambda each: (RULES[each["resource"]].order, list(each["key"].values())))
    for each in wanted:
        plain = DesiredResource(each["resource"], each["key"], each["desired"], each["title"], "")
        desired = dict(use_copies(plain, offline).desired)
        after = asked.set(each["resource"], each["key"], desired, {}, {"accept": ["network"]}).after
        assert {name: after[name] for name in desired} == desired, each["title"]
    yield debian
    asked.set("EngineUnit", {"unit": UNIT}, {"text": None, "enabled": False, "active": False}, {}, {})
    debian.run("systemctl", "stop", "winhost-gateway.service")


def test_it_answers_through_the_gateway(served: Debian, asked: Agent) -> None:
    assert (asked.get("ServingReady", {}) or {})["ready"] is True
    assert served.run("stat", "-c", "%a %U %G", "/run/winhost-engines/chat").split() == [
        "2750",
        "root",
        "winhost-engines",
    ]
    assert served.run("stat", "-c", "%a %G", SOCKET).split() == ["770", "winhost-engines"]


def test_nobody_else_reaches_it_or_its_workers(served: Debian) -> None:
    """Another user tries every address of the machine. Root would see the ports."""
    addresses = ["127.0.0.1", *served.run("hostname", "-I").split()]
    places = [SOCKET, *(f"{each}:29500" for each in addresses if ":" not in each)]
    said = served.run("runuser", "-u", "somebody", "--", "python3", "/srv/try.py", *places)
    assert said.count("\n") == len(places)
    assert "reached" not in said
    # Windows' localhost comes to what this lists: WSL's relay looks there for ports that it passes on.
    assert ":29500" not in served.run("ss", "-ltn")
    with pytest.raises(OSError, match=r"refused|timed out|unreachable"):  # as another machine of the network
        socket.create_connection((INSIDE, 29500), 5)


def test_another_container_does_not_reach_it(served: Debian) -> None:
    """The other container has a network of its own, or that of the machine, and no folder of the engine."""
    for network in ("none", "host"):
        words = ["podman", "run", "--rm", f"--network={network}", "--volume=/srv/try.py:/try.py:ro"]
        said = served.run(*words, "--entrypoint=/usr/bin/python3", NAME, "/try.py", SOCKET, "127.0.0.1:29500")
        assert said.count("\n") == 2
        assert "reached" not in said, network


def test_it_has_no_rights_and_the_gpus(served: Debian) -> None:
    (main, *_) = served.run("podman", "inspect", "--format={{.State.Pid}}", CONTAINER).split()
    status = served.run("cat", f"/proc/{main}/status")
    assert {line.split()[1] for line in status.splitlines() if line.startswith("Cap")} == {"0000000000000000"}
    assert "NoNewPrivs:\t1" in status
    assert "GIVEN_GPUS=all" in served.run("cat", f"/proc/{main}/environ")
    assert "GIVEN_GPUS" not in served.run("sh", "-c", "cat /proc/1/environ")


def shown(served: Debian, name: str) -> str:
    return served.run("systemctl", "show", f"--property={name}", "--value", UNIT).strip()


def workers(served: Debian) -> int:
    """Find the workers by their first argument, which a shell that searches for them does not have."""
    said = served.run("python3", "-c", COUNT)
    return int(said)


@pytest.mark.parametrize("killed", ["the server", "podman"])
def test_nothing_of_a_killed_one_stays_and_it_is_back(served: Debian, asked: Agent, killed: str) -> None:
    """If its client is killed, the container stays with the memory of the GPU until the unit removes it."""
    before = shown(served, "MainPID")
    inside = served.run("podman", "inspect", "--format={{.State.Pid}}", CONTAINER).strip()
    served.run("kill", "-KILL", before if killed == "podman" else inside)
    over = time.monotonic() + PATIENCE_S
    while shown(served, "ActiveState") != "active" or shown(served, "MainPID") == before:
        assert time.monotonic() < over
        time.sleep(1)
    assert workers(served) == 1
    asked.set("ServingReady", {}, {"ready": True}, {}, {})


def test_stopping_it_leaves_nothing(served: Debian, asked: Agent) -> None:
    asked.set("EngineUnit", {"unit": UNIT}, {"active": False}, {}, {})
    assert served.run("podman", "ps", "--all", "--quiet") == ""
    assert workers(served) == 0
    assert not (served.root / SOCKET.lstrip("/")).exists()
    asked.set("EngineUnit", {"unit": UNIT}, {"active": True}, {}, {})
