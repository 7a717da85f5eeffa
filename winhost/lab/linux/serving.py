"""Simulated engines and their gateway, with the units that winhost installed.

Each read of a starting engine's state advances its start, and adds lines of vLLM to its log. The script of `winhost
serve` runs as on any Linux; only the HTTP answers of engines and gateway are made up.
"""

import hmac
import io
import json
import re
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from datetime import UTC, datetime
from hashlib import sha256
from http.server import BaseHTTPRequestHandler
from itertools import count
from threading import Thread
from types import SimpleNamespace
from typing import Any

from winhost.core.answers import Json
from winhost.core.dataclass import dataclass
from winhost.gateway.key_lines import effective_keys, parse_keys
from winhost.lab.linux.containers import ContainerStore
from winhost.lab.linux.linux_machine import Linux, State
from winhost.lab.linux.software import program_failed
from winhost.lab.physics.windows_software import is_nvidia_gpu
from winhost.model.units import GiB

SERVING_FILE = "/etc/winhost/serving.json"
_UNITS = "/usr/local/lib/systemd/system"
_UNIT = r"winhost-engine-[a-z0-9][a-z0-9-]{0,63}\.service"
_NO_UNIT: State = {"text": None, "enabled": False, "active": False, "failed": False}
_START_SECONDS = 90.0


class ServedEngines:
    """The engines that have a unit file."""

    def __init__(self, linux: Linux) -> None:
        self._linux = linux
        for each in linux.fact_records("EngineUnit"):
            if each.state["text"] is not None:
                self.update_unit(each.key["unit"], **each.state)

    @property
    def units(self) -> Mapping[str, State]:
        """The units by name, each as a state of resource EngineUnit."""
        units: dict[str, State] = {}
        for name in self._linux.disk.list_names(_UNITS):
            if re.fullmatch(_UNIT, name):
                unit, text = self._linux.systemd.find(name), self._linux.disk.text(f"{_UNITS}/{name}")
                known = {"enabled": unit.enabled == "enabled", "active": unit.active, "failed": unit.failed}
                units[name] = {"text": text, **known}
        return units

    def update_unit(self, name: str, **state: Any) -> None:
        """Change the given properties of a unit."""
        if "text" in state:
            self._linux.disk.write(f"{_UNITS}/{name}", state["text"])
        unit = self._linux.systemd.find(name)
        if "enabled" in state:
            unit.enabled = "enabled" if state["enabled"] else "disabled"
        unit.active, unit.failed = state.get("active", unit.active), state.get("failed", unit.failed)

    def start(self, name: str) -> None:
        """Start an engine, and wait. Raises CmdletError if something that it needs is missing."""
        self._linux.sleep(_START_SECONDS)
        if missing := self._find_missing(str(self.units[name]["text"])):
            self.update_unit(name, active=False, failed=True)
            raise program_failed("systemctl", f"Job for {name} failed: {missing} is not there.")

    def _find_missing(self, text: str) -> str | None:
        """Return the first thing that is missing and without which the unit fails, or None."""
        for path in map(str, re.findall(r"/opt/winhost/engine-[^\s:]+\.(?:yaml|py)", text)):
            if self._linux.read_file(path)["text"] is None:
                return path
        if (read_file := re.search(r"--file (/opt/winhost/engine-\S+/compose\.yaml)", text)) is None:
            return None
        return self._find_missing_for_container(str(self._linux.read_file(read_file[1])["text"]))

    def _find_missing_for_container(self, compose: str) -> str | None:
        image, models = re.search(r"image: (\S+)", compose), re.search(r"(/srv/winhost/models/[a-z0-9-]+):", compose)
        if image is None or not self._linux.part(ContainerStore).has(image[1]):
            return "its image"
        if models is None or not self._linux.disk.list_names(models[1]):
            return "its model"
        return None

    def serves(self) -> bool:
        """Tell whether the gateway runs, and each engine of the serving file runs, or can start when its turn comes."""
        serving_file = json.loads(str(self._linux.read_file(SERVING_FILE)["text"]))
        gateway = self._linux.systemd.is_active("winhost-gateway.service")
        return gateway and all(map(self._can_serve, serving_file["engines"]))

    def _can_serve(self, engine: Mapping[str, Json]) -> bool:
        name = str(engine["unit"])
        unit = self.units.get(name, _NO_UNIT)
        if not engine["turns"]:
            return unit["active"] is True
        is_started = unit["text"] is not None and self._linux.systemd.is_active("winhost-keeper.service")
        return is_started and self._find_missing(str(unit["text"])) is None


