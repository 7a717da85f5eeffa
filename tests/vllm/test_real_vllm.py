"""A real vLLM on the processor, in development mode, behind the gateway: what clients get, what nobody may reach."""

import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.connect.sshd import free_port
from tests.gateway.running import KEY, MODEL, Gateway, dechunked, gateway, read_to_end
from tests.processes import PATIENCE_S
from tests.serving.situations import TWO_GPUS, shipped, workload
from tests.serving.situations import model as a_model
from tests.vllm.real_engine import LENGTH, NoVllm, RealEngine, installed, tiny_model
from winhost.gateway.request_rules import FIELDS, RESERVED
from winhost.resources.factsfile import read_facts
from winhost.resources.host import HostFacts
from winhost.serving.choice import serving
from winhost.serving.engine_start import StartProgress, find_symptom

pytestmark = [pytest.mark.real, pytest.mark.timeout(2400)]  # the first time, it is fetched

NOBODY = 65534
HERE = Path(__file__).parent
LINUX = HERE.parents[1] / "examples/linux/ubuntu-2xh100.json"
# What the gateway publishes of what vLLM has.
PUBLISHED = {"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/rerank", "/v1/score"}
OWN = {"/v1/models", "/health", "/metrics"}


@pytest.fixture(scope="module")
def python() -> Path:
    if os.geteuid() != 0 or platform.machine() != "x86_64":
        pytest.skip("it takes root on x86_64: other users, and a network of its own")
    try:
        return installed()
    except NoVllm as why:
        pytest.skip(str(why))


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Short, and everybody may enter it."""
    with tempfile.TemporaryDirectory(prefix="vllm-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="module")
def model(python: Path, folder: Path) -> Path:
    return tiny_model(python, folder / "tiny")


@pytest.fixture(scope="module")
def engine(python: Path, model: Path, folder: Path) -> Iterator[RealEngine]:
    """In development mode, whose endpoints are what must not be reached."""
    running = RealEngine(python, model, folder / "engine", "--shutdown-timeout=60", VLLM_SERVER_DEV_MODE="1")
    try:
        running.until_it_serves()
        yield running
    finally:
        running.close()


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def door(engine: RealEngine, folder: Path, port: int) -> Iterator[Gateway]:
    own = folder / "door"
    own.mkdir()
    published = {"name": MODEL, "engine": {"socket": str(engine.socket)}, "served_as": "tiny"}
    settings = {
        "listen": {"address": "127.0.0.1", "port": port},
        "models": [published],
        "limits": {"hold": 2, "drain": 60},
    }
    with gateway(own, settings, engine_up=False) as running:
        yield running


class Client:
    """Connections to the gateway's port."""

    def __init__(self, port: int) -> None:
        self.port = port

    def send(self, path: str, body: Any = None, key: str | None = KEY, method: str = "") -> socket.socket:
        to = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)
        data = b"" if body is None else json.dumps(body).encode()
        lines = [f"{method or ('GET' if body is None else 'POST')} {path} HTTP/1.1", "Host: a", "Connection: close"]
        lines += [f"Authorization: Bearer {key}"] if key else []
        lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"] if body is not None else []
        to.sendall("\r\n".join([*lines, "", ""]).encode() + data)
        return to

    def status(self, path: str, body: Any = None, key: str | None = KEY, method: str = "") -> int:
        with self.send(path, body, key, method) as to:
            return int(read_to_end(to).split(b" ")[1])


@pytest.fixture(scope="module")
def client(door: Gateway, port: int) -> Client:
    return Client(port)


