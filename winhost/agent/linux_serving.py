# Json {do: deployed | state | log | start | stop | test | keys | yield, ...}   answer {answers: [{ok, ...}]}
"""Show what this Linux serves: its file, units, logs, GPUs, engines and gateway. The text is constant.

The program starts and stops units of winhost, changes the gateway's API keys, and sets whether its models yield; it
changes nothing else. An API key in a request is sent to the gateway alone. To add a key, only its hash is sent.
"""

from __future__ import annotations

import json
import os
import re
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winhost.agent.linux_agent import (
    AgentFault,
    bad_request,
    check_text,
    describe_error,
    find_program,
    run,
    wrong_state,
)
from winhost.agent.linux_files import read_text
from winhost.agent.linux_http import CONNECTION_ERRORS, fetch, listed_choices, parse_object, sum_metrics, time_request
from winhost.agent.linux_keys import keys
from winhost.agent.linux_units import FailedStarts, holds_port, journal, start_unit, stop_unit, unit_name, unit_states
from winhost.agent.linux_wire import LineWire

if TYPE_CHECKING:  # Python 3.8 cannot say these
    from winhost.agent.linux_agent import State

FILE = "/etc/winhost/serving.json"
BOOT_TEST = "/run/winhost-boot-test/result.json"
YIELD = "/run/winhost-gateway/yield"  # removed when the gateway stops
YIELDS = ("now", "auto", "never")
SOCKET = r"/run/winhost-engines/[a-z0-9-]{1,64}/engine\.sock"
ADDRESS = r"[0-9A-Fa-f:.]{2,45}"
SMI = "--query-gpu=index,name,memory.total,memory.used,utilization.gpu"
ENGINE_METRICS = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "kv_cache",
    "vllm:gpu_cache_usage_perc": "kv_cache",
    "vllm:generation_tokens_total": "generated_tokens",
    "vllm:prompt_tokens_total": "prompt_tokens",
}
GATEWAY_METRICS = {
    "winhost_gateway_requests_running": "running",
    "winhost_gateway_requests_waiting": "waiting",
    "winhost_gateway_requests_total": "answered",
    "winhost_gateway_refused_total": "refused",
    "winhost_gateway_broken_answers_total": "broken",
    "winhost_gateway_engine_state": "turn",
    "winhost_gateway_standby_state": "standby",
    "winhost_gateway_model_requests_waiting": "turn_waiting",
    "winhost_gateway_last_move_seconds": "move_seconds",
    "winhost_gateway_last_move_time_seconds": "move_at",
}
VERSIONS = {
    "driver": ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
    "toolkit": ("nvidia-ctk", "--version"),
    "wsl": ("wslinfo", "--wsl-version"),
}
QUICK_S = 5.0
READY_S = 40.0  # the gateway gives an engine 30 s for its completion


def read_deployment(request: State) -> State:
    """Read the file; null if there is none."""
    return {"text": read_text(FILE)}


def state(request: State) -> State:
    """Read the state of units, engines (by their sockets), the gateway and the GPUs."""
    units = unit_states(request["units"])
    engines = [engine(check_text(SOCKET, path, "the socket of an engine")) for path in request["sockets"]]
    found: State = {"units": units, "engines": engines, "gateway": None}
    found["gpus"] = gpus() if request.get("gpus") else None
    found["versions"] = versions() if request.get("gpus") else []
    found["boot_test"] = boot_test()
    if request.get("gateway"):
        endpoint = gateway_endpoint(request["gateway"])
        found["gateway"] = {"health": None, "ready": None, "metrics": None, "own": False}
        if holds_port(unit_states([request["gateway"]["unit"]])[0]["pid"], endpoint["port"]):
            found["gateway"] = gateway(endpoint, request.get("key"), bool(request.get("ready")))
    return found


def boot_test() -> State | None:
    """Read the result of the unit that tests the endpoint after a start; None before it has one."""
    try:
        file = os.open(BOOT_TEST, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(file, "rb") as opened:
        found = parse_object(opened.read(1000).decode("ascii", "replace"))
    if not (isinstance(found.get("ready"), bool) and isinstance(found.get("seconds"), int)):
        return None
    texts = {name: str(found.get(name))[:100] for name in ("at", "why")}
    return {"ready": found["ready"], "seconds": found["seconds"], **texts}


def gateway_endpoint(request: State) -> State:
    unit_name(request["unit"])
    port = request["port"]
    if not (isinstance(port, int) and 1 <= port <= 65535):
        raise bad_request("A port is expected.")
    address = check_text(ADDRESS, request["address"], "an address")
    own = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)  # noqa: S104 - compared
    return {"address": own, "port": port, "tls": request["tls"] is True}


def gateway(endpoint: State, key: str | None, ready: bool) -> State:
    """Read the state of the gateway. health, ready: the status, None if nothing answers; metrics: None without a valid
    key.
    """
    found: State = {"health": status_of(endpoint, "/health", QUICK_S), "ready": None, "metrics": None, "own": True}
    if ready and found["health"] == 200:
        found["ready"] = status_of(endpoint, "/ready", READY_S)
    if key and found["health"] == 200:
        code, text = fetch(endpoint, "/metrics", key=key, within=QUICK_S)
        found["metrics"] = sum_metrics(text, GATEWAY_METRICS) if code == 200 else None
    return found


def status_of(endpoint: State, path: str, within: float) -> int | None:
    try:
        return fetch(endpoint, path, within=within)[0]
    except CONNECTION_ERRORS:
        return None


