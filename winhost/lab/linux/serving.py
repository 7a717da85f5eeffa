"""Engines and their gateway in a simulated Linux: its units are those that were installed, and its engines stand-ins.

A start advances each time it is looked at, and its log has vLLM's own lines.
"""

import hmac
import json
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import field
from datetime import UTC, datetime
from hashlib import sha256
from http.server import BaseHTTPRequestHandler
from threading import Thread
from typing import Any

from winhost.core.answers import Json
from winhost.core.dataclass import dataclass
from winhost.gateway.key_lines import counting, parse_keys
from winhost.lab.contract.agent_answers import failure
from winhost.lab.linux.containers import ContainerStore
from winhost.lab.linux.linux_machine import Linux, State
from winhost.lab.linux.software import program_failed
from winhost.lab.physics.windows_errors import CmdletError, wrong_place
from winhost.model.units import GiB

SERVING_FILE = "/etc/winhost/serving.json"
_UNITS = "/usr/local/lib/systemd/system"
_UNIT = r"winhost-engine-[a-z0-9][a-z0-9-]{0,63}\.service"
_NONE: State = {"text": None, "enabled": False, "active": False, "failed": False}
_START_SECONDS = 90.0


class ServedEngines:
    """The engines whose units are on the disk."""

    def __init__(self, linux: Linux) -> None:
        self._linux = linux
        for each in linux.found("EngineUnit"):
            if each.state["text"] is not None:
                self.put(each.key["unit"], **each.state)

    @property
    def units(self) -> Mapping[str, State]:
        """The units by name, in the shape of their resource."""
        names = (name for name in self._linux.disk.names(_UNITS) if re.fullmatch(_UNIT, name))
        return {name: self._state(name) for name in names}

    def _state(self, name: str) -> State:
        unit = self._linux.systemd.find(name)
        text = self._linux.disk.text(f"{_UNITS}/{name}")
        return {"text": text, "enabled": unit.enabled == "enabled", "active": unit.active, "failed": unit.failed}

    def put(self, name: str, **state: Any) -> None:
        """Change a unit; values that are not named stay."""
        if "text" in state:
            self._linux.disk.write(f"{_UNITS}/{name}", state["text"])
        unit = self._linux.systemd.find(name)
        if "enabled" in state:
            unit.enabled = "enabled" if state["enabled"] else "disabled"
        unit.active, unit.failed = state.get("active", unit.active), state.get("failed", unit.failed)

    def start(self, name: str) -> None:
        """Start an engine, which takes its time. Raises CmdletError where something that it needs is not there."""
        self._linux.sleep(_START_SECONDS)
        if lacking := self._lacking(str(self.units[name]["text"])):
            self.put(name, active=False, failed=True)
            raise program_failed("systemctl", f"Job for {name} failed: {lacking} is not there.")

    def _lacking(self, text: str) -> str | None:
        """Return the first path that a real unit would fail without."""
        for path in map(str, re.findall(r"/opt/winhost/engine-[^\s:]+\.(?:yaml|py)", text)):
            if self._linux.file(path)["text"] is None:
                return path
        for compose in re.findall(r"--file (/opt/winhost/engine-\S+/compose\.yaml)", text)[:1]:
            return self._lacking_container(str(self._linux.file(compose)["text"]))
        return None

    def _lacking_container(self, compose: str) -> str | None:
        image, models = re.search(r"image: (\S+)", compose), re.search(r"(/srv/winhost/models/[a-z0-9-]+):", compose)
        if image is None or not self._linux.part(ContainerStore).has(image[1]):
            return "its image"
        if models is None or not self._linux.disk.names(models[1]):
            return "its model"
        return None

    def serves(self) -> bool:
        """Tell whether the gateway runs, and every engine of the serving file runs or would start at its turn."""
        told = json.loads(str(self._linux.file(SERVING_FILE)["text"]))
        return self._runs("winhost-gateway.service") and all(map(self._would_serve, told["engines"]))

    def _runs(self, unit: str) -> bool:
        return self._linux.systemd.state(unit)["active"] is True

    def _would_serve(self, engine: Mapping[str, Json]) -> bool:
        name = str(engine["unit"])
        unit = self.units.get(name, _NONE)
        if not engine["turns"]:
            return unit["active"] is True
        started = unit["text"] is not None and self._runs("winhost-keeper.service")
        return started and self._lacking(str(unit["text"])) is None