STAND_IN = "(a stand-in of the simulator says this, no model)"
LENGTH = 4096
COMPLETIONS = {"/v1/completions": "text", "/v1/chat/completions": "message"}
START_LOG = (
    "(APIServer pid=8) INFO 11-22 10:54:46 [api_utils.py:286] non-default args: {'max_model_len': 4096}",
    "(APIServer pid=8) INFO 11-22 10:54:58 [model.py:733] Resolved architecture: LlamaForCausalLM",
    "(EngineCore pid=13) INFO 11-22 10:55:07 [gpu_model_runner.py:5182] Starting to load model org/model...",
    "Loading safetensors checkpoint shards: 100% Completed | 2/2 [00:08<00:00, 4.20s/it]",
    "(EngineCore pid=13) INFO 11-22 10:55:16 [default_loader.py:430] Loading weights took 8.40 seconds",
    "(EngineCore pid=13) INFO 11-22 10:55:23 [backends.py:1148] Dynamo bytecode transform time: 6.20 s",
    "(EngineCore pid=13) INFO 11-22 10:55:37 [monitor.py:53] torch.compile took 20.15 s in total",
    "(EngineCore pid=13) INFO 11-22 10:55:40 [gpu_worker.py:508] Available KV cache memory: 26.3 GiB",
    "Capturing CUDA graphs (FULL): 100%|##########| 11/11 [00:00<00:00, 14.78it/s]",
    "(EngineCore pid=13) INFO 11-22 10:55:43 [model_runner.py:726] Graph capturing finished in 3 secs, took 0.89 GiB",
    "INFO:     Application startup complete.",
)
_LINES_PER_POLL = 4  # lines of a start's log between two reads
_FIRST_LINE_TIME = 1_795_443_982


class Reply(io.BytesIO):
    """An answer of an engine or of the gateway, like http.client's."""

    def __init__(self, status: int, content: object = "", kind: str = "application/json") -> None:
        super().__init__((content if isinstance(content, str) else json.dumps(content)).encode())
        self.status, self.kind = status, kind

    def getheader(self, name: str, default: str = "") -> str:
        return self.kind if name == "Content-Type" else default


