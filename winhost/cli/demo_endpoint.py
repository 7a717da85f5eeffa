"""The endpoint of the demos: a workload, a hub that lists its model, a key, and a server that answers."""

import json
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import yaml

from winhost.cli.demo_steps import RealEndpoint, environment, run, say
from winhost.cli.fitting import weight_bytes
from winhost.core.dataclass import dataclass
from winhost.hub.catalogue import catalogue

MODEL, KEY = "tiny", "DEMO_KEY"
_ID = "demo/tiny"
_REVISION = sha256(b"a model that there is none of").hexdigest()[:40]
_IMAGE = f"registry.example.com/vllm/vllm-openai:v0.33.0@sha256:{sha256(b'an image that there is none of').hexdigest()}"
_WORKLOAD = {
    "schema": "winhost.workload/1",
    "models": {
        MODEL: {
            "id": _ID,
            "revision": _REVISION,
            "parameters": 1_000_000_000,
            "dtype": "bfloat16",
            "context": 4096,
            "shape": {"layers": 28, "kv_heads": 4, "head_dim": 128, "hidden": 1536, "vocabulary": 151936},
        }
    },
    "versions": {"vllm": "0.33.0"},
}
_SIZE = 2_000_000_000


@dataclass(frozen=True)
class ServedDemo:
    """words: of `winhost plan`, for the endpoint. Its hub and its image are in the environment."""

    words: tuple[str, ...]
    real: RealEndpoint | None

    def ask(self, host: str) -> None:
        """The endpoint of a host, once it serves."""
        if self.real is not None:
            say("The completion above is by a real vLLM on this computer's processor, through a real gateway.")
            return
        run("serve", "test", host, "--api-key", f"env:{KEY}")
        say("A stand-in of the simulator answered, not a model: make demo-vllm has a real vLLM answer.")


@contextmanager
def served_demo(folder: Path, real: RealEndpoint | None) -> Iterator[ServedDemo]:
    """While this is open, its hub lists the model, and its key is in the environment."""
    file = folder / "workload.yaml"
    file.write_text(yaml.safe_dump(_WORKLOAD, sort_keys=False), encoding="utf-8")
    key = real.key if real else secrets.token_hex(32)
    with _hub() as hub, environment(**{KEY: key, "WINHOST_HUB": hub, "WINHOST_ENGINE_IMAGE": _IMAGE}):
        yield ServedDemo(("--workload", str(file), "--api-key", f"alice=env:{KEY}"), real)


@contextmanager
def _hub() -> Iterator[str]:
    """Has every model at one revision, by its list of files alone: a simulated Linux takes them as downloaded."""

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = json.dumps(_answer(unquote(self.path))).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_request(self, code: object = "-", size: object = "-") -> None:
            """Nobody reads it."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:  # else it would look at a closed socket again and again, as fast as it can
            server.shutdown()
            thread.join()


def _answer(path: str) -> Any:
    name = path.removeprefix("/api/models/").partition("/revision/" if "/revision/" in path else "/tree/")[0]
    known = next((weight_bytes(each) for each in catalogue().entries if each.id == name), _SIZE)
    if "/tree/" not in path:
        return {"id": name, "sha": _REVISION}
    weights = {"type": "file", "path": "model.safetensors", "size": known, "oid": "2" * 40}
    config = {"type": "file", "path": "config.json", "size": 2, "oid": "1" * 40}
    return [config, {**weights, "lfs": {"oid": "3" * 64, "size": known}}]