STAND_IN = "(a stand-in of the simulator says this, no model)"
LENGTH = 4096
COMPLETIONS = ("/v1/completions", "/v1/chat/completions")
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
_AT_ONCE = 4  # lines that a start says between two looks
_TIME = 1_795_443_982  # of the first line


@dataclass
class SimulatedServing:
    """Part of a Linux. fails: what an engine says instead, and then fails, by unit; looks: at the start of each unit;
    starts: of each; rest: units of engines that take turns and were up once; turns: what the gateway says of these, if
    not that they rest: what its metric is called, model and value; yields: what `winhost yield` said; boot_test: what
    it found of its endpoint after its start.
    """

    linux: Linux
    fails: dict[str, tuple[str, ...]] = field(default_factory=dict)
    looks: dict[str, int] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)
    rest: set[str] = field(default_factory=set)
    turns: tuple[tuple[str, str, float], ...] = ()
    yields: str = "auto"
    boot_test: dict[str, Json] | None = None
    journal: list[tuple[str, str, str]] = field(default_factory=list)  # unit, invocation, text
    used: dict[str, dict[str, Json]] = field(default_factory=dict)  # by keys, as the gateway writes it
    versions: dict[str, str] = field(default_factory=lambda: {"kernel": "6.8.0-87-generic", "driver": "580.95.05"})

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer one request of `winhost serve`."""
        does: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]]
        does = {
            "deployed": lambda _: {"text": self.linux.file(SERVING_FILE)["text"]},
            "state": self._state,
            "log": self._log,
            "test": self._test,
        }
        does |= {"start": self._start, "stop": self._stop, "yield": self._yield}
        try:
            return {"ok": True, **does[request["do"]](request)}
        except CmdletError as error:
            return failure(error)

    def _start(self, request: Mapping[str, Any]) -> dict[str, Any]:
        unit = request["unit"]
        self._set(unit, active=True, failed=False)
        self.starts[unit], self.looks[unit] = self.starts.get(unit, 0) + 1, 0
        if "-engine-" not in unit:
            self.rest.clear()
        return {}

    def _stop(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self._set(request["unit"], active=False, failed=False)
        self.looks.pop(request["unit"], None)
        return {}

    def _yield(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Models leave while somebody looks once."""
        self._check_gateway(request)
        before, self.yields = self.yields, request["mode"] or self.yields
        leaving = self.yields != before
        code = {"now": "yielding" if leaving else "yielded"}.get(self.yields, "")
        return {"mode": self.yields, "code": code}

    def _check_gateway(self, request: Mapping[str, Any]) -> None:
        if not self._active(request["gateway"]["unit"]):
            raise wrong_place("The gateway does not listen there, or not alone.")

    def _set(self, unit: str, *, active: bool, failed: bool) -> None:
        """Raises CmdletError."""
        systemd = self.linux.systemd
        if active:
            systemd.start(unit)
        else:
            systemd.stop(unit)
        systemd.find(unit).failed = failed

    def _state(self, request: Mapping[str, Any]) -> dict[str, Any]:
        for unit in request["units"]:
            self._go_on(unit)
        gateway = request.get("gateway")
        return {
            "units": [self._unit(unit) for unit in request["units"]],
            "engines": [self._engine(socket) for socket in request["sockets"]],
            "gateway": self._gateway(gateway["unit"], request.get("key")) if gateway else None,
            "gpus": self._gpus() if request.get("gpus") else None,
            "versions": [{"name": name, "version": version} for name, version in self.versions.items()],
            "boot_test": self.boot_test,
        }

    def _go_on(self, unit: str) -> None:
        """Advance the start of an engine by more lines of its log, until it serves or fails."""
        if not self._active(unit) or "-engine-" not in unit:
            return
        lines, at_once = self.fails.get(unit, START_LOG), _AT_ONCE
        if unit not in self.looks:  # a plan started it, and waited for it
            self.looks[unit], self.starts[unit], at_once = len(lines), self.starts.get(unit, 0) + 1, len(lines)
            look = 0
        else:
            look = self.looks[unit]
            self.looks[unit] += 1
        for text in lines[look * at_once : (look + 1) * at_once]:
            self.journal.append((unit, self._invocation(unit), text))
        if unit in self.fails and self._said_all(unit):
            self._set(unit, active=False, failed=True)

    def _said_all(self, unit: str) -> bool:
        return self.looks.get(unit, 0) * _AT_ONCE >= len(self.fails.get(unit, START_LOG))

    def _active(self, unit: str) -> bool:
        return self.linux.systemd.state(unit)["active"] is True

    def _invocation(self, unit: str) -> str:
        return sha256(f"{unit} {self.starts.get(unit, 0)}".encode()).hexdigest()[:32]

    def _unit(self, name: str) -> dict[str, Json]:
        state = self.linux.systemd.state(name)
        there, active, failed = state["loaded"] is True, state["active"] is True, state["failed"] is True
        word = "active" if active else "failed" if failed else "inactive"
        sub = "running" if active else "failed" if failed else "dead"
        code = int(failed)
        found: dict[str, Json] = {"unit": name, "there": there, "active": word, "sub": sub, "code": code, "restarts": 0}
        found |= {"result": "exit-code" if failed else "success", "pid": 4242 if active else 0, "seconds": 60}
        found |= {"enabled": str(state["enabled"]) if there else ""}
        return {**found, "invocation": self._invocation(name) if active or failed else ""}

    def _engine(self, socket: str) -> dict[str, Json]:
        slug = socket.split("/")[3]
        unit = f"winhost-engine-{slug}.service"
        if not (self._active(unit) and self._said_all(unit)):
            return {"socket": socket, "health": None, "version": None, "models": [], "metrics": []}
        planned: dict[str, Any] = next((each for each in self._served()["engines"] if each["slug"] == slug), {})
        names = ("running", "waiting", "kv_cache")
        metrics: list[Json] = [{"name": name, "model": slug, "value": 0.0} for name in names]
        models: list[Json] = [{"id": planned.get("served_name", slug), "length": LENGTH}]
        version = planned.get("version")
        return {"socket": socket, "health": 200, "version": version, "models": models, "metrics": metrics}

    def _served(self) -> dict[str, Any]:
        """The contents of the serving file."""
        text = self.linux.file(SERVING_FILE)["text"]
        found: dict[str, Any] = json.loads(str(text)) if text else _NOTHING
        return found

    def _gateway(self, unit: str, key: str | None) -> dict[str, Json]:
        if not self._active(unit):
            return {"health": None, "ready": None, "metrics": None, "own": False}
        self._prepare(unit)
        ready = all(map(self._serves, self._served()["engines"]))
        counts = ("running", "waiting", "answered", "refused", "broken")
        said = (*((name, "", 0.0) for name in counts), *(self.turns or self._resting()))
        metrics: list[Json] = [{"name": name, "model": model, "value": value} for name, model, value in said]
        found = metrics if self._knows(key, metrics=True) else None
        return {"health": 200, "ready": 200 if ready else 503, "metrics": found, "own": True}

    def _prepare(self, gateway: str) -> None:
        """Engines that take turns: each is started once, one after the other, and then rests."""
        for engine in (each for each in self._served()["engines"] if each.get("turns")):
            unit = engine["unit"]
            if gateway not in self.starts and self.linux.systemd.state(unit)["loaded"]:
                self.rest.add(unit)  # a plan started the gateway, and waited until it was ready
            if unit in self.rest or (self.linux.systemd.state(unit)["failed"] and unit in self.looks):
                continue
            if not self._active(unit):
                self._start({"unit": unit})
            self._go_on(unit)
            if self._active(unit) and self._said_all(unit):
                self._stop({"unit": unit})
                self.rest.add(unit)
            return

    def _serves(self, engine: Mapping[str, Any]) -> bool:
        """Now, or when its turn comes."""
        return engine["unit"] in self.rest or self._engine(engine["socket"])["health"] == 200

    def _resting(self) -> list[tuple[str, str, float]]:
        names = {True: "turn:asleep", False: "turn:starting"}
        return [
            (names[each["unit"] in self.rest], each["model"], 1.0)
            for each in self._served()["engines"]
            if each.get("turns")
        ]

    def _knows(self, key: str | None, *, metrics: bool = False) -> bool:
        """Look a key up in the plan's file of keys, and in the file of later changes."""
        hashed = sha256((key or "").encode()).hexdigest()
        texts = self.linux.texts()
        planned = [line for path, text in texts.items() if re.fullmatch(_KEYS, path) for line in parse_keys(text)]
        now = datetime.now(UTC).timestamp()
        return any(
            hmac.compare_digest(hashed, each.sha256) and each.metrics is metrics and each.state(now) == "active"
            for each in counting(planned, parse_keys(texts.get(KEY_CHANGES, "")))
        )

    def read_keys(self) -> None:
        """The gateway that runs has read the changes, and says so; what keys used is made up."""
        if not self._active("winhost-gateway.service"):
            return
        changes = self.linux.disk.text(KEY_CHANGES) or ""
        read = {"changes": sha256(changes.encode()).hexdigest(), "problem": "", "at": ""}
        used = {name: dict(each) for name, each in self.used.items()}
        self.linux.disk.write(KEY_USE, json.dumps({"format": 1, "read": read, "used": used}), 0o600)

    def _gpus(self) -> list[Json] | None:
        """The GPUs, with made-up values for the stand-ins' use of them."""
        gpus = list(self.linux.gpus())
        if not gpus:
            return None
        return [
            {"index": index, "name": str(gpu.state.get("name")), "busy": 0, "total": 24 * GiB, "used": 1 * GiB}
            for index, gpu in enumerate(gpus)
        ]

    def _log(self, request: Mapping[str, Any]) -> dict[str, Any]:
        begin, invocation = int(request.get("cursor") or 0), request.get("invocation")
        found = [
            (number, {"unit": unit, "at": float(_TIME + number), "text": text})
            for number, (unit, start, text) in enumerate(self.journal)
            if unit in request["units"] and number >= begin and invocation in (None, start)
        ]
        found = found if request.get("cursor") else found[-request["lines"] :]
        return {"lines": [line for _, line in found], "cursor": str(len(self.journal)), "more": False}

    def _test(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self._check_gateway(request)
        if failed := self._failed_starts(request.get("engine") or {}):
            lost: dict[str, Any] = {"status": None, "first": None, "seconds": 9.0, "events": 0, "tokens": None}
            return {**lost, "whole": False, "text": "", "why": "RemoteDisconnected: given up", "failed": failed}
        body = request["body"]
        status = self.status_of(request["path"], body, request.get("key"))
        tokens = body.get("max_tokens") if status == 200 else None
        stream = status == 200 and body.get("stream") is True
        times = {"first": 0.02 if stream else None, "seconds": 0.5, "events": tokens if stream else 0}
        found: dict[str, Any] = {"status": status, "tokens": tokens, "whole": True, "text": STAND_IN}
        return {**found, "why": None, "failed": [], **times}

    def _failed_starts(self, engine: Mapping[str, Any]) -> list[str]:
        """Return the invocations of an engine that fails at each start. The gateway tries again where it starts the
        engine.
        """
        unit, found = str(engine.get("unit")), list[str]()
        while unit in self.fails and (engine["turns"] or self.linux.systemd.state(unit)["failed"]):
            while not self.linux.systemd.state(unit)["failed"]:
                if not self._active(unit):
                    self._start({"unit": unit})
                self._go_on(unit)
            found.append(self._invocation(unit))
            if len(found) == (2 if engine["turns"] else 1):
                break
            self._start({"unit": unit})
        return found

    def listens(self, address: str, port: int) -> bool:
        """Tell whether the gateway runs and listens there."""
        gateway = self._served()["gateway"]
        there, _, number = gateway["listen"].rpartition(":")
        found = there.strip("[]") in (address, "0.0.0.0", "::") and number == str(port)  # noqa: S104 - compared, not bound
        return found and self._active(gateway["unit"])

    def status_of(self, path: str, body: Mapping[str, Any], key: str | None) -> int:
        """Return the status with which the gateway answers a request."""
        if not self._knows(key):
            return 401
        engine = next((each for each in self._served()["engines"] if each["model"] == body.get("model")), None)
        if path not in COMPLETIONS or engine is None:
            return 404
        if engine.get("turns"):
            self._prepare(self._served()["gateway"]["unit"])
        else:
            self._go_on(engine["unit"])
        if not self._serves(engine):
            return 503
        return 400 if len(body.get("prompt") or ()) > LENGTH else 200


_NOTHING: dict[str, Any] = {"engines": [], "gateway": {"unit": "", "listen": ""}}
_KEYS = r"/opt/winhost/gateway[^/]*/keys"
KEY_CHANGES, KEY_USE = "/etc/winhost/gateway-keys", "/var/lib/private/winhost-gateway/use.json"


_MOST = 1_000_000
_PATHS = {"/v1/completions": "text", "/v1/chat/completions": "message"}


@dataclass
class ServedEndpoint:
    """Part of a Linux."""

    linux: Linux

    def connect(self, address: str, port: int) -> socket.socket | None:
        """A connection from within that Linux; None where nothing listens."""
        if not self.linux.part(SimulatedServing).listens(address, port):
            return None
        ours, theirs = socket.socketpair()
        Thread(target=self._serve, args=(theirs,), daemon=True).start()
        return ours

    def _serve(self, connection: socket.socket) -> None:
        serving = self.linux.part(SimulatedServing)

        class Gateway(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(min(length, _MOST)) or b"{}")
                key = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
                status = serving.status_of(self.path, body, key)
                if status == 200 and body.get("stream") is True and _PATHS[self.path] == "message":
                    _stream(self, body)
                else:
                    refusal = {"error": {"message": f"a stand-in of the simulator refuses this: {status}"}}
                    _answer(self, status, _said(self.path, body) if status == 200 else refusal)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as its base has it
                """Nobody reads it."""

        with connection:
            Gateway(connection, ("127.0.0.1", 0), None)  # type: ignore[arg-type]  # it asks no server


def _answer(handler: BaseHTTPRequestHandler, status: int, document: Mapping[str, Any]) -> None:
    content = json.dumps(document).encode()
    handler.send_response(status)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(content)))
    handler.end_headers()
    handler.wfile.write(content)