@dataclass
class SimulatedServing:
    """The engines and the gateway as the script of `winhost serve` sees them. Dictionaries are by unit.

    failure_logs: the log of an engine whose start fails; polls: reads since its start; starts: how many; asleep:
    engines that take turns and have been started once; engine_metrics: (metric, model, value) of these engines in the
    gateway's metrics, instead of the default; yield_mode: as `winhost yield` set it; boot_test: the result of the check
    after a start of the machine.
    """

    linux: Linux
    failure_logs: dict[str, tuple[str, ...]] = field(default_factory=dict)
    polls: dict[str, int] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)
    asleep: set[str] = field(default_factory=set)
    engine_metrics: tuple[tuple[str, str, float], ...] = ()
    yield_mode: str = "auto"
    boot_test: dict[str, Json] | None = None
    journal: list[tuple[str, str, str]] = field(default_factory=list)  # unit, invocation, text
    key_use: dict[str, dict[str, Json]] = field(default_factory=dict)  # by key, as the gateway writes it
    versions: dict[str, str] = field(default_factory=lambda: {"kernel": "6.8.0-87-generic", "driver": "580.95.05"})
    clock: Iterator[float] = field(default_factory=lambda: count(1000.0, 0.02))
    """The script's clock, which advances with each read, independently of the lab's clock."""
    _gives_up: Callable[[], bool] | None = None
    _has_yielded: bool = True
    """The models have yielded."""

    def table(self) -> Mapping[str, Any]:
        """Return replacements for functions of the script of `winhost serve`, by their names."""
        return {
            "boot_test": lambda: self.boot_test,
            "open_connection": lambda address, within: SimpleNamespace(address=address, close=lambda: None),
            "gpus": self._gpus,
            "holds_port": lambda pid, port: pid > 0,
            "read_mode": lambda: self.yield_mode,
            "send_request": lambda to, path, body, key: self._reply(to.address, path, body, key),
            "time": SimpleNamespace(monotonic=lambda: next(self.clock), sleep=lambda seconds: None),
            "cancel_if": self._keep_give_up_check,
            "versions": lambda: [{"name": name, "version": version} for name, version in self.versions.items()],
            "write_mode": self._write_mode,
        }

    # ---- units and the journal

    def start(self, unit: str) -> None:
        """Start a unit without waiting. Raises CmdletError."""
        self.linux.systemd.start(unit)
        self.linux.systemd.find(unit).failed = False
        self.starts[unit], self.polls[unit] = self.starts.get(unit, 0) + 1, 0
        if "-engine-" not in unit:
            self.asleep.clear()

    def stop(self, unit: str) -> None:
        """Stop a unit. Raises CmdletError."""
        self.linux.systemd.stop(unit)
        self.polls.pop(unit, None)

    def advance(self, unit: str) -> None:
        """Advance the start of an engine by some lines of its log, until it serves or fails."""
        if not self.linux.systemd.is_active(unit) or "-engine-" not in unit:
            return
        lines, count = self.failure_logs.get(unit, START_LOG), _LINES_PER_POLL
        if unit not in self.polls:  # a plan started it, and waited until it served
            self.polls[unit], self.starts[unit], count = len(lines), self.starts.get(unit, 0) + 1, len(lines)
            poll = 0
        else:
            poll = self.polls[unit]
            self.polls[unit] += 1
        for text in lines[poll * count : (poll + 1) * count]:
            self.journal.append((unit, self._invocation(unit), text))
        if unit in self.failure_logs and self._has_logged_all(unit):
            self.linux.systemd.stop(unit)
            self.linux.systemd.find(unit).failed = True

    def _has_logged_all(self, unit: str) -> bool:
        return self.polls.get(unit, 0) * _LINES_PER_POLL >= len(self.failure_logs.get(unit, START_LOG))

    def _invocation(self, unit: str) -> str:
        return sha256(f"{unit} {self.starts.get(unit, 0)}".encode()).hexdigest()[:32]

    def properties(self, unit: str) -> tuple[tuple[str, object], ...]:
        """Return the properties of the unit's run, as `systemctl show` lists them."""
        state = self.linux.systemd.state(unit)
        active, failed = state["active"] is True, state["failed"] is True
        return (
            ("SubState", "running" if active else "failed" if failed else "dead"),
            ("Result", "exit-code" if failed else "success"),
            ("MainPID", 4242 * active),
            ("NRestarts", 0),
            ("ExecMainStatus", int(failed)),
            ("InvocationID", self._invocation(unit) if active or failed else ""),
            ("StateChangeTimestampMonotonic", int((next(self.clock) - 60) * 1e6)),
        )

    def journalctl(self, arguments: Sequence[str]) -> str:
        """Return entries of the journal as JSON lines."""
        options = dict(word.lstrip("-").partition("=")[::2] for word in arguments if not word.startswith("--unit="))
        units = {word.removeprefix("--unit=") for word in arguments if word.startswith("--unit=")}
        begin, invocation = int(options.get("after-cursor", 0)), options.get("_SYSTEMD_INVOCATION_ID")
        entries = [
            {"MESSAGE": text, "_SYSTEMD_UNIT": unit, "__CURSOR": str(number + 1)}
            | {"__REALTIME_TIMESTAMP": str((_FIRST_LINE_TIME + number) * 10**6)}
            for number, (unit, start, text) in enumerate(self.journal)
            if number >= begin and (start == invocation if invocation else unit in units)
        ]
        return "".join(f"{json.dumps(each)}\n" for each in entries[-int(options.get("lines", 0)) :])

    # ---- HTTP answers of engines and gateway

    def _reply(self, address: Mapping[str, Any], path: str, body: Mapping[str, Any] | None, key: str | None) -> Reply:
        """Answer a request to an engine's socket, or to the gateway. Raises OSError if it is not running."""
        if "socket" in address:
            return self._engine_reply(address["socket"], path)
        if body is not None:
            return self.completion(path, body, key)
        if path == "/ready":
            code = self.ready()
            return Reply(503, {"error": {"code": code}}) if code else Reply(200)
        if path == "/metrics":
            return Reply(200, "".join(self._metrics())) if self._is_known_key(key, metrics=True) else Reply(401)
        self._start_engines_in_turn(self._read_serving_file()["gateway"]["unit"])
        return Reply(200)

    def _engine_reply(self, socket: str, path: str) -> Reply:
        slug = socket.split("/")[3]
        if not self._is_up(f"winhost-engine-{slug}.service"):
            raise ConnectionRefusedError(socket)
        engine: dict[str, Any] = next(
            (each for each in self._read_serving_file()["engines"] if each["slug"] == slug), {}
        )
        metric_names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        contents: Mapping[str, object] = {
            "/version": {"version": engine.get("version")},
            "/v1/models": {"data": [{"id": engine.get("served_name", slug), "max_model_len": LENGTH}]},
            "/metrics": "".join(f'vllm:{name}{{model_name="{slug}"}} 0.0\n' for name in metric_names),
        }
        return Reply(200, contents.get(path, ""))

    def _is_up(self, unit: str) -> bool:
        return self.linux.systemd.is_active(unit) and self._has_logged_all(unit)

    def ready(self) -> str:
        """Return the code with which the gateway reports that it is not ready; "" if it is ready."""
        if self.yield_mode == "now":
            has_yielded, self._has_yielded = self._has_yielded, True
            return "yielded" if has_yielded else "yielding"
        return "" if all(map(self._is_serving, self._read_serving_file()["engines"])) else "engine-down"

    def _write_mode(self, mode: str) -> None:
        """Change the mode. Models have yielded at the second read after that."""
        self._has_yielded, self.yield_mode = mode == self.yield_mode, mode

    def _metrics(self) -> Iterator[str]:
        for metric in (
            "requests_running",
            "requests_waiting",
            "requests_total",
            "refused_total",
            "broken_answers_total",
        ):
            yield f"winhost_gateway_{metric} 0\n"
        states = [
            ("turn:asleep" if each["unit"] in self.asleep else "turn:starting", each["model"], 1.0)
            for each in self._read_serving_file()["engines"]
            if each.get("turns")
        ]
        for name, model, value in self.engine_metrics or states:
            kind, _, state = name.partition(":")
            labels = f'model="{model}"' + (f',state="{state}"' if state else "")
            yield f"winhost_gateway_{_METRICS[kind]}{{{labels}}} {value}\n"

    def _start_engines_in_turn(self, gateway: str) -> None:
        """Start the engines that take turns, one after the other. Each is put to sleep after its start."""
        for engine in (each for each in self._read_serving_file()["engines"] if each.get("turns")):
            unit = engine["unit"]
            if gateway not in self.starts and self.linux.systemd.state(unit)["loaded"]:
                self.asleep.add(unit)  # a plan started the gateway, and waited until it was ready
            if unit in self.asleep or (self.linux.systemd.state(unit)["failed"] and unit in self.polls):
                continue
            if not self.linux.systemd.is_active(unit):
                self.start(unit)
            self.advance(unit)
            if self._is_up(unit):
                self.stop(unit)
                self.asleep.add(unit)
            return

    def _is_serving(self, engine: Mapping[str, Any]) -> bool:
        """Tell whether an engine serves now, or when its turn comes."""
        return engine["unit"] in self.asleep or self._is_up(engine["unit"])

    def _read_serving_file(self) -> dict[str, Any]:
        """Return the contents of the serving file."""
        text = self.linux.read_file(SERVING_FILE)["text"]
        contents: dict[str, Any] = json.loads(str(text)) if text else _EMPTY_SERVING_FILE
        return contents

    def _is_known_key(self, key: str | None, *, metrics: bool = False) -> bool:
        """Tell whether a key is active in the plan's file of keys and the file of later changes."""
        hashed = sha256((key or "").encode()).hexdigest()
        texts = self.linux.texts()
        planned_keys = [
            line for path, text in texts.items() if re.fullmatch(_KEYS_PATH, path) for line in parse_keys(text)
        ]
        now = datetime.now(UTC).timestamp()
        return any(
            hmac.compare_digest(hashed, each.sha256) and each.metrics is metrics and each.state(now) == "active"
            for each in effective_keys(planned_keys, parse_keys(texts.get(KEY_CHANGES, "")))
        )

    def read_keys(self) -> None:
        """Write which keys were read and used, as a running gateway does. The use of keys is made up."""
        if not self.linux.systemd.is_active("winhost-gateway.service"):
            return
        changes = self.linux.disk.text(KEY_CHANGES) or ""
        read = {"changes": sha256(changes.encode()).hexdigest(), "problem": "", "at": ""}
        key_use = {name: dict(each) for name, each in self.key_use.items()}
        self.linux.disk.write(KEY_USE, json.dumps({"format": 1, "read": read, "used": key_use}), 0o600)

    def _gpus(self) -> list[Json] | None:
        """Return the GPUs that nvidia-smi lists, with made-up values for their use; None if there are none. A distro
        has no GPU on a bus: its nvidia-smi lists those that NVIDIA's driver of Windows runs.
        """
        names = [gpu.state.get("name") for gpu in self.linux.gpus()]
        if not names and not self.linux.is_standalone:
            driven = (each.state() for each in self.linux.machine.devices if is_nvidia_gpu(each))
            names = [state["name"] for state in driven if state["driver_model"] in ("WDDM", "MCDM")]
        return [
            {"index": index, "name": str(name), "busy": 0, "total": 24 * GiB, "used": 1 * GiB}
            for index, name in enumerate(names)
        ] or None

    # ---- completions

    @contextmanager
    def _keep_give_up_check(self, to: object, hopeless: Callable[[], bool] | None) -> Iterator[None]:
        """Store the function that tells whether the caller gives up, for the duration of a request."""
        self._gives_up = hopeless
        try:
            yield
        finally:
            self._gives_up = None

    def completion(self, path: str, body: Mapping[str, Any], key: str | None) -> Reply:
        """Return the gateway's answer to a completion request. Raises OSError if its engine fails."""
        status = self._status_of(path, body, key)
        if status != 200:
            return Reply(status, {"error": {"message": f"a stand-in of the simulator refuses this: {status}"}})
        words = re.findall(r"\s*\S+", STAND_IN)
        usage = {"prompt_tokens": 1, "completion_tokens": body.get("max_tokens") or len(words)}
        if body.get("stream") is True:
            return Reply(200, "".join(_events(path, body, words, usage)), "text/event-stream")
        choice_content: Any = STAND_IN if path == "/v1/completions" else {"role": "assistant", "content": STAND_IN}
        choice = {"index": 0, COMPLETIONS[path]: choice_content, "finish_reason": "length"}
        return Reply(200, {"object": "text_completion", "model": body["model"], "choices": [choice], "usage": usage})

    def _status_of(self, path: str, body: Mapping[str, Any], key: str | None) -> int:
        if not self._is_known_key(key):
            return 401
        engine = next(
            (each for each in self._read_serving_file()["engines"] if each["model"] == body.get("model")), None
        )
        if path not in COMPLETIONS or engine is None:
            return 404
        if self._gives_up and engine["unit"] in self.failure_logs:
            while not self._gives_up():
                if not self.linux.systemd.is_active(engine["unit"]):
                    self.start(engine["unit"])  # the gateway restarts a failed engine until the caller gives up
            raise ConnectionAbortedError("given up")
        if engine.get("turns"):
            self._start_engines_in_turn(self._read_serving_file()["gateway"]["unit"])
        else:
            self.advance(engine["unit"])
        if not self._is_serving(engine):
            return 503
        return 400 if len(body.get("prompt") or ()) > LENGTH else 200

    def listens(self, address: str, port: int) -> bool:
        """Tell whether the gateway runs and listens on this address and port."""
        gateway = self._read_serving_file()["gateway"]
        host, _, number = gateway["listen"].rpartition(":")
        matches = host.strip("[]") in (address, "0.0.0.0", "::") and number == str(port)  # noqa: S104 - compared, not bound
        return matches and self.linux.systemd.is_active(gateway["unit"])

    def connect(self, address: str, port: int) -> socket.socket | None:
        """Return a connection to an address inside the Linux; None if nothing listens."""
        if not self.listens(address, port):
            return None
        client, server = socket.socketpair()
        Thread(target=self._serve, args=(server,), daemon=True).start()
        return client

    def _serve(self, connection: socket.socket) -> None:
        completion = self.completion

        class Gateway(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(min(length, _MAX_REQUEST_BYTES)) or b"{}")
                key = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
                reply = completion(self.path, body, key)
                self.send_response(reply.status)
                self.send_header("Content-Type", reply.kind)
                self.send_header("Content-Length", str(len(reply.getvalue())))
                self.end_headers()
                self.wfile.write(reply.getvalue())

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as its base has it
                """Log nothing."""

        with connection:
            Gateway(connection, ("127.0.0.1", 0), None)  # type: ignore[arg-type]  # it asks no server