def engine(socket: str) -> State:
    """Read the state of an engine. health: 200 once it takes requests, None if it does not listen."""
    endpoint = {"socket": socket}
    found: State = {"socket": socket, "health": status_of(endpoint, "/health", QUICK_S)}
    found.update(version=None, models=[], metrics=[])
    if found["health"] is None:
        return found
    try:
        version = parse_object(fetch(endpoint, "/version", within=QUICK_S)[1]).get("version")
        listed = parse_object(fetch(endpoint, "/v1/models", within=QUICK_S)[1]).get("data")
        found["metrics"] = sum_metrics(fetch(endpoint, "/metrics", within=QUICK_S)[1], ENGINE_METRICS)
        found["version"] = version[:100] if isinstance(version, str) else None
        found["models"] = list(map(served_model, listed_choices({"choices": listed})))[:100]
    except CONNECTION_ERRORS:  # the engine has just ended
        pass
    return found


def served_model(said: State) -> State:
    length = said.get("max_model_len")
    return {"id": str(said.get("id"))[:255], "length": length if isinstance(length, int) else None}


def versions() -> list[State]:
    """Read the versions that engines depend on, and `boot`, which is new with each start of the machine.

    A program whose version cannot be read is omitted.
    """
    found = {"kernel": os.uname().release}
    with suppress(OSError):
        found["boot"] = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    for name, command in VERSIONS.items():
        with suppress(AgentFault):
            said = (
                re.search(r"[0-9]+(?:\.[0-9]+)+", run(*command, within=30).output) if find_program(command[0]) else None
            )
            found.update({name: said[0]} if said else {})
    return [{"name": name, "version": version} for name, version in found.items()]


def gpus() -> list[State] | None:
    """List the GPUs; None if nvidia-smi is missing or fails."""
    if find_program("nvidia-smi") is None:
        return None
    done = run("nvidia-smi", SMI, "--format=csv,noheader,nounits", within=30)
    found = [[part.strip() for part in line.split(",")] for line in done.output.splitlines()]
    return [gpu(row) for row in found if len(row) == 5 and row[0].isdigit()] if done.code == 0 else None


def gpu(row: list[str]) -> State:
    total, used, busy = (int(text) if text.isdigit() else None for text in row[2:])
    sizes = {"total": None if total is None else total << 20, "used": None if used is None else used << 20}
    return {"index": int(row[0]), "name": row[1], "busy": busy, **sizes}


def log(request: State) -> State:
    """Read a page of the journal."""
    return journal(request["units"], request.get("lines") or 1, request.get("cursor"), request.get("invocation"))


def start(request: State) -> State:
    """Start one unit, without waiting for it."""
    start_unit(request["unit"])
    return {}


def stop(request: State) -> State:
    """Stop one unit, without waiting for it."""
    stop_unit(request["unit"])
    return {}


def test(request: State) -> State:
    """Send one request to the gateway, if only its own process listens at its port. engine: {unit, turns} of the engine
    that has to answer; failed: its failed starts, if these ended the wait.
    """
    endpoint = gateway_endpoint(request["gateway"])
    if not holds_port(unit_states([request["gateway"]["unit"]])[0]["pid"], endpoint["port"]):
        raise wrong_state("The gateway does not listen there, or not alone.")
    engine = request.get("engine")
    starts = FailedStarts(engine["unit"], engine["turns"] is True) if engine else None
    hopeless = starts.has_failed if starts else None
    found = time_request(
        endpoint, request["path"], request.get("body"), request.get("key"), float(request["within"]), hopeless
    )
    return {**found, "failed": starts.invocations if starts and found["status"] is None else []}


def yields(request: State) -> State:
    """Read whether models yield their GPUs, or set it to `mode`. code: the error code of /ready, if not 200."""
    endpoint, mode = gateway_endpoint(request["gateway"]), request.get("mode")
    if not holds_port(unit_states([request["gateway"]["unit"]])[0]["pid"], endpoint["port"]):
        raise wrong_state("The gateway does not listen there, or not alone.")
    if mode is not None:
        if mode not in YIELDS:
            raise bad_request(f"One of {', '.join(YIELDS)} is expected.")
        write_mode(mode)
    try:
        status_, text = fetch(endpoint, "/ready", within=READY_S)
    except CONNECTION_ERRORS:
        return {"mode": read_mode(), "code": "no-answer"}
    error = parse_object(text).get("error") if status_ != 200 else None
    return {"mode": read_mode(), "code": str(error.get("code"))[:100] if isinstance(error, dict) else ""}


def write_mode(mode: str) -> None:
    """Write the mode into the folder of the gateway. An existing file or link is replaced and never followed."""
    temporary = f"{YIELD}.{os.getpid()}"
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    with os.fdopen(file, "w") as opened:
        opened.write(f"{mode}\n")
        os.fchmod(file, 0o644)
    os.replace(temporary, YIELD)  # noqa: PTH105 - as the rest here


def read_mode() -> str:
    try:
        file = os.open(YIELD, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return "auto"
    with os.fdopen(file, "rb") as opened:
        found = opened.read(100).decode("ascii", "replace").strip()
    return found if found in YIELDS else "auto"


REQUESTS = {
    "deployed": read_deployment,
    "state": state,
    "log": log,
    "start": start,
    "stop": stop,
    "test": test,
    "keys": keys,
    "yield": yields,
}


def answer_request(request: Any) -> State:
    """Answer one request."""
    try:
        return {"ok": True, **REQUESTS[request["do"]](request)}
    except Exception as error:  # noqa: BLE001 - every error is reported
        return {"ok": False, "error": describe_error(error), "warnings": []}


def serve() -> None:
    """Answer lines of requests until the controller is gone."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    wire = LineWire()
    for line in iter(wire.receive, b""):
        with wire.heartbeat():
            answers = {"answers": [answer_request(json.loads(line))]}
        wire.send(json.dumps(answers).encode("ascii") + b"\n")