@pytest.fixture(scope="module")
def openai(python: Path, client: Client) -> Any:
    """What the real client says."""

    def ask(what: str) -> Any:
        done = subprocess.run(
            [str(python), str(HERE / "openai_client.py"), what],
            capture_output=True,
            text=True,
            env={"URL": f"http://127.0.0.1:{client.port}", "KEY": KEY, "PATH": os.environ["PATH"], "HOME": "/root"},
            timeout=400,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return ask


# ---- clients


def test_the_real_client_completes_chats_and_streams(openai: Any) -> None:
    said = openai("basics")
    assert said["models"] == [MODEL]
    assert said["completion"] == 8
    assert (said["stream"], said["chat"], said["chat_stream"]) == ("length", "assistant", "length")


def test_the_real_client_gets_errors_by_their_classes(openai: Any) -> None:
    said = openai("errors")
    assert [said[name][:2] for name in ("wrong model", "too long", "wrong key", "wrong type")] == [
        ["NotFoundError", 404],
        ["BadRequestError", 400],
        ["AuthenticationError", 401],
        ["BadRequestError", 400],
    ]
    assert f"maximum context length is {LENGTH} tokens" in said["too long"][2]


def test_the_real_client_sends_what_is_usual_and_is_told_what_is_not_allowed(openai: Any) -> None:
    said = openai("fields")
    assert said.pop("answers") == 2
    assert said == {name: ["BadRequestError", name] for name in said}
    assert {"priority", "kv_transfer_params", "chat_template", "nothing", "n", "image_url"} <= said.keys()


def test_all_fields_of_its_requests_are_decided(python: Path) -> None:
    command = [str(python), str(HERE / "request_fields.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["fields"].keys() == PUBLISHED
    for route, names in found["fields"].items():
        assert {*names} - FIELDS[route] - RESERVED.keys() == set(), route
    of_text = {"text", "thinking", "input_text", "output_text", "refusal", "tool_reference", "input_audio"}
    loaded = {name for name in found["parts"] if name in RESERVED}
    assert {*found["parts"]} - of_text - loaded == {"image_url", "audio_url", "video_url", "input_image"}


def test_of_two_hundred_streams_at_once_none_is_lost_or_mixed_up(openai: Any, client: Client) -> None:
    said = openai("many")
    assert len(said) == 200
    assert [each for each in said if each != {"own": True, "end": "length", "tokens": 24}] == []


# ---- what nobody may reach


def test_no_other_route_of_the_real_engine_is_published(engine: RealEngine, client: Client) -> None:
    """Every route that vLLM itself says that it has, those of development among them."""
    status, text = engine.ask("/openapi.json")
    assert status == 200
    routes = {(path, method.upper()) for path, methods in json.loads(text)["paths"].items() for method in methods}
    assert {"/sleep", "/collective_rpc", "/invocations", "/tokenize"} <= {path for path, _ in routes}
    assert engine.ask("/is_sleeping") == (200, '{"is_sleeping":false}')  # it is there, and open to whoever gets in
    others = sorted((path, method) for path, method in routes if path not in PUBLISHED | OWN)
    assert len(others) > 20
    for path, method in others:
        path = path.replace("{", "").replace("}", "")
        assert client.status(path, {} if method == "POST" else None, KEY, method) == 404, path
        assert client.status(path, {} if method == "POST" else None, None, method) == 401, path
    assert json.loads(engine.ask("/is_sleeping")[1]) == {"is_sleeping": False}


def test_without_a_key_or_with_a_wrong_one_no_engine_hears_of_it(engine: RealEngine, client: Client) -> None:
    before = engine.log.count("POST /v1/completions")
    body = {"model": MODEL, "prompt": "a", "max_tokens": 1}
    for key in (None, "wh-" + "x" * 40, KEY + "x", ""):
        assert client.status("/v1/completions", body, key) == 401
    assert engine.log.count("POST /v1/completions") == before
    assert client.status("/v1/completions", body) == 200
    assert KEY not in engine.log


AS_ANOTHER = """\
import json, os, socket, sys
"localhost".encode("idna")  # its codec is loaded while this user may still read it
os.setgroups([]); os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))
found = []
for path in sys.argv[2].split():
    to = socket.socket(socket.AF_UNIX)
    try:
        to.connect(path)
        found.append("in")
    except OSError as error:
        found.append(type(error).__name__)
for port in sys.argv[3].split():
    try:
        socket.create_connection(("127.0.0.1", int(port)), timeout=2).close()
        found.append("in")
    except OSError as error:
        found.append(type(error).__name__)
print(json.dumps(found))
"""


def listening_ports(engine: RealEngine) -> list[int]:
    """As the engine's own network has them."""
    worker = max(engine.processes())
    table = Path(f"/proc/{worker}/net/tcp").read_text().splitlines()[1:]
    return sorted({int(line.split()[1].rpartition(":")[2], 16) for line in table if line.split()[3] == "0A"})


def test_another_local_user_reaches_neither_its_socket_nor_its_workers(engine: RealEngine) -> None:
    ports = listening_ports(engine)
    assert ports  # a worker listens, on the loopback address of its own network
    words = [str(engine.socket), " ".join(map(str, ports))]
    for user, allowed in ((NOBODY, "PermissionError"), (0, "in")):
        done = subprocess.run(
            [sys.executable, "-c", AS_ANOTHER, str(user), *words], capture_output=True, text=True, timeout=PATIENCE_S
        )
        found = json.loads(done.stdout)
        assert found[0] == allowed
        assert set(found[1:]) == {"ConnectionRefusedError"}, found  # not even root, from this network


# ---- its log, its parser


def test_its_log_shows_how_far_a_start_is_and_no_failure(engine: RealEngine) -> None:
    progress = StartProgress()
    seen = []
    for line in engine.log.splitlines():
        if progress.read([line]):
            seen.append(progress.phase.name)
    assert seen == ["start", "load", "memory", "finish"]  # no graphs and nothing compiled, with --enforce-eager
    assert find_symptom(engine.log.splitlines()) is None


PARSE = """\
import json, sys
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.entrypoints.launchers.cli_args import make_arg_parser
import vllm.envs
words, variables = json.loads(sys.argv[1])
parser = make_arg_parser(FlexibleArgumentParser())
print(vars(parser.parse_args(words)).get("max_model_len"))
ours = [name for name in variables if name.startswith("VLLM_")]
print(json.dumps([name for name in ours if name not in vllm.envs.environment_variables]))
"""


@pytest.mark.parametrize("profile", ["wsl2", "wsl2-no-sleep", "bare-metal"])
def test_its_own_parser_takes_what_profiles_say(python: Path, profile: str) -> None:
    facts = HostFacts(read_facts(LINUX)) if profile == "bare-metal" else shipped(TWO_GPUS)
    found = serving(facts, workload(a_model(), vllm="0.32.0"), profile, 2400)
    assert found.models
    for served in found.models:
        words = [word for line in served.lines if line.kind == "engine" for word in line.arguments]
        variables = [line.name for line in served.lines if line.kind == "env"]
        done = subprocess.run(
            [str(python), "-c", PARSE, json.dumps([[served.id, *words], variables])],
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, (words, done.stderr[-1000:])
        assert done.stdout.splitlines()[-1] == "[]", "variables that it does not know"


def test_what_it_refuses_on_this_platform_is_known(python: Path, model: Path, folder: Path) -> None:
    refused = RealEngine(python, model, folder / "refused", "--enable-sleep-mode")
    try:
        refused.process.wait(PATIENCE_S)
        found = find_symptom(refused.log.splitlines())
        assert found is not None
        assert (found.code, refused.process.returncode) == ("vllm.no-sleep", 1)
    finally:
        refused.close()


# ---- the end: what is under way is brought to its end


class Stream(threading.Thread):
    """A long one. whole: whether its last chunk came; end: the reason that the engine gave."""

    def __init__(self, client: Client) -> None:
        super().__init__(daemon=True)
        body = {"model": MODEL, "prompt": "One", "max_tokens": 400, "stream": True, "ignore_eos": True}
        self._to = client.send("/v1/completions", body)
        self._first = self._to.recv(4096)
        self.body, self.whole = b"", False
        self.start()

    def run(self) -> None:
        with self._to:
            raw = self._first + read_to_end(self._to)
        self.body, self.whole = dechunked(raw.partition(b"\r\n\r\n")[2])

    @property
    def ended(self) -> tuple[bool, bool, bool]:
        self.join(PATIENCE_S)
        return self.whole, b'"finish_reason":"length"' in self.body, self.body.endswith(b"data: [DONE]\n\n")


def test_an_engine_that_is_asked_to_end_lets_a_stream_end(engine: RealEngine, client: Client) -> None:
    stream = Stream(client)
    engine.terminate()
    time.sleep(1)
    late = client.status("/v1/completions", {"model": MODEL, "prompt": "a", "max_tokens": 1})
    assert late >= 500  # and nothing that looks like an answer
    assert stream.ended == (True, True, True)
    engine.process.wait(PATIENCE_S)
    until = time.monotonic() + PATIENCE_S
    while engine.processes() and time.monotonic() < until:
        time.sleep(0.2)
    assert engine.processes() == set()  # nothing that would hold a GPU
    assert client.status("/v1/completions", {"model": MODEL, "prompt": "a", "max_tokens": 1}) == 503
    assert client.status("/ready", key=None) == 503