def _events(path: str, body: Mapping[str, Any], words: Sequence[str], usage: Mapping[str, int]) -> Iterator[str]:
    """Yield the server-sent events of a completion, word by word."""
    chat = path == "/v1/chat/completions"
    for number, word in enumerate(words, 1):
        part: dict[str, Any] = {"delta": {"role": "assistant", "content": word}} if chat else {"text": word}
        choice = {"index": 0, **part, **({"finish_reason": "stop"} if number == len(words) else {})}
        yield f"data: {json.dumps({'model': body['model'], 'choices': [choice]})}\n\n"
    if (body.get("stream_options") or {}).get("include_usage"):
        yield f"data: {json.dumps({'model': body['model'], 'choices': [], 'usage': usage})}\n\n"
    yield "data: [DONE]\n\n"


_EMPTY_SERVING_FILE: dict[str, Any] = {"engines": [], "gateway": {"unit": "", "listen": ""}}
_METRICS = {"turn": "engine_state", "turn_waiting": "model_requests_waiting", "move_seconds": "last_move_seconds"}
_METRICS |= {"move_at": "last_move_time_seconds"}
_KEYS_PATH = r"/opt/winhost/gateway[^/]*/keys"
KEY_CHANGES, KEY_USE = "/etc/winhost/gateway-keys", "/var/lib/private/winhost-gateway/use.json"
_MAX_REQUEST_BYTES = 1_000_000  # bytes of a request