def _stream(handler: BaseHTTPRequestHandler, body: Mapping[str, Any]) -> None:
    """Word by word, as server-sent events that end with the connection."""
    handler.send_response(200)
    handler.send_header("Content-Type", "text/event-stream")
    handler.end_headers()
    words = re.findall(r"\s*\S+", STAND_IN)
    deltas: list[dict[str, str]] = [{"role": "assistant", "content": ""}, *({"content": word} for word in words)]
    choices: list[list[dict[str, Any]]] = [[{"index": 0, "delta": each, "finish_reason": None}] for each in deltas]
    choices[-1][0]["finish_reason"] = "stop"
    events: list[dict[str, Any]] = [{"model": body["model"], "choices": each} for each in choices]
    if (body.get("stream_options") or {}).get("include_usage"):
        usage = {"prompt_tokens": 1, "completion_tokens": len(words), "total_tokens": len(words) + 1}
        events.append({"model": body["model"], "choices": [], "usage": usage})
    for event in (*map(json.dumps, events), "[DONE]"):
        handler.wfile.write(f"data: {event}\n\n".encode())


def _said(path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    told: Any = STAND_IN if _PATHS[path] == "text" else {"role": "assistant", "content": STAND_IN}
    choice = {"index": 0, _PATHS[path]: told, "finish_reason": "length"}
    return {"object": "text_completion", "model": body["model"], "choices": [choice]}
